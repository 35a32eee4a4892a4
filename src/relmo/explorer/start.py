"""The cards of the first screen: one thing to see each, with a picture from answers that were made ahead.

A card is there when a model that ships has what it shows: a cell that somebody has named, or an answer. So nothing here
knows the number of a unit. The page draws the pictures, and leaves out cards for screens that it has not.
"""

from typing import Any

from relmo.analysis.units.named_cells import NamedCell, read_cells
from relmo.explorer.examples import EXAMPLES, ShippedModel, example
from relmo.explorer.lines import measured, number_units, shipped_mixes
from relmo.explorer.ready import READY, read_ready

Card = dict[str, Any]
CELLS = (
    ("quotes", ("quotes",), "A cell that knows it is inside quotation marks"),
    ("line", ("column", "to_line_end"), "A cell that counts the line"),
    ("brackets", ("depth", "parentheses"), "A cell that counts open brackets"),
    ("indentation", ("indentation",), "A cell that knows how far the line is indented"),
    ("comments", ("comment", "prose"), "A cell that knows it is inside a comment"),
    ("if", ("if", "if_body"), "A cell for the condition of an if"),
)
"""Cards of named cells: the features that they may stand for, the first the best."""
ALIGNED = (
    (
        *("translating", "english-french", "What it looks at while it translates"),
        "A row for each piece that it writes: orange is the English that it looked at.",
    ),
    (
        *("adding", "addition", "A network that learned to add"),
        "It was shown sums as text, and no rule.",
    ),
)
"""Cards of models that translate: the kind, the model, the title and the sentence."""
CALLED = {"elman": "Elman network", "gru": "GRU", "lstm": "LSTM"}
SHORT = 60  # places of a curve in a picture


def cards() -> list[Card]:
    """All cards, in the order of a lecture."""
    models = [each for each in EXAMPLES if example(each.name) is not None]
    named = {each.name: read_cells(each.folder) for each in models}
    ready = {each.name: read_ready(each.folder / READY) for each in models}
    given = (models, named, ready)
    found = [card for each in CELLS if (card := _cell_card(each, *given)) is not None]
    makers = (_by_hand, _three, _forgetting, _counting, _agreement, _number, _play, _layers, _writing)
    found += [card for make in makers if (card := make(*given)) is not None]
    return found + [card for each in ALIGNED if (card := _aligned(each, models, ready)) is not None]


Models = list[ShippedModel]
Named = dict[str, list[NamedCell]]
Ready = dict[str, dict[str, Any]]


def _cell_card(shown: tuple[str, tuple[str, ...], str], models: Models, named: Named, ready: Ready) -> Card | None:
    """The strongest cell that is named for the first of the features that has one."""
    kind, features, title = shown
    some = [(abs(cell.r), model, cell) for model in models for cell in named[model.name] if cell.feature in features]
    some = [each for each in some if each[2].unit in ready[each[1].name].get("cards", {})]
    if not some:
        return None
    _, model, cell = max(some, key=lambda each: (-features.index(each[2].feature), each[0]))
    shown_at = ready[model.name]["cards"][cell.unit]
    picture = {"kind": "text", **shown_at, "turned": cell.binary and cell.r < 0}
    strength = {"clear": "It is clear to see.", "fair": "You see it, with exceptions."}.get(
        cell.strength, "Only just: this network is small."
    )
    sentence = f"{strength} It agrees with the truth with r = {abs(cell.r):.2f}."
    link = {"screen": "read", "model": model.name, "text": model.text, "unit": cell.unit, "mode": "centred"}
    link |= {"page": shown_at["page"], "at": shown_at["first"]}
    return {"kind": kind, "title": title, "sentence": sentence, "link": link, "picture": picture}


def _by_hand(models: Models, named: Named, ready: Ready) -> Card | None:
    model = next((each for each in models if each.name == "hello"), None)
    if model is None:
        return None
    return {
        "kind": "byhand",
        "title": "One step, with a pencil",
        "sentence": "Three cells write “hello”: every number of it, in an Elman network, a GRU and an LSTM.",
        "link": {"screen": "equations", "model": model.name, "text": model.text, "at": 2},
        "picture": {
            "kind": "prose",
            "text": "h e l l o\n\nh′ = tanh(W x + U h + b)\n   = tanh(−0.3 − 1.4 − 3.3)\n   = −1",
        },
    }


def _three(models: Models, named: Named, ready: Ready) -> Card | None:
    """Return the card of networks of one size trained on one text: the probability that each gives the next letter."""
    some = [each for each in models if each.alike == "prose" and "compare" in ready[each.name]]
    if not some:
        return None
    ranking = ready[some[0].name]["compare"]["ranking"]  # as Compare shows it
    names = [CALLED[row["model"].rpartition("-")[2]] for row in ranking]
    rows = [[name, 100 * 2 ** -row["bits"]] for name, row in zip(names, ranking, strict=True)]
    is_best = all(row["difference"][1] > 0 for row in ranking[1:])
    claim = f"The {names[0]} guesses best." if is_best else "None is clearly the best."
    best = next(each for each in some if each.name == ranking[0]["model"])
    return {
        "kind": "three",
        "title": "Three networks read one book",
        "sentence": f"The chance that each gives, on average, to the next letter of another book. {claim}",
        "link": {"screen": "compare", "model": best.name, "text": best.text},
        "picture": {"kind": "bars", "rows": rows, "limit": 40},
    }


def _layers(models: Models, named: Named, ready: Ready) -> Card | None:
    model = next((each for each in models if each.name == "small"), None)
    if model is None:
        return None
    (task,) = (each for each in shipped_mixes() if (each["task"], each["bilm"]) == ("POS, EWT", "small"))
    shares = task["mixes"][0]["shares"]
    names = ("characters", "layer 1", "layer 2")
    rows = [[name, 100 * share] for name, share in zip(names, shares, strict=True)]
    most = names[shares.index(max(shares))]
    return {
        "kind": "layers",
        "title": "Which layer do tasks want?",
        "sentence": f"A task learns how much of each layer it reads. Here, parts of speech: most from {most}.",
        "link": {"screen": "layers", "model": model.name},
        "picture": {"kind": "bars", "rows": rows, "limit": 100},
    }


def _forgetting(models: Models, named: Named, ready: Ready) -> Card | None:
    model = next((each for each in models if "fresh" in ready[each.name]), None)
    if model is None:
        return None
    series = []
    for network in ready[model.name]["fresh"]["networks"]:
        curve = next(each for each in network["curves"] if each["of"] == network["memory_state"])
        series.append({"name": network["name"], "y": curve["median"][:SHORT]})
    best = max(series, key=lambda each: each["y"][-1])["name"].split(",")[0].upper()
    return {
        "kind": "forgetting",
        "title": "Why networks forget",
        "sentence": f"What a mistake teaches fades with every step back. In the {best} it fades most slowly.",
        "link": {"screen": "memory", "model": model.name, "text": model.text},
        "picture": {"kind": "lines", "series": series, "log": True},
    }


def _counting(models: Models, named: Named, ready: Ready) -> Card | None:
    for model in models:
        for cell in named[model.name]:
            card = ready[model.name].get("cards", {}).get(cell.unit)
            if cell.feature == "surplus" and card:
                return {
                    "kind": "counting",
                    "title": "A cell that counts",
                    "sentence": "It takes a step with every a, and the same step back with every b.",
                    "link": {"screen": "trace", "model": model.name, "text": "thousand", "unit": cell.unit},
                    "picture": {"kind": "lines", "series": [{"name": cell.name, "y": card["values"]}]},
                }
    return None


def _agreement(models: Models, named: Named, ready: Ready) -> Card | None:
    model = next((each for each in models if "agree" in ready[each.name]), None)
    if model is None:
        return None
    conditions = [row for row in ready[model.name]["agree"]["conditions"] if row["condition"].startswith("nounpp")]
    rows = [[row["condition"], row["accuracy"]] for row in conditions]
    pairs = sum(row["pairs"] for row in conditions)
    return {
        "kind": "agreement",
        "title": "“The keys to the cabinet … is or are?”",
        "sentence": f"The verb goes with the keys, not with the cabinet. Bars: right verbs in {pairs} pairs.",
        "link": {"screen": "experiments", "model": model.name},
        "picture": {"kind": "bars", "rows": rows, "limit": 100},
    }


def _number(models: Models, named: Named, ready: Ready) -> Card | None:
    model = next((each for each in models if number_units(each.name)), None)
    if model is None:
        return None
    unit = number_units(model.name)[0]
    found, kind = measured(model.name, unit), "nounpp singular plural"
    assert found is not None
    rows = [["with all cells", found["all"][kind]], ["without this one", found["without"][kind]]]
    return {
        "kind": "number",
        "title": "A cell that carries the subject's number",
        "sentence": f"Right verbs after “the boy near the cars”, {found['pairs']} sentences, with and without it.",
        "link": {"screen": "trace", "model": model.name, "unit": unit},
        "picture": {"kind": "bars", "rows": rows, "limit": 100},
    }


def _play(models: Models, named: Named, ready: Ready) -> Card | None:
    model = next((each for each in models if "meaning" in ready[each.name]), None)
    if model is None:
        return None
    pairs = []
    for name in ("meaning", "meaning_second"):
        found = ready[model.name][name]
        nearest = next(each for each in found["layers"][-1] if each["words"] != found["words"])
        pairs.append([_around(found["words"], found["position"]), _around(nearest["words"], nearest["position"])])
    asked = ready[model.name]["meaning"]
    link = {"screen": "meaning", "model": model.name, "text": model.text, "sentence": " ".join(asked["words"])}
    return {
        "kind": "play",
        "title": "One word, two senses: “play”",
        "sentence": "For each of two sentences, the nearest occurrence of any word in the top layer.",
        "link": link | {"position": asked["position"]},
        "picture": {"kind": "pairs", "pairs": pairs},
    }


def _around(words: list[str], place: int) -> list[str]:
    """A word with some words around it: before, the word, after."""
    return [" ".join(words[max(0, place - 3) : place]), words[place], " ".join(words[place + 1 : place + 4])]


def _writing(models: Models, named: Named, ready: Ready) -> Card | None:
    model = next((each for each in models if "writing" in ready[each.name]), None)
    if model is None:
        return None
    sample = ready[model.name]["writing"]
    return {
        "kind": "writing",
        "title": "A network that writes",
        "sentence": "It guesses the next letter, takes one, and guesses again.",
        "link": {"screen": "write", "model": model.name}
        | {name: sample[name] for name in ("prompt", "temperature", "seed", "taken")},
        "picture": {"kind": "prose", "text": sample["text"]},
    }


def _aligned(shown: tuple[str, str, str, str], models: Models, ready: Ready) -> Card | None:
    """What a model that translates looked at, where it ships with an answer: a row for each word that was written."""
    kind, name, title, sentence = shown
    align = ready.get(name, {}).get("align")
    if align is None:
        return None
    model = align["models"][0]
    written = model["written"][0]
    rows = written["units"][: len(written["units"]) - written["ended"]]
    if kind == "adding":
        sentence = f"{sentence} {_attended_digits(rows, model['source'], written['attention'])}"
    picture = {"kind": "map", "rows": rows, "columns": model["source"], "weights": written["attention"][: len(rows)]}
    return {
        "kind": kind,
        "title": title,
        "sentence": sentence,
        "link": {"screen": "align", "model": name},
        "picture": picture,
    }


def _attended_digits(rows: list[str], source: list[str], attention: list[list[float]]) -> str:
    """Describe how many of the written digits have their largest attention weight on a digit of the source."""
    most = [source[max(range(len(source)), key=weights.__getitem__)] for weights in attention[: len(rows)]]
    count = sum(symbol.isdigit() for symbol in most)
    return f"Of the {len(rows)} digits that it writes, {count} attend most to a digit of the sum."

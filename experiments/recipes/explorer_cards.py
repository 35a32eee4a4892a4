"""Cards of the explorer's start page: one phenomenon each, with a picture from precomputed answers.

A card is made if a bundled model has what it needs, a named cell or an answer, so no unit is hard-coded here. The page
draws the pictures, and leaves out the cards of views that it does not have. `experiments.recipes.explorer_answers`
writes the cards to cards.json beside the bundled models.
"""

from collections.abc import Iterator
from typing import Any

from relmo.analysis.units.cell_report import NamedCell, read_cells
from relmo.explorer.examples import (
    ANSWERS_FILE,
    ModelEntry,
    get_agreement,
    installed_examples,
    load_task_mixes,
    read_answers,
)

Card = dict[str, Any]
Cell = tuple[ModelEntry, NamedCell, dict[str, Any]]  # with its picture
CELL_CARDS = (
    ("quotes", ("quotes",), "A cell that detects quotations"),
    ("line", ("column", "to_line_end"), "A cell that tracks the position in the line"),
    ("brackets", ("depth", "parentheses"), "A cell that counts open brackets"),
    ("indentation", ("indentation",), "A cell that tracks the indentation"),
    ("comments", ("comment", "prose"), "A cell that detects comments"),
    ("if", ("if", "if_body"), "A cell for the condition of an if statement"),
)
"""Cards of named cells: kind, features in order of preference, title."""
STRENGTHS = {"clear": "Strong", "fair": "Moderate", "weak": "Weak"}
CELL_NAMES = {"elman": "Elman network", "gru": "GRU", "lstm": "LSTM"}
NUM_LAGS = 60  # of a curve in a picture


def make_cards() -> list[Card]:
    """Return the cards that can be made, in the order of a lecture."""
    models = {model.name: model for model in installed_examples()}
    answers = {name: read_answers(model.folder / ANSWERS_FILE) for name, model in models.items()}
    cells: list[Cell] = []
    for name, model in models.items():
        pictures = answers[name].get("cards", {})
        cells += [(model, cell, pictures[cell.unit]) for cell in read_cells(model.folder) if cell.unit in pictures]
    sections = (_cell_cards(cells), _network_cards(models, answers, cells), _language_cards(models, answers))
    return [card for section in (*sections, _output_cards(models, answers)) for card in section]


def _make_card(kind: str, title: str, sentence: str, link: dict[str, Any], picture: dict[str, Any]) -> Card:
    return {"kind": kind, "title": title, "sentence": sentence, "link": link, "picture": picture}


def _cell_cards(cells: list[Cell]) -> Iterator[Card]:
    """Yield the card of the strongest cell named for the most preferred feature, for each kind."""
    for kind, features, title in CELL_CARDS:
        candidates = [row for row in cells if row[1].feature in features]
        if not candidates:
            continue
        model, cell, picture = max(candidates, key=lambda row: (-features.index(row[1].feature), abs(row[1].r)))
        sentence = f"{STRENGTHS[cell.strength]} correlation with the truth: r = {abs(cell.r):.2f}."
        link = {"screen": "read", "model": model.name, "text": model.text, "unit": cell.unit, "mode": "centred"}
        link |= {"page": picture["page"], "at": picture["first"]}
        inverted = cell.binary and cell.r < 0
        yield _make_card(kind, title, sentence, link, {"kind": "text", **picture, "turned": inverted})


def _network_cards(models: dict[str, ModelEntry], answers: dict[str, Any], cells: list[Cell]) -> Iterator[Card]:
    if "hello" in models:
        sentence = "An Elman network, a GRU and an LSTM that write “hello”, with every number of every step."
        link: Card = {"screen": "equations", "model": "hello", "text": models["hello"].text, "at": 2}
        text = "h e l l o\n\nh′ = tanh(W x + U h + b)\n   = tanh(−0.3 − 1.4 − 3.3)\n   = −1"
        yield _make_card("byhand", "One step, computed by hand", sentence, link, {"kind": "prose", "text": text})
    compared = [name for name in models if models[name].group == "prose" and "compare" in answers[name]]
    if compared:  # networks of one size trained on one text: mean probability of the next letter
        ranking = answers[compared[0]]["compare"]["ranking"]  # as Compare shows it
        names = [CELL_NAMES[row["model"].rpartition("-")[2]] for row in ranking]
        is_best = all(row["difference"][1] > 0 for row in ranking[1:])
        claim = f"The {names[0]} predicts best." if is_best else "None is clearly the best."
        sentence = f"The mean probability of the next letter of another book. {claim}"
        best = models[ranking[0]["model"]]
        link = {"screen": "compare", "model": best.name, "text": best.text}
        rows = [[name, 100 * 2 ** -row["bits"]] for name, row in zip(names, ranking, strict=True)]
        picture: Card = {"kind": "bars", "rows": rows, "limit": 40}
        yield _make_card("three", "Three networks trained on one book", sentence, link, picture)
    if model := _find_model(models, answers, "fresh"):
        series = []
        for network in answers[model.name]["fresh"]["networks"]:
            curve = next(curve for curve in network["curves"] if curve["of"] == network["memory_state"])
            series.append({"name": network["name"], "y": curve["median"][:NUM_LAGS]})
        slowest = max(series, key=lambda curve: curve["y"][-1])["name"].split(",")[0].upper()
        sentence = f"The gradient of a loss shrinks with every step back. It shrinks most slowly in the {slowest}."
        link = {"screen": "memory", "model": model.name, "text": model.text}
        picture = {"kind": "lines", "series": series, "log": True}
        yield _make_card("forgetting", "Vanishing gradients", sentence, link, picture)
    for model, cell, values in [row for row in cells if row[1].feature == "surplus"][:1]:
        sentence = "It takes a step with every a, and an equal step back with every b."
        link = {"screen": "trace", "model": model.name, "text": "thousand", "unit": cell.unit}
        picture = {"kind": "lines", "series": [{"name": cell.name, "y": values["values"]}]}
        yield _make_card("counting", "A cell that counts", sentence, link, picture)


def _language_cards(models: dict[str, ModelEntry], answers: dict[str, Any]) -> Iterator[Card]:
    if model := _find_model(models, answers, "agree"):
        conditions = answers[model.name]["agree"]["conditions"]
        conditions = [row for row in conditions if row["condition"].startswith("nounpp")]
        num_pairs = sum(row["pairs"] for row in conditions)
        sentence = f"The verb agrees with the keys, not with the cabinet. Bars: accuracy on {num_pairs} pairs."
        rows = [[row["condition"], row["accuracy"]] for row in conditions]
        link: Card = {"screen": "experiments", "model": model.name}
        picture: Card = {"kind": "bars", "rows": rows, "limit": 100}
        yield _make_card("agreement", "“The keys to the cabinet … is or are?”", sentence, link, picture)
    for name in [name for name in models if get_agreement(name)][:1]:
        (unit, measured), *_ = get_agreement(name).items()
        condition, pairs = "nounpp singular plural", measured["pairs"]
        sentence = f"Accuracy of the verb after “the boy near the cars”, {pairs} sentences, with and without it."
        rows = [["intact", measured["all"][condition]], ["without this cell", measured["without"][condition]]]
        link, picture = {"screen": "trace", "model": name, "unit": unit}, {"kind": "bars", "rows": rows, "limit": 100}
        yield _make_card("number", "A cell that carries the number of the subject", sentence, link, picture)
    if model := _find_model(models, answers, "meaning"):
        pairs = []
        for query in (answers[model.name]["meaning"], answers[model.name]["meaning_second"]):
            nearest = next(row for row in query["layers"][-1] if row["words"] != query["words"])
            pairs.append([_get_context(query), _get_context(nearest)])
        sentence = "For each of two sentences, the nearest occurrence of any word in the top layer."
        first = answers[model.name]["meaning"]
        link = {"screen": "meaning", "model": model.name, "text": model.text}
        link |= {"sentence": " ".join(first["words"]), "position": first["position"]}
        yield _make_card("play", "One word, two senses: “play”", sentence, link, {"kind": "pairs", "pairs": pairs})
    if "small" in models:
        (task,) = (task for task in load_task_mixes() if (task["task"], task["bilm"]) == ("POS, EWT", "small"))
        shares, names = task["mixes"][0]["shares"], ("characters", "layer 1", "layer 2")
        best = names[shares.index(max(shares))]
        sentence = f"A task learns a weight for each layer. For part-of-speech tagging, {best} has the largest."
        rows = [[name, 100 * share] for name, share in zip(names, shares, strict=True)]
        link, picture = {"screen": "layers", "model": "small"}, {"kind": "bars", "rows": rows, "limit": 100}
        yield _make_card("layers", "Which layer do tasks use?", sentence, link, picture)


def _output_cards(models: dict[str, ModelEntry], answers: dict[str, Any]) -> Iterator[Card]:
    if model := _find_model(models, answers, "writing"):
        sample = answers[model.name]["writing"]
        sentence = "It predicts the next letter, samples one, and predicts again."
        link = {"screen": "write", "model": model.name}
        link |= {name: sample[name] for name in ("prompt", "temperature", "seed", "taken")}
        yield _make_card("writing", "A network that writes", sentence, link, {"kind": "prose", "text": sample["text"]})
    for name in ("english-french", "addition"):
        if (align := answers.get(name, {}).get("align")) is None:
            continue
        source, output = align["models"][0]["source"], align["models"][0]["written"][0]
        rows = output["units"][: len(output["units"]) - output["ended"]]
        weights = output["attention"][: len(rows)]
        if name == "addition":
            maxima = [source[max(range(len(source)), key=row.__getitem__)] for row in weights]
            num_digits = sum(symbol.isdigit() for symbol in maxima)
            kind, title = "adding", "A network that learned to add"
            sentence = "It was trained on sums as text."
            sentence += f" Of its {len(rows)} output digits, {num_digits} attend most to a digit of the sum."
        else:
            kind, title = "translating", "Attention in translation"
            sentence = "One row per output unit: the attention weights on the English source are orange."
        picture = {"kind": "map", "rows": rows, "columns": source, "weights": weights}
        yield _make_card(kind, title, sentence, {"screen": "align", "model": name}, picture)


def _find_model(models: dict[str, ModelEntry], answers: dict[str, Any], answer: str) -> ModelEntry | None:
    return next((model for name, model in models.items() if answer in answers[name]), None)


def _get_context(occurrence: dict[str, Any]) -> list[str]:
    """Return the words before an occurrence, the word, and the words after it."""
    words, i = occurrence["words"], occurrence["position"]
    return [" ".join(words[max(0, i - 3) : i]), words[i], " ".join(words[i + 1 : i + 4])]

"""Cards of the start page: one phenomenon each, with a picture from precomputed answers.

A card is shown if a bundled model has what it needs, a named cell or an answer, so no unit is hard-coded here. The page
draws the pictures, and leaves out the cards of views that it does not have.
"""

from typing import Any

from relmo.analysis.units.named_cells import NamedCell, read_cells
from relmo.explorer.examples import BundledModel, installed_examples
from relmo.explorer.measurements import get_agreement, load_task_mixes, number_units
from relmo.explorer.precomputed import ANSWERS_FILE, read_answers

Card = dict[str, Any]
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
    return [card for card in _CardMaker().make_all() if card is not None]


def _make_card(kind: str, title: str, sentence: str, link: dict[str, Any], picture: dict[str, Any]) -> Card:
    return {"kind": kind, "title": title, "sentence": sentence, "link": link, "picture": picture}


class _CardMaker:
    """Bundled models with their named cells and precomputed answers; each method makes a card, or None."""

    def __init__(self) -> None:
        self.models = installed_examples()
        self.cells: dict[str, list[NamedCell]] = {model.name: read_cells(model.folder) for model in self.models}
        self.answers = {model.name: read_answers(model.folder / ANSWERS_FILE) for model in self.models}

    def make_all(self) -> list[Card | None]:
        cards = [self.cell(*row) for row in CELL_CARDS]
        cards += [self.by_hand(), self.three_networks(), self.forgetting(), self.counting(), self.agreement()]
        cards += [self.number(), self.senses(), self.layers(), self.writing(), self.translating(), self.adding()]
        return cards

    def find_model(self, answer: str) -> BundledModel | None:
        return next((model for model in self.models if answer in self.answers[model.name]), None)

    def cell(self, kind: str, features: tuple[str, ...], title: str) -> Card | None:
        """Return the card of the strongest cell named for the most preferred feature."""
        candidates = [
            (-features.index(cell.feature), abs(cell.r), model, cell)
            for model in self.models
            for cell in self.cells[model.name]
            if cell.feature in features and cell.unit in self.answers[model.name].get("cards", {})
        ]
        if not candidates:
            return None
        _, r, model, cell = max(candidates, key=lambda candidate: candidate[:2])
        picture = self.answers[model.name]["cards"][cell.unit]
        sentence = f"{STRENGTHS[cell.strength]} correlation with the truth: r = {r:.2f}."
        link = {"screen": "read", "model": model.name, "text": model.text, "unit": cell.unit, "mode": "centred"}
        link |= {"page": picture["page"], "at": picture["first"]}
        inverted = cell.binary and cell.r < 0
        return _make_card(kind, title, sentence, link, {"kind": "text", **picture, "turned": inverted})

    def by_hand(self) -> Card | None:
        model = next((model for model in self.models if model.name == "hello"), None)
        if model is None:
            return None
        sentence = "An Elman network, a GRU and an LSTM that write “hello”, with every number of every step."
        link = {"screen": "equations", "model": model.name, "text": model.text, "at": 2}
        step = "h e l l o\n\nh′ = tanh(W x + U h + b)\n   = tanh(−0.3 − 1.4 − 3.3)\n   = −1"
        return _make_card("byhand", "One step, computed by hand", sentence, link, {"kind": "prose", "text": step})

    def three_networks(self) -> Card | None:
        """Return the card of networks of one size trained on one text: mean probability of the next letter."""
        models = [m for m in self.models if m.group == "prose" and "compare" in self.answers[m.name]]
        if not models:
            return None
        ranking = self.answers[models[0].name]["compare"]["ranking"]  # as Compare shows it
        names = [CELL_NAMES[row["model"].rpartition("-")[2]] for row in ranking]
        is_best = all(row["difference"][1] > 0 for row in ranking[1:])
        claim = f"The {names[0]} predicts best." if is_best else "None is clearly the best."
        sentence = f"The mean probability of the next letter of another book. {claim}"
        best = next(model for model in models if model.name == ranking[0]["model"])
        link = {"screen": "compare", "model": best.name, "text": best.text}
        rows = [[name, 100 * 2 ** -row["bits"]] for name, row in zip(names, ranking, strict=True)]
        picture = {"kind": "bars", "rows": rows, "limit": 40}
        return _make_card("three", "Three networks trained on one book", sentence, link, picture)

    def layers(self) -> Card | None:
        if all(model.name != "small" for model in self.models):
            return None
        (task,) = (task for task in load_task_mixes() if (task["task"], task["bilm"]) == ("POS, EWT", "small"))
        shares, names = task["mixes"][0]["shares"], ("characters", "layer 1", "layer 2")
        best = names[shares.index(max(shares))]
        sentence = f"A task learns a weight for each layer. For part-of-speech tagging, {best} has the largest."
        rows = [[name, 100 * share] for name, share in zip(names, shares, strict=True)]
        picture = {"kind": "bars", "rows": rows, "limit": 100}
        return _make_card(
            "layers", "Which layer do tasks use?", sentence, {"screen": "layers", "model": "small"}, picture
        )

    def forgetting(self) -> Card | None:
        if (model := self.find_model("fresh")) is None:
            return None
        series = []
        for network in self.answers[model.name]["fresh"]["networks"]:
            curve = next(curve for curve in network["curves"] if curve["of"] == network["memory_state"])
            series.append({"name": network["name"], "y": curve["median"][:NUM_LAGS]})
        best = max(series, key=lambda curve: curve["y"][-1])["name"].split(",")[0].upper()
        sentence = f"The gradient of a loss shrinks with every step back. It shrinks most slowly in the {best}."
        link = {"screen": "memory", "model": model.name, "text": model.text}
        picture = {"kind": "lines", "series": series, "log": True}
        return _make_card("forgetting", "Vanishing gradients", sentence, link, picture)

    def counting(self) -> Card | None:
        for model in self.models:
            pictures = self.answers[model.name].get("cards", {})
            cell = next((c for c in self.cells[model.name] if c.feature == "surplus" and c.unit in pictures), None)
            if cell is not None:
                sentence = "It takes a step with every a, and an equal step back with every b."
                link = {"screen": "trace", "model": model.name, "text": "thousand", "unit": cell.unit}
                picture = {"kind": "lines", "series": [{"name": cell.name, "y": pictures[cell.unit]["values"]}]}
                return _make_card("counting", "A cell that counts", sentence, link, picture)
        return None

    def agreement(self) -> Card | None:
        if (model := self.find_model("agree")) is None:
            return None
        conditions = self.answers[model.name]["agree"]["conditions"]
        conditions = [row for row in conditions if row["condition"].startswith("nounpp")]
        num_pairs = sum(row["pairs"] for row in conditions)
        sentence = f"The verb agrees with the keys, not with the cabinet. Bars: accuracy on {num_pairs} pairs."
        rows = [[row["condition"], row["accuracy"]] for row in conditions]
        link, picture = {"screen": "experiments", "model": model.name}, {"kind": "bars", "rows": rows, "limit": 100}
        return _make_card("agreement", "“The keys to the cabinet … is or are?”", sentence, link, picture)

    def number(self) -> Card | None:
        model = next((model for model in self.models if number_units(model.name)), None)
        if model is None:
            return None
        unit, condition = number_units(model.name)[0], "nounpp singular plural"
        measured = get_agreement(model.name, unit)
        assert measured is not None
        sentence = (
            f"Accuracy of the verb after “the boy near the cars”, {measured['pairs']} sentences, with and without it."
        )
        rows = [["intact", measured["all"][condition]], ["without this cell", measured["without"][condition]]]
        link = {"screen": "trace", "model": model.name, "unit": unit}
        picture = {"kind": "bars", "rows": rows, "limit": 100}
        return _make_card("number", "A cell that carries the number of the subject", sentence, link, picture)

    def senses(self) -> Card | None:
        if (model := self.find_model("meaning")) is None:
            return None
        answers, pairs = self.answers[model.name], []
        for query in (answers["meaning"], answers["meaning_second"]):
            nearest = next(row for row in query["layers"][-1] if row["words"] != query["words"])
            pairs.append([_get_context(query), _get_context(nearest)])
        sentence = "For each of two sentences, the nearest occurrence of any word in the top layer."
        link = {"screen": "meaning", "model": model.name, "text": model.text}
        link |= {"sentence": " ".join(answers["meaning"]["words"]), "position": answers["meaning"]["position"]}
        return _make_card("play", "One word, two senses: “play”", sentence, link, {"kind": "pairs", "pairs": pairs})

    def writing(self) -> Card | None:
        if (model := self.find_model("writing")) is None:
            return None
        sample = self.answers[model.name]["writing"]
        sentence = "It predicts the next letter, samples one, and predicts again."
        link = {"screen": "write", "model": model.name}
        link |= {name: sample[name] for name in ("prompt", "temperature", "seed", "taken")}
        return _make_card("writing", "A network that writes", sentence, link, {"kind": "prose", "text": sample["text"]})

    def translating(self) -> Card | None:
        if (picture := self.attention("english-french")) is None:
            return None
        sentence = "One row per output unit: the attention weights on the English source are orange."
        link = {"screen": "align", "model": "english-french"}
        return _make_card("translating", "Attention in translation", sentence, link, picture)

    def adding(self) -> Card | None:
        if (picture := self.attention("addition")) is None:
            return None
        source = picture["columns"]
        maxima = [source[max(range(len(source)), key=weights.__getitem__)] for weights in picture["weights"]]
        sentence = "It was trained on sums as text."
        num_digits = sum(symbol.isdigit() for symbol in maxima)
        sentence += f" Of its {len(picture['rows'])} output digits, {num_digits} attend most to a digit of the sum."
        link = {"screen": "align", "model": "addition"}
        return _make_card("adding", "A network that learned to add", sentence, link, picture)

    def attention(self, name: str) -> dict[str, Any] | None:
        """Return the picture of a sequence-to-sequence model's attention weights."""
        if (align := self.answers.get(name, {}).get("align")) is None:
            return None
        model = align["models"][0]
        output = model["written"][0]
        rows = output["units"][: len(output["units"]) - output["ended"]]
        return {"kind": "map", "rows": rows, "columns": model["source"], "weights": output["attention"][: len(rows)]}


def _get_context(occurrence: dict[str, Any]) -> list[str]:
    """Return the words before an occurrence, the word, and the words after it."""
    words, i = occurrence["words"], occurrence["position"]
    return [" ".join(words[max(0, i - 3) : i]), words[i], " ".join(words[i + 1 : i + 4])]

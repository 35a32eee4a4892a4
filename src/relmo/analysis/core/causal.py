"""Causal effect of units: the loss by class of symbol with one unit set to zero, to its mean, or held on.

    ablation = ablate_units(model, document, tracks, units)
    ablation.delta(unit, "closing bracket"), ablation.rank(unit, "closing bracket")

Symbols are classified by kind (`classify_symbols`) and by features: "depth falls" are the symbols at which the feature
is about to fall. Losses are in bits."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.features import Document
from relmo.analysis.core.show import Unit, split_progress, with_progress
from relmo.analysis.core.stack import Change, build_stack
from relmo.analysis.core.trace import Trace
from relmo.errors import SettingError
from relmo.models.evaluate import full_precision
from relmo.models.sequence_model import SequenceModel
from relmo.settings.fields import Progress

How = Literal["zero", "mean", "hold"]
Losses = Callable[[], np.ndarray]

MAX_ROWS = 128  # units changed side by side
CHUNK = 1 << 22  # numbers of gates, or of predictions, computed at a time
MIN_SYMBOLS = 20  # per class
HOLD_QUANTILE = 0.95  # of a unit's values, at which it is held on
ALL = "all"
OPENING, CLOSING, QUOTES = set("([{"), set(")]}"), set("\"'“”‘’«»`")
CHANGES = ("rises", "falls")


class FeatureWords(NamedTuple):
    """Feature in plain words."""

    words: str
    cell: str  # name of a cell for it
    episode: str = ""  # what begins where a binary feature rises
    rises: str = "where it becomes more"  # where a numeric one is about to rise
    falls: str = "where it becomes less"


WORDS: Mapping[str, FeatureWords] = {
    "quotes": FeatureWords("inside quotation marks", "the quotation cell", "a quotation"),
    "depth": FeatureWords(
        "how many brackets are open", "the bracket counter", rises="where one opens", falls="where one closes"
    ),
    "parentheses": FeatureWords("inside round brackets", "the round-bracket cell", "a bracket"),
    "square": FeatureWords("inside square brackets", "the square-bracket cell", "a bracket"),
    "curly": FeatureWords("inside curly brackets", "the curly-bracket cell", "a bracket"),
    "column": FeatureWords("how far along the line the text is", "the line counter"),
    "to_line_end": FeatureWords("how much of the line is still to come", "the line-end counter"),
    "indentation": FeatureWords("how far the line is indented", "the indentation cell"),
    "string": FeatureWords("inside a string", "the string cell", "a string"),
    "comment": FeatureWords("inside a comment", "the comment cell", "a comment"),
    "prose": FeatureWords("inside a string or a comment", "the string-or-comment cell", "one"),
    "if": FeatureWords("inside the condition of an if", "the if cell", "a condition"),
    "if_body": FeatureWords("inside the body of an if", "the if-body cell", "a body"),
    "word_position": FeatureWords("how many letters of the word have been read", "the word-length counter"),
    "sentence_position": FeatureWords("how many words of the sentence have been read", "the sentence-length counter"),
    "capitalised": FeatureWords("inside a word with a capital", "the capital-letter cell", "such a word"),
    "capitals": FeatureWords("inside a word in capitals", "the all-capitals cell", "such a word"),
    "number": FeatureWords("inside a number", "the digit cell", "a number"),
    "url": FeatureWords("inside a web address", "the web-address cell", "an address"),
    "tag": FeatureWords("inside a tag", "the tag cell", "a tag"),
    "vowel": FeatureWords("at a vowel", "the vowel cell", rises="before a vowel", falls="after vowels"),
    "surplus": FeatureWords("how many more a’s than b’s have been read", "the counting cell"),
    "tree_depth": FeatureWords("how deep in the sentence's tree the word is", "the tree-depth cell"),
    "open_dependencies": FeatureWords("how many words still wait for others", "the open-dependency counter"),
    "head_distance": FeatureWords("how far away the word's head is", "the head-distance cell"),
}
"""Descriptions of all built-in features."""


def describe_feature(feature: str) -> str:
    """Return a feature in words; a user's feature is described by its name."""
    return WORDS[feature].words if feature in WORDS else f"at “{feature}”"


def describe_class(name: str) -> str:
    """Return a class of symbols of an ablation in words: "quotes rises" is "where a quotation begins"."""
    feature, _, change = name.rpartition(" ")
    if change not in CHANGES or not feature:
        return "all symbols" if name == ALL else f"at every {name}"
    words = WORDS.get(feature, FeatureWords("", "", episode=f"“{feature}”"))
    if words.episode:
        return f"where {words.episode} {'begins' if change == 'rises' else 'ends'}"
    return words.rises if change == "rises" else words.falls


@dataclass(frozen=True)
class Ablation:
    """Effect of changing each unit on the loss, in bits per symbol."""

    how: str
    units: list[Unit]
    classes: list[str]
    counts: list[int]
    base: np.ndarray  # loss of each class without changes; (C,)
    deltas: np.ndarray  # increase of the loss with the unit changed; (U, C)

    def delta(self, unit: Unit, name: str = ALL) -> float:
        """Return the increase of the loss of a class, in bits per symbol, without the unit."""
        return float(self.deltas[self.units.index(unit), self.classes.index(name)])

    def rank(self, unit: Unit, name: str = ALL) -> int:
        """Return the unit's rank among all; 1 is the unit with the largest increase."""
        column = self.deltas[:, self.classes.index(name)]
        return 1 + int(np.count_nonzero(column > column[self.units.index(unit)]))

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return {
            "how": self.how,
            "units": [str(unit) for unit in self.units],
            "classes": [
                {"name": name, "symbols": count, "bits": float(bits), "median_delta": float(np.median(column))}
                for name, count, bits, column in zip(self.classes, self.counts, self.base, self.deltas.T, strict=True)
            ],
            "deltas": self.deltas.tolist(),
        }


def list_units(traced: Trace, states: Sequence[str]) -> list[Unit]:
    """Return the units of these states, layer by layer, in the order of the trace."""
    directions: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
    return [
        Unit(state, layer, number, direction)
        for state in states
        for layer in traced.layers
        for direction in directions[: traced.directions]
        for number in range(traced.states[state].shape[2] // traced.directions)
    ]


def stack_unit_rows(traced: Trace, states: Sequence[str]) -> np.ndarray:
    """Return the units' values as rows (U, T), in the order of `list_units`."""
    return np.concatenate([np.ascontiguousarray(layer.T) for state in states for layer in traced.states[state]])


def get_unit_values(traced: Trace, unit: Unit) -> np.ndarray:
    """Return a unit's values (T,)."""
    array = traced.states[unit.state]
    offset = array.shape[2] // traced.directions if unit.direction == "backward" else 0
    return array[traced.layers.index(unit.layer), :, offset + unit.number]


def compute_hold_values(
    traced: Trace, units: Sequence[Unit], how: str, signs: Sequence[float] | None = None
) -> np.ndarray:
    """Return the value (U,) to which each unit is set: 0, its mean, or a high quantile (low for negative signs)."""
    if how == "zero":
        return np.zeros(len(units))
    if how == "mean":
        return np.array([get_unit_values(traced, unit).mean(dtype=np.float64) for unit in units])
    if how != "hold":
        raise SettingError(f"Unknown how={how!r}; expected 'zero', 'mean' or 'hold'.")
    signs = [1.0] * len(units) if signs is None else signs
    quantiles = [HOLD_QUANTILE if sign >= 0 else 1 - HOLD_QUANTILE for sign in signs]
    return np.array([np.quantile(get_unit_values(traced, unit), q) for unit, q in zip(units, quantiles, strict=True)])


def classify_symbols(symbols: Sequence[str]) -> dict[str, np.ndarray]:
    """Return where each kind of symbol occurs, (T,) of bool each."""
    kinds: dict[str, Callable[[str], bool]] = {
        "letter": lambda s: len(s) == 1 and s.isalpha(),
        "word": lambda s: len(s) > 1 and any(map(str.isalpha, s)),
        "digit": lambda s: s[:1].isdigit(),
        "space": lambda s: s in (" ", "\t"),
        "newline": lambda s: s == "\n",
        "opening bracket": OPENING.__contains__,
        "closing bracket": CLOSING.__contains__,
        "quote": QUOTES.__contains__,
        "other mark": lambda s: not (s[:1].isalnum() or s.isspace() or s in OPENING | CLOSING | QUOTES),
    }
    flags = {symbol: [test(symbol) for test in kinds.values()] for symbol in set(symbols)}
    table = np.array([flags[symbol] for symbol in symbols], dtype=bool).reshape(-1, len(kinds))
    return dict(zip(kinds, table.T, strict=True))


def classify_feature_changes(tracks: Mapping[str, np.ndarray], *, backwards: bool = False) -> dict[str, np.ndarray]:
    """Return where each feature is about to rise and where it is about to fall, (T,) of bool each."""
    classes = {}
    for name, track in tracks.items():
        change = np.diff(track, prepend=track[:1]) if not backwards else -np.diff(track, append=track[-1:])
        classes[f"{name} rises"], classes[f"{name} falls"] = change > 0, change < 0
    return classes


def ablate_units(
    model: SequenceModel,
    document: Document,
    tracks: Mapping[str, np.ndarray],
    units: Sequence[Unit],
    *,
    how: How = "zero",
    values: Sequence[float] | np.ndarray | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Measure the loss of the document's symbols with each unit changed by itself; "mean" and "hold" set the units to
    values (U,), which `compute_hold_values` computes from a trace."""
    if how != "zero" and values is None:
        raise SettingError(f"how={how!r} requires values, one per unit; see compute_hold_values.")
    targets = np.zeros(len(units)) if values is None else np.asarray(values, dtype=np.float64)
    directions = {unit.direction for unit in units}
    if len(model.directions) > 1 and len(directions) != 1:
        raise SettingError("Units must have the same direction; a unit changes the losses of its direction only.")
    direction = "backward" if len(model.directions) > 1 and directions == {"backward"} else "forward"
    changes = classify_feature_changes(tracks, backwards=direction == "backward")
    classes = classify_symbols(document.symbols) | changes
    if model.input_table is None:
        losses = partial(model.symbol_losses, document.texts, direction)
        return compare_losses(model, losses, units, classes, how=how, values=targets, progress=progress)
    base = compute_row_losses(model, document.texts, [], targets[:0])[0]
    changed = compute_row_losses(model, document.texts, units, targets, progress)
    return summarise(how, units, classes, base, changed)


def compare_losses(
    network: Any,
    losses: Losses,
    units: Sequence[Unit],
    classes: Mapping[str, np.ndarray],
    *,
    how: str = "zero",
    values: Sequence[float] | np.ndarray,
    progress: Progress | None = None,
) -> Ablation:
    """Run `ablate_units` on any network: `losses()` runs it and returns the loss of every symbol in nats, (T,)."""
    base, changed = losses(), []
    for unit, value in with_progress(list(zip(units, values, strict=True)), progress):
        options: dict[str, Any] = {"state": unit.state, "direction": unit.direction}
        with intervene(network, unit.layer, unit.number, "hold", float(value), **options):
            changed.append(losses())
    return summarise(how, units, classes, base, np.stack(changed))


def summarise(
    how: str, units: Sequence[Unit], classes: Mapping[str, np.ndarray], base: np.ndarray, changed: np.ndarray
) -> Ablation:
    """Average losses of symbols, (T,) and (U, T) in nats, by class."""
    frequent = {ALL: np.ones(len(base), dtype=bool)}
    frequent |= {name: mask for name, mask in classes.items() if np.count_nonzero(mask) >= MIN_SYMBOLS}
    masks = np.stack(list(frequent.values())).astype(np.float64)  # (C, T)
    counts = masks.sum(axis=1)
    base_bits = masks @ base / counts / math.log(2)
    deltas = changed @ masks.T / counts / math.log(2) - base_bits
    return Ablation(how, list(units), list(frequent), counts.astype(int).tolist(), base_bits, deltas)


@torch.no_grad()
def compute_row_losses(
    model: SequenceModel,
    texts: Sequence[Sequence[str]],
    units: Sequence[Unit],
    values: np.ndarray,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the loss of every symbol, in nats, with each unit held at its value: (U, T); (1, T) without units.

    Units are changed side by side, which needs a model with an input table."""
    stack, table, vocabulary = build_stack(model.network), model.input_table, model.get_output_vocabulary()
    assert table is not None
    streams = [torch.tensor([vocabulary.end, *vocabulary.ids(text)], device=model.device) for text in texts]
    begins = range(0, max(len(units), 1), MAX_ROWS)
    reports = iter(split_progress(progress, [float(len(stream)) for _ in begins for stream in streams]))
    blocks = []
    with full_precision():
        gates = stack.input_gates(table.unsqueeze(0))[0]  # (V, G)
        for begin in begins:
            block = units[begin : begin + MAX_ROWS]
            rows = max(len(block), 1)
            changes: dict[tuple[int, str], Change] = {}
            for row, (unit, value) in enumerate(zip(block, values[begin : begin + MAX_ROWS].tolist(), strict=True)):
                key = (unit.layer, unit.state)
                if key not in changes:
                    changes[key] = stack.layers[unit.layer].no_change(unit.state, len(block))
                changes[key].scale[0, row, unit.number], changes[key].offset[0, row, unit.number] = 0.0, value
            window = max(1, CHUNK // (rows * max(gates.shape[1], len(vocabulary))))
            losses = []
            for stream, report in zip(streams, reports, strict=False):
                states, done = stack.initial_state(rows), 0
                for ids, targets in zip(stream[:-1].split(window), stream[1:].split(window), strict=True):
                    x, x_gates = (a.view(1, len(ids), 1, -1).expand(-1, -1, rows, -1) for a in (table[ids], gates[ids]))
                    run = stack.run(x, states, changes=changes, gates=x_gates)
                    states = run.states
                    y = model.output_features(run.outputs[-1][0])  # (T, B, D)
                    nll = model.softmax.nll(y.flatten(0, 1), targets.repeat_interleave(rows)).view(y.shape[:2])
                    losses.append(nll.T.double().cpu().numpy())
                    done += len(ids)
                    report(done / (len(stream) - 1))
            blocks.append(np.concatenate(losses, axis=1))
    return np.concatenate(blocks)

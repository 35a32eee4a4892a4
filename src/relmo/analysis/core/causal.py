"""What breaks without a unit: the loss, by kind of symbol, with one unit set to zero, set to its mean, or held on.

    ablation = ablate_units(model, document, tracks, units)
    ablation.delta(unit, "closing bracket"), ablation.rank(unit, "closing bracket")

A unit that goes with a feature need not be one that the model uses. A unit that the model uses stands out among all
units by what the loss costs without it. Symbols are sorted by what they are (`symbol_classes`) and by features: "depth
falls" are the places where the feature is about to fall. Losses are in bits.

A language model runs all units side by side: row r of the batch has unit r changed and no other.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.features import Document
from relmo.analysis.core.stack import Change, Changes, Layer, LayerState, Stack, stack_of
from relmo.analysis.core.trace import Trace, network_of
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.settings.arguments import Progress

How = Literal["zero", "mean", "hold"]
Losses = Callable[[], np.ndarray]

ROWS = 128  # units changed side by side
AT_ONCE = 1 << 22  # numbers of gates, or of predictions, made at a time
FEWEST = 20  # symbols that a class must have
HELD = 0.95  # a unit that is held on is held at this quantile of its values
ALL = "all"
OPENING, CLOSING, QUOTES = set("([{"), set(")]}"), set("\"'“”‘’«»`")


class Unit(NamedTuple):
    """One number of a state of a layer."""

    state: str
    layer: int
    number: int
    direction: Literal["forward", "backward"] = "forward"

    def __str__(self) -> str:
        """Such as c0.27: c, layer 0, unit 27; with an arrow where it reads backwards."""
        return f"{self.state}{self.layer}.{self.number}{'←' if self.direction == 'backward' else ''}"


@dataclass(frozen=True)
class Ablation:
    """What changing each unit does to the loss, in bits a symbol.

    base      the loss of each class with nothing changed; (C,)
    deltas    how much more it is with the unit changed; (U, C)
    """

    how: str
    units: list[Unit]
    classes: list[str]
    counts: list[int]
    base: np.ndarray
    deltas: np.ndarray

    def delta(self, unit: Unit, name: str = ALL) -> float:
        """How many bits more the symbols of a class cost without the unit."""
        return float(self.deltas[self.units.index(unit), self.classes.index(name)])

    def rank(self, unit: Unit, name: str = ALL) -> int:
        """The unit's place among all, 1 being the one that costs most."""
        column = self.deltas[:, self.classes.index(name)]
        return 1 + int(np.count_nonzero(column > column[self.units.index(unit)]))

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, in plain numbers."""
        return {
            "how": self.how,
            "units": [str(unit) for unit in self.units],
            "classes": [
                {"name": name, "symbols": count, "bits": float(bits), "median_delta": float(np.median(column))}
                for name, count, bits, column in zip(self.classes, self.counts, self.base, self.deltas.T, strict=True)
            ],
            "deltas": self.deltas.tolist(),
        }


def units_of(traced: Trace, states: Sequence[str]) -> list[Unit]:
    """The units of these states, layer by layer, in the order of the trace."""
    sides: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
    return [
        Unit(state, layer, number, side)
        for state in states
        for layer in traced.layers
        for side in sides[: traced.directions]
        for number in range(traced.states[state].shape[2] // traced.directions)
    ]


def rows_of(traced: Trace, states: Sequence[str]) -> np.ndarray:
    """The units' values as rows, in the order of `units_of`; (U, T)."""
    return np.concatenate([np.ascontiguousarray(layer.T) for state in states for layer in traced.states[state]])


def values_of(traced: Trace, unit: Unit) -> np.ndarray:
    """A unit's values; (T,)."""
    array = traced.states[unit.state]
    before = array.shape[2] // traced.directions if unit.direction == "backward" else 0
    return array[traced.layers.index(unit.layer), :, before + unit.number]


def held_values(traced: Trace, units: Sequence[Unit], how: str, signs: Sequence[float] | None = None) -> np.ndarray:
    """The value at which each unit is put: 0, its mean, or, held on, a high one. A unit whose sign is negative goes
    down with what it stands for, so it is held at a low one. (U,)"""
    if how == "zero":
        return np.zeros(len(units))
    if how == "mean":
        return np.array([values_of(traced, unit).mean(dtype=np.float64) for unit in units])
    if how != "hold":
        raise SettingError(f"units can be set to 'zero', to their 'mean', or put on 'hold', not {how!r}")
    high = [True] * len(units) if signs is None else [sign >= 0 for sign in signs]
    return np.array(
        [np.quantile(values_of(traced, unit), HELD if up else 1 - HELD) for unit, up in zip(units, high, strict=True)]
    )


def symbol_classes(symbols: Sequence[str]) -> dict[str, np.ndarray]:
    """Where each kind of symbol stands, (T,) of bool each."""
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
    distinct = {symbol: [test(symbol) for test in kinds.values()] for symbol in set(symbols)}
    table = np.array([distinct[symbol] for symbol in symbols], dtype=bool).reshape(-1, len(kinds))
    return dict(zip(kinds, table.T, strict=True))


def feature_classes(tracks: Mapping[str, np.ndarray], *, backwards: bool = False) -> dict[str, np.ndarray]:
    """Where a feature is about to rise, and where it is about to fall, (T,) of bool each."""
    found = {}
    for name, track in tracks.items():
        change = np.diff(track, prepend=track[:1]) if not backwards else -np.diff(track, append=track[-1:])
        found[f"{name} rises"], found[f"{name} falls"] = change > 0, change < 0
    return found


def ablate_units(
    model: LanguageModel | BiLM,
    document: Document,
    tracks: Mapping[str, np.ndarray],
    units: Sequence[Unit],
    *,
    how: How = "zero",
    values: Sequence[float] | np.ndarray | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """The loss of the document's symbols with each unit changed by itself.

    values    where the units are put, (U,), for "mean" and "hold"; `held_values` finds them from a trace
    """
    at = np.zeros(len(units)) if values is None else np.asarray(values, dtype=np.float64)
    if how != "zero" and values is None:
        raise SettingError(f"how={how!r} needs values, a number for each unit: see held_values")
    if isinstance(model, BiLM):
        sides = {unit.direction for unit in units}
        if len(sides) != 1:
            raise SettingError("units of one direction at a time: a direction's units change its own losses alone")
        backwards = sides == {"backward"}
        classes = symbol_classes(document.symbols) | feature_classes(tracks, backwards=backwards)
        losses = sentence_losses(model, document.texts, backwards=backwards)
        return compare_losses(model, losses, units, classes, how=how, values=at, progress=progress)
    classes = symbol_classes(document.symbols) | feature_classes(tracks)
    base = row_losses(model, document.texts, [], at[:0])[0]
    changed = row_losses(model, document.texts, units, at, progress)
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
    """As `ablate_units`, for any network: `losses()` runs it and returns the loss of every symbol in nats, (T,)."""
    base, changed = losses(), []
    for number, (unit, value) in enumerate(zip(units, values, strict=True)):
        given: dict[str, Any] = {"state": unit.state, "direction": unit.direction}
        with intervene(network, unit.layer, unit.number, "hold", float(value), **given):
            changed.append(losses())
        if progress is not None:
            progress((number + 1) / len(units))
    return summarise(how, units, classes, base, np.stack(changed))


def summarise(
    how: str, units: Sequence[Unit], classes: Mapping[str, np.ndarray], base: np.ndarray, changed: np.ndarray
) -> Ablation:
    """Sums losses of symbols, (T,) and (U, T) in nats, up by class."""
    kept = {ALL: np.ones(len(base), dtype=bool)}
    kept |= {name: mask for name, mask in classes.items() if np.count_nonzero(mask) >= FEWEST}
    masks = np.stack(list(kept.values())).astype(np.float64)  # (C, T)
    counts = masks.sum(axis=1)
    plain = masks @ base / counts / math.log(2)
    deltas = changed @ masks.T / counts / math.log(2) - plain
    return Ablation(how, list(units), list(kept), counts.astype(int).tolist(), plain, deltas)


def sentence_losses(model: BiLM, sentences: Sequence[Sequence[str]], *, backwards: bool) -> Losses:
    """A function that returns the loss of every word of sentences, read in one direction."""

    def losses() -> np.ndarray:
        log_p = model.log_probs(sentences, direction="backward" if backwards else "forward")
        return -np.concatenate([each[1:] if backwards else each[:-1] for each in log_p]).astype(np.float64)

    return losses


@torch.no_grad()
def row_losses(
    model: LanguageModel,
    texts: Sequence[Sequence[str]],
    units: Sequence[Unit],
    values: np.ndarray,
    progress: Progress | None = None,
) -> np.ndarray:
    """The loss of every symbol, in nats, with each unit held at its value: (U, T). Without units nothing is changed:
    (1, T)."""
    network = network_of(model)
    assert isinstance(network, RecurrentLM)
    stack = stack_of(network)
    symbols = [[model.vocabulary.end, *model.vocabulary.ids(text)] for text in texts]
    total = max(1, sum(map(len, symbols)) * -(-len(units) // ROWS))
    told = ProgressMeter(total, progress)
    found = []
    for begin in range(0, max(len(units), 1), ROWS):
        some = units[begin : begin + ROWS]
        changes = _row_changes(stack, some, values[begin : begin + ROWS])
        rows = max(len(some), 1)
        with full_precision():
            parts = [_text_losses(network, stack, ids, rows, changes, told) for ids in symbols]
        found.append(np.concatenate(parts, axis=1))
    return np.concatenate(found)


class ProgressMeter:
    """Adds up what is done, and tells of the share."""

    def __init__(self, total: int, progress: Progress | None):
        self.total, self.done, self.progress = total, 0, progress

    def add(self, count: int) -> None:
        """So many more are done."""
        self.done += count
        if self.progress is not None:
            self.progress(min(self.done / self.total, 1.0))


def _row_changes(stack: Stack, units: Sequence[Unit], values: np.ndarray) -> Changes:
    """Row r of a batch has units[r] at values[r]."""
    changes: dict[tuple[int, str], Change] = {}
    for row, (unit, value) in enumerate(zip(units, values.tolist(), strict=True)):
        layer: Layer = stack.layers[unit.layer]
        if (unit.layer, unit.state) not in changes:
            one = layer.hh.new_ones(1, len(units), layer.sizes[unit.state])
            changes[unit.layer, unit.state] = Change(one, torch.zeros_like(one))
        change = changes[unit.layer, unit.state]
        change.scale[0, row, unit.number], change.offset[0, row, unit.number] = 0.0, value
    return changes


def _text_losses(
    network: RecurrentLM, stack: Stack, ids: Sequence[int], rows: int, changes: Changes, told: ProgressMeter
) -> np.ndarray:
    """The losses of ids[1:] in each row of a batch; (rows, T)."""
    gates, found = stack.input_gates(network.encoder.embedding.weight.unsqueeze(0))[0], []  # (V, G)
    numbers = torch.tensor(ids, device=gates.device)
    states: list[LayerState] = stack.initial_state(rows)
    window = max(1, AT_ONCE // (rows * max(gates.shape[1], network.vocab_size)))
    for begin in range(0, len(ids) - 1, window):
        inputs = numbers[begin : min(begin + window, len(ids) - 1)]
        shape = (1, len(inputs), rows, -1)
        x = network.encoder.embedding(inputs).view(1, len(inputs), 1, -1).expand(shape)
        run = stack.run(x, states, changes=changes, first=gates[inputs].view(1, len(inputs), 1, -1).expand(shape))
        states = run.states
        found.append(_losses_of(network, run.outputs[-1][0], numbers[begin + 1 : begin + 1 + len(inputs)]))
        told.add(len(inputs))
    return np.concatenate(found, axis=1)


def _losses_of(network: RecurrentLM, output: Tensor, targets: Tensor) -> np.ndarray:
    """Negative log-likelihoods of targets (T,) from the top layer's output (T, B, H); (B, T)."""
    x = output if network.bottleneck is None else network.bottleneck(output)
    nll = network.softmax.nll(x.flatten(0, 1), targets.repeat_interleave(x.shape[1]))
    return nll.view(x.shape[:2]).T.double().cpu().numpy()

"""Models beside each other on the same text: a network against an n-gram model, two networks, the checkpoints of a run.

    compare_losses_of({"lstm": lstm, "20-gram": ngram}, symbols)      bits by kind of symbol, by distance to the bracket
    samples({"lstm": lstm, "20-gram": ngram}, prompt="", seed=1)      texts of the same seed, in an order that tells
                                                                      nothing
    copied(ids, training, lengths=(10, 20, 40))                       how much of a text stands in another as it is
    emergence({"epoch 1": a, "epoch 2": b}, document, track)          when did this cell appear

Differences come with 95% intervals over stretches of the text, as neighbouring symbols are not independent.

    Karpathy et al. 2015, Visualizing and understanding recurrent networks (LSTMs against n-grams of up to 20 symbols;
    closing brackets by their distance)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relmo.analysis.core.causal import Unit, symbol_classes, units_of
from relmo.analysis.core.effects import pearson, standard
from relmo.analysis.core.features import Document
from relmo.analysis.core.intervals import Interval, Z
from relmo.analysis.core.show import ColouredText, Table, figure, picture
from relmo.analysis.core.trace import trace
from relmo.errors import CorpusError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.settings.arguments import Progress

WINDOW = 2048  # symbols scored at a time
STRETCH = 200  # neighbouring symbols that count as one draw
FEWEST = 20  # symbols that a class must have
CHUNK = 1 << 16  # symbols of the training text looked at together: what a cache holds
COPIED = {"char": (10, 20, 40, 80), "word": (3, 5, 8, 12)}  # lengths of stretches that copies are looked for of
PAIRS = {")": "(", "]": "[", "}": "{"}
DISTANCES = (1, 5, 10, 20, 50, 100, 200)
RANKS = (10, 100, 1_000, 10_000)
ALL = "all"


@dataclass(frozen=True)
class Losses:
    """What the symbols of a text cost each model, in bits (M, T); `classes` are kinds of symbols, (T,) of bool each."""

    models: list[str]
    symbols: list[str]
    bits: np.ndarray
    classes: dict[str, np.ndarray]

    def mean(self, model: str, name: str = ALL) -> float:
        """A model's mean over a class."""
        return float(self.bits[self.models.index(model), self.classes[name]].mean())

    def difference(self, first: str, second: str, name: str = ALL) -> Interval:
        """How many bits more a symbol of a class costs the first model than the second."""
        a, b = (self.models.index(model) for model in (first, second))
        return stretch_interval(self.bits[a] - self.bits[b], self.classes[name])

    def coloured(self, first: str, second: str) -> ColouredText:
        """The text, orange where the first model predicts better, blue where the second does."""
        a, b = (self.models.index(model) for model in (first, second))
        space = "" if all(len(symbol) == 1 for symbol in self.symbols) else " "
        title = f"bits saved by {first} over {second}"
        return ColouredText(self.symbols, self.bits[b] - self.bits[a], title, space)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the symbols, in plain numbers."""
        rows: list[dict[str, Any]] = []
        for name, where in self.classes.items():
            row: dict[str, Any] = {"class": name, "symbols": int(where.sum())}
            row["bits"] = {model: self.mean(model, name) for model in self.models}
            row["difference"] = {other: list(self.difference(self.models[0], other, name)) for other in self.models[1:]}
            rows.append(row)
        return {"models": self.models, "classes": rows}

    def table(self) -> Table:
        """A row for each class: the models' bits, and what the first costs more than each other."""
        first, *others = self.models
        columns = ["symbols", "count", *self.models, *(f"{first} - {other} (95%)" for other in others)]
        rows = []
        for name, where in self.classes.items():
            row = [name, f"{int(where.sum()):,}", *(figure(self.mean(model, name)) for model in self.models)]
            for other in others:
                d = self.difference(first, other, name)
                row.append(f"{d.value:+.3f} ({d.low:+.3f} to {d.high:+.3f})")
            rows.append(row)
        return Table(columns, rows, "bits a symbol", [f"intervals over stretches of {STRETCH} symbols"])

    def _repr_html_(self) -> str:
        return self.table().html()

    def plot(self, path: str | Path) -> None:
        """A group of bars for each class, as a picture."""
        names = list(self.classes)
        with picture(path, width=max(6.0, 0.6 * len(names) + 2), height=4.5) as drawn:
            axes, width = drawn.subplots(), 0.8 / len(self.models)
            for m, model in enumerate(self.models):
                at = np.arange(len(names)) + (m - (len(self.models) - 1) / 2) * width
                axes.bar(at, [self.mean(model, name) for name in names], width, label=model)
            axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
            axes.set_ylabel("bits a symbol")
            axes.legend()


def compare_losses_of(
    models: Mapping[str, LanguageModel], symbols: Sequence[str], *, progress: Progress | None = None
) -> Losses:
    """What the symbols of one text cost each of several models, which must split text alike."""
    check_alike(models)
    if not symbols:
        raise CorpusError("the text is empty; give one with symbols in it")
    bits = []
    for number, model in enumerate(models.values()):
        bits.append(symbol_losses(model, symbols) / math.log(2))
        if progress is not None:
            progress((number + 1) / len(models))
    classes = {ALL: np.ones(len(symbols), dtype=bool)} | symbol_classes(symbols) | _bracket_classes(symbols)
    first = next(iter(models.values()))
    if first.settings.text.unit == "word":
        classes |= rank_classes(first.vocabulary.ids(symbols), first.vocabulary.unknown)
    kept = {name: where for name, where in classes.items() if np.count_nonzero(where) >= FEWEST or name == ALL}
    return Losses(list(models), list(symbols), np.stack(bits), kept)


def check_alike(models: Mapping[str, LanguageModel]) -> None:
    """Raises where models do not read the same symbols."""
    if not models:
        raise SettingError("there is no model to compare; give one or several")
    ways = {(m.settings.text.unit, m.settings.text.lowercase, m.settings.text.tokenizer) for m in models.values()}
    if len(ways) > 1:
        raise SettingError(f"{', '.join(models)} split text in different ways; compare models of the same unit")


@torch.no_grad()
def symbol_losses(model: LanguageModel, symbols: Sequence[str]) -> np.ndarray:
    """The loss of every symbol of a text, in nats; (T,)."""
    ids = np.concatenate([[model.vocabulary.end], model.vocabulary.ids(symbols)])
    stream = torch.from_numpy(ids).to(model.device).unsqueeze(0)
    state, found = model.network.initial_state(1), []
    with full_precision():
        for begin in range(0, len(ids) - 1, WINDOW):
            window = stream[:, begin : begin + WINDOW + 1]
            nll, state = model.network.nll(window[:, :-1], window[:, 1:], state)
            found.append(nll[0].double().cpu().numpy())
    return np.concatenate(found)


def _bracket_classes(symbols: Sequence[str]) -> dict[str, np.ndarray]:
    """Closing brackets by their distance to the bracket they close; (T,) of bool each."""
    distance = bracket_distances(symbols)
    ends = [*DISTANCES[1:], 1 << 62]
    return {
        f"bracket closes after {low}{f' to {high - 1}' if high < 1 << 62 else ' or more'}": (distance >= low)
        & (distance < high)
        for low, high in zip(DISTANCES, ends, strict=True)
    }


def bracket_distances(symbols: Sequence[str]) -> np.ndarray:
    """How far back the bracket stands that each closing bracket closes; 0 at every other symbol; (T,)."""
    found = np.zeros(len(symbols), dtype=np.int64)
    opened: list[tuple[str, int]] = []
    for place, symbol in enumerate(symbols):
        if symbol in PAIRS.values():
            opened.append((symbol, place))
        elif symbol in PAIRS:
            while opened and opened[-1][0] != PAIRS[symbol]:
                opened.pop()  # never closed
            if opened:
                found[place] = place - opened.pop()[1]
    return found


def rank_classes(ids: np.ndarray, unknown: int) -> dict[str, np.ndarray]:
    """Words by their place in the vocabulary, which is sorted by falling frequency; (T,) of bool each."""
    found, low = {"unknown word": ids == unknown}, 0
    for high in RANKS:
        found[f"word of rank {low + 1} to {high}"] = (ids >= low) & (ids < high) & (ids != unknown)
        low = high
    return found | {f"word of rank {low + 1} or more": (ids >= low) & (ids != unknown)}


def stretch_interval(values: np.ndarray, where: np.ndarray) -> Interval:
    """The mean of values (T,) at some places, with a 95% interval that counts stretches of the text as single draws."""
    group = np.flatnonzero(where) // STRETCH
    sums = np.bincount(group, weights=values[where])
    counts = np.bincount(group)
    mean = float(sums.sum() / counts.sum())
    drawn = int(np.count_nonzero(counts))
    if drawn < 2:
        return Interval(mean, -math.inf, math.inf)
    error = math.sqrt(float(np.square(sums - mean * counts).sum()) * drawn / (drawn - 1)) / float(counts.sum())
    return Interval(mean, mean - Z * error, mean + Z * error)


@dataclass(frozen=True)
class Sample:
    """A text that a model made, and which."""

    model: str
    text: str


def samples(
    models: Mapping[str, LanguageModel], *, prompt: str = "", limit: int = 300, seed: int = 0, **sampling: Any
) -> list[Sample]:
    """A text of each model from the same seed and prompt, in an order drawn by the seed, so that a reader can guess who
    wrote which. `sampling`: temperature, top_k, top_p."""
    check_alike(models)
    made = [Sample(name, model.generate(prompt, limit=limit, seed=seed, **sampling)) for name, model in models.items()]
    order = np.random.default_rng(seed).permutation(len(made))
    return [made[i] for i in order]


def copied(sample: np.ndarray, training: np.ndarray, lengths: Sequence[int]) -> dict[int, float]:
    """The share of a text's stretches, for each length, that stand in the training text; nan where the text is shorter.
    Ids (S,) and (T,); the training text may be mapped from a file."""
    found = {}
    for length in lengths:
        if length < 1:
            raise SettingError(f"stretches have a length of 1 or more, not {length}")
        (there,) = copies_begin([sample], training, length)
        found[length] = float(there.mean()) if len(there) else math.nan
    return found


def copies_begin(
    texts: Sequence[np.ndarray], training: np.ndarray, length: int, progress: Progress | None = None
) -> list[np.ndarray]:
    """Whether each stretch of this length of each text stands in the training text; (S - length + 1,) of bool each.
    The training text is looked through in pieces."""
    own = [_window_hashes(ids, length) if len(ids) >= length else np.zeros(0, np.uint64) for ids in texts]
    wanted = np.unique(np.concatenate(own))
    there = np.zeros(len(wanted), dtype=bool)
    for begin in range(0, len(training) - length + 1 if len(wanted) else 0, CHUNK):
        hashes = _window_hashes(np.asarray(training[begin : begin + CHUNK + length - 1]), length)
        places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        there[places[wanted[places] == hashes]] = True
        if progress is not None:
            progress(min(1.0, (begin + CHUNK) / len(training)))
    return [there[np.searchsorted(wanted, each)] for each in own]


def _window_hashes(ids: np.ndarray, length: int) -> np.ndarray:
    """A 64-bit number for each stretch of a text, the same for the same ids; (T - length + 1,)."""
    count = len(ids) - length + 1
    mixed = _mix(ids.astype(np.uint64))
    found = np.zeros(count, dtype=np.uint64)
    for j in range(length):
        found = _mix(found) + mixed[j : j + count]
    return found


def _mix(x: np.ndarray) -> np.ndarray:
    """Scrambles 64-bit numbers one to one (the finaliser of splitmix64: Steele et al. 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Emergence:
    """How well units go with a feature in each of several models of one shape, such as checkpoints of a run.

    r       (M, U); all models have the same units
    unit    the best unit of the last model, which is looked up in the others
    """

    models: list[str]
    units: list[Unit]
    r: np.ndarray
    unit: Unit

    def as_dict(self) -> dict[str, Any]:
        """For each model the unit's r, and the best unit with its r, in plain numbers."""
        rows = []
        for name, r in zip(self.models, self.r, strict=True):
            best = int(np.abs(r).argmax())
            own = float(r[self.units.index(self.unit)])
            rows.append({"model": name, "r": own, "best_unit": str(self.units[best]), "best_r": float(r[best])})
        return {"unit": str(self.unit), "models": rows}

    def table(self) -> Table:
        """A row for each model."""
        rows = [
            [row["model"], figure(row["r"], signed=True), row["best_unit"], figure(row["best_r"], signed=True)]
            for row in self.as_dict()["models"]
        ]
        return Table(["model", f"r of {self.unit}", "best unit then", "its r"], rows, "when did this cell appear")

    def _repr_html_(self) -> str:
        return self.table().html()


def emergence(
    models: Mapping[str, LanguageModel | BiLM],
    document: Document,
    track: np.ndarray,
    *,
    unit: Unit | None = None,
    progress: Progress | None = None,
) -> Emergence:
    """Correlations of every unit with a feature (T,) in each model, in the order given. `unit` is the one that is
    looked up in all of them; where none is given, the last model's best."""
    names, rows, units = list(models), [], None
    for number, model in enumerate(models.values()):
        states = ("c", "h") if isinstance(model, BiLM) or model.settings.model.cell == "lstm" else ("h",)
        traced = trace(model, document.texts, keep=states)
        mine = units_of(traced, states)
        if units is not None and mine != units:
            raise SettingError(f"{names[number]} has other units than {names[0]}; compare checkpoints of one run")
        units = mine
        column = standard(track[:, None], axis=0)
        values = [
            pearson(standard(layer.T, axis=1), column)[:, 0] for state in states for layer in traced.states[state]
        ]
        rows.append(np.concatenate(values))
        if progress is not None:
            progress((number + 1) / len(models))
    if units is None:
        raise SettingError("there is no model to look at; give one or several")
    r = np.stack(rows)
    if unit is not None and unit not in units:
        raise SettingError(f"unit {unit}: the models have no such unit")
    return Emergence(names, units, r, units[int(np.abs(r[-1]).argmax())] if unit is None else unit)

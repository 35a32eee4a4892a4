"""Comparison of models on the same text: a network and an n-gram model, two networks, the checkpoints of a run.

    compare_losses_of({"lstm": lstm, "20-gram": ngram}, symbols)      # bits by class of symbol
    samples({"lstm": lstm, "20-gram": ngram}, prompt="", seed=1)      # texts from the same seed, in random order
    copied(ids, training, lengths=(10, 20, 40))                       # share of a text that is copied from another
    emergence({"epoch 1": a, "epoch 2": b}, document, track)          # when a cell appeared

Differences have 95% intervals over blocks of the text, as neighbouring symbols are not independent.

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

from relmo.analysis.core.causal import Unit, classify_symbols, list_units
from relmo.analysis.core.effects import Interval, Z, pearson, standardize
from relmo.analysis.core.features import Document
from relmo.analysis.core.show import ColouredText, Table, format_number, save_figure
from relmo.analysis.core.stack import build_stack
from relmo.analysis.core.trace import get_network, trace
from relmo.errors import CorpusError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.settings.arguments import Progress

WINDOW = 2048  # symbols scored at a time
BLOCK = 200  # neighbouring symbols that count as one draw
MIN_SYMBOLS = 20  # per class
CHUNK = 1 << 16  # symbols of the training text hashed together: fits the cache
COPY_LENGTHS = {"char": (10, 20, 40, 80), "word": (3, 5, 8, 12)}
PAIRS = {")": "(", "]": "[", "}": "{"}
DISTANCES = (1, 5, 10, 20, 50, 100, 200)
RANKS = (10, 100, 1_000, 10_000)
ALL = "all"


@dataclass(frozen=True)
class Losses:
    """Losses of the symbols of a text under each model, in bits (M, T); `classes` of symbols are (T,) of bool each."""

    models: list[str]
    symbols: list[str]
    bits: np.ndarray
    classes: dict[str, np.ndarray]

    def mean(self, model: str, name: str = ALL) -> float:
        """Return a model's mean loss over a class."""
        return float(self.bits[self.models.index(model), self.classes[name]].mean())

    def difference(self, first: str, second: str, name: str = ALL) -> Interval:
        """Return the mean loss of the first model minus that of the second over a class, in bits."""
        a, b = (self.models.index(model) for model in (first, second))
        return block_interval(self.bits[a] - self.bits[b], self.classes[name])

    def coloured(self, first: str, second: str) -> ColouredText:
        """Return the text, orange where the first model is better, blue where the second is."""
        a, b = (self.models.index(model) for model in (first, second))
        space = "" if all(len(symbol) == 1 for symbol in self.symbols) else " "
        title = f"bits saved by {first} over {second}"
        return ColouredText(self.symbols, self.bits[b] - self.bits[a], title, space)

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the symbols as JSON types."""
        rows: list[dict[str, Any]] = []
        for name, mask in self.classes.items():
            row: dict[str, Any] = {"class": name, "symbols": int(mask.sum())}
            row["bits"] = {model: self.mean(model, name) for model in self.models}
            row["difference"] = {model: list(self.difference(self.models[0], model, name)) for model in self.models[1:]}
            rows.append(row)
        return {"models": self.models, "classes": rows}

    def table(self) -> Table:
        """Return a table with one row per class: the models' bits, and the differences of the first from the others."""
        reference, *baselines = self.models
        columns = ["symbols", "count", *self.models, *(f"{reference} - {model} (95%)" for model in baselines)]
        rows = []
        for name, mask in self.classes.items():
            row = [name, f"{int(mask.sum()):,}", *(format_number(self.mean(model, name)) for model in self.models)]
            for model in baselines:
                d = self.difference(reference, model, name)
                row.append(f"{d.value:+.3f} ({d.low:+.3f} to {d.high:+.3f})")
            rows.append(row)
        return Table(columns, rows, "bits per symbol", [f"intervals over blocks of {BLOCK} symbols"])

    def _repr_html_(self) -> str:
        return self.table().html()

    def plot(self, path: str | Path) -> None:
        """Plot a group of bars for each class."""
        names = list(self.classes)
        with save_figure(path, width=max(6.0, 0.6 * len(names) + 2), height=4.5) as figure:
            axes, width = figure.subplots(), 0.8 / len(self.models)
            for m, model in enumerate(self.models):
                positions = np.arange(len(names)) + (m - (len(self.models) - 1) / 2) * width
                axes.bar(positions, [self.mean(model, name) for name in names], width, label=model)
            axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
            axes.set_ylabel("bits per symbol")
            axes.legend()


def compare_losses_of(
    models: Mapping[str, LanguageModel], symbols: Sequence[str], *, progress: Progress | None = None
) -> Losses:
    """Measure the loss of every symbol of a text under each of several models, which must share their units."""
    check_comparable(models)
    if not symbols:
        raise CorpusError("The text is empty.")
    bits = []
    for i, model in enumerate(models.values()):
        bits.append(symbol_losses(model, symbols) / math.log(2))
        if progress is not None:
            progress((i + 1) / len(models))
    classes = {ALL: np.ones(len(symbols), dtype=bool)} | classify_symbols(symbols)
    distances = bracket_distances(symbols)
    for low, high in zip(DISTANCES, [*DISTANCES[1:], None], strict=True):
        if high is None:
            classes[f"bracket closes after {low} or more"] = distances >= low
        else:
            classes[f"bracket closes after {low} to {high - 1}"] = (distances >= low) & (distances < high)
    reference = next(iter(models.values()))
    if reference.settings.text.unit == "word":
        classes |= rank_classes(reference.vocabulary.ids(symbols), reference.vocabulary.unknown)
    classes = {name: mask for name, mask in classes.items() if np.count_nonzero(mask) >= MIN_SYMBOLS or name == ALL}
    return Losses(list(models), list(symbols), np.stack(bits), classes)


def check_comparable(models: Mapping[str, LanguageModel]) -> None:
    """Check that there are models and that they split text in the same way."""
    if not models:
        raise SettingError("At least one model is required.")
    texts = [model.settings.text for model in models.values()]
    if len({(text.unit, text.lowercase, text.tokenizer) for text in texts}) > 1:
        raise SettingError(f"{', '.join(models)} have different units or tokenizers and cannot be compared.")


@torch.no_grad()
def symbol_losses(model: LanguageModel, symbols: Sequence[str]) -> np.ndarray:
    """Return the loss of every symbol of a text, in nats; (T,)."""
    ids = np.concatenate([[model.vocabulary.end], model.vocabulary.ids(symbols)])
    stream = torch.from_numpy(ids).to(model.device).unsqueeze(0)
    state, losses = model.network.initial_state(1), []
    with full_precision():
        for begin in range(0, len(ids) - 1, WINDOW):
            window = stream[:, begin : begin + WINDOW + 1]
            nll, state = model.network.nll(window[:, :-1], window[:, 1:], state)
            losses.append(nll[0].double().cpu().numpy())
    return np.concatenate(losses)


def bracket_distances(symbols: Sequence[str]) -> np.ndarray:
    """Return the distance of each closing bracket to its opening one; 0 at every other symbol; (T,)."""
    distances = np.zeros(len(symbols), dtype=np.int64)
    open_brackets: list[tuple[str, int]] = []
    for i, symbol in enumerate(symbols):
        if symbol in PAIRS.values():
            open_brackets.append((symbol, i))
        elif symbol in PAIRS:
            while open_brackets and open_brackets[-1][0] != PAIRS[symbol]:
                open_brackets.pop()  # never closed
            if open_brackets:
                distances[i] = i - open_brackets.pop()[1]
    return distances


def rank_classes(ids: np.ndarray, unknown: int) -> dict[str, np.ndarray]:
    """Classify words by their rank in the vocabulary, which is sorted by frequency; (T,) of bool each."""
    classes, low = {"unknown word": ids == unknown}, 0
    for high in RANKS:
        classes[f"word of rank {low + 1} to {high}"] = (ids >= low) & (ids < high) & (ids != unknown)
        low = high
    return classes | {f"word of rank {low + 1} or more": (ids >= low) & (ids != unknown)}


def block_interval(values: np.ndarray, mask: np.ndarray) -> Interval:
    """Return the mean of values (T,) in a mask with its 95% interval over blocks of the text."""
    group = np.flatnonzero(mask) // BLOCK
    sums = np.bincount(group, weights=values[mask])
    counts = np.bincount(group)
    mean = float(sums.sum() / counts.sum())
    num_blocks = int(np.count_nonzero(counts))
    if num_blocks < 2:
        return Interval(mean, -math.inf, math.inf)
    variance = float(np.square(sums - mean * counts).sum()) * num_blocks / (num_blocks - 1)
    error = math.sqrt(variance) / float(counts.sum())
    return Interval(mean, mean - Z * error, mean + Z * error)


@dataclass(frozen=True)
class Sample:
    """Text generated by a model, and the model's name."""

    model: str
    text: str


def samples(
    models: Mapping[str, LanguageModel], *, prompt: str = "", limit: int = 300, seed: int = 0, **sampling: Any
) -> list[Sample]:
    """Generate a text with each model from the same seed and prompt, in a random order, for blind comparison.

    `sampling`: temperature, top_k, top_p.
    """
    check_comparable(models)
    texts = [Sample(name, model.generate(prompt, limit=limit, seed=seed, **sampling)) for name, model in models.items()]
    return [texts[i] for i in np.random.default_rng(seed).permutation(len(texts))]


def copied(sample: np.ndarray, training: np.ndarray, lengths: Sequence[int]) -> dict[int, float]:
    """Return the share of a text's windows of each length that occur in the training text; nan if it is shorter.

    Both are ids, (S,) and (T,); the training text can be memory-mapped.
    """
    shares = {}
    for length in lengths:
        if length < 1:
            raise SettingError(f"lengths must be 1 or more, not {length}.")
        (is_copy,) = find_copies([sample], training, length)
        shares[length] = float(is_copy.mean()) if len(is_copy) else math.nan
    return shares


def find_copies(
    texts: Sequence[np.ndarray], training: np.ndarray, length: int, progress: Progress | None = None
) -> list[np.ndarray]:
    """Return whether each window of this length of each text occurs in the training text; (S - length + 1,) each.

    The training text is read in chunks.
    """
    hashes = [_hash_windows(ids, length) if len(ids) >= length else np.zeros(0, np.uint64) for ids in texts]
    queries = np.unique(np.concatenate(hashes))
    is_present = np.zeros(len(queries), dtype=bool)
    for begin in range(0, len(training) - length + 1 if len(queries) else 0, CHUNK):
        chunk = _hash_windows(np.asarray(training[begin : begin + CHUNK + length - 1]), length)
        indices = np.minimum(np.searchsorted(queries, chunk), len(queries) - 1)
        is_present[indices[queries[indices] == chunk]] = True
        if progress is not None:
            progress(min(1.0, (begin + CHUNK) / len(training)))
    return [is_present[np.searchsorted(queries, windows)] for windows in hashes]


def _hash_windows(ids: np.ndarray, length: int) -> np.ndarray:
    """Return a 64-bit hash for each window of a text; (T - length + 1,)."""
    count = len(ids) - length + 1
    mixed = _mix(ids.astype(np.uint64))
    hashes = np.zeros(count, dtype=np.uint64)
    for j in range(length):
        hashes = _mix(hashes) + mixed[j : j + count]
    return hashes


def _mix(x: np.ndarray) -> np.ndarray:
    """Permute 64-bit numbers (the finaliser of splitmix64: Steele et al. 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Emergence:
    """Correlations of units with a feature in several models of one shape, such as checkpoints of a run.

    r       (M, U); all models have the same units
    unit    unit of interest, by default the best one of the last model
    """

    models: list[str]
    units: list[Unit]
    r: np.ndarray
    unit: Unit

    def as_dict(self) -> dict[str, Any]:
        """Return, for each model, the unit's r, and the best unit with its r, as JSON types."""
        rows, index = [], self.units.index(self.unit)
        for name, r in zip(self.models, self.r, strict=True):
            best = int(np.abs(r).argmax())
            row = {"model": name, "r": float(r[index])}
            rows.append(row | {"best_unit": str(self.units[best]), "best_r": float(r[best])})
        return {"unit": str(self.unit), "models": rows}

    def table(self) -> Table:
        """Return a table with one row per model."""
        rows = []
        for row in self.as_dict()["models"]:
            r, best_r = (format_number(row[key], signed=True) for key in ("r", "best_r"))
            rows.append([row["model"], r, row["best_unit"], best_r])
        return Table(["model", f"r of {self.unit}", "best unit", "its r"], rows, "emergence of a cell")

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
    """Correlate every unit with a feature (T,) in each model; `unit` defaults to the last model's best."""
    if not models:
        raise SettingError("At least one model is required.")
    names, rows, units = list(models), [], None
    column = standardize(track[:, None], axis=0)
    for i, model in enumerate(models.values()):
        states = build_stack(get_network(model)).layers[0].states[::-1]
        traced = trace(model, document.texts, keep=states)
        model_units = list_units(traced, states)
        if units is not None and model_units != units:
            raise SettingError(f"{names[i]} and {names[0]} have different units; compare checkpoints of one run.")
        units = model_units
        layers = [layer for state in states for layer in traced.states[state]]
        rows.append(np.concatenate([pearson(standardize(layer.T, axis=1), column)[:, 0] for layer in layers]))
        if progress is not None:
            progress((i + 1) / len(models))
    assert units is not None
    r = np.stack(rows)
    if unit is not None and unit not in units:
        raise SettingError(f"Unknown unit {unit}.")
    return Emergence(names, units, r, units[int(np.abs(r[-1]).argmax())] if unit is None else unit)

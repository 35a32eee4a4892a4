"""Comparison of models on the same text: a network and an n-gram model, two networks, the checkpoints of a run
(Karpathy et al. 2015, Visualizing and understanding recurrent networks)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from relmo.analysis.core.causal import classify_symbols, list_units
from relmo.analysis.core.effects import Interval, Z, pearson, standardize
from relmo.analysis.core.features import Document
from relmo.analysis.core.show import ColouredText, Report, Table, Unit, format_number, save_figure, with_progress
from relmo.analysis.core.stack import build_stack
from relmo.analysis.core.trace import trace
from relmo.errors import CorpusError, SettingError
from relmo.models.lm import LanguageModel
from relmo.models.sequence_model import SequenceModel
from relmo.networks.ngram import NGramLM
from relmo.settings.fields import Progress

BLOCK = 200  # neighbouring symbols that count as one draw
MIN_SYMBOLS = 20  # per class
CHUNK = 1 << 16  # symbols of the training text hashed together: fits the cache
COPY_LENGTHS = {"char": (10, 20, 40, 80), "word": (3, 5, 8, 12)}
PAIRS = {")": "(", "]": "[", "}": "{"}
DISTANCES = (1, 5, 10, 20, 50, 100, 200)
RANKS = (10, 100, 1_000, 10_000)
ALL = "all"
ONCE_UP_TO = 6  # highest order at which n-grams with one occurrence are kept
MAX_SYMBOLS = 50_000_000  # of an n-gram model; sorting takes about forty bytes per symbol


@dataclass(frozen=True)
class Losses(Report):
    """Losses of the symbols of a text under each model, in bits (M, T); `classes` of symbols are (T,) of bool each."""

    models: list[str]
    symbols: list[str]
    bits: np.ndarray
    classes: dict[str, np.ndarray]

    def mean(self, model: str, name: str = ALL) -> float:
        """Return a model's mean loss over a class."""
        return float(self.bits[self.models.index(model), self.classes[name]].mean())

    def difference(self, first: str, second: str, name: str = ALL) -> Interval:
        """Return the mean difference in bits over a class, first minus second, with its 95% interval over blocks."""
        a, b = (self.models.index(model) for model in (first, second))
        mask = self.classes[name]
        block = np.flatnonzero(mask) // BLOCK
        sums = np.bincount(block, weights=(self.bits[a] - self.bits[b])[mask])
        counts = np.bincount(block)
        mean = float(sums.sum() / counts.sum())
        num_blocks = int(np.count_nonzero(counts))
        if num_blocks < 2:
            return Interval(mean, -math.inf, math.inf)
        variance = float(np.square(sums - mean * counts).sum()) * num_blocks / (num_blocks - 1)
        error = math.sqrt(variance) / float(counts.sum())
        return Interval(mean, mean - Z * error, mean + Z * error)

    def coloured(self, first: str, second: str) -> ColouredText:
        """Return the text, orange where the first model is better, blue where the second is."""
        a, b = (self.models.index(model) for model in (first, second))
        return ColouredText(self.symbols, self.bits[b] - self.bits[a], f"bits saved by {first} over {second}")

    def as_dict(self) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for name, mask in self.classes.items():
            bits = {model: self.mean(model, name) for model in self.models}
            differences = {model: list(self.difference(self.models[0], model, name)) for model in self.models[1:]}
            rows.append({"class": name, "symbols": int(mask.sum()), "bits": bits, "difference": differences})
        return {"models": self.models, "classes": rows}

    def table(self) -> Table:
        reference, *baselines = self.models
        columns = ["symbols", "count", *self.models, *(f"{reference} - {model} (95%)" for model in baselines)]
        rows = []
        for row in self.as_dict()["classes"]:
            differences = ("{:+.3f} ({:+.3f} to {:+.3f})".format(*interval) for interval in row["difference"].values())
            rows.append([row["class"], f"{row['symbols']:,}", *map(format_number, row["bits"].values()), *differences])
        return Table(columns, rows, "bits per symbol", [f"intervals over blocks of {BLOCK} symbols"])

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
    models: Mapping[str, SequenceModel], symbols: Sequence[str], *, progress: Progress | None = None
) -> Losses:
    """Measure the loss of every symbol of a text under each of several models, which must share their units."""
    check_comparable(models)
    if not symbols:
        raise CorpusError("The text is empty.")
    bits = []
    for model in with_progress([*models.values()], progress):
        bits.append(model.symbol_losses([symbols]) / math.log(2))
    classes = {ALL: np.ones(len(symbols), dtype=bool)} | classify_symbols(symbols)
    distances = np.zeros(len(symbols), dtype=np.int64)  # of each closing bracket to its opening one
    open_brackets: list[tuple[str, int]] = []
    for i, symbol in enumerate(symbols):
        if symbol in PAIRS.values():
            open_brackets.append((symbol, i))
        elif symbol in PAIRS:
            while open_brackets and open_brackets[-1][0] != PAIRS[symbol]:
                open_brackets.pop()  # never closed
            if open_brackets:
                distances[i] = i - open_brackets.pop()[1]
    for low, high in zip(DISTANCES, [*DISTANCES[1:], None], strict=True):
        bound = "or more" if high is None else f"to {high - 1}"
        classes[f"bracket closes after {low} {bound}"] = (distances >= low) & (distances < (high or math.inf))
    reference = next(iter(models.values()))
    if reference.unit == "word":
        vocabulary = reference.get_output_vocabulary()  # sorted by frequency
        ids = vocabulary.ids(symbols)
        is_known = ids != vocabulary.unknown
        classes["unknown word"] = ~is_known
        for begin, end in pairwise([0, *RANKS]):
            classes[f"word of rank {begin + 1} to {end}"] = (ids >= begin) & (ids < end) & is_known
        classes[f"word of rank {RANKS[-1] + 1} or more"] = (ids >= RANKS[-1]) & is_known
    classes = {name: mask for name, mask in classes.items() if np.count_nonzero(mask) >= MIN_SYMBOLS or name == ALL}
    return Losses(list(models), list(symbols), np.stack(bits), classes)


def check_comparable(models: Mapping[str, SequenceModel]) -> None:
    """Check that there are models and that they split text in the same way."""
    if not models:
        raise SettingError("At least one model is required.")
    texts = [(model.unit, model.settings.text) for model in models.values()]
    if len({(unit, text.lowercase, text.tokenizer) for unit, text in texts}) > 1:
        raise SettingError(f"{', '.join(models)} have different units or tokenizers and cannot be compared.")


@dataclass(frozen=True)
class Sample:
    """Text generated by a model, and the model's name."""

    model: str
    text: str


def samples(
    models: Mapping[str, LanguageModel], *, prompt: str = "", limit: int = 300, seed: int = 0, **sampling: Any
) -> list[Sample]:
    """Generate a text with each model from the same seed, in a random order, for blind comparison."""
    check_comparable(models)
    texts = [Sample(name, model.generate(prompt, limit=limit, seed=seed, **sampling)) for name, model in models.items()]
    return [texts[i] for i in np.random.default_rng(seed).permutation(len(texts))]


def copied(sample: np.ndarray, training: np.ndarray, lengths: Sequence[int]) -> dict[int, float]:
    """Return the share of a text's windows of each length that occur in the training text; nan if it is shorter. Both
    are ids, (S,) and (T,); the training text can be memory-mapped."""
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
    """Return whether each window of this length of each text occurs in the training text; (S - length + 1,) each."""
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
class Emergence(Report):
    """Correlations of units with a feature in several models of one shape, such as checkpoints of a run."""

    models: list[str]
    units: list[Unit]
    r: np.ndarray  #: (M, U); all models have the same units
    unit: Unit  #: unit of interest, by default the best one of the last model

    def as_dict(self) -> dict[str, Any]:
        rows, index = [], self.units.index(self.unit)
        for name, r in zip(self.models, self.r.tolist(), strict=True):
            best = int(np.abs(r).argmax())
            rows.append({"model": name, "r": r[index], "best_unit": str(self.units[best]), "best_r": r[best]})
        return {"unit": str(self.unit), "models": rows}

    def table(self) -> Table:
        rows = [
            [name, format_number(r, signed=True), unit, format_number(best_r, signed=True)]
            for name, r, unit, best_r in map(dict.values, self.as_dict()["models"])
        ]
        return Table(["model", f"r of {self.unit}", "best unit", "its r"], rows, "emergence of a cell")


def emergence(
    models: Mapping[str, SequenceModel],
    document: Document,
    track: np.ndarray,
    *,
    unit: Unit | None = None,
    progress: Progress | None = None,
) -> Emergence:
    """Correlate every unit with a feature (T,) in each model; `unit` defaults to the last model's best."""
    if not models:
        raise SettingError("At least one model is required.")
    rows, units = [], list[Unit]()
    column = standardize(track[:, None], axis=0)
    for name, model in with_progress([*models.items()], progress):
        states = build_stack(model.get_recurrent_network()).layers[0].cell.unit_states[::-1]
        traced = trace(model, document.texts, keep=states)
        model_units = list_units(traced, states)
        if units and model_units != units:
            raise SettingError(f"{name} and {next(iter(models))} have different units; compare checkpoints of one run.")
        units = model_units
        layers = [layer for state in states for layer in traced.states[state]]
        rows.append(np.concatenate([pearson(standardize(layer.T, axis=1), column)[:, 0] for layer in layers]))
    r = np.stack(rows)
    if unit is not None and unit not in units:
        raise SettingError(f"Unknown unit {unit}.")
    return Emergence(list(models), units, r, units[int(np.abs(r[-1]).argmax())] if unit is None else unit)


def ngram_like(
    model: LanguageModel,
    ids: np.ndarray,
    *,
    order: int = 20,
    once_up_to: int = ONCE_UP_TO,
    progress: Progress | None = None,
) -> LanguageModel:
    """Fit an n-gram model to a text in the ids (T,) of another model's vocabulary, such as its training text.

    N-grams of orders above `once_up_to` that occur once are left out; see `NGramLM.fit`."""
    if len(ids) > MAX_SYMBOLS:
        raise CorpusError(f"The text has {len(ids):,} symbols; at most {MAX_SYMBOLS:,} are supported.")
    options: dict[str, Any] = {"order": order, "once_up_to": once_up_to, "progress": progress}
    network = NGramLM.fit(ids, vocab_size=len(model.vocabulary), **options)
    settings = replace(model.settings, model=replace(model.settings.model, cell="ngram", order=order))
    return LanguageModel(network, model.vocabulary, settings)

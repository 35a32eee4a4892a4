"""How well a network knows how deep in the syntactic tree it is after each word, and which units say so.

    report = syntax_units(model, read_depths("en_ewt-ud-dev.conllu"))
    report.r2, report.controls, report.units        what all units explain, what is explained without them, outliers

A linear regression with an L2 penalty goes from the states of all units to the depth. Nested cross-validation over
whole sentences chooses the penalty and gives the result. Units whose weight is more than three standard deviations from
the mean of all weights are the syntax units of Lakretz et al. 2019.

Easy ways to fool yourself, and what is done about them:
- Depth goes with the position in the sentence and with the word. So every regression is given the position and the
  word's frequency, and the report shows what these two explain alone, what the last three words explain, and what the
  same network untrained does.
- Of a thousand weights that mean nothing, three are beyond three deviations. So a syntax unit must be one in every
  fold, and the report says how many there would be by chance.

    Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models;  Nelson et al. 2017,
    Neurophysiological dynamics of phrase-structure building during sentence processing
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relmo.analysis.core.causal import Unit, units_of
from relmo.analysis.core.effects import ngram_predictions, standard
from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.show import Table, figure, picture
from relmo.analysis.core.trace import Trace, iter_trace, join_traces
from relmo.analysis.core.untrained import untrained
from relmo.errors import CorpusError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.settings.arguments import Progress
from relmo.text.trees import DepthSentence

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # of the squared weights, for each word and the units' variance
FOLDS = 5
OUTLIER = 3.0  # standard deviations
CHANCE = 0.0027  # of a normal distribution lies beyond that
WORDS = 20_000
MEASURES = {"open": "what is open after a word", "depth": "the depth of a word"}


class Explained(NamedTuple):
    """The share of the variance of held-out words that is explained: mean and standard deviation over the folds."""

    value: float
    deviation: float


class SyntaxUnit(NamedTuple):
    """An outlier among the weights: its weight in standard deviations from their mean, and its own correlation with the
    depth."""

    unit: Unit
    z: float
    r: float


@dataclass(frozen=True)
class SyntaxReport:
    """What the regression found.

    measure     what depth is
    words       how many were read
    r2          explained by all units, with position and frequency
    controls    what is explained by position and frequency alone, by the last three words, by the same network
                untrained
    weights     of all units whose values have variance 1; (U,)
    units       those that are outliers in every fold, the largest first
    expected    how many outliers a normal distribution has
    """

    measure: str
    words: int
    r2: Explained
    controls: dict[str, Explained]
    penalty: float
    all_units: list[Unit]
    weights: np.ndarray
    units: list[SyntaxUnit]
    expected: float
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, in plain numbers."""
        return {
            "measure": self.measure,
            "words": self.words,
            "r2": self.r2._asdict(),
            "controls": {name: each._asdict() for name, each in self.controls.items()},
            "penalty": self.penalty,
            "syntax_units": [{"unit": str(each.unit), "z": each.z, "r": each.r} for each in self.units],
            "expected_by_chance": self.expected,
            "weights": self.weights.tolist(),
            "units": [str(unit) for unit in self.all_units],
        }

    def table(self) -> Table:
        """What is explained, by what."""
        shown = {f"all {len(self.all_units):,} units": self.r2} | self.controls
        rows = [[name, figure(each.value), figure(each.deviation)] for name, each in shown.items()]
        found = ", ".join(f"{each.unit} (z {each.z:+.1f}, r {each.r:+.2f})" for each in self.units[:10])
        more = f" and {len(self.units) - 10} more" if len(self.units) > 10 else ""
        notes = [
            f"{self.measure}, of {self.words:,} words; sentences are held out; the deviation is of {FOLDS} folds",
            f"syntax units (weight beyond {OUTLIER:.0f} deviations in every fold; by chance {self.expected:.1f} in "
            f"one): {found + more or 'none'}",
        ]
        return Table(["explained by", "R²", "deviation"], rows, "the depth in the tree", notes + self.notes)

    def _repr_html_(self) -> str:
        return self.table().html()

    def plot(self, path: str | Path) -> None:
        """The weights of all units in order, outliers named, as a picture."""
        z = _z_scores(self.weights)
        with picture(path, width=7, height=3.5) as drawn:
            axes = drawn.subplots()
            axes.plot(np.arange(len(z)), z, ".", color="tab:gray", markersize=3)
            for each in self.units:
                place = self.all_units.index(each.unit)
                axes.plot(place, z[place], "o", color="tab:orange", markersize=5)
            for each in self.units[:8]:
                place = self.all_units.index(each.unit)
                axes.annotate(str(each.unit), (place, z[place]), fontsize=7, xytext=(3, 3), textcoords="offset points")
            for end in (-OUTLIER, OUTLIER):
                axes.axhline(end, color="black", linewidth=0.6, linestyle=":")
            axes.set(
                xlabel="unit", ylabel="weight, standard deviations", title=f"R² {self.r2.value:.2f}: {self.measure}"
            )


def syntax_units(
    model: LanguageModel | BiLM,
    sentences: Sequence[DepthSentence],
    *,
    states: Sequence[str] | None = None,
    measure: str = "depth",
    words: int = WORDS,
    control: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> SyntaxReport:
    """The regression over the first sentences, until there are so many `words`, on the units of h or of other `states`.
    With `control` the same network untrained is asked too."""
    if not isinstance(model, BiLM) and model.settings.text.unit == "char":
        raise SettingError("syntax units are looked for at words; this model reads characters")
    kept = _first_words(sentences, words)
    texts = [_symbols(model, each.words) for each in kept]
    values = np.concatenate([each.values for each in kept])
    own, other = split_progress(progress, [1, 1 if control else 0])
    traced = forward_trace(model, texts, states or ("h",))
    frequency = _log_ranks(model, traced.symbols)
    report = depth_regression(traced, values, frequency=frequency, measure=measure, seed=seed, progress=own)
    if control:
        traced = forward_trace(untrained(model, seed), texts, states or ("h",))
        fresh = depth_regression(traced, values, frequency=frequency, measure=measure, seed=seed, progress=other)
        report.controls["the same network untrained"] = fresh.r2
        report.notes.append(f"untrained, {len(fresh.units)} units are such outliers")
    return report


def depth_regression(
    traced: Trace,
    values: np.ndarray,
    *,
    frequency: np.ndarray | None = None,
    measure: str = "depth",
    folds: int = FOLDS,
    seed: int = 0,
    progress: Progress | None = None,
) -> SyntaxReport:
    """The regression of `values`, a number for each symbol (T,), on the states of a trace whose texts are sentences.
    The symbols' positions, and their `frequency` (T,) where it is given, are held constant."""
    if len(values) != len(traced):
        raise SettingError(f"{len(values)} depths for {len(traced)} symbols; give one for each")
    if len(traced.starts) < 2 * folds:
        raise CorpusError(f"{len(traced.starts)} sentences are too few to hold some out; give at least {2 * folds}")
    units = units_of(traced, list(traced.states))
    x = np.concatenate([traced.states[name][layer] for name in traced.states for layer in range(len(traced.layers))], 1)
    lengths = np.diff(traced.starts, append=len(traced))
    position = np.concatenate([np.arange(length) for length in lengths]).astype(np.float64)
    others = [position, np.square(position), np.log1p(position), *([] if frequency is None else [frequency])]
    known = standard(np.stack(others, axis=1), axis=0)  # (T, K)
    fold = np.repeat(np.random.default_rng(seed).permutation(len(lengths)) % folds, lengths)
    y = np.asarray(values, dtype=np.float64)
    plain = nested(known, y, fold, folds, None)
    found = nested(np.concatenate([standard(x, axis=0), known], axis=1), y, fold, folds, progress)
    z = np.stack([_z_scores(weights[: len(units)]) for weights in found.by_fold])  # (folds, U)
    outlying = (np.abs(z) > OUTLIER).all(axis=0) & (np.ptp(np.sign(z), axis=0) == 0)
    r = standard(x, axis=0).T @ standard(y[:, None], axis=0)[:, 0] / len(y)  # (U,)
    own = _z_scores(found.weights[: len(units)])
    order = [u for u in np.argsort(-np.abs(own), kind="stable") if outlying[u]]
    controls = {"position and frequency of the word": plain.r2, "the last three words": _by_words(traced, y, fold)}
    return SyntaxReport(
        measure,
        len(y),
        found.r2,
        controls,
        found.penalty,
        units,
        found.weights[: len(units)],
        [SyntaxUnit(units[u], float(own[u]), float(r[u])) for u in order],
        CHANCE * len(units),
    )


class Fit(NamedTuple):
    """A regression: what is explained of held-out words, the weights fitted to all words, and those without each
    fold."""

    r2: Explained
    penalty: float
    weights: np.ndarray
    by_fold: list[np.ndarray]


def nested(x: np.ndarray, y: np.ndarray, fold: np.ndarray, folds: int, progress: Progress | None) -> Fit:
    """Ridge regression of y (T,) on columns (T, D) of variance 1, in nested cross-validation: for each fold the penalty
    is chosen on the other folds in turn. Each fold's products are taken once, and those of several folds summed."""
    parts = [moments(x[fold == k], y[fold == k]) for k in range(folds)]
    shares, chosen, weights = [], [], []
    for k in range(folds):
        rest = [part for j, part in enumerate(parts) if j != k]
        losses = np.zeros(len(PENALTIES))
        for j in range(len(rest)):
            made = solve(total(rest[:j] + rest[j + 1 :]), PENALTIES)
            losses += [squares(rest[j], w) for w in made]
        best = PENALTIES[int(losses.argmin())]
        w = solve(total(rest), (best,))[0]
        level = total(rest).mean_y
        shares.append(1 - squares(parts[k], w) / squares(parts[k], np.append(np.zeros(len(w) - 1), level)))
        chosen.append(best)
        weights.append(w[:-1])
        if progress is not None:
            progress((k + 1) / folds)
    penalty = float(np.exp(np.mean(np.log(chosen))))
    whole = solve(total(parts), (penalty,))[0][:-1]
    return Fit(Explained(float(np.mean(shares)), float(np.std(shares))), penalty, whole, weights)


class Moments(NamedTuple):
    """Sums over rows: of products of columns with each other (D, D) and with y (D,), of columns, y and its square."""

    rows: int
    xx: np.ndarray
    xy: np.ndarray
    x: np.ndarray
    y: float
    yy: float

    @property
    def mean_y(self) -> float:
        """The mean of y."""
        return self.y / self.rows


def moments(x: np.ndarray, y: np.ndarray) -> Moments:
    """The sums over rows (n, D) and y (n,)."""
    wide = x.astype(np.float64)
    return Moments(len(y), wide.T @ wide, wide.T @ y, wide.sum(axis=0), float(y.sum()), float(y @ y))


def total(parts: Sequence[Moments]) -> Moments:
    """The sums over all rows of several parts."""
    return Moments(*(sum(column[1:], start=column[0]) for column in zip(*parts, strict=True)))


def solve(seen: Moments, penalties: Sequence[float]) -> list[np.ndarray]:
    """The weights (D,) and, last, the level that minimise the mean squared error and each penalty on the weights."""
    mean = seen.x / seen.rows
    gram = seen.xx / seen.rows - np.outer(mean, mean)
    right = seen.xy / seen.rows - mean * seen.mean_y
    found = []
    for penalty in penalties:
        ridged = gram.copy()
        ridged[np.diag_indices_from(ridged)] += penalty
        w = np.linalg.solve(ridged, right)
        found.append(np.append(w, seen.mean_y - mean @ w))
    return found


def squares(asked: Moments, weights: np.ndarray) -> float:
    """The summed squared errors of weights and level on some rows."""
    w, level = weights[:-1], weights[-1]
    inner = w @ asked.xx @ w + asked.rows * level**2 + asked.yy
    return float(inner + 2 * (level * (w @ asked.x) - w @ asked.xy - level * asked.y))


def _by_words(traced: Trace, y: np.ndarray, fold: np.ndarray) -> Explained:
    """What the last three words explain, each half of the text by the other's counts."""
    ids = np.unique(traced.symbols, return_inverse=True)[1]
    left = np.square(y - ngram_predictions(ids, y[:, None], 3)[:, 0])
    shares = [1 - left[fold == k].sum() / np.square(y[fold == k] - y.mean()).sum() for k in range(fold.max() + 1)]
    return Explained(float(np.mean(shares)), float(np.std(shares)))


def _z_scores(weights: np.ndarray) -> np.ndarray:
    """Weights (U,) in standard deviations from their mean."""
    spread = weights.std()
    return (weights - weights.mean()) / (spread if spread > 0 else 1.0)


def _first_words(sentences: Sequence[DepthSentence], most: int) -> list[DepthSentence]:
    """The first sentences, until there are so many words."""
    kept, count = [], 0
    for each in sentences:
        if count >= most:
            break
        kept.append(each)
        count += len(each.words)
    if not kept:
        raise CorpusError("there are no sentences with trees; give at least one")
    return kept


def _symbols(model: LanguageModel | BiLM, words: Sequence[str]) -> list[str]:
    """Words as a model reads them, one by one."""
    lower = not isinstance(model, BiLM) and model.settings.text.lowercase
    return [word.lower() if lower else word for word in words]


def _log_ranks(model: LanguageModel | BiLM, words: Sequence[str]) -> np.ndarray:
    """The logarithm of each word's place in the vocabulary, which is sorted by falling frequency; (T,)."""
    if model.vocabulary is None:
        counts = dict(zip(*np.unique(words, return_counts=True), strict=True))
        return -np.log([float(counts[word]) for word in words])
    index, last = model.vocabulary.index, len(model.vocabulary)
    return np.log1p([float(index.get(word, last)) for word in words])


def forward_trace(model: LanguageModel | BiLM, texts: Sequence[Sequence[str]], keep: Sequence[str]) -> Trace:
    """The trace of texts, of the direction that reads from their beginnings alone."""
    pieces = [piece.forward for piece in iter_trace(model, texts, keep=list(keep))]
    return join_traces(pieces, np.cumsum([0, *map(len, texts[:-1])]))

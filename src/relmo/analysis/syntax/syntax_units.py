"""Syntax units: ridge regression of the depth in the tree on all units, with the position and the frequency of the word
as covariates and nested cross-validation over sentences (Lakretz et al. 2019;  Nelson et al. 2017, Neurophysiological
dynamics of phrase-structure building). A unit must be an outlier in every fold: chance gives three in a thousand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relmo.analysis.core.causal import Unit, list_units
from relmo.analysis.core.effects import predict_from_ngrams, standardize
from relmo.analysis.core.show import Report, Table, format_number, save_figure, split_progress, to_plain, with_progress
from relmo.analysis.core.trace import Trace, iter_trace, join_traces
from relmo.errors import CorpusError, SettingError
from relmo.models.sequence_model import SequenceModel, untrained
from relmo.settings.fields import Progress
from relmo.text.trees import DepthSentence

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # on the squared weights, per word and in units of variance
FOLDS = 5
OUTLIER = 3.0  # standard deviations
OUTLIER_SHARE = 0.0027  # of a normal distribution beyond that
MAX_WORDS = 20_000
MAX_NAMED, MAX_ANNOTATED = 10, 8  # syntax units in the notes, and in the plot
MEASURES = {"open": "number of open constituents", "depth": "depth of the word"}


class Explained(NamedTuple):
    """R² on held-out words: mean and standard deviation over the folds."""

    value: float
    deviation: float


class SyntaxUnit(NamedTuple):
    """An outlier: its standardised weight, and its correlation with the depth."""

    unit: Unit
    z: float
    r: float


@dataclass(frozen=True)
class SyntaxReport(Report):
    """Regression of the depth on units."""

    measure: str  #: definition of depth
    words: int  #: number of words
    r2: Explained  #: R² of all units with position and frequency
    controls: dict[str, Explained]  #: position and frequency, the last three words, the same network untrained
    penalty: float
    all_units: list[Unit]
    weights: np.ndarray  #: of all units, scaled to variance 1; (U,)
    units: list[SyntaxUnit]  #: outliers in every fold, largest first
    expected: float  #: number of outliers of a normal distribution
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        fields = {name: to_plain(getattr(self, name)) for name in ("measure", "words", "r2", "controls", "penalty")}
        units = {"syntax_units": to_plain(self.units), "expected_by_chance": self.expected}
        return fields | units | {"weights": self.weights.tolist(), "units": to_plain(self.all_units)}

    def table(self) -> Table:
        r2_by_name = {f"all {len(self.all_units):,} units": self.r2} | self.controls
        rows = [[name, format_number(r2.value), format_number(r2.deviation)] for name, r2 in r2_by_name.items()]
        names = ", ".join(f"{unit} (z {z:+.1f}, r {r:+.2f})" for unit, z, r in self.units[:MAX_NAMED]) or "none"
        if len(self.units) > MAX_NAMED:
            names += f" and {len(self.units) - MAX_NAMED} more"
        notes = [
            f"{self.measure}, over {self.words:,} words; held-out sentences; standard deviation over {FOLDS} folds",
            f"syntax units (weight beyond {OUTLIER:.0f} deviations in every fold; {self.expected:.1f} expected in "
            f"one by chance): {names}",
        ]
        return Table(["predictor", "R²", "deviation"], rows, "syntactic depth", notes + self.notes)

    def plot(self, path: str | Path) -> None:
        """Draw the weights of all units, with outliers marked."""
        z = _standardize_weights(self.weights)
        with save_figure(path, width=7, height=3.5) as figure:
            axes = figure.subplots()
            axes.plot(np.arange(len(z)), z, ".", color="tab:gray", markersize=3)
            for number, (unit, _, _) in enumerate(self.units):
                point = (self.all_units.index(unit), z[self.all_units.index(unit)])
                axes.plot(*point, "o", color="tab:orange", markersize=5)
                if number < MAX_ANNOTATED:
                    axes.annotate(str(unit), point, fontsize=7, xytext=(3, 3), textcoords="offset points")
            for limit in (-OUTLIER, OUTLIER):
                axes.axhline(limit, color="black", linewidth=0.6, linestyle=":")
            axes.set(xlabel="unit", ylabel="weight, standard deviations")
            axes.set_title(f"R² {self.r2.value:.2f}: {self.measure}")


def syntax_units(
    model: SequenceModel,
    sentences: Sequence[DepthSentence],
    *,
    states: Sequence[str] | None = None,
    measure: str = "depth",
    words: int = MAX_WORDS,
    control: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> SyntaxReport:
    """Regress the depth on the units of h, or of other `states`, over the first sentences with about `words` words in
    total; `control` also measures the same network untrained."""
    if model.unit == "char":
        raise SettingError("syntax units need a model of words; this model reads characters")
    words_before = np.cumsum([0, *(len(sentence.words) for sentence in sentences)])
    sample = [sentence for sentence, count in zip(sentences, words_before, strict=False) if count < words]
    if not sample:
        raise CorpusError("no sentences with trees; give at least one")
    texts = [model.target_symbols(sentence.words, is_sentence=False) for sentence in sample]
    values = np.concatenate([sentence.values for sentence in sample])
    on_model, on_control = split_progress(progress, [1, 1 if control else 0])
    traced = trace_forward(model, texts, states or ("h",))
    if model.vocabulary is None:
        counts = dict(zip(*np.unique(traced.symbols, return_counts=True), strict=True))
        frequency = -np.log([float(counts[word]) for word in traced.symbols])
    else:  # the vocabulary is sorted by descending frequency
        index, last = model.vocabulary.index, len(model.vocabulary)
        frequency = np.log1p([float(index.get(word, last)) for word in traced.symbols])
    options: dict[str, Any] = {"frequency": frequency, "measure": measure, "seed": seed}
    report = depth_regression(traced, values, progress=on_model, **options)
    if control:
        traced = trace_forward(untrained(model, seed), texts, states or ("h",))
        control_report = depth_regression(traced, values, progress=on_control, **options)
        report.controls["the same network untrained"] = control_report.r2
        report.notes.append(f"the untrained network has {len(control_report.units)} such outliers")
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
    """Regress `values` (T,) on the states of a trace of sentences; covariates: position, `frequency` (T,) if given."""
    if len(values) != len(traced):
        raise SettingError(f"{len(values)} depths for {len(traced)} symbols; give one for each")
    if len(traced.starts) < 2 * folds:
        raise CorpusError(f"{len(traced.starts)} sentences are too few to hold out some; give at least {2 * folds}")
    units = list_units(traced, list(traced.states))
    x = np.concatenate([traced.states[name][layer] for name in traced.states for layer in range(len(traced.layers))], 1)
    x = standardize(x, axis=0)
    lengths = np.diff(traced.starts, append=len(traced))
    position = np.concatenate([np.arange(length) for length in lengths]).astype(np.float64)
    columns = [position, np.square(position), np.log1p(position), *([] if frequency is None else [frequency])]
    covariates = standardize(np.stack(columns, axis=1), axis=0)  # (T, K)
    fold = np.repeat(np.random.default_rng(seed).permutation(len(lengths)) % folds, lengths)
    y = np.asarray(values, dtype=np.float64)
    baseline, *_ = nested_cross_validation(covariates, y, fold, folds, None)
    predictors = np.concatenate([x, covariates], axis=1)
    r2, penalty, weights, by_fold = nested_cross_validation(predictors, y, fold, folds, progress)
    fold_z = np.stack([_standardize_weights(fold_weights[: len(units)]) for fold_weights in by_fold])  # (folds, U)
    is_outlier = (np.abs(fold_z) > OUTLIER).all(axis=0) & (np.ptp(np.sign(fold_z), axis=0) == 0)
    r = x.T @ standardize(y[:, None], axis=0)[:, 0] / len(y)  # (U,)
    weights = weights[: len(units)]
    z = _standardize_weights(weights)
    outliers = [
        SyntaxUnit(units[u], float(z[u]), float(r[u])) for u in np.argsort(-np.abs(z), kind="stable") if is_outlier[u]
    ]
    # R² of the last three words, each half of the text predicted from the counts of the other.
    ids = np.unique(traced.symbols, return_inverse=True)[1]
    errors = np.square(y - predict_from_ngrams(ids, y[:, None], 3)[:, 0])
    shares = [1 - errors[fold == k].sum() / np.square(y[fold == k] - y.mean()).sum() for k in range(folds)]
    last_words = Explained(float(np.mean(shares)), float(np.std(shares)))
    controls = {"position and frequency of the word": baseline, "the last three words": last_words}
    expected = OUTLIER_SHARE * len(units)
    return SyntaxReport(measure, len(y), r2, controls, penalty, units, weights, outliers, expected)


def nested_cross_validation(
    x: np.ndarray, y: np.ndarray, fold: np.ndarray, folds: int, progress: Progress | None
) -> tuple[Explained, float, np.ndarray, list[np.ndarray]]:
    """Fit ridge regression of y (T,) on columns (T, D) of variance 1; for each fold the penalty is chosen on the other
    folds in turn. Return R² on held-out words, the penalty, the weights, and those fitted without each fold."""
    parts = [compute_moments(x[fold == k], y[fold == k]) for k in range(folds)]
    shares, penalties, weights = [], [], []
    for k in with_progress(range(folds), progress):
        training = [part for j, part in enumerate(parts) if j != k]
        losses = np.zeros(len(PENALTIES))
        for j in range(len(training)):
            candidates = solve_ridge(reduce(np.add, training[:j] + training[j + 1 :]), PENALTIES)
            losses += [sum_squared_errors(training[j], w) for w in candidates]
        penalties.append(PENALTIES[int(losses.argmin())])
        total = reduce(np.add, training)
        w = solve_ridge(total, penalties[-1:])[0]
        constant = np.append(np.zeros(len(w) - 1), total[-1, -2] / total[-2, -2])
        shares.append(1 - sum_squared_errors(parts[k], w) / sum_squared_errors(parts[k], constant))
        weights.append(w[:-1])
    penalty = float(np.exp(np.mean(np.log(penalties))))
    final_weights = solve_ridge(reduce(np.add, parts), (penalty,))[0][:-1]
    return Explained(float(np.mean(shares)), float(np.std(shares))), penalty, final_weights, weights


def compute_moments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the moments of rows x (n, D), y (n,): the sums (D + 2, D + 2) of the products of x, 1 and y."""
    rows = np.column_stack([x, np.ones(len(y)), y]).astype(np.float64)
    return rows.T @ rows


def solve_ridge(moments: np.ndarray, penalties: Sequence[float]) -> list[np.ndarray]:
    """Return for each penalty the weights (D,) and, last, the intercept that minimise the penalised mean square."""
    means = moments / moments[-2, -2]
    mean, mean_y = means[:-2, -2], means[-1, -2]
    covariance = means[:-2, :-2] - np.outer(mean, mean)
    cross = means[:-2, -1] - mean * mean_y
    solutions = []
    for penalty in penalties:
        ridged = covariance.copy()
        ridged[np.diag_indices_from(ridged)] += penalty
        w = np.linalg.solve(ridged, cross)
        solutions.append(np.append(w, mean_y - mean @ w))
    return solutions


def sum_squared_errors(moments: np.ndarray, weights: np.ndarray) -> float:
    """Return the summed squared errors of weights and intercept on some rows."""
    coefficients = np.append(weights, -1.0)  # of the error: x w + intercept - y
    return float(coefficients @ moments @ coefficients)


def _standardize_weights(weights: np.ndarray) -> np.ndarray:
    deviation = weights.std()
    return (weights - weights.mean()) / (deviation if deviation > 0 else 1.0)


def trace_forward(model: SequenceModel, texts: Sequence[Sequence[str]], keep: Sequence[str]) -> Trace:
    """Return the trace of texts in the forward direction alone."""
    pieces = [piece.forward for piece in iter_trace(model, texts, keep=list(keep))]
    return join_traces(pieces, np.cumsum([0, *map(len, texts[:-1])]))

"""Effect sizes for many units and features at once, and confidence intervals.

Units are rows (U, T), features columns (T, F)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NUM_SHIFTS = 100  # circular shifts of the text that estimate chance correlations
NGRAM_PRIOR = 2.0  # weight of the shorter context, in occurrences of the longer one
RIDGE = 1e-3  # penalty of the linear probe per position
Z = 1.959964  # 97.5% quantile of the normal distribution
NUM_RESAMPLES = 10_000
CHUNK = 1 << 22  # numbers drawn at a time


class Interval(NamedTuple):
    """Value with the ends of its 95% interval."""

    value: float
    low: float
    high: float


def wilson(points: float, count: int) -> Interval:
    """Return the share of `points` in `count` trials with Wilson's score interval, which holds near 0 and 1 too (Wilson
    1927, Probable inference, the law of succession, and statistical inference)."""
    if count == 0:
        return Interval(math.nan, 0.0, 1.0)
    p, z2 = points / count, Z * Z
    centre = (p + z2 / (2 * count)) / (1 + z2 / count)
    half = Z * math.sqrt(p * (1 - p) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    return Interval(p, max(0.0, centre - half), min(1.0, centre + half))


def mean_interval(intervals: Sequence[Interval]) -> Interval:
    """Return the mean of independent estimates with the interval that follows from theirs (Zou & Donner 2008,
    Construction of confidence limits about effect measures), which also holds near 0 and 1."""
    values, lows, highs = np.array(intervals).T  # (K,)
    mean = values.mean()
    margins = (np.sqrt(np.square(values - bounds).sum()) / len(values) for bounds in (lows, highs))
    return Interval(float(mean), float(mean - next(margins)), float(mean + next(margins)))


def bootstrap_difference(first: np.ndarray, second: np.ndarray, groups: np.ndarray, *, seed: int = 0) -> Interval:
    """Return mean(first) - mean(second) of paired scores (N,) with its bootstrap interval; whole groups (N,), such as
    sentences, are resampled, since scores within a group are not independent."""
    _, group = np.unique(groups, return_inverse=True)
    sums = np.bincount(group, weights=first.astype(np.float64) - second)  # (G,)
    sizes = np.bincount(group).astype(np.float64)
    generator, means = np.random.default_rng(seed), []
    for begin in range(0, NUM_RESAMPLES, step := max(1, CHUNK // len(sums))):
        draws = generator.integers(len(sums), size=(min(step, NUM_RESAMPLES - begin), len(sums)))
        means.append(sums[draws].sum(axis=1) / sizes[draws].sum(axis=1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Interval(float(sums.sum() / sizes.sum()), float(low), float(high))


class Ranking(NamedTuple):
    """Sort order (T,) of values and their ranks (T,) from 1; ties share their mean rank."""

    order: np.ndarray
    ranks: np.ndarray


class Delay(NamedTuple):
    """Median number of symbols by which a unit follows a feature on and off, and the share of episodes it misses."""

    on: float
    off: float
    missed: float


def standardize(x: np.ndarray, axis: int) -> np.ndarray:
    """Scale to mean 0 and standard deviation 1 along an axis; constants become zeros."""
    x = np.asarray(x, dtype=np.float32)
    mean = x.mean(axis=axis, keepdims=True, dtype=np.float64)
    centred = x - mean.astype(np.float32)
    deviation = np.sqrt(np.square(centred).mean(axis=axis, keepdims=True, dtype=np.float64))
    centred /= np.where(deviation > 1e-6 * (1 + np.abs(mean)), deviation, np.inf).astype(np.float32)
    return centred


def rank_values(values: np.ndarray) -> Ranking:
    """Sort values (T,) and rank them."""
    order = np.argsort(values)
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(np.append(starts, len(values)))
    ranks = np.empty(len(values), dtype=np.float32)
    ranks[order] = np.repeat(starts + (counts + 1) / 2, counts)
    return Ranking(order, ranks)


def pearson(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Pearson's r of standardized rows (U, T) with standardized columns (T, F); (U, F)."""
    return a @ b / max(a.shape[1], 1)


def compute_auc(ranks: np.ndarray, binary: np.ndarray) -> np.ndarray:
    """Return the ROC areas (U, F) of ranks (U, T) for binary columns (T, F); nan if a column is constant."""
    positives = binary.sum(axis=0, dtype=np.float64)
    negatives = len(binary) - positives
    total = (ranks.astype(np.float64) - len(binary) / 2) @ binary + positives * (len(binary) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (total - positives * (positives + 1) / 2) / (positives * negatives)


def compute_row_auc(rows: np.ndarray, binary: np.ndarray) -> np.ndarray:
    """Return the ROC areas (U,) of rows (U, T) for a binary feature (T,)."""
    ranks = np.stack([rank_values(row).ranks for row in rows])
    return compute_auc(ranks, binary[:, None].astype(np.float32))[:, 0]


def held_out_f1(values: np.ndarray, order: np.ndarray, truth: np.ndarray, *, high: bool) -> tuple[float, float]:
    """Return the threshold with the best F1 on the first half of the text, and its F1 on the second half. `order` (T,)
    sorts the values; a unit is on at or above the threshold if `high`, else at or below it."""
    half = len(values) // 2
    train = order[order < half][:: -1 if high else 1]
    ordered = values[train]
    hits = np.cumsum(truth[train])
    if not len(train) or not hits[-1]:
        return np.nan, np.nan
    f1 = 2 * hits / (np.arange(1, len(train) + 1) + hits[-1])
    f1[:-1][ordered[:-1] == ordered[1:]] = -1  # equal values are on together or not at all
    threshold = float(ordered[int(f1.argmax())])
    predicted = values[half:] >= threshold if high else values[half:] <= threshold
    total = np.count_nonzero(predicted) + np.count_nonzero(truth[half:])
    return threshold, 2 * np.count_nonzero(predicted & truth[half:]) / total if total else 0.0


def measure_delay(on: np.ndarray, truth: np.ndarray) -> Delay:
    """Measure how soon a unit that is on or off (T,) follows a binary feature (T,)."""
    truth = truth.astype(bool)
    edges = np.diff(truth.astype(np.int8), prepend=0, append=0)
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(begins):
        return Delay(np.nan, np.nan, np.nan)
    next_begins = np.append(begins[1:], len(truth))
    # The next position at or after each one where the unit is on, or off; the end if there is none.
    positions = (np.where(mask, np.arange(len(on)), len(on)) for mask in (on, ~on))
    following_on, following_off = (np.minimum.accumulate(array[::-1])[::-1] for array in positions)
    next_on, next_off = following_on[begins], following_off[np.minimum(ends, len(on) - 1)]
    hits, releases = next_on < ends, (next_off < next_begins) & (ends < len(truth))
    lag_on, lag_off = (next_on - begins)[hits], (next_off - ends)[releases]
    return Delay(
        float(np.median(lag_on)) if len(lag_on) else np.nan,
        float(np.median(lag_off)) if len(lag_off) else np.nan,
        1 - float(hits.mean()),
    )


class PartialCorrelation:
    """Correlations of units with each feature, controlling for the other features and the current symbol.

    With the symbols' means removed from both, beta = (F'F)^-1 F'u is the regression of a unit on all features and s2
    its residual; the partial correlation with feature j is beta_j / sqrt(beta_j^2 + s2 ((F'F)^-1)_jj)."""

    def __init__(self, features: np.ndarray, ids: np.ndarray):
        self.order = np.argsort(ids, kind="stable")  # positions grouped by symbol
        ordered = ids[self.order]
        self.begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        self.counts = np.diff(np.append(self.begins, len(ids)))
        self.features = self._subtract_means(np.ascontiguousarray(features.T)).T  # (T, F)
        gram = self.features.T.astype(np.float64) @ self.features
        totals = np.square(features, dtype=np.float64).sum(axis=0)
        self.identified = np.ones(len(gram), dtype=bool)  # False where the other features and the symbol determine it
        for j in range(len(gram)):
            mask = np.arange(len(gram)) != j
            explained = gram[j, mask] @ np.linalg.pinv(gram[np.ix_(mask, mask)]) @ gram[mask, j]
            self.identified[j] = gram[j, j] - explained > 1e-4 * max(totals[j], 1e-12)
        self.inverse = np.linalg.pinv(gram)

    def _subtract_means(self, rows: np.ndarray) -> np.ndarray:
        """Subtract the mean at each symbol from rows (U, T)."""
        centred = np.empty_like(rows)
        for row, out in zip(rows, centred, strict=True):
            ordered = row[self.order]
            means = np.add.reduceat(ordered, self.begins, dtype=np.float64) / self.counts
            out[self.order] = ordered - np.repeat(means, self.counts)
        return centred

    def compute(self, rows: np.ndarray) -> np.ndarray:
        """Return the partial correlations of rows (U, T); (U, F), nan where a feature is not identified."""
        centred = self._subtract_means(rows)
        b = centred @ self.features  # (U, F)
        beta = b @ self.inverse
        residual = np.maximum(np.square(centred, dtype=np.float64).sum(axis=1) - (b * beta).sum(axis=1), 0)  # (U,)
        scale = np.sqrt(np.square(beta) + residual[:, None] * np.maximum(np.diag(self.inverse), 0))
        partial = np.divide(beta, scale, out=np.zeros_like(beta), where=scale > 0)
        return np.where(self.identified, partial, np.nan)


def predict_from_ngrams(ids: np.ndarray, features: np.ndarray, order: int) -> np.ndarray:
    """Predict features (T, F) from the last `order` symbols, each half of the text from counts in the other; (T, F).
    A prediction is the mean after the same n-gram, smoothed towards the mean after the shorter one."""
    half = len(ids) // 2
    in_first_half = np.arange(len(ids)) < half
    predictions = np.empty(features.shape)
    for train in (in_first_half, ~in_first_half):
        predictions[~train] = features[train].mean(axis=0)
    code = np.zeros(len(ids), dtype=np.int64)
    symbols = np.unique(ids, return_inverse=True)[1]
    for back in range(order):
        past = np.concatenate([np.full(back, -1), symbols[: len(ids) - back]])[: len(ids)]
        code = np.unique(code * (symbols.max() + 2) + past + 1, return_inverse=True)[1]
        refined = np.empty_like(predictions)
        for train in (in_first_half, ~in_first_half):
            count = np.bincount(code[train], minlength=code.max() + 1)[code[~train]]
            for j in range(features.shape[1]):
                sums = np.bincount(code[train], weights=features[train, j], minlength=code.max() + 1)[code[~train]]
                refined[~train, j] = (sums + NGRAM_PRIOR * predictions[~train, j]) / (count + NGRAM_PRIOR)
        predictions = refined
    return predictions


def predict_from_units(rows: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Predict features (T, F) by ridge regression on all standardized rows (U, T), fitted on the other half; (T, F)."""
    half = rows.shape[1] // 2
    predictions = np.empty(features.shape)
    halves = slice(0, half), slice(half, None)
    for train, test in (halves, halves[::-1]):
        x, y = rows[:, train], features[train]
        count = max(x.shape[1], 1)
        mean, level = x.mean(axis=1, dtype=np.float64), y.mean(axis=0, dtype=np.float64)
        gram = (x @ x.T).astype(np.float64) / count - np.outer(mean, mean)
        gram[np.diag_indices_from(gram)] += RIDGE
        weights = np.linalg.solve(gram, (x @ y).astype(np.float64) / count - np.outer(mean, level))
        predictions[test] = rows[:, test].T @ weights.astype(np.float32) + (level - mean @ weights)
    return predictions

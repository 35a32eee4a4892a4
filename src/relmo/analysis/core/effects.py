"""How strongly numbers go together, for many units and features at once: correlations, areas under the curve,
thresholds chosen on one half of a text and judged on the other, delays.

Units are rows (U, T), features columns (T, F). A unit's score is compared with what is reached without it: by the last
few symbols (`ngram_predictions`), by all units together (`probe_predictions`), by chance (`shifted`).
"""

from typing import NamedTuple

import numpy as np

SHIFTS = 100  # of the text against itself, for what chance gives
SHRINK = 2.0  # occurrences of a context that its shorter context is worth
RIDGE = 1e-3  # of the squared weights of the linear probe, for each position


class Tied(NamedTuple):
    """A row's order, and its ranks from 1 on; equal values share the mean of their ranks."""

    order: np.ndarray  # (T,)
    ranks: np.ndarray  # (T,)


class Delay(NamedTuple):
    """How many symbols after a feature a unit goes on, and off: medians over all times. `missed` is the share of the
    times the feature is on that the unit misses."""

    on: float
    off: float
    missed: float


def standard(x: np.ndarray, axis: int) -> np.ndarray:
    """Scales to mean 0 and standard deviation 1 along an axis; zeros where nothing varies."""
    x = np.asarray(x, dtype=np.float32)
    mean = x.mean(axis=axis, keepdims=True, dtype=np.float64)
    centred = x - mean.astype(np.float32)
    deviation = np.sqrt(np.square(centred).mean(axis=axis, keepdims=True, dtype=np.float64))
    centred /= np.where(deviation > 1e-6 * (1 + np.abs(mean)), deviation, np.inf).astype(np.float32)
    return centred


def ranked(values: np.ndarray) -> Tied:
    """The order of numbers (T,) and their ranks."""
    order = np.argsort(values)
    ordered = values[order]
    new = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ranks = np.empty(len(values), dtype=np.float32)
    if len(new) == len(values):
        ranks[order] = np.arange(1, len(values) + 1)
    else:
        counts = np.diff(np.append(new, len(values)))
        ranks[order] = np.repeat(new + (counts + 1) / 2, counts)
    return Tied(order, ranks)


def pearson(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """r of rows (U, T) with columns (T, F), both of them standard: (U, F)."""
    return a @ b / max(a.shape[1], 1)


def areas(ranks: np.ndarray, binary: np.ndarray) -> np.ndarray:
    """Areas under the ROC curve of rows of ranks (U, T) for yes-or-no columns (T, F): the probability that a yes has a
    larger value than a no; (U, F), nan where a column has only one of the two."""
    positives = binary.sum(axis=0, dtype=np.float64)
    negatives = len(binary) - positives
    total = (ranks.astype(np.float64) - len(binary) / 2) @ binary + positives * (len(binary) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (total - positives * (positives + 1) / 2) / (positives * negatives)


def best_threshold(values: np.ndarray, order: np.ndarray, truth: np.ndarray, *, high: bool) -> tuple[float, float]:
    """The threshold with the best F1 on some places, and that F1. A unit is on above it; without `high`, below it.

    order    these places, sorted by value
    truth    (T,) of bool, at all places
    """
    order = order[::-1] if high else order
    ordered = values[order]
    right = np.cumsum(truth[order])
    if not len(order) or not right[-1]:
        return np.nan, np.nan
    f1 = 2 * right / (np.arange(1, len(order) + 1) + right[-1])
    f1[:-1][ordered[:-1] == ordered[1:]] = -1  # equal values are on together or not at all
    best = int(f1.argmax())
    return float(ordered[best]), float(f1[best])


def _f1_score(predicted: np.ndarray, truth: np.ndarray) -> float:
    both = np.count_nonzero(predicted & truth)
    total = np.count_nonzero(predicted) + np.count_nonzero(truth)
    return 2 * both / total if total else 0.0


def held_out_f1(values: np.ndarray, order: np.ndarray, truth: np.ndarray, *, high: bool) -> tuple[float, float]:
    """The threshold that is best on the first half of the text, and its F1 on the second."""
    half = len(values) // 2
    threshold, _ = best_threshold(values, order[order < half], truth, high=high)
    if np.isnan(threshold):
        return np.nan, np.nan
    return threshold, _f1_score(switched_on(values[half:], threshold, high=high), truth[half:])


def switched_on(values: np.ndarray, threshold: float, *, high: bool) -> np.ndarray:
    """Where a unit is on."""
    return values >= threshold if high else values <= threshold


def delays(on: np.ndarray, truth: np.ndarray) -> Delay:
    """How soon a unit that is on or off (T,) follows a feature that is."""
    truth = truth.astype(bool)
    edges = np.diff(truth.astype(np.int8), prepend=0, append=0)
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(begins):
        return Delay(np.nan, np.nan, np.nan)
    after = np.append(begins[1:], len(truth))
    first_on, first_off = _next_place(on)[begins], _next_place(~on)[np.minimum(ends, len(on) - 1)]
    caught, freed = first_on < ends, (first_off < after) & (ends < len(truth))
    lag_on, lag_off = (first_on - begins)[caught], (first_off - ends)[freed]
    return Delay(
        float(np.median(lag_on)) if len(lag_on) else np.nan,
        float(np.median(lag_off)) if len(lag_off) else np.nan,
        1 - float(caught.mean()),
    )


def _next_place(true: np.ndarray) -> np.ndarray:
    """The first place from each on where it is true, or the end; (T,)."""
    places = np.where(true, np.arange(len(true)), len(true))
    return np.minimum.accumulate(places[::-1])[::-1]


class SymbolGroups:
    """Groups the places that have the same symbol, so that the groups' means can be taken out."""

    def __init__(self, ids: np.ndarray):
        self.order = np.argsort(ids, kind="stable")
        ordered = ids[self.order]
        self.begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        self.counts = np.diff(np.append(self.begins, len(ids)))

    def without_means(self, rows: np.ndarray) -> np.ndarray:
        """Rows (U, T) with the mean of each group taken from its places."""
        found = np.empty_like(rows)
        for row, out in zip(rows, found, strict=True):
            ordered = row[self.order]
            means = np.add.reduceat(ordered, self.begins, dtype=np.float64) / self.counts
            out[self.order] = ordered - np.repeat(means, self.counts)
        return found


class PartialCorrelation:
    """Correlations of units with each feature, the other features and the current symbol held constant.

    With the symbols' means taken out of both, beta = (F'F)^-1 F'u is the regression of a unit on all features and s2
    what it leaves; the partial correlation with feature j is beta_j / sqrt(beta_j^2 + s2 ((F'F)^-1)_jj)."""

    def __init__(self, features: np.ndarray, groups: SymbolGroups):
        self.groups = groups
        self.features = groups.without_means(np.ascontiguousarray(features.T)).T  # (T, F)
        gram = self.features.T.astype(np.float64) @ self.features
        before = np.square(features, dtype=np.float64).sum(axis=0)
        unique = np.ones(len(gram), dtype=bool)  # what nothing else determines
        for j in range(len(gram)):
            others = np.arange(len(gram)) != j
            explained = gram[j, others] @ np.linalg.pinv(gram[np.ix_(others, others)]) @ gram[others, j]
            unique[j] = gram[j, j] - explained > 1e-4 * max(before[j], 1e-12)
        self.unique = unique
        self.inverse = np.linalg.pinv(gram)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The partial correlations of rows (U, T); (U, F), nan where the others and the symbol determine a feature."""
        left = self.groups.without_means(rows)
        b = left @ self.features  # (U, F)
        beta = b @ self.inverse
        rest = np.maximum(np.square(left, dtype=np.float64).sum(axis=1) - (b * beta).sum(axis=1), 0)  # (U,)
        below = np.sqrt(np.square(beta) + rest[:, None] * np.maximum(np.diag(self.inverse), 0))
        found = np.divide(beta, below, out=np.zeros_like(beta), where=below > 0)
        return np.where(self.unique, found, np.nan)


def shifted(rows: np.ndarray, features: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """What correlations come to by chance: the largest |r| of any row (U, T) with each column (T, F) when the columns
    are turned round by each of the shifts; (shifts, F)."""
    found = np.empty((len(shifts), features.shape[1]))
    for begin in range(0, len(shifts), 10):
        some = shifts[begin : begin + 10]
        turned = np.concatenate([np.roll(features, shift, axis=0) for shift in some], axis=1)
        found[begin : begin + len(some)] = np.abs(pearson(rows, turned)).max(axis=0).reshape(len(some), -1)
    return found


def ngram_predictions(ids: np.ndarray, features: np.ndarray, order: int) -> np.ndarray:
    """Each feature (T, F) predicted from the last `order` symbols: its mean after the same n-gram, drawn towards the
    mean after the shorter one. Each half of the text is predicted by counts of the other. (T, F)"""
    half = len(ids) // 2
    first = np.arange(len(ids)) < half
    found = np.empty(features.shape)
    for seen in (first, ~first):
        found[~seen] = features[seen].mean(axis=0)
    code = np.zeros(len(ids), dtype=np.int64)
    symbols = np.unique(ids, return_inverse=True)[1]
    for back in range(order):
        past = np.concatenate([np.full(back, -1), symbols[: len(ids) - back]])[: len(ids)]
        code = np.unique(code * (symbols.max() + 2) + past + 1, return_inverse=True)[1]
        new = np.empty_like(found)
        for seen in (first, ~first):
            count = np.bincount(code[seen], minlength=code.max() + 1)[code[~seen]]
            for j in range(features.shape[1]):
                sums = np.bincount(code[seen], weights=features[seen, j], minlength=code.max() + 1)[code[~seen]]
                new[~seen, j] = (sums + SHRINK * found[~seen, j]) / (count + SHRINK)
        found = new
    return found


def probe_predictions(rows: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Each feature (T, F) predicted by ridge regression on all standard rows (U, T), with weights learned on the other
    half of the text; (T, F)."""
    half = rows.shape[1] // 2
    found = np.empty(features.shape)
    first, second = slice(0, half), slice(half, None)
    for seen, other in ((first, second), (second, first)):
        x, y = rows[:, seen], features[seen]
        count = max(x.shape[1], 1)
        mean, level = x.mean(axis=1, dtype=np.float64), y.mean(axis=0, dtype=np.float64)
        gram = (x @ x.T).astype(np.float64) / count - np.outer(mean, mean)
        gram[np.diag_indices_from(gram)] += RIDGE
        weights = np.linalg.solve(gram, (x @ y).astype(np.float64) / count - np.outer(mean, level))
        found[other] = rows[:, other].T @ weights.astype(np.float32) + (level - mean @ weights)
    return found

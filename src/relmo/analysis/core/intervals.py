"""How sure a share, or the difference of two shares, is: 95% intervals."""

import math
from typing import NamedTuple

import numpy as np

Z = 1.959964  # of the normal distribution, 95% lies so near to the mean
RESAMPLES = 10_000
AT_ONCE = 1 << 22  # numbers drawn at a time


class Interval(NamedTuple):
    """A value and the ends of its 95% interval."""

    value: float
    low: float
    high: float


def wilson(points: float, count: int) -> Interval:
    """The share of `points` in `count` trials, with Wilson's score interval, which is good near 0 and 1 too.

    Wilson 1927, Probable inference, the law of succession, and statistical inference"""
    if count == 0:
        return Interval(math.nan, 0.0, 1.0)
    p, z2 = points / count, Z * Z
    centre = (p + z2 / (2 * count)) / (1 + z2 / count)
    half = Z * math.sqrt(p * (1 - p) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    return Interval(p, max(0.0, centre - half), min(1.0, centre + half))


def bootstrap_difference(first: np.ndarray, second: np.ndarray, groups: np.ndarray, *, seed: int = 0) -> Interval:
    """mean(first) - mean(second) of the same items (N,), with the interval that holds 95% of it when whole groups are
    drawn anew with replacement; items of a group (N,), say a sentence, are not independent of each other."""
    _, group = np.unique(groups, return_inverse=True)
    sums = np.bincount(group, weights=first.astype(np.float64) - second)  # (G,)
    sizes = np.bincount(group).astype(np.float64)
    generator, found = np.random.default_rng(seed), []
    for begin in range(0, RESAMPLES, step := max(1, AT_ONCE // len(sums))):
        drawn = generator.integers(len(sums), size=(min(step, RESAMPLES - begin), len(sums)))
        found.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    low, high = np.quantile(np.concatenate(found), (0.025, 0.975))
    return Interval(float(sums.sum() / sizes.sum()), float(low), float(high))

"""Decoding of a binary label from units at each word of sentences of equal length, with generalisation across time.

    decoded = decode(traced, plural, groups=subjects)
    decoded.area[u, t], decoded.together[train_position, test_position]

- The sign of a unit, or the weights of all units, are learned on the sentences of every second group (say, every second
  noun) and tested on the others; then the halves are swapped.
- A unit's sign is learned at the first word. An area above 1/2 at a later word means that the unit still carries the
  label; an area near 0 that it has reversed: it follows the noun in between.

    King & Dehaene 2014, Characterizing the dynamics of mental representations;  Lakretz et al. 2019, The emergence of
    number and syntax units in LSTM language models
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relmo.analysis.core.causal import Unit, list_units, stack_unit_rows
from relmo.analysis.core.effects import compute_auc, rank_values
from relmo.analysis.core.trace import Trace
from relmo.errors import SettingError

RIDGE = 0.1  # penalty on the squared weights of all units, relative to the mean of the kernel's diagonal
HIGH_AREA, LOW_AREA = 0.9, 0.1  # areas of a unit that carries the label, and of one that has reversed


@dataclass(frozen=True)
class Decoding:
    """Areas under the ROC curve of units.

    area            each unit at each position, with its sign at the first; (U, T)
    high            whether the unit is larger for a positive label at the first position; (U,)
    together        all units, trained at a position (row) and tested at another; (T, T)
    generalisation  for some units the accuracy with the threshold of a position (row) at another; (T, T)
    """

    units: list[Unit]
    area: np.ndarray
    high: np.ndarray
    together: np.ndarray
    generalisation: dict[Unit, np.ndarray] = field(default_factory=dict)

    @property
    def min_area(self) -> np.ndarray:
        """The smallest area of each unit over all positions; (U,)."""
        return self.area.min(axis=1)

    def stable_units(self, count: int) -> list[Unit]:
        """Return units that carry the label at every position, best first."""
        scores = self.min_area + 1e-3 * self.area.mean(axis=1)
        return self._rank(np.where(self.min_area >= HIGH_AREA, scores, -1), count)

    def reversing_units(self, count: int) -> list[Unit]:
        """Return units that carry the label at the first position and the opposite at the last, best first."""
        reverses = (self.area[:, 0] >= HIGH_AREA) & (self.area[:, -1] <= LOW_AREA)
        return self._rank(np.where(reverses, self.area[:, 0] - self.area[:, -1], -1), count)

    def best_units(self, count: int) -> list[Unit]:
        """Return units by their smallest area, largest first."""
        return self._rank(self.min_area, count)

    def _rank(self, scores: np.ndarray, count: int) -> list[Unit]:
        return [self.units[u] for u in np.argsort(-scores, kind="stable")[:count] if scores[u] >= 0]


def decode(
    traced: Trace,
    labels: np.ndarray,
    *,
    groups: Sequence[str],
    tested: np.ndarray | None = None,
    states: Sequence[str] | None = None,
    start: int = 0,
    num_matrices: int = 4,
) -> Decoding:
    """Decode labels (N,) of bool from the trace of N texts of equal length.

    groups          a name for each text, such as its subject: a group is either in the training or in the test half
    tested          (N,) texts that are tested; all by default
    states          states whose units are used; by default h and, for an LSTM, c
    start           first position
    num_matrices    number of stable and of reversing units whose generalisation matrix is computed
    """
    count = len(labels)
    if len(traced.starts) != count or len(traced) % count or np.ptp(np.diff(traced.starts, append=len(traced))):
        raise SettingError(f"{count} labels need as many texts of one length, not {len(traced.starts)} texts")
    names = [name for name in traced.carried if name in traced.states] if states is None else list(states)
    values = stack_unit_rows(traced, names).reshape(-1, count, len(traced) // count)[:, :, start:]  # (U, N, T)
    tested = np.ones(count, dtype=bool) if tested is None else tested
    half = split_halves(groups, labels)
    units, folds = list_units(traced, names), [(half == side, (half != side) & tested) for side in (0, 1)]
    if not all(0 < labels[part].sum() < part.sum() for fold in folds for part in fold):
        raise SettingError("each half of the groups needs texts with either label; give more texts")
    area, signs = np.zeros((len(units), values.shape[2])), []
    for train, test in folds:
        sign = _area_at(values, labels, train, 0) >= 0.5
        areas = np.stack([_area_at(values, labels, test, position) for position in range(values.shape[2])], axis=1)
        area += np.where(sign[:, None], areas, 1 - areas) / 2
        signs.append(sign)
    together = np.mean([_decode_jointly(values, labels, train, test) for train, test in folds], axis=0)
    decoding = Decoding(units, area, signs[0], together)
    selected = decoding.stable_units(num_matrices) + decoding.reversing_units(num_matrices) + decoding.best_units(1)
    for unit in dict.fromkeys(selected):
        row = values[units.index(unit)]
        matrices = [_threshold_accuracy(row, labels, train, test) for train, test in folds]
        decoding.generalisation[unit] = np.mean(matrices, axis=0)
    return decoding


def split_halves(groups: Sequence[str], labels: np.ndarray) -> np.ndarray:
    """Return 0 or 1 for each text: 1 for every second group of either label, in alphabetical order. If a label has a
    single group, every second text gets 1."""
    half = np.zeros(len(groups), dtype=np.int64)
    for label in (False, True):
        indices = np.flatnonzero(labels == label).tolist()
        names = sorted({groups[index] for index in indices})
        if len(names) > 1:
            half_by_name = {name: i % 2 for i, name in enumerate(names)}
            half[indices] = [half_by_name[groups[index]] for index in indices]
        else:
            half[indices] = np.arange(len(indices)) % 2
    return half


def _area_at(values: np.ndarray, labels: np.ndarray, texts: np.ndarray, position: int) -> np.ndarray:
    """Return the probability that a unit (U, N, T) is larger for a positive than for a negative label; (U,)."""
    ranks = np.stack([rank_values(row).ranks for row in values[:, texts, position]])
    return compute_auc(ranks, labels[texts, None].astype(np.float32))[:, 0]


def _decode_jointly(values: np.ndarray, labels: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the areas of a ridge regression on all units (U, N, T), fitted at one position, tested at each; (T, T).

    With fewer texts than units: w = X' (X X' + lambda I)^-1 y"""
    positions = range(values.shape[2])
    areas, y = np.zeros((len(positions), len(positions))), np.where(labels[train], 1.0, -1.0)
    y -= y.mean()
    for position in positions:
        x = values[:, train, position].T.astype(np.float64)  # (n, U)
        mean, scale = x.mean(axis=0), x.std(axis=0)
        scale = np.where(scale > 1e-6 * (1 + np.abs(mean)), scale, np.inf)  # constant units get weight 0
        x = (x - mean) / scale
        kernel = x @ x.T
        kernel[np.diag_indices_from(kernel)] += RIDGE * max(np.trace(kernel) / len(x), 1e-12)
        weights = x.T @ np.linalg.solve(kernel, y) / scale  # (U,)
        scores = np.tensordot(weights, values[:, test].astype(np.float64), axes=1)  # (n, T)
        areas[position] = _area_at(scores.T[:, :, None], labels[test], np.ones(len(scores), dtype=bool), 0)
    return areas


def _threshold_accuracy(row: np.ndarray, labels: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the accuracy of one unit (N, T) with the threshold of one position, half-way between its two class means,
    at each position; (T, T)."""
    positive, negative = (row[train & (labels == label)].mean(axis=0) for label in (True, False))  # (T,)
    threshold, sign = (positive + negative) / 2, np.where(positive >= negative, 1.0, -1.0)
    predictions = (row[None, test] - threshold[:, None, None]) * sign[:, None, None] > 0  # (T, n, T)
    return (predictions == labels[test][None, :, None]).mean(axis=1)

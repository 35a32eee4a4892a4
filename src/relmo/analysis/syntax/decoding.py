"""What units tell about a yes-or-no question at each word of many sentences of one length.

What is learned at one word is also asked at the others: generalisation across time.

    decoded = decode(traced, plural, groups=subjects)
    decoded.area[u, t], decoded.together[learnt_at, asked_at]

- The sign of a unit, or the weights of all units, are learned on the sentences of every second group, say of every
  second noun. They are asked on the other sentences. Then the halves change places.
- A unit's sign is learned at the first word and kept. An area above 1/2 at a later word means that the unit still says
  the same. An area near 0 means that it has come to say the opposite: it follows the noun that stands between.

    King & Dehaene 2014, Characterizing the dynamics of mental representations;  Lakretz et al. 2019, The emergence of
    number and syntax units in LSTM language models
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relmo.analysis.core.causal import Unit, rows_of, units_of
from relmo.analysis.core.effects import areas, ranked
from relmo.analysis.core.trace import Trace
from relmo.errors import SettingError

RIDGE = 0.1  # of the squared weights of all units, in variances of the units' sum
LARGE, SMALL = 0.9, 0.1  # areas of a unit that tells, and of one that has turned round


@dataclass(frozen=True)
class Decoding:
    """What units tell, as areas under the ROC curve.

    area            each unit at each place, with the sign that it has at the first; (U, T)
    own             each unit at the last place, with the sign that it has there; (U,)
    high            whether the unit is larger where the answer is yes, at the first place; (U,)
    together        all units at once, learned at a place (row) and asked at another; (T, T)
    generalisation  for some units the share of right answers with the threshold of a place (row) at another; (T, T)
    """

    units: list[Unit]
    area: np.ndarray
    own: np.ndarray
    high: np.ndarray
    together: np.ndarray
    generalisation: dict[Unit, np.ndarray] = field(default_factory=dict)

    @property
    def least(self) -> np.ndarray:
        """The smallest area of each unit over all places, which shows whether it keeps what it tells; (U,)."""
        return self.area.min(axis=1)

    def keeping(self, count: int, large: float = LARGE) -> list[Unit]:
        """Units that tell at every place, the surest first."""
        return self._first(np.where(self.least >= large, self.least + 1e-3 * self.area.mean(axis=1), -1), count)

    def turning(self, count: int, large: float = LARGE, small: float = SMALL) -> list[Unit]:
        """Units that tell at the first place and say the opposite at the last, the surest first."""
        turned = (self.area[:, 0] >= large) & (self.area[:, -1] <= small)
        return self._first(np.where(turned, self.area[:, 0] - self.area[:, -1], -1), count)

    def best(self, count: int) -> list[Unit]:
        """Units by their smallest area, largest first, whatever it is."""
        return self._first(self.least, count)

    def of(self, unit: Unit) -> np.ndarray:
        """A unit's area at each place; (T,)."""
        return self.area[self.units.index(unit)]

    def _first(self, scores: np.ndarray, count: int) -> list[Unit]:
        return [self.units[u] for u in np.argsort(-scores, kind="stable")[:count] if scores[u] >= 0]


def decode(
    traced: Trace,
    answer: np.ndarray,
    *,
    groups: Sequence[str],
    tested: np.ndarray | None = None,
    states: Sequence[str] | None = None,
    first: int = 0,
    matrices: int = 4,
) -> Decoding:
    """The answers (N,) of bool, read off the trace of N texts of one length.

    groups      a name for each text, such as its subject: the texts of a group are learned from or asked together
    tested      (N,) which texts are asked; all where it is not given
    states      whose units: h and, of an LSTM, c
    first       the place to begin at
    matrices    for how many units that keep what they tell, and that turn round, generalisation is kept
    """
    count = len(answer)
    if len(traced.starts) != count or len(traced) % count or np.ptp(np.diff(traced.starts, append=len(traced))):
        raise SettingError(f"{count} answers need as many texts of one length, not {len(traced.starts)} texts")
    names = [name for name in traced.carried if name in traced.states] if states is None else list(states)
    values = rows_of(traced, names).reshape(-1, count, len(traced) // count)[:, :, first:]  # (U, N, T)
    asked = np.ones(count, dtype=bool) if tested is None else tested
    half = halves(groups, answer)
    units, sides = units_of(traced, names), [(half == side, (half != side) & asked) for side in (0, 1)]
    if not all(0 < answer[part].sum() < part.sum() for pair in sides for part in pair):
        raise SettingError("each half of the groups needs texts with either answer; give more")
    found, own, signs = np.zeros((len(units), values.shape[2])), np.zeros(len(units)), []
    for learn, ask in sides:
        sign, late = (_area_at(values, answer, learn, place) >= 0.5 for place in (0, -1))
        here = np.stack([_area_at(values, answer, ask, place) for place in range(values.shape[2])], axis=1)
        found += np.where(sign[:, None], here, 1 - here) / 2
        own += np.where(late, here[:, -1], 1 - here[:, -1]) / 2
        signs.append(sign)
    together = np.mean([_together(values, answer, learn, ask) for learn, ask in sides], axis=0)
    made = Decoding(units, found, own, signs[0], together)
    for unit in dict.fromkeys(made.keeping(matrices) + made.turning(matrices) + made.best(1)):
        row = values[units.index(unit)]
        made.generalisation[unit] = np.mean([_thresholds(row, answer, learn, ask) for learn, ask in sides], axis=0)
    return made


def halves(groups: Sequence[str], answer: np.ndarray) -> np.ndarray:
    """0 or 1 for each text: 1 for every second group of either answer, in the order of their names. Where an answer has
    a single group, 1 for every second text."""
    found = np.zeros(len(groups), dtype=np.int64)
    for side in (False, True):
        places = np.flatnonzero(answer == side).tolist()
        names = sorted({groups[place] for place in places})
        if len(names) > 1:
            number = {name: i % 2 for i, name in enumerate(names)}
            found[places] = [number[groups[place]] for place in places]
        else:
            found[places] = np.arange(len(places)) % 2
    return found


def _area_at(values: np.ndarray, answer: np.ndarray, where: np.ndarray, place: int) -> np.ndarray:
    """The probability that a unit (U, N, T), at a place of some texts, is larger at a yes than at a no; (U,)."""
    ranks = np.stack([ranked(row).ranks for row in values[:, where, place]])
    return areas(ranks, answer[where, None].astype(np.float32))[:, 0]


def _together(values: np.ndarray, answer: np.ndarray, learn: np.ndarray, ask: np.ndarray) -> np.ndarray:
    """Areas of a ridge regression of the answers on all units (U, N, T), fitted at one place and asked at each; (T, T).

    With fewer texts than units: w = X' (X X' + lambda I)^-1 y"""
    places = range(values.shape[2])
    found, y = np.zeros((len(places), len(places))), np.where(answer[learn], 1.0, -1.0)
    y -= y.mean()
    for at in places:
        x = values[:, learn, at].T.astype(np.float64)  # (n, U)
        mean, scale = x.mean(axis=0), x.std(axis=0)
        scale = np.where(scale > 1e-6 * (1 + np.abs(mean)), scale, np.inf)  # what never moves says nothing
        x = (x - mean) / scale
        kernel = x @ x.T
        kernel[np.diag_indices_from(kernel)] += RIDGE * max(np.trace(kernel) / len(x), 1e-12)
        weights = x.T @ np.linalg.solve(kernel, y) / scale  # (U,)
        scores = np.tensordot(weights, values[:, ask].astype(np.float64), axes=1)  # (n, T)
        found[at] = _area_at(scores.T[:, :, None], answer[ask], np.ones(len(scores), dtype=bool), 0)
    return found


def _thresholds(row: np.ndarray, answer: np.ndarray, learn: np.ndarray, ask: np.ndarray) -> np.ndarray:
    """The share of right answers of one unit (N, T) with the threshold of one place, half way between its two means
    there, asked at each place; (T, T)."""
    yes, no = (row[learn & (answer == side)].mean(axis=0) for side in (True, False))  # (T,)
    middle, sign = (yes + no) / 2, np.where(yes >= no, 1.0, -1.0)
    said = (row[None, ask] - middle[:, None, None]) * sign[:, None, None] > 0  # (T, n, T)
    return (said == answer[ask][None, :, None]).mean(axis=1)

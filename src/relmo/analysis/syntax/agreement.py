"""Agreement and other minimal pairs: how often a model prefers the right form, by condition, and which units it needs.

`gate_traces` shows what the gates of these units do.

    report = agreement(model, pairs)                              accuracy by condition, with 95% intervals and controls
    found = sweep(model, pairs)                                   every unit off by itself
    ablate_together(model, pairs, units)                          a set of units off, against random sets of its size

Easy ways to fool yourself, and what is done about them:
- Of hundreds of units one always costs most. So the unit is chosen on every second pair, and its cost and its rank
  among all units are taken on the other pairs.
- A set of units off costs something whichever it is. So it is compared with random sets of the same size from the same
  layers.
- Off means that everything that reads the unit reads 0. A network has never seen that; the unit's mean leaves it nearer
  to what it knows.
- The more frequent form wins without any grammar. So the report shows how often the more frequent form is right, and
  how often the same network untrained is.

    Linzen et al. 2016;  Gulordava et al. 2018, Colorless green recurrent networks dream hierarchically;  Lakretz et al.
    2019, The emergence of number and syntax units in LSTM language models;  Warstadt et al. 2020, BLiMP
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.intervals import Interval, bootstrap_difference
from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.show import Table, colours, figure, picture
from relmo.analysis.core.trace import trace
from relmo.analysis.core.untrained import untrained
from relmo.analysis.syntax.minimal_pairs import Accuracy, accuracy, points_of
from relmo.analysis.syntax.pair_scores import PairPlan, Reader, gaps, gaps_without, plan_of
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.settings.arguments import Progress
from relmo.text.minimal_pairs import MinimalPair

How = Literal["zero", "mean"]
ALL = "all"
PER_CONDITION = 100  # pairs of a condition that a sweep takes
DRAWS = 100  # random sets of units
SHOWN = 40  # conditions, or units, that a picture shows


@dataclass(frozen=True)
class Condition:
    """How many of a condition's pairs are preferred rightly: by the model, by the same network untrained, and by taking
    the more frequent of two words. None where a control was not taken, or makes no sense."""

    name: str
    model: Accuracy
    untrained: Interval | None = None
    frequency: Interval | None = None

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, shares in percent."""
        others = {"untrained": self.untrained, "more_frequent_form": self.frequency}
        found = {name: None if each is None else 100 * each.value for name, each in others.items()}
        return {"condition": self.name} | self.model.summary() | found


@dataclass(frozen=True)
class AgreementReport:
    """Accuracy by condition, that of all pairs first."""

    conditions: list[Condition]

    def of(self, name: str = ALL) -> Condition:
        """A condition by its name."""
        return next(condition for condition in self.conditions if condition.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, in plain numbers."""
        return {"conditions": [condition.as_dict() for condition in self.conditions]}

    def table(self) -> Table:
        """A row for each condition, in percent."""
        columns = ["condition", "pairs", "right", "95% interval", "known words", "untrained", "more frequent form"]
        rows = []
        for each in self.conditions:
            share, known = each.model.share, each.model.known
            rows.append(
                [
                    each.name,
                    f"{each.model.pairs:,}",
                    figure(100 * share.value, 1),
                    f"{100 * share.low:.1f} to {100 * share.high:.1f}",
                    f"{figure(100 * known.value, 1)} ({each.model.known_pairs:,})" if each.model.known_pairs else "",
                    "" if each.untrained is None else figure(100 * each.untrained.value, 1),
                    "" if each.frequency is None else figure(100 * each.frequency.value, 1),
                ]
            )
        notes = ["percent of pairs; a tie is half a point; known words: pairs whose words that differ are all known"]
        return Table(columns, rows, "minimal pairs, the right one preferred", notes)

    def _repr_html_(self) -> str:
        return self.table().html()

    def plot(self, path: str | Path) -> None:
        """A bar for each condition with its interval, as a picture."""
        shown = self.conditions[:SHOWN]
        with picture(path, height=1 + 0.28 * len(shown)) as drawn:
            axes = drawn.subplots()
            places = np.arange(len(shown))[::-1]
            values = np.array([100 * np.array(each.model.share) for each in shown])  # (C, 3)
            axes.barh(places, values[:, 0], color="tab:blue", height=0.6)
            errors = np.abs(values[:, 1:].T - values[:, 0])
            axes.errorbar(values[:, 0], places, xerr=errors, fmt="none", ecolor="black", linewidth=1)
            for control, mark in (("untrained", "x"), ("frequency", "o")):
                found = [
                    (100 * getattr(e, control).value, p)
                    for e, p in zip(shown, places, strict=True)
                    if getattr(e, control)
                ]
                if found:
                    axes.plot(
                        *zip(*found, strict=True), mark, color="tab:orange", label=control, markerfacecolor="none"
                    )
            axes.set_yticks(places, [each.name for each in shown])
            axes.axvline(50, color="gray", linewidth=0.8, linestyle=":")
            axes.set_xlim(0, 100)
            axes.set_xlabel("pairs with the right one preferred, %")
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8)


def agreement(
    model: LanguageModel | BiLM,
    pairs: Sequence[MinimalPair],
    *,
    control: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> AgreementReport:
    """Accuracy by condition, in the order of the pairs. With `control` the same network untrained is asked too."""
    plan = plan_of(model, pairs)
    own, other = split_progress(progress, [1, 1 if control else 0])
    scores = gaps(model, plan, own)
    own(1.0)
    fresh = None
    if control and (isinstance(model, BiLM) or isinstance(model.network, RecurrentLM)):
        fresh = gaps(untrained(model, seed), plan, other)
    other(1.0)
    frequency = _frequency_gaps(model, plan)
    found = []
    for name, where in _conditions_of(pairs).items():
        kept = plan.known[where]
        others = (None if each is None else accuracy(each[where], kept).share for each in (fresh, frequency))
        found.append(Condition(name, accuracy(scores[where], kept), *others))
    return AgreementReport(found)


def places_by_condition(pairs: Sequence[MinimalPair]) -> dict[str, list[int]]:
    """The places of each condition's pairs, in the order of the pairs."""
    found: dict[str, list[int]] = {}
    for place, pair in enumerate(pairs):
        found.setdefault(pair.condition, []).append(place)
    return found


def _conditions_of(pairs: Sequence[MinimalPair]) -> dict[str, np.ndarray]:
    """The places of each condition's pairs. Where there are several conditions, all pairs come first as one more."""
    parts = {name: np.array(places) for name, places in places_by_condition(pairs).items()}
    return parts if len(parts) == 1 else {ALL: np.arange(len(pairs))} | parts


def _frequency_gaps(model: LanguageModel | BiLM, plan: PairPlan) -> np.ndarray | None:
    """How many places the right word stands before the wrong one in the vocabulary, which is sorted by falling
    frequency. Unknown words stand at its end. None where more than single words are compared."""
    if not plan.single or model.vocabulary is None:
        return None
    ranks = np.where(plan.target == model.vocabulary.unknown, len(model.vocabulary), plan.target)
    return -np.bincount(plan.item, weights=plan.sign * ranks, minlength=len(plan))


@dataclass(frozen=True)
class Sweep:
    """What is right, in percent, with each unit off by itself.

    base        with nothing off; (C,)
    accuracy    with each unit off; (U, C)
    margin      how much less the right form is preferred on average, in nats; (U, C)
    chosen      for each condition the unit that costs most on every second pair
    held_out    points that this unit costs on the other pairs; (C,)
    interval    the 95% interval of these points, by drawing the pairs anew; (C, 2)
    rank        how many units cost as much there or more, itself counted; (C,)
    """

    how: str
    units: list[Unit]
    conditions: list[str]
    pairs: list[int]
    base: np.ndarray
    accuracy: np.ndarray
    margin: np.ndarray
    chosen: list[Unit]
    held_out: np.ndarray
    interval: np.ndarray
    rank: np.ndarray

    @property
    def drops(self) -> np.ndarray:
        """Points that each unit costs; (U, C)."""
        return self.base - self.accuracy

    def top(self, condition: str, count: int = 5) -> list[tuple[Unit, float]]:
        """The units that cost most in a condition, on all its pairs, with the points they cost."""
        column = self.drops[:, self.conditions.index(condition)]
        return [(self.units[u], float(column[u])) for u in np.argsort(-column, kind="stable")[:count]]

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, in plain numbers."""
        return {
            "how": self.how,
            "units": [str(unit) for unit in self.units],
            "conditions": [
                {
                    "condition": name,
                    "pairs": self.pairs[c],
                    "accuracy": float(self.base[c]),
                    "unit": str(self.chosen[c]),
                    "accuracy_without": float(self.accuracy[self.units.index(self.chosen[c]), c]),
                    "held_out_drop": float(self.held_out[c]),
                    "held_out_interval": self.interval[c].tolist(),
                    "held_out_rank": int(self.rank[c]),
                    "median_drop": float(np.median(self.drops[:, c])),
                }
                for c, name in enumerate(self.conditions)
            ],
            "accuracy": self.accuracy.tolist(),
            "margin": self.margin.tolist(),
        }

    def table(self) -> Table:
        """The unit that costs most, for each condition."""
        columns = [
            "condition",
            "pairs",
            "full",
            "unit",
            "without it",
            "held-out cost",
            "as much or more",
            "median unit's",
        ]
        rows = []
        for c, name in enumerate(self.conditions):
            unit = self.chosen[c]
            without = self.accuracy[self.units.index(unit), c]
            row = [name, str(self.pairs[c]), figure(float(self.base[c]), 1), str(unit), figure(float(without), 1)]
            low, high = (figure(float(end), 1, signed=True) for end in self.interval[c])
            cost = f"{figure(float(self.held_out[c]), 1, signed=True)} ({low} to {high})"
            row += [cost, f"{self.rank[c]} of {len(self.units)}"]
            rows.append([*row, figure(float(np.median(self.drops[:, c])), 1, signed=True)])
        notes = [
            f"percent right; each of {len(self.units)} units by itself set to {self.how}",
            "the unit costs most on every second pair; what it costs, with its 95% interval, and how many "
            "cost as much, is of the others",
        ]
        return Table(columns, rows, "every unit off by itself", notes)

    def _repr_html_(self) -> str:
        return self.table().html()

    def plot(self, path: str | Path) -> None:
        """The units that cost most anywhere, by condition, as a picture."""
        most = np.argsort(-self.drops.max(axis=1), kind="stable")[:SHOWN]
        shown = self.drops[most][:, :SHOWN].T  # (C, U)
        with picture(path, width=2.5 + 0.25 * len(most), height=1.5 + 0.3 * len(shown)) as drawn:
            axes = drawn.subplots()
            end = max(1.0, float(np.abs(shown).max()))
            image = axes.imshow(shown, cmap=colours(), vmin=-end, vmax=end, aspect="auto")
            axes.set_xticks(range(len(most)), [str(self.units[u]) for u in most], rotation=90, fontsize=7)
            axes.set_yticks(range(len(shown)), self.conditions[: len(shown)], fontsize=8)
            drawn.colorbar(image, label="points lost")


def sweep(
    model: LanguageModel | BiLM,
    pairs: Sequence[MinimalPair],
    *,
    units: Sequence[Unit] | None = None,
    state: str = "h",
    how: How = "zero",
    per_condition: int | None = PER_CONDITION,
    seed: int = 0,
    progress: Progress | None = None,
) -> Sweep:
    """Sets every unit (or these `units`) off by itself, and sees what is then right, by condition.

    state            whose units: h, what others read, or c, an LSTM's memory, which is larger in a projected layer
    how              off is "zero", or the unit's "mean" over the pairs
    per_condition    how many pairs of each condition are drawn; None takes all
    """
    kept = drawn_pairs(pairs, per_condition, seed)
    plan = plan_of(model, kept)
    chosen = _all_units(model, state) if units is None else list(units)
    if not chosen:
        raise SettingError("there are no units to set; give at least one")
    base = gaps(model, plan)
    at = [[value] for value in _off_values(model, plan, chosen, how)]
    scores = gaps_without(model, plan, [[unit] for unit in chosen], values=at, progress=progress)
    parts = _conditions_of(kept)
    points, plain = points_of(scores), points_of(base)
    best, held_out, intervals, rank = [], [], [], []
    for where in parts.values():
        first, second = where[::2], where[1::2] if len(where) > 1 else where
        unit = _most_needed(points[:, first].mean(axis=1), scores[:, first].mean(axis=1))
        costs = plain[second].mean() - points[:, second].mean(axis=1)
        best.append(chosen[unit])
        held_out.append(100 * costs[unit])
        sure = bootstrap_difference(plain[second], points[unit, second], np.arange(len(second)))
        intervals.append([100 * sure.low, 100 * sure.high])
        rank.append(int(np.count_nonzero(costs >= costs[unit])))
    return Sweep(
        how,
        chosen,
        list(parts),
        [len(where) for where in parts.values()],
        np.array([100 * plain[where].mean() for where in parts.values()]),
        np.stack([100 * points[:, where].mean(axis=1) for where in parts.values()], axis=1),
        np.stack([base[where].mean() - scores[:, where].mean(axis=1) for where in parts.values()], axis=1),
        best,
        np.array(held_out),
        np.array(intervals),
        np.array(rank),
    )


def _most_needed(share: np.ndarray, margin: np.ndarray) -> int:
    """The unit without which least is right; of equal ones, the one without which the right form is preferred least."""
    return int(np.lexsort((margin, share))[0])


def drawn_pairs(pairs: Sequence[MinimalPair], most: int | None, seed: int) -> list[MinimalPair]:
    """Draws at most so many pairs of each condition; they stay in their order."""
    if most is None:
        return list(pairs)
    if most < 1:
        raise SettingError(f"at least one pair of each condition is needed, not {most}")
    generator = np.random.default_rng(seed)
    kept = [
        place
        for places in places_by_condition(pairs).values()
        for place in (generator.choice(places, most, replace=False) if len(places) > most else places)
    ]
    return [pairs[place] for place in sorted(kept)]


def _all_units(model: LanguageModel | BiLM, state: str) -> list[Unit]:
    """The units of a state of every layer, of the forward direction."""
    layers = Reader(model).stack.layers
    if state not in layers[0].states:
        raise SettingError(f"state {state!r}: a layer of this network carries {' and '.join(layers[0].states)}")
    return [Unit(state, depth, number) for depth, layer in enumerate(layers) for number in range(layer.sizes[state])]


def _off_values(model: LanguageModel | BiLM, plan: PairPlan, units: Sequence[Unit], how: str) -> list[float]:
    """The value of each unit when it is off: 0, or its mean over what is read of the pairs."""
    if how not in ("zero", "mean"):
        raise SettingError(f"units can be set to 'zero' or to their 'mean', not {how!r}")
    if how == "zero":
        return [0.0] * len(units)
    texts = [reading for reading in plan.readings if reading]
    if not texts:
        raise SettingError("how='mean': nothing stands before the words that are compared; take 'zero'")
    traced = trace(model, texts, keep=sorted({unit.state for unit in units})).forward
    means = {key: traced.mean(*key) for key in {(unit.state, unit.layer) for unit in units}}
    return [float(means[unit.state, unit.layer][unit.number]) for unit in units]


@dataclass(frozen=True)
class Together:
    """What is right, in percent: with nothing off (C,), with a set of units off (C,), and with random sets of the same
    size off (R, C).

    p    how often a random set costs as much or more, itself counted; (C,)
    """

    units: list[Unit]
    conditions: list[str]
    pairs: list[int]
    base: np.ndarray
    accuracy: np.ndarray
    random: np.ndarray
    p: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        worse = np.count_nonzero(self.random <= self.accuracy, axis=0)
        object.__setattr__(self, "p", (1 + worse) / (1 + len(self.random)))

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, in plain numbers."""
        return asdict(self) | {
            "units": [str(unit) for unit in self.units],
            **{name: getattr(self, name).tolist() for name in ("base", "accuracy", "random", "p")},
        }

    def table(self) -> Table:
        """A row for each condition."""
        low, high = np.quantile(self.random, (0.05, 0.95), axis=0)
        rows = [
            [
                name,
                str(self.pairs[c]),
                figure(float(self.base[c]), 1),
                figure(float(self.accuracy[c]), 1),
                f"{self.random[:, c].mean():.1f} ({low[c]:.1f} to {high[c]:.1f})",
                figure(float(self.p[c])),
            ]
            for c, name in enumerate(self.conditions)
        ]
        names = ", ".join(map(str, self.units))
        notes = [f"off together: {names}", f"random: {len(self.random)} sets of as many units of the same layers"]
        return Table(
            ["condition", "pairs", "full", "without", "random sets (90%)", "p"], rows, "units off together", notes
        )

    def _repr_html_(self) -> str:
        return self.table().html()


def ablate_together(
    model: LanguageModel | BiLM,
    pairs: Sequence[MinimalPair],
    units: Sequence[Unit],
    *,
    how: How = "zero",
    draws: int = DRAWS,
    per_condition: int | None = PER_CONDITION,
    seed: int = 0,
    progress: Progress | None = None,
) -> Together:
    """Sets units off at once, and compares with random sets of other units, as many from each layer."""
    if not units or len(set(units)) < len(units):
        raise SettingError("give one unit or several, each once")
    if draws < 1:
        raise SettingError(f"at least one random set is needed, not {draws}")
    kept = drawn_pairs(pairs, per_condition, seed)
    plan = plan_of(model, kept)
    generator = np.random.default_rng(seed)
    sets = [list(units), *(random_set(model, units, generator) for _ in range(draws))]
    values = [_off_values(model, plan, each, how) for each in sets]
    points = points_of(gaps_without(model, plan, sets, values=values, progress=progress))
    plain = points_of(gaps(model, plan))
    parts = _conditions_of(kept)
    shares = np.stack([100 * points[:, where].mean(axis=1) for where in parts.values()], axis=1)
    base = np.array([100 * plain[where].mean() for where in parts.values()])
    return Together(list(units), list(parts), [len(w) for w in parts.values()], base, shares[0], shares[1:])


def random_set(model: LanguageModel | BiLM, units: Sequence[Unit], generator: np.random.Generator) -> list[Unit]:
    """As many units of the same states and layers; where there are enough, none of them is among these."""
    layers, found = Reader(model).stack.layers, []
    for (state, layer), count in Counter((unit.state, unit.layer) for unit in units).items():
        if not 0 <= layer < len(layers) or state not in layers[layer].states:
            raise SettingError(f"unit {units[0]}: the network has no {state} of layer {layer}")
        size = layers[layer].sizes[state]
        others = sorted(set(range(size)) - {u.number for u in units if (u.state, u.layer) == (state, layer)})
        pool = others if len(others) >= count else list(range(size))
        found += [Unit(state, layer, int(number)) for number in generator.choice(pool, count, replace=False)]
    return found

"""Agreement and other minimal pairs: accuracy by condition, and ablation of single units and of sets (Linzen et al.
2016;  Gulordava et al. 2018, Colorless green recurrent networks dream hierarchically;  Lakretz et al. 2019, The
emergence of number and syntax units in LSTM language models;  Warstadt et al. 2020, BLiMP)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.effects import Interval, bootstrap_difference
from relmo.analysis.core.show import Report, Table, format_number, make_colormap, save_figure, split_progress, to_plain
from relmo.analysis.core.trace import trace
from relmo.analysis.syntax import pair_scores
from relmo.analysis.syntax.pair_scores import Accuracy, Reader, accuracy, plan_pairs, to_points
from relmo.errors import SettingError
from relmo.models.sequence_model import SequenceModel, untrained
from relmo.settings.fields import Progress
from relmo.text.minimal_pairs import MinimalPair

How = Literal["zero", "mean"]
ALL = "all"
PER_CONDITION = 100  # pairs of a condition in a sweep
DRAWS = 100  # random sets of units
MAX_PLOTTED = 40  # conditions, or units, in a plot


@dataclass(frozen=True)
class Condition:
    """Accuracy of the model in a condition, of the same network untrained, and of the more frequent word, if known."""

    name: str
    model: Accuracy
    untrained: Interval | None = None
    frequency: Interval | None = None


@dataclass(frozen=True)
class AgreementReport(Report):
    """Accuracy by condition; the condition of all pairs comes first."""

    conditions: list[Condition]

    def of(self, name: str = ALL) -> Condition:
        """Return a condition by name."""
        return next(condition for condition in self.conditions if condition.name == name)

    def as_dict(self) -> dict[str, Any]:
        rows = []
        for condition in self.conditions:
            controls = {"untrained": condition.untrained, "more_frequent_form": condition.frequency}
            shares = {name: None if share is None else 100 * share.value for name, share in controls.items()}
            rows.append({"condition": condition.name} | condition.model.summary() | shares)
        return {"conditions": rows}

    def table(self) -> Table:
        columns = ["condition", "pairs", "right", "95% interval", "known words", "untrained", "more frequent form"]
        rows = [
            format_accuracy(row["condition"], row, (row["untrained"], row["more_frequent_form"]))
            for row in self.as_dict()["conditions"]
        ]
        notes = ["percent of pairs; a tie is half a point; known words: pairs whose differing words are all known"]
        return Table(columns, rows, "minimal pairs: accuracy", notes)

    def plot(self, path: str | Path) -> None:
        """Draw a bar with its interval for each condition."""
        conditions = self.conditions[:MAX_PLOTTED]
        shares = [[100 * share for share in condition.model.share] for condition in conditions]
        controls = {name: [getattr(x, name) for x in conditions] for name in ("untrained", "frequency")}
        marks = {name: [x and 100 * x.value for x in intervals] for name, intervals in controls.items()}
        draw_accuracies(path, [condition.name for condition in conditions], shares, marks)


def format_accuracy(name: str, x: Mapping[str, Any], figures: Iterable[float | None]) -> list[str]:
    """Return a row of a table: a name, the figures of `Accuracy.summary`, and other percentages."""
    known = f"{x['known_accuracy']:.1f} ({x['known_pairs']:,})" if x["known_pairs"] else ""
    row = [name, f"{x['pairs']:,}", f"{x['accuracy']:.1f}", "{:.1f} to {:.1f}".format(*x["interval"]), known]
    return [*row, *(format_number(figure, 1) for figure in figures)]


def draw_accuracies(
    path: str | Path,
    names: Sequence[str],
    intervals: Sequence[Sequence[float]],
    marks: Mapping[str, Sequence[float | None]],
) -> None:
    """Draw a bar with its interval (value, low, high), in percent, for each name, and marks of other models, if any."""
    with save_figure(path, height=1 + 0.28 * len(names)) as figure:
        axes = figure.subplots()
        y = np.arange(len(names))[::-1]
        values = np.array(intervals)  # (C, 3)
        axes.barh(y, values[:, 0], color="#b7cbe2", height=0.6)
        errors = np.abs(values[:, 1:].T - values[:, 0])
        axes.errorbar(values[:, 0], y, xerr=errors, fmt="none", ecolor="black", linewidth=1)
        for (name, figures), mark in zip(marks.items(), cycle("xosD^v")):
            points = [(value, row) for value, row in zip(figures, y, strict=True) if value is not None]
            if points:
                axes.plot(*zip(*points, strict=True), mark, label=name, markerfacecolor="none", clip_on=False)
        axes.set_yticks(y, names)
        axes.axvline(50, color="gray", linewidth=0.8, linestyle=":")
        axes.set(xlim=(0, 100), xlabel="accuracy, %")
        if axes.get_legend_handles_labels()[0]:
            figure.legend(fontsize=8, ncols=5, loc="outside lower center")


def agreement(
    model: SequenceModel,
    pairs: Sequence[MinimalPair],
    *,
    control: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> AgreementReport:
    """Return the accuracy by condition, in the order of the pairs; `control` adds the same network untrained."""
    plan = plan_pairs(model, pairs)
    on_model, on_control = split_progress(progress, [1, 1 if control else 0])
    scores = pair_scores.score_pairs(model, plan, on_model)
    on_model(1.0)
    untrained_scores = frequency_scores = None
    if control and model.is_recurrent:
        untrained_scores = pair_scores.score_pairs(untrained(model, seed), plan, on_control)
    on_control(1.0)
    if plan.single and model.vocabulary is not None:
        # The vocabulary is sorted by descending frequency; unknown words rank last.
        ranks = np.where(plan.target == model.vocabulary.unknown, len(model.vocabulary), plan.target)
        frequency_scores = -np.bincount(plan.item, weights=plan.sign * ranks, minlength=len(plan.known))
    conditions = []
    for name, indices in _split_conditions(pairs).items():
        is_known, controls = plan.known[indices], (untrained_scores, frequency_scores)
        shares = (None if values is None else accuracy(values[indices], is_known).share for values in controls)
        conditions.append(Condition(name, accuracy(scores[indices], is_known), *shares))
    return AgreementReport(conditions)


def group_by_condition(pairs: Sequence[MinimalPair]) -> dict[str, list[int]]:
    """Return the indices of the pairs of each condition, in the order of the pairs."""
    groups: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        groups.setdefault(pair.condition, []).append(index)
    return groups


def _split_conditions(pairs: Sequence[MinimalPair]) -> dict[str, np.ndarray]:
    """Return the pair indices of each condition, preceded by all pairs if there are several conditions."""
    groups = {name: np.array(indices) for name, indices in group_by_condition(pairs).items()}
    return groups if len(groups) == 1 else {ALL: np.arange(len(pairs))} | groups


@dataclass(frozen=True)
class Sweep(Report):
    """Accuracy in percent with each unit ablated by itself."""

    how: str
    units: list[Unit]
    conditions: list[str]
    pairs: list[int]
    base: np.ndarray  #: without ablation; (C,)
    accuracy: np.ndarray  #: with each unit ablated; (U, C)
    margin: np.ndarray  #: mean decrease of the preference for the acceptable form, in nats; (U, C)
    chosen: list[Unit]  #: for each condition the unit that costs most on every second pair
    held_out: np.ndarray  #: points that this unit costs on the other pairs; (C,)
    interval: np.ndarray  #: bootstrap 95% interval of these points; (C, 2)
    rank: np.ndarray  #: number of units that cost at least as much there, including the unit; (C,)

    @property
    def drops(self) -> np.ndarray:
        """Points that each unit costs; (U, C)."""
        return self.base - self.accuracy

    def top(self, condition: str, count: int = 5) -> list[tuple[Unit, float]]:
        """Return the units that cost most in a condition, on all its pairs, with the points they cost."""
        column = self.drops[:, self.conditions.index(condition)]
        return [(self.units[u], float(column[u])) for u in np.argsort(-column, kind="stable")[:count]]

    def as_dict(self) -> dict[str, Any]:
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
        columns = ["condition", "pairs", "full", "unit", "without it", "held-out cost", "rank", "median unit's cost"]
        rows = []
        for condition in self.as_dict()["conditions"]:
            figures = (condition["held_out_drop"], *condition["held_out_interval"], condition["median_drop"])
            cost, low, high, median = (format_number(points, 1, signed=True) for points in figures)
            row = [condition["condition"], str(condition["pairs"]), format_number(condition["accuracy"], 1)]
            row += [condition["unit"], format_number(condition["accuracy_without"], 1), f"{cost} ({low} to {high})"]
            rows.append([*row, f"{condition['held_out_rank']} of {len(self.units)}", median])
        notes = [
            f"accuracy in percent; each of {len(self.units)} units by itself set to {self.how}",
            "the unit is chosen on every second pair; its cost (95% interval) and rank are measured on the other pairs",
        ]
        return Table(columns, rows, "ablation of single units", notes)

    def plot(self, path: str | Path) -> None:
        """Draw a heat map of the units that cost most, by condition."""
        top = np.argsort(-self.drops.max(axis=1), kind="stable")[:MAX_PLOTTED]
        costs = self.drops[top][:, :MAX_PLOTTED].T  # (C, U)
        with save_figure(path, width=2.5 + 0.25 * len(top), height=1.5 + 0.3 * len(costs)) as figure:
            axes = figure.subplots()
            limit = max(1.0, float(np.abs(costs).max()))
            image = axes.imshow(costs, cmap=make_colormap(), vmin=-limit, vmax=limit, aspect="auto")
            axes.set_xticks(range(len(top)), [str(self.units[u]) for u in top], rotation=90, fontsize=7)
            axes.set_yticks(range(len(costs)), self.conditions[: len(costs)], fontsize=8)
            figure.colorbar(image, label="points lost")


def sweep(
    model: SequenceModel,
    pairs: Sequence[MinimalPair],
    *,
    units: Sequence[Unit] | None = None,
    state: str = "h",
    how: How = "zero",
    per_condition: int | None = PER_CONDITION,
    seed: int = 0,
    progress: Progress | None = None,
) -> Sweep:
    """Ablate every unit (or these `units`) by itself and return the accuracy by condition.

    state            units of h, a layer's output, or of c, an LSTM's memory, which is larger in a projected layer
    how              set a unit to "zero" or to its "mean" over the pairs, closer to what the network has seen
    per_condition    number of pairs drawn from each condition; None takes all
    """
    sample = sample_pairs(pairs, per_condition, seed)
    if units is None:
        layers = Reader(model).stack.layers
        names = layers[0].cell.unit_states
        if state not in names:
            raise SettingError(f"state {state!r}: a layer of this network carries {' and '.join(names)}")
        units = [Unit(state, depth, u) for depth, layer in enumerate(layers) for u in range(layer.cell.sizes[state])]
    if not units:
        raise SettingError("No units to ablate; give at least one.")
    groups, base_scores, scores = _score_ablations(model, sample, [[unit] for unit in units], how, progress)
    points, base_points = to_points(scores), to_points(base_scores)
    chosen, held_out, intervals, ranks = [], [], [], []
    for indices in groups.values():  # one unit always costs most, so it is chosen and tested on different pairs
        choosing, testing = indices[::2], indices[1::2] if len(indices) > 1 else indices
        # The lowest accuracy; on ties, the lowest margin.
        u = int(np.lexsort((scores[:, choosing].mean(axis=1), points[:, choosing].mean(axis=1)))[0])
        costs = base_points[testing].mean() - points[:, testing].mean(axis=1)
        chosen.append(units[u])
        held_out.append(100 * costs[u])
        interval = bootstrap_difference(base_points[testing], points[u, testing], np.arange(len(testing)))
        intervals.append([100 * interval.low, 100 * interval.high])
        ranks.append(int(np.count_nonzero(costs >= costs[u])))
    base = np.array([100 * base_points[indices].mean() for indices in groups.values()])
    shares = np.stack([100 * points[:, indices].mean(axis=1) for indices in groups.values()], axis=1)
    margins = np.stack([base_scores[i].mean() - scores[:, i].mean(axis=1) for i in groups.values()], axis=1)
    counts, tested = list(map(len, groups.values())), map(np.array, (held_out, intervals, ranks))
    return Sweep(how, list(units), list(groups), counts, base, shares, margins, chosen, *tested)


def sample_pairs(pairs: Sequence[MinimalPair], max_pairs: int | None, seed: int) -> list[MinimalPair]:
    """Draw at most `max_pairs` of each condition, and keep their order; None takes all."""
    if max_pairs is None:
        return list(pairs)
    if max_pairs < 1:
        raise SettingError(f"at least one pair of each condition is needed, not {max_pairs}")
    generator = np.random.default_rng(seed)
    sample: list[int] = []
    for indices in group_by_condition(pairs).values():
        sample += generator.choice(indices, max_pairs, replace=False).tolist() if len(indices) > max_pairs else indices
    return [pairs[index] for index in sorted(sample)]


def _score_ablations(
    model: SequenceModel,
    sample: Sequence[MinimalPair],
    sets: Sequence[Sequence[Unit]],
    how: str,
    progress: Progress | None,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return the pair indices of each condition, the scores (N,), and those with each set of units ablated (S, N)."""
    if how not in ("zero", "mean"):
        raise SettingError(f"units can be set to 'zero' or 'mean', not {how!r}")
    plan = plan_pairs(model, sample)
    base_scores = pair_scores.score_pairs(model, plan)
    values = {unit: 0.0 for units in sets for unit in units}
    if how == "mean":
        texts = [reading for reading in plan.readings if reading]
        if not texts:
            raise SettingError("how='mean' needs a context before the compared words; use 'zero'")
        traced = trace(model, texts, keep=sorted({unit.state for unit in values})).forward
        means = {key: traced.mean(*key) for key in {(unit.state, unit.layer) for unit in values}}
        values = {unit: float(means[unit.state, unit.layer][unit.number]) for unit in values}
    set_values = [[values[unit] for unit in units] for units in sets]
    scores = pair_scores.score_ablated(model, plan, sets, values=set_values, progress=progress)
    return _split_conditions(sample), base_scores, scores


@dataclass(frozen=True)
class Together(Report):
    """Accuracy in percent: without ablation (C,), with a set of units ablated (C,), and with random sets of the same
    size ablated (R, C); p is the share of sets that cost at least as much, including the set itself (C,)."""

    units: list[Unit]
    conditions: list[str]
    pairs: list[int]
    base: np.ndarray
    accuracy: np.ndarray
    random: np.ndarray
    p: np.ndarray

    def as_dict(self) -> dict[str, Any]:
        return to_plain(self) | {"units": [str(unit) for unit in self.units]}

    def table(self) -> Table:
        low, high = np.quantile(self.random, (0.05, 0.95), axis=0)
        rows = []
        for c, name in enumerate(self.conditions):
            row = [name, str(self.pairs[c]), *(format_number(float(x[c]), 1) for x in (self.base, self.accuracy))]
            random = f"{self.random[:, c].mean():.1f} ({low[c]:.1f} to {high[c]:.1f})"
            rows.append([*row, random, format_number(float(self.p[c]))])
        columns = ["condition", "pairs", "full", "without", "random sets (90%)", "p"]
        random = f"random: {len(self.random)} sets of as many units of the same layers"
        notes = [f"ablated: {', '.join(map(str, self.units))}", random]
        return Table(columns, rows, "ablation of a set of units", notes)


def ablate_together(
    model: SequenceModel,
    pairs: Sequence[MinimalPair],
    units: Sequence[Unit],
    *,
    how: How = "zero",
    draws: int = DRAWS,
    per_condition: int | None = PER_CONDITION,
    seed: int = 0,
    progress: Progress | None = None,
) -> Together:
    """Ablate a set of units, and compare with random sets of as many other units of each layer."""
    if not units or len(set(units)) < len(units):
        raise SettingError("give one unit or several, each once")
    if draws < 1:
        raise SettingError(f"at least one random set is needed, not {draws}")
    sample = sample_pairs(pairs, per_condition, seed)
    generator = np.random.default_rng(seed)
    sets = [list(units), *(sample_units(model, units, generator) for _ in range(draws))]
    groups, base_scores, scores = _score_ablations(model, sample, sets, how, progress)
    points, base_points = to_points(scores), to_points(base_scores)
    shares = np.stack([100 * points[:, indices].mean(axis=1) for indices in groups.values()], axis=1)
    base = np.array([100 * base_points[indices].mean() for indices in groups.values()])
    counts = list(map(len, groups.values()))
    p = (1 + np.count_nonzero(shares[1:] <= shares[0], axis=0)) / (1 + draws)
    return Together(list(units), list(groups), counts, base, shares[0], shares[1:], p)


def sample_units(model: SequenceModel, units: Sequence[Unit], generator: np.random.Generator) -> list[Unit]:
    """Draw as many units of the same states and layers, excluding `units` where the layer is large enough."""
    stack, sample = Reader(model).stack, []
    for (state, layer), count in Counter((unit.state, unit.layer) for unit in units).items():
        stack.check_unit(Unit(state, layer, 0))
        size = stack.layers[layer].cell.sizes[state]
        pool = sorted(set(range(size)) - {u.number for u in units if (u.state, u.layer) == (state, layer)})
        if len(pool) < count:
            pool = list(range(size))
        sample += [Unit(state, layer, int(number)) for number in generator.choice(pool, count, replace=False)]
    return sample

"""What was found about units and features: scores, controls, verdicts; as tables, as plain numbers, as a picture."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relmo.analysis.core.causal import ALL, Ablation, Unit
from relmo.analysis.core.effects import Delay
from relmo.analysis.core.show import Table, colours, figure, picture, plain

CLEARLY = 1.1  # a unit's correlation must be so many times that of every control
STRONG = 0.5  # |r| of a strong unit
TOP = 0.05  # a unit is among those that matter most when it is in this share of all


class Effect(NamedTuple):
    """How well something goes with a feature: |r|, and for a yes-or-no feature the area under the curve, else nan."""

    r: float
    auc: float


@dataclass(frozen=True)
class UnitControls:
    """What a unit has to beat.

    ngram        a prediction from the last few symbols
    probe        a linear probe of all units; this is an upper bound, not a control
    shift        chance: the |r| that the best of all units reaches in one of a hundred texts turned against themselves
    untrained    the best unit of the same network untrained; None where no such network was given
    """

    ngram: Effect
    probe: Effect
    shift: float
    untrained: Effect | None


@dataclass(frozen=True)
class Scores:
    """Every unit's score with every feature, (U, F) each; nan where a score has no meaning.

    r          Pearson's correlation
    rho        Spearman's
    auc        yes-or-no features: the area under the ROC curve, below a half where the unit goes down
    f1         yes-or-no features: F1 on the text's second half, with the threshold that is best on the first
    partial    r with the other features and the current symbol held constant
    """

    r: np.ndarray
    rho: np.ndarray
    auc: np.ndarray
    f1: np.ndarray
    partial: np.ndarray


@dataclass(frozen=True)
class BestUnit:
    """A feature and the unit that goes with it best.

    mean           the feature's mean; for a yes-or-no feature the share of symbols where it is yes
    second         the next best unit of the same state
    others         the best unit of each other state, with its r
    partial_unit   the unit with the largest partial correlation; where it is another unit, the best one may owe its
                   place to something else
    separation     how many standard deviations lie between the unit's means at yes and at no
    also           other features that the unit goes with nearly as well, or better, with their r
    """

    feature: str
    binary: bool
    mean: float
    unit: Unit
    r: float
    rho: float
    auc: float
    f1: float
    partial: float
    second: tuple[Unit, float] | None
    others: dict[str, tuple[Unit, float]]
    partial_unit: tuple[Unit, float] | None
    threshold: float
    separation: float
    delay: Delay
    controls: UnitControls
    also: dict[str, float]

    @property
    def beaten_by(self) -> str:
        """The strongest control that the unit is not clearly better than; nothing where it beats them all."""
        reached = {"the last symbols": self.controls.ngram.r, "chance": self.controls.shift}
        if self.controls.untrained is not None:
            reached["the same network untrained"] = self.controls.untrained.r
        name = max(reached, key=lambda each: reached[each])
        return "" if abs(self.r) > CLEARLY * reached[name] else f"{name} ({reached[name]:.2f})"

    @property
    def exists(self) -> bool:
        """Whether there is a unit for the feature."""
        return not self.beaten_by

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if not self.exists:
            return f"no such cell: not clearly above {self.beaten_by}"
        words = ["strong" if abs(self.r) >= STRONG else "weak"]
        rather = max(self.also, key=lambda name: abs(self.also[name]), default="")
        if rather and abs(self.also[rather]) > abs(self.r):
            words.append(f"rather a unit for {rather} ({self.also[rather]:+.2f})")
        elif self.also:
            words.append("not selective: " + ", ".join(f"{name} {r:+.2f}" for name, r in self.also.items()))
        else:
            words.append("selective")
        if self.partial_unit is not None and self.partial_unit[0] != self.unit:
            words.append(f"{self.partial_unit[0]} is better with the rest held constant")
        return "; ".join(words)


@dataclass(frozen=True)
class CellReport:
    """Units, features, all scores, and for each feature what was found."""

    symbols: int
    units: list[Unit]
    features: list[str]
    scores: Scores
    found: list[BestUnit]
    order: int = 3
    ablations: list[Ablation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def best(self, feature: str) -> BestUnit:
        """What was found for a feature."""
        return self.found[self.features.index(feature)]

    def top(self, feature: str, count: int = 10) -> list[tuple[Unit, float]]:
        """The units with the largest |r|, best first."""
        column = self.scores.r[:, self.features.index(feature)]
        return [(self.units[u], float(column[u])) for u in np.argsort(-np.abs(column), kind="stable")[:count]]

    def ablated(self, unit: Unit) -> tuple[Ablation, Unit] | None:
        """What was found when the unit was changed. Setting c of an LSTM to zero does the same as setting h to zero
        where h is not projected, so only one of the two was done."""
        for same in (unit, unit._replace(state="h")):
            for ablation in self.ablations:
                if same in ablation.units:
                    return ablation, same
        return None

    def causal(self, found: BestUnit) -> bool:
        """Whether the unit is among those that matter most where its feature is about to change."""
        if (done := self.ablated(found.unit)) is None:
            return False
        ablation, unit = done
        names = [f"{found.feature} {way}" for way in ("rises", "falls")]
        names = [name for name in names if name in ablation.classes and ablation.delta(unit, name) > 0]
        ranks = [ablation.rank(unit, name) for name in names]
        return bool(ranks) and min(ranks) <= max(1, TOP * len(ablation.units))

    def tables(self) -> list[Table]:
        """The units with their controls; what each of them does with the other features; what breaks without them."""
        tables = [self._main(), self._matrix()]
        return [*tables, self._broken()] if self.ablations else tables

    def _main(self) -> Table:
        columns = ["feature", "unit", "r", "rho", "AUC", "F1", "partial r", "delay"]
        states = sorted({state for found in self.found for state in found.others})
        columns += [f"best {state}" for state in states]
        columns += ["untrained", f"{self.order}-gram", "chance", "probe", "verdict"]
        rows = []
        for found in self.found:
            auc = max(found.auc, 1 - found.auc) if found.binary else None
            lag = "/".join(figure(value, 0) or "never" for value in found.delay[:2]) if found.binary else ""
            others = [found.others.get(state) for state in states]
            fresh = found.controls.untrained
            rows.append(
                [
                    found.feature,
                    str(found.unit),
                    figure(found.r, signed=True),
                    figure(found.rho, signed=True),
                    figure(auc),
                    figure(found.f1),
                    figure(found.partial, signed=True),
                    lag,
                    *("" if other is None else f"{other[0]} {other[1]:+.3f}" for other in others),
                    figure(None if fresh is None else fresh.r),
                    figure(found.controls.ngram.r),
                    figure(found.controls.shift),
                    figure(found.controls.probe.r),
                    found.verdict + ("; causal" if self.causal(found) else ""),
                ]
            )
        title = f"the best unit for each feature, of {len(self.units):,} units over {self.symbols:,} symbols"
        notes = [
            "controls and probe: |r|; partial r: other features and the current symbol held constant; delay: symbols "
            "until the unit follows, on/off",
            *self.notes,
        ]
        return Table(columns, rows, title, notes)

    def _matrix(self) -> Table:
        places = [self.units.index(unit) for unit in dict.fromkeys(found.unit for found in self.found)]
        rows = [[str(self.units[u]), *(figure(r, 2, signed=True) for r in self.scores.r[u])] for u in places]
        return Table(["unit", *self.features], rows, "what else these units go with: r")

    def _broken(self) -> Table:
        rows = []
        for found in self.found:
            if (done := self.ablated(found.unit)) is not None:
                names = [ALL, f"{found.feature} rises", f"{found.feature} falls"]
                rows += [_broken_row(found, *done, name) for name in names if name in done[0].classes]
        what = {"zero": "set to zero", "mean": "set to its mean", "hold": "held on"}[self.ablations[0].how]
        columns = ["unit", "symbols", "count", "bits", "more bits", "rank", "median unit", "first"]
        return Table(columns, rows, f"what breaks with the unit {what}")

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, in plain numbers; None where a score has no meaning."""
        scores = {name: plain(array) for name, array in vars(self.scores).items()}
        return {
            "symbols": self.symbols,
            "order": self.order,
            "features": self.features,
            "units": [str(unit) for unit in self.units],
            "found": [found_dict(found) | {"causal": self.causal(found)} for found in self.found],
            "scores": scores,
            "ablations": [ablation.as_dict() for ablation in self.ablations],
            "notes": self.notes,
        }

    def plot(self, path: str | Path, *, count: int = 5) -> None:
        """A picture: the best units of each feature against all features, and the best |r| beside the controls."""
        units = list(dict.fromkeys(unit for name in self.features for unit, _ in self.top(name, count)))
        matrix = self.scores.r[[self.units.index(unit) for unit in units]]
        height = max(4.0, 0.22 * len(units) + 1.5)
        with picture(path, width=6 + 0.9 * len(self.features), height=height) as drawn:
            left, right = drawn.subplots(1, 2)
            image = left.imshow(matrix, cmap=colours(), vmin=-1, vmax=1, aspect="auto")
            left.set_xticks(range(len(self.features)), self.features, rotation=45, ha="right")
            left.set_yticks(range(len(units)), [str(unit) for unit in units], fontsize=7)
            left.set_title("r of units and features")
            drawn.colorbar(image, ax=left)
            _draw_controls(right, self)


def _broken_row(found: BestUnit, ablation: Ablation, unit: Unit, name: str) -> list[str]:
    c = ablation.classes.index(name)
    return [
        f"{found.feature}: {found.unit}",
        name,
        f"{ablation.counts[c]:,}",
        figure(float(ablation.base[c])),
        figure(ablation.delta(unit, name), signed=True),
        f"{ablation.rank(unit, name)} of {len(ablation.units)}",
        figure(float(np.median(ablation.deltas[:, c])), signed=True),
        str(ablation.units[int(ablation.deltas[:, c].argmax())]),
    ]


def _draw_controls(axes: Any, report: CellReport) -> None:
    bars = {"best unit": [abs(found.r) for found in report.found]}
    bars[f"{report.order}-gram"] = [found.controls.ngram.r for found in report.found]
    if all(found.controls.untrained is not None for found in report.found):
        bars["untrained"] = [found.controls.untrained.r for found in report.found if found.controls.untrained]
    bars["chance"] = [found.controls.shift for found in report.found]
    bars["probe of all units"] = [found.controls.probe.r for found in report.found]
    tones = ["#e67e22", "#56a0e6", "#9aa0a6", "#d0d3d6", "#2c3e50"]
    places, width = np.arange(len(report.features)), 0.8 / len(bars)
    for number, (name, values) in enumerate(bars.items()):
        tone = tones[number if len(bars) == len(tones) or number < 2 else number + 1]
        axes.barh(places + number * width, values, height=width, label=name, color=tone)
    axes.set_yticks(places + 0.4 - width / 2, report.features)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="|r|")
    axes.legend(fontsize=8)


def found_dict(found: BestUnit) -> dict[str, Any]:
    """A feature and its unit by name, in plain numbers."""
    numbers = ("mean", "r", "rho", "auc", "f1", "partial", "threshold", "separation")
    pairs = {"second": found.second, "partial_unit": found.partial_unit}
    controls = {
        name: {kind: plain(number) for kind, number in value._asdict().items()}
        for name, value in vars(found.controls).items()
        if isinstance(value, Effect)
    }
    return {
        "feature": found.feature,
        "binary": found.binary,
        "unit": str(found.unit),
        **{name: plain(getattr(found, name)) for name in numbers},
        **{name: None if pair is None else {"unit": str(pair[0]), "r": pair[1]} for name, pair in pairs.items()},
        "others": {state: {"unit": str(unit), "r": r} for state, (unit, r) in found.others.items()},
        "delay": {name: plain(value) for name, value in found.delay._asdict().items()},
        "controls": controls | {"shift": found.controls.shift},
        "also": found.also,
        "exists": found.exists,
        "verdict": found.verdict,
    }

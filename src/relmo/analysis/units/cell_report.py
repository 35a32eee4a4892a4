"""Report on units and features: scores, controls and verdicts as tables, JSON and a figure."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relmo.analysis.core.causal import ALL, Ablation, Unit
from relmo.analysis.core.effects import Delay
from relmo.analysis.core.show import Table, format_number, make_colormap, save_figure, to_plain

MIN_RATIO = 1.1  # of a unit's |r| to every control
STRONG = 0.5  # |r| of a strong unit
TOP_SHARE = 0.05  # of all units, by the loss without them, to call a unit causal


class Effect(NamedTuple):
    """Strength of a relation with a feature: |r|, and the area under the ROC curve for a binary feature, else nan."""

    r: float
    auc: float


@dataclass(frozen=True)
class UnitControls:
    """Controls of a unit.

    ngram        prediction from the last few symbols
    probe        linear probe of all units: an upper bound, not a control
    shift        chance: the |r| that the best of all units exceeds in one of a hundred shifted texts
    untrained    best unit of the same network untrained, if there is one
    """

    ngram: Effect
    probe: Effect
    shift: float
    untrained: Effect | None


@dataclass(frozen=True)
class Scores:
    """Scores of every unit with every feature, (U, F) each; nan where undefined.

    r          Pearson's correlation
    rho        Spearman's correlation
    auc        area under the ROC curve, for binary features; below a half if the unit goes down
    f1         on the second half of the text, with the best threshold of the first, for binary features
    partial    r, controlling for the other features and the current symbol
    """

    r: np.ndarray
    rho: np.ndarray
    auc: np.ndarray
    f1: np.ndarray
    partial: np.ndarray


@dataclass(frozen=True)
class BestUnit:
    """Feature and the unit with the largest |r|.

    mean           of the feature; for a binary one, the share of symbols where it is 1
    second         next best unit of the same state
    by_state       best unit of each other state, with its r
    partial_unit   unit with the largest partial correlation; if it is another one, the best unit may owe its rank to
                   something else
    separation     difference of the unit's means at 1 and at 0, in standard deviations
    similar        other features with a similar or larger |r| for this unit
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
    by_state: dict[str, tuple[Unit, float]]
    partial_unit: tuple[Unit, float] | None
    threshold: float
    separation: float
    delay: Delay
    controls: UnitControls
    similar: dict[str, float]

    @property
    def beaten_by(self) -> str:
        """Strongest control that the unit does not clearly exceed; empty if it exceeds all."""
        controls = {"the last symbols": self.controls.ngram.r, "chance": self.controls.shift}
        if self.controls.untrained is not None:
            controls["the same network untrained"] = self.controls.untrained.r
        name = max(controls, key=lambda control: controls[control])
        return "" if abs(self.r) > MIN_RATIO * controls[name] else f"{name} ({controls[name]:.2f})"

    @property
    def exists(self) -> bool:
        """Whether there is a unit for the feature."""
        return not self.beaten_by

    @property
    def verdict(self) -> str:
        """Result in one sentence."""
        if not self.exists:
            return f"no such cell: not clearly above {self.beaten_by}"
        parts = ["strong" if abs(self.r) >= STRONG else "weak"]
        strongest = max(self.similar, key=lambda name: abs(self.similar[name]), default="")
        if strongest and abs(self.similar[strongest]) > abs(self.r):
            parts.append(f"rather a unit for {strongest} ({self.similar[strongest]:+.2f})")
        elif self.similar:
            parts.append("not selective: " + ", ".join(f"{name} {r:+.2f}" for name, r in self.similar.items()))
        else:
            parts.append("selective")
        if self.partial_unit is not None and self.partial_unit[0] != self.unit:
            parts.append(f"{self.partial_unit[0]} has a larger partial r")
        return "; ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        numbers = ("mean", "r", "rho", "auc", "f1", "partial", "threshold", "separation")
        pairs = {"second": self.second, "partial_unit": self.partial_unit}
        controls = {
            name: {kind: to_plain(number) for kind, number in effect._asdict().items()}
            for name, effect in vars(self.controls).items()
            if isinstance(effect, Effect)
        }
        return {
            "feature": self.feature,
            "binary": self.binary,
            "unit": str(self.unit),
            **{name: to_plain(getattr(self, name)) for name in numbers},
            **{name: None if pair is None else {"unit": str(pair[0]), "r": pair[1]} for name, pair in pairs.items()},
            "others": {state: {"unit": str(unit), "r": r} for state, (unit, r) in self.by_state.items()},
            "delay": {name: to_plain(number) for name, number in self.delay._asdict().items()},
            "controls": controls | {"shift": self.controls.shift},
            "also": self.similar,
            "exists": self.exists,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class CellReport:
    """Units, features, all scores, and the best unit for each feature."""

    symbols: int
    units: list[Unit]
    features: list[str]
    scores: Scores
    best_units: list[BestUnit]
    order: int = 3
    ablations: list[Ablation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def best(self, feature: str) -> BestUnit:
        """Return the best unit for a feature."""
        return self.best_units[self.features.index(feature)]

    def top(self, feature: str, count: int = 10) -> list[tuple[Unit, float]]:
        """Return the units with the largest |r|, best first."""
        column = self.scores.r[:, self.features.index(feature)]
        return [(self.units[u], float(column[u])) for u in np.argsort(-np.abs(column), kind="stable")[:count]]

    def ablated(self, unit: Unit) -> tuple[Ablation, Unit] | None:
        """Return the ablation of a unit, if there is one, and the unit's name in it.

        Setting an LSTM's c to zero equals setting h to zero unless h is projected, so only h is then ablated.
        """
        for name in (unit, unit._replace(state="h")):
            for ablation in self.ablations:
                if name in ablation.units:
                    return ablation, name
        return None

    def causal(self, best: BestUnit) -> bool:
        """Whether the unit is among those that matter most where its feature is about to change."""
        if (result := self.ablated(best.unit)) is None:
            return False
        ablation, unit = result
        names = [name for name in (f"{best.feature} rises", f"{best.feature} falls") if name in ablation.classes]
        ranks = [ablation.rank(unit, name) for name in names if ablation.delta(unit, name) > 0]
        return bool(ranks) and min(ranks) <= max(1, TOP_SHARE * len(ablation.units))

    def tables(self) -> list[Table]:
        """Return tables of the units with their controls, of their other features and, if measured, of ablations."""
        indices = [self.units.index(unit) for unit in dict.fromkeys(best.unit for best in self.best_units)]
        rows = [[str(self.units[u]), *(format_number(r, 2, signed=True) for r in self.scores.r[u])] for u in indices]
        matrix = Table(["unit", *self.features], rows, "r of these units with all features")
        return [self._make_main_table(), matrix, *([self._make_ablation_table()] if self.ablations else [])]

    def _make_main_table(self) -> Table:
        states = sorted({state for best in self.best_units for state in best.by_state})
        rows = []
        for best in self.best_units:
            auc = max(best.auc, 1 - best.auc) if best.binary else None
            delay = "/".join(format_number(lag, 0) or "never" for lag in best.delay[:2]) if best.binary else ""
            by_state = [best.by_state.get(state) for state in states]
            untrained = best.controls.untrained
            rows.append(
                [
                    best.feature,
                    str(best.unit),
                    format_number(best.r, signed=True),
                    format_number(best.rho, signed=True),
                    format_number(auc),
                    format_number(best.f1),
                    format_number(best.partial, signed=True),
                    delay,
                    *("" if pair is None else f"{pair[0]} {pair[1]:+.3f}" for pair in by_state),
                    format_number(None if untrained is None else untrained.r),
                    format_number(best.controls.ngram.r),
                    format_number(best.controls.shift),
                    format_number(best.controls.probe.r),
                    best.verdict + ("; causal" if self.causal(best) else ""),
                ]
            )
        columns = ["feature", "unit", "r", "rho", "AUC", "F1", "partial r", "delay", *(f"best {s}" for s in states)]
        columns += ["untrained", f"{self.order}-gram", "chance", "probe", "verdict"]
        title = f"best unit for each feature, of {len(self.units):,} units over {self.symbols:,} symbols"
        note = (
            "controls and probe: |r|; partial r: controlling for the other features and the current symbol; "
            "delay: symbols until the unit follows, on/off"
        )
        return Table(columns, rows, title, [note, *self.notes])

    def _make_ablation_table(self) -> Table:
        rows = []
        for best in self.best_units:
            if (result := self.ablated(best.unit)) is None:
                continue
            ablation, unit = result
            for name in (ALL, f"{best.feature} rises", f"{best.feature} falls"):
                if name not in ablation.classes:
                    continue
                c = ablation.classes.index(name)
                rows.append(
                    [
                        f"{best.feature}: {best.unit}",
                        name,
                        f"{ablation.counts[c]:,}",
                        format_number(float(ablation.base[c])),
                        format_number(ablation.delta(unit, name), signed=True),
                        f"{ablation.rank(unit, name)} of {len(ablation.units)}",
                        format_number(float(np.median(ablation.deltas[:, c])), signed=True),
                        str(ablation.units[int(ablation.deltas[:, c].argmax())]),
                    ]
                )
        change = {"zero": "set to zero", "mean": "set to its mean", "hold": "held on"}[self.ablations[0].how]
        columns = ["unit", "symbols", "count", "bits", "more bits", "rank", "median unit", "first"]
        return Table(columns, rows, f"loss with the unit {change}")

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types; undefined scores are None."""
        return {
            "symbols": self.symbols,
            "order": self.order,
            "features": self.features,
            "units": [str(unit) for unit in self.units],
            "found": [best.as_dict() | {"causal": self.causal(best)} for best in self.best_units],
            "scores": {name: to_plain(array) for name, array in vars(self.scores).items()},
            "ablations": [ablation.as_dict() for ablation in self.ablations],
            "notes": self.notes,
        }

    def plot(self, path: str | Path, *, count: int = 5) -> None:
        """Plot the best units of each feature against all features, and the best |r| beside the controls."""
        units = list(dict.fromkeys(unit for name in self.features for unit, _ in self.top(name, count)))
        matrix = self.scores.r[[self.units.index(unit) for unit in units]]
        height = max(4.0, 0.22 * len(units) + 1.5)
        with save_figure(path, width=6 + 0.9 * len(self.features), height=height) as figure:
            matrix_axes, control_axes = figure.subplots(1, 2)
            image = matrix_axes.imshow(matrix, cmap=make_colormap(), vmin=-1, vmax=1, aspect="auto")
            matrix_axes.set_xticks(range(len(self.features)), self.features, rotation=45, ha="right")
            matrix_axes.set_yticks(range(len(units)), [str(unit) for unit in units], fontsize=7)
            matrix_axes.set_title("r of units and features")
            figure.colorbar(image, ax=matrix_axes)
            self._draw_controls(control_axes)

    def _draw_controls(self, axes: Any) -> None:
        controls = [best.controls for best in self.best_units]
        bars = [("best unit", "#e67e22", [abs(best.r) for best in self.best_units])]
        bars.append((f"{self.order}-gram", "#56a0e6", [control.ngram.r for control in controls]))
        untrained = [control.untrained.r for control in controls if control.untrained is not None]
        if len(untrained) == len(controls):
            bars.append(("untrained", "#9aa0a6", untrained))
        bars.append(("chance", "#d0d3d6", [control.shift for control in controls]))
        bars.append(("probe of all units", "#2c3e50", [control.probe.r for control in controls]))
        positions, width = np.arange(len(self.features)), 0.8 / len(bars)
        for i, (name, colour, values) in enumerate(bars):
            axes.barh(positions + i * width, values, height=width, label=name, color=colour)
        axes.set_yticks(positions + 0.4 - width / 2, self.features)
        axes.invert_yaxis()
        axes.set(xlim=(0, 1), xlabel="|r|")
        axes.legend(fontsize=8)

"""Report on units and features, and named cells: units with names in plain words and their evidence (`cells.json`)."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from relmo.analysis.core.causal import ALL, CHANGES, WORDS, Ablation, Unit, describe_class
from relmo.analysis.core.effects import Delay
from relmo.analysis.core.show import Report, Table, format_number, make_colormap, save_figure, to_plain
from relmo.disk.files import parse_json, read_text_file
from relmo.errors import ModelError
from relmo.store.folder import CELLS, write_json

MIN_RATIO = 1.1  # of a unit's |r| to every control
STRONG = 0.5  # |r| of a strong unit
TOP_SHARE = 0.05  # of all units, by the loss without them, to call a unit causal
CLEAR = 0.8  # |r| of a unit whose feature is visible at a glance
MAX_CELLS = 100  # per model
MAX_EFFECTS = 3  # classes of symbols listed with the loss without the unit

# Bounds of the values in cells.json, which is untrusted.
Text = Annotated[str, Meta(max_length=400)]
Address = Annotated[str, Meta(pattern=r"^[a-z]\d{1,4}\.\d{1,6}b?\Z")]
Number = Annotated[float, Meta(gt=-1e12, lt=1e12)]
Integer = Annotated[int, Meta(gt=-(10**12), lt=10**12)]


class UnitR(NamedTuple):
    """Unit and its correlation with a feature."""

    unit: Unit
    r: float


class Effect(NamedTuple):
    """Strength of a relation with a feature: |r|, and the area under the ROC curve for a binary feature, else nan."""

    r: float
    auc: float


@dataclass(frozen=True)
class UnitControls:
    """Controls of a unit."""

    ngram: Effect  # prediction from the last few symbols
    probe: Effect  # linear probe of all units: an upper bound, not a control
    shift: float  # chance: the |r| that the best of all units exceeds in one of a hundred shifted texts
    untrained: Effect | None  # best unit of the same network untrained, if there is one


@dataclass(frozen=True)
class Scores:
    """Scores of every unit with every feature, (U, F) each; nan where undefined."""

    r: np.ndarray  # Pearson's correlation
    rho: np.ndarray  # Spearman's correlation
    auc: np.ndarray  # area under the ROC curve, for binary features; below a half if the unit goes down
    f1: np.ndarray  # on the second half of the text, with the best threshold of the first, for binary features
    partial: np.ndarray  # r, controlling for the other features and the current symbol


@dataclass(frozen=True)
class BestUnit:
    """Feature and the unit with the largest |r|. If `partial_unit`, the one with the largest partial correlation, is
    another one, the best unit may owe its rank to something else."""

    feature: str
    binary: bool
    mean: float  # of the feature; for a binary one, the share of symbols where it is 1
    unit: Unit
    r: float
    rho: float
    auc: float
    f1: float
    partial: float
    second: UnitR | None  # next best unit of the same state
    by_state: dict[str, UnitR]  # best unit of each other state, with its r
    partial_unit: UnitR | None
    threshold: float
    separation: float  # difference of the unit's means at 1 and at 0, in standard deviations
    delay: Delay
    controls: UnitControls
    similar: dict[str, float]  # other features with a similar or larger |r| for this unit

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
        if self.partial_unit is not None and self.partial_unit.unit != self.unit:
            parts.append(f"{self.partial_unit.unit} has a larger partial r")
        return "; ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        record = to_plain(self)
        renamed = {"others": record.pop("by_state"), "also": record.pop("similar")}
        controls = {name: control for name, control in record["controls"].items() if control is not None}
        return record | renamed | {"controls": controls, "exists": self.exists, "verdict": self.verdict}


@dataclass(frozen=True)
class CellReport(Report):
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

    def top(self, feature: str, count: int = 10) -> list[UnitR]:
        """Return the units with the largest |r|, best first."""
        column = self.scores.r[:, self.features.index(feature)]
        return [UnitR(self.units[u], float(column[u])) for u in np.argsort(-np.abs(column), kind="stable")[:count]]

    def ablated(self, unit: Unit) -> tuple[Ablation, Unit] | None:
        """Return the ablation of a unit, if there is one, and the unit's name in it. Setting an LSTM's c to zero equals
        setting h to zero unless h is projected, so only h is then ablated."""
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
        states = sorted({state for best in self.best_units for state in best.by_state})
        rows = []
        for best in self.best_units:
            auc = max(best.auc, 1 - best.auc) if best.binary else None
            delay = "/".join(format_number(lag, 0) or "never" for lag in best.delay[:2]) if best.binary else ""
            r, rho, partial = (format_number(x, signed=True) for x in (best.r, best.rho, best.partial))
            row = [best.feature, str(best.unit), r, rho, format_number(auc), format_number(best.f1), partial, delay]
            pairs = [best.by_state.get(state) for state in states]
            row += ["" if pair is None else f"{pair.unit} {pair.r:+.3f}" for pair in pairs]
            controls, untrained = best.controls, best.controls.untrained
            levels = (None if untrained is None else untrained.r, controls.ngram.r, controls.shift, controls.probe.r)
            rows.append([*row, *map(format_number, levels), best.verdict + ("; causal" if self.causal(best) else "")])
        columns = ["feature", "unit", "r", "rho", "AUC", "F1", "partial r", "delay", *(f"best {s}" for s in states)]
        columns += ["untrained", f"{self.order}-gram", "chance", "probe", "verdict"]
        title = f"best unit for each feature, of {len(self.units):,} units over {self.symbols:,} symbols"
        note = "controls and probe: |r|; partial r: controlling for the other features and the current symbol; "
        note += "delay: symbols until the unit follows, on/off"
        main = Table(columns, rows, title, [note, *self.notes])
        if not self.ablations:
            return [main, matrix]
        rows = []
        for best in self.best_units:
            if (result := self.ablated(best.unit)) is None:
                continue
            ablation, unit = result
            for name in (ALL, f"{best.feature} rises", f"{best.feature} falls"):
                if name not in ablation.classes:
                    continue
                c = ablation.classes.index(name)
                column = ablation.deltas[:, c]
                delta, median = (format_number(x, signed=True) for x in (ablation.delta(unit, name), np.median(column)))
                rank = f"{ablation.rank(unit, name)} of {len(ablation.units)}"
                row = [f"{best.feature}: {best.unit}", name, f"{ablation.counts[c]:,}", format_number(ablation.base[c])]
                rows.append([*row, delta, rank, median, str(ablation.units[column.argmax()])])
        change = {"zero": "set to zero", "mean": "set to its mean", "hold": "held on"}[self.ablations[0].how]
        columns = ["unit", "symbols", "count", "bits", "more bits", "rank", "median unit", "first"]
        return [main, matrix, Table(columns, rows, f"loss with the unit {change}")]

    def as_dict(self) -> dict[str, Any]:
        return {
            "symbols": self.symbols,
            "order": self.order,
            "features": self.features,
            "units": to_plain(self.units),
            "found": [best.as_dict() | {"causal": self.causal(best)} for best in self.best_units],
            "scores": to_plain(self.scores),
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
                control_axes.barh(positions + i * width, values, height=width, label=name, color=colour)
            control_axes.set_yticks(positions + 0.4 - width / 2, self.features)
            control_axes.invert_yaxis()
            control_axes.set(xlim=(0, 1), xlabel="|r|")
            control_axes.legend(fontsize=8)


@dataclass(frozen=True)
class Broken:
    """Effect of ablating the unit: the class of symbols, the increase in bits per symbol, and the unit's rank."""

    what: Text
    bits: Number
    rank: Integer
    of: Integer


@dataclass(frozen=True)
class NamedCell:
    """Unit with its name and evidence."""

    name: Text
    unit: Address  # address, such as c1.190; with a final b for the backward direction
    feature: Text
    binary: bool
    r: Number
    auc: Number | None  # for a binary feature, else None; auc is at least a half, whatever the sign of r
    f1: Number | None
    threshold: Number | None  # for a binary feature, between on and off
    untrained: Number | None  # |r| of the controls;  probe    of all units together, the upper bound
    ngram: Number
    chance: Number
    probe: Number
    symbols: Integer
    verdict: Text
    also: Annotated[list[Text], Meta(max_length=MAX_CELLS)]  # other features with a similar |r|
    broken: Annotated[list[Broken], Meta(max_length=MAX_CELLS)]
    command: Text

    @property
    def strength(self) -> str:
        """Strength of the evidence: clear, fair or weak."""
        return "clear" if abs(self.r) >= CLEAR else "fair" if abs(self.r) >= STRONG else "weak"


def name_cells(report: CellReport, command: str) -> list[NamedCell]:
    """Name the units of a report that exceed their controls, in the order of the features."""

    def round_finite(number: float) -> float | None:
        return round(float(number), 4) if math.isfinite(number) else None

    cells: dict[Unit, NamedCell] = {}
    for best in sorted((best for best in report.best_units if best.exists), key=lambda best: -abs(best.r)):
        controls, unit = best.controls, best.unit
        if unit in cells:  # a unit is named after the feature with the largest |r|
            continue
        broken: list[Broken] = []  # the classes with the largest effects of ablating the unit, by its rank
        if (result := report.ablated(unit)) is not None:
            ablation, ablated = result
            deltas = {name: ablation.delta(ablated, name) for name in ablation.classes if name != ALL}
            ranks = {name: ablation.rank(ablated, name) for name, delta in deltas.items() if 0 < delta < math.inf}
            names = sorted(ranks, key=lambda name: (ranks[name], -deltas[name], name))
            own_feature = [name for name in names if name.startswith(f"{best.feature} ")]
            # Changes of other features are left out.
            kinds = [name for name in names if name.rpartition(" ")[2] not in CHANGES]
            broken = [
                Broken(describe_class(name), round(deltas[name], 4), ranks[name], len(ablation.units))
                for name in [*own_feature, *kinds][:MAX_EFFECTS]
            ]
        cells[unit] = NamedCell(
            name=WORDS[best.feature].cell if best.feature in WORDS else f"the cell for “{best.feature}”",
            unit=f"{unit.state}{unit.layer}.{unit.number}{'b' if unit.direction == 'backward' else ''}",
            feature=best.feature,
            binary=best.binary,
            r=round(best.r, 4),
            auc=round_finite(max(best.auc, 1 - best.auc)) if best.binary else None,
            f1=round_finite(best.f1) if best.binary else None,
            threshold=round_finite(best.threshold),
            untrained=None if controls.untrained is None else round_finite(controls.untrained.r),
            ngram=round(controls.ngram.r, 4),
            chance=round(controls.shift, 4),
            probe=round(controls.probe.r, 4),
            symbols=report.symbols,
            verdict=best.verdict,
            also=list(best.similar),
            broken=broken,
            command=command,
        )
    order = [best.feature for best in report.best_units]
    return sorted(cells.values(), key=lambda cell: order.index(cell.feature))


def write_cells(folder: str | Path, cells: list[NamedCell]) -> Path:
    """Write the named cells of a model into its folder, replacing existing ones; return the path."""
    path = Path(folder) / CELLS
    write_json(path, {"cells": [to_plain(asdict(cell)) for cell in cells]})
    return path


def read_cells(folder: str | Path) -> list[NamedCell]:
    """Read the named cells of a model; empty if there are none."""
    path = Path(folder) / CELLS
    if not path.exists():
        return []
    try:
        content = parse_json(read_text_file(path))
        entries = content.get("cells") if isinstance(content, dict) else None
        cells = msgspec.convert(entries, Annotated[list[NamedCell], Meta(max_length=MAX_CELLS)])
        if [asdict(cell) for cell in cells] != entries:
            raise ValueError("a cell has unknown fields")
        return cells
    except ValueError as error:
        raise ModelError(f"{path}: {error}; create it again with relmo analyse cells … --name-cells.") from None

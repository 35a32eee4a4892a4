"""Named cells: units with names in plain words and their evidence, stored as cells.json in the model folder.

    cells = name_cells(report, command="relmo analyse cells …")
    write_cells("models/mine", cells)
    read_cells("models/mine")[0].name          # "the quotation cell"

A unit is named if it exceeds its controls (`BestUnit.exists`); the evidence tells how strongly. The file is untrusted:
every value is checked when it is read.
"""

import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from relmo.analysis.core.causal import ALL, Unit
from relmo.analysis.core.feature_words import CHANGES, describe_class, name_cell
from relmo.analysis.core.show import to_plain
from relmo.analysis.units.cell_report import STRONG, BestUnit, CellReport
from relmo.disk.files import parse_json, read_text_file
from relmo.errors import ModelError
from relmo.store.folder import CELLS, write_json

MAX_CELLS = 100  # per model
MAX_TEXT_LENGTH = 400
MAX_NUMBER = 1e12
ADDRESS = re.compile(r"[a-z]\d{1,4}\.\d{1,6}b?")
CLEAR = 0.8  # |r| of a unit whose feature is visible at a glance
MAX_EFFECTS = 3  # classes of symbols listed with the loss without the unit


@dataclass(frozen=True)
class Broken:
    """Effect of ablating the unit: the class of symbols, the increase in bits per symbol, and the unit's rank."""

    what: str
    bits: float
    rank: int
    of: int


@dataclass(frozen=True)
class NamedCell:
    """Unit with its name and evidence.

    unit        address, such as c1.190; with a final b for the backward direction
    auc, f1     for a binary feature, else None; auc is at least a half, whatever the sign of r
    threshold   for a binary feature, between on and off
    untrained, ngram, chance    |r| of the controls;  probe    of all units together, the upper bound
    also        other features with a similar |r|
    """

    name: str
    unit: str
    feature: str
    binary: bool
    r: float
    auc: float | None
    f1: float | None
    threshold: float | None
    untrained: float | None
    ngram: float
    chance: float
    probe: float
    symbols: int
    verdict: str
    also: list[str]
    broken: list[Broken]
    command: str

    @property
    def strength(self) -> str:
        """Strength of the evidence: clear, fair or weak."""
        return "clear" if abs(self.r) >= CLEAR else "fair" if abs(self.r) >= STRONG else "weak"


def name_cells(report: CellReport, command: str) -> list[NamedCell]:
    """Name the units of a report, in the order of the features.

    A unit that is best for several features is named after the one with the largest |r|.
    """
    cells: dict[Unit, NamedCell] = {}
    for best in sorted((best for best in report.best_units if best.exists), key=lambda best: -abs(best.r)):
        cells.setdefault(best.unit, _make_cell(report, best, command))
    order = [best.feature for best in report.best_units]
    return sorted(cells.values(), key=lambda cell: order.index(cell.feature))


def _make_cell(report: CellReport, best: BestUnit, command: str) -> NamedCell:
    def round_finite(number: float) -> float | None:
        return round(float(number), 4) if math.isfinite(number) else None

    controls, unit = best.controls, best.unit
    return NamedCell(
        name=name_cell(best.feature),
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
        broken=_list_effects(report, best),
        command=command,
    )


def _list_effects(report: CellReport, best: BestUnit) -> list[Broken]:
    """List the classes with the largest effects of ablating the unit, by its rank; empty if it was not ablated."""
    if (result := report.ablated(best.unit)) is None:
        return []
    ablation, unit = result
    deltas = {name: ablation.delta(unit, name) for name in ablation.classes if name != ALL}
    effects = sorted(
        (ablation.rank(unit, name), -delta, name) for name, delta in deltas.items() if 0 < delta < math.inf
    )
    own_feature = [effect for effect in effects if effect[2].startswith(f"{best.feature} ")]
    kinds = [effect for effect in effects if effect[2].rpartition(" ")[2] not in CHANGES]  # not other features' changes
    return [
        Broken(describe_class(name), round(-negative, 4), rank, len(ablation.units))
        for rank, negative, name in [*own_feature, *kinds][:MAX_EFFECTS]
    ]


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
        return [
            _parse_cell(entry) for entry in _check_list(content.get("cells") if isinstance(content, dict) else None)
        ]
    except ValueError as error:
        raise ModelError(f"{path}: {error}; create it again with relmo analyse cells … --name-cells.") from None


def _parse_cell(entry: Any) -> NamedCell:
    fields = _parse_fields(entry, NamedCell)
    if not ADDRESS.fullmatch(fields["unit"]):
        raise ValueError("a unit must have an address such as c0.27: state, layer, number")
    fields["also"] = [_check_text(name) for name in _check_list(fields["also"])]
    fields["broken"] = [Broken(**_parse_fields(effect, Broken)) for effect in _check_list(fields["broken"])]
    return NamedCell(**fields)


def _parse_fields(entry: Any, kind: type[Any]) -> dict[str, Any]:
    """Check the names and types of a JSON object's values; lists are checked by the caller."""
    types = get_type_hints(kind)
    if not isinstance(entry, dict) or {*entry} != {*types}:
        raise ValueError(f"expected the fields {', '.join(types)}")
    return {name: _check_value(entry[name], expected, name) for name, expected in types.items()}


def _check_value(value: Any, expected: Any, name: str) -> Any:
    if get_origin(expected) is list or (value is None and type(None) in get_args(expected)):
        return value
    if expected is str:
        return _check_text(value)
    if expected is bool and isinstance(value, bool):
        return value
    allowed = (int,) if expected is int else (int, float)
    is_number = expected is not bool and isinstance(value, allowed) and not isinstance(value, bool)
    if not is_number or not abs(value) < MAX_NUMBER:
        raise ValueError(f"invalid value of {name}")
    return int(value) if expected is int else float(value)


def _check_text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_LENGTH:
        raise ValueError(f"texts must have at most {MAX_TEXT_LENGTH} characters")
    return value


def _check_list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_CELLS:
        raise ValueError(f"expected a list of at most {MAX_CELLS} entries")
    return value

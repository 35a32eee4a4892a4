"""Units with a name in plain words, kept with their model, each with its evidence: cells.json in the model's folder.

    cells = name_cells(report, command="relmo analyse cells …")
    write_cells("models/mine", cells)
    read_cells("models/mine")[0].name          "the quotation cell"

A unit gets a name where it beats its controls (`BestUnit.exists`). A name says nothing about strength; the evidence
does. The file is data that anyone may have written: what is read is checked, value by value.
"""

import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from relmo.analysis.core.causal import ALL, Unit
from relmo.analysis.core.feature_words import ENDS, cell_name, class_in_words
from relmo.analysis.core.show import plain
from relmo.analysis.units.cell_report import STRONG, BestUnit, CellReport
from relmo.disk.files import parse_json, read_small
from relmo.errors import ModelError
from relmo.store.folder import CELLS, write_json

MOST = 100  # named cells of a model
LONGEST = 400  # characters of a text in the file
LARGEST = 1e12  # number in it
ADDRESS = re.compile(r"[a-z]\d{1,4}\.\d{1,6}b?")
CLEAR = 0.8  # |r| from which a unit shows a feature to anyone who looks
BREAKING = 3  # classes of symbols that are told of what breaks


@dataclass(frozen=True)
class Broken:
    """What breaks without the unit: more bits a symbol in a class, and the unit's rank among others."""

    what: str
    bits: float
    rank: int
    of: int


@dataclass(frozen=True)
class NamedCell:
    """A unit, its name, and why it has it.

    unit        its address, such as c1.190; with b at its end where it reads backwards
    auc, f1     of a yes-or-no feature, else None; auc is above a half whichever way the unit goes
    threshold   of a yes-or-no feature, where on and off are best told apart
    untrained, ngram, chance    |r| of the controls;  probe    of all units together, the upper bound
    also        other features that it goes with nearly as well
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
        """How strong the evidence is, in one word."""
        return "clear" if abs(self.r) >= CLEAR else "fair" if abs(self.r) >= STRONG else "weak"


def name_cells(report: CellReport, command: str) -> list[NamedCell]:
    """Names the units that were found, in the order of the features. A unit that is best for several features has the
    name of the one that it goes with best."""
    found = sorted((each for each in report.found if each.exists), key=lambda each: -abs(each.r))
    named: dict[Unit, NamedCell] = {}
    for each in found:
        named.setdefault(each.unit, _named(report, each, command))
    order = [each.feature for each in report.found]
    return sorted(named.values(), key=lambda cell: order.index(cell.feature))


def _named(report: CellReport, found: BestUnit, command: str) -> NamedCell:
    controls, unit = found.controls, found.unit
    number = lambda value: None if not math.isfinite(value) else round(float(value), 4)  # noqa: E731
    return NamedCell(
        name=cell_name(found.feature),
        unit=f"{unit.state}{unit.layer}.{unit.number}{'b' if unit.direction == 'backward' else ''}",
        feature=found.feature,
        binary=found.binary,
        r=round(found.r, 4),
        auc=number(max(found.auc, 1 - found.auc)) if found.binary else None,
        f1=number(found.f1) if found.binary else None,
        threshold=number(found.threshold),
        untrained=None if controls.untrained is None else number(controls.untrained.r),
        ngram=round(controls.ngram.r, 4),
        chance=round(controls.shift, 4),
        probe=round(controls.probe.r, 4),
        symbols=report.symbols,
        verdict=found.verdict,
        also=list(found.also),
        broken=_broken(report, found),
        command=command,
    )


def _broken(report: CellReport, found: BestUnit) -> list[Broken]:
    """Where the unit's loss costs most, by its rank; nothing where it was not taken away."""
    if (done := report.ablated(found.unit)) is None:
        return []
    ablation, unit = done
    ranked = sorted(
        (ablation.rank(unit, name), -ablation.delta(unit, name), name)
        for name in ablation.classes
        if name != ALL and np.isfinite(ablation.delta(unit, name)) and ablation.delta(unit, name) > 0
    )
    own = [each for each in ranked if each[2].startswith(f"{found.feature} ")]
    kinds = [each for each in ranked if each[2].rpartition(" ")[2] not in ENDS]  # not where other features change
    chosen = [*own, *kinds][:BREAKING]
    return [Broken(class_in_words(name), round(-less, 4), rank, len(ablation.units)) for rank, less, name in chosen]


def write_cells(folder: str | Path, cells: list[NamedCell]) -> Path:
    """Writes the named cells of a model into its folder, in the place of those that were there. -> the file"""
    path = Path(folder) / CELLS
    write_json(path, {"cells": [plain(asdict(cell)) for cell in cells]})
    return path


def read_cells(folder: str | Path) -> list[NamedCell]:
    """The named cells of a model; none where nobody has named any."""
    path = Path(folder) / CELLS
    if not path.exists():
        return []
    try:
        given = parse_json(read_small(path))
    except ValueError as error:
        raise ModelError(f"{path}: {error}; name the cells again: relmo analyse cells … --name-cells") from None
    listed = given.get("cells") if isinstance(given, dict) else None
    if not isinstance(listed, list) or len(listed) > MOST:
        raise ModelError(f"{path}: holds no list of at most {MOST} cells; name them again with --name-cells")
    try:
        return [_cell_of(each) for each in listed]
    except ValueError as error:
        raise ModelError(f"{path}: {error}; name the cells again: relmo analyse cells … --name-cells") from None


def _cell_of(given: Any) -> NamedCell:
    """A cell of JSON, checked."""
    values = _fields(given, NamedCell)
    if not isinstance(values["unit"], str) or not ADDRESS.fullmatch(values["unit"]):
        raise ValueError("a cell's unit is named as c0.27: state, layer, number")
    broken = values.pop("broken")
    if not isinstance(broken, list) or len(broken) > MOST:
        raise ValueError("what breaks is a list")
    also = values.pop("also")
    if not isinstance(also, list) or len(also) > MOST:
        raise ValueError("the other features are a list")
    inside = [Broken(**_fields(each, Broken)) for each in broken]
    return NamedCell(**values, also=[_text(name) for name in also], broken=inside)


def _fields(given: Any, kind: type[Any]) -> dict[str, Any]:
    """The values of a JSON object by name: those that the class has, each of its kind."""
    kinds = get_type_hints(kind)
    if not isinstance(given, dict) or {*given} != {*kinds}:
        raise ValueError(f"a cell has the values {', '.join(kinds)}")
    return {name: _checked(given[name], wanted, name) for name, wanted in kinds.items()}


def _checked(value: Any, kind: Any, name: str) -> Any:
    """A value of a kind; lists are looked into by the caller."""
    if get_origin(kind) is list or (value is None and type(None) in get_args(kind)):
        return value
    if kind is str:
        return _text(value)
    if kind is bool and isinstance(value, bool):
        return value
    allowed = (int,) if kind is int else (int, float)
    number = kind is not bool and isinstance(value, allowed) and not isinstance(value, bool)
    if not number or not abs(value) < LARGEST:
        raise ValueError(f"{name} is not what it should be")
    return int(value) if kind is int else float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise ValueError(f"a text of a cell has at most {LONGEST} characters")
    return value

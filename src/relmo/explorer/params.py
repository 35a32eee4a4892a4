"""Requests: query strings and JSON bodies with validated values, addresses of units, and rounded numbers."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from relmo.analysis.core.causal import Unit
from relmo.errors import SettingError
from relmo.settings.fields import convert_setting

UNIT = re.compile(r"([a-z])(\d{1,4})\.(\d{1,6})(b?)")

Answer = dict[str, Any]
Params = Mapping[str, str]


class Query(dict[str, str]):
    """Parameters of a query string."""

    @property
    def text(self) -> str:
        """Name of the requested text."""
        if "text" not in self:
            raise SettingError("Parameter text is missing.")
        return self["text"]

    @property
    def unit(self) -> Unit:
        """Requested unit."""
        return parse_unit(self.get("unit", ""))

    def index(self, name: str) -> int:
        """Return a non-negative integer; default 0."""
        digits = self.get(name, "0")
        if not re.fullmatch(r"\d{1,9}", digits):
            raise SettingError(f"{name} is {digits[:40]!r}; expected a non-negative integer.")
        return int(digits)

    def position(self, length: int) -> int:
        """Return the parameter `at`, the position of a symbol in a text of this length."""
        position = self.index("at")
        if position >= length:
            raise SettingError(f"Position {position} is out of range; the text has positions 0 to {length - 1}.")
        return position

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """Return a number within bounds."""
        digits = self.get(name) or str(default)
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", digits) or not low <= float(digits) <= high:
            raise SettingError(f"{name} is {digits[:40]!r}; expected a number from {low:g} to {high:g}.")
        return float(digits)


class Body(dict[str, Any]):
    """JSON body of a request."""

    def string(self, name: str, *choices: str) -> Any:
        """Return a string, one of the choices if there are any; the default is the first, or empty."""
        kind: Any = Literal[choices] if choices else str
        return convert_setting(self.get(name, choices[0] if choices else ""), kind, name)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """Return an integer within bounds."""
        return convert_setting(self.get(name, default), Annotated[int, Meta(ge=low, le=high)], name)

    def real(self, name: str, default: float) -> float:
        """Return a finite number."""
        return convert_setting(self.get(name, default), Annotated[float, Meta(ge=-1e308, le=1e308)], name)

    def elements(self, name: str, kind: type = str, *, max_length: int = 200) -> list[Any]:
        """Return a list whose elements are of one kind."""
        elements = self.get(name, [])
        is_short = isinstance(elements, list) and len(elements) <= max_length
        if not is_short or not all(isinstance(element, kind) for element in elements):
            raise SettingError(f"{name} must be a list of at most {max_length} {kind.__name__} elements.")
        return elements


def parse_unit(name: str) -> Unit:
    """Parse the address of a unit, such as c0.27, or c0.27b for a backward unit."""
    match = UNIT.fullmatch(name)
    if match is None:
        raise SettingError(f"Unknown unit {name[:40]!r}; an address is written as c0.27: state, layer, index.")
    state, layer, index, backward = match.groups()
    return Unit(state, int(layer), int(index), "backward" if backward else "forward")


def format_unit(unit: Unit) -> str:
    """Return the address of a unit, the inverse of `parse_unit`."""
    return f"{unit.state}{unit.layer}.{unit.number}{'b' if unit.direction == 'backward' else ''}"


def round_values(values: np.ndarray, digits: int = 4) -> list[float]:
    """Return JSON numbers; values that are not finite become 0."""
    return np.round(np.nan_to_num(values.astype(np.float64)), digits).tolist()


def colour_scale(values: np.ndarray) -> float:
    """Return the value drawn in full colour: the 99th percentile, so that one spike does not bleach the rest."""
    return round(float(np.quantile(np.abs(values), 0.99)), 4) or 1.0

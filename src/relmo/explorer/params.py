"""Request parameters: validated values from query strings and JSON bodies, and numbers rounded for responses."""

import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from relmo.analysis.core.causal import Unit
from relmo.errors import SettingError

UNIT = re.compile(r"([a-z])(\d{1,4})\.(\d{1,6})(b?)")

Answer = dict[str, Any]
Params = Mapping[str, str]
Body = Mapping[str, Any]


def get_text_name(params: Params) -> str:
    """Return the name of the requested text."""
    if "text" not in params:
        raise SettingError("Parameter text is missing.")
    return params["text"]


def get_index(params: Params, name: str) -> int:
    """Return a non-negative integer of a query string; default 0."""
    digits = params.get(name, "0")
    if not re.fullmatch(r"\d{1,9}", digits):
        raise SettingError(f"{name} is {digits[:40]!r}; expected a non-negative integer.")
    return int(digits)


def get_number(params: Params, name: str, default: float, low: float, high: float) -> float:
    """Return a number of a query string within bounds."""
    digits = params.get(name, "")
    if not digits:
        return default
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", digits) or not low <= float(digits) <= high:
        raise SettingError(f"{name} is {digits[:40]!r}; expected a number from {low:g} to {high:g}.")
    return float(digits)


def get_position(params: Params, length: int) -> int:
    """Return the parameter `at`, the position of a symbol in a text of this length."""
    position = get_index(params, "at")
    if position >= length:
        raise SettingError(f"Position {position} is out of range; the text has positions 0 to {length - 1}.")
    return position


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


def get_string(body: Body, name: str) -> str:
    """Return a string of a JSON body; default empty."""
    text = body.get(name, "")
    if not isinstance(text, str):
        raise SettingError(f"{name} must be a string.")
    return text


def get_choice(body: Body, name: str, *choices: str) -> Any:
    """Return one of the choices; the default is the first."""
    choice = body.get(name, choices[0])
    if not isinstance(choice, str) or choice not in choices:
        raise SettingError(f"{name} must be one of {', '.join(choices)}.")
    return choice


def get_int(body: Body, name: str, default: int, low: int, high: int) -> int:
    """Return an integer of a JSON body within bounds."""
    number = body.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
        raise SettingError(f"{name} must be a number from {low} to {high:,}.")
    return int(number)


def get_float(body: Body, name: str, default: float) -> float:
    """Return a finite number of a JSON body."""
    number = body.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
        raise SettingError(f"{name} must be a finite number.")
    return float(number)


def get_list(body: Body, name: str, kind: type = str, *, max_length: int = 200) -> list[Any]:
    """Return a list of a JSON body whose elements are of one kind."""
    elements = body.get(name, [])
    if not isinstance(elements, list) or len(elements) > max_length or not all(isinstance(e, kind) for e in elements):
        raise SettingError(f"{name} must be a list of at most {max_length} {kind.__name__} elements.")
    return elements


def round_values(values: np.ndarray, digits: int = 4) -> list[float]:
    """Return JSON numbers; values that are not finite become 0."""
    return np.round(np.nan_to_num(values.astype(np.float64)), digits).tolist()


def colour_scale(values: np.ndarray) -> float:
    """Return the value drawn in full colour: the 99th percentile, so that one spike does not bleach the rest."""
    return round(float(np.quantile(np.abs(values), 0.99)), 4) or 1.0

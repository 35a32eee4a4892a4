"""What a page asks for: parameters out of an address, checked; and how numbers are sent back."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from relmo.analysis.core.causal import Unit
from relmo.errors import SettingError

UNIT = re.compile(r"([a-z])(\d{1,4})\.(\d{1,6})(b?)")

Answer = dict[str, Any]
Asked = Mapping[str, str]


def text_of(asked: Asked) -> str:
    """The name of the text that is asked about."""
    if "text" not in asked:
        raise SettingError("no text is named")
    return asked["text"]


def whole_number(asked: Asked, name: str) -> int:
    """A parameter that is a whole number, 0 where it is not given."""
    given = asked.get(name, "0")
    if not re.fullmatch(r"\d{1,9}", given):
        raise SettingError(f"{name} is {given[:40]!r}; it is a whole number")
    return int(given)


def number_within(asked: Asked, name: str, usual: float, least: float, most: float) -> float:
    """A parameter that is a number between two others; the usual one where it is not given."""
    given = asked.get(name, "")
    if not given:
        return usual
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", given) or not least <= float(given) <= most:
        raise SettingError(f"{name} is {given[:40]!r}; it is a number from {least:g} to {most:g}")
    return float(given)


def unit_of(asked: Asked) -> Unit:
    """The unit that is asked about, such as c0.27, or c0.27b of those that read backwards."""
    match = UNIT.fullmatch(asked.get("unit", ""))
    if match is None:
        raise SettingError(f"unit is {asked.get('unit', '')[:40]!r}; it is named as c0.27: state, layer, number")
    state, layer, number, backward = match.groups()
    return Unit(state, int(layer), int(number), "backward" if backward else "forward")


def rounded(values: np.ndarray, digits: int = 4) -> list[float]:
    """As numbers of JSON; what is not finite is 0."""
    return np.round(np.nan_to_num(values.astype(np.float64)), digits).tolist()


def scale(values: np.ndarray) -> float:
    """The absolute value that gets the full colour: the 99th percentile, so that one spike does not bleach the rest."""
    return round(float(np.quantile(np.abs(values), 0.99)), 4) or 1.0

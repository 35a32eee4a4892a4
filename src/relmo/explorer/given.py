"""What requests for work hold: texts, numbers and lists out of JSON, checked; and how units are named in it."""

import sys
from collections.abc import Mapping
from typing import Any

from relmo.errors import SettingError

Given = Mapping[str, Any]


def string(given: Given, name: str) -> str:
    """A text among what was given; nothing where there is none."""
    value = given.get(name, "")
    if not isinstance(value, str):
        raise SettingError(f"{name} must be a text")
    return value


def choice(given: Given, name: str, *choices: str) -> Any:
    """One of some words; the first where none is given."""
    value = given.get(name, choices[0])
    if not isinstance(value, str) or value not in choices:
        raise SettingError(f"{name} can be {', '.join(choices)}")
    return value


def number(given: Given, name: str, usual: int, least: int, most: int) -> int:
    """A whole number between two others."""
    value = given.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise SettingError(f"{name} must be a number from {least} to {most:,}")
    return int(value)


def real(given: Given, name: str, usual: float) -> float:
    """A finite number."""
    value = given.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise SettingError(f"{name} must be a finite number")
    return float(value)


def listed(given: Given, name: str, kind: type = str, *, most: int = 200) -> list[Any]:
    """A list of not too many of one kind."""
    value = given.get(name, [])
    if not isinstance(value, list) or len(value) > most or not all(isinstance(each, kind) for each in value):
        raise SettingError(f"{name} must be a list of at most {most}")
    return value


def plain_unit(unit: Any) -> str:
    """A unit's name in requests: c0.27, or c0.27b where it reads backwards."""
    return f"{unit.state}{unit.layer}.{unit.number}{'b' if unit.direction == 'backward' else ''}"

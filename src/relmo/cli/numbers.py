"""Checks of numeric flags, for all commands: finite, whole for integers, and within the bounds of the flag.

`relmo train` has bounds in its settings.
"""

import math
from typing import TYPE_CHECKING, Annotated, get_args, get_origin

from relmo.errors import SettingError
from relmo.settings.arguments import MAX_SEED, MAX_THREADS

if TYPE_CHECKING:
    from cyclopts import App, ArgumentCollection

MAX_INTEGER = (1 << 63) - 1  # of arrays
BOUNDS = {
    "--draws": (1, 100_000),
    "--hidden": (1, 1 << 16),
    "--jobs": (0, 1000),
    "--minutes": (0, 1_000_000),
    "--order": (1, 20),
    "--samples": (0, 1_000_000),
    "--seed": (0, MAX_SEED),
    "--seeds": (1, 1000),
    "--steps": (1, 1_000_000),
    "--threads": (1, MAX_THREADS),
}


def check_numbers(app: "App", commands: tuple[str, ...], arguments: "ArgumentCollection") -> None:
    """Raise `SettingError` if a numeric flag has a value that nothing can be computed with."""
    for argument in arguments:
        hints = get_args(argument.hint) or (argument.hint,)
        types = [hint.__origin__ if get_origin(hint) is Annotated else hint for hint in hints]
        if int not in types and float not in types:
            continue
        choices = [choice for kind in types for choice in get_args(kind)]
        has_bounds = commands[0] != "train" or argument.name == "--seed"
        bounds = BOUNDS.get(argument.name) if has_bounds else None
        for token in argument.tokens:
            if token.source == "cli":
                problem = _find_problem(token.value, choices, is_whole=float not in types, bounds=bounds)
                if problem is not None:
                    raise SettingError(f"{argument.name} must be {problem}, not {token.value[:60]}")


def _find_problem(text: str, choices: list[str], *, is_whole: bool, bounds: tuple[int, int] | None) -> str | None:
    """Return what the value should be instead; None if it is valid, or if cyclopts reports it."""
    number = parse_number(text)
    if number is None:
        return f"{', '.join(choices)} or a number" if choices and text not in choices else None
    if not math.isfinite(number):
        return "a finite number"
    if is_whole and number != int(number):
        return "a whole number"
    if is_whole and abs(number) > MAX_INTEGER:
        return f"at most {MAX_INTEGER}"
    if bounds is not None and number < bounds[0]:
        return f"{bounds[0]} or more"
    return f"at most {bounds[1]}" if bounds is not None and number > bounds[1] else None


def parse_number(text: str) -> float | None:
    """Return the number that a text spells, or None."""
    try:
        return float(text)
    except ValueError:
        return None

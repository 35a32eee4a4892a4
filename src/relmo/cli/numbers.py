"""Numbers as they are typed: finite, whole where a count is asked for, and within what can be computed.

One place for all verbs, as a flag of one name means the same in each; `relmo train` has bounds for its settings.
"""

import math
from typing import TYPE_CHECKING, get_args

from relmo.errors import SettingError
from relmo.settings.arguments import LARGEST_SEED, MOST_THREADS

if TYPE_CHECKING:
    from cyclopts import App, ArgumentCollection

LARGEST = (1 << 63) - 1  # what arrays can count to
BOUNDS = {
    "--draws": (1, 100_000),
    "--hidden": (1, 1 << 16),
    "--jobs": (0, 1000),
    "--minutes": (0, 1_000_000),
    "--order": (1, 20),
    "--samples": (0, 1_000_000),
    "--seed": (0, LARGEST_SEED),
    "--seeds": (1, 1000),
    "--steps": (1, 1_000_000),
    "--threads": (1, MOST_THREADS),
}


def check_numbers(app: "App", commands: tuple[str, ...], arguments: "ArgumentCollection") -> None:
    """Raises where a flag that takes a number was given one that nothing can be done with."""
    for argument in arguments:
        kinds = get_args(argument.hint) or (argument.hint,)
        for token in argument.tokens:
            if token.source == "cli" and (int in kinds or float in kinds):
                _check_word(argument.name, token.value, [choice for kind in kinds for choice in get_args(kind)])
                _check_number(argument.name, token.value, whole=float not in kinds)
                if commands[0] != "train" or argument.name == "--seed":
                    _check_bounds(argument.name, token.value)


def _check_word(name: str, text: str, choices: list[str]) -> None:
    """A word that may stand where a number is asked for, such as `top` of --layers."""
    if choices and text not in choices and number_of(text) is None:
        raise SettingError(f"{name} {text[:60]}: it can be {', '.join(choices)} or a number")


def _check_number(name: str, text: str, *, whole: bool) -> None:
    """A number that is typed; what is none at all, cyclopts says."""
    number = number_of(text)
    if number is None:
        return
    if not math.isfinite(number):
        raise SettingError(f"{name} must be a finite number, not {text[:60]}")
    if whole and number != int(number):
        raise SettingError(f"{name} must be a whole number, not {text[:60]}")
    if whole and abs(number) > LARGEST:
        raise SettingError(f"{name} must be at most {LARGEST}, not {text[:60]}")


def _check_bounds(name: str, text: str) -> None:
    """A number within the bounds of its flag."""
    number, (low, high) = number_of(text), BOUNDS.get(name, (-math.inf, math.inf))
    if number is not None and not low <= number <= high:
        wanted = f"{low} or more" if number < low else f"at most {high}"
        raise SettingError(f"{name} must be {wanted}, not {text[:60]}")


def number_of(text: str) -> float | None:
    """A number, or None."""
    try:
        return float(text)
    except ValueError:
        return None

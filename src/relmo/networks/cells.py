"""Recurrent cells as settings name them."""

from collections.abc import Callable, Mapping
from typing import Any

from relmo.errors import SettingError
from relmo.nn.recurrence import Cell, make_cell
from relmo.settings.kinds import cell_options


def cell_factory(name: str, hidden: int, options: Mapping[str, Any]) -> Callable[[int], Cell]:
    """Return a function that creates a cell for an input size."""
    make = make_cell(name, hidden, **options)

    def create(input_size: int) -> Cell:
        try:
            return make(input_size)
        except ValueError as error:  # sizes and options that do not go together
            raise SettingError(f"cell {name}: {error}") from error

    return create


def cell_of(settings: Any) -> Callable[[int], Cell]:
    """Return a function that creates the cell of a network's settings for an input size."""
    return cell_factory(settings.cell, settings.hidden, cell_options(settings))

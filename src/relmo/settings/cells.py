"""The table of the recurrent cells. Adding a cell is adding its line, and its file `relmo/nn/cells/NAME.py`.

It imports no torch. Settings, their checks, the commands and the explorer are made from it.
"""

from typing import TYPE_CHECKING, Any, Literal

CELLS: dict[str, tuple[str, ...]] = {
    "lstm": ("projection", "forget_bias"),
    "gru": (),
    "elman": ("nonlinearity",),
}
"""By name, the settings that have a meaning for this cell but not for all: options of its class."""

if TYPE_CHECKING:
    CellName = str
else:
    CellName = Literal[tuple(CELLS)]


def cells_with(option: str) -> tuple[str, ...]:
    """The cells for which a setting has a meaning."""
    return tuple(name for name, options in CELLS.items() if option in options)


def cell_options(settings: Any) -> dict[str, Any]:
    """What a model's settings say for its own cell, as the class of the cell takes it."""
    return {option: getattr(settings, option) for option in CELLS[settings.cell]}

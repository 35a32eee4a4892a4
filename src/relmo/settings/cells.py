"""Table of the recurrent cells. A new cell is a line here and a file `relmo/nn/cells/NAME.py`.

Settings, commands and the explorer are built from it without importing torch.
"""

from typing import TYPE_CHECKING, Any, Literal

CELLS: dict[str, tuple[str, ...]] = {
    "lstm": ("projection", "forget_bias"),
    "gru": (),
    "elman": ("nonlinearity",),
}
"""By name, the settings that only some cells have: options of the class of the cell."""

if TYPE_CHECKING:
    CellName = str
else:
    CellName = Literal[tuple(CELLS)]


def cells_with(option: str) -> tuple[str, ...]:
    """Return the cells that have an option."""
    return tuple(name for name, options in CELLS.items() if option in options)


def cell_options(settings: Any) -> dict[str, Any]:
    """Return the options of the cell that a model's settings name, as keywords of its class."""
    return {option: getattr(settings, option) for option in CELLS[settings.cell]}

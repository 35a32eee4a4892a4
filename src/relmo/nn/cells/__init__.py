"""Recurrent cells, a file each, written out as their equations: the definition that every faster path must equal.

    make_cell("lstm", 512, projection=128)      -> makes such a cell for an input size
    cell_class("gru")                           its class: the one in `nn/cells/gru.py`

Adding a cell is adding its file, with a class that describes itself as `Cell` says, and its line in
`relmo/settings/cells.py`. Language models, tasks, traces, interventions, gradients and the explorer then know it.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from relmo.nn.cells.base import Cell, State

__all__ = ["Cell", "State", "cell_class", "make_cell"]


def cell_class(name: str) -> type[Cell]:
    """The cell in the file of this name."""
    file = import_module(f"{__name__}.{name}")
    (found,) = (
        each
        for each in vars(file).values()
        if isinstance(each, type) and issubclass(each, Cell) and each.__module__ == file.__name__
    )
    return found


def make_cell(name: str, hidden: int, **options: Any) -> Callable[[int], Cell]:
    """The cell of this name with its options, but for its input size."""
    return partial(cell_class(name), hidden_size=hidden, **options)

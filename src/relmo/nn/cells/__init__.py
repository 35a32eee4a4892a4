"""Recurrent cells, one file each, written as their equations: the reference for every faster backend.

To add a cell, add its file, with a class that describes itself as `Cell` documents, and its line in
`relmo/settings/cells.py`. Language models, tasks, traces, interventions, gradients and the explorer then support it.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from relmo.nn.cells.base import Cell, State, initialise

__all__ = ["Cell", "State", "cell_class", "initialise", "make_cell"]


def cell_class(name: str) -> type[Cell]:
    """Return the class of the cell in the file of this name."""
    module = import_module(f"{__name__}.{name}")
    types = [member for member in vars(module).values() if isinstance(member, type) and issubclass(member, Cell)]
    (cell,) = (member for member in types if member.__module__ == module.__name__)
    return cell


def make_cell(name: str, hidden: int, **options: Any) -> Callable[[int], Cell]:
    """Return a function that creates this cell for an input size."""
    return partial(cell_class(name), hidden_size=hidden, **options)

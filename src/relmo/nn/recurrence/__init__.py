"""Recurrence: cells, one file each, the stacks that run them through time, and their faster backends.

A cell is the only definition of its equations. To add one, write a class as `Cell` documents and register it with
`relmo.register_cell`; language models, tasks, traces, interventions, gradients and the explorer then support it.
"""

from collections.abc import Callable
from typing import Any

from relmo.nn.recurrence.base import Cell, Quantity, Record, State, check_cell, gate, initialise, state, unchanged
from relmo.registry import cell_class, register_cell

__all__ = [
    "Cell",
    "Quantity",
    "Record",
    "State",
    "cell_class",
    "check_cell",
    "gate",
    "initialise",
    "make_cell",
    "register_cell",
    "state",
    "unchanged",
]


def make_cell(name: str, hidden: int, **options: Any) -> Callable[[int], Cell]:
    """Return a function that creates this cell for an input size.

    The function raises `ValueError` for sizes and options that do not go together, and for a cell that is not declared
    as `Cell` documents.
    """

    def create(input_size: int) -> Cell:
        cell = cell_class(name)(input_size, hidden, **options)
        check_cell(cell)
        return cell

    return create

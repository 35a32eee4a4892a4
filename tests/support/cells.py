"""Steps of recurrent cells with all of their quantities."""

from types import SimpleNamespace

import torch
from torch import Tensor

from relmo.analysis.core.stack import record_step
from relmo.nn.recurrence import Cell, State


def record_gates(cell: Cell, x: Tensor, state: State) -> SimpleNamespace:
    """Return every quantity of the step that reads x (B, I), as attributes."""
    return SimpleNamespace(**record_step(cell, cell.project_input(x), state)[0])


def random_state(cell: Cell, batch: int, dtype: torch.dtype = torch.float32) -> State:
    """Draw a state of a cell."""
    return tuple(torch.randn(batch, *cell.specs[name].shape, dtype=dtype) for name in cell.states)

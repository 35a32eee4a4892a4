"""Random steps of cells, and the equations that reproduce them."""

import numpy as np
import pytest
import torch

from relmo.analysis.core.one_step import OneStep
from relmo.analysis.core.stack import record_step
from relmo.nn.recurrence import Cell


def random_step(cell: Cell) -> OneStep:
    """Return the fourth step of a cell, in float64, all of whose weights differ from their initial values."""
    torch.manual_seed(1)
    cell = cell.double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        state = cell.initial_state(1)
        for _ in range(4):
            x, before = torch.randn(1, cell.input_size).double(), state
            quantities, state = record_step(cell, cell.project_input(x), before)
    arrays = {name: tensor[0].numpy() for name, tensor in quantities.items()}
    states = {name: tensor[0].numpy() for name, tensor in zip(cell.states, before, strict=True)}
    return OneStep(cell, x[0].numpy(), states, arrays)


def assert_equations_hold(step: OneStep) -> None:
    for quantity in step.cell.equations():
        equation = step.work_out(quantity)
        assert equation is not None, quantity
        values = step.after[quantity].ravel()
        np.testing.assert_allclose(equation.value.ravel(), values, atol=1e-6, err_msg=quantity)
        for unit in (0, len(values) // 2, len(values) - 1):
            last = equation.lines(unit)[-1].replace("\N{MINUS SIGN}", "-")
            assert float(last) == pytest.approx(values[unit], abs=6e-4), quantity

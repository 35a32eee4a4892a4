"""Equations out of docstrings come to what the cells compute, and are equation out so that a pencil can check them."""

import re

import numpy as np
import pytest
import torch

from relmo.analysis.core.one_step import OneStep, WorkedEquation
from relmo.errors import SettingError
from relmo.nn.cells import Cell
from relmo.nn.cells.elman import ElmanCell
from relmo.nn.cells.gru import GRUCell
from relmo.nn.cells.lstm import LSTMCell

CELLS = {
    "elman": lambda: ElmanCell(4, 3),
    "rectified": lambda: ElmanCell(4, 3, nonlinearity="relu"),
    "gru": lambda: GRUCell(4, 3),
    "lstm": lambda: LSTMCell(4, 3),
    "clipped": lambda: LSTMCell(4, 3, cell_clip=0.1),
    "projected": lambda: LSTMCell(4, 3, projection=2, projection_clip=0.05),
}


def step_of(cell: Cell) -> OneStep:
    torch.manual_seed(1)
    x, state = torch.randn(1, 4), tuple(torch.randn(1, size) for size in cell.state_sizes)
    to_numpy = lambda tensor: tensor[0].detach().double().numpy()  # noqa: E731
    after = {name: to_numpy(value) for name, value in cell.gates(x, state)._asdict().items()}
    before = dict(zip(cell.states, map(to_numpy, state), strict=True))
    return OneStep(cell, cell.weights(), to_numpy(x), before, after)


@pytest.mark.parametrize("name", CELLS)
def test_every_quantity_of_a_cell_has_an_equation_that_comes_to_its_value(name: str) -> None:
    step = step_of(CELLS[name]())
    assert {*step.cell.equations()} == {*step.after}
    for quantity, value in step.after.items():
        equation = step.work_out(quantity)
        assert equation is not None, quantity
        assert np.allclose(equation.value, value, atol=1e-6), quantity


def test_the_lines_of_a_unit_can_be_worked_out_to_its_value() -> None:
    step = step_of(GRUCell(4, 3))
    equation = step.work_out("n")
    assert equation is not None
    lines = equation.lines(1)
    assert lines[0].count("·") == 4 + 1 + 3  # a product for each input, the gate, one for each unit before
    for line in lines:
        python = line.replace("\N{MINUS SIGN}", "-").replace("·", "*").replace("tanh", "np.tanh")
        assert re.fullmatch(r"[-\d.+*() nptah]*", python)
        result = eval(python, {"np": np})  # noqa: S307 - numbers, brackets and tanh alone
        assert result == pytest.approx(step.after["n"][1], abs=0.01)  # as rounded as it is equation


def test_an_equation_that_is_not_what_the_cell_computes_is_not_equation_out() -> None:
    class Odd(ElmanCell):
        """h' = sigmoid(W_ih x + b_ih + W_hh h + b_hh)"""

    assert step_of(Odd(4, 3)).work_out("h") is None


@pytest.mark.parametrize("wrong", ["W_ih", "x +", "(x", "__import__", "x ** 2", "clip(x, 3)", "y * x", "x" * 401])
def test_other_words_than_those_of_equations_are_errors(wrong: str) -> None:
    with pytest.raises(SettingError):
        WorkedEquation(wrong, {"x": np.zeros(3), "W_ih": np.zeros((3, 3))})

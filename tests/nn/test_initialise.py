"""First weights: what the table in `initialise` says, looked at in the filled weights."""

import math

import pytest
import torch
from torch import nn

from relmo.nn.recurrence import Cell, initialise
from relmo.nn.recurrence.elman import ElmanCell
from relmo.nn.recurrence.gru import GRUCell
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.store.folder import SkipInit


@pytest.mark.parametrize(
    "cell", [ElmanCell(7, 20), GRUCell(7, 20), LSTMCell(7, 20)], ids=lambda cell: type(cell).__name__
)
def test_each_gate_s_recurrent_weights_are_orthogonal_its_inputs_within_xavier_s_bound(cell: Cell) -> None:
    initialise(cell)
    bound = math.sqrt(6 / (7 + 20))
    for gate in range(len(cell.blocks)):
        rows = slice(20 * gate, 20 * gate + 20)
        W = cell.weight_hh[rows]
        torch.testing.assert_close(W @ W.T, torch.eye(20), rtol=0, atol=1e-5)
        assert 0.9 * bound < cell.weight_ih[rows].abs().max().item() <= bound
    assert (cell.bias_hh == 0).all()


def test_only_the_forget_gate_has_a_bias() -> None:
    cell = LSTMCell(3, 4)
    initialise(nn.ModuleList([cell]))
    assert cell.bias_ih.tolist() == [0] * 4 + [1] * 4 + [0] * 8
    gru = GRUCell(3, 4)
    initialise(gru)
    assert (gru.bias_ih == 0).all()


def test_a_projected_lstm_s_gates_have_orthogonal_columns() -> None:
    cell = LSTMCell(3, 8, projection=4)
    initialise(cell)
    torch.testing.assert_close(cell.weight_hh[:8].T @ cell.weight_hh[:8], torch.eye(4), rtol=0, atol=1e-5)
    assert cell.weight_hr is not None
    assert cell.weight_hr.abs().max() <= math.sqrt(6 / 12)


def test_linear_layers_are_within_xavier_s_bound_and_without_bias() -> None:
    layer = nn.Linear(30, 40)
    initialise(nn.Sequential(layer, nn.Linear(2, 2, bias=False)))
    bound = math.sqrt(6 / 70)
    assert 0.95 * bound < layer.weight.abs().max().item() <= bound
    assert (layer.bias == 0).all()


def test_where_weights_are_about_to_be_loaded_nothing_is_drawn() -> None:
    cell = LSTMCell(3, 4)
    nn.init.constant_(cell.weight_hh, 5.0)
    with SkipInit():
        initialise(cell)
    assert (cell.weight_hh == 5).all()

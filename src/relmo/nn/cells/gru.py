"""The gated recurrent unit, in the form that torch and cuDNN compute.

Cho et al. 2014, Learning phrase representations using RNN encoder-decoder
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from relmo.nn.cells.base import Intervene, StackedCell, State, Weights, unchanged


class GRUGates(NamedTuple):
    """Quantities of one GRU step, (B, H): reset gate, update gate, candidate, new state."""

    r: Tensor
    z: Tensor
    n: Tensor
    h: Tensor


class GRUCell(StackedCell):
    """The gated recurrent unit.

    r  = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
    z  = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
    n  = tanh(W_in x + b_in + r * (W_hn h + b_hn))
    h' = (1 - z) * n + z * h
    """

    blocks: ClassVar = {"r": "reset gate", "z": "update gate", "n": "candidate"}
    keeps = "z"
    fused = "gru"

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.reset_parameters()

    def step(self, from_x: Tensor, state: State, weights: Weights, intervene: Intervene = unchanged) -> GRUGates:
        _, W_hh, _, b_hh = weights
        (h,) = state
        x_r, x_z, x_n = from_x.chunk(3, dim=-1)  # each (B, H)
        h_r, h_z, h_n = linear(h, W_hh, b_hh).chunk(3, dim=-1)
        r = torch.sigmoid(x_r + h_r)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        return GRUGates(r, z, n, h=intervene("h", (1 - z) * n + z * h))

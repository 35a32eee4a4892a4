"""The gated recurrent unit, in the form that torch and cuDNN compute.

Cho et al. 2014, Learning phrase representations using RNN encoder-decoder
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from relmo.nn.recurrence.base import Quantity, Record, StackedCell, State, gates, state, unchanged


class GRUCell(StackedCell):
    """The gated recurrent unit.

    r  = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
    z  = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
    n  = tanh(W_in x + b_in + r * (W_hn h + b_hn))
    h' = (1 - z) * n + z * h
    """

    name = "gru"
    blocks = ("r", "z", "n")
    keeps = "z"
    fused = "gru"

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        return [
            state("h", H, role="output"),
            *gates(H, r="reset gate", z="update gate"),
            Quantity("n", (H,), "candidate", "candidate", -1.0, 1.0),
        ]

    def equations(self) -> dict[str, str]:
        return {
            "r": "sigmoid(W_ir x + b_ir + W_hr h + b_hr)",
            "z": "sigmoid(W_iz x + b_iz + W_hz h + b_hz)",
            "n": "tanh(W_in x + b_in + r * (W_hn h + b_hn))",
            "h": "(1 - z) * n + z * h",
        }

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        (h,) = state
        x_r, x_z, x_n = x.chunk(3, dim=-1)  # each (B, H)
        h_r, h_z, h_n = linear(h, self.weight_hh, self.bias_hh).chunk(3, dim=-1)
        r = record("r", torch.sigmoid(x_r + h_r))
        z = record("z", torch.sigmoid(x_z + h_z))
        n = record("n", torch.tanh(x_n + r * h_n))
        h = record("h", (1 - z) * n + z * h)
        return h, (h,)

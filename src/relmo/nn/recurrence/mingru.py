"""The minimal gated recurrent unit, whose gates depend on the input alone.

Feng et al. 2024, Were RNNs all we needed?
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from relmo.nn.recurrence.base import Cell, Quantity, Record, State, gate, stacked_matrices, state, unchanged
from relmo.nn.recurrence.scan import linear_scan


class MinGRUCell(Cell):
    """The minimal gated recurrent unit, in its positive form.

    z  = sigmoid(W_z x)
    n  = g(W_n x), where g(a) = a + 0.5 for a >= 0, else sigmoid(a)
    h' = z * h + (1 - z) * n

    z keeps the state, as in `GRUCell`; the paper's z is 1 - z here. There are no biases. Weights start uniform in
    ±1/sqrt(I), as in torch's linear layers.
    """

    name = "mingru"
    blocks = ("z", "n")
    keeps = "z"
    inputs = ("weight_ih",)

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(2 * hidden_size, input_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        return [
            state("h", H, role="output"),
            gate("z", H, description="update gate"),
            Quantity("n", (H,), "candidate", "candidate", 0.0),
        ]

    def equations(self) -> dict[str, str]:
        return {"z": "sigmoid(W_z x)", "n": "relu(W_n x) + sigmoid(min(W_n x, 0))", "h": "z * h + (1 - z) * n"}

    def named_weights(self) -> dict[str, Tensor]:
        return {f"W_{block}": matrix for block, matrix in self.input_matrices().items()}

    def input_matrices(self) -> dict[str, Tensor]:
        return stacked_matrices(self.blocks, self.weight_ih)

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight_ih, -1 / math.sqrt(self.input_size), 1 / math.sqrt(self.input_size))

    def project_input(self, x: Tensor) -> Tensor:
        return linear(x, self.weight_ih)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        (h,) = state
        z, n = x.to(h.dtype).chunk(2, dim=-1)
        z, n = record("z", torch.sigmoid(z)), record("n", make_positive(n))
        h = record("h", z * h + (1 - z) * n)
        return h, (h,)

    def scan(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        z, n = x.to(torch.promote_types(h.dtype, torch.float32)).chunk(2, dim=-1)
        z = torch.sigmoid(z)
        hs = linear_scan(z, (1 - z) * make_positive(n), h, mask)
        return hs, (hs[:, -1].to(h.dtype),)


def make_positive(a: Tensor) -> Tensor:
    """Return g(a) = a + 0.5 for a >= 0, else sigmoid(a), which is continuous and positive."""
    positive = torch.relu(a)
    return positive + torch.sigmoid(a - positive)  # faster than torch.where, forward and backward

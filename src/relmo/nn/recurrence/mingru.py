"""The minimal gated recurrent unit, whose gates depend on the input alone.

Feng et al. 2024, Were RNNs all we needed?
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from relmo.nn.recurrence.base import BlockCell, Quantity, Record, State, gate, state, unchanged
from relmo.nn.recurrence.scan import linear_scan


class InputGatedCell(BlockCell):
    """Base class of the minimal cells, h' = f * h + new content, where f and the content depend on the input alone.

    Weights start uniform in ±1/sqrt(I), as in torch's linear layers.
    """

    input_prefix = "W_"
    recurrent = ()

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return f and the new content (…, H) of the projected input (…, G)."""
        raise NotImplementedError

    def biases(self) -> dict[str, Tensor]:
        return {}

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight_ih, -1 / math.sqrt(self.input_size), 1 / math.sqrt(self.input_size))

    def scan(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        hs = linear_scan(*self.coefficients(x.to(torch.promote_types(h.dtype, torch.float32))), h, mask)
        return hs, (hs[:, -1].to(h.dtype),)


class MinGRUCell(InputGatedCell):
    """The minimal gated recurrent unit, in its positive form.

    z  = sigmoid(W_z x)
    n  = g(W_n x), where g(a) = a + 0.5 for a >= 0, else sigmoid(a)
    h' = z * h + (1 - z) * n

    z keeps the state, as in `GRUCell`; the paper's z is 1 - z here. There are no biases.
    """

    name = "mingru"
    blocks = ("z", "n")
    keeps = "z"

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

    def project_input(self, x: Tensor) -> Tensor:
        return linear(x, self.weight_ih)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        (h,) = state
        z, n = x.to(h.dtype).chunk(2, dim=-1)
        z, n = record("z", torch.sigmoid(z)), record("n", make_positive(n))
        h = record("h", z * h + (1 - z) * n)
        return h, (h,)

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, n = x.chunk(2, dim=-1)
        z = torch.sigmoid(z)
        return z, (1 - z) * make_positive(n)


def make_positive(a: Tensor) -> Tensor:
    """Return g(a) = a + 0.5 for a >= 0, else sigmoid(a), which is continuous and positive."""
    positive = torch.relu(a)
    return positive + torch.sigmoid(a - positive)  # faster than torch.where, forward and backward

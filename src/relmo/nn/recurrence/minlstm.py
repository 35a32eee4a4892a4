"""The minimal LSTM, whose gates depend on the input alone.

Feng et al. 2024, Were RNNs all we needed?
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, softplus

from relmo.nn.recurrence.base import Cell, Quantity, Record, State, gate, stacked_matrices, state, unchanged
from relmo.nn.recurrence.mingru import make_positive
from relmo.nn.recurrence.scan import linear_scan


class MinLSTMCell(Cell):
    """The minimal LSTM, in its positive form; its gates are normalised, so that i = 1 - f.

    f  = sigmoid(W_f x + b_f) / (sigmoid(W_f x + b_f) + sigmoid(W_i x))
    i  = sigmoid(W_i x) / (sigmoid(W_f x + b_f) + sigmoid(W_i x))
    n  = g(W_n x), where g(a) = a + 0.5 for a >= 0, else sigmoid(a)
    h' = f * h + i * n

    forget_bias   initial value of b_f, the only bias. Weights start uniform in ±1/sqrt(I), as in torch's linear layers.
    """

    name = "minlstm"
    blocks = ("f", "i", "n")
    keeps = "f"
    inputs = ("weight_ih",)

    def __init__(self, input_size: int, hidden_size: int, *, forget_bias: float = 1.0):
        super().__init__(input_size, hidden_size)
        self.forget_bias = forget_bias
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        return [
            state("h", H, role="output"),
            gate("f", H, description="forget gate"),
            gate("i", H, description="input gate"),
            Quantity("n", (H,), "candidate", "candidate", 0.0),
        ]

    def equations(self) -> dict[str, str]:
        total = "(sigmoid(W_f x + b_f) + sigmoid(W_i x))"
        return {
            "f": f"sigmoid(W_f x + b_f) / {total}",
            "i": f"sigmoid(W_i x) / {total}",
            "n": "relu(W_n x) + sigmoid(min(W_n x, 0))",
            "h": "f * h + i * n",
        }

    def named_weights(self) -> dict[str, Tensor]:
        return {f"W_{block}": matrix for block, matrix in self.input_matrices().items()} | {"b_f": self.bias}

    def input_matrices(self) -> dict[str, Tensor]:
        return stacked_matrices(self.blocks, self.weight_ih)

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight_ih, -1 / math.sqrt(self.input_size), 1 / math.sqrt(self.input_size))
        nn.init.constant_(self.bias, self.forget_bias)

    @torch.no_grad()
    def raise_forget_bias(self, by: float) -> None:
        self.bias.add_(by)

    def project_input(self, x: Tensor) -> Tensor:
        return linear(x, self.weight_ih, pad(self.bias, (0, 2 * self.hidden_size)))

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        (h,) = state
        f, i, n = _compute_gates(x.to(h.dtype))
        f, i, n = record("f", f), record("i", i), record("n", n)
        h = record("h", f * h + i * n)
        return h, (h,)

    def scan(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        f, i, n = _compute_gates(x.to(torch.promote_types(h.dtype, torch.float32)))
        hs = linear_scan(f, i * n, h, mask)
        return hs, (hs[:, -1].to(h.dtype),)


def _compute_gates(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return f, i and n from their pre-activations; f / i is computed by its logarithm d, which cannot become 0/0."""
    f, i, n = x.chunk(3, dim=-1)
    d = softplus(-i) - softplus(-f)
    return torch.sigmoid(d), torch.sigmoid(-d), make_positive(n)

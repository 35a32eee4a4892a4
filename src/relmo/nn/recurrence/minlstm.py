"""The minimal LSTM, whose gates depend on the input alone.

Feng et al. 2024, Were RNNs all we needed?
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, softplus

from relmo.nn.recurrence.base import Quantity, Record, State, gates, state, unchanged
from relmo.nn.recurrence.mingru import InputGatedCell, make_positive


class MinLSTMCell(InputGatedCell):
    """The minimal LSTM, in its positive form; its gates are normalised, so that i = 1 - f.

    f  = sigmoid(W_f x + b_f) / (sigmoid(W_f x + b_f) + sigmoid(W_i x))
    i  = sigmoid(W_i x) / (sigmoid(W_f x + b_f) + sigmoid(W_i x))
    n  = g(W_n x), where g(a) = a + 0.5 for a >= 0, else sigmoid(a)
    h' = f * h + i * n

    forget_bias   initial value of b_f, the only bias
    """

    name = "minlstm"
    blocks = ("f", "i", "n")
    keeps = "f"

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
            *gates(H, f="forget gate", i="input gate"),
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

    def biases(self) -> dict[str, Tensor]:
        return {"f": self.bias}

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.bias, self.forget_bias)

    def project_input(self, x: Tensor) -> Tensor:
        return linear(x, self.weight_ih, pad(self.bias, (0, 2 * self.hidden_size)))

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        (h,) = state
        f, i, n = self._gates(x.to(h.dtype))
        f, i, n = record("f", f), record("i", i), record("n", n)
        h = record("h", f * h + i * n)
        return h, (h,)

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        f, i, n = self._gates(x)
        return f, i * n

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        f, i, n = x.chunk(3, dim=-1)
        d = softplus(-i) - softplus(-f)  # log(f / i), which cannot become 0/0
        return torch.sigmoid(d), torch.sigmoid(-d), make_positive(n)

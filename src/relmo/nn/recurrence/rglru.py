"""The real-gated linear recurrent unit.

De et al. 2024, Griffin: mixing gated linear recurrences with local attention for efficient language models
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from relmo.nn.recurrence.base import Cell, Quantity, Record, State, gates, state, unchanged
from relmo.nn.recurrence.scan import linear_scan

RATE = 8  # c of the paper
MIN_DECAY, MAX_DECAY = 0.9, 0.999
MAX_SQRT_GRADIENT = 1000.0


class RGLRUCell(Cell):
    """The real-gated linear recurrent unit, which reads a linear projection of the input.

    u  = W_u x
    r  = sigmoid(W_r u + b_r)
    i  = sigmoid(W_i u + b_i)
    a  = exp(-8 r * softplus(Λ))
    h' = a * h + sqrt(1 - s * a²) * i * u
    s' = 1

    The root keeps the variance of h constant. s is 0 before the first step, whose factor is therefore 1, as in the
    authors' code. The gradient of the root is limited to 1000.

    heads   number of blocks of the block-diagonal W_r and W_i

    Initialised as in the authors' code: entries of matrices normal with variance 1 / (number of columns), biases 0, and
    exp(-softplus(Λ)) in 0.9 … 0.999 with a uniform square.
    """

    name = "rglru"
    keeps = "a"
    inputs = ("weight_ih",)

    def __init__(self, input_size: int, hidden_size: int, *, heads: int = 1):
        super().__init__(input_size, hidden_size)
        self.heads, d = self.split_heads(heads)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_gates = nn.Parameter(torch.empty(2, self.heads, d, d))  # of r and i
        self.bias = nn.Parameter(torch.empty(2, hidden_size))
        self.decay = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        return [
            state("h", H, role="output"),
            state("s", 1, role="stabiliser", description="0 before the first step, then 1"),
            *gates(H, r="recurrence gate", i="input gate", a="decay"),
            Quantity("u", (H,), "candidate", "projected input"),
        ]

    def equations(self) -> dict[str, str]:
        return {
            "u": "W_u x",
            "r": "sigmoid(W_r u + b_r)",
            "i": "sigmoid(W_i u + b_i)",
            "a": f"exp(-{RATE} * r * softplus(Λ))",
            "h": "a * h + sqrt(1 - s * a * a) * i * u",
            "s": "1",
        }

    def named_weights(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {"W_u": self.weight_ih, "Λ": self.decay}
        for block, matrix, bias in zip("ri", self.weight_gates, self.bias, strict=True):
            named |= {f"W_{block}": matrix, f"b_{block}": bias}
        return named

    def input_matrices(self) -> dict[str, Tensor]:
        gates = zip("ri", self.weight_gates, strict=True)
        matrices: dict[str, Tensor] = {"u": self.weight_ih}
        return matrices | {name: torch.block_diag(*blocks) @ self.weight_ih for name, blocks in gates}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight_ih, std=1 / math.sqrt(self.input_size))
        nn.init.normal_(self.weight_gates, std=1 / math.sqrt(self.weight_gates.shape[-1]))
        nn.init.zeros_(self.bias)
        nn.init.uniform_(self.decay, MIN_DECAY**2, MAX_DECAY**2)
        self.decay.copy_((self.decay.rsqrt() - 1).log())  # softplus(Λ) = -log of the root

    def project_input(self, x: Tensor) -> Tensor:
        u = linear(x, self.weight_ih)
        gates = torch.einsum("...hi,ghoi->...gho", u.unflatten(-1, (self.heads, -1)), self.weight_gates)
        return torch.cat([u, gates.flatten(-3) + self.bias.flatten()], dim=-1)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        h, s = state
        u, r, i = x.to(h.dtype).chunk(3, dim=-1)
        u, r, i = record("u", u), record("r", torch.sigmoid(r)), record("i", torch.sigmoid(i))
        a = record("a", torch.exp(-RATE * r * softplus(self.decay)))
        h = record("h", a * h + torch.where(s == 0, 1.0, _bounded_sqrt(1 - a * a)) * (i * u))
        return h, (h, record("s", torch.ones_like(s)))

    def scan(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        h, s = state
        dtype = torch.promote_types(h.dtype, torch.float32)
        u, r, i = x.to(dtype).chunk(3, dim=-1)
        a = torch.exp(torch.sigmoid(r) * (-RATE * softplus(self.decay.to(dtype))))
        read = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
        is_first = (read.cumsum(1) == 1).unsqueeze(2) & (s == 0).unsqueeze(1)  # (B, T, 1)
        factor = torch.where(is_first, 1.0, _bounded_sqrt(1 - a * a))
        hs = linear_scan(a, factor * torch.sigmoid(i) * u, h, mask)
        return hs, (hs[:, -1].to(h.dtype), torch.where(read.any(1, keepdim=True), 1.0, s))


def _bounded_sqrt(x: Tensor) -> Tensor:
    """Return the square root, with a gradient of at most MAX_SQRT_GRADIENT."""
    root = x.detach().sqrt()
    return root + (0.5 / root).clamp(max=MAX_SQRT_GRADIENT) * (x - x.detach())

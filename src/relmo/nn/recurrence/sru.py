"""The simple recurrent unit, in which each unit of the memory is read by its own gates alone.

Lei et al. 2018, Simple recurrent units for highly parallelizable recurrence
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

from relmo.nn.recurrence.base import Cell, Quantity, Record, State, gates, prefixed, state, unchanged
from relmo.nn.recurrence.scan import backpropagate


class SRUCell(Cell):
    """The simple recurrent unit, with a highway connection from its input.

    n  = W_n x
    f  = sigmoid(W_f x + v_f * c + b_f)
    r  = sigmoid(W_r x + v_r * c + b_r)
    c' = f * c + (1 - f) * n
    h' = r * c' + (1 - r) * x

    If the sizes of the input and the output differ, W_p x takes the place of x in the last line.

    highway_bias   initial value of b_r; b_f starts at 0

    Initialised as in the paper and its code: the entries of W have variance 1/I, those of W_f and W_r 1/(2 I), those of
    v 1/2, all uniform.
    """

    name = "sru"
    keeps = "f"
    inputs = ("weight_ih",)
    recurrent = ("weight_c",)

    def __init__(self, input_size: int, hidden_size: int, *, highway_bias: float = 0.0):
        super().__init__(input_size, hidden_size)
        self.highway_bias = highway_bias
        self.blocks = ("n", "f", "r") if input_size == hidden_size else ("n", "f", "r", "p")
        self.weight_ih = nn.Parameter(torch.empty(len(self.blocks) * hidden_size, input_size))
        self.weight_c = nn.Parameter(torch.empty(2, hidden_size))
        self.bias = nn.Parameter(torch.empty(2 * hidden_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        return [
            Quantity("h", (H,), "output", "output"),
            state("c", H),
            *gates(H, f="forget gate", r="reset gate"),
            Quantity("n", (H,), "candidate", "candidate"),
        ]

    def equations(self) -> dict[str, str]:
        return {
            "n": "W_n x",
            "f": "sigmoid(W_f x + v_f * c + b_f)",
            "r": "sigmoid(W_r x + v_r * c + b_r)",
            "c": "f * c + (1 - f) * n",
            "h": f"r * c' + (1 - r) * {'W_p x' if 'p' in self.blocks else 'x'}",
        }

    def named_weights(self) -> dict[str, Tensor]:
        named = prefixed("W_", self._input_blocks())
        named |= prefixed("v_", dict(zip("fr", self.weight_c, strict=True)))
        return named | prefixed("b_", dict(zip("fr", self.bias.chunk(2), strict=True)))

    def input_matrices(self) -> dict[str, Tensor]:
        return {name: matrix for name, matrix in self._input_blocks().items() if name != "p"}

    def _input_blocks(self) -> dict[str, Tensor]:
        return dict(zip(self.blocks, self.weight_ih.split(self.hidden_size), strict=True))

    def reset_parameters(self) -> None:
        bound = math.sqrt(3 / self.input_size)
        nn.init.uniform_(self.weight_ih, -bound, bound)
        nn.init.uniform_(self.weight_c, -math.sqrt(1.5), math.sqrt(1.5))
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.weight_ih[self.hidden_size : 3 * self.hidden_size] *= math.sqrt(0.5)
            self.bias[self.hidden_size :] = self.highway_bias

    def project_input(self, x: Tensor) -> Tensor:
        H = self.hidden_size
        projected = linear(x, self.weight_ih, pad(self.bias, (H, len(self.weight_ih) - 3 * H)))
        return projected if "p" in self.blocks else torch.cat([projected, x.to(projected.dtype)], dim=-1)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        (c,) = state
        n, f, r, skip = x.to(c.dtype).chunk(4, dim=-1)  # each (B, H)
        v_f, v_r = self.weight_c
        n, f = record("n", n), record("f", torch.sigmoid(f + v_f * c))
        r = record("r", torch.sigmoid(r + v_r * c))
        c = record("c", f * c + (1 - f) * n)
        h = record("h", r * c + (1 - r) * skip)
        return h, (c,)

    def scan(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (c,) = state
        dtype = torch.promote_types(c.dtype, torch.float32)
        n, f, r, skip = x.to(dtype).chunk(4, dim=-1)  # each (B, T, H)
        v_f, v_r = self.weight_c.to(dtype)
        if mask is not None:
            f = torch.where(mask.unsqueeze(2), f, math.inf)  # an open gate keeps c
        cs, _ = _SRURecurrence.apply(n, f, v_f, c.to(dtype))
        past = torch.cat([c.to(dtype).unsqueeze(1), cs[:, :-1]], dim=1)
        hs = torch.lerp(skip, cs, torch.sigmoid(torch.addcmul(r, v_r, past)))
        return hs, (cs[:, -1].to(c.dtype),)


class _SRURecurrence(torch.autograd.Function):
    """All steps of c and the gate f. f reads c, so that the steps are computed one after another; the gradient of c is
    a linear recurrence, dL/dc = dc'/dc * dL/dc', which is computed in parallel.

    Only operations out of place are used, from which torch generates the rule for `vmap`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(n: Tensor, x: Tensor, v: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        rows = []
        for n_t, x_t in zip(n.unbind(1), x.unbind(1), strict=True):
            f = torch.sigmoid(torch.addcmul(x_t, v, c))
            c = torch.lerp(n_t, c, f)
            rows.append((c, f))
        cs, fs = zip(*rows, strict=True)
        return torch.stack(cs, dim=1), torch.stack(fs, dim=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        n, _, v, c = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(n, v, c, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_cs: Tensor, _: Any) -> tuple[Tensor, ...]:
        n, v, c, cs, f = ctx.saved_tensors
        past = torch.cat([c.unsqueeze(1), cs[:, :-1]], dim=1)
        slope = (past - n) * f * (1 - f)  # dc' by the pre-activation of f
        a = torch.addcmul(f, v, slope)  # dc'/dc
        g = backpropagate(a, d_cs)
        d_x = g * slope
        return g * (1 - f), d_x, (d_x * past).sum((0, 1)), a[:, 0] * g[:, 0]

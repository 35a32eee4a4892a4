"""The Mogrifier LSTM, in which input and previous output gate each other before they enter an LSTM.

Melis et al. 2020, Mogrifier LSTM
"""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from relmo.nn.recurrence.base import Quantity, Record, StackedCell, State, gate, unchanged

ROUND_GATES = "pqrstuvwyz"  # the gate of each round; x is the input


class MogrifierLSTMCell(StackedCell):
    """LSTM that reads x * p * r * t in place of x and h * q * s in place of h, after five rounds of gating.

    p  = 2 * sigmoid(Q_p h + b_p)
    q  = 2 * sigmoid(R_q (x * p) + b_q)
    r  = 2 * sigmoid(Q_r (h * q) + b_r)
    s  = 2 * sigmoid(R_s (x * p * r) + b_s)
    t  = 2 * sigmoid(Q_t (h * q * s) + b_t)
    f  = sigmoid(W_if (x * p * r * t) + b_if + W_hf (h * q * s) + b_hf)
    i  = min(1 - f, sigmoid(W_ii (x * p * r * t) + b_ii + W_hi (h * q * s) + b_hi))
    g  = tanh(W_ig (x * p * r * t) + b_ig + W_hg (h * q * s) + b_hg)
    o  = sigmoid(W_io (x * p * r * t) + b_io + W_ho (h * q * s) + b_ho)
    c' = f * c + i * g
    h' = o * tanh(c')

    rounds        number of rounds, from 0 to 10, whose gates are named p, q, r, s, t, u, v, w, y, z
    rank          rank of the matrices Q and R, products of two factors; None for full matrices
    forget_bias   initial bias of the forget gate; the other biases start at 0

    Matrices start as in the authors' code, from a normal distribution with variance 1 / fan-in, but without its limit
    of two standard deviations.
    """

    name = "mogrifier"
    blocks = ("i", "f", "g", "o")
    keeps = "f"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        rounds: int = 5,
        rank: int | None = None,
        forget_bias: float = 1.0,
    ):
        super().__init__(input_size, hidden_size)
        if not 0 <= rounds <= len(ROUND_GATES):
            raise ValueError(f"rounds must be between 0 and {len(ROUND_GATES)}, not {rounds}.")
        if rank is not None and (rank != int(rank) or rank < 1):
            raise ValueError(f"rank must be a positive whole number, not {rank}.")
        self.rounds, self.rank, self.forget_bias = rounds, None if rank is None else int(rank), forget_bias
        self.options = [f"{rounds} rounds"] + ([] if rank is None else [f"rank {rank}"])
        self.gates_of_x, self.gates_of_h = ROUND_GATES[:rounds:2], ROUND_GATES[1:rounds:2]
        self.weight_q, self.expand_q, self.bias_q = self._make_rounds(len(self.gates_of_x), input_size, hidden_size)
        self.weight_r, self.expand_r, self.bias_r = self._make_rounds(len(self.gates_of_h), hidden_size, input_size)
        self.recurrent = ("weight_hh", "weight_q")[: 2 if rounds else 1]  # type: ignore[misc, assignment]
        self.reset_parameters()

    def _make_rounds(self, count: int, rows: int, columns: int) -> tuple[nn.Parameter | None, ...]:
        """Return weights (count, rows or rank, columns), the left factors of low rank, if any, and biases."""
        if not count:
            return None, None, None
        weight = nn.Parameter(torch.empty(count, self.rank or rows, columns))
        left = nn.Parameter(torch.empty(count, rows, self.rank)) if self.rank else None
        return weight, left, nn.Parameter(torch.empty(count, rows))

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        targets = dict.fromkeys(self.gates_of_x, (self.input_size, "input"))
        targets |= dict.fromkeys(self.gates_of_h, (H, "previous output"))
        return [
            Quantity("h", (H,), "output", "output", -1.0, 1.0, initial=0.0),
            Quantity("c", (H,), "memory", "memory", -1.0, 1.0, initial=0.0),
            gate("i", H, description="input gate"),
            gate("f", H, description="forget gate"),
            gate("o", H, description="output gate"),
            *(
                gate(letter, targets[letter][0], description=f"gate of the {targets[letter][1]}, round {k}", high=2.0)
                for k, letter in enumerate(ROUND_GATES[: self.rounds], start=1)
            ),
            Quantity("g", (H,), "candidate", "candidate", -1.0, 1.0),
        ]

    def corresponding_unit(self, source: str, unit: int, target: str) -> int | None:
        if (source in self.gates_of_x) != (target in self.gates_of_x):
            return None
        return super().corresponding_unit(source, unit, target)

    def equations(self) -> dict[str, str]:
        equations = {}
        x, h = "x", "h"  # the right sides after each round
        for k, letter in enumerate(ROUND_GATES[: self.rounds]):
            if k % 2:
                equations[letter] = f"2 * sigmoid(R_{letter} {_bracket(x)} + b_{letter})"
                h = f"{h} * {letter}"
            else:
                equations[letter] = f"2 * sigmoid(Q_{letter} {_bracket(h)} + b_{letter})"
                x = f"{x} * {letter}"
        for block in self.blocks:
            terms = f"W_i{block} {_bracket(x)} + b_i{block} + W_h{block} {_bracket(h)} + b_h{block}"
            equations[block] = f"{'tanh' if block == 'g' else 'sigmoid'}({terms})"
        equations["i"] = f"min(1 - f, {equations['i']})"
        return equations | {"c": "f * c + i * g", "h": "o * tanh(c')"}

    def named_weights(self) -> dict[str, Tensor]:
        named = super().named_weights()
        for prefix, letters, (weight, left, bias) in (
            ("Q", self.gates_of_x, (self.weight_q, self.expand_q, self.bias_q)),
            ("R", self.gates_of_h, (self.weight_r, self.expand_r, self.bias_r)),
        ):
            if weight is not None and bias is not None:
                matrices = weight if left is None else left @ weight
                named |= {f"{prefix}_{letter}": matrix for letter, matrix in zip(letters, matrices, strict=True)}
                named |= {f"b_{letter}": row for letter, row in zip(letters, bias, strict=True)}
        return named

    def reset_parameters(self) -> None:
        for name, weight in self.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(weight)
            else:
                nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-1]))
        nn.init.constant_(self.biases()["f"], self.forget_bias)

    def initialise(self) -> None:
        self.reset_parameters()

    def for_many_steps(self) -> Self:
        # The gradient of an index into a stack of matrices is as large as the stack, at every step.
        weights: dict[str, Any] = dict(self.weights())
        return self.with_weights({name: w.unbind() if name[-1] in "qr" else w for name, w in weights.items()})

    def project_input(self, x: Tensor) -> Tensor:
        return x  # the rounds change x by h before it is projected

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        h, c = state
        for k, letter in enumerate(ROUND_GATES[: self.rounds]):
            if k % 2:
                h = h * record(letter, _gate(x, k // 2, self.weight_r, self.expand_r, self.bias_r))
            else:
                x = x * record(letter, _gate(h, k // 2, self.weight_q, self.expand_q, self.bias_q))
        gates = linear(x, self.weight_ih, self.bias_ih) + linear(h, self.weight_hh, self.bias_hh)
        i, f, g, o = gates.chunk(4, dim=-1)  # each (B, H)
        f, g, o = record("f", torch.sigmoid(f)), record("g", torch.tanh(g)), record("o", torch.sigmoid(o))
        i = record("i", torch.minimum(1 - f, torch.sigmoid(i)))
        c = record("c", f * c + i * g)
        h = record("h", o * torch.tanh(c))
        return h, (h, c)


def _gate(x: Tensor, index: int, weights: Tensor | None, left: Tensor | None, biases: Tensor | None) -> Tensor:
    """Return 2 * sigmoid(W x + b) for the round of this index, where W is a matrix or the product of two."""
    assert weights is not None
    assert biases is not None
    if left is None:
        return 2 * torch.sigmoid(linear(x, weights[index], biases[index]))
    return 2 * torch.sigmoid(linear(linear(x, weights[index]), left[index], biases[index]))


def _bracket(product: str) -> str:
    return f"({product})" if "*" in product else product

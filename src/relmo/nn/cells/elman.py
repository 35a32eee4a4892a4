"""The simple recurrent network.

Elman 1990, Finding structure in time
"""

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from relmo.nn.cells.base import Intervene, StackedCell, State, Weights, unchanged


class ElmanGates(NamedTuple):
    """Quantities of one Elman step, (B, H)."""

    h: Tensor


class ElmanCell(StackedCell):
    """The simple recurrent network, with tanh or relu.

    h' = tanh(W_ih x + b_ih + W_hh h + b_hh)
    """

    blocks: ClassVar = {"h": "output"}

    def __init__(self, input_size: int, hidden_size: int, *, nonlinearity: Literal["tanh", "relu"] = "tanh"):
        super().__init__(input_size, hidden_size)
        self.nonlinearity = nonlinearity
        self.fused, self.options = f"rnn_{nonlinearity}", [nonlinearity]
        self.reset_parameters()

    def equations(self) -> dict[str, str]:
        return {name: text.replace("tanh", self.nonlinearity) for name, text in super().equations().items()}

    def step(self, from_x: Tensor, state: State, weights: Weights, intervene: Intervene = unchanged) -> ElmanGates:
        _, W_hh, _, b_hh = weights
        (h,) = state
        activation = torch.tanh if self.nonlinearity == "tanh" else torch.relu
        return ElmanGates(h=intervene("h", activation(from_x + linear(h, W_hh, b_hh))))

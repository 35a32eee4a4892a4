"""The simple recurrent network.

Elman 1990, Finding structure in time;  Le et al. 2015, A simple way to initialize recurrent networks of rectified
linear units (relu with the identity)
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from relmo.nn.recurrence.base import Quantity, Record, StackedCell, State, state, unchanged


class ElmanCell(StackedCell):
    """The simple recurrent network, with tanh or relu.

    h' = tanh(W_ih x + b_ih + W_hh h + b_hh)

    With `identity` the recurrent matrix starts as the identity and the biases at 0 (Le et al. 2015, with relu).
    """

    name = "elman"
    blocks = ("h",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        identity: bool = False,
    ):
        super().__init__(input_size, hidden_size)
        self.nonlinearity, self.identity = nonlinearity, identity
        self.fused, self.options = f"rnn_{nonlinearity}", [nonlinearity]
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        return [state("h", self.hidden_size, role="output")]

    def equations(self) -> dict[str, str]:
        return {"h": f"{self.nonlinearity}(W_ih x + b_ih + W_hh h + b_hh)"}

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.identity:
            self.initialise()

    def initialise(self) -> None:
        super().initialise()
        if self.identity:
            nn.init.eye_(self.weight_hh)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        (h,) = state
        activation = torch.tanh if self.nonlinearity == "tanh" else torch.relu
        h = record("h", activation(x + linear(h, self.weight_hh, self.bias_hh)))
        return h, (h,)

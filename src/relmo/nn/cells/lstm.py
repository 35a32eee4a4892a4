"""Long short-term memory.

Hochreiter & Schmidhuber 1997, Long short-term memory;  Gers et al. 2000, Learning to forget (the forget gate)
Sak et al. 2014, Long short-term memory recurrent neural network architectures (the projection)
Jozefowicz et al. 2015, An empirical exploration of recurrent network architectures (the forget gate's bias)
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from relmo.nn.cells.base import Intervene, StackedCell, State, Weights, unchanged


class LSTMGates(NamedTuple):
    """All quantities of one LSTM step: input, forget gate, candidate, output gate, new cell (B, H); output h (B, P)."""

    i: Tensor
    f: Tensor
    g: Tensor
    o: Tensor
    c: Tensor
    h: Tensor


class LSTMCell(StackedCell):
    """Long short-term memory with a forget gate; on request projected and clipped, as ELMo's is.

    i  = sigmoid(W_ii x + b_ii + W_hi h + b_hi)
    f  = sigmoid(W_if x + b_if + W_hf h + b_hf)
    g  = tanh(W_ig x + b_ig + W_hg h + b_hg)
    o  = sigmoid(W_io x + b_io + W_ho h + b_ho)
    c' = f * c + i * g
    h' = o * tanh(c')

    On request c' = clip(f * c + i * g, ±cell_clip) and h' = clip(W_hr (o * tanh(c')), ±projection_clip).
    The forget gate's bias starts at `forget_bias` (Jozefowicz et al. 2015: 1 lets memory pass from the first step on).
    A clip that is None does not clip; the clipped c' and h' are what is carried.
    """

    states = ("h", "c")
    blocks: ClassVar = {"i": "input gate", "f": "forget gate", "g": "candidate", "o": "output gate"}
    memory = "c"
    keeps = "f"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        projection: int | None = None,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
        forget_bias: float = 1.0,
    ):
        super().__init__(input_size, hidden_size, projection)
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip if projection else None
        self.forget_bias = forget_bias
        self.weight_hr = nn.Parameter(torch.empty(projection, hidden_size)) if projection else None
        smaller = projection is None or projection < hidden_size  # the fused kernels know no other projection
        self.fused = "lstm" if smaller and self.cell_clip is None and self.projection_clip is None else None
        self.reset_parameters()

    def describe(self) -> str:
        clips = {"cell": self.cell_clip, "projection": self.projection_clip}
        shown = [f"{what} clipped at {limit:g}" for what, limit in clips.items() if limit is not None]
        return f"{self.name} with {', '.join(shown)}" if shown else self.name

    def equations(self) -> dict[str, str]:
        found = super().equations()
        if self.cell_clip is not None:
            found["c"] = f"clip({found['c']}, ±{self.cell_clip:g})"
        if self.weight_hr is not None:
            found["h"] = f"W_hr ({found['h']})"
        if self.projection_clip is not None:
            found["h"] = f"clip({found['h']}, ±{self.projection_clip:g})"
        return found

    def named_weights(self, weights: Weights) -> dict[str, Tensor]:
        projection = self.projection_matrix(weights)
        return super().named_weights(weights) | ({} if projection is None else {"W_hr": projection})

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._start_forgetting()
        nn.init.zeros_(self.bias_hh[self._forget])

    def initialise(self) -> None:
        super().initialise()
        self._start_forgetting()

    @property
    def _forget(self) -> slice:
        return slice(self.hidden_size, 2 * self.hidden_size)

    def _start_forgetting(self) -> None:
        nn.init.constant_(self.bias_ih[self._forget], self.forget_bias)

    @torch.no_grad()
    def raise_forget_bias(self, by: float) -> None:
        self.bias_ih[self._forget] += by

    def projection_matrix(self, weights: Weights) -> Tensor | None:
        return None if self.weight_hr is None else weights[4]

    def step(self, from_x: Tensor, state: State, weights: Weights, intervene: Intervene = unchanged) -> LSTMGates:
        _, W_hh, _, b_hh, *W_hr = weights
        h, c = state
        i, f, g, o = (from_x + linear(h, W_hh, b_hh)).chunk(4, dim=-1)  # each (B, H)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = intervene("c", clip(f * c + i * g, self.cell_clip))
        h = o * torch.tanh(c)
        if W_hr:
            h = clip(linear(h, W_hr[0]), self.projection_clip)
        return LSTMGates(i, f, g, o, c, intervene("h", h))


def clip(x: Tensor, limit: float | None) -> Tensor:
    """x with every element held within ±limit; None leaves it as it is."""
    return x if limit is None else x.clamp(-limit, limit)

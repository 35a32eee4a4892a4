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
    """Quantities of one LSTM step: input, forget gate, candidate, output gate, new cell (B, H); output h (B, P)."""

    i: Tensor
    f: Tensor
    g: Tensor
    o: Tensor
    c: Tensor
    h: Tensor


class LSTMCell(StackedCell):
    """Long short-term memory with a forget gate, optionally projected and clipped as in ELMo.

    i  = sigmoid(W_ii x + b_ii + W_hi h + b_hi)
    f  = sigmoid(W_if x + b_if + W_hf h + b_hf)
    g  = tanh(W_ig x + b_ig + W_hg h + b_hg)
    o  = sigmoid(W_io x + b_io + W_ho h + b_ho)
    c' = f * c + i * g
    h' = o * tanh(c')

    With options c' = clip(f * c + i * g, ±cell_clip) and h' = clip(W_hr (o * tanh(c')), ±projection_clip).
    The forget gate's bias starts at `forget_bias` (Jozefowicz et al. 2015: 1 lets memory pass from the first step on).
    A clip of None does not clip; the clipped c' and h' are carried.
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
        self.cell_clip, self.projection_clip = cell_clip, projection_clip if projection else None
        clips = {"cell": self.cell_clip, "projection": self.projection_clip}
        self.options = [f"{name} clipped at {limit:g}" for name, limit in clips.items() if limit is not None]
        self.forget_bias = forget_bias
        self.weight_hr = nn.Parameter(torch.empty(projection, hidden_size)) if projection else None
        is_smaller = projection is None or projection < hidden_size  # required by the fused kernels
        self.fused = "lstm" if is_smaller and not self.options else None
        self.reset_parameters()

    def equations(self) -> dict[str, str]:
        equations = super().equations()
        if self.cell_clip is not None:
            equations["c"] = f"clip({equations['c']}, ±{self.cell_clip:g})"
        if self.weight_hr is not None:
            equations["h"] = f"W_hr ({equations['h']})"
        if self.projection_clip is not None:
            equations["h"] = f"clip({equations['h']}, ±{self.projection_clip:g})"
        return equations

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.bias_ih[self.hidden_size : 2 * self.hidden_size], self.forget_bias)
        nn.init.zeros_(self.bias_hh[self.hidden_size : 2 * self.hidden_size])

    def initialise(self) -> None:
        super().initialise()
        nn.init.constant_(self.bias_ih[self.hidden_size : 2 * self.hidden_size], self.forget_bias)

    @torch.no_grad()
    def raise_forget_bias(self, by: float) -> None:
        self.bias_ih[self.hidden_size : 2 * self.hidden_size] += by

    def step(self, from_x: Tensor, state: State, weights: Weights, intervene: Intervene = unchanged) -> LSTMGates:
        _, W_hh, _, b_hh, *W_hr = weights
        h, c = state
        i, f, g, o = (from_x + linear(h, W_hh, b_hh)).chunk(4, dim=-1)  # each (B, H)
        i, f, g, o, c = update_memory(i, f, g, o, c, self.cell_clip)
        c = intervene("c", c)
        h = o * torch.tanh(c)
        if W_hr:
            h = clip(linear(h, W_hr[0]), self.projection_clip)
        return LSTMGates(i, f, g, o, c, intervene("h", h))


def update_memory(
    i: Tensor, f: Tensor, g: Tensor, o: Tensor, c: Tensor, limit: float | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gates i, f, g, o and c' = clip(f * c + i * g, ±limit), from pre-activations and the cell state."""
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    return i, f, g, o, clip(f * c + i * g, limit)


def clip(x: Tensor, limit: float | None) -> Tensor:
    """Clamp x to ±limit; None does nothing."""
    return x if limit is None else x.clamp(-limit, limit)

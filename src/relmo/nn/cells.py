"""Recurrent cells, written out as their equations: the definition that every faster path must equal.

A cell is one step in time, `(x, state) -> (y, state)`. Its state is a tuple of tensors with the batch first: `(h,)` for
Elman and GRU, `(h, c)` for the LSTM. `cell.gates(x, state)` gives every quantity of the step by name.

Weights are laid out as in `torch.nn.RNN/GRU/LSTM` (gates stacked along the rows, two bias vectors), so that weights can
be copied from and to torch, and torch's fused kernels can run on them. Every method takes other weights in place of the
cell's own (`weights=`), which is how dropped-out recurrent weights reach it.

    Elman 1990, Finding structure in time
    Hochreiter & Schmidhuber 1997, Long short-term memory;  Gers et al. 2000, Learning to forget (the forget gate)
    Cho et al. 2014, Learning phrase representations (the GRU), in the form torch and cuDNN compute
    Sak et al. 2014, Long short-term memory recurrent neural network architectures (the projection)
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

State = tuple[Tensor, ...]  # every tensor has the batch as its first dimension


class ElmanGates(NamedTuple):
    """All quantities of one Elman step, (B, H)."""

    h: Tensor


class GRUGates(NamedTuple):
    """All quantities of one GRU step, (B, H): reset gate, update gate, candidate, new state."""

    r: Tensor
    z: Tensor
    n: Tensor
    h: Tensor


class LSTMGates(NamedTuple):
    """All quantities of one LSTM step: input, forget gate, candidate, output gate, new cell (B, H); output h (B, P)."""

    i: Tensor
    f: Tensor
    g: Tensor
    o: Tensor
    c: Tensor
    h: Tensor


class Cell(nn.Module):
    """What the cells share: the weights of `blocks` gates and their initialisation.

    `output_size` is the size of y, `state_sizes` the sizes of the state's tensors, and `fused` the name of the torch
    function that computes the same recurrence over a whole sequence (None where there is none).
    """

    blocks: int  # how many gate blocks of H rows the weight matrices stack
    fused: str | None

    def __init__(self, input_size: int, hidden_size: int, *, recurrent_size: int | None = None):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.output_size = recurrent_size or hidden_size
        rows = self.blocks * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, self.output_size))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The width of each tensor of the state."""
        return (self.output_size,)

    def reset_parameters(self) -> None:
        """Every weight and bias uniform in ±1/sqrt(H), as torch does."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def weights(self) -> list[Tensor]:
        """The weights in the order of torch's flat list: W_ih, W_hh, b_ih, b_hh and, for a projected LSTM, W_hr."""
        return [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]

    def initial_state(self, batch: int) -> State:
        """Zeros on the cell's device and in its precision."""
        return tuple(self.weight_hh.new_zeros(batch, size) for size in self.state_sizes)


class ElmanCell(Cell):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or with a rectifier in tanh's place."""

    blocks = 1

    def __init__(self, input_size: int, hidden_size: int, *, nonlinearity: Literal["tanh", "relu"] = "tanh"):
        super().__init__(input_size, hidden_size)
        self.nonlinearity = nonlinearity
        self.fused = f"rnn_{nonlinearity}"
        self.reset_parameters()

    def gates(self, x: Tensor, state: State, weights: Sequence[Tensor] | None = None) -> ElmanGates:
        """Reads x (B, D) from the state: every quantity of the equations above."""
        W_ih, W_hh, b_ih, b_hh = weights or self.weights()
        (h,) = state
        activation = torch.tanh if self.nonlinearity == "tanh" else torch.relu
        return ElmanGates(h=activation(linear(x, W_ih, b_ih) + linear(h, W_hh, b_hh)))

    def forward(self, x: Tensor, state: State, weights: Sequence[Tensor] | None = None) -> tuple[Tensor, State]:
        """x (B, I), state (h (B, H),) -> y = h' (B, H), (h',)."""
        (h,) = self.gates(x, state, weights)
        return h, (h,)


class GRUCell(Cell):
    """The gated recurrent unit.

    r  = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
    z  = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
    n  = tanh(W_in x + b_in + r * (W_hn h + b_hn))
    h' = (1 - z) * n + z * h
    """

    blocks = 3
    fused = "gru"

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.reset_parameters()

    def gates(self, x: Tensor, state: State, weights: Sequence[Tensor] | None = None) -> GRUGates:
        """Reads x (B, D) from the state: every quantity of the equations above."""
        W_ih, W_hh, b_ih, b_hh = weights or self.weights()
        (h,) = state
        x_r, x_z, x_n = linear(x, W_ih, b_ih).chunk(3, dim=-1)  # each (B, H)
        h_r, h_z, h_n = linear(h, W_hh, b_hh).chunk(3, dim=-1)
        r = torch.sigmoid(x_r + h_r)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        return GRUGates(r, z, n, h=(1 - z) * n + z * h)

    def forward(self, x: Tensor, state: State, weights: Sequence[Tensor] | None = None) -> tuple[Tensor, State]:
        """x (B, I), state (h (B, H),) -> y = h' (B, H), (h',)."""
        h = self.gates(x, state, weights).h
        return h, (h,)


class LSTMCell(Cell):
    """Long short-term memory with a forget gate; on request projected and clipped, as ELMo's is.

    i  = sigmoid(W_ii x + b_ii + W_hi h + b_hi)
    f  = sigmoid(W_if x + b_if + W_hf h + b_hf)
    g  = tanh(W_ig x + b_ig + W_hg h + b_hg)
    o  = sigmoid(W_io x + b_io + W_ho h + b_ho)
    c' = clip(f * c + i * g, ±cell_clip)
    h' = clip(W_hr (o * tanh(c')), ±projection_clip)         W_hr only where there is a projection

    The forget gate's bias starts at `forget_bias` (Jozefowicz et al. 2015: 1 lets memory pass from the first step on).
    A clip that is None does not clip; the clipped c' and h' are what is carried.
    """

    blocks = 4

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
        super().__init__(input_size, hidden_size, recurrent_size=projection)
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip if projection else None
        self.forget_bias = forget_bias
        self.weight_hr = nn.Parameter(torch.empty(projection, hidden_size)) if projection else None
        smaller = projection is None or projection < hidden_size  # the fused kernels know no other projection
        self.fused = "lstm" if smaller and self.cell_clip is None and self.projection_clip is None else None
        self.reset_parameters()

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.output_size, self.hidden_size)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        forget = slice(self.hidden_size, 2 * self.hidden_size)
        nn.init.constant_(self.bias_ih[forget], self.forget_bias)
        nn.init.zeros_(self.bias_hh[forget])

    def weights(self) -> list[Tensor]:
        return super().weights() if self.weight_hr is None else [*super().weights(), self.weight_hr]

    def gates(self, x: Tensor, state: State, weights: Sequence[Tensor] | None = None) -> LSTMGates:
        """Reads x (B, D) from the state: every quantity of the equations above."""
        return lstm_gates(x, state, weights or self.weights(), self.cell_clip, self.projection_clip)

    def forward(self, x: Tensor, state: State, weights: Sequence[Tensor] | None = None) -> tuple[Tensor, State]:
        """x (B, I), state (h (B, P), c (B, H)) -> y = h' (B, P), (h', c')."""
        gates = self.gates(x, state, weights)
        return gates.h, (gates.h, gates.c)


def lstm_gates(
    x: Tensor, state: State, weights: Sequence[Tensor], cell_clip: float | None, projection_clip: float | None
) -> LSTMGates:
    """The equations of `LSTMCell` with these weights: W_ih, W_hh, b_ih, b_hh and, where there is a projection, W_hr."""
    W_ih, W_hh, b_ih, b_hh, *W_hr = weights
    h, c = state
    i, f, g, o = (linear(x, W_ih, b_ih) + linear(h, W_hh, b_hh)).chunk(4, dim=-1)  # each (B, H)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    c = clip(f * c + i * g, cell_clip)
    h = o * torch.tanh(c)
    if W_hr:
        h = clip(linear(h, W_hr[0]), projection_clip)
    return LSTMGates(i, f, g, o, c, h)


def clip(x: Tensor, limit: float | None) -> Tensor:
    """x with every element held within ±limit; None leaves it as it is."""
    return x if limit is None else x.clamp(-limit, limit)

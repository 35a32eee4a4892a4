"""Deep stacks with alternating directions and highway connections: of highway LSTMs, or of any other cell.

The published layers are LSTMs with the highway inside, where z is a dropout mask that all steps of a sequence share
(t + 1 in place of t - 1 in layers that read backwards):

    h_t = z * (r * o * tanh(c_t) + (1 - r) * W_xh x_t)             `HighwayLSTMCell`, without z

Past a sequence's end the input gate is closed and h is zero, so a layer that reads backwards begins at each sequence's
own end. Any other cell is run as it is, with output y_t, and has the highway around it; its gate reads the input alone:

    r_t = sigmoid(W_xr x_t + b_r)
    h_t = z * (r_t * y_t + (1 - r_t) * W_xh x_t)

Zhang et al. 2016, Highway long short-term memory RNNs
He et al. 2017, Deep semantic role labeling

The mask is that of Gal & Ghahramani 2016, the orthogonal weights of Saxe et al. 2014 and the initial bias of r that of
Srivastava et al. 2015.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, linear

from relmo.nn.dropout import SequenceDropout
from relmo.nn.pooling import length_mask
from relmo.nn.recurrence.base import BlockCell, Cell, Quantity, Record, State, gates, orthogonal_, state, unchanged
from relmo.nn.recurrence.stack import run_cell

GATES = ("g", "i", "f", "o", "r")  # the order of the stacked weights
CLOSED = -1e4  # added to a gate to make it exactly zero
HIGHWAY_BIAS = -2.0  # of r at first, so that words bypass the layers; with 0 a deep network learns much more slowly


class HighwayLSTMCell(BlockCell):
    """LSTM with a highway connection from its input to its output.

    g  = tanh(W_xg x + W_hg h + b_g)
    i  = sigmoid(W_xi x + W_hi h + b_i)
    f  = sigmoid(W_xf x + W_hf h + b_f)
    o  = sigmoid(W_xo x + W_ho h + b_o)
    r  = sigmoid(W_xr x + W_hr h + b_r)
    c' = f * c + i * g
    h' = r * o * tanh(c') + (1 - r) * (W_xh x)

    All matrices start orthogonal, each block by itself, b_f at 1, b_r at -2 and the other biases at 0.
    """

    name = "highway"
    blocks = GATES
    input_prefix = "W_x"
    keeps = "f"
    inputs = ("weight_ih", "weight_xh")

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        rows = len(GATES) * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size))
        self.weight_xh = nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(rows))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        return [
            state("h", H, role="output"),
            state("c", H),
            *gates(H, i="input gate", f="forget gate", o="output gate", r="highway gate"),
            Quantity("g", (H,), "candidate", "candidate", -1.0, 1.0),
        ]

    def equations(self) -> dict[str, str]:
        equations = {block: f"sigmoid(W_x{block} x + W_h{block} h + b_{block})" for block in GATES}
        equations["g"] = equations["g"].replace("sigmoid", "tanh")
        return equations | {"c": "f * c + i * g", "h": "r * o * tanh(c') + (1 - r) * (W_xh x)"}

    def named_weights(self) -> dict[str, Tensor]:
        return super().named_weights() | {"W_xh": self.weight_xh}

    def reset_parameters(self) -> None:
        for weight in (self.weight_ih, self.weight_hh, self.weight_xh):
            for block in weight.split(self.hidden_size):
                orthogonal_(block)
        nn.init.zeros_(self.bias)
        nn.init.constant_(self.biases()["f"], 1.0)
        nn.init.constant_(self.biases()["r"], HIGHWAY_BIAS)

    def initialise(self) -> None:
        """Keep the weights, which are those for a task."""

    def project_input(self, x: Tensor) -> Tensor:
        return torch.cat([super().project_input(x), linear(x, self.weight_xh)], dim=-1)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        h, c = state
        x_gates, bypass = x.split([len(GATES) * self.hidden_size, self.hidden_size], dim=-1)
        g, i, f, o, r = (x_gates + linear(h, self.weight_hh)).chunk(len(GATES), dim=-1)  # each (B, H)
        g, i, f = record("g", torch.tanh(g)), record("i", torch.sigmoid(i)), record("f", torch.sigmoid(f))
        o, r = record("o", torch.sigmoid(o)), record("r", torch.sigmoid(r))
        c = record("c", f * c + i * g)
        h = record("h", r * o * torch.tanh(c) + (1 - r) * bypass)
        return h, (h, c)


def run_layer(cell: HighwayLSTMCell, x: Tensor, words: Tensor, z: Tensor | None = None, *, reverse: bool) -> Tensor:
    """Return h (T, B, H) of x (T, B, I). `words` (T, B, 1) is the mask of the sequences; z (B, H) drops units."""
    from_x = linear(x, cell.weight_ih, cell.bias)  # (T, B, 5H)
    bypass = linear(x, cell.weight_xh)  # (T, B, H)
    from_x.narrow(2, GATES.index("i") * cell.hidden_size, cell.hidden_size).add_(~words * CLOSED)
    U = cell.weight_hh
    mask = words.to(U.dtype) if z is None else words * z.to(U.dtype)
    with torch.autocast(x.device.type, enabled=False):
        return _Recurrence.apply(from_x.to(U.dtype), bypass.to(U.dtype), U, mask, reverse)


class AlternatingLSTM(nn.Module):
    """Layers of highway LSTMs that read from left to right and from right to left in turn; `dropout` draws z."""

    def __init__(self, *, input_size: int, hidden: int, layers: int, dropout: float = 0.0):
        super().__init__()
        self.dropout, self.output_size = dropout, hidden
        self.layers = nn.ModuleList(HighwayLSTMCell(hidden if depth else input_size, hidden) for depth in range(layers))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return (B, T, H), zero past each sequence's end, of x (B, T, I) and lengths (B,)."""
        words = length_mask(lengths.to(x.device), x.shape[1]).T.unsqueeze(2)  # (T, B, 1)
        x = x.transpose(0, 1).masked_fill(~words, 0.0)
        for depth, cell in enumerate(self.layers):
            z = None
            if self.training and self.dropout > 0:
                z = dropout(x.new_ones(x.shape[1], self.output_size), self.dropout)
            x = run_layer(cell, x, words, z, reverse=depth % 2 == 1)  # type: ignore[arg-type]
        return x.transpose(0, 1)


class HighwayLayer(nn.Module):
    """One layer of any cell with the highway around it."""

    def __init__(self, cell: Cell):
        super().__init__()
        self.cell = cell
        self.weight_xr, self.weight_xh = (
            nn.Parameter(orthogonal_(torch.empty(cell.output_size, cell.input_size))) for _ in range(2)
        )
        self.bias_r = nn.Parameter(torch.full((cell.output_size,), HIGHWAY_BIAS))

    def forward(self, x: Tensor, lengths: Tensor, *, reverse: bool) -> Tensor:
        """Return h (B, T, O) of x (B, T, I), which must be zero past each sequence's end, as h is."""
        y, _ = run_cell(self.cell, x, self.cell.initial_state(len(x)), lengths, reverse=reverse)
        return torch.lerp(linear(x, self.weight_xh), y, torch.sigmoid(linear(x, self.weight_xr, self.bias_r)))


class AlternatingLayers(nn.Module):
    """Layers of any cell, as in `AlternatingLSTM`, with the highway around each."""

    def __init__(self, make_cell: Callable[[int], Cell], *, input_size: int, layers: int, dropout: float = 0.0):
        super().__init__()
        self.dropout = SequenceDropout(dropout, variational=True)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            layer = HighwayLayer(make_cell(input_size))
            self.layers.append(layer)
            input_size = layer.cell.output_size
        self.output_size = input_size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return (B, T, O), zero past each sequence's end, of x (B, T, I) and lengths (B,), which are at least 1."""
        if not len(x):  # torch's recurrences take no empty batch
            return x.new_zeros(*x.shape[:2], self.output_size)
        x = x.masked_fill(~length_mask(lengths.to(x.device), x.shape[1]).unsqueeze(2), 0.0)
        for depth, layer in enumerate(self.layers):
            x = self.dropout(layer(x, lengths, reverse=depth % 2 == 1))
        return x


class _Recurrence(torch.autograd.Function):
    """The loop of `run_layer`, from x and W_xh x of all steps, with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, from_x: Tensor, carried: Tensor, U: Tensor, mask: Tensor, reverse: bool) -> Tensor:
        steps, batch, H = carried.shape
        gates, c, h = torch.empty_like(from_x), torch.empty_like(carried), torch.empty_like(carried)
        tensors = (from_x, carried, mask, gates, gates[..., H:], *gates.split(H, dim=2), c, h)
        views = list(zip(*(tensor.unbind(0) for tensor in tensors), strict=True))  # made once, not at every step
        hidden = memory = carried.new_zeros(batch, H)
        for t in range(steps)[:: -1 if reverse else 1]:
            x, bypass, z, stacked, sigmoids, g, i, f, o, r, new_c, new_h = views[t]
            torch.addmm(x, hidden, U.T, out=stacked)
            sigmoids.sigmoid_()
            g.tanh_()
            memory = torch.mul(f, memory, out=new_c).addcmul_(i, g)
            hidden = torch.lerp(bypass, torch.tanh(memory).mul_(o), r, out=new_h).mul_(z)
        ctx.save_for_backward(gates, c, h, carried, U, mask)
        ctx.reverse = reverse
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
        """Compute dL/da = factor * dL/dc for the pre-activations a of g, i, f, and factor * dL/dh for those of o, r.
        The factors follow from the forward pass, so the loop only computes dL/dh, dL/dc and these products."""
        gates, c, h, carried, U, mask = ctx.saved_tensors
        steps, batch, H = carried.shape
        by_gate = gates.view(steps, batch, len(GATES), H)
        g, i, f, o, r = by_gate.unbind(2)
        tanh_c, scale = c.tanh(), mask * r
        factors = torch.stack(
            [
                i * (1 - g * g),
                g * i * (1 - i),
                _before(c, ctx.reverse) * f * (1 - f),
                scale * tanh_c * o * (1 - o),
                mask * (o * tanh_c - carried) * r * (1 - r),
            ],
            dim=2,
        )
        to_memory = scale * o * (1 - tanh_c * tanh_c)
        sums, d_hidden = torch.empty_like(by_gate), torch.empty_like(carried)
        tensors = (dh, f, to_memory, factors[:, :, :3], factors[:, :, 3:], sums[:, :, :3], sums[:, :, 3:])
        views = list(zip(*(tensor.unbind(0) for tensor in (*tensors, sums.flatten(2), d_hidden)), strict=True))
        d_memory, d_later = carried.new_zeros(batch, H), carried.new_zeros(batch, len(GATES) * H)
        for t in range(steps)[:: 1 if ctx.reverse else -1]:
            d_output, forget, to_c, c_factors, h_factors, c_sums, h_sums, d_gates, d_h = views[t]
            d = torch.addmm(d_output, d_later, U, out=d_h)
            d_memory = torch.addcmul(d_memory, d, to_c)
            torch.mul(d_memory.unsqueeze(1), c_factors, out=c_sums)
            torch.mul(d.unsqueeze(1), h_factors, out=h_sums)
            d_memory = d_memory * forget
            d_later = d_gates
        d_from_x = sums.view(gates.shape)
        d_U = d_from_x.flatten(0, 1).T @ _before(h, ctx.reverse).flatten(0, 1)
        return d_from_x, d_hidden * mask * (1 - r), d_U, None, None


def _before(states: Tensor, reverse: bool) -> Tensor:
    """Return the state before each step, (T, B, H), from the state after it."""
    initial = torch.zeros_like(states[:1])
    return torch.cat([states[1:], initial] if reverse else [initial, states[:-1]])

"""Deep LSTMs whose layers read in turns from left to right and from right to left, with highways past each layer.

For each layer, with x_t its input and h_{t-1}, c_{t-1} where it was before (in layers that read backwards, t + 1):

    i, f, o = sigmoid(W x_t + U h_{t-1} + b)         input, forget and output gate, each with weights of its own
    g       = tanh(W_g x_t + U_g h_{t-1} + b_g)      candidate
    c_t     = f * c_{t-1} + i * g
    r       = sigmoid(W_r x_t + U_r h_{t-1} + b_r)   how much of the LSTM's output is taken; the rest is the input's
    h_t     = z * (r * o * tanh(c_t) + (1 - r) * W_h x_t)

z is a dropout mask that all steps of a sequence share: a dropped unit is gone for the next step and the next layer.

Choices:
- `HighwayLSTM.unroll` is the definition. `_Recurrence` computes the same with its own backward pass: one product for
  the inputs of all steps, one product a step, and every other quantity of the gradient that needs no earlier step
  computed for all steps at once. So a step takes 9 calls forwards and 5 backwards, where autograd takes 17 and 29.
- The gate r starts almost closed, by a bias of -2, so that at first the words go past the layers. With 0, half of
  them would be lost in each layer, and a deep network learns much more slowly.
- Past a sequence's end the input gate is closed and h is zero, so a layer that reads backwards begins at each
  sequence's own end, and nothing depends on the batch mates.

    He et al. 2017, Deep semantic role labeling: what works and what's next
    Zhang et al. 2016, Highway long short-term memory RNNs;  Gal & Ghahramani 2016 (one mask for all steps)
    Saxe et al. 2014 (orthogonal first weights);  Srivastava et al. 2015, Highway networks (the first bias)
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, linear

from relmo.nn.cells.base import orthogonal_
from relmo.nn.pooling import inside

GATES = ("g", "i", "f", "o", "r")  # the order of the stacked weights
CLOSED = -1e4  # what is added to a gate so that it is exactly zero


class HighwayLSTM(nn.Module):
    """One layer. Weights of the gates are stacked along the rows, in the order of GATES.

    reverse   reads from right to left
    fast      False steps through the equations as they are written
    """

    def __init__(self, input_size: int, hidden: int, *, reverse: bool = False, fast: bool = True):
        super().__init__()
        self.hidden, self.reverse, self.fast = hidden, reverse, fast
        rows = len(GATES) * hidden
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden))
        self.weight_xh = nn.Parameter(torch.empty(hidden, input_size))
        self.bias = nn.Parameter(torch.empty(rows))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every matrix orthogonal; biases 0, but 1 of the forget gate and -2 of the highway's."""
        for weight in (self.weight_ih, self.weight_hh, self.weight_xh):
            for block in weight.split(self.hidden):
                orthogonal_(block)
        nn.init.zeros_(self.bias)
        for gate, bias in (("f", 1.0), ("r", -2.0)):
            nn.init.constant_(self.bias.split(self.hidden)[GATES.index(gate)], bias)

    def forward(self, x: Tensor, words: Tensor, z: Tensor | None = None) -> Tensor:
        """x (T, B, I) -> h (T, B, H). `words` (T, B, 1) is true up to each sequence's end; z (B, H) where units are
        dropped."""
        from_x = linear(x, self.weight_ih, self.bias)  # (T, B, 5H)
        carried = linear(x, self.weight_xh)  # (T, B, H)
        from_x.narrow(2, GATES.index("i") * self.hidden, self.hidden).add_(~words * CLOSED)
        U = self.weight_hh
        kept = words.to(U.dtype) if z is None else words * z.to(U.dtype)
        with torch.autocast(x.device.type, enabled=False):
            parts = from_x.to(U.dtype), carried.to(U.dtype), U, kept
            return _Recurrence.apply(*parts, self.reverse) if self.fast else self.unroll(*parts)

    def unroll(self, from_x: Tensor, carried: Tensor, U: Tensor, kept: Tensor) -> Tensor:
        """The equations, step by step, from what depends on the input alone: from_x (T, B, 5H), W_h x (T, B, H). `kept`
        (T, B, H) is z, and zero past a sequence's end."""
        steps = range(len(from_x))
        h = c = carried.new_zeros(carried.shape[1:])
        outputs = list(carried)
        for t in reversed(steps) if self.reverse else steps:
            g, i, f, o, r = (from_x[t] + linear(h, U)).chunk(len(GATES), dim=1)
            i, f, o, r = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o), torch.sigmoid(r)
            c = f * c + i * torch.tanh(g)
            h = kept[t] * (r * o * torch.tanh(c) + (1 - r) * carried[t])
            outputs[t] = h
        return torch.stack(outputs) if outputs else carried


class AlternatingLSTM(nn.Module):
    """Layers of `HighwayLSTM`: the first reads from left to right, the second what came of it from right to left.

    dropout   of z: one mask for each sequence and layer
    """

    def __init__(self, *, input_size: int, hidden: int, layers: int, dropout: float = 0.0, fast: bool = True):
        super().__init__()
        self.dropout = dropout
        self.output_size = hidden
        self.layers = nn.ModuleList(
            HighwayLSTM(hidden if depth else input_size, hidden, reverse=depth % 2 == 1, fast=fast)
            for depth in range(layers)
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x (B, T, I), lengths (B,) -> (B, T, H), zero past each sequence's end, whatever stands there."""
        words = inside(lengths.to(x.device), x.shape[1]).T.unsqueeze(2)  # (T, B, 1)
        x = x.transpose(0, 1).masked_fill(~words, 0.0)
        drops = self.training and self.dropout > 0
        for layer in self.layers:
            x = layer(x, words, dropout(x.new_ones(x.shape[1], self.output_size), self.dropout) if drops else None)
        return x.transpose(0, 1)


class _Recurrence(torch.autograd.Function):
    """`HighwayLSTM.unroll`, from the same parts and in either direction."""

    @staticmethod
    def forward(ctx: Any, from_x: Tensor, carried: Tensor, U: Tensor, kept: Tensor, reverse: bool) -> Tensor:
        """The equations, each gate's quantities of all steps in one tensor."""
        steps, batch, H = carried.shape
        gates, c, h = torch.empty_like(from_x), torch.empty_like(carried), torch.empty_like(carried)
        each = (from_x, carried, kept, gates, gates[..., H:], *gates.split(H, dim=2), c, h)
        parts = list(zip(*(part.unbind(0) for part in each), strict=True))  # views are made once, not at every step
        hidden = memory = carried.new_zeros(batch, H)
        for t in _order(steps, reverse):
            read, straight, z, both, squashed, g, i, f, o, r, new_c, new_h = parts[t]
            torch.addmm(read, hidden, U.T, out=both)
            squashed.sigmoid_()
            g.tanh_()
            memory = torch.mul(f, memory, out=new_c).addcmul_(i, g)
            hidden = torch.lerp(straight, torch.tanh(memory).mul_(o), r, out=new_h).mul_(z)
        ctx.save_for_backward(gates, c, h, carried, U, kept)
        ctx.reverse = reverse
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        """With a the sum within a gate, dL/da = factor * dL/dc for g, i, f and factor * dL/dh for o, r. The factors are
        known from the forward pass, so that of each step only dL/dh, dL/dc and these products are left."""
        gates, c, h, carried, U, kept = ctx.saved_tensors
        steps, batch, H = carried.shape
        by_gate = gates.view(steps, batch, len(GATES), H)
        f, r = by_gate[:, :, 2], by_gate[:, :, 4]
        factors, to_memory = _factors(by_gate, _before(c, ctx.reverse), c.tanh(), carried, kept)
        sums, d_hidden = torch.empty_like(by_gate), torch.empty_like(carried)
        each = (given, f, to_memory, factors[:, :, :3], factors[:, :, 3:], sums[:, :, :3], sums[:, :, 3:])
        parts = list(zip(*(part.unbind(0) for part in (*each, sums.flatten(2), d_hidden)), strict=True))
        d_memory, after = carried.new_zeros(batch, H), carried.new_zeros(batch, len(GATES) * H)
        for t in _order(steps, not ctx.reverse):
            from_above, keeps, opens, of_memory, of_hidden, sums_of_memory, sums_of_hidden, after_this, new = parts[t]
            d = torch.addmm(from_above, after, U, out=new)
            d_memory = torch.addcmul(d_memory, d, opens)
            torch.mul(d_memory.unsqueeze(1), of_memory, out=sums_of_memory)
            torch.mul(d.unsqueeze(1), of_hidden, out=sums_of_hidden)
            d_memory = d_memory * keeps
            after = after_this
        d_from_x = sums.view(gates.shape)
        d_U = d_from_x.flatten(0, 1).T @ _before(h, ctx.reverse).flatten(0, 1)
        return d_from_x, d_hidden * kept * (1 - r), d_U, None, None


def _order(steps: int, reverse: bool) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _before(states: Tensor, reverse: bool) -> Tensor:
    """The state before each step, (T, B, H), from the state after it."""
    none = torch.zeros_like(states[:1])
    return torch.cat([states[1:], none] if reverse else [none, states[:-1]])


def _factors(gates: Tensor, before: Tensor, squashed: Tensor, carried: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """What dL/dc (for g, i, f) and dL/dh (for o, r) are multiplied by to give the gradient of each gate's sum,
    (T, B, 5, H); and what dL/dh is multiplied by to give its part of dL/dc. `squashed` is tanh(c)."""
    g, i, f, o, r = gates.unbind(2)
    taken = kept * r
    factors = torch.stack(
        [
            i * (1 - g * g),
            g * i * (1 - i),
            before * f * (1 - f),
            taken * squashed * o * (1 - o),
            kept * (o * squashed - carried) * r * (1 - r),
        ],
        dim=2,
    )
    return factors, taken * o * (1 - squashed * squashed)

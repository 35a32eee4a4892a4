"""Deep LSTMs with alternating directions and highway connections.

For each layer, with input x_t and previous state h_{t-1}, c_{t-1} (t + 1 in layers that read backwards):

    i, f, o = sigmoid(W x_t + U h_{t-1} + b)         input, forget and output gate, each with weights of its own
    g       = tanh(W_g x_t + U_g h_{t-1} + b_g)      candidate
    c_t     = f * c_{t-1} + i * g
    r       = sigmoid(W_r x_t + U_r h_{t-1} + b_r)   share of the LSTM's output, against the input's
    h_t     = z * (r * o * tanh(c_t) + (1 - r) * W_h x_t)

z is a dropout mask that all steps of a sequence share. Past a sequence's end the input gate is closed and h is zero, so
a layer that reads backwards begins at each sequence's own end. The gate r starts almost closed, with a bias of -2, so
that at first the words bypass the layers; with 0 a deep network learns much more slowly.

    He et al. 2017, Deep semantic role labeling;  Zhang et al. 2016, Highway long short-term memory RNNs
    Gal & Ghahramani 2016 (one mask);  Saxe et al. 2014 (orthogonal weights);  Srivastava et al. 2015 (the initial bias)
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, linear

from relmo.nn.pooling import length_mask
from relmo.nn.recurrence.base import orthogonal_
from relmo.nn.recurrence.lstm import update_memory

GATES = ("g", "i", "f", "o", "r")  # the order of the stacked weights
CLOSED = -1e4  # added to a gate to make it exactly zero


class HighwayLSTM(nn.Module):
    """One layer, from right to left if `reverse`, with the weights of the gates stacked in the order of GATES."""

    def __init__(self, input_size: int, hidden: int, *, reverse: bool = False, fast: bool = True):
        super().__init__()
        self.hidden, self.reverse, self.fast = hidden, reverse, fast
        rows = len(GATES) * hidden
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden))
        self.weight_xh = nn.Parameter(torch.empty(hidden, input_size))
        self.bias = nn.Parameter(torch.empty(rows))
        for weight in (self.weight_ih, self.weight_hh, self.weight_xh):
            for block in weight.split(self.hidden):
                orthogonal_(block)
        nn.init.zeros_(self.bias)
        for gate, bias in (("f", 1.0), ("r", -2.0)):
            nn.init.constant_(self.bias.split(self.hidden)[GATES.index(gate)], bias)

    def forward(self, x: Tensor, words: Tensor, z: Tensor | None = None) -> Tensor:
        """Return h (T, B, H) of x (T, B, I). `words` (T, B, 1) is the mask of the sequences; z (B, H) drops units."""
        from_x = linear(x, self.weight_ih, self.bias)  # (T, B, 5H)
        carried = linear(x, self.weight_xh)  # (T, B, H)
        from_x.narrow(2, GATES.index("i") * self.hidden, self.hidden).add_(~words * CLOSED)
        U = self.weight_hh
        mask = words.to(U.dtype) if z is None else words * z.to(U.dtype)
        run = _Recurrence.apply if self.fast else unroll_highway
        with torch.autocast(x.device.type, enabled=False):
            return run(from_x.to(U.dtype), carried.to(U.dtype), U, mask, self.reverse)


def unroll_highway(from_x: Tensor, carried: Tensor, U: Tensor, mask: Tensor, reverse: bool) -> Tensor:
    """Compute h (T, B, H) from the input's part of the gates (T, B, 5H), W_h x (T, B, H), and z as a mask (T, B, H)."""
    h = c = carried.new_zeros(carried.shape[1:])
    outputs = list(carried)
    for t in range(len(from_x))[:: -1 if reverse else 1]:
        g, i, f, o, r = (from_x[t] + linear(h, U)).chunk(len(GATES), dim=1)
        *_, o, c = update_memory(i, f, g, o, c)
        r = torch.sigmoid(r)
        h = mask[t] * (r * o * torch.tanh(c) + (1 - r) * carried[t])
        outputs[t] = h
    return torch.stack(outputs) if outputs else carried


class AlternatingLSTM(nn.Module):
    """Layers of `HighwayLSTM` that read from left to right and from right to left in turn; `dropout` draws z."""

    def __init__(self, *, input_size: int, hidden: int, layers: int, dropout: float = 0.0, fast: bool = True):
        super().__init__()
        self.dropout = dropout
        self.output_size = hidden
        self.layers = nn.ModuleList(
            HighwayLSTM(hidden if depth else input_size, hidden, reverse=depth % 2 == 1, fast=fast)
            for depth in range(layers)
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return (B, T, H), zero past each sequence's end, of x (B, T, I) and lengths (B,)."""
        words = length_mask(lengths.to(x.device), x.shape[1]).T.unsqueeze(2)  # (T, B, 1)
        x = x.transpose(0, 1).masked_fill(~words, 0.0)
        for layer in self.layers:
            z = None
            if self.training and self.dropout > 0:
                z = dropout(x.new_ones(x.shape[1], self.output_size), self.dropout)
            x = layer(x, words, z)
        return x.transpose(0, 1)


class _Recurrence(torch.autograd.Function):
    """`unroll_highway` with a backward pass of its own."""

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

"""Recurrence of a layer of ELMo's LSTM in torch's operations, for any device and type.

The element-wise part of a step is one launch on a GPU (`lstm_step_triton`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relmo.nn.kernels import lstm_step, lstm_step_triton
from relmo.nn.kernels.lstm_step import Gates, Steps, Weights, lengths_of
from relmo.nn.quantize import Factor, Precision
from relmo.nn.recurrence.lstm import clip

ROWS = 16  # inference runs multiples of so many rows: then a row's numbers do not depend on the number of rows


class TorchRecurrence(torch.autograd.Function):
    """One layer over all its steps, with its backward pass; states have no gradient.

    One buffer has the input's part, then the gates, and after the backward pass their gradients, so that this runs only
    once. Each weight gradient is one large product after the loop.
    """

    @staticmethod
    def forward(ctx: Any, start: Steps, x: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, c, sizes, clips = start
        weight_ih, bias, weight_hh, weight_hr = weights
        steps, batch = x.shape[1:3]
        gates = torch.bmm(x.flatten(1, 2), weight_ih.transpose(1, 2)).view(2, steps, batch, -1)
        is_rectangular = list(sizes[-1:]) == [batch]
        allocate = torch.empty if is_rectangular else torch.zeros  # zeros past the end of shorter sequences
        dtype, device = gates.dtype, gates.device
        hidden, size = weight_hh.shape[1] // 4, weight_hh.shape[2]
        outputs = allocate(2, steps + 1, batch, size, dtype=dtype, device=device)  # h before each step, after the last
        cells = allocate(2, steps + 1, batch, hidden, dtype=c.dtype, device=device)
        inner = None if weight_hr is None else allocate(2, steps, batch, hidden, dtype=dtype, device=device)
        outputs[:, 0], cells[:, 0] = h, c
        into = weight_hh.transpose(1, 2)
        step = lstm_step_triton if lstm_step_triton.available(gates) else lstm_step
        ms = outputs[:, 1:] if inner is None else inner  # m = o * tanh(c), before the projection
        buffers = _split_steps(sizes, gates, outputs[:, :-1], outputs[:, 1:], cells[:, :-1], cells[:, 1:], ms)
        for z, h, h_next, c, c_next, m in buffers:
            step.forward(z.baddbmm_(h, into), bias, c, c_next, m, clips.cell)
            if weight_hr is not None:
                step.project(m, weight_hr, h_next, clips.projection)
        ctx.saved = (x, gates, outputs, cells, inner, weight_ih, weight_hh, weight_hr, sizes, clips)
        if is_rectangular:
            final_h, final_c = outputs[:, -1].clone(), cells[:, -1].clone()
        else:
            lengths, rows = lengths_of(sizes, batch).to(device), torch.arange(batch, device=device)
            final_h, final_c = outputs[:, lengths, rows], cells[:, lengths, rows]
        ctx.mark_non_differentiable(final_h, final_c)
        return outputs[:, 1:], final_h, final_c

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, gates, outputs, cells, inner, weight_ih, weight_hh, weight_hr, sizes, clips = ctx.saved
        ctx.saved = None  # the buffers are overwritten
        step = lstm_step_triton if lstm_step_triton.available(gates) else lstm_step
        from_later = step.parts_of(gates[:, 0], weight_hh.shape[2]).zero_()
        dc_next = torch.zeros_like(cells[:, 0])
        allocate = torch.empty_like if list(sizes[-1:]) == [gates.shape[2]] else torch.zeros_like
        dhs = allocate(outputs[:, 1:])
        buffers = _split_steps(sizes, gates, dy, dhs, outputs[:, 1:], cells[:, :-1], cells[:, 1:])
        for t, (z, d, dh, h, c, c_next) in reversed(list(enumerate(buffers))):
            n = z.shape[1]
            step.output_gradient(d, from_later[:, :, :n], h, dh, clips.projection)
            dm = dh if weight_hr is None else torch.bmm(dh, weight_hr)
            step.backward(z, dm, dc_next[:, :n], c, c_next, clips.cell)
            if t:  # the initial state gets no gradient
                step.to_output(z, weight_hh, from_later[:, :, :n])
        for t, n in enumerate(sizes):
            if n < gates.shape[2]:
                gates[:, t, n:] = 0
        dz = gates.flatten(1, 2)
        d_hh = torch.bmm(dz.transpose(1, 2), outputs[:, :-1].flatten(1, 2))
        d_hr = None if weight_hr is None else torch.bmm(dhs.flatten(1, 2).transpose(1, 2), inner.flatten(1, 2))
        dx = torch.bmm(dz, weight_ih).view(x.shape) if ctx.needs_input_grad[1] else None
        d_ih = torch.bmm(dz.transpose(1, 2), x.flatten(1, 2))
        return None, dx, d_ih, dz.sum(dim=1), d_hh, d_hr


def _split_steps(sizes: Sequence[int], *buffers: Tensor) -> list[tuple[Tensor, ...]]:
    """Split buffers (2, T, B, …) into the active rows of each step."""
    steps = zip(*(buffer.unbind(dim=1) for buffer in buffers), strict=True)
    batch = buffers[0].shape[2]
    return [
        views if n == batch else tuple(view[:, :n] for view in views) for n, views in zip(sizes, steps, strict=True)
    ]


def infer_steps(
    source: Gates | Tensor, weights: Weights, start: Steps, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `TorchRecurrence` without a backward pass, from a table of gates or an input, in multiples of ROWS rows."""
    ih, bias, hh, hr = weights.to(dtype)
    if isinstance(source, Gates):
        gates, step_bias = source.rows().to(dtype), None
    else:
        gates = torch.bmm(source.to(dtype).flatten(1, 2), ih.transpose(1, 2)).view(*source.shape[:3], -1)
        step_bias = bias
    steps, batch = gates.shape[1:3]
    h, c = start.h.to(dtype).clone(), start.c.clone()
    y = gates.new_zeros(2, steps, batch, hh.shape[2])
    into, project = hh.transpose(1, 2), None if hr is None else hr.transpose(1, 2)
    step = lstm_step_triton if lstm_step_triton.available(gates) else lstm_step
    c_buffer, m_buffer = torch.empty_like(c), gates.new_empty(c.shape)
    for t, n in enumerate(start.sizes):
        rows = min(batch, -(-n // ROWS) * ROWS)
        z, c_next, m = gates[:, t, :rows], c_buffer[:, :rows], m_buffer[:, :rows]
        step.forward(z.baddbmm_(h[:, :rows], into), step_bias, c[:, :rows], c_next, m, start.clips.cell, keep=False)
        output = m if project is None else clip(torch.bmm(m, project), start.clips.projection)
        c[:, :n] = c_next[:, :n]
        h[:, :n] = output[:, :n]
        y[:, t, :n] = output[:, :n]
    return y, h, c


def infer_rounded(
    source: Gates | Tensor, weights: Weights, start: Steps, precision: Precision
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer with products in reduced precision: the definition of what the compiled kernels compute."""
    hh = Factor(weights.hh, precision)
    hr = None if weights.hr is None else Factor(weights.hr, precision, levelled=True)
    if isinstance(source, Gates):
        gates = source.rows()
    else:
        products = Factor(weights.ih, precision).product(source.flatten(1, 2))
        gates = weights.bias[:, None, None] + products.view(*source.shape[:3], -1)
    h, c = start.h.clone(), start.c.clone()
    y = h.new_zeros(*gates.shape[:3], h.shape[2])
    for t, n in enumerate(start.sizes):
        rows = min(gates.shape[2], -(-n // ROWS) * ROWS)
        i, f, g, o = (gates[:, t, :rows] + hh.product(h[:, :rows])).chunk(4, dim=-1)
        c_next = torch.sigmoid(f) * c[:, :rows] + torch.sigmoid(i) * torch.tanh(g)
        c_next = clip(c_next, start.clips.cell)
        m = torch.sigmoid(o) * torch.tanh(c_next)
        output = m if hr is None else clip(hr.product(m), start.clips.projection)
        c[:, :n] = c_next[:, :n]
        h[:, :n] = y[:, t, :n] = output[:, :n]
    return y, h, c

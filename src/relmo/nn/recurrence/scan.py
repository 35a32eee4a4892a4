"""Linear recurrences by element, parallel over time.

Blelloch 1990, Prefix sums and their applications
Martin & Cundy 2018, Parallelizing linear recurrent neural nets over sequence length
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 8  # steps
MAX_PARALLEL = 2048  # numbers per step; a CPU computes larger steps faster one after another


def linear_scan(a: Tensor, b: Tensor, h: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return h_t = a_t * h_{t-1} + b_t for all steps of a and b (B, T, …), from h (B, …).

    a and b broadcast. Where `mask` (B, T) is false, h_t = h_{t-1}. The result is float32 or more precise. In a range of
    BLOCK steps the product of a must be finite.
    """
    dtype = torch.promote_types(h.dtype, torch.float32)
    a, b = torch.broadcast_tensors(a.to(dtype), b.to(dtype))
    if mask is not None:
        mask = mask.view(*mask.shape, *[1] * (b.dim() - 2))
        a, b = torch.where(mask, a, 1.0), torch.where(mask, b, 0.0)
    return _LinearScan.apply(a, b, h.to(dtype))


def backpropagate(a: Tensor, d: Tensor) -> Tensor:
    """Return dL/db of a scan from the gradients d (B, T, …) of its outputs: g_t = d_t + a_{t+1} * g_{t+1}."""
    return torch.cat([_scan(a[:, 1:], d[:, :-1], d[:, -1], reverse=True), d[:, -1:]], dim=1)


class _LinearScan(torch.autograd.Function):
    """Scan whose backward pass is a scan in reverse. Only operations out of place are used, from which torch generates
    the rule for `vmap`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        return _scan(a, b, h)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        a, _, h = inputs
        ctx.save_for_backward(a, h, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, ...]:
        a, h, hs = ctx.saved_tensors
        g = backpropagate(a, d)
        return g * torch.cat([h.unsqueeze(1), hs[:, :-1]], dim=1), g, a[:, 0] * g[:, 0]


def _scan(a: Tensor, b: Tensor, h: Tensor, reverse: bool = False) -> Tensor:
    """Compute the scan, from the last step to the first if `reverse`.

    The steps of all blocks are computed together twice: first the product of a and the sum at the end of each block,
    whose scan is the state before each block, and then the states from there. Blocks begin at the first step that is
    read, so that later steps do not change the order of operations of earlier ones.
    """
    length = a.shape[1]
    if not length:
        return b
    order = -1 if reverse else 1
    if length <= BLOCK or (h.device.type == "cpu" and h.numel() > MAX_PARALLEL):
        return torch.stack(_step(a.unbind(1)[::order], b.unbind(1)[::order], h)[::order], dim=1)
    rest = length % BLOCK
    body, tail = (slice(rest, None), slice(rest)) if reverse else (slice(length - rest), slice(length - rest, None))
    a_steps, b_steps = (tensor[:, body].unflatten(1, (-1, BLOCK)).unbind(2)[::order] for tensor in (a, b))
    product, total = a_steps[0], b_steps[0]  # (B, blocks, …)
    for a_t, b_t in zip(a_steps[1:], b_steps[1:], strict=True):
        product, total = a_t * product, torch.addcmul(b_t, a_t, total)
    ends = _scan(product, total, h, reverse)
    h, last = h.unsqueeze(1), ends[:, 0 if reverse else -1]
    starts = torch.cat([ends[:, 1:], h] if reverse else [h, ends[:, :-1]], dim=1)
    states = torch.stack(_step(a_steps, b_steps, starts)[::order], dim=2).flatten(1, 2)
    if not rest:
        return states
    others = _scan(a[:, tail], b[:, tail], last, reverse)
    return torch.cat([others, states] if reverse else [states, others], dim=1)


def _step(a_steps: tuple[Tensor, ...], b_steps: tuple[Tensor, ...], h: Tensor) -> list[Tensor]:
    states = []
    for a_t, b_t in zip(a_steps, b_steps, strict=True):
        h = torch.addcmul(b_t, a_t, h)
        states.append(h)
    return states

"""Element-wise operations on a GPU, each in one launch: highway mixture, gradient of a maximum, Adagrad."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = None

MIXTURE_BLOCK = 2048  # elements per program
MAXIMUM_BLOCK = 512  # filters per program
ADAGRAD_BLOCK = 4096  # elements per program

if triton is not None:

    @triton.jit
    def _mix(carry, transform, x, y, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * block + tl.arange(0, block)
        inside = at < size
        g = tl.sigmoid(tl.load(carry + at, inside).to(tl.float32))
        t = tl.maximum(tl.load(transform + at, inside).to(tl.float32), 0.0)
        tl.store(y + at, g * t + (1 - g) * tl.load(x + at, inside).to(tl.float32), inside)

    @triton.jit
    def _mix_backward(  # type: ignore[no-untyped-def]
        carry, transform, x, dy, d_carry, d_transform, dx, size, block: tl.constexpr
    ):
        at = tl.program_id(0) * block + tl.arange(0, block)
        inside = at < size
        g = tl.sigmoid(tl.load(carry + at, inside).to(tl.float32))
        before = tl.load(transform + at, inside).to(tl.float32)
        d = tl.load(dy + at, inside).to(tl.float32)
        change = tl.maximum(before, 0.0) - tl.load(x + at, inside).to(tl.float32)
        tl.store(d_carry + at, d * change * g * (1 - g), inside)
        tl.store(d_transform + at, tl.where(before > 0, d * g, 0.0), inside)
        tl.store(dx + at, d * (1 - g), inside)

    @triton.jit
    def _maximum_backward(x, y, dy, dx, windows, filters, block: tl.constexpr):  # type: ignore[no-untyped-def]
        word = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < filters
        maximum = tl.load(y + word * filters + column, inside)
        x += word * windows * filters + column
        dx += word * windows * filters + column
        count = tl.zeros((block,), dtype=tl.float32)
        for t in range(windows):
            count += (tl.load(x + t * filters, inside) == maximum).to(tl.float32)
        share = tl.load(dy + word * filters + column, inside).to(tl.float32) / count
        for t in range(windows):
            equal = tl.load(x + t * filters, inside) == maximum
            tl.store(dx + t * filters, tl.where(equal, share, 0.0), inside)

    @triton.jit
    def _adagrad(  # type: ignore[no-untyped-def]
        parameter, gradient, squares, average, factor, lr, eps, weight_decay, weight, size,
        averaged: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        inside = at < size
        p = tl.load(parameter + at, inside)
        g = tl.load(gradient + at, inside) * tl.load(factor) + weight_decay * p
        s = tl.load(squares + at, inside) + g * g
        p -= lr * g / (tl.sqrt(s) + eps)
        tl.store(squares + at, s, inside)
        tl.store(parameter + at, p, inside)
        if averaged:
            a = tl.load(average + at, inside)
            tl.store(average + at, a + weight * (p - a), inside)


def supports_mixture(*tensors: Tensor) -> bool:
    """Return whether the highway mixture can run on these."""
    return triton is not None and all(tensor.is_cuda and tensor.dtype != torch.float64 for tensor in tensors)


def mix(carry: Tensor, transform: Tensor, x: Tensor) -> Tensor:
    """Return `relmo.nn.highway.Mixture` of contiguous tensors of one shape, computed in float32."""
    y = torch.empty_like(x)
    if y.numel():
        _mix[(triton.cdiv(y.numel(), MIXTURE_BLOCK),)](carry, transform, x, y, y.numel(), block=MIXTURE_BLOCK)
    return y


def mix_backward(carry: Tensor, transform: Tensor, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of carry, transform and x."""
    inputs = (carry, transform, x)
    gradients = tuple(torch.empty_like(tensor) for tensor in inputs)
    if dy.numel():
        grid = (triton.cdiv(dy.numel(), MIXTURE_BLOCK),)
        _mix_backward[grid](*inputs, dy.contiguous(), *gradients, dy.numel(), block=MIXTURE_BLOCK)
    return gradients


def maximum_backward(x: Tensor, y: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of x (N, windows, filters) from that of its maxima y (N, filters)."""
    x, y, dy = x.contiguous(), y.contiguous(), dy.contiguous()
    words, windows, filters = x.shape
    dx = torch.empty_like(x)
    if x.numel():
        grid = (words, triton.cdiv(filters, MAXIMUM_BLOCK))
        _maximum_backward[grid](x, y, dy, dx, windows, filters, block=MAXIMUM_BLOCK)
    return dx


def supports_adagrad(*tensors: Tensor) -> bool:
    """Return whether the Adagrad step can run on these."""
    return triton is not None and all(t.is_cuda and t.is_contiguous() and t.element_size() == 4 for t in tensors)


def step_adagrad(
    parameter: Tensor,
    gradient: Tensor,
    squares: Tensor,
    average: Tensor | None,
    *,
    factor: Tensor,
    lr: float,
    eps: float,
    weight_decay: float,
    weight: float,
) -> None:
    """Take one step of Adagrad with clipping and weight averaging in one pass over memory; torch takes nineteen.

    g = factor * gradient + weight_decay * p;  squares += g^2;  p -= lr * g / (sqrt(squares) + eps);
    average += weight * (p - average).  All contiguous, in float32; `factor` is one number on the device.
    """
    size, averaged = parameter.numel(), average is not None
    _adagrad[(triton.cdiv(size, ADAGRAD_BLOCK),)](
        parameter, gradient, squares, average if averaged else parameter, factor, lr, eps, weight_decay, weight, size,
        averaged=averaged, block=ADAGRAD_BLOCK, num_warps=8,
    )  # fmt: skip

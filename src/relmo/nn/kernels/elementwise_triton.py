"""Operations on a GPU in one launch each: highway mixture, gradient of a maximum, Adagrad, softmax with gradient."""

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
MAX_ROW = 8192  # symbols of a row that fit into the registers of one program
SOFTMAX_BLOCK = 4096  # symbols processed at a time in longer rows
SOFTMAX_PROGRAMS = 2  # per processor of the GPU, if a program processes many rows

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

    @triton.jit
    def _short_rows(  # type: ignore[no-untyped-def]
        logits, bias, target_logits, place, nll, d_own, sums, rows, size, separate: tl.constexpr, block: tl.constexpr
    ):
        """Process every num_programs-th row, and write the column sums of these to row program_id of `sums`."""
        column = tl.arange(0, block)
        inside = column < size
        b = tl.load(bias + column, inside, other=0.0)
        total = tl.zeros((block,), tl.float32)
        next_logits = tl.load(logits + tl.program_id(0) * size + column, inside, other=-float("inf"))
        for row in range(tl.program_id(0), rows, tl.num_programs(0)):
            z = next_logits.to(tl.float32) + b
            after = row + tl.num_programs(0)  # loaded while this row is computed
            next_logits = tl.load(logits + after * size + column, inside & (after < rows), other=-float("inf"))
            spot = column == tl.load(place + row)
            if separate:
                target = tl.load(target_logits + row).to(tl.float32)
            else:
                target = tl.sum(tl.where(spot, z, 0.0))
            z = tl.where(spot, -float("inf"), z)
            top = tl.maximum(tl.max(z), target)
            share, own_share = tl.exp(z - top), tl.exp(target - top)
            partition = tl.sum(share) + own_share
            share, to_own = share / partition, own_share / partition - 1
            if not separate:
                share = tl.where(spot, to_own, share)
            total += share
            tl.store(logits + row * size + column, share, inside)
            tl.store(nll + row, tl.log(partition) + top - target)
            tl.store(d_own + row, to_own)
        tl.store(sums + tl.program_id(0) * size + column, total, inside)

    @triton.jit
    def _long_rows(  # type: ignore[no-untyped-def]
        logits, bias, target_logits, place, nll, d_own, size, separate: tl.constexpr, block: tl.constexpr
    ):
        """Process one row in blocks: the sum of its exponentials, then, from the cache, its shares."""
        row = tl.program_id(0)
        logits += row * size
        spot = tl.load(place + row)
        if separate:
            target = tl.load(target_logits + row).to(tl.float32)
        else:
            target = tl.load(logits + spot).to(tl.float32) + tl.load(bias + spot)
        top, partition = target, 1.0 + 0 * target
        for begin in range(0, size, block):
            column = begin + tl.arange(0, block)
            inside = (column < size) & (column != spot)
            z = tl.load(logits + column, inside, other=-float("inf")).to(tl.float32)
            z += tl.load(bias + column, inside, other=0.0)
            higher = tl.maximum(top, tl.max(z))
            partition = partition * tl.exp(top - higher) + tl.sum(tl.exp(z - higher))
            top = higher
        to_own = tl.exp(target - top) / partition - 1
        tl.store(nll + row, tl.log(partition) + top - target)
        tl.store(d_own + row, to_own)
        for begin in range(0, size, block):
            column = begin + tl.arange(0, block)
            inside = column < size
            z = tl.load(logits + column, inside, other=0.0).to(tl.float32) + tl.load(bias + column, inside, other=0.0)
            share = tl.exp(z - top) / partition
            if separate:
                share = tl.where(column == spot, 0.0, share)
            else:
                share = tl.where(column == spot, to_own, share)
            tl.store(logits + column, share, inside)


def supports_mixture(*tensors: Tensor) -> bool:
    """Return whether the highway mixture can run on these."""
    return triton is not None and all(tensor.is_cuda and tensor.dtype != torch.float64 for tensor in tensors)


def mix(carry: Tensor, transform: Tensor, x: Tensor) -> Tensor:
    """Return `relmo.nn.char_cnn.Mixture` of contiguous tensors of one shape, computed in float32."""
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


def supports_softmax(tensor: Tensor) -> bool:
    """Return whether `softmax_shares` can run on the tensor."""
    return triton is not None and tensor.is_cuda


def softmax_shares(logits: Tensor, bias: Tensor, target: Tensor | None, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `relmo.nn.softmax.softmax_shares` in float32; logits (n, S) and all others are contiguous."""
    rows, size = logits.shape
    nll, d_own = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    arguments = logits, bias, place if target is None else target, place, nll, d_own
    if size > MAX_ROW:
        _long_rows[(rows,)](*arguments, size, separate=target is not None, block=SOFTMAX_BLOCK, num_warps=8)
        return nll, d_own, logits.sum(dim=0, dtype=torch.float32)
    device = logits.device
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    programs = min(rows, SOFTMAX_PROGRAMS * processors)
    sums = torch.empty(programs, size, dtype=torch.float32, device=logits.device)
    block = triton.next_power_of_2(size)
    _short_rows[(programs,)](
        *arguments, sums, rows, size, separate=target is not None, block=block, num_warps=min(32, max(1, block // 256))
    )
    return nll, d_own, sums.sum(dim=0)

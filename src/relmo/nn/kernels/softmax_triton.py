"""`relmo.nn.softmax.softmax_shares` for a GPU: one launch, which reads the logits once and writes the shares in their
place. Values are computed in float32 whatever they are stored in."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = None

WHOLE = 8192  # symbols of a row that fit into the registers of one program
BLOCK = 4096  # symbols that a program takes at a time where a row is longer
PROGRAMS = 2  # for each processor of the GPU, where a program takes many rows

if triton is not None:

    @triton.jit
    def _whole_rows(  # type: ignore[no-untyped-def]
        logits, bias, own, place, nll, d_own, sums, rows, size, apart: tl.constexpr, block: tl.constexpr
    ):
        """Each program takes every so many rows, and leaves the sums of their columns in its row of `sums`."""
        column = tl.arange(0, block)
        inside = column < size
        b = tl.load(bias + column, inside, other=0.0)
        total = tl.zeros((block,), tl.float32)
        coming = tl.load(logits + tl.program_id(0) * size + column, inside, other=-float("inf"))
        for row in range(tl.program_id(0), rows, tl.num_programs(0)):
            z = coming.to(tl.float32) + b
            after = row + tl.num_programs(0)  # on its way while this row is computed
            coming = tl.load(logits + after * size + column, inside & (after < rows), other=-float("inf"))
            spot = column == tl.load(place + row)
            if apart:
                target = tl.load(own + row).to(tl.float32)
            else:
                target = tl.sum(tl.where(spot, z, 0.0))
            z = tl.where(spot, -float("inf"), z)
            top = tl.maximum(tl.max(z), target)
            share, own_share = tl.exp(z - top), tl.exp(target - top)
            whole = tl.sum(share) + own_share
            share, to_own = share / whole, own_share / whole - 1
            if not apart:
                share = tl.where(spot, to_own, share)
            total += share
            tl.store(logits + row * size + column, share, inside)
            tl.store(nll + row, tl.log(whole) + top - target)
            tl.store(d_own + row, to_own)
        tl.store(sums + tl.program_id(0) * size + column, total, inside)

    @triton.jit
    def _long_rows(  # type: ignore[no-untyped-def]
        logits, bias, own, place, nll, d_own, size, apart: tl.constexpr, block: tl.constexpr
    ):
        """Each program takes one row, a block at a time: first for the sum of its exponentials, then, from the cache,
        for its shares."""
        row = tl.program_id(0)
        logits += row * size
        spot = tl.load(place + row)
        if apart:
            target = tl.load(own + row).to(tl.float32)
        else:
            target = tl.load(logits + spot).to(tl.float32) + tl.load(bias + spot)
        top, whole = target, 1.0 + 0 * target
        for begin in range(0, size, block):
            column = begin + tl.arange(0, block)
            inside = (column < size) & (column != spot)
            z = tl.load(logits + column, inside, other=-float("inf")).to(tl.float32)
            z += tl.load(bias + column, inside, other=0.0)
            higher = tl.maximum(top, tl.max(z))
            whole = whole * tl.exp(top - higher) + tl.sum(tl.exp(z - higher))
            top = higher
        to_own = tl.exp(target - top) / whole - 1
        tl.store(nll + row, tl.log(whole) + top - target)
        tl.store(d_own + row, to_own)
        for begin in range(0, size, block):
            column = begin + tl.arange(0, block)
            inside = column < size
            z = tl.load(logits + column, inside, other=0.0).to(tl.float32) + tl.load(bias + column, inside, other=0.0)
            share = tl.exp(z - top) / whole
            if apart:
                share = tl.where(column == spot, 0.0, share)
            else:
                share = tl.where(column == spot, to_own, share)
            tl.store(logits + column, share, inside)


def available(tensor: Tensor) -> bool:
    """Whether these kernels can run on the tensor's device."""
    return triton is not None and tensor.is_cuda


def shares(logits: Tensor, bias: Tensor, own: Tensor | None, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `softmax_shares`; logits (n, S) and all others are contiguous."""
    rows, size = logits.shape
    nll, d_own = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    arguments = logits, bias, place if own is None else own, place, nll, d_own
    if size > WHOLE:
        _long_rows[(rows,)](*arguments, size, apart=own is not None, block=BLOCK, num_warps=8)
        return nll, d_own, logits.sum(dim=0, dtype=torch.float32)
    programs = min(rows, PROGRAMS * _processors(logits.device))
    sums = torch.empty(programs, size, dtype=torch.float32, device=logits.device)
    block = triton.next_power_of_2(size)
    _whole_rows[(programs,)](
        *arguments, sums, rows, size, apart=own is not None, block=block, num_warps=min(32, max(1, block // 256))
    )
    return nll, d_own, sums.sum(dim=0)


def _processors(device: torch.device) -> int:
    """How many processors the GPU has."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1

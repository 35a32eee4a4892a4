"""`relmo.nn.softmax.softmax_shares` on a GPU: one launch that overwrites the logits, computed in float32."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = None

MAX_ROW = 8192  # symbols of a row that fit into the registers of one program
BLOCK = 4096  # symbols processed at a time in longer rows
PROGRAMS = 2  # per processor of the GPU, if a program processes many rows

if triton is not None:

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


def available(tensor: Tensor) -> bool:
    """Return whether these kernels can run on the tensor."""
    return triton is not None and tensor.is_cuda


def shares(logits: Tensor, bias: Tensor, target: Tensor | None, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `softmax_shares`; logits (n, S) and all others are contiguous."""
    rows, size = logits.shape
    nll, d_own = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    arguments = logits, bias, place if target is None else target, place, nll, d_own
    if size > MAX_ROW:
        _long_rows[(rows,)](*arguments, size, separate=target is not None, block=BLOCK, num_warps=8)
        return nll, d_own, logits.sum(dim=0, dtype=torch.float32)
    device = logits.device
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    programs = min(rows, PROGRAMS * processors)
    sums = torch.empty(programs, size, dtype=torch.float32, device=logits.device)
    block = triton.next_power_of_2(size)
    _short_rows[(programs,)](
        *arguments, sums, rows, size, separate=target is not None, block=block, num_warps=min(32, max(1, block // 256))
    )
    return nll, d_own, sums.sum(dim=0)

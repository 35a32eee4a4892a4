"""`lstm_step` on a GPU. All element-wise work of a step is one launch, computed in float32 whatever the storage.

cuBLAS computes the products, except those in half precision with a small result (h, and its gradient). There the sum is
split into parts to occupy the whole GPU, and the launch that adds the parts also computes the next operation.
"""

import math
from functools import cache

import torch
from torch import Tensor

from relmo.nn.kernels import lstm_step

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = None

BLOCK = 1024  # columns per program in element-wise kernels
PROGRAMS = 256  # approximate number for a product: two for each processor of a large GPU
DEPTH = 64  # of a tile of a product

if triton is not None:

    @triton.jit
    def _tanh(x):  # type: ignore[no-untyped-def]
        return 2 * tl.sigmoid(2 * x) - 1

    @triton.jit(do_not_specialize=["step"])
    def _forward(  # type: ignore[no-untyped-def]
        z, z0, z1, bias, b0, b1, index, i0, lengths, step, c, c0, c1, c_next, n0, n1, m, m0, m1, rows, hidden, limit,
        biased: tl.constexpr, indexed: tl.constexpr, ending: tl.constexpr, keep: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        d, r = tl.program_id(0) // rows, tl.program_id(0) % rows
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < hidden
        z += d * z0 + r * z1 + column
        i = tl.load(z, inside).to(tl.float32)
        f = tl.load(z + hidden, inside).to(tl.float32)
        g = tl.load(z + 2 * hidden, inside).to(tl.float32)
        o = tl.load(z + 3 * hidden, inside).to(tl.float32)
        if biased:
            bias += d * b0 + column
            if indexed:
                bias += tl.load(index + d * i0 + r) * b1
            i += tl.load(bias, inside).to(tl.float32)
            f += tl.load(bias + hidden, inside).to(tl.float32)
            g += tl.load(bias + 2 * hidden, inside).to(tl.float32)
            o += tl.load(bias + 3 * hidden, inside).to(tl.float32)
        i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
        before = tl.load(c + d * c0 + r * c1 + column, inside).to(tl.float32)
        after = tl.minimum(tl.maximum(f * before + i * g, -limit), limit)
        if ending:
            going_on = step < tl.load(lengths + r)
            after = tl.where(going_on, after, before)
            o = tl.where(going_on, o, 0.0)
        if keep:
            tl.store(z, i, inside)
            tl.store(z + hidden, f, inside)
            tl.store(z + 2 * hidden, g, inside)
            tl.store(z + 3 * hidden, o, inside)
        tl.store(c_next + d * n0 + r * n1 + column, after, inside)
        tl.store(m + d * m0 + r * m1 + column, o * _tanh(after), inside)

    @triton.jit
    def _backward(  # type: ignore[no-untyped-def]
        z, z0, z1, dm, m0, m1, dc, d0, d1, c, c0, c1, c_next, n0, n1, rows, hidden, limit, block: tl.constexpr
    ):
        d, r = tl.program_id(0) // rows, tl.program_id(0) % rows
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < hidden
        z += d * z0 + r * z1 + column
        dc += d * d0 + r * d1 + column
        i = tl.load(z, inside).to(tl.float32)
        f = tl.load(z + hidden, inside).to(tl.float32)
        g = tl.load(z + 2 * hidden, inside).to(tl.float32)
        o = tl.load(z + 3 * hidden, inside).to(tl.float32)
        before = tl.load(c + d * c0 + r * c1 + column, inside).to(tl.float32)
        after = tl.load(c_next + d * n0 + r * n1 + column, inside).to(tl.float32)
        to_m = tl.load(dm + d * m0 + r * m1 + column, inside).to(tl.float32)
        t = _tanh(after)
        to_c = tl.load(dc, inside).to(tl.float32) + to_m * o * (1 - t * t)
        to_c = tl.where(tl.abs(after) < limit, to_c, 0.0)
        tl.store(z, to_c * g * i * (1 - i), inside)
        tl.store(z + hidden, to_c * before * f * (1 - f), inside)
        tl.store(z + 2 * hidden, to_c * i * (1 - g * g), inside)
        tl.store(z + 3 * hidden, to_m * t * o * (1 - o), inside)
        tl.store(dc, to_c * f, inside)

    @triton.jit
    def _product(  # type: ignore[no-untyped-def]
        a, a0, a1, b, b0, b1, b2, parts, p0, p1, p2, rows, columns, depth, share,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    ):  # fmt: skip
        d, part = tl.program_id(1), tl.program_id(2)
        tiles = tl.cdiv(rows, ROWS)
        row = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
        column = (tl.program_id(0) // tiles) * COLUMNS + tl.arange(0, COLUMNS)
        k = tl.arange(0, DEPTH)
        row_mask, column_mask = row < rows, column < columns
        begin = part * share
        end = tl.minimum(begin + share, depth)
        a += d * a0 + row[:, None] * a1 + (begin + k)[None, :]
        b += d * b0 + (begin + k)[:, None] * b1 + column[None, :] * b2
        sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for start in range(begin, end, DEPTH):
            inside = k < end - start
            x = tl.load(a, row_mask[:, None] & inside[None, :], 0.0)
            sums = tl.dot(x, tl.load(b, column_mask[None, :] & inside[:, None], 0.0), sums)
            a += DEPTH
            b += DEPTH * b1
        to = parts + part * p0 + d * p1 + row[:, None] * p2 + column[None, :]
        tl.store(to, sums, row_mask[:, None] & column_mask[None, :])

    @triton.jit
    def _clipped_sum(  # type: ignore[no-untyped-def]
        parts, p0, p1, p2, h, h0, h1, rows, size, limit, stored, below, count: tl.constexpr, block: tl.constexpr
    ):
        d, r = tl.program_id(0) // rows, tl.program_id(0) % rows
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < size
        total = tl.zeros((block,), dtype=tl.float32)
        for part in tl.static_range(count):
            total += tl.load(parts + part * p0 + d * p1 + r * p2 + column, inside, 0.0)
        limit = tl.where(tl.abs(total) < limit, below, stored)
        tl.store(h + d * h0 + r * h1 + column, tl.minimum(tl.maximum(total, -limit), limit), inside)

    @triton.jit
    def _output_gradient(  # type: ignore[no-untyped-def]
        dy, d0, d1, parts, p0, p1, p2, h, h0, h1, dh, g0, g1, rows, size, limit,
        count: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        d, r = tl.program_id(0) // rows, tl.program_id(0) % rows
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < size
        total = tl.load(dy + d * d0 + r * d1 + column, inside, 0.0).to(tl.float32)
        for part in tl.static_range(count):
            total += tl.load(parts + part * p0 + d * p1 + r * p2 + column, inside, 0.0)
        output = tl.load(h + d * h0 + r * h1 + column, inside, 0.0).to(tl.float32)
        tl.store(dh + d * g0 + r * g1 + column, tl.where(tl.abs(output) < limit, total, 0.0), inside)


def available(tensor: Tensor) -> bool:
    """Return whether these kernels can run on the tensor."""
    return triton is not None and tensor.is_cuda and tensor.dtype != torch.float64


def forward(
    z: Tensor,
    bias: Tensor | None,
    c: Tensor,
    c_next: Tensor,
    m: Tensor,
    cell_clip: float | None,
    *,
    index: Tensor | None = None,
    lengths: Tensor | None = None,
    step: int = 0,
    keep: bool = True,
) -> None:
    """Compute `lstm_step.forward`, with an `index` (2, n) from rows of a bias (2, S, 4H).

    With `lengths` (n,), a row that has ended by this step has its cell unchanged and zero m.
    """
    _, rows, hidden = m.shape
    # Triton needs a pointer for absent arguments too.
    bias_, index_, lengths_ = (z if tensor is None else tensor for tensor in (bias, index, lengths))
    _forward[_grid(m)](
        *_outer(z), bias_, bias_.stride(0), bias_.stride(1), index_, index_.stride(0), lengths_, step,
        *_outer(c), *_outer(c_next), *_outer(m), rows, hidden, _limit(cell_clip),
        biased=bias is not None, indexed=index is not None, ending=lengths is not None, keep=keep,
        block=_block(hidden),
    )  # fmt: skip


def project(m: Tensor, weight_hr: Tensor, h: Tensor, clip: float | None) -> None:
    """Compute `lstm_step.project`."""
    if m.dtype == torch.float32:
        lstm_step.project(m, weight_hr, h, clip)
        return
    parts = parts_of(m, h.shape[2])
    _multiply(m, weight_hr.transpose(1, 2), parts)
    _, rows, size = h.shape
    _clipped_sum[_grid(h)](
        parts, *parts.stride()[:3], *_outer(h), rows, size, _limit(clip), *_stored(clip, h.dtype),
        count=len(parts), block=_block(size),
    )  # fmt: skip


def backward(z: Tensor, dm: Tensor, dc: Tensor, c: Tensor, c_next: Tensor, cell_clip: float | None) -> None:
    """Compute `lstm_step.backward`."""
    _, rows, hidden = c.shape
    _backward[_grid(c)](
        *_outer(z), *_outer(dm), *_outer(dc), *_outer(c), *_outer(c_next), rows, hidden, _limit(cell_clip),
        block=_block(hidden),
    )  # fmt: skip


def parts_of(z: Tensor, size: int) -> Tensor:
    """Allocate the parts of a product in float32, for `to_output` and `project`."""
    directions, rows, depth = z.shape
    if z.dtype == torch.float32:
        return lstm_step.parts_of(z, size)
    tall, wide = _tile(rows)
    tiles = directions * triton.cdiv(rows, tall) * triton.cdiv(size, wide)
    count = max(1, min(16, PROGRAMS // tiles, depth // (4 * DEPTH)))
    return torch.empty(count, directions, rows, size, device=z.device)


def to_output(z: Tensor, weight_hh: Tensor, parts: Tensor) -> None:
    """Compute `lstm_step.to_output`."""
    if z.dtype == torch.float32:
        lstm_step.to_output(z, weight_hh, parts)
    else:
        _multiply(z, weight_hh, parts)


def output_gradient(dy: Tensor, parts: Tensor, h: Tensor, dh: Tensor, clip: float | None) -> None:
    """Compute `lstm_step.output_gradient`."""
    _, rows, size = dh.shape
    _output_gradient[_grid(dh)](
        *_outer(dy), parts, *parts.stride()[:3], *_outer(h), *_outer(dh), rows, size, _stored(clip, h.dtype)[0],
        count=len(parts), block=_block(size),
    )  # fmt: skip


def _multiply(a: Tensor, b: Tensor, parts: Tensor) -> None:
    """Fill parts (S, 2, n, N), whose sum is a (2, n, K) b (2, K, N)."""
    directions, rows, depth = a.shape
    columns, (tall, wide) = b.shape[2], _tile(rows)
    share = triton.cdiv(depth, len(parts) * DEPTH) * DEPTH
    grid = (triton.cdiv(rows, tall) * triton.cdiv(columns, wide), directions, len(parts))
    _product[grid](
        *_outer(a), b, *b.stride(), parts, *parts.stride()[:3], rows, columns, depth, share,
        ROWS=tall, COLUMNS=wide, DEPTH=DEPTH, num_warps=4, num_stages=4,
    )  # fmt: skip


def _tile(rows: int) -> tuple[int, int]:
    """Return the rows and columns of a tile of a product, the fastest measured."""
    return 64 if rows <= 64 else 128, 64


def _outer(tensor: Tensor) -> tuple[Tensor, int, int]:
    return tensor, tensor.stride(0), tensor.stride(1)


def _grid(tensor: Tensor) -> tuple[int, int]:
    directions, rows, size = tensor.shape
    return directions * rows, triton.cdiv(size, _block(size))


def _block(size: int) -> int:
    return min(BLOCK, triton.next_power_of_2(size))


@cache
def _stored(clip: float | None, precision: torch.dtype) -> tuple[float, float]:
    """Return the limit as it is stored, and the next number below it for numbers that are not clipped."""
    if clip is None or precision == torch.float32:
        return _limit(clip), _limit(clip)
    limit = torch.tensor(clip, dtype=precision)
    return limit.item(), (limit.view(torch.int16) - 1).view(precision).item()


def _limit(clip: float | None) -> float:
    return math.inf if clip is None else clip

"""`lstm_step` for a GPU, each function one launch. Values are computed in float32 whatever they are stored in."""

import math

from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = None

BLOCK = 1024  # columns of one program

if triton is not None:

    @triton.jit
    def _tanh(x):  # type: ignore[no-untyped-def]
        return 2 * tl.sigmoid(2 * x) - 1

    @triton.jit
    def _forward(  # type: ignore[no-untyped-def]
        z, z0, z1, c, c0, c1, c_next, n0, n1, m, m0, m1, rows, hidden, clip, block: tl.constexpr
    ):
        d, r = tl.program_id(0) // rows, tl.program_id(0) % rows
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < hidden
        z += d * z0 + r * z1 + column
        i = tl.sigmoid(tl.load(z, inside).to(tl.float32))
        f = tl.sigmoid(tl.load(z + hidden, inside).to(tl.float32))
        g = _tanh(tl.load(z + 2 * hidden, inside).to(tl.float32))
        o = tl.sigmoid(tl.load(z + 3 * hidden, inside).to(tl.float32))
        before = tl.load(c + d * c0 + r * c1 + column, inside).to(tl.float32)
        after = tl.minimum(tl.maximum(f * before + i * g, -clip), clip)
        tl.store(z, i, inside)
        tl.store(z + hidden, f, inside)
        tl.store(z + 2 * hidden, g, inside)
        tl.store(z + 3 * hidden, o, inside)
        tl.store(c_next + d * n0 + r * n1 + column, after, inside)
        tl.store(m + d * m0 + r * m1 + column, o * _tanh(after), inside)

    @triton.jit
    def _backward(  # type: ignore[no-untyped-def]
        z, z0, z1, dm, m0, m1, dc, d0, d1, c, c0, c1, c_next, n0, n1, rows, hidden, clip, block: tl.constexpr
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
        to_c = tl.where(tl.abs(after) < clip, to_c, 0.0)
        tl.store(z, to_c * g * i * (1 - i), inside)
        tl.store(z + hidden, to_c * before * f * (1 - f), inside)
        tl.store(z + 2 * hidden, to_c * i * (1 - g * g), inside)
        tl.store(z + 3 * hidden, to_m * t * o * (1 - o), inside)
        tl.store(dc, to_c * f, inside)

    @triton.jit
    def _clipped_gradient(  # type: ignore[no-untyped-def]
        d, d0, d1, dh_next, n0, n1, h, h0, h1, dh, g0, g1, rows, size, clip, block: tl.constexpr
    ):
        k, r = tl.program_id(0) // rows, tl.program_id(0) % rows
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < size
        total = tl.load(d + k * d0 + r * d1 + column, inside).to(tl.float32)
        total += tl.load(dh_next + k * n0 + r * n1 + column, inside).to(tl.float32)
        output = tl.load(h + k * h0 + r * h1 + column, inside).to(tl.float32)
        tl.store(dh + k * g0 + r * g1 + column, tl.where(tl.abs(output) < clip, total, 0.0), inside)


def available(tensor: Tensor) -> bool:
    """Whether these kernels can run on the tensor's device."""
    return triton is not None and tensor.is_cuda


def forward(z: Tensor, c: Tensor, c_next: Tensor, m: Tensor, cell_clip: float | None) -> None:
    """As `lstm_step.forward`."""
    _launch(_forward, (z, c, c_next, m), m.shape, cell_clip)


def backward(z: Tensor, dm: Tensor, dc: Tensor, c: Tensor, c_next: Tensor, cell_clip: float | None) -> None:
    """As `lstm_step.backward`."""
    _launch(_backward, (z, dm, dc, c, c_next), c.shape, cell_clip)


def clipped_gradient(d: Tensor, dh_next: Tensor, h: Tensor, dh: Tensor, clip: float | None) -> None:
    """As `lstm_step.clipped_gradient`."""
    _launch(_clipped_gradient, (d, dh_next, h, dh), dh.shape, clip)


def _launch(kernel, tensors: tuple[Tensor, ...], shape: tuple[int, ...], clip: float | None) -> None:  # type: ignore[no-untyped-def]
    """One program a row and block of columns; each tensor goes with the strides of its two outer dimensions."""
    directions, rows, size = shape
    block = min(BLOCK, triton.next_power_of_2(size))
    arguments = [part for tensor in tensors for part in (tensor, tensor.stride(0), tensor.stride(1))]
    limit = math.inf if clip is None else clip
    kernel[(directions * rows, triton.cdiv(size, block))](*arguments, rows, size, limit, block=block)

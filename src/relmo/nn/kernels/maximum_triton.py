"""The gradient of `char_cnn.Maximum` on a GPU, in two passes over memory instead of seven."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = None

BLOCK = 512  # filters of one program

if triton is not None:

    @triton.jit
    def _backward(x, y, dy, dx, windows, filters, block: tl.constexpr):  # type: ignore[no-untyped-def]
        word = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < filters
        most = tl.load(y + word * filters + column, inside)
        x += word * windows * filters + column
        dx += word * windows * filters + column
        count = tl.zeros((block,), dtype=tl.float32)
        for t in range(windows):
            count += (tl.load(x + t * filters, inside) == most).to(tl.float32)
        share = tl.load(dy + word * filters + column, inside).to(tl.float32) / count
        for t in range(windows):
            equal = tl.load(x + t * filters, inside) == most
            tl.store(dx + t * filters, tl.where(equal, share, 0.0), inside)


def available(tensor: Tensor) -> bool:
    """Whether the kernel can run on the tensor's device."""
    return triton is not None and tensor.is_cuda


def backward(x: Tensor, y: Tensor, dy: Tensor) -> Tensor:
    """The gradient of x (N, windows, filters) from that of its maxima y (N, filters)."""
    x, y, dy = x.contiguous(), y.contiguous(), dy.contiguous()
    words, windows, filters = x.shape
    dx = torch.empty_like(x)
    if x.numel():
        _backward[(words, triton.cdiv(filters, BLOCK))](x, y, dy, dx, windows, filters, block=BLOCK)
    return dx

"""`relmo.nn.highway.Mixture` on a GPU, in one launch each way. Computed in float32."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = None

BLOCK = 2048  # elements of one program

if triton is not None:

    @triton.jit
    def _forward(carry, transform, x, y, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * block + tl.arange(0, block)
        inside = at < size
        g = tl.sigmoid(tl.load(carry + at, inside).to(tl.float32))
        t = tl.maximum(tl.load(transform + at, inside).to(tl.float32), 0.0)
        tl.store(y + at, g * t + (1 - g) * tl.load(x + at, inside).to(tl.float32), inside)

    @triton.jit
    def _backward(  # type: ignore[no-untyped-def]
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


def available(*tensors: Tensor) -> bool:
    """Whether the kernels can run on these."""
    return triton is not None and all(tensor.is_cuda and tensor.dtype != torch.float64 for tensor in tensors)


def forward(carry: Tensor, transform: Tensor, x: Tensor) -> Tensor:
    """The mixture; all contiguous and of one shape."""
    y = torch.empty_like(x)
    if y.numel():
        _forward[(triton.cdiv(y.numel(), BLOCK),)](carry, transform, x, y, y.numel(), block=BLOCK)
    return y


def backward(carry: Tensor, transform: Tensor, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """The gradients of all three."""
    given = (carry, transform, x)
    gradients = tuple(torch.empty_like(tensor) for tensor in given)
    if dy.numel():
        grid = (triton.cdiv(dy.numel(), BLOCK),)
        _backward[grid](*given, dy.contiguous(), *gradients, dy.numel(), block=BLOCK)
    return gradients

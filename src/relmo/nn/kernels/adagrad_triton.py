"""One step of Adagrad over a parameter on a GPU, clipping and the average of the weights included, in one pass over
memory. torch's own, an operation at a time, takes nineteen; it is the definition."""

from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = None

BLOCK = 4096  # elements of one program

if triton is not None:

    @triton.jit
    def _step(  # type: ignore[no-untyped-def]
        parameter,
        gradient,
        squares,
        average,
        factor,
        lr,
        eps,
        weight_decay,
        weight,
        size,
        averaged: tl.constexpr,
        block: tl.constexpr,
    ):
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


def available(*tensors: Tensor) -> bool:
    """Whether the kernel can run on these."""
    return triton is not None and all(t.is_cuda and t.is_contiguous() and t.element_size() == 4 for t in tensors)


def step(
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
    """g = factor * gradient + weight_decay * p;  squares += g^2;  p -= lr * g / (sqrt(squares) + eps);
    average += weight * (p - average).  All contiguous, in float32; `factor` is one number on the device."""
    size = parameter.numel()
    _step[(triton.cdiv(size, BLOCK),)](
        parameter,
        gradient,
        squares,
        parameter if average is None else average,
        factor,
        lr,
        eps,
        weight_decay,
        weight,
        size,
        averaged=average is not None,
        block=BLOCK,
        num_warps=8,
    )

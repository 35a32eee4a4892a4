"""Linear and highway layers on a CPU in float32 without gradients, compiled from `linear.c`.

They equal `torch.nn.functional.linear` and `highway.Highway`, which are used where `supports` is false. Here a row's
numbers depend neither on the other rows nor on the number of threads.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from relmo.nn.kernels import lstm_cpu
from relmo.nn.kernels.weight_cache import cached

MIN_PARALLEL_WORK = 4_000_000  # multiplications up to which a second thread does not pay
MIN_ROWS = 24  # per thread


def supports(*tensors: Tensor) -> bool:
    """Return whether the kernels can run on these tensors: no gradients, all float32 on a CPU."""
    return not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and lstm_cpu.supports(*tensors)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W^T + b (N, O) of x (N, I), weight (O, I), bias (O,)."""
    packed = cached(f"linear for {lstm_cpu.kernels()._name}", [weight, bias], lambda: pack(weight, bias))
    y = x.new_empty(len(x), len(weight))
    linear_into(y, torch.arange(len(x)), x, packed)
    return y


def linear_into(y: Tensor, rows: Tensor, x: Tensor, packed: Tensor) -> None:
    """Write the product of x (N, I) and a packed weight to the rows (N,) of the contiguous tensor y (M, O)."""
    x, rows = x.contiguous(), rows.contiguous()
    lstm_cpu.check("rows", rows, (len(x),))
    if not y.is_contiguous() or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(y)):
        raise ValueError(f"Row numbers must be below {len(y)}, and the output contiguous.")
    inputs, outputs = x.shape[1], y.shape[1]
    lstm_cpu.check("packed", packed, (lstm_cpu.kernels().relmo_linear_packed(inputs, outputs, 0),))

    def run(a: int, b: int) -> None:
        lstm_cpu.kernels().relmo_linear(
            b - a, inputs, outputs, x[a:].data_ptr(), packed.data_ptr(), y.data_ptr(), rows[a:].data_ptr()
        )

    spread(run, len(x), inputs * outputs)


def highway(x: Tensor, carry: nn.Linear, transform: nn.Linear) -> Tensor:
    """Apply a highway layer to x (N, F)."""
    weights = [carry.weight, carry.bias, transform.weight, transform.bias]
    packed = cached(f"highway for {lstm_cpu.kernels()._name}", weights, lambda: pack(*weights))
    x = x.contiguous()
    size = len(carry.weight)
    lstm_cpu.check("x", x, (len(x), size))
    y = torch.empty_like(x)

    def run(a: int, b: int) -> None:
        lstm_cpu.kernels().relmo_highway(b - a, size, x[a:].data_ptr(), packed.data_ptr(), y[a:].data_ptr())

    spread(run, len(x), 2 * size * size)
    return y


def pack(weight: Tensor, bias: Tensor, transform: Tensor | None = None, transform_bias: Tensor | None = None) -> Tensor:
    """Pack a weight (O, I) and its bias, or both of a highway layer, in the order of the kernels."""
    tensors = [lstm_cpu.contiguous(tensor) for tensor in (weight, bias, transform, transform_bias)]
    columns, depth = weight.shape
    packed = weight.new_empty(lstm_cpu.kernels().relmo_linear_packed(depth, columns, transform is not None))
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    lstm_cpu.kernels().relmo_linear_pack(*pointers, depth, columns, packed.data_ptr())
    return packed


def spread(run: Callable[[int, int], object], rows: int, work: int) -> None:
    """Call `run(start, stop)` for all rows of `work` multiplications each, in as many threads as are useful."""
    if not rows:
        return
    threads = torch.get_num_threads() if rows * work > MIN_PARALLEL_WORK else 1
    blocks = max(1, min(threads, rows // MIN_ROWS))
    edges = [rows * k // blocks for k in range(blocks + 1)]
    lstm_cpu.run_parallel(run, list(pairwise(edges)))

"""Products with one weight on a CPU in float32, without gradients, by the library that `linear.c` is compiled to.

It is the twin of `torch.nn.functional.linear` and of `highway.Highway`, which take over where `suits` says no. Here a
row's numbers depend neither on the rows around it nor on the number of threads.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from relmo.nn.kernels import lstm_cpu
from relmo.nn.kernels.kept import kept

ALONE = 4_000_000  # multiplications up to which another thread is not worth its start
BLOCK = 24  # rows a thread has at least


def suits(*tensors: Tensor) -> bool:
    """Whether the kernels can run on these: no gradients, all float32 on a CPU."""
    return not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and lstm_cpu.suits(*tensors)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (N, I), weight (O, I), bias (O,) -> (N, O)."""
    packed = kept(f"linear for {lstm_cpu.kernels()._name}", [weight, bias], lambda: pack(weight, bias))
    y = x.new_empty(len(x), len(weight))
    linear_into(y, torch.arange(len(x)), x, packed)
    return y


def linear_into(y: Tensor, places: Tensor, x: Tensor, packed: Tensor) -> None:
    """Puts what x (N, I) gives with a packed weight into the rows `places` (N,) of y (M, O), which is contiguous."""
    x, places = x.contiguous(), places.contiguous()
    lstm_cpu.check("places", places, (len(x),))
    if not y.is_contiguous() or (len(places) and not 0 <= int(places.min()) <= int(places.max()) < len(y)):
        raise ValueError(f"places for {len(y)} rows without gaps were expected")
    inputs, outputs = x.shape[1], y.shape[1]
    lstm_cpu.check("packed", packed, (lstm_cpu.kernels().relmo_linear_packed(inputs, outputs, 0),))

    def work_on(a: int, b: int) -> None:
        lstm_cpu.kernels().relmo_linear(
            b - a, inputs, outputs, x[a:].data_ptr(), packed.data_ptr(), y.data_ptr(), places[a:].data_ptr()
        )

    spread(work_on, len(x), inputs * outputs)


def highway(x: Tensor, carry: nn.Linear, transform: nn.Linear) -> Tensor:
    """A highway layer of these: x (N, F) -> (N, F)."""
    weights = [carry.weight, carry.bias, transform.weight, transform.bias]
    packed = kept(f"highway for {lstm_cpu.kernels()._name}", weights, lambda: pack(*weights))
    x = x.contiguous()
    size = len(carry.weight)
    lstm_cpu.check("x", x, (len(x), size))
    y = torch.empty_like(x)

    def work_on(a: int, b: int) -> None:
        lstm_cpu.kernels().relmo_highway(b - a, size, x[a:].data_ptr(), packed.data_ptr(), y[a:].data_ptr())

    spread(work_on, len(x), 2 * size * size)
    return y


def pack(weight: Tensor, bias: Tensor, other: Tensor | None = None, other_bias: Tensor | None = None) -> Tensor:
    """A weight (O, I) and its bias, or the two of a highway layer, in the order the kernels read them."""
    given = [None if tensor is None else tensor.detach().contiguous() for tensor in (weight, bias, other, other_bias)]
    columns, depth = weight.shape
    packed = weight.new_empty(lstm_cpu.kernels().relmo_linear_packed(depth, columns, other is not None))
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in given]
    lstm_cpu.kernels().relmo_linear_pack(*pointers, depth, columns, packed.data_ptr())
    return packed


def spread(work_on: Callable[[int, int], object], rows: int, work: int) -> None:
    """All rows, each with so many multiplications, in as many threads as torch has and are of use."""
    if not rows:
        return
    threads = torch.get_num_threads() if rows * work > ALONE else 1
    blocks = max(1, min(threads, rows // BLOCK))
    edges = [rows * k // blocks for k in range(blocks + 1)]
    lstm_cpu.side_by_side(work_on, list(pairwise(edges)))

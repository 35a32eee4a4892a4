"""Convolutions, linear and highway layers of words on a CPU in float32, compiled from `char_cnn.c` and `linear.c`.

They equal `CharCNN`, `torch.nn.functional.linear` and `Highway`. A word's numbers never depend on the other words.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relmo.nn.kernels import cached, cpu

MIN_WORDS = 64  # fewer are computed faster than tables that are not cached
LANES = 16  # filters of a width are padded to a multiple of this
BLOCK = 64  # filters whose table fits the processor's cache
LOOKUP_COST = 100  # multiplications that take as long as one output


def supports(*tensors: Tensor) -> bool:
    """Return whether `linear` and `highway` can run on these tensors: no gradients, all float32 on a CPU."""
    return not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and cpu.supports(*tensors)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W^T + b (N, O) of x (N, I), weight (O, I), bias (O,)."""
    packed = cached(f"linear for {cpu.kernels()._name}", [weight, bias], lambda: pack(weight, bias))
    y = x.new_empty(len(x), len(weight))
    linear_into(y, torch.arange(len(x)), x, packed)
    return y


def linear_into(y: Tensor, rows: Tensor, x: Tensor, packed: Tensor) -> None:
    """Write the product of x (N, I) and a packed weight to the rows (N,) of the contiguous tensor y (M, O)."""
    x, rows = x.contiguous(), rows.contiguous()
    cpu.check("rows", rows, (len(x),))
    if not y.is_contiguous() or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(y)):
        raise ValueError(f"Row numbers must be below {len(y)}, and the output contiguous.")
    inputs, outputs = x.shape[1], y.shape[1]
    cpu.check("packed", packed, (cpu.kernels().relmo_linear_packed(inputs, outputs, 0),))
    call, out = cpu.kernels().relmo_linear, (packed.data_ptr(), y.data_ptr())
    cpu.spread(
        lambda _, a, b: call(b - a, inputs, outputs, x[a:].data_ptr(), *out, rows[a:].data_ptr()),
        len(x),
        len(x) * inputs * outputs,
        directions=1,
    )


def highway(x: Tensor, carry: nn.Linear, transform: nn.Linear) -> Tensor:
    """Apply a highway layer to x (N, F)."""
    weights, size = [carry.weight, carry.bias, transform.weight, transform.bias], len(carry.weight)
    packed = cached(f"highway for {cpu.kernels()._name}", weights, lambda: pack(*weights))
    x = x.contiguous()
    cpu.check("x", x, (len(x), size))
    y, call, work = torch.empty_like(x), cpu.kernels().relmo_highway, 2 * len(x) * size * size
    cpu.spread(
        lambda _, a, b: call(b - a, size, x[a:].data_ptr(), packed.data_ptr(), y[a:].data_ptr()),
        len(x),
        work,
        directions=1,
    )
    return y


def pack(*tensors: Tensor) -> Tensor:
    """Pack a weight (O, I) and its bias, or those of both products of a highway layer, in the order of the kernels."""
    columns, depth = tensors[0].shape
    packed = tensors[0].new_empty(cpu.kernels().relmo_linear_packed(depth, columns, len(tensors) == 4))
    tensors = tuple(tensor.detach().contiguous() for tensor in tensors)
    pointers = [tensor.data_ptr() for tensor in tensors] + [None] * (4 - len(tensors))
    cpu.kernels().relmo_linear_pack(*pointers, depth, columns, packed.data_ptr())
    return packed


def supports_words(ids: Sequence[Tensor], embedding: Tensor) -> bool:
    """Return whether `maxima` can run on these words, and whether they are worth the tables."""
    if torch.is_grad_enabled() and sum(map(len, ids)) < MIN_WORDS:
        return False
    on_cpu = all(group.device.type == "cpu" and group.dtype == torch.int64 for group in ids)
    return on_cpu and not torch.is_autocast_enabled("cpu") and cpu.supports(embedding)


def maxima(ids: Sequence[Tensor], embedding: Tensor, weights: Sequence[Tensor], end: int) -> Tensor:
    """Return the largest product of each filter with a window of each word; (N, F).

    ids are groups of words (N_i, C_i) with ids from 1, embedding is (characters, E), weights (n, E, width). Only
    padding follows the id `end`. Products of characters and filters are looked up in tables (width, characters, n),
    which are cached without gradients, so that they pay for any number of words.
    """
    for group in ids:
        if group.numel() and not 1 <= int(group.min()) <= int(group.max()) <= len(embedding):
            raise IndexError(f"character ids go from 1 to {len(embedding)}")
    groups = [(group - 1).contiguous() for group in ids]

    def make_tables() -> list[Tensor]:
        padded = [pad(weight, (0, 0, 0, 0, 0, -len(weight) % LANES)) for weight in weights]
        return [torch.matmul(embedding, weight.permute(2, 1, 0)) for weight in padded]

    if torch.is_grad_enabled():
        y = WindowMaxima.apply(groups, end - 1, *make_tables())
    else:
        blocks = cached(
            "tables",
            [embedding, *weights],
            lambda: [block.contiguous() for table in make_tables() for block in table.split(BLOCK, dim=2)],
        )
        y = embedding.new_empty(sum(map(len, groups)), sum(block.shape[2] for block in blocks))
        _fill(groups, end - 1, blocks, y, None)
    if all(len(weight) % LANES == 0 for weight in weights):
        return y
    parts = y.split([len(weight) + -len(weight) % LANES for weight in weights], dim=1)
    return torch.cat([part[:, : len(weight)] for part, weight in zip(parts, weights, strict=True)], dim=1)


def _fill(groups: Sequence[Tensor], end: int, tables: Sequence[Tensor], y: Tensor, window: Tensor | None) -> None:
    """Write the maxima of all words to y (N, all filters), and the window of each to `window`."""
    row = 0
    for ids in groups:

        def run(_: int, a: int, b: int, ids: Tensor = ids, row: int = row) -> None:
            column = 0
            for table in tables:
                words = (b - a, ids.shape[1], ids[a:].data_ptr(), end)
                outputs = [None if t is None else t[row + a :, column:].data_ptr() for t in (y, window)]
                cpu.kernels().relmo_windows_forward(*words, *table.shape, table.data_ptr(), *outputs, y.shape[1])
                column += table.shape[2]

        cpu.spread(run, len(ids), LOOKUP_COST * len(ids) * y.shape[1], directions=1)
        row += len(ids)


class WindowMaxima(torch.autograd.Function):
    """Maxima (N, all filters) of words, from tables (width, characters, filters)."""

    @staticmethod
    def forward(ctx: Any, groups: list[Tensor], end: int, *tables: Tensor) -> Tensor:
        tables = tuple(table.contiguous() for table in tables)
        y = tables[0].new_empty(sum(map(len, groups)), sum(table.shape[2] for table in tables))
        window = torch.empty(y.shape, dtype=torch.int32)
        _fill(groups, end, tables, y, window)
        ctx.save_for_backward(window)
        ctx.inputs = groups, [table.shape for table in tables]
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (window,) = ctx.saved_tensors
        groups, shapes = ctx.inputs
        dy = dy.contiguous()
        gradients = tuple(dy.new_zeros(shape) for shape in shapes)
        row = 0
        for ids in filter(len, groups):
            column = 0
            for gradient in gradients:
                inputs = [tensor[row:, column:].data_ptr() for tensor in (dy, window)]
                cpu.kernels().relmo_windows_backward(
                    *ids.shape, ids.data_ptr(), *gradient.shape, *inputs, dy.shape[1], gradient.data_ptr()
                )
                column += gradient.shape[2]
            row += len(ids)
        return None, None, *gradients

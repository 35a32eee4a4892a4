"""A word's convolutions and their maxima on a CPU in float32, by the library that `char_cnn.c` is compiled to.

The twin of `char_cnn.CharCNN`'s products; `suits` says where it can be taken.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from relmo.nn.kernels import lstm_cpu

FEW = 64  # words whose products are computed sooner than looked up
LANES = 16  # filters of a width are filled up to a multiple of this


def suits(ids: Sequence[Tensor], embedding: Tensor) -> bool:
    """Whether the kernel can run on these, and they are enough words to be worth their tables."""
    if sum(map(len, ids)) < FEW:
        return False
    on_cpu = all(group.device.type == "cpu" and group.dtype == torch.int64 for group in ids)
    return on_cpu and not torch.is_autocast_enabled("cpu") and lstm_cpu.suits(embedding)


def maxima(ids: Sequence[Tensor], embedding: Tensor, weights: Sequence[Tensor], end: int) -> Tensor:
    """Groups of words (N_i, C_i) with ids from 1 on, embedding (characters, E), weights (n, E, width) -> the largest
    product of each filter with a window of each word (N, F). `end` is the id after which there is padding only."""
    for group in ids:
        if group.numel() and not 1 <= int(group.min()) <= int(group.max()) <= len(embedding):
            raise IndexError(f"character ids go from 1 to {len(embedding)}")
    tables = [
        torch.matmul(embedding, pad(weight, (0, 0, 0, 0, 0, -len(weight) % LANES)).permute(2, 1, 0))
        for weight in weights  # each (width, characters, n)
    ]
    y = Windows.apply([(group - 1).contiguous() for group in ids], end - 1, *tables)
    if all(len(weight) % LANES == 0 for weight in weights):
        return y
    parts = y.split([table.shape[2] for table in tables], dim=1)
    return torch.cat([part[:, : len(weight)] for part, weight in zip(parts, weights, strict=True)], dim=1)


class Windows(torch.autograd.Function):
    """Words and tables (width, characters, filters) -> maxima (N, all filters)."""

    @staticmethod
    def forward(ctx: Any, groups: list[Tensor], end: int, *tables: Tensor) -> Tensor:
        tables = tuple(table.contiguous() for table in tables)
        size = sum(table.shape[2] for table in tables)
        y = tables[0].new_empty(sum(map(len, groups)), size)
        window = torch.empty(y.shape, dtype=torch.int32)
        for ids, row, table, column in places(groups, tables):
            lstm_cpu.kernels().relmo_windows_forward(
                *ids.shape,
                ids.data_ptr(),
                end,
                *table.shape,
                table.data_ptr(),
                y[row:, column:].data_ptr(),
                window[row:, column:].data_ptr(),
                size,
            )
        ctx.save_for_backward(window)
        ctx.rest = groups, [table.shape for table in tables]
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (window,) = ctx.saved_tensors
        groups, shapes = ctx.rest
        dy = dy.contiguous()
        gradients = tuple(dy.new_zeros(shape) for shape in shapes)
        for ids, row, gradient, column in places(groups, gradients):
            lstm_cpu.kernels().relmo_windows_backward(
                *ids.shape,
                ids.data_ptr(),
                *gradient.shape,
                dy[row:, column:].data_ptr(),
                window[row:, column:].data_ptr(),
                dy.shape[1],
                gradient.data_ptr(),
            )
        return None, None, *gradients


def places(groups: Sequence[Tensor], tables: Sequence[Tensor]) -> list[tuple[Tensor, int, Tensor, int]]:
    """Each group of words with each table, and where in the result they meet: row and column."""
    found, row = [], 0
    for ids in groups:
        column = 0
        for table in tables:
            if len(ids):
                found.append((ids, row, table, column))
            column += table.shape[2]
        row += len(ids)
    return found

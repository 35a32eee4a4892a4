"""A word's convolutions and their maxima on a CPU in float32, by the library that `char_cnn.c` is compiled to.

It is the twin of the products in `char_cnn.CharCNN`; `suits` says where it can be taken. Without gradients the tables
are kept for the next call, so they are worth making for any number of words, and a word's numbers never depend on the
words beside it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from relmo.nn.kernels import linear_cpu, lstm_cpu
from relmo.nn.kernels.kept import kept

FEW = 64  # fewer words are computed faster than looked up, where the tables are of no use afterwards
LANES = 16  # filters of a width are filled up to a multiple of this
BLOCK = 64  # filters whose table stays in the cache while all words pass
LOOKED_UP = 100  # multiplications that take as long as one number


def suits(ids: Sequence[Tensor], embedding: Tensor) -> bool:
    """Whether the kernel can run on these, and they are enough words to be worth their tables."""
    if torch.is_grad_enabled() and sum(map(len, ids)) < FEW:
        return False
    on_cpu = all(group.device.type == "cpu" and group.dtype == torch.int64 for group in ids)
    return on_cpu and not torch.is_autocast_enabled("cpu") and lstm_cpu.suits(embedding)


def maxima(ids: Sequence[Tensor], embedding: Tensor, weights: Sequence[Tensor], end: int) -> Tensor:
    """Groups of words (N_i, C_i) with ids from 1 on, embedding (characters, E), weights (n, E, width) -> the largest
    product of each filter with a window of each word (N, F). `end` is the id after which there is padding only."""
    for group in ids:
        if group.numel() and not 1 <= int(group.min()) <= int(group.max()) <= len(embedding):
            raise IndexError(f"character ids go from 1 to {len(embedding)}")
    groups = [(group - 1).contiguous() for group in ids]
    if torch.is_grad_enabled():
        y = WindowMaxima.apply(groups, end - 1, *_make_tables(embedding, weights))
    else:
        blocks = kept("tables", [embedding, *weights], lambda: _make_blocks(embedding, weights))
        y = embedding.new_empty(sum(map(len, groups)), sum(block.shape[2] for block in blocks))
        _fill(groups, end - 1, blocks, y, None)
    if all(len(weight) % LANES == 0 for weight in weights):
        return y
    parts = y.split([_filled(len(weight)) for weight in weights], dim=1)
    return torch.cat([part[:, : len(weight)] for part, weight in zip(parts, weights, strict=True)], dim=1)


def _filled(count: int) -> int:
    return count + -count % LANES


def _make_tables(embedding: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The products of each character with each column of each filter: (width, characters, filled n) for each weight."""
    return [
        torch.matmul(embedding, pad(weight, (0, 0, 0, 0, 0, _filled(len(weight)) - len(weight))).permute(2, 1, 0))
        for weight in weights
    ]


def _make_blocks(embedding: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The same, a few filters at a time."""
    tables = _make_tables(embedding, weights)
    return [block.contiguous() for table in tables for block in table.split(BLOCK, dim=2)]


def _fill(groups: Sequence[Tensor], end: int, tables: Sequence[Tensor], y: Tensor, window: Tensor | None) -> None:
    """The maxima of all words (N, all filters) into y, and of which window each is into `window`."""
    row = 0
    for ids in groups:

        def work_on(a: int, b: int, ids: Tensor = ids, row: int = row) -> None:
            column = 0
            for table in tables:
                lstm_cpu.kernels().relmo_windows_forward(
                    b - a,
                    ids.shape[1],
                    ids[a:].data_ptr(),
                    end,
                    *table.shape,
                    table.data_ptr(),
                    y[row + a :, column:].data_ptr(),
                    None if window is None else window[row + a :, column:].data_ptr(),
                    y.shape[1],
                )
                column += table.shape[2]

        linear_cpu.spread(work_on, len(ids), LOOKED_UP * y.shape[1])
        row += len(ids)


class WindowMaxima(torch.autograd.Function):
    """Words and tables (width, characters, filters) -> maxima (N, all filters)."""

    @staticmethod
    def forward(ctx: Any, groups: list[Tensor], end: int, *tables: Tensor) -> Tensor:
        tables = tuple(table.contiguous() for table in tables)
        y = tables[0].new_empty(sum(map(len, groups)), sum(table.shape[2] for table in tables))
        window = torch.empty(y.shape, dtype=torch.int32)
        _fill(groups, end, tables, y, window)
        ctx.save_for_backward(window)
        ctx.rest = groups, [table.shape for table in tables]
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (window,) = ctx.saved_tensors
        groups, shapes = ctx.rest
        dy = dy.contiguous()
        gradients = tuple(dy.new_zeros(shape) for shape in shapes)
        for ids, row, gradient, column in _places(groups, gradients):
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


def _places(groups: Sequence[Tensor], tables: Sequence[Tensor]) -> list[tuple[Tensor, int, Tensor, int]]:
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

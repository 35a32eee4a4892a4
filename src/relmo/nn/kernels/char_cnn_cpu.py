"""Maxima of a word's convolutions on a CPU in float32, compiled from `char_cnn.c`; equals the products in `CharCNN`.

Products of characters and filters are looked up in tables. Without gradients the tables are cached, so they pay for any
number of words, and a word's numbers never depend on the other words.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from relmo.nn.kernels import linear_cpu, lstm_cpu
from relmo.nn.kernels.weight_cache import cached

MIN_WORDS = 64  # fewer are computed faster than tables that are not cached
LANES = 16  # filters of a width are padded to a multiple of this
BLOCK = 64  # filters whose table fits the processor's cache
LOOKUP_COST = 100  # multiplications that take as long as one output


def supports(ids: Sequence[Tensor], embedding: Tensor) -> bool:
    """Return whether the kernel can run on these words, and whether they are worth the tables."""
    if torch.is_grad_enabled() and sum(map(len, ids)) < MIN_WORDS:
        return False
    on_cpu = all(group.device.type == "cpu" and group.dtype == torch.int64 for group in ids)
    return on_cpu and not torch.is_autocast_enabled("cpu") and lstm_cpu.supports(embedding)


def maxima(ids: Sequence[Tensor], embedding: Tensor, weights: Sequence[Tensor], end: int) -> Tensor:
    """Return the largest product of each filter with a window of each word; (N, F).

    ids are groups of words (N_i, C_i) with ids from 1, embedding is (characters, E), weights (n, E, width). Only
    padding follows the id `end`.
    """
    for group in ids:
        if group.numel() and not 1 <= int(group.min()) <= int(group.max()) <= len(embedding):
            raise IndexError(f"character ids go from 1 to {len(embedding)}")
    groups = [(group - 1).contiguous() for group in ids]
    if torch.is_grad_enabled():
        y = WindowMaxima.apply(groups, end - 1, *_make_tables(embedding, weights))
    else:
        blocks = cached("tables", [embedding, *weights], lambda: _make_blocks(embedding, weights))
        y = embedding.new_empty(sum(map(len, groups)), sum(block.shape[2] for block in blocks))
        _fill(groups, end - 1, blocks, y, None)
    if all(len(weight) % LANES == 0 for weight in weights):
        return y
    parts = y.split([_padded_size(len(weight)) for weight in weights], dim=1)
    return torch.cat([part[:, : len(weight)] for part, weight in zip(parts, weights, strict=True)], dim=1)


def _padded_size(count: int) -> int:
    return count + -count % LANES


def _make_tables(embedding: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Compute the products of each character with each column of each filter: (width, characters, padded n) each."""
    return [
        torch.matmul(embedding, pad(weight, (0, 0, 0, 0, 0, _padded_size(len(weight)) - len(weight))).permute(2, 1, 0))
        for weight in weights
    ]


def _make_blocks(embedding: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    tables = _make_tables(embedding, weights)
    return [block.contiguous() for table in tables for block in table.split(BLOCK, dim=2)]


def _fill(groups: Sequence[Tensor], end: int, tables: Sequence[Tensor], y: Tensor, window: Tensor | None) -> None:
    """Write the maxima of all words to y (N, all filters), and the window of each to `window`."""
    row = 0
    for ids in groups:

        def run(a: int, b: int, ids: Tensor = ids, row: int = row) -> None:
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

        linear_cpu.spread(run, len(ids), LOOKUP_COST * y.shape[1])
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
                lstm_cpu.kernels().relmo_windows_backward(
                    *ids.shape,
                    ids.data_ptr(),
                    *gradient.shape,
                    dy[row:, column:].data_ptr(),
                    window[row:, column:].data_ptr(),
                    dy.shape[1],
                    gradient.data_ptr(),
                )
                column += gradient.shape[2]
            row += len(ids)
        return None, None, *gradients

"""Inference of a layer on a CPU, compiled from `infer.c`, from a table of gates or from an input.

It computes in float32, bfloat16 or int8, as `quantize` defines them. Weights are packed in the order of the kernel and
cached until they change. A row's numbers depend neither on the other rows nor on the number of threads.
"""

import ctypes
import math
from collections.abc import Sequence
from ctypes import byref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from relmo.nn.kernels import linear_cpu, lstm_cpu
from relmo.nn.kernels.layer import Clips, Gates, Steps, Weights
from relmo.nn.kernels.lstm_cpu import LONG, POINTER, at, check, contiguous, kernels, spread
from relmo.nn.kernels.weight_cache import cached
from relmo.nn.quantize import BLOCK, PRECISIONS, Precision, level_columns, quantize, round_to

VECTORS = 4  # of columns in a panel
MAX_EAGER_ROWS = 10  # up to so many rows (1 in small layers) the input gates of all steps are computed first
MIN_LARGE_SIZE = 1 << 22  # input weights of a large layer
TYPES = {1: torch.float32, 2: torch.bfloat16, 4: torch.int8}  # by the count in a unit of four bytes


class Matrix(ctypes.Structure):
    """A packed weight, as declared in `infer.c`."""

    _fields_ = (
        *((name, POINTER) for name in ("units", "scale", "start", "level")),
        *((name, LONG) for name in ("depth", "columns")),
    )


class InferenceLayer(ctypes.Structure):
    """Arguments of one direction, as declared in `infer.c`."""

    _fields_ = (
        *((name, LONG) for name in ("steps", "batch", "inputs", "hidden", "outputs", "precision", "skip")),
        ("sizes", ctypes.POINTER(LONG)),
        ("cell_clip", ctypes.c_float),
        ("projection_clip", ctypes.c_float),
        ("gates", POINTER),
        ("stride", LONG),
        *((name, POINTER) for name in ("words", "x", "y", "h", "c", "inner")),
        *((name, POINTER) for name in ("x_units", "h_units", "m_units", "x_scale", "h_scale", "m_scale")),
        *((name, Matrix) for name in ("ih", "hh", "hr")),
    )
    references: tuple[Any, ...]
    """The memory it points into: a thread may continue after an interruption."""


class Packed(NamedTuple):
    """A packed weight of both directions; for int8 with scales and starts of sums (2, blocks, columns), and for an int8
    projection with its level (2, depth)."""

    units: Tensor
    scale: Tensor | None
    start: Tensor | None
    level: Tensor | None
    depth: int
    columns: int

    def direction(self, d: int) -> Matrix:
        """Return the matrix of direction d."""
        pointers = (at(tensor, d) for tensor in (self.units, self.scale, self.start, self.level))
        return Matrix(*pointers, self.depth, self.columns)


def run(
    source: Gates | Tensor, weights: Weights, start: Steps, *, skip: bool, precision: Precision
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer from a table of gates or its input x (2, T, B, I), which is added to the output with `skip`.

    Return y (2, T, B, P), h (2, B, P), c (2, B, H).
    """
    h, c, sizes, clips = start
    (four, outputs), inputs = weights.hh.shape[1:], weights.ih.shape[2]
    steps, batch = (source.words if isinstance(source, Gates) else source).shape[1:3]
    check("h", h, (2, batch, outputs))
    check("c", c, (2, batch, four // 4))
    if len(sizes) != steps:
        raise ValueError(f"sizes has {len(sizes)} steps, but there are {steps}")
    h, c = (state.clone(memory_format=torch.contiguous_format) for state in (h, c))
    y = h.new_empty(2, steps, batch, outputs)
    buffers: dict[str, Tensor | None] = {"y": y, "h": h, "c": c, "inner": h.new_empty(2, batch, four // 4)}
    buffers |= _make_buffers("h", batch, outputs, precision) | _make_buffers("m", batch, four // 4, precision)
    matrices = {"hh": _pack_cached(weights.hh, precision, by_gates=True)}
    if weights.hr is not None:
        matrices["hr"] = _pack_cached(weights.hr, precision, by_gates=False)
    numbers = {"steps": steps, "batch": batch, "inputs": inputs, "hidden": four // 4, "outputs": outputs}
    numbers |= {"precision": PRECISIONS.index(precision), "skip": skip, "stride": 0}
    work = sum(sizes) * four * outputs
    eager = False
    if isinstance(source, Gates):
        table = _check_table(source, four)
        numbers["stride"] = table.stride(1)
        buffers |= {"gates": table, "words": source.words.contiguous()}
    else:
        check("x", source, (2, steps, batch, inputs))
        buffers |= {"x": contiguous(source), "gates": contiguous(weights.bias)}  # a table of one row
        eager = batch <= (MAX_EAGER_ROWS if weights.ih.numel() >= MIN_LARGE_SIZE else 1)
        buffers |= _make_buffers("x", steps * batch if eager else batch, inputs, precision)
        matrices["ih"] = _pack_cached(weights.ih, precision, by_gates=True)
    layers = _make_layers(numbers, sizes, clips, buffers, matrices)
    if eager:
        gates = h.new_empty(2, steps * batch, four)
        spread(lambda d, a, b: kernels().relmo_infer_gates(byref(layers[d]), a, b, at(gates, d)), steps * batch, work)
        for d, layer in enumerate(layers):
            layer.gates, layer.stride, layer.ih = at(gates, d), four, Matrix()
            layer.references += (gates,)
    spread(lambda d, a, b: kernels().relmo_infer(byref(layers[d]), a, b), batch, work)
    return y, h, c


def input_gates(x: Tensor, ih: Tensor, bias: Tensor, d: int, precision: Precision) -> Tensor:
    """Return the input's part of direction d's gates (N, 4H) for x (N, I), ih (2, 4H, I) and bias (2, 4H)."""
    four, inputs = ih.shape[1:]
    check("x", x, (len(x), inputs))
    check("bias", bias, (2, four))
    x, bias, gates = x.contiguous(), bias.contiguous(), x.new_empty(len(x), four)
    rows = _make_buffers("x", len(x), inputs, precision)
    buffers = {"x": x, "gates": bias[d]} | {name: tensor[0] for name, tensor in rows.items() if tensor is not None}
    matrix = _pack_cached(ih, precision, by_gates=True)
    layer = InferenceLayer(
        steps=1,
        batch=len(x),
        inputs=inputs,
        hidden=four // 4,
        precision=PRECISIONS.index(precision),
        ih=matrix.direction(d),
        **{name: tensor.data_ptr() for name, tensor in buffers.items()},
    )
    layer.references = (buffers, matrix)
    linear_cpu.spread(
        lambda a, b: kernels().relmo_infer_gates(byref(layer), a, b, gates.data_ptr()), len(x), four * inputs
    )
    return gates


def _make_layers(
    numbers: dict[str, int],
    sizes: Sequence[int],
    clips: Clips,
    buffers: dict[str, Tensor | None],
    matrices: dict[str, Packed],
) -> list[InferenceLayer]:
    cell_clip, projection_clip = (math.inf if clip is None else clip for clip in clips)
    layers = []
    for d in range(2):
        layer = InferenceLayer(
            **numbers,
            sizes=(LONG * len(sizes))(*sizes),
            cell_clip=cell_clip,
            projection_clip=projection_clip,
            **{name: at(tensor, d) for name, tensor in buffers.items()},
            **{name: matrix.direction(d) for name, matrix in matrices.items()},
        )
        layer.references = (buffers, matrices)
        layers.append(layer)
    return layers


def _check_table(source: Gates, size: int) -> Tensor:
    """Return the table with contiguous rows after checking shapes and indices, which the kernels trust."""
    table, words = source
    check("gates", table, (2, table.shape[1], size))
    check("words", words, (2, *words.shape[1:3]))
    if words.dtype != torch.int64:
        raise ValueError(f"words are {words.dtype}, expected torch.int64")
    if words.numel() and not 0 <= int(words.min()) <= int(words.max()) < table.shape[1]:
        span = f"{int(words.min())} to {int(words.max())}"
        raise IndexError(f"words range from {span}, but the table of gates has {table.shape[1]} rows")
    return table if table.stride(2) == 1 else table.contiguous()


def _make_buffers(name: str, rows: int, width: int, precision: Precision) -> dict[str, Tensor | None]:
    """Allocate buffers for rounded rows; float32 needs none."""
    buffers: dict[str, Tensor | None] = {}
    if precision != "float32":
        numbers = kernels().relmo_numbers(PRECISIONS.index(precision))
        buffers[f"{name}_units"] = torch.empty(2, rows, -(-width // 16) * 16 // numbers, dtype=torch.int32)
    if precision == "int8":
        buffers[f"{name}_scale"] = torch.empty(2, rows, -(-width // BLOCK))
    return buffers


def _pack_cached(weight: Tensor, precision: Precision, *, by_gates: bool) -> Packed:
    name = f"{precision} {by_gates} {kernels()._name}"
    return cached(name, [weight], lambda: pack(weight.detach(), precision, by_gates))


def pack(weight: Tensor, precision: Precision, by_gates: bool) -> Packed:
    """Pack a weight (2, rows, columns): a projection, or `by_gates` with four rows per cell.

    Directions are packed one after the other, to save memory.
    """
    units, scales, starts, levels = None, [], [], []
    for d, matrix in enumerate(weight):
        if precision == "int8" and not by_gates:
            matrix, length = level_columns(matrix)
            levels.append(length)
        panels = _split_panels(matrix, by_gates)  # (panels, 4 L, K)
        if precision == "int8":
            panels, by = quantize(panels)  # by (panels, 4 L, blocks)
            sums = torch.stack([part.sum(dim=-1) for part in panels.split(BLOCK, dim=-1)])  # (blocks, panels, 4 L)
            scales.append(by.permute(2, 0, 1).flatten(1))
            starts.append((-128 * sums).int().flatten(1))
        panels = _pack_units(panels, precision)
        if units is None:
            units = lstm_cpu.allocate_large_pages(2, *panels.shape, dtype=panels.dtype)
        units[d] = panels
    assert units is not None
    scale, start, column_level = (torch.stack(tensors) if tensors else None for tensors in (scales, starts, levels))
    return Packed(units, scale, start, column_level, weight.shape[2], units.shape[1] * units.shape[3])


def _split_panels(weight: Tensor, by_gates: bool) -> Tensor:
    """Split the rows of a weight (N, K) into panels of four vectors, padded with zeros: (panels, 4 L, K)."""
    lanes = kernels().relmo_lanes()
    if by_gates:  # four gates of the same cells
        weight = weight.unflatten(0, (4, -1))
        weight = pad(weight, (0, 0, 0, -weight.shape[1] % lanes)).unflatten(1, (-1, lanes)).transpose(0, 1)
    else:
        weight = pad(weight, (0, 0, 0, -weight.shape[0] % (VECTORS * lanes)))
    return weight.reshape(-1, VECTORS * lanes, weight.shape[-1])


def _pack_units(panels: Tensor, precision: Precision) -> Tensor:
    """Rearrange panels (p, 4 L, K) to (p, K / numbers, 4 L, numbers), with `numbers` in a unit of four bytes."""
    numbers = kernels().relmo_numbers(PRECISIONS.index(precision))
    panels = round_to(pad(panels, (0, -panels.shape[-1] % numbers)), precision)
    return panels.unflatten(2, (-1, numbers)).transpose(1, 2).to(TYPES[numbers])

"""Inference on a CPU by the library that `infer.c` is compiled to: a layer's whole recurrence, from a table of gates.

It computes in float32, bfloat16 or int8, as `quantize` defines them. Weights are packed once, in the order in which the
kernel reads them, and the packed form is kept until they change. A row's numbers depend neither on the rows around it
nor on the number of threads.
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
from relmo.nn.kernels.kept import kept
from relmo.nn.kernels.layer import Clips, Gates, Steps, Weights
from relmo.nn.kernels.lstm_cpu import LONG, POINTER, at, check, kernels, spread, whole
from relmo.nn.quantize import BLOCK, PRECISIONS, Precision, level, quantize, rounded

VECTORS = 4  # of columns in a panel
FEW = 10  # up to so many rows a large layer's input gates are computed for all steps first; a small layer's, for one
LARGE = 1 << 22  # input weights from which on a layer is large
TYPES = {1: torch.float32, 2: torch.bfloat16, 4: torch.int8}  # by how many stand in a unit


class Matrix(ctypes.Structure):
    """A packed weight, as `infer.c` has it."""

    _fields_ = (
        *((name, POINTER) for name in ("units", "scale", "start", "level")),
        *((name, LONG) for name in ("depth", "columns")),
    )


class InferenceLayer(ctypes.Structure):
    """One direction, as `infer.c` has it."""

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
    holds: tuple[Any, ...]
    """The memory it points into, kept alive: a thread may go on working after an interruption."""


class Packed(NamedTuple):
    """A weight of both directions in the kernel's order; int8 with scales and starts of sums (2, blocks, columns), that
    of a projection with its level (2, depth) too."""

    units: Tensor
    scale: Tensor | None
    start: Tensor | None
    level: Tensor | None
    depth: int
    columns: int

    def of(self, d: int) -> Matrix:
        """The matrix of direction d."""
        pointers = (at(tensor, d) for tensor in (self.units, self.scale, self.start, self.level))
        return Matrix(*pointers, self.depth, self.columns)


def run(
    given: Gates | Tensor, weights: Weights, start: Steps, *, skip: bool, precision: Precision
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer, from a table of gates or from its input x (2, T, B, I), which with `skip` is added to the output.

    -> y (2, T, B, P), h (2, B, P), c (2, B, H).
    """
    h, c, sizes, clips = start
    (four, outputs), inputs = weights.hh.shape[1:], weights.ih.shape[2]
    steps, batch = (given.words if isinstance(given, Gates) else given).shape[1:3]
    check("h", h, (2, batch, outputs))
    check("c", c, (2, batch, four // 4))
    if len(sizes) != steps:
        raise ValueError(f"sizes has {len(sizes)} steps, but there are {steps}")
    h, c = (state.clone(memory_format=torch.contiguous_format) for state in (h, c))
    y = h.new_empty(2, steps, batch, outputs)
    buffers: dict[str, Tensor | None] = {"y": y, "h": h, "c": c, "inner": h.new_empty(2, batch, four // 4)}
    buffers |= _rooms("h", batch, outputs, precision) | _rooms("m", batch, four // 4, precision)
    matrices = {"hh": _packed(weights.hh, precision, by_gates=True)}
    if weights.hr is not None:
        matrices["hr"] = _packed(weights.hr, precision, by_gates=False)
    numbers = {"steps": steps, "batch": batch, "inputs": inputs, "hidden": four // 4, "outputs": outputs}
    numbers |= {"precision": PRECISIONS.index(precision), "skip": skip, "stride": 0}
    work = sum(sizes) * four * outputs
    first = False
    if isinstance(given, Gates):
        table = _rows_of(given, four)
        numbers["stride"] = table.stride(1)
        buffers |= {"gates": table, "words": given.words.contiguous()}
    else:
        check("x", given, (2, steps, batch, inputs))
        buffers |= {"x": whole(given), "gates": whole(weights.bias)}  # of which there is only one row
        first = batch <= (FEW if weights.ih.numel() >= LARGE else 1)
        buffers |= _rooms("x", steps * batch if first else batch, inputs, precision)
        matrices["ih"] = _packed(weights.ih, precision, by_gates=True)
    both = _directions(numbers, sizes, clips, buffers, matrices)
    if first:
        gates = h.new_empty(2, steps * batch, four)
        spread(lambda d, a, b: kernels().relmo_infer_gates(byref(both[d]), a, b, at(gates, d)), steps * batch, work)
        for d, layer in enumerate(both):
            layer.gates, layer.stride, layer.ih = at(gates, d), four, Matrix()
            layer.holds += (gates,)
    spread(lambda d, a, b: kernels().relmo_infer(byref(both[d]), a, b), batch, work)
    return y, h, c


def input_gates(x: Tensor, ih: Tensor, bias: Tensor, d: int, precision: Precision) -> Tensor:
    """What direction d's gates start from for inputs x (N, I), by ih (2, 4H, I) and bias (2, 4H), as `run` would have
    it: (N, 4H)."""
    four, inputs = ih.shape[1:]
    check("x", x, (len(x), inputs))
    check("bias", bias, (2, four))
    x, bias, gates = x.contiguous(), bias.contiguous(), x.new_empty(len(x), four)
    room = _rooms("x", len(x), inputs, precision)
    buffers = {"x": x, "gates": bias[d]} | {name: tensor[0] for name, tensor in room.items() if tensor is not None}
    matrix = _packed(ih, precision, by_gates=True)
    layer = InferenceLayer(
        steps=1,
        batch=len(x),
        inputs=inputs,
        hidden=four // 4,
        precision=PRECISIONS.index(precision),
        ih=matrix.of(d),
        **{name: tensor.data_ptr() for name, tensor in buffers.items()},
    )
    layer.holds = (buffers, matrix)
    linear_cpu.spread(
        lambda a, b: kernels().relmo_infer_gates(byref(layer), a, b, gates.data_ptr()), len(x), four * inputs
    )
    return gates


def _directions(
    numbers: dict[str, int],
    sizes: Sequence[int],
    clips: Clips,
    buffers: dict[str, Tensor | None],
    matrices: dict[str, Packed],
) -> list[InferenceLayer]:
    cell_clip, projection_clip = (math.inf if clip is None else clip for clip in clips)
    found = []
    for d in range(2):
        layer = InferenceLayer(
            **numbers,
            sizes=(LONG * len(sizes))(*sizes),
            cell_clip=cell_clip,
            projection_clip=projection_clip,
            **{name: at(tensor, d) for name, tensor in buffers.items()},
            **{name: matrix.of(d) for name, matrix in matrices.items()},
        )
        layer.holds = (buffers, matrices)
        found.append(layer)
    return found


def _rows_of(given: Gates, size: int) -> Tensor:
    """The table, whose rows have no gaps and whose words are in it: the kernels trust what they are given."""
    table, words = given
    check("gates", table, (2, table.shape[1], size))
    check("words", words, (2, *words.shape[1:3]))
    if words.dtype != torch.int64:
        raise ValueError(f"words are {words.dtype}, where torch.int64 was expected")
    if words.numel() and not 0 <= int(words.min()) <= int(words.max()) < table.shape[1]:
        found = f"{int(words.min())} to {int(words.max())}"
        raise IndexError(f"words go from {found}, where the table of gates has {table.shape[1]} rows")
    return table if table.stride(2) == 1 else table.contiguous()


def _rooms(name: str, rows: int, width: int, precision: Precision) -> dict[str, Tensor | None]:
    """Room for rows as the products take them; float32 needs none."""
    found: dict[str, Tensor | None] = {}
    if precision != "float32":
        numbers = kernels().relmo_numbers(PRECISIONS.index(precision))
        found[f"{name}_units"] = torch.empty(2, rows, -(-width // 16) * 16 // numbers, dtype=torch.int32)
    if precision == "int8":
        found[f"{name}_scale"] = torch.empty(2, rows, -(-width // BLOCK))
    return found


def _packed(weight: Tensor, precision: Precision, *, by_gates: bool) -> Packed:
    """A weight (2, rows, columns) as the kernel takes it; `by_gates`, its rows are four to a cell; or it projects."""
    name = f"{precision} {by_gates} {kernels()._name}"
    return kept(name, [weight], lambda: pack(weight.detach(), precision, by_gates))


def pack(weight: Tensor, precision: Precision, by_gates: bool) -> Packed:
    """`_packed`, anew: one direction after the other, so that little memory is needed beside the result."""
    units, scales, starts, levels = None, [], [], []
    for d, one in enumerate(weight):
        if precision == "int8" and not by_gates:
            one, length = level(one)
            levels.append(length)
        panels = _in_panels(one, by_gates)  # (panels, 4 L, K)
        if precision == "int8":
            panels, by = quantize(panels)  # by (panels, 4 L, blocks)
            sums = torch.stack([part.sum(dim=-1) for part in panels.split(BLOCK, dim=-1)])  # (blocks, panels, 4 L)
            scales.append(by.permute(2, 0, 1).flatten(1))
            starts.append((-128 * sums).int().flatten(1))
        panels = _in_units(panels, precision)
        if units is None:
            units = lstm_cpu.large_room(2, *panels.shape, dtype=panels.dtype)
        units[d] = panels
    assert units is not None
    scale, start, by_level = (torch.stack(tensors) if tensors else None for tensors in (scales, starts, levels))
    return Packed(units, scale, start, by_level, weight.shape[2], units.shape[1] * units.shape[3])


def _in_panels(weight: Tensor, by_gates: bool) -> Tensor:
    """A weight (N, K) with its rows in fours of vectors, zeros in place of those it does not have: (panels, 4 L, K)."""
    lanes = kernels().relmo_lanes()
    if by_gates:  # the four are gates of the same cells
        weight = weight.unflatten(0, (4, -1))
        weight = pad(weight, (0, 0, 0, -weight.shape[1] % lanes)).unflatten(1, (-1, lanes)).transpose(0, 1)
    else:
        weight = pad(weight, (0, 0, 0, -weight.shape[0] % (VECTORS * lanes)))
    return weight.reshape(-1, VECTORS * lanes, weight.shape[-1])


def _in_units(panels: Tensor, precision: Precision) -> Tensor:
    """Panels (p, 4 L, K) as (p, K / numbers, 4 L, numbers): so many numbers in a unit of four bytes."""
    numbers = kernels().relmo_numbers(PRECISIONS.index(precision))
    panels = rounded(pad(panels, (0, -panels.shape[-1] % numbers)), precision)
    return panels.unflatten(2, (-1, numbers)).transpose(1, 2).to(TYPES[numbers])

"""Recurrence of a layer on a CPU: training in float32 (`lstm.c`), inference in every precision (`infer.c`).

Inference reads a table of gates or an input, in float32, bfloat16 or int8 as `quantize` defines them. Its weights are
packed in the order of the kernel and cached until they change.
"""

import ctypes
import math
from ctypes import byref
from threading import local
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from relmo.nn.kernels import cached
from relmo.nn.kernels.cpu import FLOAT, LONG, POINTER, at, check, kernels, spread
from relmo.nn.kernels.lstm_step import Gates, Steps, Weights
from relmo.nn.quantize import BLOCK, PRECISIONS, Precision, level_columns, quantize, round_to

COPY_COST = 8  # multiplications that take as long as copying a number
MIN_REUSED_SIZE = 1 << 18  # scratch buffers of at least so many numbers are reused by the next call
SCRATCH = local()
VECTORS = 4  # of columns in a panel
MAX_EAGER_ROWS = 10  # up to so many rows (1 in small layers) the input gates of all steps are computed first
MIN_LARGE_SIZE = 1 << 22  # input weights of a large layer
TYPES = {1: torch.float32, 2: torch.bfloat16, 4: torch.int8}  # by the count in a unit of four bytes

COUNTS = ["steps", "batch", "inputs", "hidden", "outputs"]
CLIPS = (("sizes", ctypes.POINTER(LONG)), ("cell_clip", FLOAT), ("projection_clip", FLOAT))
BUFFERS = ["x", "bias", "gates", "h", "c", "inner", "final_h", "final_c", "w_ih", "w_hh", "w_hr"]
BUFFERS += ["dy", "dx", "dh", "dc", "later"]  # backward pass
ROUNDED = ["x_units", "h_units", "m_units", "x_scale", "h_scale", "m_scale"]


class TrainingLayer(ctypes.Structure):
    """Arguments of one direction, as declared in `lstm.c`."""

    _fields_ = (*((name, LONG) for name in COUNTS), *CLIPS, *((name, POINTER) for name in BUFFERS))
    references: tuple[Any, ...]  # the memory it points into: a thread may continue after an interruption


class Matrix(ctypes.Structure):
    """A packed weight, as declared in `infer.c`."""

    _fields_ = (
        *((name, POINTER) for name in ("units", "scale", "start", "level")),
        *((name, LONG) for name in ("depth", "columns")),
    )


class InferenceLayer(ctypes.Structure):
    """Arguments of one direction, as declared in `infer.c`."""

    _fields_ = (
        *((name, LONG) for name in (*COUNTS, "precision", "skip")),
        *CLIPS,
        ("gates", POINTER),
        ("stride", LONG),
        *((name, POINTER) for name in ("words", "x", "y", "h", "c", "inner", *ROUNDED)),
        *((name, Matrix) for name in ("ih", "hh", "hr")),
    )
    references: tuple[Any, ...]


class Packed(NamedTuple):
    """A packed weight as a matrix for each direction, and the tensors that they point into."""

    directions: list[Matrix]
    tensors: list[Tensor | None]


def _make_layers(
    structure: Any, start: Steps, weights: Weights, buffers: dict[str, Tensor | None], **arguments: Any
) -> list[Any]:
    """Return the structures of both directions; arguments that are packed weights have a matrix for each."""
    sizes, (cell_clip, projection_clip) = start.sizes, (math.inf if clip is None else clip for clip in start.clips)
    (four, outputs), inputs = weights.hh.shape[1:], weights.ih.shape[2]
    counts = dict(zip(COUNTS, (len(sizes), start.h.shape[1], inputs, four // 4, outputs), strict=True))
    layers = []
    for d in range(2):
        layer = structure(
            **counts,
            sizes=(LONG * len(sizes))(*sizes),
            cell_clip=cell_clip,
            projection_clip=projection_clip,
            **{name: at(tensor, d) for name, tensor in buffers.items()},
            **{name: value.directions[d] if isinstance(value, Packed) else value for name, value in arguments.items()},
        )
        layer.references = (buffers, arguments)
        layers.append(layer)
    return layers


class CompiledRecurrence(torch.autograd.Function):
    """A layer on x (2, T, B, I), whose backward pass overwrites the gates, so it runs once; states have no gradient."""

    @staticmethod
    def forward(ctx: Any, start: Steps, x: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights, (h, c, sizes, _) = Weights(*tensors), start
        hidden, outputs, hr = weights.hh.shape[1] // 4, weights.hh.shape[2], weights.hr
        steps, batch = len(sizes), x.shape[2]
        check("x", x, (2, steps, batch, weights.ih.shape[2]))
        check("h", h, (2, batch, outputs))
        check("c", c, (2, batch, hidden))
        gates = h.new_empty(2, steps, batch, 4 * hidden)
        final_h, final_c = (state.clone(memory_format=torch.contiguous_format) for state in (h, c))
        hs, cs = h.new_empty(2, steps + 1, batch, outputs), c.new_empty(2, steps + 1, batch, hidden)
        hs[:, 0], cs[:, 0] = h, c
        inner = None if hr is None else h.new_empty(2, steps, batch, hidden)
        saved = {"gates": gates, "h": hs, "c": cs, "inner": inner}
        buffers = saved | {
            "x": x.detach().contiguous(),
            "final_h": final_h,
            "final_c": final_c,
            "bias": weights.bias.detach().contiguous(),
            "w_ih": _pack(weights.ih, "gates", "ih"),
            "w_hh": _pack(weights.hh, "gates", "hh"),
            "w_hr": None if hr is None else _pack(hr, "transposed", "hr"),
        }
        layers = _make_layers(TrainingLayer, start, weights, buffers)
        spread(lambda d, a, b: kernels().relmo_forward(byref(layers[d]), a, b), batch, sum(sizes) * hidden * outputs)
        ctx.save_for_backward(x, *weights)
        ctx.run = saved, start
        ctx.mark_non_differentiable(final_h, final_c)
        return hs[:, 1:], final_h, final_c

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved, start = ctx.run
        ctx.run = None  # the gates are overwritten by their gradients
        x, *tensors = ctx.saved_tensors
        weights = Weights(*tensors)
        batch, hidden = dy.shape[2], weights.hh.shape[1] // 4
        dx = dy.new_empty(*dy.shape[:3], weights.ih.shape[2]) if ctx.needs_input_grad[1] else None
        buffers = saved | {
            "x": x.detach().contiguous(),
            "dy": dy.contiguous(),
            "dx": dx,
            "dh": dy.new_empty(dy.shape),
            "dc": dy.new_zeros(2, batch, hidden),
            "later": dy.new_zeros(2, batch, dy.shape[3]),
            "w_ih": None if dx is None else _pack(weights.ih, "as it is", "ih"),
            "w_hh": _pack(weights.hh, "as it is", "hh"),
            "w_hr": None if weights.hr is None else _pack(weights.hr, "as it is", "hr"),
        }
        gradients = Weights(*(None if w is None else w.new_empty(w.shape) for w in weights))  # type: ignore[arg-type]
        layers = _make_layers(TrainingLayer, start, weights, buffers)
        work = sum(start.sizes) * weights.hh.shape[1] * weights.hh.shape[2]
        spread(lambda d, a, b: kernels().relmo_backward(byref(layers[d]), a, b), batch, work)
        sums = _scratch("sums", kernels().relmo_room(byref(layers[0])))
        outputs = (gradients.ih, gradients.hh, gradients.bias, gradients.hr, sums)
        spread(
            lambda d, *_: kernels().relmo_weights(byref(layers[d]), *(at(tensor, d) for tensor in outputs)),
            1,
            work + COPY_COST * weights.hh.numel(),
        )
        return None, dx, *gradients


def _pack(weight: Tensor, form: str, scratch: str) -> Tensor:
    """Pack a weight (2, rows, columns) in the order of the kernels, in the scratch buffer of a name.
    The form is for inputs of as many elements as there are rows ("as it is"), or columns ("transposed", "gates")."""
    weight = weight.detach().contiguous()
    rows, columns = weight.shape[1:]
    depth, width = (rows, columns) if form == "as it is" else (columns, rows)
    gates = form == "gates"
    size = 4 * kernels().relmo_packed(depth, width // 4) if gates else kernels().relmo_packed(depth, width)
    packed = _scratch(scratch, size)
    strides = (columns, 1) if form == "as it is" else (1, columns)

    def pack_one(d: int, *_: int) -> None:
        if gates:
            kernels().relmo_pack_gates(at(weight, d), width // 4, depth, at(packed, d))
        else:
            kernels().relmo_pack(at(weight, d), depth, width, *strides, at(packed, d))

    spread(pack_one, 1, COPY_COST * weight.numel())
    return packed


def _scratch(name: str, size: int) -> Tensor:
    """Return a buffer (2, size) of this thread, valid until the same name is used again."""
    if 2 * size < MIN_REUSED_SIZE:
        return torch.empty(2, size, dtype=torch.float32, device="cpu")
    buffer = vars(SCRATCH).get(name)
    if buffer is None or buffer.numel() < 2 * size:
        buffer = torch.empty(2 * size, dtype=torch.float32, device="cpu")
        setattr(SCRATCH, name, buffer)
    return buffer[: 2 * size].view(2, size)


def infer(
    source: Gates | Tensor, weights: Weights, start: Steps, *, skip: bool, precision: Precision
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer from a table of gates or its input x (2, T, B, I), which is added to the output with `skip`."""
    h, c, sizes, _ = start
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
    arguments: dict[str, Any] = {"precision": PRECISIONS.index(precision), "skip": skip}
    arguments["hh"] = _pack_cached(weights.hh, precision, by_gates=True)
    if weights.hr is not None:
        arguments["hr"] = _pack_cached(weights.hr, precision, by_gates=False)
    work = sum(sizes) * four * outputs
    eager = False
    if isinstance(source, Gates):
        table, words = source
        check("gates", table, (2, table.shape[1], four))
        check("words", words, (2, steps, batch))
        if words.dtype != torch.int64:
            raise ValueError(f"words are {words.dtype}, expected torch.int64")
        if words.numel() and not 0 <= int(words.min()) <= int(words.max()) < table.shape[1]:
            span = f"{int(words.min())} to {int(words.max())}"
            raise IndexError(f"words range from {span}, but the table of gates has {table.shape[1]} rows")
        table = table if table.stride(2) == 1 else table.contiguous()
        arguments["stride"] = table.stride(1)
        buffers |= {"gates": table, "words": words.contiguous()}
    else:
        check("x", source, (2, steps, batch, inputs))
        buffers |= {"x": source.detach().contiguous(), "gates": weights.bias.detach().contiguous()}  # one row
        eager = batch <= (MAX_EAGER_ROWS if weights.ih.numel() >= MIN_LARGE_SIZE else 1)
        buffers |= _make_buffers("x", steps * batch if eager else batch, inputs, precision)
        arguments["ih"] = _pack_cached(weights.ih, precision, by_gates=True)
    layers = _make_layers(InferenceLayer, start, weights, buffers, **arguments)
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
    buffers = {"x": x, "gates": bias[d]} | {name: tensor[0] for name, tensor in rows.items()}
    matrix = _pack_cached(ih, precision, by_gates=True)
    layer = InferenceLayer(
        steps=1,
        batch=len(x),
        inputs=inputs,
        hidden=four // 4,
        precision=PRECISIONS.index(precision),
        ih=matrix.directions[d],
        **{name: tensor.data_ptr() for name, tensor in buffers.items()},
    )
    layer.references = (buffers, matrix)
    call, work = kernels().relmo_infer_gates, len(x) * four * inputs
    spread(lambda _, a, b: call(byref(layer), a, b, gates.data_ptr()), len(x), work, directions=1)
    return gates


def _make_buffers(name: str, rows: int, width: int, precision: Precision) -> dict[str, Tensor]:
    """Allocate buffers for rounded rows; float32 needs none."""
    buffers: dict[str, Tensor] = {}
    if precision != "float32":
        numbers = kernels().relmo_numbers(PRECISIONS.index(precision))
        buffers[f"{name}_units"] = torch.empty(2, rows, -(-width // 16) * 16 // numbers, dtype=torch.int32)
    if precision == "int8":
        buffers[f"{name}_scale"] = torch.empty(2, rows, -(-width // BLOCK))
    return buffers


def _pack_cached(weight: Tensor, precision: Precision, *, by_gates: bool) -> Packed:
    """Pack a weight (2, rows, columns): a projection, or `by_gates` with four rows per cell.

    Rows are split into panels of four vectors, padded with zeros (panels, 4 L, K), and these into units of four bytes
    (panels, K / numbers, 4 L, numbers). int8 has scales and starts of sums (2, blocks, columns), and a projection its
    level (2, depth). Directions are packed one after the other, to save memory.
    """

    def pack() -> Packed:
        lanes, numbers = kernels().relmo_lanes(), kernels().relmo_numbers(PRECISIONS.index(precision))
        units, scales, starts, levels = None, [], [], []
        for d, matrix in enumerate(weight.detach()):
            if precision == "int8" and not by_gates:
                matrix, length = level_columns(matrix)
                levels.append(length)
            if by_gates:  # four gates of the same cells
                matrix = matrix.unflatten(0, (4, -1))
                matrix = pad(matrix, (0, 0, 0, -matrix.shape[1] % lanes)).unflatten(1, (-1, lanes)).transpose(0, 1)
            else:
                matrix = pad(matrix, (0, 0, 0, -matrix.shape[0] % (VECTORS * lanes)))
            panels = matrix.reshape(-1, VECTORS * lanes, matrix.shape[-1])
            if precision == "int8":
                panels, block_scales = quantize(panels)  # (panels, 4 L, blocks)
                sums = torch.stack([part.sum(dim=-1) for part in panels.split(BLOCK, dim=-1)])  # (blocks, panels, 4 L)
                scales.append(block_scales.permute(2, 0, 1).flatten(1))
                starts.append((-128 * sums).int().flatten(1))
            panels = round_to(pad(panels, (0, -panels.shape[-1] % numbers)), precision)
            panels = panels.unflatten(2, (-1, numbers)).transpose(1, 2).to(TYPES[numbers])
            if units is None:
                units = torch.empty(2, *panels.shape, dtype=panels.dtype, device="cpu")
                # Large pages of memory are faster to read.
                kernels().relmo_large_pages(units.data_ptr(), units.numel() * units.element_size())
            units[d] = panels
        assert units is not None
        stacked = [torch.stack(tensors) if tensors else None for tensors in (scales, starts, levels)]
        tensors, sizes = [units, *stacked], (weight.shape[2], units.shape[1] * units.shape[3])
        return Packed([Matrix(*(at(tensor, d) for tensor in tensors), *sizes) for d in range(2)], tensors)

    return cached(f"{precision} {by_gates} {kernels()._name}", [weight], pack)

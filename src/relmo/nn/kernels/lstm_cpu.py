"""Recurrence of a layer on a CPU in float32, for training, compiled from `lstm.c`; and the library of all C kernels.

Without a C compiler, on another kind of processor, or with RELMO_KERNELS=0 in the environment there is no library. Then
`supports` is false, and callers use torch's operations, which agree within rounding. In the kernels, a row's numbers
depend neither on the other rows nor on the number of threads.

Each direction runs in a thread of its own if torch has two, and so do blocks of rows if it has more.
"""

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Thread, local
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relmo.nn.kernels.layer import Clips, Steps, Weights

VERSION = 4  # of the interface of `lstm.c`
MIN_PARALLEL_WORK = 2_000_000  # multiplications in a pass below which a second thread does not pay
COPY_COST = 8  # multiplications that take as long as copying a number
MIN_ROWS = 24  # per thread
MIN_REUSED_SIZE = 1 << 18  # scratch buffers of at least so many numbers are reused by the next call

AVX512 = ["kernels_v4_bf16", "kernels_v4_vnni", "kernels_v4", "kernels_v3"]
NAMES = {"AVX512": AVX512, "AVX2": ["kernels_v3"]}  # by torch's name for the instructions of the processor
LONG, FLOAT, POINTER = ctypes.c_long, ctypes.c_float, ctypes.c_void_p
SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "relmo_version": ([], LONG),
    "relmo_packed": ([LONG] * 2, LONG),
    "relmo_pack": ([POINTER, *[LONG] * 4, POINTER], None),
    "relmo_pack_gates": ([POINTER, LONG, LONG, POINTER], None),
    "relmo_forward": ([POINTER, LONG, LONG], None),
    "relmo_backward": ([POINTER, LONG, LONG], None),
    "relmo_room": ([POINTER], LONG),
    "relmo_weights": ([POINTER] * 6, None),
    "relmo_supported": ([], LONG),
    "relmo_large_pages": ([POINTER, LONG], None),
    "relmo_lanes": ([], LONG),
    "relmo_numbers": ([LONG], LONG),
    "relmo_infer": ([POINTER, LONG, LONG], None),
    "relmo_infer_gates": ([POINTER, LONG, LONG, POINTER], None),
    "relmo_windows_forward": ([LONG] * 2 + [POINTER] + [LONG] * 4 + [POINTER] * 3 + [LONG], None),
    "relmo_linear_packed": ([LONG] * 2 + [ctypes.c_int], LONG),
    "relmo_linear_pack": ([POINTER] * 4 + [LONG] * 2 + [POINTER], None),
    "relmo_linear": ([LONG] * 3 + [POINTER] * 4, None),
    "relmo_highway": ([LONG] * 2 + [POINTER] * 3, None),
    "relmo_windows_backward": ([LONG] * 2 + [POINTER] + [LONG] * 3 + [POINTER] * 2 + [LONG, POINTER], None),
}
COUNTS = ["steps", "batch", "inputs", "hidden", "outputs"]
BUFFERS = ["x", "bias", "gates", "h", "c", "inner", "final_h", "final_c", "w_ih", "w_hh", "w_hr"]
BUFFERS += ["dy", "dx", "dh", "dc", "later"]  # backward pass


class TrainingLayer(ctypes.Structure):
    """Arguments of one direction, as declared in `lstm.c`."""

    _fields_ = (
        *((name, LONG) for name in COUNTS),
        ("sizes", ctypes.POINTER(LONG)),
        ("cell_clip", FLOAT),
        ("projection_clip", FLOAT),
        *((name, POINTER) for name in BUFFERS),
    )
    references: Any
    """The memory it points into: a thread may continue after an interruption."""


@cache
def library() -> ctypes.CDLL | None:
    """Load the fastest kernels for this processor; None if there are none."""
    if os.environ.get("RELMO_KERNELS") == "0":
        return None
    return next(iter(libraries().values()), None)


def libraries() -> dict[str, ctypes.CDLL]:
    """Load all builds that this processor can run, the fastest first."""
    builds = {}
    for name in NAMES.get(torch.backends.cpu.get_cpu_capability(), ["kernels_plain"]):
        try:
            build = ctypes.CDLL(str(Path(__file__).with_name(f"{name}.so")))
            for function, (arguments, result) in SIGNATURES.items():
                getattr(build, function).argtypes, getattr(build, function).restype = arguments, result
        except (OSError, AttributeError):  # not built, or outdated
            continue
        if build.relmo_version() == VERSION and build.relmo_supported():
            builds[name] = build
    return builds


def available() -> bool:
    """Return whether the kernels were built and are enabled."""
    return library() is not None


def supports(*tensors: Tensor) -> bool:
    """Return whether the kernels can run on these tensors: all float32 on a CPU."""
    return all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors) and available()


def run(x: Tensor, weights: Weights, start: Steps) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer on x (2, T, B, I); return y (2, T, B, P), h (2, B, P), c (2, B, H)."""
    return CompiledRecurrence.apply(x, start.h, start.c, *weights, list(start.sizes), start.clips)


class Buffers(NamedTuple):
    """Outputs of the forward pass for both directions; see `lstm.c`."""

    gates: Tensor
    h: Tensor
    c: Tensor
    inner: Tensor | None
    final_h: Tensor
    final_c: Tensor


class CompiledRecurrence(torch.autograd.Function):
    """`run` with its backward pass, which overwrites the gates, so it runs once. The final state has no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        ih: Tensor,
        bias: Tensor,
        hh: Tensor,
        hr: Tensor | None,
        sizes: Sequence[int],
        clips: Clips,
    ) -> tuple[Tensor, Tensor, Tensor]:
        buffers = forward(x, Weights(ih, bias, hh, hr), Steps(h, c, sizes, clips))
        ctx.save_for_backward(x, ih, bias, hh, hr)
        ctx.run = buffers[:4], sizes, clips
        ctx.mark_non_differentiable(buffers.final_h, buffers.final_c)
        return buffers.h[:, 1:], buffers.final_h, buffers.final_c

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        (gates, h, c, inner), sizes, clips = ctx.run
        ctx.run = None  # the buffers are overwritten
        x, *weights = ctx.saved_tensors
        buffers = {"x": contiguous(x), "gates": gates, "h": h, "c": c, "inner": inner}
        needs_dx = ctx.needs_input_grad[0]
        dx, gradients = backward(dy, buffers, Weights(*weights), sizes, clips, needs_dx=needs_dx)
        return dx, None, None, *gradients, None, None


def forward(x: Tensor, weights: Weights, start: Steps) -> Buffers:
    """Run all steps; return their outputs and what the backward pass needs."""
    h, c, sizes, clips = start
    hidden, outputs, hr = weights.hh.shape[1] // 4, weights.hh.shape[2], weights.hr
    steps, batch = x.shape[1:3]
    check("x", x, (2, steps, batch, weights.ih.shape[2]))
    check("h", h, (2, batch, outputs))
    check("c", c, (2, batch, hidden))
    gates = h.new_empty(2, steps, batch, 4 * hidden)
    final_h, final_c = (state.clone(memory_format=torch.contiguous_format) for state in (h, c))
    hs, cs = h.new_empty(2, steps + 1, batch, outputs), c.new_empty(2, steps + 1, batch, hidden)
    hs[:, 0], cs[:, 0] = h, c
    inner = None if hr is None else h.new_empty(2, steps, batch, hidden)
    buffers = Buffers(gates, hs, cs, inner, final_h, final_c)
    arguments = buffers._asdict() | {
        "x": contiguous(x),
        "bias": contiguous(weights.bias),
        "w_ih": pack(weights.ih, "gates", "ih"),
        "w_hh": pack(weights.hh, "gates", "hh"),
        "w_hr": None if hr is None else pack(hr, "transposed", "hr"),
    }
    directions = layers(arguments, weights, steps, batch, sizes, clips)
    spread(lambda d, a, b: kernels().relmo_forward(directions[d], a, b), batch, sum(sizes) * hidden * outputs)
    return buffers


def backward(
    dy: Tensor,
    buffers: dict[str, Tensor | None],
    weights: Weights,
    sizes: Sequence[int],
    clips: Clips,
    *,
    needs_dx: bool,
) -> tuple[Tensor | None, Weights]:
    """Return the gradients of x, if needed, and of the weights; the gates are overwritten by their gradients."""
    steps, batch = dy.shape[1:3]
    dx = dy.new_empty(2, steps, batch, weights.ih.shape[2]) if needs_dx else None
    arguments = buffers | {
        "dy": dy.contiguous(),
        "dx": dx,
        "dh": dy.new_empty(dy.shape),
        "dc": dy.new_zeros(2, batch, weights.hh.shape[1] // 4),
        "later": dy.new_zeros(2, batch, dy.shape[3]),
        "w_ih": pack(weights.ih, "as it is", "ih") if needs_dx else None,
        "w_hh": pack(weights.hh, "as it is", "hh"),
        "w_hr": None if weights.hr is None else pack(weights.hr, "as it is", "hr"),
    }
    gradients = Weights(*(None if w is None else w.new_empty(w.shape) for w in weights))  # type: ignore[arg-type]
    directions = layers(arguments, weights, steps, batch, sizes, clips)
    work = sum(sizes) * weights.hh.shape[1] * weights.hh.shape[2]
    spread(lambda d, a, b: kernels().relmo_backward(directions[d], a, b), batch, work)
    sums = _scratch("sums", kernels().relmo_room(directions[0]))

    def accumulate(d: int, *_: int) -> None:
        outputs = (gradients.ih, gradients.hh, gradients.bias, gradients.hr, sums)
        kernels().relmo_weights(directions[d], *(at(tensor, d) for tensor in outputs))

    spread(accumulate, 1, work + COPY_COST * weights.hh.numel())
    return dx, gradients


def layers(
    buffers: dict[str, Tensor | None], weights: Weights, steps: int, batch: int, sizes: Sequence[int], clips: Clips
) -> list[Any]:
    """Return references to the `TrainingLayer` of both directions."""
    four, outputs = weights.hh.shape[1:]
    counts = dict(zip(COUNTS, (steps, batch, weights.ih.shape[2], four // 4, outputs), strict=True))
    cell_clip, projection_clip = (math.inf if clip is None else clip for clip in clips)
    references = []
    for d in range(2):
        layer = TrainingLayer(
            **counts,
            sizes=(LONG * steps)(*sizes),
            cell_clip=cell_clip,
            projection_clip=projection_clip,
            **{name: at(tensor, d) for name, tensor in buffers.items()},
        )
        layer.references = buffers
        references.append(ctypes.byref(layer))
    return references


def kernels() -> ctypes.CDLL:
    """Return the library, which must be `available`."""
    build = library()
    assert build is not None
    return build


def pack(weight: Tensor, form: str, scratch: str) -> Tensor:
    """Pack a weight (2, rows, columns) in the order of the kernels, in the scratch buffer of a name.

    Inputs have as many elements as the weight has rows in the form "as it is", and as it has columns if "transposed"
    or for "gates", whose rows are four to a cell.
    """
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


SCRATCH = local()


def _scratch(name: str, size: int) -> Tensor:
    """Return a buffer (2, size) of this thread, valid until the same name is used again.

    Large buffers are reused, because allocating as much memory takes long.
    """
    if 2 * size < MIN_REUSED_SIZE:
        return torch.empty(2, size, dtype=torch.float32, device="cpu")
    buffer = vars(SCRATCH).get(name)
    if buffer is None or buffer.numel() < 2 * size:
        buffer = torch.empty(2 * size, dtype=torch.float32, device="cpu")
        setattr(SCRATCH, name, buffer)
    return buffer[: 2 * size].view(2, size)


def allocate_large_pages(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return an empty tensor on the CPU, in large pages of memory if the system has them: faster to read."""
    tensor = torch.empty(*shape, dtype=dtype, device="cpu")
    if (build := library()) is not None:
        build.relmo_large_pages(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    return tensor


def check(name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise an error if the shape is another; the kernels trust their arguments."""
    if tensor is not None and tuple(tensor.shape) != shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, expected {shape}")


def contiguous(tensor: Tensor | None) -> Tensor | None:
    """Return the detached tensor in contiguous memory."""
    return None if tensor is None else tensor.detach().contiguous()


def at(tensor: Tensor | None, d: int) -> int | None:
    """Return the address of a direction's part of the tensor."""
    return None if tensor is None else tensor.data_ptr() + d * tensor.stride(0) * tensor.element_size()


def spread(run: Callable[[int, int, int], object], batch: int, work: int) -> None:
    """Call `run(direction, start, stop)` for both directions and all rows, in as many threads as are useful."""
    threads = torch.get_num_threads() if work > MIN_PARALLEL_WORK else 1
    blocks = max(1, min(threads // 2, batch // MIN_ROWS))
    edges = [batch * k // blocks for k in range(blocks + 1)]
    parts = [(d, a, b) for a, b in pairwise(edges) for d in range(2)]
    if threads > 1:
        run_parallel(run, parts)
    else:
        for part in parts:
            run(*part)


def run_parallel(run: Callable[..., object], parts: Sequence[tuple[int, ...]]) -> None:
    """Run each part in a thread of its own, the first in this one.

    An interruption is raised after all have ended, because their memory may be reused then.
    """
    threads = [Thread(target=run, args=part) for part in parts[1:]]
    try:
        for thread in threads:
            thread.start()
        run(*parts[0])
    finally:
        for thread in threads:
            with suppress(RuntimeError):  # it was not started
                thread.join()

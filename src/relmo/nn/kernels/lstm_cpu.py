"""A layer's whole recurrence on a CPU in float32, for training, by the library that `lstm.c` is compiled to.

Without a C compiler, on another kind of processor, or with RELMO_KERNELS=0 in the environment there is no library.
Then `suits` says no, and the caller takes torch's operations instead, whose results agree within rounding. Here a row's
numbers depend neither on the rows around it nor on the number of threads.

Each direction has a thread of its own where torch has two. Where torch has more, blocks of rows have their own, too.
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

VERSION = 4  # of the arguments that `lstm.c` expects
ALONE = 2_000_000  # multiplications in a pass below which a second thread is not worth starting
MOVED = 8  # multiplications that take as long as writing one number somewhere else
BLOCK = 24  # rows a thread has at least
LARGE = 1 << 18  # numbers from which on the room for them is held for the next call

AVX512 = ["kernels_v4_bf16", "kernels_v4_vnni", "kernels_v4", "kernels_v3"]
NAMES = {"AVX512": AVX512, "AVX2": ["kernels_v3"]}  # by what torch finds the processor able to do
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
BUFFERS += ["dy", "dx", "dh", "dc", "later"]  # of the backward pass


class TrainingLayer(ctypes.Structure):
    """One direction, as `lstm.c` has it."""

    _fields_ = (
        *((name, LONG) for name in COUNTS),
        ("sizes", ctypes.POINTER(LONG)),
        ("cell_clip", FLOAT),
        ("projection_clip", FLOAT),
        *((name, POINTER) for name in BUFFERS),
    )
    holds: Any
    """The memory it points into, kept alive: a thread may go on working after an interruption."""


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels for this processor, if there are any."""
    if os.environ.get("RELMO_KERNELS") == "0":
        return None
    return next(iter(libraries().values()), None)


def libraries() -> dict[str, ctypes.CDLL]:
    """All builds that this processor can run, the fastest first."""
    found = {}
    for name in NAMES.get(torch.backends.cpu.get_cpu_capability(), ["kernels_plain"]):
        try:
            build = ctypes.CDLL(str(Path(__file__).with_name(f"{name}.so")))
            for function, (arguments, result) in SIGNATURES.items():
                getattr(build, function).argtypes, getattr(build, function).restype = arguments, result
        except (OSError, AttributeError):  # not built here, or long ago
            continue
        if build.relmo_version() == VERSION and build.relmo_supported():
            found[name] = build
    return found


def available() -> bool:
    """Whether the kernels were built and are wanted."""
    return library() is not None


def suits(*tensors: Tensor) -> bool:
    """Whether the kernels can run on these: all float32 on a CPU."""
    return all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors) and available()


def run(x: Tensor, weights: Weights, start: Steps) -> tuple[Tensor, Tensor, Tensor]:
    """One layer, from its input x (2, T, B, I). -> y (2, T, B, P), h (2, B, P), c (2, B, H)."""
    return CompiledRecurrence.apply(x, start.h, start.c, *weights, list(start.sizes), start.clips)


class Buffers(NamedTuple):
    """What the forward pass fills, for both directions; see `lstm.c`."""

    gates: Tensor
    h: Tensor
    c: Tensor
    inner: Tensor | None
    final_h: Tensor
    final_c: Tensor


class CompiledRecurrence(torch.autograd.Function):
    """`run`, with its backward pass. The gradients overwrite the gates, so a graph is walked back only once. The final
    state passes no gradient on."""

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
        ctx.rest = buffers[:4], sizes, clips
        ctx.mark_non_differentiable(buffers.final_h, buffers.final_c)
        return buffers.h[:, 1:], buffers.final_h, buffers.final_c

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        (gates, h, c, inner), sizes, clips = ctx.rest
        ctx.rest = None  # the buffers are overwritten
        x, *weights = ctx.saved_tensors
        buffers = {"x": whole(x), "gates": gates, "h": h, "c": c, "inner": inner}
        dx, of = backward(dy, buffers, Weights(*weights), sizes, clips, to_x=ctx.needs_input_grad[0])
        return dx, None, None, *of, None, None


def forward(x: Tensor, weights: Weights, start: Steps) -> Buffers:
    """All steps, and what the backward pass needs of them."""
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
    given = buffers._asdict() | {
        "x": whole(x),
        "bias": whole(weights.bias),
        "w_ih": pack(weights.ih, "gates", "ih"),
        "w_hh": pack(weights.hh, "gates", "hh"),
        "w_hr": None if hr is None else pack(hr, "transposed", "hr"),
    }
    both = layers(given, weights, steps, batch, sizes, clips)
    spread(lambda d, a, b: kernels().relmo_forward(both[d], a, b), batch, sum(sizes) * hidden * outputs)
    return buffers


def backward(
    dy: Tensor,
    buffers: dict[str, Tensor | None],
    weights: Weights,
    sizes: Sequence[int],
    clips: Clips,
    *,
    to_x: bool,
) -> tuple[Tensor | None, Weights]:
    """All steps backwards. -> the gradients of x, if asked for, and of the weights; gates become their gradients."""
    steps, batch = dy.shape[1:3]
    dx = dy.new_empty(2, steps, batch, weights.ih.shape[2]) if to_x else None
    given = buffers | {
        "dy": dy.contiguous(),
        "dx": dx,
        "dh": dy.new_empty(dy.shape),
        "dc": dy.new_zeros(2, batch, weights.hh.shape[1] // 4),
        "later": dy.new_zeros(2, batch, dy.shape[3]),
        "w_ih": pack(weights.ih, "as it is", "ih") if to_x else None,
        "w_hh": pack(weights.hh, "as it is", "hh"),
        "w_hr": None if weights.hr is None else pack(weights.hr, "as it is", "hr"),
    }
    of = Weights(*(None if w is None else w.new_empty(w.shape) for w in weights))  # type: ignore[arg-type]
    both = layers(given, weights, steps, batch, sizes, clips)
    work = sum(sizes) * weights.hh.shape[1] * weights.hh.shape[2]
    spread(lambda d, a, b: kernels().relmo_backward(both[d], a, b), batch, work)
    room = _scratch("sums", kernels().relmo_room(both[0]))

    def sum_up(d: int, *_: int) -> None:
        kernels().relmo_weights(both[d], *(at(tensor, d) for tensor in (of.ih, of.hh, of.bias, of.hr, room)))

    spread(sum_up, 1, work + MOVED * weights.hh.numel())
    return dx, of


def layers(
    buffers: dict[str, Tensor | None],
    weights: Weights,
    steps: int,
    batch: int,
    sizes: Sequence[int],
    clips: Clips,
) -> list[Any]:
    """References to both directions' `TrainingLayer`."""
    four, outputs = weights.hh.shape[1:]
    counts = dict(zip(COUNTS, (steps, batch, weights.ih.shape[2], four // 4, outputs), strict=True))
    cell_clip, projection_clip = (math.inf if clip is None else clip for clip in clips)
    found = []
    for d in range(2):
        layer = TrainingLayer(
            **counts,
            sizes=(LONG * steps)(*sizes),
            cell_clip=cell_clip,
            projection_clip=projection_clip,
            **{name: at(tensor, d) for name, tensor in buffers.items()},
        )
        layer.holds = buffers
        found.append(ctypes.byref(layer))
    return found


def kernels() -> ctypes.CDLL:
    """The library, where `available` says that there is one."""
    found = library()
    assert found is not None
    return found


def pack(weight: Tensor, form: str, room: str) -> Tensor:
    """weight (2, rows, columns) in the order the kernels read it, in the `_scratch` of a name.

    As it is, a row of inputs is as long as the weight has rows; "transposed", as it has columns; so it is for "gates",
    where rows are four to a cell.
    """
    weight = weight.detach().contiguous()
    rows, columns = weight.shape[1:]
    depth, width = (rows, columns) if form == "as it is" else (columns, rows)
    gates = form == "gates"
    size = 4 * kernels().relmo_packed(depth, width // 4) if gates else kernels().relmo_packed(depth, width)
    packed = _scratch(room, size)
    strides = (columns, 1) if form == "as it is" else (1, columns)

    def pack_one(d: int, *_: int) -> None:
        if gates:
            kernels().relmo_pack_gates(at(weight, d), width // 4, depth, at(packed, d))
        else:
            kernels().relmo_pack(at(weight, d), depth, width, *strides, at(packed, d))

    spread(pack_one, 1, MOVED * weight.numel())
    return packed


ROOM = local()


def _scratch(name: str, size: int) -> Tensor:
    """(2, size) numbers of room in this thread, valid until the same name is asked for again.

    What is large is held for the next call, as a system takes long to give so much memory anew.
    """
    if 2 * size < LARGE:
        return torch.empty(2, size, dtype=torch.float32, device="cpu")
    held = vars(ROOM).get(name)
    if held is None or held.numel() < 2 * size:
        held = torch.empty(2 * size, dtype=torch.float32, device="cpu")
        setattr(ROOM, name, held)
    return held[: 2 * size].view(2, size)


def large_room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """An empty tensor on the CPU, in large pages of memory where the system gives them: faster to read through."""
    tensor = torch.empty(*shape, dtype=dtype, device="cpu")
    if (build := library()) is not None:
        build.relmo_large_pages(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    return tensor


def check(name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    """The kernels trust the sizes they are given."""
    if tensor is not None and tuple(tensor.shape) != shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, where {shape} was expected")


def whole(tensor: Tensor | None) -> Tensor | None:
    """The tensor without gaps."""
    return None if tensor is None else tensor.detach().contiguous()


def at(tensor: Tensor | None, d: int) -> int | None:
    """Where a direction's part of the tensor starts."""
    return None if tensor is None else tensor.data_ptr() + d * tensor.stride(0) * tensor.element_size()


def spread(work_on: Callable[[int, int, int], object], batch: int, work: int) -> None:
    """Both directions of all rows, in as many threads as torch has and are of use."""
    threads = torch.get_num_threads() if work > ALONE else 1
    blocks = max(1, min(threads // 2, batch // BLOCK))
    edges = [batch * k // blocks for k in range(blocks + 1)]
    parts = [(d, a, b) for a, b in pairwise(edges) for d in range(2)]
    if threads > 1:
        side_by_side(work_on, parts)
    else:
        for part in parts:
            work_on(*part)


def side_by_side(work_on: Callable[..., object], parts: Sequence[tuple[int, ...]]) -> None:
    """Each part in a thread of its own, the first in this one. An interruption is raised when all have ended: what they
    write into may be used for something else then."""
    others = [Thread(target=work_on, args=part) for part in parts[1:]]
    try:
        for thread in others:
            thread.start()
        work_on(*parts[0])
    finally:
        for thread in others:
            with suppress(RuntimeError):  # it was not started
                thread.join()

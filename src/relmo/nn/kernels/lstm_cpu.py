"""A layer's whole recurrence on a CPU in float32, by the library that `lstm.c` is compiled to at installation.

Where there was no C compiler, or for another kind of processor, there is no library, `suits` says no, and the caller
takes torch's operations instead; so it does with RELMO_KERNELS=0 in the environment. Results agree within rounding. Here
a row's numbers depend neither on the rows around it nor on how many threads there are.

Each direction runs by itself, in a thread of its own where torch has two; where it has more, so do blocks of rows.
"""

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch
from torch import Tensor

VERSION = 1  # of the arguments that `lstm.c` expects
ALONE = 2_000_000  # multiplications of a pass up to which another thread is not worth its start
BLOCK = 24  # rows a thread has at least

NAMES = {"AVX512": ["lstm_v4", "lstm_v3"], "AVX2": ["lstm_v3"]}  # by what torch finds the processor able to do
LONG, FLOAT, POINTER = ctypes.c_long, ctypes.c_float, ctypes.c_void_p
SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "relmo_version": ([], LONG),
    "relmo_packed": ([LONG] * 2, LONG),
    "relmo_pack": ([POINTER, *[LONG] * 4, POINTER], None),
    "relmo_pack_gates": ([POINTER, LONG, LONG, POINTER], None),
    "relmo_forward": ([POINTER, LONG, LONG, ctypes.c_int], None),
    "relmo_backward": ([POINTER, LONG, LONG], None),
    "relmo_room": ([POINTER], LONG),
    "relmo_weights": ([POINTER] * 6, None),
}
COUNTS = ["steps", "batch", "inputs", "hidden", "outputs"]
BUFFERS = ["x", "bias", "gates", "h", "c", "inner", "final_h", "final_c", "w_ih", "w_hh", "w_hr"]
BUFFERS += ["dy", "dx", "dh", "dc", "later"]  # of the backward pass


class Layer(ctypes.Structure):
    """One direction, as `lstm.c` has it."""

    _fields_ = (
        *((name, LONG) for name in COUNTS),
        ("sizes", ctypes.POINTER(LONG)),
        ("cell_clip", FLOAT),
        ("projection_clip", FLOAT),
        *((name, POINTER) for name in BUFFERS),
    )


class Weights(NamedTuple):
    """Of a layer, both directions: (2, 4H, I), (2, 4H), (2, 4H, P), (2, P, H) or None."""

    ih: Tensor
    bias: Tensor
    hh: Tensor
    hr: Tensor | None


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels for this processor, if there are any."""
    if os.environ.get("RELMO_KERNELS") == "0":
        return None
    for name in NAMES.get(torch.backends.cpu.get_cpu_capability(), ["lstm_plain"]):
        try:
            found = ctypes.CDLL(str(Path(__file__).with_name(f"{name}.so")))
            for function, (arguments, result) in SIGNATURES.items():
                getattr(found, function).argtypes, getattr(found, function).restype = arguments, result
        except (OSError, AttributeError):  # not built here, or long ago
            continue
        if found.relmo_version() == VERSION:
            return found
    return None


def available() -> bool:
    """Whether the kernels were built and are wanted."""
    return library() is not None


def suits(*tensors: Tensor | None) -> bool:
    """Whether the kernels can run on these: all float32 on a CPU."""
    given = [tensor for tensor in tensors if tensor is not None]
    return all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in given) and available()


def run(
    x: Tensor | None,
    gates: Tensor | None,
    h: Tensor,
    c: Tensor,
    weights: Weights,
    sizes: Sequence[int],
    clips: tuple[float | None, float | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer, from its input x (2, T, B, I) or, overwriting them, from the gates (2, T, B, 4H) that x would give.

    -> y (2, T, B, P), h (2, B, P), c (2, B, H). `sizes` says how many rows go on at each step.
    """
    if torch.is_grad_enabled():
        return Recurrence.apply(x, gates, h, c, *weights, sizes, clips)
    buffers = forward(x, gates, h, c, weights, sizes, clips, keep=False)
    return buffers["h"][:, 1:], buffers["final_h"], buffers["final_c"]


class Recurrence(torch.autograd.Function):
    """`run`, with its backward pass. As the gates' buffer gets their gradients a graph is walked back once only. The
    final state passes no gradient on."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor | None,
        gates: Tensor | None,
        h: Tensor,
        c: Tensor,
        ih: Tensor,
        bias: Tensor,
        hh: Tensor,
        hr: Tensor | None,
        sizes: Sequence[int],
        clips: tuple[float | None, float | None],
    ) -> tuple[Tensor, Tensor, Tensor]:
        buffers = forward(x, gates, h, c, Weights(ih, bias, hh, hr), sizes, clips, keep=True)
        y, final_h, final_c = buffers["h"][:, 1:], buffers.pop("final_h"), buffers.pop("final_c")
        ctx.save_for_backward(x, ih, bias, hh, hr)
        ctx.rest = buffers, sizes, clips
        ctx.mark_non_differentiable(final_h, final_c)
        return y, final_h, final_c  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        buffers, sizes, clips = ctx.rest
        ctx.rest = None  # the buffers are overwritten
        x, *weights = ctx.saved_tensors
        to_x, to_gates = ctx.needs_input_grad[:2]
        dx, of = backward(dy, x, buffers, Weights(*weights), sizes, clips, to_x=to_x)
        gates = buffers["gates"] if to_gates else None
        ih, bias = (None, None) if x is None else (of.ih, of.bias)
        return dx, gates, None, None, ih, bias, of.hh, of.hr, None, None


def forward(
    x: Tensor | None,
    gates: Tensor | None,
    h: Tensor,
    c: Tensor,
    weights: Weights,
    sizes: Sequence[int],
    clips: tuple[float | None, float | None],
    *,
    keep: bool,
) -> dict[str, Tensor | None]:
    """All steps. -> the buffers of `Layer`, for both directions; `keep` them as the backward pass needs them."""
    hidden, outputs, hr = weights.hh.shape[1] // 4, weights.hh.shape[2], weights.hr
    steps, batch = (gates if x is None else x).shape[1:3]  # type: ignore[union-attr]
    make = h.new_empty
    buffers: dict[str, Tensor | None] = {
        "x": whole(x),
        "bias": whole(weights.bias),
        "gates": make(2, steps, batch, 4 * hidden) if keep and gates is None else whole(gates),
        "h": make(2, steps + 1, batch, outputs),
        "inner": make(2, steps if keep else 1, batch, hidden) if hr is not None else None,
        "final_h": h.clone(memory_format=torch.contiguous_format),
        "final_c": c.clone(memory_format=torch.contiguous_format),
    }
    buffers["c"] = make(2, steps + 1, batch, hidden) if keep else buffers["final_c"]
    buffers["h"][:, 0] = h
    if keep:
        buffers["c"][:, 0] = c
    packed = {
        "w_ih": None if x is None else pack(weights.ih, by_gates=True),
        "w_hh": pack(weights.hh, by_gates=True),
        "w_hr": None if hr is None else pack(hr.transpose(1, 2)),
    }
    both = layers(buffers | packed, weights, steps, batch, sizes, clips)
    spread(lambda d, a, b: kernels().relmo_forward(both[d], a, b, keep), batch, sum(sizes) * hidden * outputs)
    return buffers


def backward(
    dy: Tensor,
    x: Tensor | None,
    buffers: dict[str, Tensor | None],
    weights: Weights,
    sizes: Sequence[int],
    clips: tuple[float | None, float | None],
    *,
    to_x: bool,
) -> tuple[Tensor | None, Weights]:
    """All steps backwards. -> the gradients of x, if asked for, and of the weights; gates become their gradients."""
    steps, batch = dy.shape[1:3]
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if to_x else None  # type: ignore[arg-type]
    gradients = {
        "dy": dy.contiguous(),
        "dx": dx,
        "dh": dy.new_empty(dy.shape),
        "dc": dy.new_zeros(2, batch, weights.hh.shape[1] // 4),
        "later": dy.new_zeros(2, batch, dy.shape[3]),
        "w_ih": pack(weights.ih) if to_x else None,
        "w_hh": pack(weights.hh),
        "w_hr": None if weights.hr is None else pack(weights.hr),
    }
    found = [None if w is None else torch.empty_like(w, memory_format=torch.contiguous_format) for w in weights]
    of = Weights(*found)  # type: ignore[arg-type]
    both = layers(buffers | gradients, weights, steps, batch, sizes, clips)
    work = sum(sizes) * weights.hh.shape[1] * weights.hh.shape[2]
    spread(lambda d, a, b: kernels().relmo_backward(both[d], a, b), batch, work)

    def sum_up(d: int, *_: int) -> None:
        room = dy.new_empty(kernels().relmo_room(both[d]))
        ordered = (of.ih, of.hh, of.bias, of.hr)
        kernels().relmo_weights(both[d], *(at(tensor, d) for tensor in ordered), room.data_ptr())

    spread(sum_up, 1, work)
    return dx, of


def layers(
    buffers: dict[str, Tensor | None],
    weights: Weights,
    steps: int,
    batch: int,
    sizes: Sequence[int],
    clips: tuple[float | None, float | None],
) -> list[Any]:
    """References to both directions' `Layer`; the buffers must outlive them."""
    four, outputs = weights.hh.shape[1:]
    counts = dict(zip(COUNTS, (steps, batch, weights.ih.shape[2], four // 4, outputs), strict=True))
    cell_clip, projection_clip = (math.inf if clip is None else clip for clip in clips)
    return [
        ctypes.byref(
            Layer(
                **counts,
                sizes=(LONG * steps)(*sizes),
                cell_clip=cell_clip,
                projection_clip=projection_clip,
                **{name: at(tensor, d) for name, tensor in buffers.items()},
            )
        )
        for d in range(2)
    ]


def kernels() -> ctypes.CDLL:
    """The library, which is there."""
    found = library()
    assert found is not None
    return found


def pack(weight: Tensor, *, by_gates: bool = False) -> Tensor:
    """weight (2, k, n), by which rows of size k are multiplied, in the order the kernels read it.

    By gates, it is (2, 4H, k), and rows of size k are multiplied by its transposed.
    """
    weight = weight.detach()
    first, second = weight.shape[1:]
    if by_gates:
        weight = weight.contiguous()
        packed = weight.new_empty(2, 4 * kernels().relmo_packed(second, first // 4))
    else:
        packed = weight.new_empty(2, kernels().relmo_packed(first, second))
    for d in range(2):
        if by_gates:
            kernels().relmo_pack_gates(at(weight, d), first // 4, second, at(packed, d))
        else:
            kernels().relmo_pack(at(weight, d), first, second, weight.stride(1), weight.stride(2), at(packed, d))
    return packed


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
    parts = [(d, a, b) for a, b in zip(edges, edges[1:], strict=False) for d in range(2)]
    others = [Thread(target=work_on, args=part) for part in parts[1:]] if threads > 1 else []
    for thread in others:
        thread.start()
    for part in parts[: len(parts) - len(others)]:
        work_on(*part)
    for thread in others:
        thread.join()

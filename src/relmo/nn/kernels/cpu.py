"""Library of the compiled kernels, and what all calls of it share.

Without a C compiler, on another kind of processor, or with RELMO_KERNELS=0 in the environment there is no library. Then
`supports` is false, and callers use torch's operations, which agree within rounding. In the kernels, a row's numbers
depend neither on the other rows nor on the number of threads.
"""

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

VERSION = 4  # of the interface of `lstm.c`
MIN_PARALLEL_WORK = {1: 4_000_000, 2: 2_000_000}  # multiplications, by directions, up to which a thread is enough
MIN_ROWS = 24  # per thread

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


def kernels() -> ctypes.CDLL:
    """Return the library, which must exist."""
    build = library()
    assert build is not None
    return build


def supports(*tensors: Tensor) -> bool:
    """Return whether there is a library and it can run on these tensors: all float32 on a CPU."""
    is_float32 = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    return is_float32 and library() is not None


def check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise an error if the shape is another; the kernels trust their arguments."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, expected {shape}")


def at(tensor: Tensor | None, d: int) -> int | None:
    """Return the address of a direction's part of the tensor."""
    return None if tensor is None else tensor.data_ptr() + d * tensor.stride(0) * tensor.element_size()


def spread(run: Callable[[int, int, int], object], rows: int, work: int, *, directions: int = 2) -> None:
    """Call `run(direction, start, stop)` for all rows, in as many threads as pay for `work` multiplications."""
    if not rows:
        return
    threads = torch.get_num_threads() if work > MIN_PARALLEL_WORK[directions] else 1
    blocks = max(1, min(threads // directions, rows // MIN_ROWS))
    edges = [rows * k // blocks for k in range(blocks + 1)]
    parts = [(d, start, stop) for start, stop in pairwise(edges) for d in range(directions)]
    if threads == 1:
        for part in parts:
            run(*part)
        return
    workers = [Thread(target=run, args=part) for part in parts[1:]]
    try:
        for worker in workers:
            worker.start()
        run(*parts[0])
    finally:  # an interruption is raised after all have ended, as their memory may be reused then
        for worker in workers:
            with suppress(RuntimeError):  # it was not started
                worker.join()

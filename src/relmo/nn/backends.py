"""Backends of the LSTM recurrences: one table from (cell, mode, device, dtype) to a function.

    cell      "elmo_lstm" (a layer), "elmo_stack" (all layers at once), "highway_lstm"
    mode      "reference": the equations step by step, in plain torch; every other backend is tested against it
              "train": with gradients;  "infer": without;  "embed": without, from a table of the first layer's gates
    device    "cpu", "cuda", or None for any
    dtype     precision of the products ("float32", "bfloat16", "int8"), or None for any

All backends of a cell and mode have the same signature.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

Function = Callable[..., Any]


class Backend(NamedTuple):
    """One row of the table; `supports` decides by the tensors, for example whether a kernel was built for them."""

    cell: str
    mode: str
    device: str | None
    dtype: str | None
    supports: Callable[..., bool]
    function: Function


BACKENDS: list[Backend] = []


def register_backend(
    cell: str,
    mode: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    supports: Callable[..., bool] = lambda *_: True,
) -> Callable[[Function], Function]:
    """Decorate a function to add it to the table."""

    def register(function: Function) -> Function:
        BACKENDS.append(Backend(cell, mode, device, dtype, supports, function))
        return function

    return register


def select_backend(cell: str, mode: str, dtype: str, *tensors: Tensor) -> Function | None:
    """Return the most specific backend for the tensors, the one registered first if several are; None without any."""
    device = tensors[0].device.type
    rows = [
        row
        for row in BACKENDS
        if (row.cell, row.mode) == (cell, mode)
        and row.device in (None, device)
        and row.dtype in (None, dtype)
        and row.supports(*tensors)
    ]
    specificity = [(row.device is not None) + (row.dtype is not None) for row in rows]
    return rows[specificity.index(max(specificity))].function if rows else None

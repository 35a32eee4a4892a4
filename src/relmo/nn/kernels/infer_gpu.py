"""The stack's inference on a GPU, from a table of the first layer's gates or from its input.

With few sequences side by side a GPU waits for Python. So their steps are recorded as a CUDA graph, which is then
started as one. A graph has a fixed number of rows and steps: both are rounded up, and each row stops at its own length.
Where there are more rows, the steps run one by one, each with the rows that still go on.

A graph always reads and writes the same memory, so threads take turns: a thread copies its input in, starts the graph
and copies the results out before the next thread may. Each stream has graphs of its own.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from relmo.nn.kernels import lstm_step_triton as kernels
from relmo.nn.kernels.layer import Clips, Gates, Steps, Weights, lengths_of

State = tuple[Tensor, ...]

ROWS, STEPS = 512, 128  # more of either are not recorded
ROUND = 8  # steps of a graph come in multiples of this
MOST = 64  # graphs that are kept
REPLAYING = Lock()  # one for all models: nothing else may be recorded meanwhile


class RecordedStack(NamedTuple):
    """A graph, what it reads and what it leaves."""

    graph: torch.cuda.CUDAGraph
    given: Tensor
    lengths: Tensor
    state: State
    layers: list[Tensor]
    final: list[Tensor]


class Prepared(NamedTuple):
    """A stack's weights in the precision of its products, layer by layer, and the graphs recorded with them."""

    weights: list[Weights]
    graphs: OrderedDict[tuple[object, ...], RecordedStack]  # the least recently used first


def suits(given: Tensor) -> bool:
    """Whether this can run on the table of gates, or on the input."""
    return kernels.available(given)


@torch.autocast("cuda", enabled=False)
def run(
    prepared: Prepared, first: Gates | Tensor, state: State, sizes: Sequence[int], clips: Clips, *, skip: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """All layers, as `ElmoLSTM.infer` from a table of the first one's gates, or as `ElmoLSTM.forward` from its input
    (2, T, B, I). -> each layer's output (2, T, B, P), and each one's h (B, 2, P) and c (B, 2, H) at the end; float32.
    """
    given, table = (first.words, first.table) if isinstance(first, Gates) else (first, None)
    steps, batch = given.shape[1:3]
    weights, graphs = prepared
    if not 0 < steps <= STEPS or not 0 < batch <= ROWS or torch.cuda.is_current_stream_capturing():
        return _unroll(weights, first, state, clips, sizes=list(sizes), skip=skip)
    wide, long = 1 << (batch - 1).bit_length(), -(-steps // ROUND) * ROUND
    stream = torch.cuda.current_stream(given.device).cuda_stream
    key = (stream, wide, long, given.dtype, None if table is None else (table.data_ptr(), table.stride()))
    with REPLAYING:
        if key not in graphs:
            if len(graphs) == MOST:
                graphs.popitem(last=False)
            room = torch.zeros(2, long, wide, *given.shape[3:], dtype=given.dtype, device=given.device)
            graphs[key] = _record(weights, room, table, clips, skip=skip)
        graphs.move_to_end(key)
        recorded = graphs[key]
        recorded.given[:, :steps, :batch] = given
        recorded.lengths.zero_()
        recorded.lengths[:batch] = lengths_of(sizes, batch).to(given.device, non_blocking=True)
        for to, tensor in zip(recorded.state, state, strict=True):
            to[:batch] = tensor
        recorded.graph.replay()
        layers = [layer[:, :steps, :batch].clone() for layer in recorded.layers]
        return layers, [tensor[:batch].clone() for tensor in recorded.final]


def _record(weights: list[Weights], given: Tensor, table: Tensor | None, clips: Clips, *, skip: bool) -> RecordedStack:
    """A graph for as many rows and steps as are given."""
    device, batch = given.device, given.shape[2]
    lengths = torch.zeros(batch, dtype=torch.int64, device=device)
    sizes = [size for layer in weights for size in (layer.hh.shape[2], layer.hh.shape[1] // 4)]
    state = tuple(torch.zeros(batch, 2, size, device=device) for size in sizes)
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):  # one step first: libraries take the memory they need, kernels are compiled
        _unroll(weights, _first(given[:, :1], table), state, clips, lengths=lengths, skip=skip)
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others may take memory meanwhile
        layers, final = _unroll(weights, _first(given, table), state, clips, lengths=lengths, skip=skip)
    return RecordedStack(graph, given, lengths, state, layers, final)


def _first(given: Tensor, table: Tensor | None) -> Gates | Tensor:
    return given if table is None else Gates(table, given)


def _unroll(
    weights: list[Weights],
    first: Gates | Tensor,
    state: State,
    clips: Clips,
    *,
    sizes: list[int] | None = None,
    lengths: Tensor | None = None,
    skip: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """All layers, step by step. Where sequences end is said by `sizes`, how many go on at each step, or by `lengths`
    (B,), on the device; then all rows take all steps, and a row past its end stays as it is."""
    given = first.words if isinstance(first, Gates) else first
    steps, batch = given.shape[1:3]
    if lengths is None:
        assert sizes is not None
        ends = lengths_of(sizes, batch).to(given.device)
    else:
        sizes, ends = [batch] * steps, lengths
    layers: list[Tensor] = []
    final: list[Tensor] = []
    row = torch.arange(batch, device=given.device)
    for depth, layer in enumerate(weights):
        h, c = (tensor.transpose(0, 1) for tensor in state[2 * depth : 2 * depth + 2])
        y, c = _one_layer(layer, layers[-1] if depth else first, Steps(h, c, sizes, clips), lengths)
        out = y[:, 1:].float()
        layers.append(out + layers[-1] if skip and depth else out)
        final += [y[:, ends, row].float().transpose(0, 1), c.transpose(0, 1)]
    return layers, final


def _one_layer(weights: Weights, given: Gates | Tensor, start: Steps, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """-> h before each step and after the last (2, T + 1, B, P), zero past a row's end; c (2, B, H) at the end."""
    ih, bias, hh, hr = weights
    steps, batch = len(start.sizes), start.h.shape[1]
    c = start.c.clone(memory_format=torch.contiguous_format)
    y = torch.zeros(2, steps + 1, batch, hh.shape[2], dtype=hh.dtype, device=hh.device)
    y[:, 0] = start.h
    m = torch.empty(2, batch, c.shape[2], dtype=hh.dtype, device=hh.device)
    into = hh.transpose(1, 2)
    if isinstance(given, Tensor):
        gates = torch.bmm(given.to(ih.dtype).flatten(1, 2), ih.transpose(1, 2)).view(2, steps, batch, -1)
    for t, n in enumerate(start.sizes):
        before, after = y[:, t, :n], y[:, t + 1, :n]
        inner = after if hr is None else m[:, :n]
        if isinstance(given, Gates):
            z, added, index = torch.bmm(before, into), given.table, given.words[:, t, :n]
        else:
            z, added, index = gates[:, t, :n].baddbmm_(before, into), bias, None
        cell = c[:, :n]
        kernels.forward(z, added, cell, cell, inner, start.clips.cell, index=index, lengths=lengths, step=t, keep=False)
        if hr is not None:
            kernels.project(inner, hr, after, start.clips.projection)
    return y, c

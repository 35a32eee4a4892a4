"""Inference of the stack on a GPU, from a table of the first layer's gates or from its input.

With few sequences in a batch a GPU waits for Python, so their steps are recorded as a CUDA graph of a fixed number of
rows and steps, both rounded up. Larger batches run step by step, each with the active rows only. A graph always uses
the same memory, so threads take turns. Each stream has its own graphs.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from relmo.nn.kernels import lstm_step_triton as kernels
from relmo.nn.kernels.lstm_step import Clips, Gates, Steps, Weights, lengths_of

State = tuple[Tensor, ...]

MAX_ROWS, MAX_STEPS = 512, 128  # larger batches are not recorded
STEP_MULTIPLE = 8  # graphs have a multiple of so many steps
MAX_GRAPHS = 64
GRAPH_LOCK = Lock()  # for all models: nothing else may be recorded during a replay


class RecordedStack(NamedTuple):
    """A graph with its inputs and outputs."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    lengths: Tensor
    state: State
    layers: list[Tensor]
    final: list[Tensor]


class Prepared(NamedTuple):
    """Weights of a stack in the precision of its products, by layer, and the graphs recorded with them."""

    weights: list[Weights]
    graphs: OrderedDict[tuple[object, ...], RecordedStack]  # least recently used first


@torch.autocast("cuda", enabled=False)
def run(
    prepared: Prepared, source: Gates | Tensor, state: State, sizes: Sequence[int], clips: Clips, *, skip: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Run all layers from a table of the first one's gates (`ElmoLSTM.infer`) or its input (2, T, B, I).

    Return the output (2, T, B, P) of each layer, and the final h (B, 2, P) and c (B, 2, H) of each; float32.
    """
    inputs, table = (source.words, source.table) if isinstance(source, Gates) else (source, None)
    steps, batch = inputs.shape[1:3]
    weights, graphs = prepared
    if not 0 < steps <= MAX_STEPS or not 0 < batch <= MAX_ROWS or torch.cuda.is_current_stream_capturing():
        return _unroll(weights, source, state, clips, sizes=list(sizes), skip=skip)
    num_rows, num_steps = 1 << (batch - 1).bit_length(), -(-steps // STEP_MULTIPLE) * STEP_MULTIPLE
    stream = torch.cuda.current_stream(inputs.device).cuda_stream
    key = (stream, num_rows, num_steps, inputs.dtype, None if table is None else (table.data_ptr(), table.stride()))
    with GRAPH_LOCK:
        if key not in graphs:
            if len(graphs) == MAX_GRAPHS:
                graphs.popitem(last=False)
            buffer = torch.zeros(2, num_steps, num_rows, *inputs.shape[3:], dtype=inputs.dtype, device=inputs.device)
            graphs[key] = _record(weights, buffer, table, clips, skip=skip)
        graphs.move_to_end(key)
        recorded = graphs[key]
        recorded.inputs[:, :steps, :batch] = inputs
        recorded.lengths.zero_()
        recorded.lengths[:batch] = lengths_of(sizes, batch).to(inputs.device, non_blocking=True)
        for buffer, tensor in zip(recorded.state, state, strict=True):
            buffer[:batch] = tensor
        recorded.graph.replay()
        layers = [layer[:, :steps, :batch].clone() for layer in recorded.layers]
        return layers, [tensor[:batch].clone() for tensor in recorded.final]


def _record(weights: list[Weights], inputs: Tensor, table: Tensor | None, clips: Clips, *, skip: bool) -> RecordedStack:
    device, batch = inputs.device, inputs.shape[2]
    lengths = torch.zeros(batch, dtype=torch.int64, device=device)
    sizes = [size for layer in weights for size in (layer.hh.shape[2], layer.hh.shape[1] // 4)]
    state = tuple(torch.zeros(batch, 2, size, device=device) for size in sizes)
    warm_up, source = (x if table is None else Gates(table, x) for x in (inputs[:, :1], inputs))
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):  # one step first: libraries allocate workspaces, kernels are compiled
        _unroll(weights, warm_up, state, clips, lengths=lengths, skip=skip)
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may allocate memory
        layers, final = _unroll(weights, source, state, clips, lengths=lengths, skip=skip)
    return RecordedStack(graph, inputs, lengths, state, layers, final)


def _unroll(
    weights: list[Weights],
    source: Gates | Tensor,
    state: State,
    clips: Clips,
    *,
    sizes: list[int] | None = None,
    lengths: Tensor | None = None,
    skip: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """Run all layers step by step, with the active rows of each step, or with all and `lengths` (B,) on the device."""
    inputs = source.words if isinstance(source, Gates) else source
    steps, batch = inputs.shape[1:3]
    if lengths is None:
        assert sizes is not None
        ends = lengths_of(sizes, batch).to(inputs.device)
    else:
        sizes, ends = [batch] * steps, lengths
    layers: list[Tensor] = []
    final: list[Tensor] = []
    row = torch.arange(batch, device=inputs.device)
    for depth, layer in enumerate(weights):
        h, c = (tensor.transpose(0, 1) for tensor in state[2 * depth : 2 * depth + 2])
        y, c = _run_layer(layer, layers[-1] if depth else source, Steps(h, c, sizes, clips), lengths)
        out = y[:, 1:].float()
        layers.append(out + layers[-1] if skip and depth else out)
        final += [y[:, ends, row].float().transpose(0, 1), c.transpose(0, 1)]
    return layers, final


def _run_layer(weights: Weights, source: Gates | Tensor, start: Steps, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return h before each step and after the last (2, T + 1, B, P), zero past a row's end; and c (2, B, H)."""
    ih, bias, hh, hr = weights
    steps, batch = len(start.sizes), start.h.shape[1]
    c = start.c.clone(memory_format=torch.contiguous_format)
    y = torch.zeros(2, steps + 1, batch, hh.shape[2], dtype=hh.dtype, device=hh.device)
    y[:, 0] = start.h
    m = torch.empty(2, batch, c.shape[2], dtype=hh.dtype, device=hh.device)
    into = hh.transpose(1, 2)
    if isinstance(source, Tensor):
        gates = torch.bmm(source.to(ih.dtype).flatten(1, 2), ih.transpose(1, 2)).view(2, steps, batch, -1)
    for t, n in enumerate(start.sizes):
        before, after = y[:, t, :n], y[:, t + 1, :n]
        inner = after if hr is None else m[:, :n]
        if isinstance(source, Gates):
            z, bias_or_table, index = torch.bmm(before, into), source.table, source.words[:, t, :n]
        else:
            z, bias_or_table, index = gates[:, t, :n].baddbmm_(before, into), bias, None
        cell = c[:, :n]
        kernels.forward(
            z, bias_or_table, cell, cell, inner, start.clips.cell, index=index, lengths=lengths, step=t, keep=False
        )
        if hr is not None:
            kernels.project(inner, hr, after, start.clips.projection)
    return y, c

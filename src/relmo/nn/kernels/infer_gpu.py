"""The stack's inference on a GPU, from a table of the first layer's gates.

Few sequences side by side leave a GPU waiting for Python, so their steps are recorded as a CUDA graph and started at
once. A graph has a fixed number of rows and steps: both are rounded up, and a row stops by its length. More rows run
step by step, in each step those that still go on.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relmo.nn.kernels import lstm_step_triton as kernels
from relmo.nn.kernels.lstm_cpu import Weights

State = tuple[Tensor, ...]
Clips = tuple[float | None, float | None]

ROWS, STEPS = 512, 128  # more of either are not recorded
ROUND = 8  # steps of a graph come in multiples of this
MOST = 64  # graphs that are kept


class Recorded(NamedTuple):
    """A graph, what it reads and what it leaves."""

    graph: torch.cuda.CUDAGraph
    words: Tensor
    lengths: Tensor
    state: State
    layers: list[Tensor]
    final: list[Tensor]


class Prepared(NamedTuple):
    """A stack's weights in the precision of its products, layer by layer, and the graphs recorded with them."""

    weights: list[Weights]
    graphs: OrderedDict[tuple[object, ...], Recorded]  # the least recently used first


def suits(gates: Tensor) -> bool:
    """Whether this can run on the table of gates."""
    return kernels.available(gates)


def run(
    prepared: Prepared,
    gates: Tensor,
    words: Tensor,
    state: State,
    sizes: Sequence[int],
    clips: Clips,
    *,
    skip: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """As `ElmoLSTM.infer`. -> each layer's output (2, T, B, P), and each one's h (B, 2, P) and c (B, 2, H) at the end;
    float32."""
    steps, batch = words.shape[1:]
    weights, graphs = prepared
    if not 0 < steps <= STEPS or not 0 < batch <= ROWS or torch.cuda.is_current_stream_capturing():
        return unroll(weights, gates, words, state, clips, sizes=list(sizes), skip=skip)
    wide, long = 1 << (batch - 1).bit_length(), -(-steps // ROUND) * ROUND
    key = (wide, long, gates.data_ptr(), gates.stride())
    if key not in graphs:
        if len(graphs) == MOST:
            graphs.popitem(last=False)
        graphs[key] = record(weights, gates, wide, long, clips, skip=skip)
    graphs.move_to_end(key)
    recorded = graphs[key]
    recorded.words[:, :steps, :batch] = words
    recorded.lengths.zero_()
    recorded.lengths[:batch] = lengths_of(sizes, batch).to(words.device, non_blocking=True)
    for to, tensor in zip(recorded.state, state, strict=True):
        to[:batch] = tensor
    recorded.graph.replay()
    layers = [layer[:, :steps, :batch].clone() for layer in recorded.layers]
    return layers, [tensor[:batch].clone() for tensor in recorded.final]


def record(weights: list[Weights], gates: Tensor, batch: int, steps: int, clips: Clips, *, skip: bool) -> Recorded:
    """A graph for so many rows and steps."""
    device = gates.device
    words = torch.zeros(2, steps, batch, dtype=torch.int64, device=device)
    lengths = torch.zeros(batch, dtype=torch.int64, device=device)
    sizes = [size for _, _, hh, hr in weights for size in (hh.shape[2], hh.shape[1] // 4)]
    state = tuple(torch.zeros(batch, 2, size, device=device) for size in sizes)
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):  # libraries take what they need, kernels are compiled
        unroll(weights, gates, words[:, :1], state, clips, lengths=lengths, skip=skip)
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers, final = unroll(weights, gates, words, state, clips, lengths=lengths, skip=skip)
    return Recorded(graph, words, lengths, state, layers, final)


def unroll(
    weights: list[Weights],
    gates: Tensor,
    words: Tensor,
    state: State,
    clips: Clips,
    *,
    sizes: list[int] | None = None,
    lengths: Tensor | None = None,
    skip: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """All layers, step by step. Where sequences end is said by `sizes`, how many go on at each step, or by `lengths`
    (B,), on the device; then all rows take all steps, and a row past its end stays as it is."""
    steps, batch = words.shape[1:]
    if lengths is None:
        assert sizes is not None
        ends = lengths_of(sizes, batch).to(words.device)
    else:
        sizes, ends = [batch] * steps, lengths
    layers: list[Tensor] = []
    final: list[Tensor] = []
    row = torch.arange(batch, device=words.device)
    for depth, (ih, bias, hh, hr) in enumerate(weights):
        h, c = (tensor.transpose(0, 1) for tensor in state[2 * depth : 2 * depth + 2])
        c = c.clone(memory_format=torch.contiguous_format)
        y = torch.zeros(2, steps + 1, batch, hh.shape[2], dtype=hh.dtype, device=hh.device)
        y[:, 0] = h
        m = torch.empty(2, batch, c.shape[2], dtype=hh.dtype, device=hh.device)
        if depth:
            z = torch.bmm(layers[-1].to(ih.dtype).flatten(1, 2), ih.transpose(1, 2)).view(2, steps, batch, -1)
        else:
            z = torch.empty(2, batch, hh.shape[1], dtype=hh.dtype, device=hh.device)
        into = hh.transpose(1, 2)
        for t, n in enumerate(sizes):
            before, after, inner = y[:, t, :n], y[:, t + 1, :n], m[:, :n]
            inner = after if hr is None else inner
            if depth:
                kernels.forward(
                    z[:, t, :n].baddbmm_(before, into), bias, c[:, :n], c[:, :n], inner, clips[0],
                    keep=False, lengths=lengths, step=t,
                )  # fmt: skip
            else:
                kernels.forward(
                    torch.bmm(before, into, out=z[:, :n] if n == batch else None), gates, c[:, :n], c[:, :n], inner,
                    clips[0], index=words[:, t, :n], keep=False, lengths=lengths, step=t,
                )  # fmt: skip
            if hr is not None:
                kernels.project(inner, hr, after, clips[1])
        out = y[:, 1:].float()
        layers.append(out + layers[-1] if skip and depth else out)
        final += [y[:, ends, row].float().transpose(0, 1), c.transpose(0, 1)]
    return layers, final


def lengths_of(sizes: Sequence[int], batch: int) -> Tensor:
    """How long each sequence is, from how many go on at each step; (B,)."""
    return (torch.tensor(list(sizes)).unsqueeze(1) > torch.arange(batch)).sum(dim=0)

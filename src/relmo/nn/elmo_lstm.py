"""ELMo's recurrent layers: two independent stacks, one reading each way, of projected LSTMs clipped in cell and output.

    out_0 = h_0;   out_l = h_l + out_{l-1}  for l >= 1, with skip connections     (h itself is carried without the sum)

Choices:
- Both directions are one tensor with a leading 2, and each step computes both in one batched product. The backward
  direction's input comes already reversed, so both run from step 0 on.
- The definition (`fast=False`) steps `cells.lstm_gates` through time. The fast path computes the input's part of all
  gates in one product before the loop, and has its own backward pass: the loop backwards in time gives the gradients of
  the gates, and from these all weight gradients follow in one large product each, after the loop.
- Sequences of different lengths stand sorted, longest first; `sizes[t]` says how many are still going on at step t. So
  no step is spent on padding and no mask is needed.
- Cells are float32 whatever the precision of the products.
- `Recurrence` and `infer` say in torch's operations what is computed, on a GPU with one launch for the elementwise part
  of a step (`lstm_step_triton`). On a CPU in float32 a layer is one call of compiled code (`lstm_cpu`), where built.

    Peters et al. 2018;  Sak et al. 2014 (the projection);  Jozefowicz et al. 2016, Exploring the limits (the clips)
"""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relmo.nn.cells import State, clip, lstm_gates
from relmo.nn.dropout import drop
from relmo.nn.kernels import lstm_cpu, lstm_step, lstm_step_triton
from relmo.nn.recurrent import unroll

FORGET_BIAS = 1.0  # added to the forget gate at every step; not part of the trained bias
ROWS = 16  # inference runs this many rows, or a multiple: a row's numbers then do not depend on how many there are


class Clips(NamedTuple):
    """Where the cell and the projected output are held; None does not clip."""

    cell: float | None
    projection: float | None


class ElmoOutput(NamedTuple):
    """The outputs of every layer, each (2, T, B, P) and zero past a sequence's end; the state at each one's end."""

    layers: tuple[Tensor, ...]
    state: State


class ElmoLayer(nn.Module):
    """The weights of one layer, both directions: gates in the order i, f, g, o."""

    def __init__(self, input_size: int, hidden_size: int, projection: int | None):
        super().__init__()
        self.hidden_size = hidden_size
        self.output_size = projection or hidden_size
        self.weight_ih = nn.Parameter(torch.empty(2, 4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(2, 4 * hidden_size, self.output_size))
        self.bias = nn.Parameter(torch.zeros(2, 4 * hidden_size))
        self.weight_hr = nn.Parameter(torch.empty(2, projection, hidden_size)) if projection else None
        bound = math.sqrt(6 / (input_size + self.output_size + 4 * hidden_size))  # Glorot & Bengio 2010
        nn.init.uniform_(self.weight_ih, -bound, bound)
        nn.init.uniform_(self.weight_hh, -bound, bound)
        if self.weight_hr is not None:
            bound = math.sqrt(6 / (hidden_size + self.output_size))
            nn.init.uniform_(self.weight_hr, -bound, bound)

    def full_bias(self) -> Tensor:
        """The bias with the forget gate's constant; (2, 4H)."""
        constant = torch.zeros_like(self.bias[:1])
        constant[:, self.hidden_size : 2 * self.hidden_size] = FORGET_BIAS
        return self.bias + constant

    def input_gates(self, x: Tensor) -> Tensor:
        """The input's part of the gates, biases included: x (2, …, I) -> (2, …, 4H)."""
        gates = torch.baddbmm(
            self.full_bias().to(x.dtype).unsqueeze(1), x.flatten(1, -2), self.weight_ih.to(x.dtype).transpose(1, 2)
        )
        return gates.view(*x.shape[:-1], -1)


class ElmoLSTM(nn.Module):
    """The two stacks. The state is a flat tuple, layer by layer h (B, 2, P) and c (B, 2, H)."""

    def __init__(
        self,
        *,
        input_size: int,
        hidden_size: int,
        projection: int | None,
        layers: int,
        skip_connections: bool,
        cell_clip: float | None,
        projection_clip: float | None,
        dropout: float = 0.0,
        fast: bool = True,
    ):
        super().__init__()
        self.skip_connections = skip_connections
        self.clips = Clips(cell_clip, projection_clip if projection else None)
        self.dropout = dropout
        self.fast = fast
        self.output_size = projection or hidden_size
        sizes = [input_size] + [self.output_size] * (layers - 1)
        self.layers = nn.ModuleList(ElmoLayer(size, hidden_size, projection) for size in sizes)

    def initial_state(self, batch: int) -> State:
        """Zeros."""
        like = self.stack[0].bias
        sizes = [size for layer in self.stack for size in (layer.output_size, layer.hidden_size)]
        return tuple(like.new_zeros(batch, 2, size) for size in sizes)

    @property
    def stack(self) -> list[ElmoLayer]:
        """The layers from the bottom up."""
        return list(self.layers)  # type: ignore[arg-type]

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        sizes: Sequence[int] | None = None,
        *,
        first_gates: Tensor | None = None,
    ) -> ElmoOutput:
        """x (2, T, B, I), the backward direction's rows reversed; `sizes` as above where the lengths differ.

        `first_gates` (2, T, B, 4H), where given, is what the first layer's `input_gates` would make of x, which is then
        not looked at; it is overwritten.
        """
        steps, batch = (x if first_gates is None else first_gates).shape[1:3]
        sizes = [batch] * steps if sizes is None else sizes
        state = self.initial_state(batch) if state is None else state
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        for depth, layer in enumerate(self.stack):
            x = drop(x, self.dropout, self.training)
            h, c = (tensor.transpose(0, 1) for tensor in state[2 * depth : 2 * depth + 2])
            gates = first_gates if depth == 0 else None
            y, h, c = self._run(layer, x, gates, h, c, sizes)
            x = x + y if depth and self.skip_connections else y
            outputs.append(x)
            finals += [h.transpose(0, 1), c.transpose(0, 1)]
        return ElmoOutput(tuple(outputs), tuple(finals))

    def _run(
        self, layer: ElmoLayer, x: Tensor, gates: Tensor | None, h: Tensor, c: Tensor, sizes: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer. -> y (2, T, B, P), h (2, B, P), c (2, B, H)."""
        if not self.fast and gates is None:
            return define(layer, x, h, c, sizes, self.clips)
        precision = (x if gates is None else gates).dtype
        kind = layer.bias.device.type
        if torch.is_autocast_enabled(kind):
            precision = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            given = x if gates is None else gates
            if precision == given.dtype and lstm_cpu.suits(given, h, c, layer.bias):
                weights = lstm_cpu.Weights(layer.weight_ih, layer.full_bias(), layer.weight_hh, layer.weight_hr)
                return lstm_cpu.run(x if gates is None else None, gates, h, c, weights, list(sizes), self.clips)
            gates = layer.input_gates(x.to(precision)) if gates is None else gates
            weight_hr = None if layer.weight_hr is None else layer.weight_hr.to(precision)
            run = Recurrence.apply if torch.is_grad_enabled() else infer
            y, h, c = run(gates, h.to(precision), c, layer.weight_hh.to(precision), weight_hr, list(sizes), self.clips)
        return y, h, c


def define(
    layer: ElmoLayer, x: Tensor, h: Tensor, c: Tensor, sizes: Sequence[int], clips: Clips
) -> tuple[Tensor, Tensor, Tensor]:
    """The definition of a layer: each direction by itself, the LSTM's equations step by step."""
    lengths = lengths_of(sizes, x.shape[2]).to(x.device)
    forget = layer.full_bias() - layer.bias
    runs = []
    for d in range(2):
        weights = [layer.weight_ih[d], layer.weight_hh[d], layer.bias[d], forget[0].detach()]
        weights += [] if layer.weight_hr is None else [layer.weight_hr[d]]

        def cell(x: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
            gates = lstm_gates(x, state, weights, *clips)
            return gates.h, (gates.h, gates.c)

        runs.append(unroll(cell, x[d].transpose(0, 1), (h[d], c[d]), lengths, weights=weights))
    y = torch.stack([y for y, _ in runs]).transpose(1, 2)
    h, c = (torch.stack(tensors) for tensors in zip(*(state for _, state in runs), strict=True))
    return y, h, c


def lengths_of(sizes: Sequence[int], batch: int) -> Tensor:
    """How long each sequence is, from how many go on at each step; (B,)."""
    return (torch.tensor(list(sizes)).unsqueeze(1) > torch.arange(batch)).sum(dim=0)


class Recurrence(torch.autograd.Function):
    """The recurrence of one layer over all its steps, with its backward pass. The buffer of gates is used throughout:
    it comes with the input's part, holds the gates' values after the forward and their gradients after the backward
    pass; so a graph is walked back once only. The final state passes no gradient on."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        h: Tensor,
        c: Tensor,
        weight_hh: Tensor,
        weight_hr: Tensor | None,
        sizes: Sequence[int],
        clips: Clips,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, batch = gates.shape[1:3]
        outputs = gates.new_zeros(2, steps + 1, batch, weight_hh.shape[2])  # h before each step and after the last
        cells = c.new_zeros(2, steps + 1, batch, weight_hh.shape[1] // 4)
        inner = torch.zeros_like(cells[:, 1:], dtype=gates.dtype)  # m = o * tanh(c), what is projected
        outputs[:, 0], cells[:, 0] = h, c
        into, project = weight_hh.transpose(1, 2), None if weight_hr is None else weight_hr.transpose(1, 2)
        step = kernels_for(gates)
        buffers = by_step(sizes, gates, outputs[:, :-1], outputs[:, 1:], cells[:, :-1], cells[:, 1:], inner)
        for z, h, h_next, c, c_next, m in buffers:
            step.forward(z.baddbmm_(h, into), c, c_next, m, clips.cell)
            h_next.copy_(m if project is None else clip(torch.bmm(m, project), clips.projection))
        ctx.saved = (gates, outputs, cells, inner, weight_hh, weight_hr, sizes, clips)
        final_h, final_c = at_the_end(sizes, outputs, cells)
        ctx.mark_non_differentiable(final_h, final_c)
        return outputs[:, 1:], final_h, final_c

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gates, outputs, cells, inner, weight_hh, weight_hr, sizes, clips = ctx.saved
        ctx.saved = None  # the buffers are overwritten
        dh_next = torch.zeros_like(outputs[:, 0])
        dc_next = torch.zeros_like(cells[:, 0])
        dhs = torch.zeros_like(outputs[:, 1:])
        step = kernels_for(gates)
        buffers = by_step(sizes, gates, dy, dhs, outputs[:, 1:], cells[:, :-1], cells[:, 1:])
        for z, d, dh, h, c, c_next in reversed(buffers):
            n = z.shape[1]
            step.clipped_gradient(d, dh_next[:, :n], h, dh, clips.projection)
            dm = dh if weight_hr is None else torch.bmm(dh, weight_hr)
            step.backward(z, dm, dc_next[:, :n], c, c_next, clips.cell)
            torch.bmm(z, weight_hh, out=dh_next[:, :n])
        for t, n in enumerate(sizes):
            if n < gates.shape[2]:
                gates[:, t, n:] = 0
        before = outputs[:, :-1].flatten(1, 2)
        d_hh = torch.bmm(gates.flatten(1, 2).transpose(1, 2), before)
        d_hr = None if weight_hr is None else torch.bmm(dhs.flatten(1, 2).transpose(1, 2), inner.flatten(1, 2))
        return gates, None, None, d_hh, d_hr, None, None


def by_step(sizes: Sequence[int], *buffers: Tensor) -> list[tuple[Tensor, ...]]:
    """Each step's own part of buffers (2, T, B, …): the rows that are still going on."""
    steps = zip(*(buffer.unbind(dim=1) for buffer in buffers), strict=True)
    whole = buffers[0].shape[2]
    return [
        views if n == whole else tuple(view[:, :n] for view in views) for n, views in zip(sizes, steps, strict=True)
    ]


def at_the_end(sizes: Sequence[int], outputs: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """h (2, B, P) and c (2, B, H) after each sequence's last step."""
    batch = outputs.shape[2]
    if sizes[-1:] == [batch]:
        return outputs[:, -1].clone(), cells[:, -1].clone()
    lengths, rows = lengths_of(sizes, batch).to(outputs.device), torch.arange(batch, device=outputs.device)
    return outputs[:, lengths, rows], cells[:, lengths, rows]


def kernels_for(gates: Tensor) -> ModuleType:
    """The fastest form of a step there is for the device."""
    return lstm_step_triton if lstm_step_triton.available(gates) else lstm_step


def infer(
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    weight_hh: Tensor,
    weight_hr: Tensor | None,
    sizes: Sequence[int],
    clips: Clips,
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence without a backward pass, overwriting `gates`: as `Recurrence`, holding one step's values only.

    A step runs a multiple of ROWS rows as far as there are any; sequences that have ended are computed and dropped.
    """
    steps, batch = gates.shape[1:3]
    h, c = h.clone(), c.clone()
    y = gates.new_zeros(2, steps, batch, weight_hh.shape[2])
    into, project = weight_hh.transpose(1, 2), None if weight_hr is None else weight_hr.transpose(1, 2)
    step = kernels_for(gates)
    after, m = torch.empty_like(c), gates.new_empty(c.shape)
    for t, n in enumerate(sizes):
        rows = min(batch, -(-n // ROWS) * ROWS)
        z, c_next, inner = gates[:, t, :rows], after[:, :rows], m[:, :rows]
        step.forward(z.baddbmm_(h[:, :rows], into), c[:, :rows], c_next, inner, clips.cell)
        output = inner if project is None else clip(torch.bmm(inner, project), clips.projection)
        c[:, :n] = c_next[:, :n]
        h[:, :n] = output[:, :n]
        y[:, t, :n] = output[:, :n]
    return y, h, c

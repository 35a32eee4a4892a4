"""ELMo's recurrent layers: two independent stacks, one reading each way, of projected LSTMs clipped in cell and output.

    out_0 = h_0;   out_l = h_l + out_{l-1}  for l >= 1, with skip connections     (h itself is carried without the sum)

Choices:
- Both directions are one tensor with a leading 2, and each step computes both in one batched product. The backward
  direction's input comes already reversed, so both run from step 0 on.
- The definition (`fast=False`) steps the LSTM's cell through time. The fast path computes the input's part of all
  gates in one product before the loop, and has its own backward pass: the loop backwards in time gives the gradients of
  the gates, and from these all weight gradients follow in one large product each, after the loop.
- Sequences of different lengths are sorted, longest first; `sizes[t]` says how many still go on at step t. So no step
  is spent on padding, and no mask is needed.
- Cells are float32 whatever the precision of the products.
- `TorchRecurrence` and `_infer_steps` say in torch's operations what is computed. On a GPU the elementwise part of a
  step is one launch (`lstm_step_triton`), and `infer_gpu` runs the whole stack where no gradients are wanted. On a CPU
  in float32 a layer is one call of compiled code, where it was built: `lstm_cpu` for training, `infer_cpu` without
  gradients, which does bfloat16 and int8 too.

    Peters et al. 2018;  Sak et al. 2014 (the projection);  Jozefowicz et al. 2016, Exploring the limits (the clips)
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relmo.nn.cells import State
from relmo.nn.cells.lstm import LSTMCell, clip
from relmo.nn.dropout import drop
from relmo.nn.kernels import infer_cpu, infer_gpu, lstm_cpu, lstm_step, lstm_step_triton
from relmo.nn.kernels.kept import kept
from relmo.nn.kernels.layer import Clips, Gates, Steps, Weights, lengths_of
from relmo.nn.quantize import PRECISIONS, Factor, Precision
from relmo.nn.recurrent import unroll

FORGET_BIAS = 1.0  # added to the forget gate at every step; not part of the trained bias
ROWS = 16  # torch's inference runs a multiple of so many rows: then a row's numbers do not depend on their number


class ElmoLSTMOutput(NamedTuple):
    """The output of every layer, (2, T, B, P), zero past a sequence's end; and the state at each sequence's end."""

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

    def cell(self, clips: Clips) -> LSTMCell:
        """The equations of a step, without weights."""
        projection = None if self.weight_hr is None else self.output_size
        sizes = self.weight_ih.shape[2], self.hidden_size
        return LSTMCell.bare(*sizes, projection=projection, cell_clip=clips.cell, projection_clip=clips.projection)

    def weights(self) -> Weights:
        """What a run needs, the forget gate's constant included."""
        return Weights(self.weight_ih, self.full_bias(), self.weight_hh, self.weight_hr)

    def input_products(self, x: Tensor) -> Tensor:
        """The input's part of the gates, without biases: x (2, …, I) -> (2, …, 4H)."""
        gates = torch.bmm(x.flatten(1, -2), self.weight_ih.to(x.dtype).transpose(1, 2))
        return gates.view(*x.shape[:-1], -1)

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
        """The state before the first step: zeros."""
        like = self.stack[0].bias
        sizes = [size for layer in self.stack for size in (layer.output_size, layer.hidden_size)]
        return tuple(like.new_zeros(batch, 2, size) for size in sizes)

    @property
    def stack(self) -> list[ElmoLayer]:
        """The layers from the bottom up."""
        return list(self.layers)  # type: ignore[arg-type]

    def forward(self, x: Tensor, state: State | None = None, sizes: Sequence[int] | None = None) -> ElmoLSTMOutput:
        """x (2, T, B, I), the backward direction's rows reversed; `sizes` as above where the lengths differ."""
        steps, batch = x.shape[1:3]
        sizes = [batch] * steps if sizes is None else sizes
        state = self.initial_state(batch) if state is None else state
        if self.fast and not torch.is_grad_enabled() and not self.training and infer_gpu.suits(x):
            low = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
            return self._infer_on_gpu(x, state, sizes, "bfloat16" if low else "float32")
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        for depth, layer in enumerate(self.stack):
            x = drop(x, self.dropout, self.training)
            y, h, c = self._run(layer, x, self._steps(depth, state, sizes))
            x = x + y if depth and self.skip_connections else y
            outputs.append(x)
            finals += [h.transpose(0, 1), c.transpose(0, 1)]
        return ElmoLSTMOutput(tuple(outputs), tuple(finals))

    @torch.no_grad()
    def infer(
        self,
        gates: Tensor,
        words: Tensor,
        state: State | None = None,
        sizes: Sequence[int] | None = None,
        *,
        precision: Precision = "float32",
    ) -> ElmoLSTMOutput:
        """`forward` without gradients. It reads a table with the first layer's `input_gates` of each word.

        gates (2, S, 4H) is the table; words (2, T, B) says which row each direction reads at each step. `precision` is
        that of the products of weights and activations, as `quantize` defines them. In compiled code a row's numbers
        are the same to the bit, whatever the rows beside it.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {precision!r}; it can be {', '.join(PRECISIONS)}")
        if precision == "int8" and gates.is_cuda:
            raise ValueError("int8 is for CPUs; take bfloat16 on a GPU")
        steps, batch = words.shape[1:]
        sizes = [batch] * steps if sizes is None else list(sizes)
        if len(sizes) != steps:
            raise ValueError(f"sizes has {len(sizes)} steps, but there are {steps}")
        state = self.initial_state(batch) if state is None else state
        first = Gates(gates, words)
        if self.fast and infer_gpu.suits(gates):
            return self._infer_on_gpu(first, state, sizes, precision)
        with torch.autocast(gates.device.type, enabled=False):
            if self.fast and lstm_cpu.suits(gates, *state, self.stack[0].bias):
                return self._infer_compiled(first, state, sizes, precision)
            return self._infer_in_torch(first, state, sizes, precision)

    def _infer_on_gpu(
        self, first: Gates | Tensor, state: State, sizes: Sequence[int], precision: Precision
    ) -> ElmoLSTMOutput:
        prepared = self._prepared(precision)
        layers, final = infer_gpu.run(prepared, first, state, sizes, self.clips, skip=self.skip_connections)
        return ElmoLSTMOutput(tuple(layers), tuple(final))

    def _infer_compiled(self, first: Gates, state: State, sizes: Sequence[int], precision: Precision) -> ElmoLSTMOutput:
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        for depth, layer in enumerate(self.stack):
            given = outputs[-1] if depth else first
            skip = self.skip_connections and depth > 0
            start = self._steps(depth, state, sizes)
            y, h, c = infer_cpu.run(given, layer.weights(), start, skip=skip, precision=precision)
            outputs.append(y)
            finals += [h.transpose(0, 1), c.transpose(0, 1)]
        return ElmoLSTMOutput(tuple(outputs), tuple(finals))

    def _infer_in_torch(self, first: Gates, state: State, sizes: Sequence[int], precision: Precision) -> ElmoLSTMOutput:
        """Torch's products give a row other bits for other numbers of rows, unless these are multiples of ROWS: so the
        rows are filled up to one."""
        batch = first.words.shape[2]
        more = -batch % ROWS
        given: Gates | Tensor = Gates(first.table, pad(first.words, (0, more)))
        state = tuple(pad(tensor, (0, 0, 0, 0, 0, more)) for tensor in state)
        rounded = precision != "float32" and first.table.device.type == "cpu"
        infer = _infer_rounded if rounded else _infer_plain
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        for depth, layer in enumerate(self.stack):
            y, h, c = infer(layer, given, self._steps(depth, state, sizes), precision)
            given = y + outputs[-1] if self.skip_connections and depth else y
            outputs.append(given)
            finals += [h.transpose(0, 1)[:batch], c.transpose(0, 1)[:batch]]
        return ElmoLSTMOutput(tuple(layer[:, :, :batch] for layer in outputs), tuple(finals))

    def _steps(self, depth: int, state: State, sizes: Sequence[int]) -> Steps:
        """What the layer at this depth starts from, and how far it goes."""
        h, c = state[2 * depth : 2 * depth + 2]
        return Steps(h.transpose(0, 1), c.transpose(0, 1), sizes, self.clips)

    def _prepared(self, precision: Precision) -> infer_gpu.Prepared:
        """The weights for a GPU's inference, kept until one of them changes."""
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32

        def prepare() -> infer_gpu.Prepared:
            return infer_gpu.Prepared([layer.weights().to(dtype) for layer in self.stack], OrderedDict())

        return kept(f"inference in {precision}", list(self.parameters()), prepare)

    def _run(self, layer: ElmoLayer, x: Tensor, start: Steps) -> tuple[Tensor, Tensor, Tensor]:
        """One layer. -> y (2, T, B, P), h (2, B, P), c (2, B, H)."""
        if not self.fast:
            return _define(layer, x, start)
        kind, precision = x.device.type, x.dtype
        if torch.is_autocast_enabled(kind):
            precision = torch.get_autocast_dtype(kind)
        weights = layer.weights()
        with torch.autocast(kind, enabled=False):
            if precision == x.dtype and lstm_cpu.suits(x, start.h, start.c, layer.bias):
                if torch.is_grad_enabled():
                    return lstm_cpu.run(x, weights, start)
                return infer_cpu.run(x, weights, start, skip=False, precision="float32")
            low = weights.to(precision)
            x, h = x.to(precision), start.h.to(precision)
            if torch.is_grad_enabled() or (self.training and x.is_cuda):  # quickest for windows, without gradients too
                return TorchRecurrence.apply(x, h, start.c, *low, list(start.sizes), start.clips)
            return _infer_steps(layer.input_products(x), low.bias, low.hh, low.hr, start._replace(h=h))


def _define(layer: ElmoLayer, x: Tensor, start: Steps) -> tuple[Tensor, Tensor, Tensor]:
    """The definition of a layer: each direction by itself, the LSTM's equations step by step."""
    h, c, sizes, clips = start
    lengths = lengths_of(sizes, x.shape[2]).to(x.device)
    forget = layer.full_bias() - layer.bias
    cell = layer.cell(clips)
    runs = []
    for d in range(2):
        weights = [layer.weight_ih[d], layer.weight_hh[d], layer.bias[d], forget[0].detach()]
        weights += [] if layer.weight_hr is None else [layer.weight_hr[d]]
        runs.append(unroll(cell, x[d].transpose(0, 1), (h[d], c[d]), lengths, weights=weights))
    y = torch.stack([y for y, _ in runs]).transpose(1, 2)
    h, c = (torch.stack(tensors) for tensors in zip(*(state for _, state in runs), strict=True))
    return y, h, c


class TorchRecurrence(torch.autograd.Function):
    """One layer over all its steps, with its backward pass. One buffer is used throughout: it holds the input's part,
    then the gates' values, and after the backward pass their gradients. So a graph is walked back only once. The final
    state passes no gradient on."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        weight_ih: Tensor,
        bias: Tensor,
        weight_hh: Tensor,
        weight_hr: Tensor | None,
        sizes: Sequence[int],
        clips: Clips,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, batch = x.shape[1:3]
        gates = torch.bmm(x.flatten(1, 2), weight_ih.transpose(1, 2)).view(2, steps, batch, -1)
        whole = sizes[-1:] == [batch]  # no sequence ends early, so nothing has to be zero
        make = torch.empty if whole else torch.zeros
        precision, device = gates.dtype, gates.device
        hidden, size = weight_hh.shape[1] // 4, weight_hh.shape[2]
        outputs = make(2, steps + 1, batch, size, dtype=precision, device=device)  # h before each step, after the last
        cells = make(2, steps + 1, batch, hidden, dtype=c.dtype, device=device)
        inner = None if weight_hr is None else make(2, steps, batch, hidden, dtype=precision, device=device)
        outputs[:, 0], cells[:, 0] = h, c
        into = weight_hh.transpose(1, 2)
        step = _kernels_for(gates)
        ms = outputs[:, 1:] if inner is None else inner  # m = o * tanh(c), what is projected
        buffers = _by_step(sizes, gates, outputs[:, :-1], outputs[:, 1:], cells[:, :-1], cells[:, 1:], ms)
        for z, h, h_next, c, c_next, m in buffers:
            step.forward(z.baddbmm_(h, into), bias, c, c_next, m, clips.cell)
            if weight_hr is not None:
                step.project(m, weight_hr, h_next, clips.projection)
        ctx.saved = (x, gates, outputs, cells, inner, weight_ih, weight_hh, weight_hr, sizes, clips)
        final_h, final_c = _at_the_end(sizes, outputs, cells)
        ctx.mark_non_differentiable(final_h, final_c)
        return outputs[:, 1:], final_h, final_c

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, gates, outputs, cells, inner, weight_ih, weight_hh, weight_hr, sizes, clips = ctx.saved
        ctx.saved = None  # the buffers are overwritten
        whole = sizes[-1:] == [gates.shape[2]]
        step = _kernels_for(gates)
        later = step.parts_of(gates[:, 0], weight_hh.shape[2]).zero_()
        dc_next = torch.zeros_like(cells[:, 0])
        dhs = torch.empty_like(outputs[:, 1:]) if whole else torch.zeros_like(outputs[:, 1:])
        buffers = _by_step(sizes, gates, dy, dhs, outputs[:, 1:], cells[:, :-1], cells[:, 1:])
        for t, (z, d, dh, h, c, c_next) in reversed(list(enumerate(buffers))):
            n = z.shape[1]
            step.output_gradient(d, later[:, :, :n], h, dh, clips.projection)
            dm = dh if weight_hr is None else torch.bmm(dh, weight_hr)
            step.backward(z, dm, dc_next[:, :n], c, c_next, clips.cell)
            if t:  # the first state gets no gradient
                step.to_output(z, weight_hh, later[:, :, :n])
        for t, n in enumerate(sizes):
            if n < gates.shape[2]:
                gates[:, t, n:] = 0
        dz = gates.flatten(1, 2)
        d_hh = torch.bmm(dz.transpose(1, 2), outputs[:, :-1].flatten(1, 2))
        d_hr = None if weight_hr is None else torch.bmm(dhs.flatten(1, 2).transpose(1, 2), inner.flatten(1, 2))
        dx = torch.bmm(dz, weight_ih).view(x.shape) if ctx.needs_input_grad[0] else None
        d_ih = torch.bmm(dz.transpose(1, 2), x.flatten(1, 2))
        return dx, None, None, d_ih, dz.sum(dim=1), d_hh, d_hr, None, None


def _by_step(sizes: Sequence[int], *buffers: Tensor) -> list[tuple[Tensor, ...]]:
    """The part of the buffers (2, T, B, …) that belongs to each step: the rows that still go on."""
    steps = zip(*(buffer.unbind(dim=1) for buffer in buffers), strict=True)
    whole = buffers[0].shape[2]
    return [
        views if n == whole else tuple(view[:, :n] for view in views) for n, views in zip(sizes, steps, strict=True)
    ]


def _at_the_end(sizes: Sequence[int], outputs: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """h (2, B, P) and c (2, B, H) after each sequence's last step."""
    batch = outputs.shape[2]
    if sizes[-1:] == [batch]:
        return outputs[:, -1].clone(), cells[:, -1].clone()
    lengths, rows = lengths_of(sizes, batch).to(outputs.device), torch.arange(batch, device=outputs.device)
    return outputs[:, lengths, rows], cells[:, lengths, rows]


def _kernels_for(gates: Tensor) -> ModuleType:
    """The fastest form of a step on this device."""
    return lstm_step_triton if lstm_step_triton.available(gates) else lstm_step


def _infer_steps(
    gates: Tensor, bias: Tensor | None, hh: Tensor, hr: Tensor | None, start: Steps
) -> tuple[Tensor, Tensor, Tensor]:
    """`TorchRecurrence` without a backward pass: it holds one step's values only, and overwrites `gates`.

    A step runs a multiple of ROWS rows as far as there are any; sequences that have ended are computed and dropped.
    """
    steps, batch = gates.shape[1:3]
    h, c = start.h.clone(), start.c.clone()
    y = gates.new_zeros(2, steps, batch, hh.shape[2])
    into, project = hh.transpose(1, 2), None if hr is None else hr.transpose(1, 2)
    step = _kernels_for(gates)
    after, m = torch.empty_like(c), gates.new_empty(c.shape)
    for t, n in enumerate(start.sizes):
        rows = min(batch, -(-n // ROWS) * ROWS)
        z, c_next, inner = gates[:, t, :rows], after[:, :rows], m[:, :rows]
        step.forward(z.baddbmm_(h[:, :rows], into), bias, c[:, :rows], c_next, inner, start.clips.cell, keep=False)
        output = inner if project is None else clip(torch.bmm(inner, project), start.clips.projection)
        c[:, :n] = c_next[:, :n]
        h[:, :n] = output[:, :n]
        y[:, t, :n] = output[:, :n]
    return y, h, c


def _infer_plain(
    layer: ElmoLayer, given: Gates | Tensor, start: Steps, precision: Precision
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in torch's operations, all in one precision. -> y, h and c in the precision of the state."""
    outside = start.h.dtype
    inside = torch.bfloat16 if precision == "bfloat16" else outside
    if isinstance(given, Gates):
        gates, bias = given.rows().to(inside), None
    else:
        gates, bias = layer.input_products(given.to(inside)), layer.full_bias().to(inside)
    hh, hr = layer.weight_hh.to(inside), None if layer.weight_hr is None else layer.weight_hr.to(inside)
    y, h, c = _infer_steps(gates, bias, hh, hr, start._replace(h=start.h.to(inside)))
    return y.to(outside), h.to(outside), c


def _infer_rounded(
    layer: ElmoLayer, given: Gates | Tensor, start: Steps, precision: Precision
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer with products as `quantize` defines them: the definition of what the compiled kernels do."""
    hh = Factor(layer.weight_hh, precision)
    hr = None if layer.weight_hr is None else Factor(layer.weight_hr, precision, levelled=True)
    if isinstance(given, Gates):
        gates = given.rows()
    else:
        products = Factor(layer.weight_ih, precision).product(given.flatten(1, 2))
        gates = layer.full_bias()[:, None, None] + products.view(*given.shape[:3], -1)
    h, c = start.h.clone(), start.c.clone()
    y = h.new_zeros(*gates.shape[:3], h.shape[2])
    for t, n in enumerate(start.sizes):
        rows = min(gates.shape[2], -(-n // ROWS) * ROWS)
        i, f, g, o = (gates[:, t, :rows] + hh.product(h[:, :rows])).chunk(4, dim=-1)
        after = clip(f.sigmoid() * c[:, :rows] + i.sigmoid() * g.tanh(), start.clips.cell)
        m = o.sigmoid() * after.tanh()
        output = m if hr is None else clip(hr.product(m), start.clips.projection)
        c[:, :n] = after[:, :n]
        h[:, :n] = y[:, t, :n] = output[:, :n]
    return y, h, c

"""ELMo's recurrent layers: two independent stacks, one for each direction, of projected LSTMs with clipping.

    out_0 = h_0;   out_l = h_l + out_{l-1}  for l >= 1, with skip connections     (h is carried without the sum)

Choices:
- Both directions are one tensor with a leading 2, and each step computes both in one batched product. The input of the
  backward direction is reversed in advance, so both run from step 0.
- The reference (`fast=False`) steps the LSTM's cell through time. Other backends compute the input's part of all gates
  in one product before the loop, and have a backward pass of their own.
- Sequences are sorted by length, longest first; `sizes[t]` is the number of active rows at step t. So no step is spent
  on padding, and no mask is needed.
- Cell states are float32 whatever the precision of the products.

    Peters et al. 2018;  Sak et al. 2014 (the projection);  Jozefowicz et al. 2016, Exploring the limits (the clips)
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relmo.nn.backends import register_backend, select_backend
from relmo.nn.cells import State
from relmo.nn.cells.lstm import LSTMCell
from relmo.nn.dropout import drop
from relmo.nn.kernels import infer_cpu, infer_gpu, lstm_cpu
from relmo.nn.kernels.layer import Clips, Gates, Steps, Weights, lengths_of
from relmo.nn.kernels.lstm_torch import ROWS as ROWS
from relmo.nn.kernels.lstm_torch import TorchRecurrence, infer_rounded, infer_steps
from relmo.nn.kernels.weight_cache import cached
from relmo.nn.quantize import PRECISIONS, Factor, Precision
from relmo.nn.recurrent import unroll

FORGET_BIAS = 1.0  # added to the forget gate at every step; not part of the trained bias

LayerRun = tuple[Tensor, Tensor, Tensor]
"""Output y (2, T, B, P) of a layer and its final state h (2, B, P), c (2, B, H)."""


class ElmoLSTMOutput(NamedTuple):
    """The output of every layer, (2, T, B, P), zero past a sequence's end; and the state at each sequence's end."""

    layers: tuple[Tensor, ...]
    state: State


class ElmoLayer(nn.Module):
    """Weights of one layer, both directions, with gates in the order i, f, g, o."""

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
        """Return the bias with the forget gate's constant; (2, 4H)."""
        constant = torch.zeros_like(self.bias[:1])
        constant[:, self.hidden_size : 2 * self.hidden_size] = FORGET_BIAS
        return self.bias + constant

    def cell(self, clips: Clips) -> LSTMCell:
        """Return the equations of a step, without weights."""
        projection = None if self.weight_hr is None else self.output_size
        sizes = self.weight_ih.shape[2], self.hidden_size
        return LSTMCell.bare(*sizes, projection=projection, cell_clip=clips.cell, projection_clip=clips.projection)

    def weights(self) -> Weights:
        """Return the weights, the bias with the forget gate's constant."""
        return Weights(self.weight_ih, self.full_bias(), self.weight_hh, self.weight_hr)

    def input_products(self, x: Tensor) -> Tensor:
        """Return the input's part of the gates (2, …, 4H) of x (2, …, I), without biases."""
        gates = torch.bmm(x.flatten(1, -2), self.weight_ih.to(x.dtype).transpose(1, 2))
        return gates.view(*x.shape[:-1], -1)

    def input_gates(self, x: Tensor) -> Tensor:
        """Return the input's part of the gates (2, …, 4H) of x (2, …, I), with biases."""
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
        """Return the state before the first step: zeros."""
        bias = self.stack[0].bias
        sizes = [size for layer in self.stack for size in (layer.output_size, layer.hidden_size)]
        return tuple(bias.new_zeros(batch, 2, size) for size in sizes)

    @property
    def stack(self) -> list[ElmoLayer]:
        """The layers from the bottom up."""
        return list(self.layers)  # type: ignore[arg-type]

    def forward(self, x: Tensor, state: State | None = None, sizes: Sequence[int] | None = None) -> ElmoLSTMOutput:
        """Run the stacks on x (2, T, B, I), reversed for the backward direction; `sizes` if the lengths differ."""
        steps, batch = x.shape[1:3]
        sizes = [batch] * steps if sizes is None else sizes
        state = self.initial_state(batch) if state is None else state
        device = x.device.type
        is_autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_autocast else x.dtype
        name = str(dtype).removeprefix("torch.")
        # On a GPU in training mode the recurrence with a backward pass is the fastest, without gradients too.
        mode = "train" if torch.is_grad_enabled() or (self.training and x.is_cuda) else "infer"
        if self.fast and mode == "infer" and (run_stack := select_backend("elmo_stack", mode, name, x)):
            precision: Precision = "bfloat16" if is_autocast and dtype == torch.bfloat16 else "float32"
            return run_stack(self, x, state, sizes, precision)
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        for depth, layer in enumerate(self.stack):
            x = drop(x, self.dropout, self.training)
            start = self._start(depth, state, sizes)
            tensors = (x, start.h, start.c, layer.bias)
            if self.fast:
                run = select_backend("elmo_lstm", mode, name, *tensors)
                assert run is not None
                with torch.autocast(device, enabled=False):
                    y, h, c = run(layer, x, start, dtype)
            else:
                y, h, c = run_reference(layer, x, start, dtype)
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
        """Run `forward` without gradients, from a table of the first layer's `input_gates` of each word.

        gates (2, S, 4H) is the table; words (2, T, B) are the rows that each direction reads at each step. `precision`
        is that of the products of weights and activations, as `quantize` defines them. In compiled code a row's
        numbers are the same bit for bit, whatever the other rows.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"Unknown precision {precision!r}; choose one of {', '.join(PRECISIONS)}.")
        if precision == "int8" and gates.is_cuda:
            raise ValueError("int8 is for CPUs; use bfloat16 on a GPU.")
        steps, batch = words.shape[1:]
        sizes = [batch] * steps if sizes is None else list(sizes)
        if len(sizes) != steps:
            raise ValueError(f"sizes has {len(sizes)} steps, but there are {steps}")
        state = self.initial_state(batch) if state is None else state
        if self.fast and (run_stack := select_backend("elmo_stack", "embed", precision, gates)):
            return run_stack(self, Gates(gates, words), state, sizes, precision)
        run = embed_torch
        if self.fast:
            run = select_backend("elmo_lstm", "embed", precision, gates, *state, self.stack[0].bias) or embed_torch
        # torch's products give a row other bits for other numbers of rows, unless these are multiples of ROWS.
        padding = 0 if run is embed_compiled else -batch % ROWS
        source: Gates | Tensor = Gates(gates, pad(words, (0, padding)) if padding else words)
        if padding:
            state = tuple(pad(tensor, (0, 0, 0, 0, 0, padding)) for tensor in state)
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        with torch.autocast(gates.device.type, enabled=False):
            for depth, layer in enumerate(self.stack):
                skip = self.skip_connections and depth > 0
                y, h, c = run(layer, source, self._start(depth, state, sizes), precision, skip=skip)
                source = y
                outputs.append(y)
                finals += [h.transpose(0, 1)[:batch], c.transpose(0, 1)[:batch]]
        return ElmoLSTMOutput(tuple(layer[:, :, :batch] for layer in outputs), tuple(finals))

    def _start(self, depth: int, state: State, sizes: Sequence[int]) -> Steps:
        h, c = state[2 * depth : 2 * depth + 2]
        return Steps(h.transpose(0, 1), c.transpose(0, 1), sizes, self.clips)


@register_backend("elmo_stack", "infer", device="cuda", supports=infer_gpu.supports)
@register_backend("elmo_stack", "embed", device="cuda", supports=infer_gpu.supports)
def infer_stack_on_gpu(
    lstm: ElmoLSTM, source: Gates | Tensor, state: State, sizes: Sequence[int], precision: Precision
) -> ElmoLSTMOutput:
    """Run the whole stack on a GPU without gradients."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32

    def prepare() -> infer_gpu.Prepared:
        return infer_gpu.Prepared([layer.weights().to(dtype) for layer in lstm.stack], OrderedDict())

    prepared = cached(f"inference in {precision}", list(lstm.parameters()), prepare)
    layers, final = infer_gpu.run(prepared, source, state, sizes, lstm.clips, skip=lstm.skip_connections)
    return ElmoLSTMOutput(tuple(layers), tuple(final))


@register_backend("elmo_lstm", "reference")
def run_reference(layer: ElmoLayer, x: Tensor, start: Steps, dtype: torch.dtype) -> LayerRun:
    """Run a layer by its definition: each direction by itself, the LSTM's equations step by step."""
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


@register_backend("elmo_lstm", "train", device="cpu", dtype="float32", supports=lstm_cpu.supports)
def train_compiled(layer: ElmoLayer, x: Tensor, start: Steps, dtype: torch.dtype) -> LayerRun:
    """Run a layer in compiled code, with gradients."""
    return lstm_cpu.run(x, layer.weights(), start)


@register_backend("elmo_lstm", "infer", device="cpu", dtype="float32", supports=lstm_cpu.supports)
def infer_compiled(layer: ElmoLayer, x: Tensor, start: Steps, dtype: torch.dtype) -> LayerRun:
    """Run a layer in compiled code, without gradients."""
    return infer_cpu.run(x, layer.weights(), start, skip=False, precision="float32")


@register_backend("elmo_lstm", "embed", device="cpu", supports=lstm_cpu.supports)
def embed_compiled(
    layer: ElmoLayer, source: Gates | Tensor, start: Steps, precision: Precision, *, skip: bool
) -> LayerRun:
    """Run a layer in compiled code, from a table of gates or the output of the layer below."""
    return infer_cpu.run(source, layer.weights(), start, skip=skip, precision=precision)


@register_backend("elmo_lstm", "train")
def train_torch(layer: ElmoLayer, x: Tensor, start: Steps, dtype: torch.dtype) -> LayerRun:
    """Run a layer in torch's operations, with gradients."""
    weights = layer.weights().to(dtype)
    return TorchRecurrence.apply(x.to(dtype), start.h.to(dtype), start.c, *weights, list(start.sizes), start.clips)


@register_backend("elmo_lstm", "infer")
def infer_torch(layer: ElmoLayer, source: Gates | Tensor, start: Steps, dtype: torch.dtype) -> LayerRun:
    """Run a layer in torch's operations, without gradients."""
    _, bias, hh, hr = layer.weights().to(dtype)
    start = start._replace(h=start.h.to(dtype))
    if isinstance(source, Gates):
        return infer_steps(source.rows().to(dtype), None, hh, hr, start)
    return infer_steps(layer.input_products(source.to(dtype)), bias, hh, hr, start)


@register_backend("elmo_lstm", "embed")
def embed_torch(
    layer: ElmoLayer, source: Gates | Tensor, start: Steps, precision: Precision, *, skip: bool
) -> LayerRun:
    """Run a layer in torch's operations, from a table of gates or the output of the layer below."""
    if precision == "float32" or start.h.device.type != "cpu":
        outer = start.h.dtype
        y, h, c = infer_torch(layer, source, start, torch.bfloat16 if precision == "bfloat16" else outer)
        y, h = y.to(outer), h.to(outer)
    else:
        hh = Factor(layer.weight_hh, precision)
        hr = None if layer.weight_hr is None else Factor(layer.weight_hr, precision, levelled=True)
        if isinstance(source, Gates):
            gates = source.rows()
        else:
            products = Factor(layer.weight_ih, precision).product(source.flatten(1, 2))
            gates = layer.full_bias()[:, None, None] + products.view(*source.shape[:3], -1)
        y, h, c = infer_rounded(gates, hh, hr, start)
    if skip:
        assert isinstance(source, Tensor)
        y = y + source
    return y, h, c

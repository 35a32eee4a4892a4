"""ELMo's recurrent layers: two independent stacks, one for each direction, of projected LSTMs with clipping.

    out_0 = h_0;   out_l = h_l + out_{l-1}  for l >= 1, with skip connections     (h is carried without the sum)

Both directions are one tensor with a leading 2; the input of the backward one is reversed in advance. Sequences are
sorted by length, longest first, and `sizes[t]` is the number of active rows at step t, so that no step is spent on
padding. Cell states are float32 whatever the precision of the products. The reference (`fast=False`) steps the LSTM's
cell through time; other backends compute the input's part of all gates in one product before the loop.

    Peters et al. 2018;  Sak et al. 2014 (the projection);  Jozefowicz et al. 2016, Exploring the limits (the clips)
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relmo.nn.dropout import drop
from relmo.nn.kernels import cached, cpu, infer_gpu, lstm_cpu, lstm_step_triton
from relmo.nn.kernels.lstm_step import Clips, Gates, Steps, Weights, lengths_of
from relmo.nn.kernels.lstm_torch import ROWS as ROWS
from relmo.nn.kernels.lstm_torch import TorchRecurrence, infer_rounded, infer_steps
from relmo.nn.quantize import PRECISIONS, Precision
from relmo.nn.recurrence.base import State
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.nn.recurrence.stack import unroll

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
        self.hidden_size, self.output_size = hidden_size, projection or hidden_size
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

    def cells(self, clips: Clips) -> list[LSTMCell]:
        """Return the layer as two LSTM cells, whose first bias is the full one and whose second is zero."""
        projection = None if self.weight_hr is None else self.output_size
        sizes = self.weight_ih.shape[2], self.hidden_size
        cell = LSTMCell.bare(*sizes, projection=projection, cell_clip=clips.cell, projection_clip=clips.projection)
        both = {"weight_ih": self.weight_ih, "weight_hh": self.weight_hh, "bias_ih": self.full_bias()}
        both["bias_hh"] = torch.zeros_like(self.bias)
        if self.weight_hr is not None:
            both["weight_hr"] = self.weight_hr
        return [cell.with_weights({name: weight[d] for name, weight in both.items()}) for d in range(2)]

    def weights(self) -> Weights:
        """Return the weights, the bias with the forget gate's constant."""
        return Weights(self.weight_ih, self.full_bias(), self.weight_hh, self.weight_hr)

    def input_gates(self, x: Tensor) -> Tensor:
        """Return the input's part of the gates (2, …, 4H) of x (2, …, I), with biases."""
        gates = torch.baddbmm(
            self.full_bias().to(x.dtype).unsqueeze(1), x.flatten(1, -2), self.weight_ih.to(x.dtype).transpose(1, 2)
        )
        return gates.view(*x.shape[:-1], -1)

    def run_reference(self, x: Tensor, start: Steps, dtype: torch.dtype) -> LayerRun:
        """Run the layer by its definition: each direction by itself, the LSTM's equations step by step."""
        h, c, sizes, clips = start
        lengths = lengths_of(sizes, x.shape[2]).to(x.device)
        cells = self.cells(clips)
        runs = [unroll(cell, x[d].transpose(0, 1), (h[d], c[d]), lengths) for d, cell in enumerate(cells)]
        y = torch.stack([y for y, _ in runs]).transpose(1, 2)
        h, c = (torch.stack(tensors) for tensors in zip(*(state for _, state in runs), strict=True))
        return y, h, c


BACKENDS: dict[tuple[str, str], Callable[[ElmoLayer, Tensor, Steps, torch.dtype], LayerRun]] = {
    ("reference", "torch"): ElmoLayer.run_reference,
    ("train", "torch"): lambda layer, x, start, dtype: TorchRecurrence.apply(
        start._replace(h=start.h.to(dtype)), x.to(dtype), *layer.weights().to(dtype)
    ),
    ("train", "C"): lambda layer, x, start, _: lstm_cpu.CompiledRecurrence.apply(start, x, *layer.weights()),
    ("infer", "torch"): lambda layer, x, start, dtype: infer_steps(x, layer.weights(), start, dtype),
    ("infer", "C"): lambda layer, x, start, _: lstm_cpu.infer(
        x, layer.weights(), start, skip=False, precision="float32"
    ),
}
"""Functions that run a layer, by mode and language. C is for float32 on a CPU; torch runs on any device, with steps in
Triton on a GPU. Without gradients on a GPU, `infer_gpu` runs the whole stack. Tests compare all with the reference."""


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
        self.skip_connections, self.dropout, self.fast = skip_connections, dropout, fast
        self.clips = Clips(cell_clip, projection_clip if projection else None)
        self.input_size, self.output_size = input_size, projection or hidden_size
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
        # On a GPU in training mode the recurrence with a backward pass is the fastest, without gradients too.
        train = torch.is_grad_enabled() or (self.training and x.is_cuda)
        if self.fast and not train and lstm_step_triton.available(x):
            in_bfloat16 = is_autocast and dtype == torch.bfloat16
            return self._infer_on_gpu(x, state, sizes, "bfloat16" if in_bfloat16 else "float32")
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        for depth, layer in enumerate(self.stack):
            x = drop(x, self.dropout, self.training)
            h, c = (tensor.transpose(0, 1) for tensor in state[2 * depth : 2 * depth + 2])
            start = Steps(h, c, sizes, self.clips)
            mode, language = "reference", "torch"
            if self.fast:
                compiled = dtype == torch.float32 and cpu.supports(x, h, c, layer.bias)
                mode, language = "train" if train else "infer", "C" if compiled else "torch"
            with torch.autocast(device, enabled=is_autocast and not self.fast):
                y, h, c = BACKENDS[mode, language](layer, x, start, dtype)
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
        is that of the products, as `quantize` defines them. A row's bits do not depend on the other rows.
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
        if self.fast and lstm_step_triton.available(gates):
            return self._infer_on_gpu(Gates(gates, words), state, sizes, precision)
        compiled = self.fast and cpu.supports(gates, *state, self.stack[0].bias)
        # torch's products give a row other bits for other numbers of rows, unless these are multiples of ROWS.
        padding = 0 if compiled else -batch % ROWS
        source: Gates | Tensor = Gates(gates, pad(words, (0, padding)) if padding else words)
        if padding:
            state = tuple(pad(tensor, (0, 0, 0, 0, 0, padding)) for tensor in state)
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        with torch.autocast(gates.device.type, enabled=False):
            for depth, layer in enumerate(self.stack):
                h, c = (tensor.transpose(0, 1) for tensor in state[2 * depth : 2 * depth + 2])
                start, weights = Steps(h, c, sizes, self.clips), layer.weights()
                skip = self.skip_connections and depth > 0
                if compiled:
                    y, h, c = lstm_cpu.infer(source, weights, start, skip=skip, precision=precision)
                elif precision == "float32" or h.device.type != "cpu":
                    outer = h.dtype
                    dtype = torch.bfloat16 if precision == "bfloat16" else outer
                    y, h, c = infer_steps(source, weights, start, dtype)
                    y, h = y.to(outer), h.to(outer)
                else:
                    y, h, c = infer_rounded(source, weights, start, precision)
                if skip and not compiled:  # above the first layer the source is a tensor
                    y = y + source  # type: ignore[operator]
                source = y
                outputs.append(source)
                finals += [h.transpose(0, 1)[:batch], c.transpose(0, 1)[:batch]]
        return ElmoLSTMOutput(tuple(layer[:, :, :batch] for layer in outputs), tuple(finals))

    def _infer_on_gpu(
        self, source: Gates | Tensor, state: State, sizes: Sequence[int], precision: Precision
    ) -> ElmoLSTMOutput:
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        prepared = cached(
            f"inference in {precision}",
            list(self.parameters()),
            lambda: infer_gpu.Prepared([layer.weights().to(dtype) for layer in self.stack], OrderedDict()),
        )
        layers, final = infer_gpu.run(prepared, source, state, sizes, self.clips, skip=self.skip_connections)
        return ElmoLSTMOutput(tuple(layers), tuple(final))

"""Stacks of recurrent layers of any cell: directions, padding, residual connections, dropout.

`unroll` is the reference: one cell stepped through time in Python. Faster paths are used if the cell has them:
`unroll_fused` runs a layer or the whole stack by torch's fused kernels (oneDNN on a CPU, cuDNN on a GPU), and
`unroll_parallel` computes all steps at once. The state is explicit: nothing is stored between calls.

With `lengths`, both directions read a sequence to its end; outputs past the end are exactly zero and the final state is
that at each sequence's end, so nothing depends on the other sequences of the batch.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from relmo.nn.cells import Cell, State
from relmo.nn.dropout import SequenceDropout, drop_weights

# Harmless warnings of cuDNN and oneDNN about weights. They are ignored once, at import: a filter at every call would
# override the caller's own, and `catch_warnings` is not thread-safe.
IGNORED_WARNINGS = "RNN module weights are not part|LSTM with projections is not supported"
warnings.filterwarnings("ignore", IGNORED_WARNINGS, UserWarning)


class RecurrentOutput(NamedTuple):
    """Outputs of the top layer (B, T, O) and, on request, of every layer; the state at each sequence's end."""

    output: Tensor
    layers: tuple[Tensor, ...]
    state: State


class Recurrent(nn.Module):
    """A stack of layers. `make_cell(input_size)` creates one cell; `cells.make_cell("lstm", 512)` is such a function.

    bidirectional   each layer reads both ways and concatenates (forward first) before the next layer
    residual        a layer whose input and output sizes agree adds its input to its output
    dropout         between layers; `variational` uses one mask for all steps of a sequence
    weight_drop     DropConnect on the cells' recurrent weights
    fast            False always uses the reference
    """

    def __init__(
        self,
        make_cell: Callable[[int], Cell],
        *,
        input_size: int,
        layers: int = 1,
        bidirectional: bool = False,
        residual: bool = False,
        dropout: float = 0.0,
        variational: bool = False,
        weight_drop: float = 0.0,
        fast: bool = True,
    ):
        super().__init__()
        self.directions = 2 if bidirectional else 1
        self.residual = residual
        self.weight_drop = weight_drop
        self.fast = fast
        self.dropout = SequenceDropout(dropout, variational=variational)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            cells = [make_cell(input_size) for _ in range(self.directions)]
            input_size = sum(cell.output_size for cell in cells)
            self.layers.append(nn.ModuleList(cells))
        self.output_size = input_size

    @property
    def cells(self) -> list[list[Cell]]:
        """Cells by layer, the forward cell before the backward one."""
        return [list(layer) for layer in self.layers]  # type: ignore[call-overload]

    def initial_state(self, batch: int) -> State:
        """Return zeros: the states of all cells, layer by layer, forward before backward; each tensor is (B, size)."""
        return tuple(tensor for cells in self.cells for cell in cells for tensor in cell.initial_state(batch))

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None, *, every_layer: bool = False
    ) -> RecurrentOutput:
        """Run the stack on x (B, T, I) from a state as `initial_state`; lengths (B,), or None without padding.

        `every_layer` returns the outputs of all layers; without it the stack may run as one fused call.
        """
        tensors = iter(self.initial_state(x.shape[0]) if state is None else state)
        states = [tuple(next(tensors) for _ in cell.state_sizes) for cells in self.cells for cell in cells]
        fused = self.cells[0][0].fused
        has_shared_mask = self.dropout.variational and self.dropout.p > 0 and self.training
        if every_layer or not self.fast or fused is None or self.residual or has_shared_mask:
            run = self._run_layers(x, states, lengths)
            return run if every_layer else run._replace(layers=())
        weights = [self._drop_weights(cell) for cells in self.cells for cell in cells]
        shape = FusedShape(len(self.layers), self.directions, self.dropout.p if self.training else 0.0)
        y, states = unroll_fused(fused, shape, weights, x, states, lengths)
        return RecurrentOutput(y, (), flatten_states(states))

    def _run_layers(self, x: Tensor, states: list[State], lengths: Tensor | None) -> RecurrentOutput:
        if self.residual and lengths is not None:  # the added input must be zero past the end too
            padding = torch.arange(x.shape[1], device=x.device) >= lengths.to(x.device).unsqueeze(1)  # (B, T)
            x = x.masked_fill(padding.unsqueeze(2), 0.0)
        outputs: list[Tensor] = []
        new_states: list[State] = []
        for depth, cells in enumerate(self.cells):
            if depth:
                x = self.dropout(x)
            layer_states = states[depth * self.directions : (depth + 1) * self.directions]
            y, layer_states = self._run_layer(cells, x, layer_states, lengths)
            x = x + y if self.residual and x.shape == y.shape else y
            outputs.append(x)
            new_states += layer_states
        return RecurrentOutput(x, tuple(outputs), flatten_states(new_states))

    def _run_layer(
        self, cells: list[Cell], x: Tensor, states: list[State], lengths: Tensor | None
    ) -> tuple[Tensor, list[State]]:
        weights = [self._drop_weights(cell) for cell in cells]
        if self.fast and cells[0].fused is not None:
            return unroll_fused(cells[0].fused, FusedShape(1, self.directions, 0.0), weights, x, states, lengths)
        run = unroll_parallel if self.fast and cells[0].parallel else unroll
        runs = [
            run(cell, x, state, lengths, reverse=direction == 1, weights=w)
            for direction, (cell, state, w) in enumerate(zip(cells, states, weights, strict=True))
        ]
        return torch.cat([y for y, _ in runs], dim=-1), [state for _, state in runs]

    def _drop_weights(self, cell: Cell) -> list[Tensor]:
        if not (self.training and self.weight_drop):
            return cell.weights()
        return [
            drop_weights(weight, self.weight_drop, self.training) if name in cell.recurrent else weight
            for name, weight in cell.named_parameters(recurse=False)
        ]


class FusedShape(NamedTuple):
    """Numbers of layers and directions of a fused call, and the dropout between layers."""

    layers: int
    directions: int
    dropout: float


def unroll(
    cell: Cell,
    x: Tensor,
    state: State,
    lengths: Tensor | None = None,
    *,
    reverse: bool = False,
    weights: Sequence[Tensor] | None = None,
) -> tuple[Tensor, State]:
    """Step one cell through x (B, T, I), from each sequence's end with `reverse`; return y (B, T, O) and the state.

    Past a sequence's end the state does not change and the output is zero.
    """
    weights = weights or cell.weights()
    steps = range(x.shape[1] - 1, -1, -1) if reverse else range(x.shape[1])
    inputs = cell.from_input(x, weights).unbind(dim=1)
    outputs = list(inputs)
    for t in steps:
        new_state = cell.next_state(cell.step(inputs[t], state, weights))
        y = new_state[0]
        if lengths is not None:
            mask = (t < lengths.to(x.device)).unsqueeze(1)  # (B, 1)
            y = torch.where(mask, y, 0.0)
            new_state = tuple(torch.where(mask, new, old) for new, old in zip(new_state, state, strict=True))
        outputs[t], state = y, new_state
    return torch.stack(outputs, dim=1), state


def unroll_parallel(
    cell: Cell,
    x: Tensor,
    state: State,
    lengths: Tensor | None = None,
    *,
    reverse: bool = False,
    weights: Sequence[Tensor] | None = None,
) -> tuple[Tensor, State]:
    """Compute `unroll` for a cell that computes all steps at once."""
    weights = weights or cell.weights()
    batch, steps = x.shape[:2]
    rows, time = torch.arange(batch, device=x.device).unsqueeze(1), torch.arange(steps, device=x.device)
    sizes = torch.full((batch, 1), steps, device=x.device) if lengths is None else lengths.to(x.device).unsqueeze(1)
    mask = time < sizes  # (B, T)
    order = torch.where(mask, sizes - 1 - time, time) if reverse else time.expand(batch, -1)
    states = cell.sequence(cell.from_input(x[rows, order], weights), state, weights)
    paths = [torch.cat([old.unsqueeze(1), new], dim=1) for old, new in zip(state, states, strict=True)]
    final = tuple(path[rows, sizes][:, 0] for path in paths)
    return torch.where(mask.unsqueeze(2), states[0][rows, order], 0.0), final


def unroll_fused(
    name: str, shape: FusedShape, weights: list[list[Tensor]], x: Tensor, states: list[State], lengths: Tensor | None
) -> tuple[Tensor, list[State]]:
    """Compute `unroll` for all layers by torch's fused `lstm`, `gru`, `rnn_tanh` or `rnn_relu`.

    `weights` and `states` are layer by layer, forward before backward. Return y (B, T, O) and the states.
    """
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):  # torch's own casting of fused recurrences supports float16 only
        dtype = torch.get_autocast_dtype(x.device.type)
    x, parameters = x.to(dtype), [w.to(dtype) for cell in weights for w in cell]
    start = [torch.stack(tensors).to(dtype) for tensors in zip(*states, strict=True)]  # each (cells, B, size)
    training = torch.is_grad_enabled()  # cuDNN saves tensors for a backward pass only when training
    flags = (True, shape.layers, shape.dropout, training, shape.directions == 2)
    fused = getattr(torch, name)
    with torch.autocast(x.device.type, enabled=False):
        if lengths is None:
            y, *final = fused(x, _unwrap_single(start), parameters, *flags, True)
        else:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            start = [tensor.index_select(1, packed.sorted_indices) for tensor in start]  # type: ignore[arg-type]
            data, *final = fused(packed.data, packed.batch_sizes, _unwrap_single(start), parameters, *flags)
            packed = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            y, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
            final = [tensor.index_select(1, packed.unsorted_indices) for tensor in final]
    final = [tensor.to(state.dtype) for tensor, state in zip(final, states[0], strict=True)]
    return y, [tuple(tensor[cell] for tensor in final) for cell in range(len(weights))]


def _unwrap_single(tensors: list[Tensor]) -> Tensor | list[Tensor]:
    """Return the form that torch expects: a list for the two states of the LSTM, a tensor for one state."""
    return tensors if len(tensors) == 2 else tensors[0]


def flatten_states(states: list[State]) -> State:
    """Concatenate the states of several cells."""
    return tuple(tensor for state in states for tensor in state)

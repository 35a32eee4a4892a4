"""Stacks of recurrent layers of any cell: directions, padding, residual connections, dropout.

`unroll` is the reference; `unroll_fused` (oneDNN or cuDNN) and `unroll_scan` are used if the cell has them. With
`lengths`, both directions read a sequence to its end; outputs past the end are exactly zero and the final state is that
at each sequence's end, so nothing depends on the other sequences of the batch.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from relmo.nn.dropout import SequenceDropout
from relmo.nn.pooling import mask_padding
from relmo.nn.recurrence.base import Cell, State

# Harmless warnings of cuDNN and oneDNN about weights. They are ignored once, at import: a filter at every call would
# override the caller's own, and `catch_warnings` is not thread-safe.
IGNORED_WARNINGS = "RNN module weights are not part|LSTM with projections is not supported"
warnings.filterwarnings("ignore", IGNORED_WARNINGS, UserWarning)


FUSED = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
"""Parameters of torch's fused functions, in their order."""


class RecurrentOutput(NamedTuple):
    """Outputs of the top layer (B, T, O) and, on request, of every layer; the state at each sequence's end."""

    output: Tensor
    layers: tuple[Tensor, ...]
    state: State


class Recurrent(nn.Module):
    """A stack of layers. `make_cell(input_size)` creates one cell; `make_cell("lstm", 512)` returns such a function.
    Layers of different sizes have one function each, in a list.

    bidirectional   each layer reads both ways and concatenates (forward first) before the next layer
    residual        a layer whose input and output sizes agree adds its input to its output
    dropout         between layers; `variational` uses one mask for all steps of a sequence
    weight_drop     DropConnect on the cells' recurrent weights
    fast            False always uses the reference
    """

    def __init__(
        self,
        make_cell: Callable[[int], Cell] | Sequence[Callable[[int], Cell]],
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
        self.residual, self.weight_drop, self.fast = residual, weight_drop, fast
        self.dropout = SequenceDropout(dropout, variational=variational)
        self.layers = nn.ModuleList()
        for make in [make_cell] * layers if callable(make_cell) else make_cell:
            cells = [make(input_size) for _ in range(self.directions)]
            input_size = sum(cell.output_size for cell in cells)
            self.layers.append(nn.ModuleList(cells))
        self.output_size = input_size

    @property
    def cells(self) -> list[list[Cell]]:
        """Cells by layer, the forward cell before the backward one."""
        return [list(layer) for layer in self.layers]  # type: ignore[call-overload]

    def initial_state(self, batch: int) -> State:
        """Return the initial states of all cells, layer by layer, forward before backward; each is (B, *shape)."""
        return tuple(tensor for cells in self.cells for cell in cells for tensor in cell.initial_state(batch))

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None, *, every_layer: bool = False
    ) -> RecurrentOutput:
        """Run the stack on x (B, T, I) from a state as `initial_state`; lengths (B,), or None without padding.

        `every_layer` returns the outputs of all layers; without it the stack may run as one fused call.
        """
        tensors = iter(self.initial_state(x.shape[0]) if state is None else state)
        states = [tuple(next(tensors) for _ in cell.states) for cells in self.cells for cell in cells]
        fused = self.cells[0][0].fused
        has_shared_mask = self.dropout.variational and self.dropout.p > 0 and self.training
        has_equal_layers = len({cells[0].output_size for cells in self.cells}) == 1
        is_one_call = has_equal_layers and not (every_layer or self.residual or has_shared_mask)
        if self.fast and fused is not None and is_one_call:
            weights = [self._drop_weights(cell) for cells in self.cells for cell in cells]
            p = self.dropout.p if self.training else 0.0
            y, states = unroll_fused(fused, weights, x, states, lengths, directions=self.directions, dropout=p)
            return RecurrentOutput(y, (), tuple(chain(*states)))
        if self.residual and lengths is not None:  # the added input must be zero past the end too
            x = mask_padding(x, lengths)
        outputs: list[Tensor] = []
        new_states: list[State] = []
        for depth, cells in enumerate(self.cells):
            x = self.dropout(x) if depth else x
            weights = [self._drop_weights(cell) for cell in cells]
            before = states[depth * self.directions : (depth + 1) * self.directions]
            if self.fast and cells[0].fused is not None:
                y, after = unroll_fused(cells[0].fused, weights, x, before, lengths, directions=self.directions)
            else:
                if self.training and self.weight_drop:
                    cells = [cell.with_weights(dropped) for cell, dropped in zip(cells, weights, strict=True)]
                run = unroll_scan if self.fast and has_scan(cells[0]) else unroll
                runs = [run(cell, x, before[d], lengths, reverse=d == 1) for d, cell in enumerate(cells)]
                y, after = torch.cat([y for y, _ in runs], dim=-1), [state for _, state in runs]
            x = x + y if self.residual and x.shape == y.shape else y
            outputs.append(x)
            new_states += after
        return RecurrentOutput(x, tuple(outputs) if every_layer else (), tuple(chain(*new_states)))

    def _drop_weights(self, cell: Cell) -> dict[str, Tensor]:
        """Return the cell's weights, in training with DropConnect: one mask for all steps of a sequence."""
        if not (self.training and self.weight_drop):
            return cell.weights()
        return {
            name: dropout(weight, self.weight_drop) if name in cell.recurrent else weight
            for name, weight in cell.weights().items()
        }


def has_scan(cell: Cell) -> bool:
    """Whether a cell computes all steps at once."""
    return type(cell).scan is not Cell.scan


def expand_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask (B,) with as many dimensions as a tensor (B, …)."""
    return mask.view(-1, *[1] * (like.dim() - 1))


def unroll(
    cell: Cell, x: Tensor, state: State, lengths: Tensor | None, *, reverse: bool = False
) -> tuple[Tensor, State]:
    """Step one cell through x (B, T, I), from each sequence's end with `reverse`; return y (B, T, O) and the state."""
    inputs = cell.project_input(x).unbind(dim=1)
    cell, outputs = cell.for_many_steps(), list(inputs)
    for t in range(len(inputs))[:: -1 if reverse else 1]:
        y, new_state = cell.step(inputs[t], state)
        if lengths is not None:
            mask = t < lengths.to(x.device)  # (B,)
            y = torch.where(expand_mask(mask, y), y, 0.0)
            pairs = zip(new_state, state, strict=True)
            new_state = tuple(torch.where(expand_mask(mask, new), new, old) for new, old in pairs)
        outputs[t], state = y, new_state
    return torch.stack(outputs, dim=1), state


def unroll_scan(
    cell: Cell, x: Tensor, state: State, lengths: Tensor | None, *, reverse: bool = False
) -> tuple[Tensor, State]:
    """Compute `unroll` for a cell that computes all steps at once."""
    if lengths is None:
        y, state = cell.scan(cell.project_input(x.flip(1) if reverse else x), state)
        return y.flip(1) if reverse else y, state
    batch, steps = x.shape[:2]
    rows, time = torch.arange(batch, device=x.device).unsqueeze(1), torch.arange(steps, device=x.device)
    sizes = lengths.to(x.device).unsqueeze(1)
    mask = time < sizes  # (B, T)
    order = torch.where(mask, sizes - 1 - time, time) if reverse else None
    y, state = cell.scan(cell.project_input(x if order is None else x[rows, order]), state, mask)
    return torch.where(mask.unsqueeze(2), y if order is None else y[rows, order], 0.0), state


def run_cell(
    cell: Cell, x: Tensor, state: State, lengths: Tensor | None, *, reverse: bool = False, fast: bool = True
) -> tuple[Tensor, State]:
    """Compute `unroll` by the fastest function that the cell has."""
    if not fast or cell.fused is None:
        run = unroll_scan if fast and has_scan(cell) else unroll
        return run(cell, x, state, lengths, reverse=reverse)
    x = reverse_sequences(x, lengths) if reverse else x
    y, (state,) = unroll_fused(cell.fused, [cell.weights()], x, [state], lengths)
    return reverse_sequences(y, lengths) if reverse else y, state


def reverse_sequences(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse each sequence of x (B, T, …); positions past its end stay in place."""
    if lengths is None:
        return x.flip(1)
    time, sizes = torch.arange(x.shape[1], device=x.device), lengths.to(x.device).unsqueeze(1)
    order = torch.where(time < sizes, sizes - 1 - time, time)  # (B, T)
    return x[torch.arange(len(x), device=x.device).unsqueeze(1), order]


def unroll_fused(
    name: str,
    weights: Sequence[Mapping[str, Tensor]],
    x: Tensor,
    states: list[State],
    lengths: Tensor | None,
    *,
    directions: int = 1,
    dropout: float = 0.0,
) -> tuple[Tensor, list[State]]:
    """Compute `unroll` for all layers, forward before backward in each, by torch's fused function of this name."""
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):  # torch's own casting of fused recurrences supports float16 only
        dtype = torch.get_autocast_dtype(x.device.type)
    x, parameters = x.to(dtype), [cell[name].to(dtype) for cell in weights for name in FUSED if name in cell]
    start = [torch.stack(tensors).to(dtype) for tensors in zip(*states, strict=True)]  # each (cells, B, size)
    training = torch.is_grad_enabled()  # cuDNN saves tensors for a backward pass only when training
    flags = (True, len(weights) // directions, dropout, training, directions == 2)
    fused, has_memory = getattr(torch, name), len(start) == 2  # torch expects a list of the LSTM's two states
    with torch.autocast(x.device.type, enabled=False):
        if lengths is None:
            y, *final = fused(x, start if has_memory else start[0], parameters, *flags, True)
        else:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            start = [tensor.index_select(1, packed.sorted_indices) for tensor in start]  # type: ignore[arg-type]
            initial = start if has_memory else start[0]
            data, *final = fused(packed.data, packed.batch_sizes, initial, parameters, *flags)
            packed = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            y, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
            final = [tensor.index_select(1, packed.unsorted_indices) for tensor in final]
    final = [tensor.to(state.dtype) for tensor, state in zip(final, states[0], strict=True)]
    return y, [tuple(tensor[cell] for tensor in final) for cell in range(len(weights))]

"""Stacks of recurrent layers over any cell: directions, padding, residual connections, dropout.

`unroll` is the definition: one cell stepped through time in plain Python. `unroll_fused` hands a whole layer to torch's fused
kernels (oneDNN on a CPU, cuDNN on a GPU) and is taken automatically where they compute the same thing: every cell without
clips. The state is explicit: nothing is kept between calls.

Padding: with `lengths`, a sequence is read to its end and no further, in both directions; outputs past the end are exactly
zero and the final state is the one at each sequence's own end, so nothing depends on the batch mates.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from relmo.nn.cells import Cell, State
from relmo.nn.dropout import SequenceDropout, drop_weights


class RecurrentOutput(NamedTuple):
    """The top layer's outputs (B, T, O), every layer's outputs, and the state after each sequence's last step."""

    output: Tensor
    layers: tuple[Tensor, ...]
    state: State


class Recurrent(nn.Module):
    """A stack of layers. `make_cell(input_size)` makes one cell: `partial(LSTMCell, hidden_size=512)`.

    bidirectional   each layer reads both ways and concatenates (forward first) before the next layer
    residual        a layer whose input and output sizes agree adds its input to its output
    dropout         between layers; `variational` holds one mask over all steps of a sequence
    weight_drop     DropConnect on the recurrent weights W_hh
    fast            False steps through the written-out cells always
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
            cells = nn.ModuleList(make_cell(input_size) for _ in range(self.directions))
            input_size = sum(cell.output_size for cell in cells)  # type: ignore[misc]
            self.layers.append(cells)
        self.output_size = input_size

    def initial_state(self, batch: int) -> State:
        """Zeros: the cells' states side by side, layer by layer, forward before backward; each tensor is (B, size)."""
        return tuple(tensor for cells in self.layers for cell in cells for tensor in cell.initial_state(batch))  # type: ignore[union-attr,operator,attr-defined]

    def forward(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> RecurrentOutput:
        """x (B, T, I), state as `initial_state`, lengths (B,) or None where every sequence fills the batch."""
        tensors = iter(self.initial_state(x.shape[0]) if state is None else state)
        outputs: list[Tensor] = []
        new_state: list[Tensor] = []
        for cells in self.layers:
            if outputs:
                x = self.dropout(x)
            states = [tuple(next(tensors) for _ in cell.state_sizes) for cell in cells]  # type: ignore[attr-defined]
            y, states = self._run_layer(list(cells), x, states, lengths)  # type: ignore[call-overload]
            x = x + y if self.residual and x.shape == y.shape else y
            outputs.append(x)
            new_state.extend(tensor for state in states for tensor in state)
        return RecurrentOutput(x, tuple(outputs), tuple(new_state))

    def _run_layer(
        self, cells: list[Cell], x: Tensor, states: list[State], lengths: Tensor | None
    ) -> tuple[Tensor, list[State]]:
        weights = [self._dropped(cell.weights()) for cell in cells]
        if self.fast and cells[0].fused is not None:
            return unroll_fused(cells[0].fused, weights, x, states, lengths)
        runs = [
            unroll(cell, x, state, lengths, reverse=direction == 1, weights=w)
            for direction, (cell, state, w) in enumerate(zip(cells, states, weights, strict=True))
        ]
        return torch.cat([y for y, _ in runs], dim=-1), [state for _, state in runs]

    def _dropped(self, weights: list[Tensor]) -> list[Tensor]:
        W_ih, W_hh, *rest = weights
        return [W_ih, drop_weights(W_hh, self.weight_drop, self.training), *rest]


def unroll(
    cell: Cell,
    x: Tensor,
    state: State,
    lengths: Tensor | None = None,
    *,
    reverse: bool = False,
    weights: Sequence[Tensor] | None = None,
) -> tuple[Tensor, State]:
    """Steps one cell through x (B, T, I); `reverse` reads from each sequence's end to its beginning. -> y (B, T, O), state.

    Beyond a sequence's end the state stands still and the output is zero.
    """
    steps = range(x.shape[1] - 1, -1, -1) if reverse else range(x.shape[1])
    inputs = x.unbind(dim=1)
    outputs = list(inputs)
    for t in steps:
        y, new_state = cell(inputs[t], state, weights)
        if lengths is not None:
            inside = (t < lengths.to(x.device)).unsqueeze(1)  # (B, 1)
            y = torch.where(inside, y, 0.0)
            new_state = tuple(torch.where(inside, new, old) for new, old in zip(new_state, state, strict=True))
        outputs[t], state = y, new_state
    return torch.stack(outputs, dim=1), state


def unroll_fused(
    name: str, weights: list[list[Tensor]], x: Tensor, states: list[State], lengths: Tensor | None
) -> tuple[Tensor, list[State]]:
    """The same as `unroll` for one layer of one or two directions, by torch's fused `lstm`, `gru`, `rnn_tanh` or `rnn_relu`."""
    precision = x.dtype
    if torch.is_autocast_enabled(x.device.type):  # torch's own casting of fused recurrences knows float16 only
        precision = torch.get_autocast_dtype(x.device.type)
    flat = [w.to(precision) for direction in weights for w in direction]
    stacked = [
        torch.stack(tensors).to(precision) for tensors in zip(*states, strict=True)
    ]  # each (directions, B, size)
    flags = (
        True,
        1,
        0.0,
        torch.is_grad_enabled(),
        len(weights) == 2,
    )  # biases, layers, dropout, training, bidirectional
    fused = getattr(torch, name)
    with torch.autocast(x.device.type, enabled=False):
        if lengths is None:
            y, *final = fused(x.to(precision), initial(stacked), flat, *flags, True)
        else:
            packed = pack_padded_sequence(x.to(precision), lengths.cpu(), batch_first=True, enforce_sorted=False)
            start = [tensor.index_select(1, packed.sorted_indices) for tensor in stacked]  # type: ignore[arg-type]
            data, *final = fused(packed.data, packed.batch_sizes, initial(start), flat, *flags)
            packed = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            y, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
            final = [tensor.index_select(1, packed.unsorted_indices) for tensor in final]  # type: ignore[arg-type]
    final = [tensor.to(state.dtype) for tensor, state in zip(final, states[0], strict=True)]
    return y, [tuple(tensor[direction] for tensor in final) for direction in range(len(weights))]


def initial(tensors: list[Tensor]) -> Tensor | list[Tensor]:
    """torch takes the LSTM's two state tensors as a list, the other cells' one by itself."""
    return tensors if len(tensors) == 2 else tensors[0]

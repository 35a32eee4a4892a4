"""Two independent stacks of any recurrent cell, one for each direction: the layers of a biLM whose cell is not ELMo's.

    y_l = W_hr h_l                                   (h is carried without the projection; y_l = h_l if the sizes agree)
    out_0 = y_0;   out_l = y_l + out_{l-1}  for l >= 1, with skip connections

The layout is that of `ElmoLSTM`: a leading 2 for the directions, the input of the backward one reversed in advance, and
sequences sorted by length, longest first, of which `sizes[t]` are active at step t.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relmo.nn.dropout import drop
from relmo.nn.kernels.lstm_step import Gates, lengths_of
from relmo.nn.quantize import Precision
from relmo.nn.recurrence.base import Cell, State
from relmo.nn.recurrence.elmo_lstm import ElmoLSTMOutput
from relmo.nn.recurrence.stack import run_cell

ROWS = 32
"""Inference runs multiples of so many rows, or of half as many if the units of every quantity are even in number.
torch's products then give a row the same bits for any number of rows (in layers of at least 12 units), and since loops
take 32 numbers at a time, sigmoid and tanh are never computed by the function for the remainder, which rounds
differently."""


class BidirectionalLayer(nn.Module):
    """One layer: a cell for each direction, and the projections of their outputs, if they have another size."""

    def __init__(self, make_cell: Callable[[int], Cell], input_size: int, output_size: int):
        super().__init__()
        self.directions = nn.ModuleList(make_cell(input_size) for _ in range(2))
        size = self.cells[0].output_size
        self.weight_hr = None
        if size != output_size:
            self.weight_hr = nn.Parameter(torch.empty(2, output_size, size))
            bound = math.sqrt(6 / (size + output_size))  # Glorot & Bengio 2010
            nn.init.uniform_(self.weight_hr, -bound, bound)

    @property
    def cells(self) -> list[Cell]:
        """The forward and the backward cell."""
        return list(self.directions)  # type: ignore[arg-type]

    def input_gates(self, x: Tensor) -> Tensor:
        """Return the part of a step that depends on the input x (2, …, I) alone, (2, …, G)."""
        return torch.stack([cell.project_input(side) for cell, side in zip(self.cells, x, strict=True)])

    def project(self, y: Tensor) -> Tensor:
        """Return the layer's output (2, T, B, P) from the outputs of the cells (2, T, B, O)."""
        if self.weight_hr is None:
            return y
        return torch.bmm(y.flatten(1, 2), self.weight_hr.transpose(1, 2)).view(*y.shape[:3], -1)


class BidirectionalStacks(nn.Module):
    """The two stacks. The state is a flat tuple, layer by layer the states of the cell, each (B, 2, *shape)."""

    def __init__(
        self,
        make_cell: Callable[[int], Cell],
        *,
        size: int,
        layers: int,
        skip_connections: bool,
        dropout: float = 0.0,
        fast: bool = True,
    ):
        super().__init__()
        self.skip_connections, self.dropout, self.fast = skip_connections, dropout, fast
        self.input_size = self.output_size = size
        self.layers = nn.ModuleList(BidirectionalLayer(make_cell, size, size) for _ in range(layers))
        is_even = all(units % 2 == 0 for units in self.stack[0].cells[0].sizes.values())
        self.rows = ROWS // 2 if is_even else ROWS

    @property
    def stack(self) -> list[BidirectionalLayer]:
        """The layers from the bottom up."""
        return list(self.layers)  # type: ignore[arg-type]

    def describe(self) -> str:
        """Return the name of the cell and the options that change its equations."""
        return self.stack[0].cells[0].describe()

    def initial_state(self, batch: int) -> State:
        """Return the state before the first step."""
        sides = (zip(*(cell.initial_state(batch) for cell in layer.cells), strict=True) for layer in self.stack)
        return tuple(torch.stack(pair, dim=1) for layer in sides for pair in layer)

    def _split_state(self, state: State | None, batch: int) -> list[list[State]]:
        """Return the states of each cell, by layer and direction."""
        tensors = iter(self.initial_state(batch) if state is None else state)
        by_layer = ([next(tensors) for _ in layer.cells[0].states] for layer in self.stack)
        return [[tuple(tensor[:, d] for tensor in tensors) for d in range(2)] for tensors in by_layer]

    def forward(self, x: Tensor, state: State | None = None, sizes: Sequence[int] | None = None) -> ElmoLSTMOutput:
        """Run the stacks on x (2, T, B, I), reversed for the backward direction; `sizes` if the lengths differ."""
        batch, lengths = x.shape[2], None
        if sizes is not None and list(sizes[-1:]) != [batch]:
            lengths = lengths_of(sizes, batch)
        states = self._split_state(state, batch)
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        for depth, layer in enumerate(self.stack):
            x = drop(x, self.dropout, self.training)
            sides = []
            for cell, side, start in zip(layer.cells, x.transpose(1, 2), states[depth], strict=True):
                sides.append(run_cell(cell, side, start, lengths, fast=self.fast))
            y = layer.project(torch.stack([y for y, _ in sides]).transpose(1, 2))
            x = x + y if depth and self.skip_connections else y
            outputs.append(x)
            # in the precision of the state before: autocast may have changed it
            pairs = zip(*(final for _, final in sides), states[depth][0], strict=True)
            finals += [torch.stack(pair, dim=1).to(before.dtype) for *pair, before in pairs]
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

        gates (2, S, G) is the table; words (2, T, B) are the rows that each direction reads at each step. The cells
        step through time with multiples of ROWS rows, so that a row's bits depend neither on the other rows nor on the
        pieces in which a sequence is read.
        """
        steps, batch = words.shape[1:]
        sizes = [batch] * steps if sizes is None else list(sizes)
        padding = -batch % self.rows
        state = self.initial_state(batch) if state is None else state
        state = tuple(torch.cat(pair) for pair in zip(state, self.initial_state(padding), strict=True))
        states = self._split_state(state, batch + padding)
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        with torch.autocast(gates.device.type, enabled=False):
            for depth, layer in enumerate(self.stack):
                if depth:
                    projected = layer.input_gates(outputs[-1])
                else:
                    projected = Gates(gates, pad(words, (0, padding))).rows()
                padded_sizes = [size + -size % self.rows for size in sizes]
                runs = map(_step_rows, layer.cells, projected, states[depth], [sizes] * 2, [padded_sizes] * 2)
                sides, final = zip(*runs, strict=True)
                y = layer.project(torch.stack(sides))
                outputs.append(outputs[-1] + y if depth and self.skip_connections else y)
                finals += [torch.stack(pair, dim=1)[:batch] for pair in zip(*final, strict=True)]
        return ElmoLSTMOutput(tuple(layer[:, :, :batch] for layer in outputs), tuple(finals))


def _step_rows(
    cell: Cell, projected: Tensor, state: State, sizes: Sequence[int], padded_sizes: Sequence[int]
) -> tuple[Tensor, State]:
    """Step a cell through its projected input (T, B, G), of which `padded_sizes[t]` rows are computed at step t and
    `sizes[t]` kept; return the outputs (T, B, O) and the state at each row's end."""
    outputs = projected.new_zeros(*projected.shape[:2], cell.output_size)
    for t, (size, rows) in enumerate(zip(sizes, padded_sizes, strict=True)):
        y, new_state = cell.step(projected[t, :rows], tuple(tensor[:rows] for tensor in state))
        outputs[t, :size] = y[:size]
        pairs = zip(new_state, state, strict=True)
        state = tuple(new if size == len(old) else torch.cat([new[:size], old[size:]]) for new, old in pairs)
    return outputs, state

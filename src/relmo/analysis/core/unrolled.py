"""Recurrent layers stepped through with every state a node of the graph: anything can be differentiated by any state.

    layers = unrollable(network)                       of relmo's language models, or torch's nn.RNN, nn.GRU, nn.LSTM
    run = unroll(layers, x, initial_states(layers, batch))
    torch.autograd.grad(run.output[-1].sum(), run.gates[0][3].h)

torch's fused recurrences show neither gates nor the states between the first and the last. So the steps are those of
`nn.cells`, the definition that the fused ones are tested against, on the network's own weights, in double precision by
default: products of many small Jacobians leave float32's range.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from relmo.analysis.core.stack import Layer, Stack, stack_of
from relmo.errors import ModelError
from relmo.nn.cells import Cell, ElmanCell, ElmanGates, GRUCell, GRUGates, LSTMCell, LSTMGates, State

Gates = ElmanGates | GRUGates | LSTMGates
CELLS = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "elman", "rnn_relu": "elman"}
GATES = {"lstm": "ifgo", "gru": "rzn", "elman": "h"}
"""The blocks of rows that a cell's weights stack, in their order."""


@dataclass(frozen=True)
class UnrolledLayer:
    """One layer, one direction: a cell's equations and the weights to compute them with."""

    cell: Cell
    weights: list[Tensor]
    adds_input: bool

    @property
    def kind(self) -> str:
        """elman, gru or lstm."""
        return CELLS[self.cell.fused or "lstm"]  # clipped LSTMs have no fused twin

    @property
    def states(self) -> tuple[str, ...]:
        """The names of what is carried."""
        return ("h", "c") if self.kind == "lstm" else ("h",)

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.cell.hidden_size

    def gates(self, x: Tensor, state: State) -> Gates:
        """Reads x (B, I) from the state: every quantity of the cell's equations."""
        return self.cell.gates(x, state, self.weights)  # type: ignore[operator]

    def next_state(self, gates: Gates) -> State:
        """What of it is carried."""
        return tuple(getattr(gates, name) for name in self.states)

    def recurrent_matrices(self) -> dict[str, Tensor]:
        """The square matrix by which each gate reads h, by the gate's letter: W_hh (H, H) or, where there is a
        projection, W_hr W_hh (P, P), whose eigenvalues are those of W_hh W_hr."""
        gates = zip(GATES[self.kind], self.weights[1].split(self.hidden_size), strict=True)
        return {gate: W_hh if len(self.weights) < 5 else self.weights[4] @ W_hh for gate, W_hh in gates}


class Unrolled(NamedTuple):
    """What was computed: what each layer read (B, T, I), every layer's gates step by step, the top layer's outputs step
    by step, each (B, O), and each layer's state after the last step."""

    inputs: list[Tensor]
    gates: list[list[Gates]]
    output: list[Tensor]
    states: list[State]


def unrollable(
    network: nn.Module, *, direction: int = 0, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> list[UnrolledLayer]:
    """The recurrent layers of a network, from the bottom up; `direction` 1 is a bidirectional language model's backward
    one. The weights are copies that ask for no gradient."""
    stack = stack_of(network)
    if stack.directions == 2 and stack.joined:
        raise ModelError(
            "its layers read both directions of the layer below, so that there is no lag to follow; "
            "give a network that reads one way, or a bidirectional language model, whose directions are apart"
        )
    return [_unrolled_layer(stack, depth, direction, dtype, device) for depth in range(len(stack.layers))]


def _unrolled_layer(
    stack: Stack, depth: int, direction: int, dtype: torch.dtype, device: torch.device | None
) -> UnrolledLayer:
    """One of a stack's layers."""
    layer = stack.layers[depth]
    tensors = [layer.ih, layer.hh, layer.b_ih, layer.b_hh, *([] if layer.hr is None else [layer.hr])]
    weights = [tensor[direction].detach().to(dtype=dtype, device=device) for tensor in tensors]
    adds = (stack.residual == "above the first" and depth > 0) or (
        stack.residual == "where sizes agree" and layer.ih.shape[2] == layer.hh.shape[2]
    )
    return UnrolledLayer(_bare_cell(layer), weights, adds)


def _bare_cell(layer: Layer) -> Cell:
    """A cell of a layer's kind and sizes without memory for weights of its own."""
    inputs, hidden = layer.ih.shape[2], layer.ih.shape[1] // {"lstm": 4, "gru": 3}.get(layer.kind, 1)
    with torch.device("meta"):
        if layer.kind == "gru":
            return GRUCell(inputs, hidden)
        if layer.kind != "lstm":
            return ElmanCell(inputs, hidden, nonlinearity="tanh" if layer.kind == "rnn_tanh" else "relu")
        return LSTMCell(
            inputs,
            hidden,
            projection=None if layer.hr is None else layer.hr.shape[1],
            cell_clip=layer.cell_clip,
            projection_clip=layer.projection_clip,
        )


def initial_states(layers: Sequence[UnrolledLayer], batch: int) -> list[State]:
    """Zeros, each layer's by itself."""
    return [tuple(layer.weights[1].new_zeros(batch, size) for size in layer.cell.state_sizes) for layer in layers]


def unroll(layers: Sequence[UnrolledLayer], x: Tensor, states: Sequence[State]) -> Unrolled:
    """Steps the layers through x (B, T, I) from these states on."""
    inputs: list[Tensor] = []
    kept: list[list[Gates]] = []
    finals: list[State] = []
    x = x.to(layers[0].weights[0])
    outputs = list(x.unbind(1))
    for layer, state in zip(layers, states, strict=True):
        inputs.append(x if not inputs else torch.stack(outputs, dim=1))
        steps: list[Gates] = []
        read, outputs = outputs, []
        for x_t in read:
            gates = layer.gates(x_t, state)
            state = layer.next_state(gates)
            steps.append(gates)
            outputs.append(gates.h + x_t if layer.adds_input else gates.h)
        kept.append(steps)
        finals.append(state)
    return Unrolled(inputs, kept, outputs, finals)

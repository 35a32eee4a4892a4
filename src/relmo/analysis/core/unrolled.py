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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relmo.analysis.core.stack import Stack, stack_of
from relmo.errors import ModelError
from relmo.nn.cells import Cell, State


@dataclass(frozen=True)
class UnrolledLayer:
    """One layer, one direction: a cell's equations and the weights to compute them with."""

    cell: Cell
    weights: list[Tensor]
    adds_input: bool

    def gates(self, x: Tensor, state: State) -> Any:
        """Reads x (B, I) from the state: every quantity of the cell's equations."""
        return self.cell.gates(x, state, self.weights)

    def recurrent_matrices(self) -> dict[str, Tensor]:
        """The square matrix by which each gate reads h, by the gate's letter: W_hh (H, H) or, where there is a
        projection, W_hr W_hh (P, P), whose eigenvalues are those of W_hh W_hr."""
        W_hr = self.cell.projection_matrix(self.weights)
        matrices = self.cell.recurrent_matrices(self.weights)
        return matrices if W_hr is None else {gate: W_hr @ W_hh for gate, W_hh in matrices.items()}


class Unrolled(NamedTuple):
    """What was computed: what each layer read (B, T, I), every layer's gates step by step, the top layer's outputs step
    by step, each (B, O), and each layer's state after the last step."""

    inputs: list[Tensor]
    gates: list[list[Any]]
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
    weights = [tensor.detach().to(dtype=dtype, device=device) for tensor in layer.weights[direction]]
    adds = (stack.residual == "above the first" and depth > 0) or (
        stack.residual == "where sizes agree" and layer.cell.input_size == layer.cell.output_size
    )
    return UnrolledLayer(layer.cell, weights, adds)


def initial_states(layers: Sequence[UnrolledLayer], batch: int) -> list[State]:
    """Zeros, each layer's by itself."""
    return [tuple(layer.weights[0].new_zeros(batch, size) for size in layer.cell.state_sizes) for layer in layers]


def unroll(layers: Sequence[UnrolledLayer], x: Tensor, states: Sequence[State]) -> Unrolled:
    """Steps the layers through x (B, T, I) from these states on."""
    inputs: list[Tensor] = []
    kept: list[list[Any]] = []
    finals: list[State] = []
    x = x.to(layers[0].weights[0])
    outputs = list(x.unbind(1))
    for layer, state in zip(layers, states, strict=True):
        inputs.append(x if not inputs else torch.stack(outputs, dim=1))
        steps: list[Any] = []
        read, outputs = outputs, []
        for x_t in read:
            gates = layer.gates(x_t, state)
            state = layer.cell.next_state(gates)
            steps.append(gates)
            outputs.append(gates.h + x_t if layer.adds_input else gates.h)
        kept.append(steps)
        finals.append(state)
    return Unrolled(inputs, kept, outputs, finals)

"""Recurrent layers unrolled with every state as a node of the graph, to differentiate by any state.

    layers = unroll_layers(network)                    # relmo's language models, or torch's nn.RNN, nn.GRU, nn.LSTM
    run = unroll(layers, x, zero_states(layers, batch))
    torch.autograd.grad(run.output[-1].sum(), run.gates[0][3].h)

torch's fused recurrences expose neither gates nor intermediate states. The steps here are those of `nn.cells`, which
the fused ones are tested against, with the network's weights, in double precision by default: products of many small
Jacobians leave the range of float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relmo.analysis.core.stack import build_stack
from relmo.errors import ModelError
from relmo.nn.cells import Cell, State


@dataclass(frozen=True)
class UnrolledLayer:
    """One direction of a layer: the cell's equations and its weights."""

    cell: Cell
    weights: list[Tensor]
    adds_input: bool

    def gates(self, x: Tensor, state: State) -> Any:
        """Read x (B, I) and return every quantity of the cell's equations."""
        return self.cell.gates(x, state, self.weights)

    def recurrent_matrices(self) -> dict[str, Tensor]:
        """Return the square matrix by which each gate reads h, by the gate's letter.

        It is W_hh (H, H), or with a projection W_hr W_hh (P, P), which has the eigenvalues of W_hh W_hr.
        """
        W_hr = self.cell.projection_matrix(self.weights)
        matrices = self.cell.recurrent_matrices(self.weights)
        return matrices if W_hr is None else {gate: W_hr @ W_hh for gate, W_hh in matrices.items()}


class Unrolled(NamedTuple):
    """Outcome of unrolling.

    inputs    of each layer (B, T, I)
    gates     quantities of each layer, step by step
    output    of the top layer, step by step, each (B, O)
    states    of each layer after the last step
    """

    inputs: list[Tensor]
    gates: list[list[Any]]
    output: list[Tensor]
    states: list[State]


def unroll_layers(
    network: nn.Module, *, direction: int = 0, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> list[UnrolledLayer]:
    """Return the recurrent layers of a network from the bottom up, with copies of the weights without gradients.

    `direction` 1 is the backward direction of a bidirectional language model.
    """
    stack = build_stack(network)
    if stack.directions == 2 and stack.joined:
        raise ModelError(
            "The layers read both directions of the layer below, so lags are undefined; use a unidirectional network "
            "or a bidirectional language model, whose directions are separate."
        )
    layers = []
    for depth, layer in enumerate(stack.layers):
        weights = [tensor.detach().to(dtype=dtype, device=device) for tensor in layer.weights[direction]]
        adds_input = stack.adds_input(depth, layer.cell.input_size, layer.cell.output_size)
        layers.append(UnrolledLayer(layer.cell, weights, adds_input))
    return layers


def zero_states(layers: Sequence[UnrolledLayer], batch: int) -> list[State]:
    """Return the initial state of each layer, zeros."""
    return [tuple(layer.weights[0].new_zeros(batch, size) for size in layer.cell.state_sizes) for layer in layers]


def unroll(layers: Sequence[UnrolledLayer], x: Tensor, states: Sequence[State]) -> Unrolled:
    """Step the layers through x (B, T, I) from these states."""
    x = x.to(layers[0].weights[0])
    run = Unrolled([], [], list(x.unbind(1)), [])
    for layer, state in zip(layers, states, strict=True):
        run.inputs.append(x if not run.inputs else torch.stack(run.output, dim=1))
        steps: list[Any] = []
        for t, x_t in enumerate(run.output):
            gates = layer.gates(x_t, state)
            state = layer.cell.next_state(gates)
            steps.append(gates)
            run.output[t] = gates.h + x_t if layer.adds_input else gates.h
        run.gates.append(steps)
        run.states.append(state)
    return run

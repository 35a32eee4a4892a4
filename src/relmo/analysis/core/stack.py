"""Recurrent layers of any network as cells and weights, run with every quantity of every step recorded.

    stack = build_stack(network)              # relmo's language models, or torch's nn.RNN, nn.GRU, nn.LSTM
    run = stack.run(x, stack.initial_state(batch))
    run.quantities[layer]["c"]                # (D, T, B, H)

The D directions come first, each in its own reading order: the backward one starts at the end of the text.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relmo.errors import ModelError
from relmo.nn.cells import Cell, State, cell_class
from relmo.nn.elmo_lstm import ElmoLSTM
from relmo.nn.recurrent import Recurrent, unroll_fused

LayerState = tuple[Tensor, ...]
"""One tensor (D, B, size) for each state of the cell."""

TORCH_CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("lstm", {}),
    "GRU": ("gru", {}),
    "RNN_TANH": ("elman", {"nonlinearity": "tanh"}),
    "RNN_RELU": ("elman", {"nonlinearity": "relu"}),
}
"""Cell and its options by the mode of torch's modules."""


class Change(NamedTuple):
    """Edit x * scale + offset of a state after each step, before anything reads it; both are (D, 1 or B, size)."""

    scale: Tensor
    offset: Tensor


Changes = Mapping[tuple[int, str], Change]
"""Changes by layer and state."""


@dataclass(frozen=True)
class StackLayer:
    """One recurrent layer."""

    cell: Cell  # equations and metadata
    weights: list[list[Tensor]]  # of each direction, in the order of `Cell.weights`
    adds_input: bool = False  # a residual connection

    @property
    def projection(self) -> Tensor | None:
        """Matrix (P, H) of the forward direction that projects hidden units to h, if there is one."""
        return self.cell.projection_matrix(self.weights[0])

    def recurrent_matrices(self) -> dict[str, Tensor]:
        """Return the matrix by which each gate of the forward direction reads h, by its letter: W_hh (H, H), or with a
        projection W_hr W_hh (P, P), which has the eigenvalues of W_hh W_hr."""
        W_hr, matrices = self.projection, self.cell.matrices(self.cell.recurrent, self.weights[0])
        return matrices if W_hr is None else {gate: W_hr @ W_hh for gate, W_hh in matrices.items()}

    def no_change(self, state: str, rows: int = 1) -> Change:
        """Return the identity change of a state for this many rows, to be filled in."""
        scale = self.weights[0][0].new_ones(len(self.weights), rows, self.cell.sizes[state])
        return Change(scale, torch.zeros_like(scale))


class Run(NamedTuple):
    """Outcome of running a stack: lists with an entry per layer."""

    quantities: list[dict[str, Tensor]]  # by name, (D, T, B, size) in reading order and zero past the end of a text
    outputs: list[Tensor]  # in the same order; of joined directions (1, T, B, size) in text order
    states: list[LayerState]  # after the last step of each text


@dataclass(frozen=True)
class Stack:
    """Layers of a recurrent module and their wiring."""

    module: nn.Module
    layers: list[StackLayer]
    joined: bool = False  # a layer reads the concatenated outputs of both directions below it

    @property
    def directions(self) -> int:
        """Number of reading directions, 1 or 2."""
        return len(self.layers[0].weights)

    @property
    def like(self) -> Tensor:
        """One of the weights, as a reference for device and precision."""
        return self.layers[0].weights[0][0]

    def input_gates(self, x: Tensor) -> Tensor:
        """Return the part of the first layer's gates that depends on the input alone: (D, …, I) -> (D, …, G)."""
        layer = self.layers[0]
        return torch.stack([layer.cell.from_input(x[d], weights) for d, weights in enumerate(layer.weights)])

    def initial_state(self, batch: int) -> list[LayerState]:
        """Return zero states for a batch of this size."""
        return [
            tuple(self.like.new_zeros(self.directions, batch, size) for size in layer.cell.state_sizes)
            for layer in self.layers
        ]

    def run(
        self,
        x: Tensor,
        states: Sequence[LayerState] | None = None,
        lengths: Tensor | None = None,
        *,
        keep: Collection[str] = ("h",),
        changes: Changes | None = None,
        gates: Tensor | None = None,
    ) -> Run:
        """Run the layers over x (D, T, B, I), each direction in its reading order.

        lengths     (B,), of texts that end before the longest one
        keep        names of the quantities to record
        changes     edits of states after each step
        gates       the first layer's `input_gates` (D, T, B, G), if known; then only residual sums read x
        """
        num_steps, batch = (x if gates is None else gates).shape[1:3]
        states = self.initial_state(batch) if states is None else states
        inside = None
        if lengths is not None:
            time = torch.arange(num_steps, device=self.like.device)
            inside = time.unsqueeze(1) < lengths.to(time.device)  # (T, B)
        joined = self.joined and self.directions == 2
        run = Run([], [], [])
        for depth, layer in enumerate(self.layers):
            edits = {name: change for (place, name), change in (changes or {}).items() if place == depth}
            sides = []
            for d, weights in enumerate(layer.weights):
                start = tuple(tensor[d] for tensor in states[depth])
                known_gates = gates if depth == 0 else None
                if known_gates is None and layer.cell.fused is not None and not edits:
                    sides.append(_replay(layer.cell, weights, start, x[d], keep, lengths, inside))
                    continue
                projected = layer.cell.from_input(x[d], weights) if known_gates is None else known_gates[d]
                side_edits = {name: Change(scale[d], offset[d]) for name, (scale, offset) in edits.items()}
                sides.append(_step_through(layer.cell, weights, start, projected, keep, inside, side_edits))
            recorded, finals = zip(*sides, strict=True)
            columns = {name: [side[name] for side in recorded] for name in recorded[0]}
            # One direction is not copied.
            quantities = {k: torch.stack(v) if len(v) > 1 else v[0].unsqueeze(0) for k, v in columns.items()}
            h = quantities["h"]
            output = torch.cat([h[:1], reverse_time(h[1:], lengths)], dim=-1) if joined else h
            if layer.adds_input:
                skipped = x[:1] if joined else x
                output = output + (skipped if inside is None else skipped * inside.unsqueeze(2))
            run.quantities.append({name: tensor for name, tensor in quantities.items() if name in keep})
            run.outputs.append(output)
            run.states.append(
                tuple(torch.stack(v) if len(v) > 1 else v[0].unsqueeze(0) for v in zip(*finals, strict=True))
            )
            x = torch.cat([output, reverse_time(output, lengths)]) if joined else output
        return run


def reverse_time(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse each text of x (D, T, B, …); positions past its end stay in place."""
    if lengths is None:
        return x.flip(1)
    time = torch.arange(x.shape[1], device=x.device).unsqueeze(1)  # (T, 1)
    lengths = lengths.to(x.device)
    positions = torch.where(time < lengths, lengths - 1 - time, time)  # (T, B)
    return x[:, positions, torch.arange(x.shape[2], device=x.device)]


def stack_directions(x: Tensor, stack: Stack, lengths: Tensor | None) -> Tensor:
    """Return x (T, B, I) in the reading order of each direction: (D, T, B, I)."""
    x = x.unsqueeze(0)
    return x if stack.directions == 1 else torch.cat([x, reverse_time(x, lengths)])


def _replay(
    cell: Cell,
    weights: list[Tensor],
    state: State,
    x: Tensor,
    keep: Collection[str],
    lengths: Tensor | None,
    inside: Tensor | None,
) -> tuple[dict[str, Tensor], State]:
    """Run x (T, B, I) by torch's fused recurrence, and compute the other quantities (T, B, size) from its h.

    They depend on x and the previous h only: one step from a zero memory gives the gates of all steps and the memory's
    increments, and the memory is m_t = gate_t * m_{t-1} + increment_t."""
    assert cell.fused is not None
    y, (final,) = unroll_fused(cell.fused, [weights], x.transpose(0, 1), [state], lengths)
    h = y.transpose(0, 1)
    quantities = {"h": h}
    if {*keep} & {*cell.words} - {"h"}:
        past = torch.cat([state[0].unsqueeze(0), h[:-1]])
        zeros = (past.new_zeros(*past.shape[:2], size) for size in cell.state_sizes[1:])
        quantities = cell.step(cell.from_input(x, weights), (past, *zeros), weights)._asdict()
        if cell.memory != "h" and cell.memory in keep:
            assert cell.keeps is not None
            memory = state[cell.states.index(cell.memory)]
            gates, increments = quantities[cell.keeps], quantities[cell.memory]
            if memory.device.type == "cpu" and not torch.is_grad_enabled():  # numpy has less overhead per step
                quantities[cell.memory], previous = increments.clone(), memory.numpy()
                for row, gate in zip(quantities[cell.memory].numpy(), gates.numpy(), strict=True):
                    row += gate * previous
                    previous = row
            elif len(increments):
                memories = [memory]
                for gate_t, increment in zip(gates.unbind(0), increments.unbind(0), strict=True):
                    memories.append(torch.addcmul(increment, gate_t, memories[-1]))
                quantities[cell.memory] = torch.stack(memories[1:])
        quantities["h"] = h
        if inside is not None:
            quantities = {name: tensor * inside.unsqueeze(2) for name, tensor in quantities.items()}
    return {name: tensor for name, tensor in quantities.items() if name in keep or name == "h"}, final


def _step_through(
    cell: Cell,
    weights: list[Tensor],
    state: State,
    projected: Tensor,
    keep: Collection[str],
    inside: Tensor | None,
    changes: Mapping[str, Change],
) -> tuple[dict[str, Tensor], State]:
    """Step through the projected input (T, B, G), with states (the initial ones too) changed before they are read."""

    def intervene(name: str, tensor: Tensor) -> Tensor:
        return torch.addcmul(changes[name].offset, tensor, changes[name].scale) if name in changes else tensor

    state = tuple(map(intervene, cell.states, state))
    columns: dict[str, list[Tensor]] = {name: [] for name in cell.words if name in keep or name == "h"}
    masks = [None] * len(projected) if inside is None else inside.unsqueeze(2).unbind(0)
    for x_t, mask in zip(projected.unbind(0), masks, strict=True):
        step: Any = cell.step(x_t, state, weights, intervene)
        after = cell.next_state(step)
        if mask is None:
            state = after
        else:
            state = tuple(torch.where(mask, new, old) for new, old in zip(after, state, strict=True))
        for name, column in columns.items():
            tensor = getattr(step, name)
            column.append(tensor if mask is None else torch.where(mask, tensor, 0.0))
    quantities = {
        name: torch.stack(column) if column else projected.new_zeros(0, projected.shape[1], cell.sizes[name])
        for name, column in columns.items()
    }
    return quantities, state


def build_stack(network: nn.Module) -> Stack:
    """Return the only recurrent layers of a network as plain weights: of relmo's modules, nn.RNN, nn.GRU or nn.LSTM."""
    modules = [module for module in network.modules() if isinstance(module, (Recurrent, ElmoLSTM, nn.RNNBase))]
    if len(modules) != 1:
        problem = f"has {len(modules)} recurrent modules; pass one of them" if modules else "has no recurrent layers"
        raise ModelError(
            f"{type(network).__name__} {problem}. Expected one nn.RNN, nn.GRU, nn.LSTM or a relmo language model."
        )
    module = modules[0]
    if isinstance(module, Recurrent):
        layers = []
        for cells in module.cells:
            adds_input = module.residual and cells[0].input_size == len(cells) * cells[0].output_size
            layers.append(StackLayer(cells[0], [cell.weights() for cell in cells], adds_input))
        return Stack(module, layers, joined=True)
    if isinstance(module, ElmoLSTM):
        layers = []
        for layer in module.stack:
            # ELMo's layers have one bias, the LSTM cell two: the second one is zero.
            bias, zeros, hr = layer.full_bias(), torch.zeros_like(layer.bias), layer.weight_hr
            weights = [
                [layer.weight_ih[d], layer.weight_hh[d], bias[d], zeros[d], *([] if hr is None else [hr[d]])]
                for d in range(2)
            ]
            layers.append(StackLayer(layer.cell(module.clips), weights, module.skip_connections and len(layers) > 0))
        return Stack(module, layers)
    layers = []
    name, options = TORCH_CELLS[module.mode]
    options = options | ({"projection": module.proj_size} if module.proj_size else {})
    for depth in range(module.num_layers):
        weights = []
        for suffix in ["", "_reverse"] if module.bidirectional else [""]:
            ih, hh = getattr(module, f"weight_ih_l{depth}{suffix}"), getattr(module, f"weight_hh_l{depth}{suffix}")
            biases = [ih.new_zeros(len(ih))] * 2
            if module.bias:
                biases = [getattr(module, f"bias_ih_l{depth}{suffix}"), getattr(module, f"bias_hh_l{depth}{suffix}")]
            projection = [getattr(module, f"weight_hr_l{depth}{suffix}")] if module.proj_size else []
            weights.append([ih, hh, *biases, *projection])
        cell = cell_class(name).bare(weights[0][0].shape[1], module.hidden_size, **options)
        layers.append(StackLayer(cell, weights))
    return Stack(module, layers, joined=True)


class Unrolled(NamedTuple):
    """Outcome of unrolling, in which every state is a node of the graph, to differentiate by any state."""

    inputs: list[Tensor]  # of each layer (B, T, I)
    gates: list[list[Any]]  # quantities of each layer, step by step
    output: list[Tensor]  # of the top layer, step by step, each (B, O)
    states: list[State]  # of each layer after the last step


def unroll_layers(network: nn.Module, *, direction: int = 0) -> list[StackLayer]:
    """Return one direction (1 is the backward one) of the recurrent layers of a network, with detached weights."""
    stack = build_stack(network)
    if stack.directions == 2 and stack.joined:
        raise ModelError(
            "The layers read both directions of the layer below, so lags are undefined; use a unidirectional network "
            "or a bidirectional language model, whose directions are separate."
        )
    # in double precision: products of many small Jacobians leave the range of float32
    return [replace(layer, weights=[[w.detach().double() for w in layer.weights[direction]]]) for layer in stack.layers]


def zero_states(layers: Sequence[StackLayer], batch: int) -> list[State]:
    """Return the initial state of each unrolled layer, zeros."""
    return [tuple(layer.weights[0][0].new_zeros(batch, size) for size in layer.cell.state_sizes) for layer in layers]


def unroll(layers: Sequence[StackLayer], x: Tensor, states: Sequence[State]) -> Unrolled:
    """Step the layers of `unroll_layers` through x (B, T, I) from these states."""
    x = x.to(layers[0].weights[0][0])
    run = Unrolled([], [], list(x.unbind(1)), [])
    for layer, state in zip(layers, states, strict=True):
        run.inputs.append(x if not run.inputs else torch.stack(run.output, dim=1))
        steps: list[Any] = []
        for t, x_t in enumerate(run.output):
            gates = layer.cell.gates(x_t, state, layer.weights[0])
            state = layer.cell.next_state(gates)
            steps.append(gates)
            run.output[t] = gates.h + x_t if layer.adds_input else gates.h
        run.gates.append(steps)
        run.states.append(state)
    return run

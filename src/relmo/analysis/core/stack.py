"""Recurrent layers of any network as cells and weights, run with every quantity of every step recorded.

    stack = build_stack(network)              # relmo's language models, or torch's nn.RNN, nn.GRU, nn.LSTM
    run = stack.run(x, stack.initial_state(batch))
    run.quantities[layer]["c"]                # (D, T, B, *shape)

The D directions come first, each in its own reading order: the backward one starts at the end of the text.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from relmo.analysis.core.show import Unit
from relmo.errors import ModelError, SettingError
from relmo.nn.recurrence import Cell, State, cell_class
from relmo.nn.recurrence.bidirectional import BidirectionalStacks
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM
from relmo.nn.recurrence.stack import FUSED, Recurrent, expand_mask, run_cell

LayerState = tuple[Tensor, ...]
"""One tensor (D, B, *shape) for each state of the cell."""

TORCH_CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("lstm", {}),
    "GRU": ("gru", {}),
    "RNN_TANH": ("elman", {"nonlinearity": "tanh"}),
    "RNN_RELU": ("elman", {"nonlinearity": "relu"}),
}
"""Cell and its options by the mode of torch's modules."""


class Change(NamedTuple):
    """Edit x * scale + offset of a quantity at each step, before anything reads it; both are (D, 1 or B, *shape)."""

    scale: Tensor
    offset: Tensor


Changes = Mapping[tuple[int, str], Change]
"""Changes by layer and quantity."""


@dataclass(frozen=True)
class StackLayer:
    """One recurrent layer."""

    cells: list[Cell]  # of each direction
    adds_input: bool = False  # a residual connection
    projections: Sequence[Tensor] = ()  # (P, H) of each direction, applied to the output; it is not carried

    @property
    def cell(self) -> Cell:
        """Cell of the forward direction."""
        return self.cells[0]

    @property
    def like(self) -> Tensor:
        """One of the weights, as a reference for device and precision."""
        return next(iter(self.cell.weights().values()))

    @property
    def projection(self) -> Tensor | None:
        """Matrix (P, H) of the forward direction that projects hidden units to h, if there is one."""
        return self.cell.projection_matrix()

    def recurrent_matrices(self) -> dict[str, Tensor]:
        """Return the matrix by which each gate of the forward direction reads h, by its letter: W_hh (H, H), or with a
        projection W_hr W_hh (P, P), which has the eigenvalues of W_hh W_hr."""
        W_hr, matrices = self.projection, self.cell.recurrent_matrices()
        return matrices if W_hr is None else {gate: W_hr @ W_hh for gate, W_hh in matrices.items()}

    def no_change(self, name: str, rows: int = 1) -> Change:
        """Return the identity change of a quantity for this many rows, to be filled in."""
        scale = self.like.new_ones(len(self.cells), rows, *self.cell.specs[name].shape)
        return Change(scale, torch.zeros_like(scale))


class Run(NamedTuple):
    """Outcome of running a stack: lists with an entry per layer."""

    quantities: list[dict[str, Tensor]]  # by name, (D, T, B, *shape) in reading order and zero past the end of a text
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
        return len(self.layers[0].cells)

    @property
    def like(self) -> Tensor:
        """One of the weights, as a reference for device and precision."""
        return self.layers[0].like

    def check_unit(self, unit: Unit, states: Collection[str] = ()) -> Unit:
        """Return a unit of one of these states (by default h and memories); raise if the network does not have it."""
        if not 0 <= unit.layer < len(self.layers):
            raise SettingError(f"Unknown layer {unit.layer}; the network has layers 0 to {len(self.layers) - 1}.")
        cell = self.layers[unit.layer].cell
        if unit.state not in (states := states or cell.unit_states):
            raise SettingError(f"Unknown state {unit.state!r}; the layers of this network have {', '.join(states)}.")
        if not 0 <= unit.number < cell.sizes[unit.state]:
            names = f"units 0 to {cell.sizes[unit.state] - 1}"
            raise SettingError(f"Unknown unit {unit}; {unit.state} of layer {unit.layer} has {names}.")
        if unit.direction == "backward" and self.directions == 1:
            raise SettingError(f"Unknown unit {unit}; only the forward direction is read.")
        return unit

    def input_gates(self, x: Tensor) -> Tensor:
        """Return the part of the first layer's gates that depends on the input alone: (D, …, I) -> (D, …, G)."""
        return torch.stack([cell.project_input(x[d]) for d, cell in enumerate(self.layers[0].cells)])

    def initial_state(self, batch: int) -> list[LayerState]:
        """Return the states before the first step for a batch of this size."""
        layers = []
        for layer in self.layers:
            sides = zip(*(cell.initial_state(batch) for cell in layer.cells), strict=True)
            layers.append(tuple(torch.stack(tensors) for tensors in sides))
        return layers

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
            for d, cell in enumerate(layer.cells):
                start = tuple(tensor[d] for tensor in states[depth])
                known_gates = gates if depth == 0 else None
                if known_gates is None and cell.fused is not None and not edits:
                    sides.append(_replay(cell, start, x[d], keep, lengths, inside))
                    continue
                projected = cell.project_input(x[d]) if known_gates is None else known_gates[d]
                side_edits = {name: Change(scale[d], offset[d]) for name, (scale, offset) in edits.items()}
                sides.append(_step_through(cell, start, projected, keep, inside, side_edits))
            recorded, finals = zip(*sides, strict=True)
            columns = {name: [side[name] for side in recorded] for name in recorded[0]}
            quantities = {name: _stack_sides(tensors) for name, tensors in columns.items()}
            h = quantities["h"]
            if layer.projections:
                h = torch.stack([linear(side, weight) for side, weight in zip(h, layer.projections, strict=True)])
            output = torch.cat([h[:1], reverse_time(h[1:], lengths)], dim=-1) if joined else h
            if layer.adds_input:
                skipped = x[:1] if joined else x
                output = output + (skipped if inside is None else skipped * inside.unsqueeze(2))
            run.quantities.append({name: tensor for name, tensor in quantities.items() if name in keep})
            run.outputs.append(output)
            run.states.append(tuple(map(_stack_sides, zip(*finals, strict=True))))
            x = torch.cat([output, reverse_time(output, lengths)]) if joined else output
        return run


def _stack_sides(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(tuple(tensors)) if len(tensors) > 1 else tensors[0].unsqueeze(0)  # one direction is not copied


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
    state: State,
    x: Tensor,
    keep: Collection[str],
    lengths: Tensor | None,
    inside: Tensor | None,
) -> tuple[dict[str, Tensor], State]:
    """Run x (T, B, I) by torch's fused recurrence, and compute the other quantities (T, B, size) from its h.

    They depend on x and the previous h only: one step from a zero memory gives the gates of all steps and the memory's
    increments, and the memory is m_t = gate_t * m_{t-1} + increment_t."""
    y, final = run_cell(cell, x.transpose(0, 1), state, lengths)
    h = y.transpose(0, 1)
    quantities = {"h": h}
    if {*keep} & {*cell.words} - {"h"}:
        past = torch.cat([state[0].unsqueeze(0), h[:-1]])
        zeros = (past.new_zeros(*past.shape[:2], cell.sizes[name]) for name in cell.states[1:])
        quantities = record_step(cell, cell.project_input(x), (past, *zeros))[0]
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


def record_step(cell: Cell, x: Tensor, state: State) -> tuple[dict[str, Tensor], State]:
    """Return every quantity of a step from the projected input, by name, and the new state."""
    quantities: dict[str, Tensor] = {}

    def record(name: str, value: Tensor) -> Tensor:
        quantities[name] = value
        return value

    _, new_state = cell.step(x, state, record=record)
    return {name: quantities[name] for name in cell.words}, new_state


def _step_through(
    cell: Cell,
    state: State,
    projected: Tensor,
    keep: Collection[str],
    inside: Tensor | None,
    changes: Mapping[str, Change],
) -> tuple[dict[str, Tensor], State]:
    """Step through the projected input (T, B, G), with quantities (initial states too) changed before they are read."""
    columns: dict[str, list[Tensor]] = {name: [] for name in cell.words if name in keep or name == "h"}
    mask: Tensor | None = None

    def change(name: str, value: Tensor) -> Tensor:
        return torch.addcmul(changes[name].offset, value, changes[name].scale) if name in changes else value

    def record(name: str, value: Tensor) -> Tensor:
        value = change(name, value)
        if name in columns:
            columns[name].append(value if mask is None else torch.where(expand_mask(mask, value), value, 0.0))
        return value

    state = tuple(map(change, cell.states, state))
    masks = [None] * len(projected) if inside is None else inside.unbind(0)
    for x_t, mask in zip(projected.unbind(0), masks, strict=True):
        _, after = cell.step(x_t, state, record=record)
        if mask is None:
            state = after
        else:
            pairs = zip(after, state, strict=True)
            state = tuple(torch.where(expand_mask(mask, new), new, old) for new, old in pairs)
    batch = projected.shape[1]
    quantities = {
        name: torch.stack(column) if column else projected.new_zeros(0, batch, *cell.specs[name].shape)
        for name, column in columns.items()
    }
    if changes and not torch.isfinite(quantities["h"]).all():
        names = " or ".join(changes)
        raise SettingError(f"The change of {names} makes h infinite, as a divisor of 0 does; choose another value.")
    return quantities, state


def build_stack(network: nn.Module) -> Stack:
    """Return the only recurrent layers of a network as plain weights: of relmo's modules, nn.RNN, nn.GRU or nn.LSTM."""
    kinds = (Recurrent, ElmoLSTM, BidirectionalStacks, nn.RNNBase)
    modules = [module for module in network.modules() if isinstance(module, kinds)]
    if len(modules) != 1:
        problem = f"has {len(modules)} recurrent modules; pass one of them" if modules else "has no recurrent layers"
        raise ModelError(
            f"{type(network).__name__} {problem}. Expected one nn.RNN, nn.GRU, nn.LSTM or a relmo language model."
        )
    module, layers = modules[0], []
    if isinstance(module, Recurrent):
        for cells in module.cells:
            adds_input = module.residual and cells[0].input_size == len(cells) * cells[0].output_size
            layers.append(StackLayer(cells, adds_input))
        return Stack(module, layers, joined=True)
    if isinstance(module, ElmoLSTM):
        skips = module.skip_connections
        stacked = enumerate(module.stack)
        return Stack(module, [StackLayer(list(layer.cells(module.clips)), skips and d > 0) for d, layer in stacked])
    if isinstance(module, BidirectionalStacks):
        for depth, layer in enumerate(module.stack):
            projections = () if layer.weight_hr is None else layer.weight_hr.unbind()
            layers.append(StackLayer(layer.cells, module.skip_connections and depth > 0, projections))
        return Stack(module, layers)
    name, options = TORCH_CELLS[module.mode]
    options = options | ({"projection": module.proj_size} if module.proj_size else {})
    for depth in range(module.num_layers):
        cells = []
        for suffix in ["", "_reverse"] if module.bidirectional else [""]:
            parameters = {name: f"{name}_l{depth}{suffix}" for name in FUSED}
            weights = {name: getattr(module, key) for name, key in parameters.items() if hasattr(module, key)}
            if not module.bias:
                weights["bias_ih"] = weights["bias_hh"] = weights["weight_ih"].new_zeros(len(weights["weight_ih"]))
            cell = cell_class(name).bare(weights["weight_ih"].shape[1], module.hidden_size, **options)
            cells.append(cell.with_weights(weights))
        layers.append(StackLayer(cells))
    return Stack(module, layers, joined=True)


class Unrolled(NamedTuple):
    """Outcome of unrolling, in which every quantity is a node of the graph, to differentiate by any state."""

    inputs: list[Tensor]  # of each layer (B, T, I)
    quantities: list[list[dict[str, Tensor]]]  # of each layer, step by step
    path: list[list[State]]  # states of each layer, step by step
    output: list[Tensor]  # of the top layer, step by step, each (B, O)


def unroll_layers(network: nn.Module, *, direction: int = 0) -> list[StackLayer]:
    """Return one direction (1 is the backward one) of the recurrent layers of a network, with detached weights."""
    stack = build_stack(network)
    if stack.directions == 2 and stack.joined:
        raise ModelError(
            "The layers read both directions of the layer below, so lags are undefined; use a unidirectional network "
            "or a bidirectional language model, whose directions are separate."
        )
    # in double precision: products of many small Jacobians leave the range of float32
    layers = []
    for layer in stack.layers:
        cell = layer.cells[direction]
        cell = cell.with_weights({name: weight.detach().double() for name, weight in cell.weights().items()})
        projections = [layer.projections[direction].detach().double()] if layer.projections else []
        layers.append(replace(layer, cells=[cell], projections=projections))
    return layers


def initial_states(layers: Sequence[StackLayer], batch: int) -> list[State]:
    """Return the initial state of each unrolled layer."""
    return [layer.cell.initial_state(batch) for layer in layers]


def unroll(layers: Sequence[StackLayer], x: Tensor, states: Sequence[State]) -> Unrolled:
    """Step the layers of `unroll_layers` through x (B, T, I) from these states."""
    x = x.to(layers[0].like)
    run = Unrolled([], [], [], list(x.unbind(1)))
    for layer, state in zip(layers, states, strict=True):
        run.inputs.append(x if not run.inputs else torch.stack(run.output, dim=1))
        run.quantities.append([])
        run.path.append([])
        for t, x_t in enumerate(run.output):
            quantities, state = record_step(layer.cell, layer.cell.project_input(x_t), state)
            run.quantities[-1].append(quantities)
            run.path[-1].append(state)
            output = linear(quantities["h"], layer.projections[0]) if layer.projections else quantities["h"]
            run.output[t] = output + x_t if layer.adds_input else output
    return run

"""Recurrent layers of any network as cells and weights, run with every quantity of every step recorded.

    stack = build_stack(network)              # relmo's language models, or torch's nn.RNN, nn.GRU, nn.LSTM
    run = stack.run(x, stack.initial_state(batch))
    run.quantities[layer]["c"]                # (D, T, B, H)

The D directions come first, each in its own reading order: the backward one starts at the end of the text. Without
changes, h comes from torch's fused recurrence where the cell has one. The other quantities depend on x and the previous
h only, so one product computes them for all steps, and a memory beside h costs one multiplication and addition per
step. With changes (`Change`, from `ablate`), and for cells without a fused recurrence, the cell is stepped through.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from relmo.errors import ModelError
from relmo.nn.cells import Cell, State, cell_class
from relmo.nn.elmo_lstm import ElmoLSTM
from relmo.nn.recurrent import FusedShape, Recurrent, unroll_fused

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
    """Edit x * scale + offset of a state after each step, before anything reads it.

    Both are (D, 1, size), or (D, B, size) where the rows of a batch are edited differently.
    """

    scale: Tensor
    offset: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Return the edited state."""
        return torch.addcmul(self.offset, x, self.scale)


Changes = Mapping[tuple[int, str], Change]
"""Changes by layer and state."""


@dataclass(frozen=True)
class StackLayer:
    """One layer: its cell (equations, metadata) and the weights of each direction, in the order of `Cell.weights`."""

    cell: Cell
    weights: list[list[Tensor]]

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each quantity of a step, by name."""
        return self.cell.sizes

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states that are carried from step to step."""
        return self.cell.states

    @property
    def projection(self) -> Tensor | None:
        """Matrix (P, H) of the forward direction that projects hidden units to h, if there is one."""
        return self.cell.projection_matrix(self.weights[0])

    def no_change(self, state: str, rows: int = 1) -> Change:
        """Return the identity change of a state for this many rows, to be filled in."""
        scale = self.weights[0][0].new_ones(len(self.weights), rows, self.sizes[state])
        return Change(scale, torch.zeros_like(scale))


class Run(NamedTuple):
    """Outcome of running a stack.

    quantities    of each layer by name, each (D, T, B, size) in reading order and zero past the end of a text
    outputs       of each layer, in the same order; of joined directions (1, T, B, size) in text order
    states        of each layer after the last step of each text
    """

    quantities: list[dict[str, Tensor]]
    outputs: list[Tensor]
    states: list[LayerState]


@dataclass(frozen=True)
class Stack:
    """Layers and their wiring.

    joined      a layer reads the concatenated outputs of both directions below it; otherwise directions are separate
    residual    which layers add their input to their output
    """

    layers: list[StackLayer]
    joined: bool = False
    residual: Literal["none", "where sizes agree", "above the first"] = "none"

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

    def adds_input(self, depth: int, input_size: int, output_size: int) -> bool:
        """Whether the layer at this depth has a residual connection."""
        if self.residual == "above the first":
            return depth > 0
        return self.residual == "where sizes agree" and input_size == output_size

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
        recording = _Recording(keep, lengths, inside)
        joined = self.joined and self.directions == 2
        run = Run([], [], [])
        for depth, layer in enumerate(self.layers):
            edits = {name: change for (place, name), change in (changes or {}).items() if place == depth}
            sides = []
            for d, weights in enumerate(layer.weights):
                start = tuple(tensor[d] for tensor in states[depth])
                if depth == 0 and gates is not None:
                    sides.append(_step_through(layer.cell, weights, start, gates[d], recording, edits, d))
                elif layer.cell.fused is None or edits:
                    projected = layer.cell.from_input(x[d], weights)
                    sides.append(_step_through(layer.cell, weights, start, projected, recording, edits, d))
                else:
                    sides.append(_replay(layer.cell, weights, start, x[d], recording))
            quantities = {name: _stack([recorded[name] for recorded, _ in sides]) for name in sides[0][0]}
            output = self._wire(depth, x, quantities["h"], lengths)
            run.quantities.append({name: tensor for name, tensor in quantities.items() if name in keep})
            run.outputs.append(output)
            run.states.append(tuple(_stack(tensors) for tensors in zip(*(state for _, state in sides), strict=True)))
            x = torch.cat([output, reverse_time(output, lengths)]) if joined else output
        return run

    def _wire(self, depth: int, x: Tensor, h: Tensor, lengths: Tensor | None) -> Tensor:
        joined = self.joined and self.directions == 2
        output = torch.cat([h[:1], reverse_time(h[1:], lengths)], dim=-1) if joined else h
        if not self.adds_input(depth, x.shape[-1], output.shape[-1]):
            return output
        x = x[:1] if joined else x
        if lengths is not None:
            x = x * (torch.arange(x.shape[1], device=x.device)[:, None] < lengths.to(x.device)).unsqueeze(2)
        return output + x


def reverse_time(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse each text of x (D, T, B, …); positions past its end stay in place."""
    if lengths is None:
        return x.flip(1)
    time = torch.arange(x.shape[1], device=x.device).unsqueeze(1)  # (T, 1)
    lengths = lengths.to(x.device)
    positions = torch.where(time < lengths, lengths - 1 - time, time)  # (T, B)
    return x[:, positions, torch.arange(x.shape[2], device=x.device)]


class _Recording(NamedTuple):
    """Names to record; lengths (B,) of texts that end early, and which steps lie inside them (T, B)."""

    keep: Collection[str]
    lengths: Tensor | None
    inside: Tensor | None


def _stack(sides: Sequence[Tensor]) -> Tensor:
    return sides[0].unsqueeze(0) if len(sides) == 1 else torch.stack(list(sides))  # one direction is not copied


def _replay(
    cell: Cell, weights: list[Tensor], state: State, x: Tensor, recording: _Recording
) -> tuple[dict[str, Tensor], State]:
    """Run x (T, B, I) by torch's fused recurrence, and compute the other quantities (T, B, size) from its h.

    One step from a zero memory gives the gates of all steps, which do not depend on it, and the memory's increments.
    """
    keep, lengths, inside = recording
    assert cell.fused is not None
    y, (final,) = unroll_fused(cell.fused, FusedShape(1, 1, 0.0), [weights], x.transpose(0, 1), [state], lengths)
    h = y.transpose(0, 1)
    quantities = {"h": h}
    if {*keep} & {*cell.words} - {"h"}:
        past = torch.cat([state[0].unsqueeze(0), h[:-1]])
        zeros = (past.new_zeros(*past.shape[:2], size) for size in cell.state_sizes[1:])
        quantities = cell.step(cell.from_input(x, weights), (past, *zeros), weights)._asdict()
        if cell.memory != "h" and cell.memory in keep:
            assert cell.keeps is not None
            memory = state[cell.states.index(cell.memory)]
            accumulate = (
                accumulate_memory_numpy if h.device.type == "cpu" and not torch.is_grad_enabled() else accumulate_memory
            )
            quantities[cell.memory] = accumulate(quantities[cell.keeps], quantities[cell.memory], memory)
        quantities["h"] = h
        if inside is not None:
            quantities = {name: tensor * inside.unsqueeze(2) for name, tensor in quantities.items()}
    return {name: tensor for name, tensor in quantities.items() if name in keep or name == "h"}, final


def accumulate_memory(gates: Tensor, increments: Tensor, memory: Tensor) -> Tensor:
    """Compute m_t = gate_t * m_{t-1} + increment_t over all steps: (T, B, H), starting from a memory (B, H)."""
    memories = []
    for gate, increment in zip(gates.unbind(0), increments.unbind(0), strict=True):
        memory = torch.addcmul(increment, gate, memory)
        memories.append(memory)
    return torch.stack(memories) if memories else increments


def accumulate_memory_numpy(gates: Tensor, increments: Tensor, memory: Tensor) -> Tensor:
    """Compute `accumulate_memory` with numpy, which has less overhead per step than torch on the CPU."""
    memories, previous = increments.clone(), memory.numpy()
    for row, gate in zip(memories.numpy(), gates.numpy(), strict=True):
        row += gate * previous
        previous = row
    return memories


def _step_through(
    cell: Cell,
    weights: list[Tensor],
    state: State,
    projected: Tensor,
    recording: _Recording,
    changes: Mapping[str, Change],
    direction: int,
) -> tuple[dict[str, Tensor], State]:
    """Step through the projected input (T, B, G), with states (the initial ones too) changed before they are read."""
    edits = {name: Change(change.scale[direction], change.offset[direction]) for name, change in changes.items()}

    def intervene(name: str, tensor: Tensor) -> Tensor:
        return edits[name].apply(tensor) if name in edits else tensor

    state = tuple(map(intervene, cell.states, state))
    columns: dict[str, list[Tensor]] = {name: [] for name in cell.words if name in recording.keep or name == "h"}
    masks = [None] * len(projected) if recording.inside is None else recording.inside.unsqueeze(2).unbind(0)
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


def find_recurrent_module(network: nn.Module) -> Recurrent | ElmoLSTM | nn.RNNBase:
    """Return the only recurrent module of a network: relmo's own, or an `nn.RNN`, `nn.GRU` or `nn.LSTM`."""
    modules = [module for module in network.modules() if isinstance(module, (Recurrent, ElmoLSTM, nn.RNNBase))]
    if len(modules) != 1:
        problem = f"has {len(modules)} recurrent modules; pass one of them" if modules else "has no recurrent layers"
        raise ModelError(
            f"{type(network).__name__} {problem}. Expected one nn.RNN, nn.GRU, nn.LSTM or a relmo language model."
        )
    return modules[0]


def build_stack(network: nn.Module) -> Stack:
    """Return the recurrent layers of a network as plain weights."""
    module = find_recurrent_module(network)
    if isinstance(module, Recurrent):
        layers = [StackLayer(cells[0], [cell.weights() for cell in cells]) for cells in module.cells]
        return Stack(layers, joined=True, residual="where sizes agree" if module.residual else "none")
    if isinstance(module, ElmoLSTM):
        layers = []
        for layer in module.stack:
            # ELMo's layers have one bias, the LSTM cell two: the second one is zero.
            bias, zeros, hr = layer.full_bias(), torch.zeros_like(layer.bias), layer.weight_hr
            weights = [
                [layer.weight_ih[d], layer.weight_hh[d], bias[d], zeros[d], *([] if hr is None else [hr[d]])]
                for d in range(2)
            ]
            layers.append(StackLayer(layer.cell(module.clips), weights))
        return Stack(layers, residual="above the first" if module.skip_connections else "none")
    return Stack([_build_torch_layer(module, depth) for depth in range(module.num_layers)], joined=True)


def _build_torch_layer(module: nn.RNNBase, depth: int) -> StackLayer:
    name, options = TORCH_CELLS[module.mode]
    options = options | ({"projection": module.proj_size} if module.proj_size else {})
    weights = []
    for suffix in ["", "_reverse"] if module.bidirectional else [""]:
        ih, hh = getattr(module, f"weight_ih_l{depth}{suffix}"), getattr(module, f"weight_hh_l{depth}{suffix}")
        biases = [ih.new_zeros(len(ih))] * 2
        if module.bias:
            biases = [getattr(module, f"bias_ih_l{depth}{suffix}"), getattr(module, f"bias_hh_l{depth}{suffix}")]
        projection = [getattr(module, f"weight_hr_l{depth}{suffix}")] if module.proj_size else []
        weights.append([ih, hh, *biases, *projection])
    return StackLayer(cell_class(name).bare(weights[0][0].shape[1], module.hidden_size, **options), weights)


def flatten_states(states: Sequence[LayerState], *, batch_first: bool = True) -> tuple[Tensor, ...]:
    """Flatten states to one (B, size) tensor per layer, direction and state, as `Recurrent` has them.

    Without `batch_first`, to torch's layout: h (layers * D, B, P) and c (layers * D, B, H).
    """
    if batch_first:
        return tuple(tensor[d] for state in states for d in range(len(state[0])) for tensor in state)
    return tuple(torch.cat(list(tensors)) for tensors in zip(*states, strict=True))

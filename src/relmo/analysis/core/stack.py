"""The recurrent layers of any network as cells and their weights, run with every quantity of every step recorded.

    stack = stack_of(network)                 of relmo's language models, or torch's nn.RNN, nn.GRU, nn.LSTM
    run = stack.run(x, stack.initial_state(batch))
    run.quantities[layer]["c"]                (D, T, B, H)

Choices:
- D directions stand in front, each in its own reading order: the backward one begins at the text's end.
- Without changes, h comes from torch's fused recurrence where the cell has one. The other quantities then follow from h
  for all steps in one product, as they depend on x and on h of the step before, and a memory beside h is one
  multiplication and addition a step.
- With changes (`Change`, from `ablate`), and of cells without a fused recurrence, the cell is stepped through, the
  input's part of all steps in one product before.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from relmo.errors import ModelError
from relmo.nn.cells import Cell, State, cell_class
from relmo.nn.elmo_lstm import ElmoLayer, ElmoLSTM
from relmo.nn.recurrent import FusedShape, Recurrent, unroll_fused

LayerState = tuple[Tensor, ...]
"""A tensor (D, B, size) for each state of the cell."""


class Change(NamedTuple):
    """What is done to a state after each step, before anything reads it: x * scale + offset; each (D, 1, size), or (D,
    B, size) where the rows of a batch are changed each in its own way."""

    scale: Tensor
    offset: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """x, changed."""
        return torch.addcmul(self.offset, x, self.scale)


Changes = Mapping[tuple[int, str], Change]
"""By layer and state."""


@dataclass(frozen=True)
class StackLayer:
    """One layer: a cell, for its equations and what it says of itself, and the weights of each direction, in the order
    of `Cell.weights`."""

    cell: Cell
    weights: list[list[Tensor]]

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers of each name a step has."""
        return self.cell.sizes

    @property
    def states(self) -> tuple[str, ...]:
        """The names of what is carried."""
        return self.cell.states

    @property
    def projection(self) -> Tensor | None:
        """The matrix (P, H) of the forward direction through which hidden units become h, where there is one."""
        return self.cell.projection_matrix(self.weights[0])

    def no_change(self, state: str, rows: int = 1) -> Change:
        """A change of so many rows that leaves a state as it is, to be filled in."""
        one = self.weights[0][0].new_ones(len(self.weights), rows, self.sizes[state])
        return Change(one, torch.zeros_like(one))


class Run(NamedTuple):
    """What a run gives: the layers' quantities by name, each (D, T, B, size) in reading order and zero past a text's
    end; what each layer hands on, in the same order (where the next layer reads both directions, (1, T, B, size) in the
    text's order); the layers' states after each text's last step."""

    quantities: list[dict[str, Tensor]]
    outputs: list[Tensor]
    states: list[LayerState]


@dataclass(frozen=True)
class Stack:
    """Layers, and how they are wired.

    joined      a layer reads the outputs of both directions below it, side by side; else each direction its own
    residual    which layers add their input to their output
    """

    layers: list[StackLayer]
    joined: bool = False
    residual: Literal["none", "where sizes agree", "above the first"] = "none"

    def input_gates(self, x: Tensor) -> Tensor:
        """What of the first layer's steps depends on its input alone: (D, …, I) -> (D, …, G)."""
        layer = self.layers[0]
        return torch.stack([layer.cell.from_input(x[d], weights) for d, weights in enumerate(layer.weights)])

    @property
    def directions(self) -> int:
        """How many read the text, one or two."""
        return len(self.layers[0].weights)

    @property
    def like(self) -> Tensor:
        """One of the weights, for their device and precision."""
        return self.layers[0].weights[0][0]

    def initial_state(self, batch: int) -> list[LayerState]:
        """Zeros."""
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
        first: Tensor | None = None,
    ) -> Run:
        """x (D, T, B, I), each direction in its reading order; lengths (B,) where texts end earlier than others.

        keep        the names to record
        changes     what is done to states after each step
        first       the first layer's gates as `input_gates` gives them, where they are known: (D, T, B, G); then x is
                    read by residual sums alone
        """
        steps, batch = (x if first is None else first).shape[1:3]
        states = self.initial_state(batch) if states is None else states
        inside = None
        if lengths is not None:
            time = torch.arange(steps, device=self.like.device)
            inside = time.unsqueeze(1) < lengths.to(time.device)  # (T, B)
        wanted = Wanted(keep, lengths, inside)
        quantities: list[dict[str, Tensor]] = []
        outputs: list[Tensor] = []
        finals: list[LayerState] = []
        for depth, layer in enumerate(self.layers):
            own = {name: change for (place, name), change in (changes or {}).items() if place == depth}
            sides = []
            for d, weights in enumerate(layer.weights):
                side = Side(layer.cell, weights, tuple(tensor[d] for tensor in states[depth]))
                if depth == 0 and first is not None:
                    sides.append(_step_through(side, first[d], wanted, own, d))
                elif layer.cell.fused is None or own:
                    sides.append(_step_through(side, layer.cell.from_input(x[d], weights), wanted, own, d))
                else:
                    sides.append(_replay(side, x[d], wanted))
            found = {name: _stacked([quantities[name] for quantities, _ in sides]) for name in sides[0][0]}
            final = tuple(_stacked(tensors) for tensors in zip(*(state for _, state in sides), strict=True))
            out = self._wire(depth, x, found["h"], lengths)
            quantities.append({name: found[name] for name in found if name in keep})
            outputs.append(out)
            finals.append(final)
            x = torch.cat([out, mirror(out, lengths)]) if self.joined and self.directions == 2 else out
        return Run(quantities, outputs, finals)

    def _wire(self, depth: int, x: Tensor, h: Tensor, lengths: Tensor | None) -> Tensor:
        """What a layer hands on, of what it read and its h."""
        joined = self.joined and self.directions == 2
        out = torch.cat([h[:1], mirror(h[1:], lengths)], dim=-1) if joined else h
        adds = (self.residual == "above the first" and depth > 0) or (
            self.residual == "where sizes agree" and x.shape[-1] == out.shape[-1]
        )
        if not adds:
            return out
        x = x[:1] if joined else x
        if lengths is not None:
            x = x * (torch.arange(x.shape[1], device=x.device)[:, None] < lengths.to(x.device)).unsqueeze(2)
        return out + x


def mirror(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(D, T, B, …) read from each text's end; what lies past an end stays where it is."""
    if lengths is None:
        return x.flip(1)
    time = torch.arange(x.shape[1], device=x.device).unsqueeze(1)  # (T, 1)
    lengths = lengths.to(x.device)
    places = torch.where(time < lengths, lengths - 1 - time, time)  # (T, B)
    return x[:, places, torch.arange(x.shape[2], device=x.device)]


class Side(NamedTuple):
    """One direction of a layer: its cell, its weights, and the state (B, size) in which it begins."""

    cell: Cell
    weights: list[Tensor]
    state: State


class Wanted(NamedTuple):
    """What is to be recorded, and of texts that end earlier than others their lengths (B,), and which steps lie inside
    them (T, B)."""

    keep: Collection[str]
    lengths: Tensor | None
    inside: Tensor | None


def _stacked(sides: Sequence[Tensor]) -> Tensor:
    return sides[0].unsqueeze(0) if len(sides) == 1 else torch.stack(list(sides))


def _replay(side: Side, x: Tensor, wanted: Wanted) -> tuple[dict[str, Tensor], State]:
    """x (T, B, I) by torch's fused recurrence, and from its h what else is to be kept: quantities by name, (T, B, size)
    each, and the state after each text's last step.

    A step from no memory gives the gates of all steps, as they do not depend on it, and what is new in the memory.
    """
    cell, weights, state = side
    keep, lengths, inside = wanted
    assert cell.fused is not None
    y, (final,) = unroll_fused(cell.fused, FusedShape(1, 1, 0.0), [weights], x.transpose(0, 1), [state], lengths)
    h = y.transpose(0, 1)
    found = {"h": h}
    if {*keep} & {*cell.words} - {"h"}:
        past = torch.cat([state[0].unsqueeze(0), h[:-1]])
        none = (past.new_zeros(*past.shape[:2], size) for size in cell.state_sizes[1:])
        found = cell.step(cell.from_input(x, weights), (past, *none), weights)._asdict()
        if cell.memory != "h" and cell.memory in keep:
            assert cell.keeps is not None
            before = state[cell.states.index(cell.memory)]
            remember = memories_on_cpu if h.device.type == "cpu" and not torch.is_grad_enabled() else memories
            found[cell.memory] = remember(found[cell.keeps], found[cell.memory], before)
        found["h"] = h
        if inside is not None:
            found = {name: tensor * inside.unsqueeze(2) for name, tensor in found.items()}
    return {name: tensor for name, tensor in found.items() if name in keep or name == "h"}, final


def memories(kept: Tensor, new: Tensor, memory: Tensor) -> Tensor:
    """m_t = kept_t * m_{t-1} + new_t over all steps: (T, B, H) from m (B, H) on."""
    found = []
    for share, added in zip(kept.unbind(0), new.unbind(0), strict=True):
        memory = torch.addcmul(added, share, memory)
        found.append(memory)
    return torch.stack(found) if found else new


def memories_on_cpu(kept: Tensor, new: Tensor, memory: Tensor) -> Tensor:
    """The same, by numpy: of steps as small as a text's, torch's calls take longer than their numbers."""
    found, before = new.clone(), memory.numpy()
    for row, share in zip(found.numpy(), kept.numpy(), strict=True):
        row += share * before
        before = row
    return found


def _step_through(
    side: Side, from_x: Tensor, wanted: Wanted, changes: Mapping[str, Change], direction: int
) -> tuple[dict[str, Tensor], State]:
    """The same step by step from the input's part (T, B, G), the states changed before anything reads them, those at
    the beginning too."""
    cell, weights, state = side
    own = {name: Change(change.scale[direction], change.offset[direction]) for name, change in changes.items()}

    def intervene(name: str, value: Tensor) -> Tensor:
        return own[name].apply(value) if name in own else value

    state = tuple(map(intervene, cell.states, state))
    found: dict[str, list[Tensor]] = {name: [] for name in cell.words if name in wanted.keep or name == "h"}
    live = [None] * len(from_x) if wanted.inside is None else wanted.inside.unsqueeze(2).unbind(0)
    for now, going in zip(from_x.unbind(0), live, strict=True):
        gates: Any = cell.step(now, state, weights, intervene)
        new = cell.next_state(gates)
        if going is None:
            state = new
        else:
            state = tuple(torch.where(going, after, before) for after, before in zip(new, state, strict=True))
        for name, values in found.items():
            value = getattr(gates, name)
            values.append(value if going is None else torch.where(going, value, 0.0))
    whole = {
        name: torch.stack(values) if values else from_x.new_zeros(0, from_x.shape[1], cell.sizes[name])
        for name, values in found.items()
    }
    return whole, state


def recurrent_part(network: nn.Module) -> Recurrent | ElmoLSTM | nn.RNNBase:
    """The recurrent layers in a network: the one part of it that is an `nn.RNN`, `nn.GRU`, `nn.LSTM` or relmo's own."""
    kinds = (Recurrent, ElmoLSTM, nn.RNNBase)
    found = [module for module in network.modules() if isinstance(module, kinds)]
    if len(found) != 1:
        what = "no recurrent layers" if not found else f"{len(found)} recurrent parts; give one of them itself"
        raise ModelError(f"{type(network).__name__} has {what}: an nn.RNN, nn.GRU, nn.LSTM or a relmo language model")
    return found[0]


def stack_of(network: nn.Module) -> Stack:
    """The recurrent layers of a network, as plain weights."""
    part = recurrent_part(network)
    if isinstance(part, Recurrent):
        layers = [StackLayer(cells[0], [cell.weights() for cell in cells]) for cells in part.cells]
        return Stack(layers, joined=True, residual="where sizes agree" if part.residual else "none")
    if isinstance(part, ElmoLSTM):
        layers = [StackLayer(each.cell(part.clips), _elmo_weights(each)) for each in part.stack]
        return Stack(layers, residual="above the first" if part.skip_connections else "none")
    return Stack([_torch_layer(part, depth) for depth in range(part.num_layers)], joined=True)


def _elmo_weights(layer: ElmoLayer) -> list[list[Tensor]]:
    """As the LSTM's cell has them; ELMo's have one bias."""
    bias, none, hr = layer.full_bias(), torch.zeros_like(layer.bias), layer.weight_hr
    return [
        [layer.weight_ih[d], layer.weight_hh[d], bias[d], none[d], *([] if hr is None else [hr[d]])] for d in range(2)
    ]


TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("lstm", {}),
    "GRU": ("gru", {}),
    "RNN_TANH": ("elman", {"nonlinearity": "tanh"}),
    "RNN_RELU": ("elman", {"nonlinearity": "relu"}),
}
"""By the mode of torch's modules, the cell that they have and its options."""


def _torch_layer(module: nn.RNNBase, depth: int) -> StackLayer:
    """A layer of one of torch's recurrent modules."""
    name, options = TORCH[module.mode]
    options = options | ({"projection": module.proj_size} if module.proj_size else {})
    weights = []
    for end in ["", "_reverse"] if module.bidirectional else [""]:
        ih, hh = getattr(module, f"weight_ih_l{depth}{end}"), getattr(module, f"weight_hh_l{depth}{end}")
        biases = [ih.new_zeros(len(ih))] * 2
        if module.bias:
            biases = [getattr(module, f"bias_ih_l{depth}{end}"), getattr(module, f"bias_hh_l{depth}{end}")]
        weights.append([ih, hh, *biases, *([getattr(module, f"weight_hr_l{depth}{end}")] if module.proj_size else [])])
    return StackLayer(cell_class(name).bare(weights[0][0].shape[1], module.hidden_size, **options), weights)


def flat_states(states: Sequence[LayerState], *, batch_first: bool = True) -> tuple[Tensor, ...]:
    """Layer by layer and direction by direction the states of the cell, each (B, size): as `Recurrent` has its state.
    With `batch_first` False as torch has it: h (layers * D, B, P) and c (layers * D, B, H)."""
    if batch_first:
        return tuple(tensor[d] for state in states for d in range(len(state[0])) for tensor in state)
    return tuple(torch.cat(list(tensors)) for tensors in zip(*states, strict=True))

"""The recurrent layers of any network as plain weights, run with every quantity of every step recorded.

    stack = stack_of(network)                 of relmo's language models, or torch's nn.RNN, nn.GRU, nn.LSTM
    run = stack.run(x, stack.initial_state(batch))
    run.quantities[layer]["c"]                (D, T, B, H)

Choices:
- D directions stand side by side in front, each in its own reading order: the backward one begins at the text's end.
- Without changes, h comes from torch's fused recurrence where there is one. The gates then follow from h for all steps
  in one product, as they depend on x and on h of the step before, and c is one multiplication and addition a step.
- With changes (`Change`, from `ablate`), or with clips, which the fused recurrences do not know, the equations of
  `nn.cells` are stepped through, the input's part of all gates in one product before.

    Equations and their letters: nn/cells.py
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from relmo.errors import ModelError
from relmo.nn.cells import Cell, ElmanCell, GRUCell, LSTMCell, clip
from relmo.nn.elmo_lstm import ElmoLSTM
from relmo.nn.recurrent import FusedShape, Recurrent, unroll_fused

Kind = Literal["lstm", "gru", "rnn_tanh", "rnn_relu"]
NAMES: dict[str, tuple[str, ...]] = {
    "lstm": ("h", "c", "i", "f", "o", "g"),
    "gru": ("h", "r", "z", "n"),
    "rnn_tanh": ("h",),
    "rnn_relu": ("h",),
}
"""What there is to record of a step of each kind of cell."""

LayerState = tuple[Tensor, ...]
"""(h (D, B, P),) or, of an LSTM, (h (D, B, P), c (D, B, H))."""


class Change(NamedTuple):
    """What is done to a state after each step, before anything reads it: x * scale + offset; each (D, 1, size), or (D,
    B, size) where the rows of a batch are changed each in its own way."""

    scale: Tensor
    offset: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """x (D, B, size), changed."""
        return torch.addcmul(self.offset, x, self.scale)


Changes = Mapping[tuple[int, str], Change]
"""By layer and state, "h" or "c"."""


@dataclass(frozen=True)
class Layer:
    """The weights of one layer, D directions side by side, gates stacked along the rows in the cell's order."""

    kind: Kind
    ih: Tensor  # (D, G, I)
    hh: Tensor  # (D, G, P)
    b_ih: Tensor  # (D, G)
    b_hh: Tensor  # (D, G)
    hr: Tensor | None = None  # (D, P, H)
    cell_clip: float | None = None
    projection_clip: float | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers of each name a step has."""
        hidden = self.hh.shape[1] // {"lstm": 4, "gru": 3}.get(self.kind, 1)
        return dict.fromkeys(NAMES[self.kind], hidden) | {"h": self.hh.shape[2]}

    @property
    def states(self) -> tuple[str, ...]:
        """The names of what is carried."""
        return ("h", "c") if self.kind == "lstm" else ("h",)

    @property
    def fused(self) -> bool:
        """Whether torch's fused recurrence computes the same."""
        smaller = self.hr is None or self.hr.shape[1] < self.hr.shape[2]
        return smaller and self.cell_clip is None and self.projection_clip is None


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

    layers: list[Layer]
    joined: bool = False
    residual: Literal["none", "where sizes agree", "above the first"] = "none"

    def input_gates(self, x: Tensor) -> Tensor:
        """The first layer's gates as far as its input makes them, (D, …, I) -> (D, …, G): with both biases, but for
        the GRU, where the one of the recurrence stays with it."""
        layer = self.layers[0]
        return products(x, layer.ih, layer.b_ih if layer.kind == "gru" else layer.b_ih + layer.b_hh)

    @property
    def directions(self) -> int:
        """How many read the text, one or two."""
        return len(self.layers[0].hh)

    def initial_state(self, batch: int) -> list[LayerState]:
        """Zeros."""
        return [
            tuple(layer.hh.new_zeros(self.directions, batch, layer.sizes[name]) for name in layer.states)
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
            time = torch.arange(steps, device=self.layers[0].hh.device)
            inside = time.unsqueeze(1) < lengths.to(time.device)  # (T, B)
        quantities: list[dict[str, Tensor]] = []
        outputs: list[Tensor] = []
        finals: list[LayerState] = []
        for depth, layer in enumerate(self.layers):
            own = {name: (changes or {}).get((depth, name)) for name in layer.states}
            given = first if depth == 0 else None
            if layer.fused and given is None and not any(own.values()):
                found, final = _replay(layer, x, states[depth], lengths, inside, keep)
            else:
                found, final = _step_through(layer, x, states[depth], inside, keep, own, given)
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


def _replay(
    layer: Layer, x: Tensor, state: LayerState, lengths: Tensor | None, inside: Tensor | None, keep: Collection[str]
) -> tuple[dict[str, Tensor], LayerState]:
    """One layer by torch's fused recurrence, and from its h what else is to be kept."""
    runs = []
    for d in range(len(x)):
        weights = [layer.ih[d], layer.hh[d], layer.b_ih[d], layer.b_hh[d]]
        weights += [] if layer.hr is None else [layer.hr[d]]
        shape = FusedShape(1, 1, 0.0)
        before = [tuple(tensor[d] for tensor in state)]
        y, (final,) = unroll_fused(layer.kind, shape, [weights], x[d].transpose(0, 1), before, lengths)
        runs.append((y.transpose(0, 1), final))
    h = torch.stack([y for y, _ in runs])
    found = {"h": h}
    if wanted := {*keep} & {*NAMES[layer.kind]} - {"h"}:
        past = torch.cat([state[0].unsqueeze(1), h[:, :-1]], dim=1)
        z = products(x, layer.ih, layer.b_ih)
        if layer.kind == "gru":
            found |= _gru_gates(z, products(past, layer.hh, layer.b_hh), past)
        else:
            found |= _lstm_gates(z.add_(products(past, layer.hh, layer.b_hh)))
            if "c" in wanted:
                found["c"] = cells(found["f"], found["i"] * found["g"], state[1])
        found["h"] = h
        if inside is not None:
            found = {name: tensor * inside.unsqueeze(2) for name, tensor in found.items()}
    return found, tuple(torch.stack(tensors) for tensors in zip(*(final for _, final in runs), strict=True))


def products(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W x + b of each direction: (D, …, I) -> (D, …, G)."""
    made = torch.baddbmm(bias.unsqueeze(1), x.flatten(1, -2), weight.transpose(1, 2))
    return made.view(*x.shape[:-1], -1)


def _lstm_gates(z: Tensor) -> dict[str, Tensor]:
    """The gates of their arguments (…, 4H)."""
    i, f, g, o = z.chunk(4, dim=-1)
    return {"i": torch.sigmoid(i), "f": torch.sigmoid(f), "g": torch.tanh(g), "o": torch.sigmoid(o)}


def _gru_gates(from_x: Tensor, from_h: Tensor, h: Tensor) -> dict[str, Tensor]:
    """The gates and the new h, of what comes from the input and from h (…, 3H each)."""
    (x_r, x_z, x_n), (h_r, h_z, h_n) = from_x.chunk(3, dim=-1), from_h.chunk(3, dim=-1)
    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    return {"r": r, "z": z, "n": n, "h": (1 - z) * n + z * h}


def cells(f: Tensor, new: Tensor, c: Tensor) -> Tensor:
    """c_t = f_t * c_{t-1} + new_t over all steps: (D, T, B, H) from c (D, B, H) on."""
    found = []
    for forget, added in zip(f.unbind(1), new.unbind(1), strict=True):
        c = torch.addcmul(added, forget, c)
        found.append(c)
    return torch.stack(found, dim=1) if found else f


def _step_through(
    layer: Layer,
    x: Tensor,
    state: LayerState,
    inside: Tensor | None,
    keep: Collection[str],
    changes: Mapping[str, Change | None],
    first: Tensor | None,
) -> tuple[dict[str, Tensor], LayerState]:
    """One layer step by step, its states changed before anything reads them, those at the beginning too."""
    b_hh = layer.b_hh.unsqueeze(1)
    inputs = products(x, layer.ih, layer.b_ih) if first is None else first  # (D, T, B, G)
    if layer.kind != "gru" and first is None:  # there the two biases are one sum
        inputs = inputs + b_hh.unsqueeze(1)
    into = layer.hh.transpose(1, 2)
    now = {
        name: tensor if (change := changes.get(name)) is None else change.apply(tensor)
        for name, tensor in zip(layer.states, state, strict=True)
    }
    wanted = [name for name in NAMES[layer.kind] if name in keep or name == "h"]
    found: dict[str, list[Tensor]] = {name: [] for name in wanted}
    live = [None] * inputs.shape[1] if inside is None else inside.unsqueeze(2).unbind(0)
    for z, going in zip(inputs.unbind(1), live, strict=True):
        new = step(layer, z, into, b_hh, now, changes)
        if going is not None:
            stays = {name: torch.where(going, new[name], now[name]) for name in layer.states}
            new = {name: torch.where(going, tensor, 0.0) for name, tensor in new.items() if name in found}
            now = stays
        else:
            now = {name: new[name] for name in layer.states}
        for name in wanted:
            found[name].append(new[name])
    whole = {
        name: torch.stack(tensors, dim=1) if tensors else inputs.new_zeros(*inputs.shape[:3], layer.sizes[name])
        for name, tensors in found.items()
    }
    return whole, tuple(now[name] for name in layer.states)


def step(
    layer: Layer,
    z: Tensor,
    into: Tensor,
    b_hh: Tensor,
    now: dict[str, Tensor],
    changes: Mapping[str, Change | None],
) -> dict[str, Tensor]:
    """One step from z (D, B, G), the input's part of the gates: every quantity, the states changed."""
    h, change, change_c = now["h"], changes.get("h"), changes.get("c")
    if layer.kind == "gru":
        new = _gru_gates(z, torch.baddbmm(b_hh, h, into), h)
    elif layer.kind == "lstm":
        new = _lstm_gates(torch.baddbmm(z, h, into))
        c = clip(torch.addcmul(new["i"] * new["g"], new["f"], now["c"]), layer.cell_clip)
        new["c"] = c = c if change_c is None else change_c.apply(c)
        new["h"] = new["o"] * torch.tanh(c)
        if layer.hr is not None:
            new["h"] = clip(torch.bmm(new["h"], layer.hr.transpose(1, 2)), layer.projection_clip)
    else:
        z = torch.baddbmm(z, h, into)
        new = {"h": torch.tanh(z) if layer.kind == "rnn_tanh" else torch.relu(z)}
    if change is not None:
        new["h"] = change.apply(new["h"])
    return new


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
        layers = [_layer_of_cells(cells) for cells in part.cells]
        return Stack(layers, joined=True, residual="where sizes agree" if part.residual else "none")
    if isinstance(part, ElmoLSTM):
        layers = [
            Layer(
                "lstm",
                each.weight_ih,
                each.weight_hh,
                each.full_bias(),
                torch.zeros_like(each.bias),
                each.weight_hr,
                *part.clips,
            )
            for each in part.stack
        ]
        return Stack(layers, residual="above the first" if part.skip_connections else "none")
    return Stack([_torch_layer(part, depth) for depth in range(part.num_layers)], joined=True)


def _layer_of_cells(cells: Sequence[Cell]) -> Layer:
    """A layer of relmo's cells, one a direction."""
    cell = cells[0]
    ih, hh, b_ih, b_hh, *hr = (torch.stack(tensors) for tensors in zip(*(c.weights() for c in cells), strict=True))
    if isinstance(cell, LSTMCell):
        return Layer("lstm", ih, hh, b_ih, b_hh, hr[0] if hr else None, cell.cell_clip, cell.projection_clip)
    if isinstance(cell, GRUCell):
        return Layer("gru", ih, hh, b_ih, b_hh)
    assert isinstance(cell, ElmanCell)
    return Layer("rnn_tanh" if cell.nonlinearity == "tanh" else "rnn_relu", ih, hh, b_ih, b_hh)


def _torch_layer(module: nn.RNNBase, depth: int) -> Layer:
    """A layer of one of torch's recurrent modules."""
    kinds: dict[str, Kind] = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}
    ends = ["", "_reverse"] if module.bidirectional else [""]

    def weight(name: str) -> Tensor:
        return torch.stack([getattr(module, f"{name}_l{depth}{end}") for end in ends])

    ih, hh = weight("weight_ih"), weight("weight_hh")
    if module.bias:
        b_ih, b_hh = weight("bias_ih"), weight("bias_hh")
    else:
        b_ih = b_hh = ih.new_zeros(ih.shape[:2])
    return Layer(kinds[module.mode], ih, hh, b_ih, b_hh, weight("weight_hr") if module.proj_size else None)


def flat_states(states: Sequence[LayerState], *, batch_first: bool = True) -> tuple[Tensor, ...]:
    """Layer by layer and direction by direction, h and then c, each (B, size): as `Recurrent` has its state. With
    `batch_first` False as torch has it: h (layers * D, B, P) and c (layers * D, B, H)."""
    if batch_first:
        return tuple(tensor[d] for state in states for d in range(len(state[0])) for tensor in state)
    return tuple(torch.cat(list(tensors)) for tensors in zip(*states, strict=True))

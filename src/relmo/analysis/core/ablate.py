"""Interventions: single units set to zero, to their mean, held at a value or scaled, wherever they are read.

A changed h is read by the next step, the next layer, residual sums and the output layer, the initial state included; a
changed c is read by the next step and by h. Everything that runs the network inside the block is affected, in all
threads. Blocks can be nested. Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from relmo.analysis.core.show import Unit
from relmo.analysis.core.stack import Change, Changes, Stack, build_stack, stack_directions
from relmo.errors import SettingError
from relmo.nn.kernels.lstm_step import lengths_of
from relmo.nn.quantize import Precision
from relmo.nn.recurrence import State
from relmo.nn.recurrence.bidirectional import BidirectionalStacks
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM, ElmoLSTMOutput
from relmo.nn.recurrence.stack import Recurrent, RecurrentOutput

How = Literal["zero", "mean", "hold", "scale"]
Units = int | Sequence[int] | np.ndarray
Values = float | Sequence[float] | np.ndarray | None
Sizes = Sequence[int] | None
BiStacks = ElmoLSTM | BidirectionalStacks
Direction = Literal["forward", "backward", "both"]
DIRECTIONS: dict[str, tuple[int, ...]] = {"forward": (0,), "backward": (1,), "both": (0, 1)}


class Edit(NamedTuple):
    """Edit x * scale + offset of some units of one state of one layer; `offset` has one number per unit."""

    layer: int
    state: str
    units: tuple[int, ...]
    directions: tuple[int, ...]
    scale: float
    offset: tuple[float, ...]


ACTIVE_EDITS: "WeakKeyDictionary[nn.Module, list[Edit]]" = WeakKeyDictionary()
"""Edits in effect, by recurrent module, in the order they began."""


@contextmanager
def intervene(
    network: Any,
    layer: int,
    units: Units,
    how: How = "zero",
    value: Values = None,
    *,
    state: str = "h",
    direction: Direction = "forward",
) -> Iterator[None]:
    """Change units of a layer within the block.

    network     a relmo model, its network, torch's nn.RNN, nn.GRU or nn.LSTM, or a module that contains one of these
    layer       index of the recurrent layer, from 0
    units       one or several indices; c of a projected LSTM has other units than its h
    how         "zero"; "mean" and "hold": set to `value`, one number or one per unit (for "mean", the measured mean,
                such as `trace.mean("c", layer)[units]`); "scale": multiply by `value`
    state       a state of the cell: "h", which the rest of the network reads, or "c", an LSTM's memory
    direction   of a bidirectional network
    """
    model_network = network if isinstance(network, nn.Module) else getattr(network, "network", None)
    if not isinstance(model_network, nn.Module):
        raise SettingError(f"{type(network).__name__} is not a network; pass a recurrent model or an nn.Module.")
    stack = build_stack(model_network)
    module, edit = stack.module, _make_edit(stack, layer, units, how, value, state, direction)
    before = ACTIVE_EDITS.get(module, [])
    replacements: dict[str, Callable[..., Any]]  # methods that step through the cells with changes
    if isinstance(module, ElmoLSTM | BidirectionalStacks):
        replacements = {"forward": partial(_run_elmo, module), "infer": partial(_infer_elmo, module)}
    else:
        run: Any = _run_recurrent if isinstance(module, Recurrent) else _run_torch
        replacements = {"forward": partial(run, module)}
    try:
        if not before:
            vars(module).update(replacements)
        ACTIVE_EDITS[module] = [*before, edit]
        with torch.no_grad():
            # An in-place operation raises the version of the weights: caches such as the state after a boundary expire.
            next(module.parameters()).mul_(1.0)
        yield
    finally:
        ACTIVE_EDITS[module] = before
        if not before:
            del ACTIVE_EDITS[module]
            for name in replacements:
                vars(module).pop(name, None)
        with torch.no_grad():
            next(module.parameters()).mul_(1.0)


def _make_edit(stack: Stack, layer: int, units: Units, how: str, value: Values, state: str, direction: str) -> Edit:
    states = tuple(dict.fromkeys(["h", *stack.layers[0].cell.states]))
    indices = tuple(int(unit) for unit in np.atleast_1d(np.asarray(units, dtype=np.int64)))
    for index in (0, *indices):
        stack.check_unit(Unit(state, layer, index), states)
    if direction not in DIRECTIONS or max(DIRECTIONS[direction]) >= stack.directions:
        kind = "unidirectional" if stack.directions == 1 else "bidirectional"
        raise SettingError(f"Unknown direction {direction!r}; the network is {kind}.")
    if how not in ("zero", "mean", "hold", "scale"):
        raise SettingError(f"Unknown how={how!r}; expected 'zero', 'mean', 'hold' or 'scale'.")
    if how == "zero":
        if value is not None:
            raise SettingError("how='zero' takes no value; use how='hold' to set units to a value.")
        value = 0.0
    if value is None:
        hint = "the units' means, such as trace(...).mean(state, layer)[units]" if how == "mean" else "a number"
        raise SettingError(f"how={how!r} requires a value: {hint}.")
    values = np.asarray(value, dtype=np.float64)
    if how == "scale":
        if values.size != 1:
            raise SettingError("how='scale' takes one number for all units.")
        return Edit(layer, state, indices, DIRECTIONS[direction], float(values), (0.0,) * len(indices))
    if values.size not in (1, len(indices)):
        raise SettingError(f"Expected one value, or one per unit; got {values.size} values for {len(indices)} units.")
    offset = tuple(np.broadcast_to(values.reshape(-1), len(indices)).tolist())
    return Edit(layer, state, indices, DIRECTIONS[direction], 0.0, offset)


def collect_changes(stack: Stack) -> Changes:
    """Combine the active edits of a network by layer and state; empty if there are none."""
    changes: dict[tuple[int, str], Change] = {}
    for edit in ACTIVE_EDITS.get(stack.module, []):
        key = (edit.layer, edit.state)
        if key not in changes:
            changes[key] = stack.layers[edit.layer].no_change(edit.state)
        scale, offset = (tensor.flatten(2) for tensor in changes[key])  # views: units of a matrix row by row
        for d in edit.directions:
            units = torch.tensor(edit.units, device=scale.device)
            values = torch.tensor(edit.offset, dtype=offset.dtype, device=offset.device)
            offset[d, 0, units] = offset[d, 0, units] * edit.scale + values
            scale[d, 0, units] = scale[d, 0, units] * edit.scale
    return changes


def _prepare(module: nn.Module, dropout: float) -> tuple[Stack, Changes]:
    if module.training and dropout:
        raise SettingError("Interventions do not support dropout; call .eval() on the network.")
    stack = build_stack(module)
    return stack, collect_changes(stack)


def _run_recurrent(
    module: Recurrent,
    x: Tensor,
    state: State | None = None,
    lengths: Tensor | None = None,
    *,
    every_layer: bool = False,
) -> RecurrentOutput:
    stack, changes = _prepare(module, module.dropout.p + module.weight_drop)
    tensors = iter(module.initial_state(len(x)) if state is None else state)
    states = []
    for layer in stack.layers:
        cells = [[next(tensors) for _ in cell.states] for cell in layer.cells]
        states.append(tuple(torch.stack(column) for column in zip(*cells, strict=True)))
    run = stack.run(stack_directions(x.transpose(0, 1), stack, lengths), states, lengths, changes=changes)
    layers = tuple(output[0].transpose(0, 1) for output in run.outputs)
    final = tuple(tensor[d] for layer in run.states for d in range(stack.directions) for tensor in layer)
    return RecurrentOutput(layers[-1], layers if every_layer else (), final)


def _run_elmo(
    module: BiStacks, x: Tensor, state: State | None = None, sizes: Sizes = None, *, gates: Tensor | None = None
) -> ElmoLSTMOutput:
    """Run both directions from their input x (2, T, B, I), or from the first layer's input gates (2, T, B, G)."""
    stack, changes = _prepare(module, module.dropout if gates is None else 0.0)
    batch = x.shape[2]
    state = module.initial_state(batch) if state is None else state
    tensors = (tensor.transpose(0, 1) for tensor in state)
    states = [tuple(next(tensors) for _ in layer.cell.states) for layer in stack.layers]
    lengths = None
    if sizes is not None and (not len(sizes) or sizes[-1] < batch):
        lengths = lengths_of(sizes, batch).to(x.device)
    run = stack.run(x, states, lengths, changes=changes, gates=gates)
    final = tuple(tensor.transpose(0, 1) for layer_state in run.states for tensor in layer_state)
    return ElmoLSTMOutput(tuple(run.outputs), final)


def _infer_elmo(
    module: BiStacks,
    gates: Tensor,
    words: Tensor,
    state: State | None = None,
    sizes: Sizes = None,
    *,
    precision: Precision = "float32",
) -> ElmoLSTMOutput:
    if precision != "float32":
        raise SettingError(f"Interventions require float32; the model's precision is {precision}.")
    input_gates = torch.stack([gates[d][words[d]] for d in range(2)])  # (2, T, B, G)
    with torch.no_grad(), torch.autocast(gates.device.type, enabled=False):
        return _run_elmo(module, input_gates, state, sizes, gates=input_gates)


def _run_torch(module: nn.RNNBase, sequence: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
    stack, changes = _prepare(module, module.dropout)
    lengths, unbatched = None, False
    if isinstance(sequence, PackedSequence):
        x, lengths = pad_packed_sequence(sequence)
    else:
        unbatched = sequence.dim() == 2
        x = sequence.unsqueeze(1) if unbatched else sequence.transpose(0, 1) if module.batch_first else sequence
    states = None
    if hx is not None:
        tensors = [tensor.unsqueeze(1) if unbatched else tensor for tensor in (hx if isinstance(hx, tuple) else (hx,))]
        split = [tensor.view(module.num_layers, stack.directions, *tensor.shape[1:]) for tensor in tensors]
        states = [tuple(tensor[depth] for tensor in split) for depth in range(module.num_layers)]
    run = stack.run(stack_directions(x, stack, lengths), states, lengths, changes=changes)
    y: Any = run.outputs[-1][0]
    columns = [torch.cat(tensors) for tensors in zip(*run.states, strict=True)]  # (layers * D, B, size)
    final = tuple(tensor.squeeze(1) if unbatched else tensor for tensor in columns)
    if isinstance(sequence, PackedSequence):
        order = torch.arange(x.shape[1]) if sequence.sorted_indices is None else sequence.sorted_indices.cpu()
        packed = pack_padded_sequence(y[:, order.to(y.device)], lengths[order]).data  # type: ignore[index]
        y = PackedSequence(packed, sequence.batch_sizes, sequence.sorted_indices, sequence.unsorted_indices)
    else:
        y = y.squeeze(1) if unbatched else y.transpose(0, 1) if module.batch_first else y
    return y, final if len(final) > 1 else final[0]

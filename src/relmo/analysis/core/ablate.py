"""Interventions: single units set to zero, to their mean, held at a value or scaled, wherever they are read.

    with intervene(model, layer=0, units=[27]):                     # h_27 is 0
        model.perplexity(text), model.generate("def ")
    with intervene(model, 0, 27, "hold", 2.0, state="c"):           # the memory cell stays at 2
        ...

A changed h is read by the next step, the next layer, residual sums and the output layer, the initial state included; a
changed c is read by the next step and by h. (Zeroing only the weights from a unit to its own layer and to the output
layer, as some published code does, leaves a lower layer's unit feeding the layer above.) Everything that runs the
network inside the block is affected: forward passes, generation, perplexity, vectors, traces. Blocks can be nested. The
network is changed for all threads.

    Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from relmo.analysis.core.stack import (
    Change,
    Changes,
    Stack,
    build_stack,
    find_recurrent_module,
    flatten_states,
    reverse_time,
)
from relmo.errors import SettingError
from relmo.nn.cells import State
from relmo.nn.elmo_lstm import ElmoLSTM, ElmoLSTMOutput
from relmo.nn.kernels.layer import lengths_of
from relmo.nn.quantize import Precision
from relmo.nn.recurrent import Recurrent, RecurrentOutput

How = Literal["zero", "mean", "hold", "scale"]
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
    units: int | Sequence[int] | np.ndarray,
    how: How = "zero",
    value: float | Sequence[float] | np.ndarray | None = None,
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
    module = find_recurrent_module(model_network)
    edit = _make_edit(build_stack(module), layer, units, how, value, state, direction)
    before = ACTIVE_EDITS.get(module, [])
    try:
        if not before:
            vars(module).update(_make_replacements(module))
        ACTIVE_EDITS[module] = [*before, edit]
        _mark_changed(module)
        yield
    finally:
        ACTIVE_EDITS[module] = before
        if not before:
            del ACTIVE_EDITS[module]
            for name in _make_replacements(module):
                vars(module).pop(name, None)
        _mark_changed(module)


def _make_edit(
    stack: Stack,
    layer: int,
    units: int | Sequence[int] | np.ndarray,
    how: str,
    value: float | Sequence[float] | np.ndarray | None,
    state: str,
    direction: str,
) -> Edit:
    if not 0 <= layer < len(stack.layers):
        raise SettingError(f"Unknown layer {layer}; the network has layers 0 to {len(stack.layers) - 1}.")
    sizes, states = stack.layers[layer].sizes, stack.layers[layer].states
    if state not in states:
        raise SettingError(f"Unknown state {state!r}; the layers of this network have {' and '.join(states)}.")
    if direction not in DIRECTIONS or max(DIRECTIONS[direction]) >= stack.directions:
        kind = "unidirectional" if stack.directions == 1 else "bidirectional"
        raise SettingError(f"Unknown direction {direction!r}; the network is {kind}.")
    indices = tuple(int(unit) for unit in np.atleast_1d(np.asarray(units, dtype=np.int64)))
    size = sizes[state]
    if invalid := [unit for unit in indices if not 0 <= unit < size]:
        raise SettingError(f"Unknown unit {invalid[0]}; {state} of layer {layer} has units 0 to {size - 1}.")
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


def collect_changes(module: nn.Module, stack: Stack) -> Changes:
    """Combine the active edits of a recurrent module by layer and state; empty if there are none."""
    changes: dict[tuple[int, str], Change] = {}
    for edit in ACTIVE_EDITS.get(module, []):
        key = (edit.layer, edit.state)
        if key not in changes:
            changes[key] = stack.layers[edit.layer].no_change(edit.state)
        scale, offset = changes[key]
        for d in edit.directions:
            units = torch.tensor(edit.units, device=scale.device)
            values = torch.tensor(edit.offset, dtype=offset.dtype, device=offset.device)
            offset[d, 0, units] = offset[d, 0, units] * edit.scale + values
            scale[d, 0, units] = scale[d, 0, units] * edit.scale
    return changes


def _mark_changed(module: nn.Module) -> None:
    # An in-place operation raises the version of the weights, so that caches such as the state after a boundary expire.
    with torch.no_grad():
        next(module.parameters()).mul_(1.0)


def _make_replacements(module: nn.Module) -> Mapping[str, Callable[..., Any]]:
    """Return the methods to replace in a module, by name, with versions that step through the cells with changes."""
    if isinstance(module, Recurrent):
        return {"forward": lambda *args, **kwargs: _run_recurrent(module, *args, **kwargs)}
    if isinstance(module, ElmoLSTM):
        return {
            "forward": lambda *args, **kwargs: _run_elmo(module, *args, **kwargs),
            "infer": lambda *args, **kwargs: _infer_elmo(module, *args, **kwargs),
        }
    assert isinstance(module, nn.RNNBase)
    return {"forward": lambda *args, **kwargs: _run_torch(module, *args, **kwargs)}


def _prepare(module: nn.Module, dropout: float) -> tuple[Stack, Changes]:
    if module.training and dropout:
        raise SettingError("Interventions do not support dropout; call .eval() on the network.")
    stack = build_stack(module)
    return stack, collect_changes(module, stack)


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
    num_states = len(stack.layers[0].states)
    states = []
    for _ in stack.layers:
        cells = [[next(tensors) for _ in range(num_states)] for _ in range(stack.directions)]
        states.append(tuple(torch.stack(column) for column in zip(*cells, strict=True)))
    run = stack.run(stack_directions(x.transpose(0, 1), stack, lengths), states, lengths, changes=changes)
    layers = tuple(output[0].transpose(0, 1) for output in run.outputs)
    return RecurrentOutput(layers[-1], layers if every_layer else (), flatten_states(run.states))


def stack_directions(x: Tensor, stack: Stack, lengths: Tensor | None) -> Tensor:
    """Return x (T, B, I) in the reading order of each direction: (D, T, B, I)."""
    x = x.unsqueeze(0)
    return x if stack.directions == 1 else torch.cat([x, reverse_time(x, lengths)])


def _run_elmo(
    module: ElmoLSTM, x: Tensor, state: State | None = None, sizes: Sequence[int] | None = None
) -> ElmoLSTMOutput:
    return _compute_elmo(module, _prepare(module, module.dropout), x, None, state, sizes)


def _infer_elmo(
    module: ElmoLSTM,
    gates: Tensor,
    words: Tensor,
    state: State | None = None,
    sizes: Sequence[int] | None = None,
    *,
    precision: Precision = "float32",
) -> ElmoLSTMOutput:
    if precision != "float32":
        raise SettingError(f"Interventions require float32; the model's precision is {precision}.")
    input_gates = torch.stack([gates[d][words[d]] for d in range(2)])  # (2, T, B, 4H)
    with torch.no_grad(), torch.autocast(gates.device.type, enabled=False):
        return _compute_elmo(module, _prepare(module, 0.0), input_gates, input_gates, state, sizes)


def _compute_elmo(
    module: ElmoLSTM,
    prepared: tuple[Stack, Changes],
    x: Tensor,
    gates: Tensor | None,
    state: State | None,
    sizes: Sequence[int] | None,
) -> ElmoLSTMOutput:
    """Run both stacks from their input, or from the first layer's gates."""
    stack, changes = prepared
    batch = x.shape[2]
    state = module.initial_state(batch) if state is None else state
    states = [tuple(tensor.transpose(0, 1) for tensor in state[2 * d : 2 * d + 2]) for d in range(len(stack.layers))]
    lengths = None
    if sizes is not None and (not len(sizes) or sizes[-1] < batch):
        lengths = lengths_of(sizes, batch).to(x.device)
    run = stack.run(x, states, lengths, changes=changes, gates=gates)
    final = tuple(tensor.transpose(0, 1) for layer_state in run.states for tensor in layer_state)
    return ElmoLSTMOutput(tuple(run.outputs), final)


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
    final = tuple(
        tensor.squeeze(1) if unbatched else tensor for tensor in flatten_states(run.states, batch_first=False)
    )
    if isinstance(sequence, PackedSequence):
        order = torch.arange(x.shape[1]) if sequence.sorted_indices is None else sequence.sorted_indices.cpu()
        packed = pack_padded_sequence(y[:, order.to(y.device)], lengths[order]).data  # type: ignore[index]
        y = PackedSequence(packed, sequence.batch_sizes, sequence.sorted_indices, sequence.unsorted_indices)
    else:
        y = y.squeeze(1) if unbatched else y.transpose(0, 1) if module.batch_first else y
    return y, final if len(final) > 1 else final[0]

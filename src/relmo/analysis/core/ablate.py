"""Interventions: single units set to zero, to their mean, held at a value or scaled, at every place that reads them.

    with intervene(model, layer=0, units=[27]):                     # h_27 is 0
        model.perplexity(text), model.generate("def ")
    with intervene(model, 0, 27, "hold", 2.0, state="c"):           # the cell stays at 2
        ...

A changed h is what the next step, the next layer, residual sums, the output layer and everything else reads, the state
at the beginning included; a changed c is what the next step and h read. (Setting to zero only the weights by which a
unit feeds its own layer and the output layer, as some published code does, leaves a lower layer's unit feeding the
layer above.) Everything that runs the network in the block is changed: its forward pass, generation, perplexity,
vectors, traces. Blocks may stand within one another. A network is changed for all threads at once.

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

from relmo.analysis.core.stack import Change, Changes, Stack, flat_states, mirror, recurrent_part, stack_of
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
    """What is done to some units of one state of one layer: x * scale + offset; offset has a number for each unit."""

    layer: int
    state: str
    units: tuple[int, ...]
    directions: tuple[int, ...]
    scale: float
    offset: tuple[float, ...]


ACTIVE: "WeakKeyDictionary[nn.Module, list[Edit]]" = WeakKeyDictionary()
"""The edits under way, by the recurrent part of a network, in the order they began."""


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
    """Within the block, these units of a layer are not what the network computes.

    network     a model of relmo's, its network, torch's nn.RNN, nn.GRU or nn.LSTM, or a module with one of these in it
    layer       which recurrent layer, from 0
    units       one or several; a c of a projected LSTM has other units than its h
    how         "zero"; "mean" and "hold": at `value`, a number or one for each unit, which for "mean" is what you
                measured, such as `trace.mean("c", layer)[units]`; "scale": times `value`
    state       one that the cell carries: "h", what others read, or "c", an LSTM's memory
    direction   of a network that reads both ways
    """
    part = recurrent_part(_module_of(network))
    edit = _make_edit(stack_of(part), layer, units, how, value, state, direction)
    before = ACTIVE.get(part, [])
    try:
        if not before:
            install(part)
        ACTIVE[part] = [*before, edit]
        touch(part)
        yield
    finally:
        ACTIVE[part] = before
        if not before:
            del ACTIVE[part]
            _uninstall(part)
        touch(part)


def _module_of(network: Any) -> nn.Module:
    """The network of a model, or the module itself."""
    module = network if isinstance(network, nn.Module) else getattr(network, "network", None)
    if not isinstance(module, nn.Module):
        raise SettingError(f"{type(network).__name__} is not a network; give a recurrent model or an nn.Module")
    return module


def _make_edit(
    stack: Stack,
    layer: int,
    units: int | Sequence[int] | np.ndarray,
    how: str,
    value: float | Sequence[float] | np.ndarray | None,
    state: str,
    direction: str,
) -> Edit:
    """What was asked for, checked against the network."""
    if not 0 <= layer < len(stack.layers):
        raise SettingError(f"layer {layer}: the network has the layers 0 to {len(stack.layers) - 1}")
    own = stack.layers[layer]
    if state not in own.states:
        raise SettingError(f"state {state!r}: a layer of this network carries {' and '.join(own.states)}")
    if direction not in DIRECTIONS or max(DIRECTIONS[direction]) >= stack.directions:
        raise SettingError(
            f"direction {direction!r}: the network reads {'one way' if stack.directions == 1 else 'both ways'}"
        )
    chosen = tuple(int(unit) for unit in np.atleast_1d(np.asarray(units, dtype=np.int64)))
    size = own.sizes[state]
    if wrong := [unit for unit in chosen if not 0 <= unit < size]:
        raise SettingError(f"unit {wrong[0]}: {state} of layer {layer} has the units 0 to {size - 1}")
    if how not in ("zero", "mean", "hold", "scale"):
        raise SettingError(f"how is {how!r}; it can be 'zero', 'mean', 'hold' or 'scale'")
    if how == "zero":
        if value is not None:
            raise SettingError("how='zero' takes no value; hold the units at one with how='hold'")
        value = 0.0
    if value is None:
        hint = "the units' means, such as trace(...).mean(state, layer)[units]" if how == "mean" else "a number"
        raise SettingError(f"how={how!r} needs a value: {hint}")
    values = np.asarray(value, dtype=np.float64)
    if how == "scale":
        if values.size != 1:
            raise SettingError("how='scale' takes one number for all units")
        return Edit(layer, state, chosen, DIRECTIONS[direction], float(values), (0.0,) * len(chosen))
    if values.size not in (1, len(chosen)):
        raise SettingError(f"{values.size} values for {len(chosen)} units; give one, or one for each")
    offset = tuple(np.broadcast_to(values.reshape(-1), len(chosen)).tolist())
    return Edit(layer, state, chosen, DIRECTIONS[direction], 0.0, offset)


def active_changes(part: nn.Module, stack: Stack) -> Changes:
    """The edits under way in a recurrent part, put together by layer and state; none where it is as it was trained."""
    changes: dict[tuple[int, str], Change] = {}
    for edit in ACTIVE.get(part, []):
        key = (edit.layer, edit.state)
        layer = stack.layers[edit.layer]
        if key not in changes:
            changes[key] = layer.no_change(edit.state)
        scale, offset = changes[key]
        for d in edit.directions:
            units = torch.tensor(edit.units, device=scale.device)
            values = torch.tensor(edit.offset, dtype=offset.dtype, device=offset.device)
            offset[d, 0, units] = offset[d, 0, units] * edit.scale + values
            scale[d, 0, units] = scale[d, 0, units] * edit.scale
    return changes


def install(part: Recurrent | ElmoLSTM | nn.RNNBase) -> None:
    """Puts the stepped definition with changes in the place of the part's own ways to run."""
    vars(part).update(_replacements(part))


def _uninstall(part: nn.Module) -> None:
    """The part's own ways to run again."""
    for name in _replacements(part):
        vars(part).pop(name, None)


def touch(part: nn.Module) -> None:
    """Counts as a change of the weights, so that what is kept of them, such as the state after a boundary, is made
    anew."""
    with torch.no_grad():
        next(part.parameters()).mul_(1.0)


def _replacements(part: nn.Module) -> Mapping[str, Callable[..., Any]]:
    """The methods that are replaced, by name."""
    if isinstance(part, Recurrent):
        return {"forward": lambda *given, **named: _run_recurrent(part, *given, **named)}
    if isinstance(part, ElmoLSTM):
        return {
            "forward": lambda *given, **named: _run_elmo(part, *given, **named),
            "infer": lambda *given, **named: _infer_elmo(part, *given, **named),
        }
    assert isinstance(part, nn.RNNBase)
    return {"forward": lambda *given, **named: _run_torch(part, *given, **named)}


def prepared(part: nn.Module, drops: float) -> tuple[Stack, Changes]:
    """The weights and the changes, of a part that is not in training."""
    if part.training and drops:
        raise SettingError("an intervention has no dropout: call .eval() on the network first")
    stack = stack_of(part)
    return stack, active_changes(part, stack)


def _run_recurrent(
    part: Recurrent,
    x: Tensor,
    state: State | None = None,
    lengths: Tensor | None = None,
    *,
    every_layer: bool = False,
) -> RecurrentOutput:
    """`Recurrent.forward`, changed."""
    stack, changes = prepared(part, part.dropout.p + part.weight_drop)
    given = iter(part.initial_state(len(x)) if state is None else state)
    per_cell = len(stack.layers[0].states)
    states = []
    for _ in stack.layers:
        cells = [[next(given) for _ in range(per_cell)] for _ in range(stack.directions)]
        states.append(tuple(torch.stack(tensors) for tensors in zip(*cells, strict=True)))
    run = stack.run(both_ways(x.transpose(0, 1), stack, lengths), states, lengths, changes=changes)
    layers = tuple(output[0].transpose(0, 1) for output in run.outputs)
    return RecurrentOutput(layers[-1], layers if every_layer else (), flat_states(run.states))


def both_ways(x: Tensor, stack: Stack, lengths: Tensor | None) -> Tensor:
    """(T, B, I) as each direction reads it: (D, T, B, I)."""
    x = x.unsqueeze(0)
    return x if stack.directions == 1 else torch.cat([x, mirror(x, lengths)])


def _run_elmo(
    part: ElmoLSTM, x: Tensor, state: State | None = None, sizes: Sequence[int] | None = None
) -> ElmoLSTMOutput:
    """`ElmoLSTM.forward`, changed."""
    return _elmo_output(part, prepared(part, part.dropout), x, None, state, sizes)


def _infer_elmo(
    part: ElmoLSTM,
    gates: Tensor,
    words: Tensor,
    state: State | None = None,
    sizes: Sequence[int] | None = None,
    *,
    precision: Precision = "float32",
) -> ElmoLSTMOutput:
    """`ElmoLSTM.infer`, changed."""
    if precision != "float32":
        raise SettingError(f"interventions are computed in float32, and the model's precision is {precision}; set it")
    first = torch.stack([gates[d][words[d]] for d in range(2)])  # (2, T, B, 4H)
    with torch.no_grad(), torch.autocast(gates.device.type, enabled=False):
        return _elmo_output(part, prepared(part, 0.0), first, first, state, sizes)


def _elmo_output(
    part: ElmoLSTM,
    with_changes: tuple[Stack, Changes],
    x: Tensor,
    first: Tensor | None,
    state: State | None,
    sizes: Sequence[int] | None,
) -> ElmoLSTMOutput:
    """The two stacks with the changes, from their input, or from the first layer's gates."""
    stack, changes = with_changes
    batch = x.shape[2]
    state = part.initial_state(batch) if state is None else state
    states = [tuple(tensor.transpose(0, 1) for tensor in state[2 * d : 2 * d + 2]) for d in range(len(stack.layers))]
    lengths = None
    if sizes is not None and (not len(sizes) or sizes[-1] < batch):
        lengths = lengths_of(sizes, batch).to(x.device)
    run = stack.run(x, states, lengths, changes=changes, first=first)
    final = tuple(tensor.transpose(0, 1) for each in run.states for tensor in each)
    return ElmoLSTMOutput(tuple(run.outputs), final)


def _run_torch(part: nn.RNNBase, given: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
    """The forward pass of torch's modules, changed."""
    stack, changes = prepared(part, part.dropout)
    lengths, alone = None, False
    if isinstance(given, PackedSequence):
        x, lengths = pad_packed_sequence(given)
    else:
        alone = given.dim() == 2
        x = given.unsqueeze(1) if alone else given.transpose(0, 1) if part.batch_first else given
    states = None
    if hx is not None:
        tensors = [tensor.unsqueeze(1) if alone else tensor for tensor in (hx if isinstance(hx, tuple) else (hx,))]
        split = [tensor.view(part.num_layers, stack.directions, *tensor.shape[1:]) for tensor in tensors]
        states = [tuple(tensor[depth] for tensor in split) for depth in range(part.num_layers)]
    run = stack.run(both_ways(x, stack, lengths), states, lengths, changes=changes)
    y: Any = run.outputs[-1][0]
    final = tuple(tensor.squeeze(1) if alone else tensor for tensor in flat_states(run.states, batch_first=False))
    if isinstance(given, PackedSequence):
        order = torch.arange(x.shape[1]) if given.sorted_indices is None else given.sorted_indices.cpu()
        data = pack_padded_sequence(y[:, order.to(y.device)], lengths[order]).data  # type: ignore[index]
        y = PackedSequence(data, given.batch_sizes, given.sorted_indices, given.unsorted_indices)
    else:
        y = y.squeeze(1) if alone else y.transpose(0, 1) if part.batch_first else y
    return y, final if len(final) > 1 else final[0]

"""Packed forms and tables that are made from weights, each kept as long as its weights live and do not change."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import torch
from torch import Tensor

Made = TypeVar("Made")
SAMPLE = 256  # of a weight's values are looked at for change


class Derived(NamedTuple):
    """What was made, the weights it was made from, and what shows whether they have changed."""

    weights: list[ref[Tensor]]
    state: list[tuple[int, int]]
    sample: Tensor
    made: Any


KEPT: dict[Hashable, Derived] = {}


def kept(name: str, weights: Sequence[Tensor], make: Callable[[], Made]) -> Made:
    """What `make` gives for these weights, made again when one of them has changed.

    A change that goes past the tensor's own count of them (through `.data`) is seen in a sample of its values.
    """
    key = (name, *map(id, weights))
    state, sample = versions(weights), _sampled(weights)
    found = KEPT.get(key)
    if (
        found is None
        or any(owner() is not weight for owner, weight in zip(found.weights, weights, strict=True))
        or found.state != state
        or not torch.equal(found.sample, sample)
    ):
        KEPT.pop(key, None)  # before another takes its memory
        owners = [ref(weight, lambda _: KEPT.pop(key, None)) for weight in weights]
        found = KEPT[key] = Derived(owners, state, sample, make())
    return found.made


def versions(weights: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Changes whenever a weight is written to or replaced; tensors of inference mode do not count what is written."""
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]


def _sampled(weights: Sequence[Tensor]) -> Tensor:
    """Some values of each, a copy; none of a GPU's, for which one would have to wait."""
    weights = [weight for weight in weights if weight.device.type == "cpu"]
    if not weights:
        return torch.empty(0)
    return torch.cat([weight.detach().flatten()[:: weight.numel() // SAMPLE + 1] for weight in weights])

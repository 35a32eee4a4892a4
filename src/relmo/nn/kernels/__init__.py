"""Fast backends of the layers, in C and Triton, and the cache of what they derive from weights."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import torch
from torch import Tensor

T = TypeVar("T")
SAMPLE_SIZE = 256  # elements of a weight that are compared to detect changes


class Derived(NamedTuple):
    """A derived object, its weights, and their versions and sampled elements at the time."""

    weights: list[ref[Tensor]]
    versions: list[tuple[int, int]]
    sample: Tensor
    derived: Any


CACHE: dict[Hashable, Derived] = {}


def cached(name: str, weights: Sequence[Tensor], derive: Callable[[], T]) -> T:
    """Return `derive()` for these weights, called again when one of them has changed.
    A change that bypasses the version counter of a tensor (through `.data`) is detected in a sample of its elements."""
    key = (name, *map(id, weights))
    versions = get_versions(weights)
    # Samples are of weights on the CPU only: a GPU would have to be waited for.
    samples = [w.detach().flatten()[:: w.numel() // SAMPLE_SIZE + 1] for w in weights if w.device.type == "cpu"]
    sample = torch.cat(samples) if samples else torch.empty(0)
    entry = CACHE.get(key)
    if (
        entry is None
        or any(owner() is not weight for owner, weight in zip(entry.weights, weights, strict=True))
        or entry.versions != versions
        or not torch.equal(entry.sample, sample)
    ):
        CACHE.pop(key, None)  # frees its memory before the new object is made
        owners = [ref(weight, lambda _: CACHE.pop(key, None)) for weight in weights]
        entry = CACHE[key] = Derived(owners, versions, sample, derive())
    return entry.derived


def get_versions(weights: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return numbers that change when a weight is written to or replaced; inference tensors count no writes."""
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]

"""What a layer of ELMo's LSTM is given, whichever way it is computed. Both directions stand in one tensor."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Clips(NamedTuple):
    """Where the cell and the projected output are held; None does not clip."""

    cell: float | None
    projection: float | None


class Weights(NamedTuple):
    """A layer's weights: (2, 4H, I), (2, 4H), (2, 4H, P), and (2, P, H) or None."""

    ih: Tensor
    bias: Tensor
    hh: Tensor
    hr: Tensor | None

    def to(self, precision: torch.dtype) -> "Weights":
        """The same weights in another precision."""
        ih, bias, hh = (weight.to(precision) for weight in self[:3])
        return Weights(ih, bias, hh, None if self.hr is None else self.hr.to(precision))


class Gates(NamedTuple):
    """What the gates start from, instead of an input: rows of a table (2, S, 4H), by their numbers (2, T, B)."""

    table: Tensor
    words: Tensor

    def rows(self) -> Tensor:
        """The rows that are read; (2, T, B, 4H)."""
        return torch.stack([table[words] for table, words in zip(self.table, self.words, strict=True)])


class Steps(NamedTuple):
    """How a layer runs: from the state h (2, B, P) and c (2, B, H), with `sizes[t]` rows at step t, and clipped."""

    h: Tensor
    c: Tensor
    sizes: Sequence[int]
    clips: Clips


def lengths_of(sizes: Sequence[int], batch: int) -> Tensor:
    """How long each sequence is, from how many go on at each step; (B,)."""
    return (torch.tensor(list(sizes)).unsqueeze(1) > torch.arange(batch)).sum(dim=0)

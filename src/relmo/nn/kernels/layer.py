"""Inputs of a layer of ELMo's LSTM, common to all backends. Both directions are in one tensor."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Clips(NamedTuple):
    """Limits of the cell state and the projected output; None does not clip."""

    cell: float | None
    projection: float | None


class Weights(NamedTuple):
    """Weights of a layer: (2, 4H, I), (2, 4H), (2, 4H, P), and (2, P, H) or None."""

    ih: Tensor
    bias: Tensor
    hh: Tensor
    hr: Tensor | None

    def to(self, dtype: torch.dtype) -> "Weights":
        """Convert the weights to a type."""
        ih, bias, hh = (weight.to(dtype) for weight in self[:3])
        return Weights(ih, bias, hh, None if self.hr is None else self.hr.to(dtype))


class Gates(NamedTuple):
    """Input part of the gates, in place of an input: rows of a table (2, S, 4H), indexed by `words` (2, T, B)."""

    table: Tensor
    words: Tensor

    def rows(self) -> Tensor:
        """Look up the rows; (2, T, B, 4H)."""
        return torch.stack([table[words] for table, words in zip(self.table, self.words, strict=True)])


class Steps(NamedTuple):
    """Run of a layer: initial state h (2, B, P) and c (2, B, H), `sizes[t]` rows at step t, and clips."""

    h: Tensor
    c: Tensor
    sizes: Sequence[int]
    clips: Clips


def lengths_of(sizes: Sequence[int], batch: int) -> Tensor:
    """Return the length of each sequence (B,) from the number of active rows at each step."""
    return (torch.tensor(list(sizes)).unsqueeze(1) > torch.arange(batch)).sum(dim=0)

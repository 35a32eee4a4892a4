"""Pooling of padded sentences: mean, maximum, minimum, or the final state.

Vectors x (B, T, D) and lengths (B,) are reduced to (B, D). Padding has no influence. An empty sentence gives zeros.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def length_mask(lengths: Tensor, steps: int) -> Tensor:
    """Return the mask (B, T), true where there is a token, on the device of `lengths`."""
    return torch.arange(steps, device=lengths.device) < lengths.unsqueeze(1)


def mask_padding(x: Tensor, lengths: Tensor, value: float = 0.0) -> Tensor:
    """Set x (B, T, D) to `value` past each sentence's end."""
    return x.masked_fill(~length_mask(lengths.to(x.device), x.shape[1]).unsqueeze(2), value)


def mean(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean of a sentence's vectors."""
    return mask_padding(x, lengths).sum(dim=1) / lengths.to(x.device).clamp(min=1).unsqueeze(1)


def maximum(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the largest value in each dimension."""
    lengths = lengths.to(x.device)
    x = pad(x, (0, 0, 0, 1)) if x.shape[1] == 0 else x  # torch has no maximum of an empty tensor
    return torch.where((lengths > 0).unsqueeze(1), mask_padding(x, lengths, -torch.inf).amax(dim=1), 0.0)


def minimum(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the smallest value in each dimension."""
    return -maximum(-x, lengths)


def final(x: Tensor, lengths: Tensor, *, directions: int = 1) -> Tensor:
    """Return the vector of the last token; with two directions, the second half is that of the first token."""
    lengths = lengths.to(x.device)
    x = pad(x, (0, 0, 0, 1)) if x.shape[1] == 0 else x
    last = x[torch.arange(len(x), device=x.device), (lengths - 1).clamp(min=0)]  # (B, D)
    if directions == 2:
        half = x.shape[2] // 2
        last = torch.cat([last[:, :half], x[:, 0, half:]], dim=1)
    return torch.where((lengths > 0).unsqueeze(1), last, 0.0)

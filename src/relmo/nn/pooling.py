"""One vector of a padded sentence: its mean, maximum, minimum, or where its reading ended.

Vectors x (B, T, D) and lengths (B,) in, (B, D) out. Whatever stands past a sentence's end has no influence. An empty
sentence gives zeros.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def inside(lengths: Tensor, steps: int) -> Tensor:
    """The mask (B, T), true where there is a word; on the device of `lengths`."""
    return torch.arange(steps, device=lengths.device) < lengths.unsqueeze(1)


def blank(x: Tensor, lengths: Tensor, value: float = 0.0) -> Tensor:
    """x (B, T, D) with `value` past each sentence's end."""
    return x.masked_fill(~inside(lengths.to(x.device), x.shape[1]).unsqueeze(2), value)


def mean(x: Tensor, lengths: Tensor) -> Tensor:
    """The average of a sentence's vectors."""
    return blank(x, lengths).sum(dim=1) / lengths.to(x.device).clamp(min=1).unsqueeze(1)


def maximum(x: Tensor, lengths: Tensor) -> Tensor:
    """The largest value in each dimension."""
    lengths = lengths.to(x.device)
    x = pad(x, (0, 0, 0, 1)) if x.shape[1] == 0 else x  # torch knows no maximum of nothing
    return torch.where((lengths > 0).unsqueeze(1), blank(x, lengths, -torch.inf).amax(dim=1), 0.0)


def minimum(x: Tensor, lengths: Tensor) -> Tensor:
    """The smallest value in each dimension."""
    return -maximum(-x, lengths)


def final(x: Tensor, lengths: Tensor, *, directions: int = 1) -> Tensor:
    """Where reading ended: the vector of the last word. With two directions side by side in x, the second half is that
    of the first word, where reading backwards ends."""
    lengths = lengths.to(x.device)
    x = pad(x, (0, 0, 0, 1)) if x.shape[1] == 0 else x
    last = x[torch.arange(len(x), device=x.device), (lengths - 1).clamp(min=0)]  # (B, D)
    if directions == 2:
        half = x.shape[2] // 2
        last = torch.cat([last[:, :half], x[:, 0, half:]], dim=1)
    return torch.where((lengths > 0).unsqueeze(1), last, 0.0)

"""Attention between two sentences, of a sentence to itself, and as a way to pool one.

Positions past a sentence's end get no attention and give none: their rows are zero, and so are those of words that
attend to an empty sentence.

Chen et al. 2017, Enhanced LSTM for natural language inference (soft alignment)
McCann et al. 2017, Learned in translation (biattention, self-attentive pooling)
Lin et al. 2017, A structured self-attentive sentence embedding
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from relmo.nn.pooling import blank, inside


class Alignment(NamedTuple):
    """What each word of the first sentence attends to in the second (B, S, D), and the other way round (B, T, D)."""

    first: Tensor
    second: Tensor


class Pooled(NamedTuple):
    """One vector a sentence (B, D), and the weight of each word in it (B, T)."""

    vector: Tensor
    weights: Tensor


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """The softmax over the last dimension of what the mask lets through; zeros where it lets through nothing."""
    lowest = torch.finfo(scores.dtype).min  # finite: a softmax of infinities alone is not a number
    return torch.softmax(scores.masked_fill(~mask, lowest), dim=-1) * mask


def soft_align(a: Tensor, b: Tensor, lengths_a: Tensor, lengths_b: Tensor, scores: Tensor | None = None) -> Alignment:
    """Each word as a mixture of the words of the other sentence: a (B, S, D), b (B, T, D).

    e_ij = a_i . b_j                                        or `scores` (B, S, T)
    ã_i  = sum_j softmax_j(e_ij) b_j
    b̃_j  = sum_i softmax_i(e_ij) a_i
    """
    a, b = blank(a, lengths_a), blank(b, lengths_b)
    e = a @ b.transpose(1, 2) if scores is None else scores  # (B, S, T)
    in_a = inside(lengths_a.to(e.device), e.shape[1]).unsqueeze(2)  # (B, S, 1)
    in_b = inside(lengths_b.to(e.device), e.shape[2]).unsqueeze(1)  # (B, 1, T)
    both = in_a & in_b
    to_b = masked_softmax(e, both)
    to_a = masked_softmax(e.transpose(1, 2), both.transpose(1, 2))
    return Alignment(to_b @ b, to_a @ a)


def biattention(x: Tensor, y: Tensor, lengths_x: Tensor, lengths_y: Tensor) -> Alignment:
    """[X; X - C_y; X * C_y] (B, S, 3D) and [Y; Y - C_x; Y * C_x] (B, T, 3D), where C_y and C_x are the soft alignments.
    X and Y may be the same sentence."""
    c_y, c_x = soft_align(x, y, lengths_x, lengths_y)
    return Alignment(
        torch.cat([x, x - c_y, x * c_y], dim=2),
        torch.cat([y, y - c_x, y * c_x], dim=2),
    )


class AttentivePool(nn.Module):
    """A mean with learned weights: softmax_t(v . x_t), or with `hidden` units softmax_t(v . tanh(W x_t + b)).

    (The constant that McCann et al. add to the scores changes no softmax and is left out.)
    """

    def __init__(self, size: int, *, hidden: int | None = None):
        super().__init__()
        self.inner = nn.Linear(size, hidden) if hidden else None
        self.score = nn.Linear(hidden or size, 1, bias=False)

    def forward(self, x: Tensor, lengths: Tensor) -> Pooled:
        """x (B, T, D), lengths (B,) -> a vector (B, D); of an empty sentence zeros."""
        x = blank(x, lengths)
        inner = x if self.inner is None else torch.tanh(self.inner(x))
        weights = masked_softmax(self.score(inner).squeeze(2), inside(lengths.to(x.device), x.shape[1]))  # (B, T)
        return Pooled((weights.unsqueeze(1) @ x).squeeze(1), weights)

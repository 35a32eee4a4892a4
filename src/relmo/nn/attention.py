"""Attention between sentences, of a sentence to itself, of a decoder to a memory, and as a way to pool.

Padding gets no attention and gives none: its rows are zero, and so are those of tokens that attend to an empty
sentence. Constants that papers add to scores change no softmax and are omitted.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relmo.nn.pooling import length_mask, mask_padding

MAX_SIMILARITIES = 1 << 25  # of a passage's tokens with each other in memory at once

ScoreName = Literal["additive", "dot", "general", "concat"]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax over the last dimension where the mask is true; zeros if it is nowhere true."""
    lowest = torch.finfo(scores.dtype).min  # finite: a softmax of infinities alone is not a number
    return torch.softmax(scores.masked_fill(~mask, lowest), dim=-1) * mask


def soft_align(
    a: Tensor, b: Tensor, lengths_a: Tensor, lengths_b: Tensor, scores: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ã (B, S, D) and b̃ (B, T, D), each token of a and b as a mixture of the other sentence's tokens.

    e_ij = a_i . b_j                                        or `scores` (B, S, T);  Chen et al. 2017
    ã_i  = sum_j softmax_j(e_ij) b_j
    b̃_j  = sum_i softmax_i(e_ij) a_i
    """
    a, b = mask_padding(a, lengths_a), mask_padding(b, lengths_b)
    e = a @ b.transpose(1, 2) if scores is None else scores  # (B, S, T)
    mask_a = length_mask(lengths_a.to(e.device), e.shape[1]).unsqueeze(2)  # (B, S, 1)
    mask_b = length_mask(lengths_b.to(e.device), e.shape[2]).unsqueeze(1)  # (B, 1, T)
    mask = mask_a & mask_b
    to_b = masked_softmax(e, mask)
    to_a = masked_softmax(e.transpose(1, 2), mask.transpose(1, 2))
    return to_b @ b, to_a @ a


def biattention(x: Tensor, y: Tensor, lengths_x: Tensor, lengths_y: Tensor) -> tuple[Tensor, Tensor]:
    """Return [X; X - C_y; X * C_y] and [Y; Y - C_x; Y * C_x] with the soft alignments C (McCann et al. 2017)."""
    c_y, c_x = soft_align(x, y, lengths_x, lengths_y)
    return torch.cat([x, x - c_y, x * c_y], dim=2), torch.cat([y, y - c_x, y * c_x], dim=2)


class AttentivePool(nn.Module):
    """Mean with weights softmax_t(v . x_t), or with `hidden` units softmax_t(v . tanh(W x_t + b)); Lin et al. 2017."""

    def __init__(self, size: int, *, hidden: int | None = None):
        super().__init__()
        self.inner = nn.Linear(size, hidden) if hidden else None
        self.score = nn.Linear(hidden or size, 1, bias=False)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Pool x (B, T, D) to vectors (B, D), zeros for an empty sentence; return them and the weights (B, T)."""
        x = mask_padding(x, lengths)
        inner = x if self.inner is None else torch.tanh(self.inner(x))
        weights = masked_softmax(self.score(inner).squeeze(2), length_mask(lengths.to(x.device), x.shape[1]))  # (B, T)
        return (weights.unsqueeze(1) @ x).squeeze(1), weights


def _similarity_weights(size: int) -> nn.Parameter:
    """Return one of the three vectors of w . [x; y; x * y], with Xavier initialisation of the whole."""
    bound = (6 / (3 * size + 1)) ** 0.5
    return nn.Parameter(torch.empty(size).uniform_(-bound, bound))


class PassageQuestionAttention(nn.Module):
    """Attention between a passage x and a question y by a trilinear similarity (Seo et al. 2017).

    s_ij = w_x . x_i + w_y . y_j + (w_xy * x_i) . y_j
    a_i  = sum_j softmax_j(s_ij) y_j                     passage to question
    h    = sum_i softmax_i(max_j s_ij) x_i               question to passage
    out  = [x_i; a_i; x_i * a_i; x_i * h]
    """

    def __init__(self, size: int):
        super().__init__()
        self.w_x, self.w_y, self.w_xy = (_similarity_weights(size) for _ in range(3))
        self.output_size = 4 * size

    def forward(self, x: Tensor, y: Tensor, lengths_x: Tensor, lengths_y: Tensor) -> Tensor:
        """Return (B, S, 4D), zero past a passage's end, of x (B, S, D), y (B, T, D) and lengths (B,)."""
        x, y = mask_padding(x, lengths_x), mask_padding(y, lengths_y)
        y = pad(y, (0, 0, 0, 1)) if y.shape[1] == 0 else y  # torch has no maximum of an empty tensor
        mask_x = length_mask(lengths_x.to(x.device), x.shape[1])  # (B, S)
        mask_y = length_mask(lengths_y.to(x.device), y.shape[1]).unsqueeze(1)  # (B, 1, T)
        s = (x @ self.w_x).unsqueeze(2) + (y @ self.w_y).unsqueeze(1) + (x * self.w_xy) @ y.transpose(1, 2)
        a = masked_softmax(s, mask_y & mask_x.unsqueeze(2)) @ y  # (B, S, D)
        maxima = s.masked_fill(~mask_y, torch.finfo(s.dtype).min).amax(dim=2)  # (B, S)
        h = masked_softmax(maxima, mask_x & mask_y.any(dim=2)).unsqueeze(1) @ x  # (B, 1, D)
        return torch.cat([x, a, x * a, x * h], dim=2)


class PassageSelfAttention(nn.Module):
    """Attention of each token of a passage to the other tokens (Clark & Gardner 2017).

    a_i = sum_{j != i} softmax_j(w_y . x_j + (w_xy * x_i) . x_j) x_j
    out = [x_i; a_i; x_i * a_i]
    """

    def __init__(self, size: int):
        super().__init__()
        self.w_y, self.w_xy = _similarity_weights(size), _similarity_weights(size)
        self.output_size = 3 * size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return (B, T, 3D), zero past a passage's end, of x (B, T, D) and lengths (B,)."""
        x = mask_padding(x, lengths)
        batch, steps, _ = x.shape
        # Long passages are processed in portions, to limit the memory for similarities.
        portion = max(MAX_SIMILARITIES // max(batch * steps, 1), 1)
        mask = length_mask(lengths.to(x.device), steps)  # (B, T)
        position = torch.arange(steps, device=x.device)
        mixtures = []
        for start in range(0, steps, portion):
            rows = slice(start, start + portion)
            queries = x[:, rows]  # before the products: autograd sums the gradients of x in this order
            s = (x @ self.w_y).unsqueeze(1) + (queries * self.w_xy) @ x.transpose(1, 2)  # (B, P, T)
            is_other = position != position[rows].unsqueeze(1)  # (P, T)
            mixtures.append(masked_softmax(s, mask.unsqueeze(1) & mask[:, rows].unsqueeze(2) & is_other) @ x)
        a = torch.cat(mixtures, dim=1)
        return torch.cat([x, a, x * a], dim=2)


class QueryAttention(nn.Module):
    """Attention from queries s_i (states of a decoder) to a memory h_j (Bahdanau et al. 2015; Luong et al. 2015).

    a_ij = softmax_j(score(s_i, h_j));   c_i = sum_j a_ij h_j

    additive   score(s, h) = v . tanh(W s + U h)         with `hidden` units and a bias
    dot        score(s, h) = s . h
    general    score(s, h) = s . W h
    concat     score(s, h) = v . tanh(W [s; h])          additive with the queries' size and no bias, as published
    """

    def __init__(self, score: ScoreName, *, query_size: int, memory_size: int, hidden: int | None = None):
        super().__init__()
        if score == "dot" and query_size != memory_size:
            raise ValueError(f"dot requires equal sizes of queries and memory, not {query_size} and {memory_size}.")
        self.score = score
        is_sum = score in ("additive", "concat")
        size = hidden if hidden is not None and score == "additive" else query_size
        self.of_query = nn.Linear(query_size, size, bias=False) if is_sum else None
        self.of_memory = None if score == "dot" else nn.Linear(memory_size, size, bias=score == "additive")
        self.v = nn.Linear(size, 1, bias=False) if is_sum else None

    def keys(self, memory: Tensor) -> Tensor:
        """Return the memory's part of the scores, h, W h or U h: (B, S, K) of memory (B, S, D)."""
        return memory if self.of_memory is None else self.of_memory(memory)

    def forward(self, queries: Tensor, keys: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return contexts (B, T, D) and weights (B, T, S) of queries (B, T, Q), memory (B, S, D) and mask (B, S)."""
        if self.of_query is None or self.v is None:
            scores = queries @ keys.transpose(1, 2)
        else:
            hidden = torch.tanh(self.of_query(queries).unsqueeze(2) + keys.unsqueeze(1))  # (B, T, S, K)
            scores = self.v(hidden).squeeze(3)
        weights = masked_softmax(scores, mask.unsqueeze(1))  # (B, T, S)
        return weights.to(memory.dtype) @ memory, weights

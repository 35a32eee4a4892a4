"""Attention from queries to a memory: what a decoder looks at while it writes.

    e_ij = score(s_i, h_j)              s_i a query (a state of the decoder), h_j a row of memory (of the encoder)
    a_ij = softmax_j(e_ij)              over the rows that are there; rows past the end get no weight
    c_i  = sum_j a_ij h_j               the context

    additive   score(s, h) = v . tanh(W s + U h)         Bahdanau, Cho & Bengio 2015
    dot        score(s, h) = s . h                       Luong, Pham & Manning 2015
    general    score(s, h) = s . W h
    concat     score(s, h) = v . tanh(W [s; h])          additive by another name: W [s; h] = W_s s + W_h h

Additive has a hidden size of its own and a bias; concat has the queries' size and none, as published.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from relmo.nn.attention import masked_softmax

ScoreName = Literal["additive", "dot", "general", "concat"]


class Attended(NamedTuple):
    """The context of each query (B, T, D), and the weight of each row of memory in it (B, T, S)."""

    context: Tensor
    weights: Tensor


class QueryAttention(nn.Module):
    """Attention with one of four scores. What of a score depends on the memory alone is computed once (`keys`).

    hidden    additive only: units between a query and its score
    """

    def __init__(self, score: ScoreName, *, query_size: int, memory_size: int, hidden: int | None = None):
        super().__init__()
        if score == "dot" and query_size != memory_size:
            raise ValueError(f"dot takes queries as large as the memory's rows, not {query_size} and {memory_size}")
        self.score = score
        size = query_size if score == "concat" or hidden is None else hidden
        summed = score in ("additive", "concat")
        self.of_query = nn.Linear(query_size, size, bias=False) if summed else None
        self.of_memory = (
            None if score == "dot" else nn.Linear(memory_size, size if summed else query_size, bias=score == "additive")
        )
        self.v = nn.Linear(size, 1, bias=False) if summed else None

    def keys(self, memory: Tensor) -> Tensor:
        """The memory's part of the scores: h, W h or U h; (B, S, D) -> (B, S, K)."""
        return memory if self.of_memory is None else self.of_memory(memory)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """e (B, T, S) of queries (B, T, Q) and keys (B, S, K)."""
        if self.of_query is None or self.v is None:
            return queries @ keys.transpose(1, 2)
        hidden = torch.tanh(self.of_query(queries).unsqueeze(2) + keys.unsqueeze(1))  # (B, T, S, K)
        return self.v(hidden).squeeze(3)

    def forward(self, queries: Tensor, keys: Tensor, memory: Tensor, mask: Tensor) -> Attended:
        """queries (B, T, Q), keys as `keys` gives them, memory (B, S, D), mask (B, S) true where there is a row."""
        weights = masked_softmax(self.scores(queries, keys), mask.unsqueeze(1))
        return Attended(weights.to(memory.dtype) @ memory, weights)

"""Attention of queries: every score equals its equation, and what stands past a source's end changes nothing."""

import math

import pytest
import torch
from torch import Tensor

from relmo.nn.attention import QueryAttention

SCORES = ("additive", "dot", "general", "concat")


def by_hand(attention: QueryAttention, s: Tensor, h: Tensor) -> Tensor:
    """The score of one query and one row of memory, as the papers write it."""
    weights = {name: parameter.detach() for name, parameter in attention.named_parameters()}
    if attention.score == "dot":
        return s @ h
    if attention.score == "general":
        return s @ (weights["of_memory.weight"] @ h)
    if attention.score == "concat":
        W = torch.cat([weights["of_query.weight"], weights["of_memory.weight"]], dim=1)
        return weights["v.weight"][0] @ torch.tanh(W @ torch.cat([s, h]))
    inner = weights["of_query.weight"] @ s + weights["of_memory.weight"] @ h + weights["of_memory.bias"]
    return weights["v.weight"][0] @ torch.tanh(inner)


@pytest.mark.parametrize("score", SCORES)
def test_a_context_is_the_papers_sum_and_padding_changes_nothing(score: str) -> None:
    torch.manual_seed(0)
    D = 5 if score == "dot" else 3
    attention = QueryAttention(score, query_size=5, memory_size=D, hidden=7)  # type: ignore[arg-type]
    queries, memory = torch.randn(2, 4, 5), torch.randn(2, 6, D)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    context, weights = attention(queries, attention.keys(memory), memory, mask)
    for b, length in ((0, 6), (1, 4)):
        for t in range(4):
            e = torch.stack([by_hand(attention, queries[b, t], memory[b, j]) for j in range(length)])
            a = (e - e.logsumexp(0)).exp()
            torch.testing.assert_close(weights[b, t, :length], a)
            torch.testing.assert_close(context[b, t], a @ memory[b, :length])
    assert (weights[1, :, 4:] == 0).all()
    other = memory.clone()
    other[1, 4:] = 100.0
    torch.testing.assert_close(attention(queries, attention.keys(other), other, mask)[0], context)


def test_an_empty_source_gets_no_attention_and_gives_none() -> None:
    attention = QueryAttention("general", query_size=2, memory_size=3)
    memory = torch.randn(1, 2, 3)
    context, weights = attention(torch.randn(1, 1, 2), attention.keys(memory), memory, torch.zeros(1, 2).bool())
    assert not context.any()
    assert not weights.any()


def test_dot_wants_vectors_of_one_size() -> None:
    with pytest.raises(ValueError, match="dot"):
        QueryAttention("dot", query_size=2, memory_size=3)
    known = QueryAttention("dot", query_size=2, memory_size=2)
    weights = known(torch.tensor([[[0.0, 1.0]]]), m := torch.tensor([[[5.0, 0.0], [0.0, math.log(3)]]]), m,
                    torch.ones(1, 2).bool())[1]  # fmt: skip
    torch.testing.assert_close(weights, torch.tensor([[[0.25, 0.75]]]))

"""Attention against definitions written as loops; masks, symmetry, empty sentences."""

import pytest
import torch
from torch import Tensor

from relmo.nn.attention import AttentivePool, biattention, masked_softmax, soft_align
from relmo.nn.pooling import length_mask

A, B = torch.tensor([3, 1, 4, 0]), torch.tensor([2, 5, 1, 3])
SIZE = 3


def two_batches(value: float = torch.nan) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(4, int(lengths.max()), SIZE, generator=generator, dtype=torch.float64) for lengths in (A, B))
    a[~length_mask(A, 4)], b[~length_mask(B, 5)] = value, value
    return a, b


def test_soft_alignment_is_the_loop_of_its_definition() -> None:
    a, b = two_batches()
    found = soft_align(a, b, A, B)
    for n in range(4):
        for i in range(4):
            expected = torch.zeros(SIZE, dtype=torch.float64)
            if i < A[n] and B[n]:
                e = [torch.exp(sum(a[n, i, d] * b[n, j, d] for d in range(SIZE))) for j in range(int(B[n]))]
                for j, weight in enumerate(e):
                    expected += weight / sum(e) * b[n, j]
            torch.testing.assert_close(found[0][n, i], expected)
        for j in range(5):
            expected = torch.zeros(SIZE, dtype=torch.float64)
            if j < B[n] and A[n]:
                e = [torch.exp(sum(a[n, i, d] * b[n, j, d] for d in range(SIZE))) for i in range(int(A[n]))]
                for i, weight in enumerate(e):
                    expected += weight / sum(e) * a[n, i]
            torch.testing.assert_close(found[1][n, j], expected)


def test_the_other_way_round_soft_alignment_is_the_same_the_other_way_round() -> None:
    a, b = two_batches()
    one, other = soft_align(a, b, A, B), soft_align(b, a, B, A)
    torch.testing.assert_close((one[0], one[1]), (other[1], other[0]))


def test_with_scores_of_its_own_it_mixes_the_same_words_by_these() -> None:
    a, b = two_batches()
    even = soft_align(a, b, A, B, torch.zeros(4, 4, 5, dtype=torch.float64))
    torch.testing.assert_close(even[0][2, 0], b[2, 0])
    torch.testing.assert_close(even[1][0, 1], a[0, :3].mean(dim=0))


def test_a_word_alone_is_all_that_is_attended_to() -> None:
    a, b = two_batches()
    torch.testing.assert_close(soft_align(a, b, A, B)[0][2], b[2, :1].expand(4, -1))


def test_gradients_are_finite_with_empty_sentences_and_padding_of_any_kind() -> None:
    a, b = (batch.requires_grad_() for batch in two_batches())
    found = soft_align(a, b, A, B)
    gradients = torch.autograd.grad(found[0].square().sum() + found[1].square().sum(), [a, b])
    for gradient, lengths in zip(gradients, (A, B), strict=True):
        assert gradient.isfinite().all()
        assert (gradient[~length_mask(lengths, gradient.shape[1])] == 0).all()


def test_two_batches_of_empty_sentences_alone_have_empty_alignments() -> None:
    none = torch.tensor([0, 0])
    found = soft_align(torch.zeros(2, 0, SIZE), torch.zeros(2, 3, SIZE), none, torch.tensor([3, 1]))
    assert found[0].shape == (2, 0, SIZE)
    assert torch.equal(found[1], torch.zeros(2, 3, SIZE))


def test_biattention_is_a_sentence_its_difference_from_and_its_product_with_what_it_attends_to() -> None:
    x, y = two_batches(0.0)
    found = biattention(x, y, A, B)
    for n in range(3):
        X, Y = x[n, : A[n]], y[n, : B[n]]
        scores = X @ Y.T  # McCann et al. 2017, equations 6 to 9: columns of A and of its transpose are normalised
        A_x, A_y = torch.softmax(scores, dim=0), torch.softmax(scores.T, dim=0)
        C_x, C_y = A_x.T @ X, A_y.T @ Y
        torch.testing.assert_close(found[0][n, : A[n]], torch.cat([X, X - C_y, X * C_y], dim=1))
        torch.testing.assert_close(found[1][n, : B[n]], torch.cat([Y, Y - C_x, Y * C_x], dim=1))


def test_a_sentence_that_attends_to_itself_has_two_equal_sides() -> None:
    x, _ = two_batches(0.0)
    found = biattention(x, x, A, A)
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("hidden", [None, 5])
def test_attentive_pooling_is_the_mean_by_the_softmax_of_each_word_s_score(hidden: int | None) -> None:
    torch.manual_seed(0)
    pool = AttentivePool(SIZE, hidden=hidden).double()
    x, _ = two_batches()
    vector, weights = pool(x, A)
    for n, length in enumerate(A.tolist()):
        if length == 0:
            assert torch.equal(vector[n], torch.zeros_like(vector[n]))
            continue
        inner = [
            word if pool.inner is None else torch.tanh(pool.inner.weight @ word + pool.inner.bias) for word in x[n]
        ]
        scores = torch.stack([(pool.score.weight[0] * i).sum() for i in inner[:length]])
        shares = scores.exp() / scores.exp().sum()
        torch.testing.assert_close(weights[n, :length], shares)
        torch.testing.assert_close(vector[n], sum(share * word for share, word in zip(shares, x[n], strict=False)))
        assert (weights[n, length:] == 0).all()


def test_attentive_pooling_of_equal_words_is_the_word_and_of_nothing_zero() -> None:
    pool = AttentivePool(SIZE)
    word = torch.randn(1, 1, SIZE)
    torch.testing.assert_close(pool(word.expand(2, 4, SIZE), torch.tensor([4, 2]))[0], word[0].expand(2, SIZE))
    assert torch.equal(pool(torch.zeros(2, 0, SIZE), torch.tensor([0, 0]))[0], torch.zeros(2, SIZE))


def test_a_masked_softmax_is_the_softmax_of_what_is_let_through() -> None:
    scores = torch.tensor([[1.0, 2.0, 1e30], [5.0, torch.nan, 5.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, True, False], [True, False, True], [False, False, False]])
    expected = torch.tensor([[0.26894143, 0.73105857, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(masked_softmax(scores, mask), expected)

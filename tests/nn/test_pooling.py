"""Pooling against loops over the words that are there."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from relmo.nn.pooling import final, length_mask, mask_padding, maximum, mean
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.nn.recurrence.stack import Recurrent

LENGTHS = torch.tensor([3, 1, 0, 5, 4])
POOLS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "mean": (mean, lambda words: words.mean(dim=0)),
    "maximum": (maximum, lambda words: words.max(dim=0).values),
    "minimum": (lambda x, lengths: -maximum(-x, lengths), lambda words: words.min(dim=0).values),
    "final": (final, lambda words: words[-1]),
}


def padded(value: float = torch.nan) -> Tensor:
    x = (
        torch.randn(5, 5, 4, generator=torch.Generator().manual_seed(1)) - 3
    )  # all negative: a zero would be the maximum
    x[~length_mask(LENGTHS, 5)] = value
    return x


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_that_of_the_sentence_s_own_words_and_of_no_word_zero(name: str) -> None:
    pool, definition = POOLS[name]
    x = padded()
    found = pool(x, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        expected = definition(x[row, :length]) if length else torch.zeros(4)
        torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("name", POOLS)
def test_gradients_are_finite_and_none_goes_past_the_end(name: str) -> None:
    x = padded().requires_grad_()
    (gradient,) = torch.autograd.grad(POOLS[name][0](x, LENGTHS).square().sum(), x)
    assert gradient.isfinite().all()
    assert (gradient[~length_mask(LENGTHS, 5)] == 0).all()
    assert (gradient.flatten(1).abs().sum(dim=1) > 0).tolist() == (LENGTHS > 0).tolist()


@pytest.mark.parametrize("name", POOLS)
def test_a_batch_of_empty_sentences_alone_gives_zeros(name: str) -> None:
    assert torch.equal(POOLS[name][0](torch.zeros(2, 0, 4), torch.tensor([0, 0])), torch.zeros(2, 4))


def test_the_final_of_two_directions_is_the_state_in_which_each_ended() -> None:
    network = Recurrent(lambda size: LSTMCell(size, hidden_size=3), input_size=2, bidirectional=True)
    lengths = torch.tensor([4, 1, 2])
    run = network(torch.randn(3, 4, 2), None, lengths)
    h_forward, _, h_backward, _ = run.state
    torch.testing.assert_close(final(run.output, lengths, directions=2), torch.cat([h_forward, h_backward], dim=1))


def test_what_is_past_the_end_is_replaced_and_nothing_else() -> None:
    x = padded()
    blanked = mask_padding(x, LENGTHS, 7.0)
    there = length_mask(LENGTHS, 5)
    assert torch.equal(blanked[there], x[there])
    assert (blanked[~there] == 7).all()

"""The CRF against brute force over every sequence of tags; legality, padding, precision."""

from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from relmo.nn.crf import CRF, NEVER, best_legal

TAGS = 3


def no_repeats(tags: int = TAGS) -> Tensor:
    """No tag after itself, none but the last tag at the end, not the last at the start."""
    legal = torch.ones(tags + 2, tags + 2, dtype=torch.bool)
    legal.fill_diagonal_(False)
    legal[:, tags + 1] = False
    legal[tags - 1, tags + 1] = True
    legal[tags, tags - 1] = False
    return legal


def make(tags: int = TAGS, *, legal: Tensor | None = None, seed: int = 0) -> CRF:
    torch.manual_seed(seed)
    crf = CRF(tags, legal=legal).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    return crf


def is_legal(crf: CRF, tags: tuple[int, ...]) -> bool:
    path = (crf.tags, *tags, crf.tags + 1)
    return all(bool(crf.legal[one, two]) for one, two in pairwise(path))


def score(crf: CRF, emissions: Tensor, tags: tuple[int, ...]) -> Tensor:
    """The definition, for one sentence without padding, emissions (T, K)."""
    total = crf.start[tags[0]] + crf.end[tags[-1]]
    for t, tag in enumerate(tags):
        total = total + emissions[t, tag]
    for one, two in pairwise(tags):
        total = total + crf.transitions[one, two]
    return total


def every(crf: CRF, steps: int) -> list[tuple[int, ...]]:
    return [tags for tags in product(range(crf.tags), repeat=steps) if is_legal(crf, tags)]


@pytest.mark.parametrize("legal", [None, no_repeats()], ids=["anything", "some"])
@pytest.mark.parametrize("steps", [2, 3, 5])
def test_loss_and_its_gradients_equal_the_sum_over_all_legal_sequences(legal: Tensor | None, steps: int) -> None:
    crf = make(legal=legal)
    emissions = torch.randn(1, steps, TAGS, dtype=torch.float64, requires_grad=True)
    sequences = every(crf, steps)
    assert sequences
    Z = torch.logsumexp(torch.stack([score(crf, emissions[0], tags) for tags in sequences]), dim=0)
    wanted = [emissions, *crf.parameters()]
    for tags in sequences[:: max(1, len(sequences) // 5)]:
        expected = Z - score(crf, emissions[0], tags)
        found = crf.loss(emissions, torch.tensor([tags]), torch.tensor([steps]))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            torch.autograd.grad(found, wanted), torch.autograd.grad(expected, wanted, retain_graph=True)
        )


@pytest.mark.parametrize("legal", [None, no_repeats()], ids=["anything", "some"])
@pytest.mark.parametrize("tags", [(0, -100, 1, -100), (-100, -100, -100, -100), (-100, 1, 0, 2)])
def test_a_word_without_a_tag_may_have_any(legal: Tensor | None, tags: tuple[int, ...]) -> None:
    crf = make(legal=legal)
    emissions = torch.randn(2, 5, TAGS, dtype=torch.float64)
    sequences = every(crf, 4)
    scores = torch.stack([score(crf, emissions[0, :4], sequence) for sequence in sequences])
    agrees = [all(tag in (own, -100) for own, tag in zip(sequence, tags, strict=True)) for sequence in sequences]
    expected = torch.logsumexp(scores, dim=0) - torch.logsumexp(scores[torch.tensor(agrees)], dim=0)
    batch = torch.tensor([(*tags, -100), (0, 1, 2, 1, 2)])
    first, second = crf(emissions, batch, torch.tensor([4, 5]))
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, crf(emissions[1:], batch[1:], torch.tensor([5]))[0])


def test_tags_around_a_word_without_one_must_be_legal() -> None:
    crf = make(legal=no_repeats())
    with pytest.raises(ValueError, match="not legal"):
        crf.loss(torch.zeros(1, 3, TAGS, dtype=torch.float64), torch.tensor([(0, 0, -100)]), torch.tensor([3]))


@pytest.mark.parametrize("legal", [None, no_repeats()], ids=["anything", "some"])
def test_probabilities_of_all_legal_sequences_sum_to_one(legal: Tensor | None) -> None:
    crf = make(legal=legal)
    sequences = torch.tensor(every(crf, 4))
    emissions = torch.randn(1, 4, TAGS, dtype=torch.float64).expand(len(sequences), -1, -1)
    nll = crf(emissions, sequences, torch.full((len(sequences),), 4))
    assert (-nll).exp().sum().item() == pytest.approx(1.0, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), tags=st.integers(1, 4), lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_decode_finds_the_best_of_all_legal_sequences(seed: int, tags: int, lengths: list[int]) -> None:
    torch.manual_seed(seed)
    legal = torch.rand(tags + 2, tags + 2) < 0.7
    legal[0], legal[tags, 0], legal[0, tags + 1] = True, True, True  # some sequence of every length
    legal[0, 0] = True
    crf = make(tags, legal=legal, seed=seed)
    emissions = 2 * torch.randn(len(lengths), max(lengths), tags, dtype=torch.float64)
    found = crf.decode(emissions, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        best = max(every(crf, length), key=lambda path, row=row: score(crf, emissions[row], path).item())  # type: ignore[misc]
        assert tuple(found[row]) == best


@pytest.mark.parametrize("legal", [None, no_repeats()], ids=["anything", "some"])
def test_marginals_of_words_and_of_neighbours_equal_sums_over_all_legal_sequences(legal: Tensor | None) -> None:
    crf, lengths = make(legal=legal), [5, 2, 3]
    emissions = torch.randn(3, 5, TAGS, dtype=torch.float64) * 3
    emissions[1, 2:] = torch.nan  # past the end
    paths = crf.decode(emissions, torch.tensor(lengths))
    tags = torch.tensor([path + [0] * (5 - len(path)) for path in paths])
    words, pairs = (log.exp() for log in crf.log_marginals(emissions, tags, torch.tensor(lengths)))
    for row, n in enumerate(lengths):
        sequences = every(crf, n)
        shares = torch.softmax(torch.stack([score(crf, emissions[row, :n], path) for path in sequences]), dim=0)
        known = list(zip(sequences, shares.tolist(), strict=True))
        for t in range(n):
            own = sum(share for path, share in known if path[t] == paths[row][t])
            assert words[row, t].item() == pytest.approx(own, rel=1e-9)
        for t in range(n - 1):
            both = sum(share for path, share in known if list(path[t : t + 2]) == paths[row][t : t + 2])
            assert pairs[row, t].item() == pytest.approx(both, rel=1e-9)


def test_marginals_of_a_tag_that_may_not_stand_there_are_zero_and_of_nothing_nothing() -> None:
    crf = make(legal=no_repeats())
    words, _ = crf.log_marginals(torch.randn(1, 2, TAGS), torch.tensor([[2, 0]]), torch.tensor([2]))
    assert words.exp().tolist() == [[0.0, 0.0]]
    words, pairs = crf.log_marginals(torch.zeros(2, 0, TAGS), torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2))
    assert (words.shape, pairs.shape) == ((2, 0), (2, 0))


def test_a_mixed_batch_is_its_sentences_one_by_one_whatever_stands_in_the_padding() -> None:
    crf = make()
    lengths = torch.tensor([4, 1, 0, 6, 2])
    emissions = torch.randn(5, 6, TAGS, dtype=torch.float64)
    tags = torch.randint(TAGS, (5, 6))
    for row, length in enumerate(lengths.tolist()):
        emissions[row, length:], tags[row, length:] = float("nan"), 10**6
    emissions.requires_grad_()
    together = crf(emissions, tags, lengths)
    alone = [
        crf(emissions[row : row + 1, :n], tags[row : row + 1, :n], lengths[row : row + 1])
        for row, n in enumerate(lengths.tolist())
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(crf.loss(emissions, tags, lengths), together.mean())
    assert together[2].item() == 0
    wanted = [emissions, *crf.parameters()]
    own = torch.autograd.grad(together.sum(), wanted, retain_graph=True)
    torch.testing.assert_close(own, torch.autograd.grad(torch.cat(alone).sum(), wanted))
    assert all(bool(gradient.isfinite().all()) for gradient in own)
    paths = crf.decode(emissions, lengths)
    assert [len(path) for path in paths] == lengths.tolist()
    for row, n in enumerate(lengths.tolist()):
        assert paths[row] == crf.decode(emissions[row : row + 1, :n], lengths[row : row + 1])[0]


def test_illegal_tags_are_never_decoded_even_when_emissions_and_weights_shout_for_them() -> None:
    crf = make(legal=no_repeats()).float()
    torch.nn.init.constant_(crf.transitions, -1000.0)
    crf.transitions.data.fill_diagonal_(1e6)
    for hostile in range(TAGS):
        emissions = torch.zeros(4, 7, TAGS)
        emissions[:, :, hostile] = 1e6
        for path, length in zip(crf.decode(emissions, torch.tensor([7, 2, 4, 5])), [7, 2, 4, 5], strict=True):
            assert len(path) == length
            assert is_legal(crf, tuple(path))


def test_loss_stays_finite_and_right_in_float32_with_emissions_of_ten_thousand() -> None:
    crf = make(legal=no_repeats()).float()
    emissions = (1e4 * torch.randn(1, 5, TAGS)).requires_grad_()
    sequences = every(crf, 5)
    tags = torch.tensor([sequences[3]])
    loss = crf.loss(emissions, tags, torch.tensor([5]))
    exact = make(legal=no_repeats())
    exact.load_state_dict(crf.state_dict())
    Z = torch.logsumexp(torch.stack([score(exact, emissions[0].double(), path) for path in sequences]), dim=0)
    expected = Z - score(exact, emissions[0].double(), sequences[3])
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-2)
    (gradient,) = torch.autograd.grad(loss, emissions)
    assert gradient.isfinite().all()


def test_emissions_of_half_precision_are_summed_in_the_crf_s_own() -> None:
    crf = make().float()
    emissions, tags, lengths = torch.randn(2, 5, TAGS).bfloat16(), torch.randint(TAGS, (2, 5)), torch.tensor([5, 3])
    found = crf(emissions, tags, lengths)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, crf(emissions.float(), tags, lengths), rtol=0, atol=0)


def test_without_transition_scores_it_is_a_softmax_at_every_step() -> None:
    crf = make(5)
    for parameter in crf.parameters():
        torch.nn.init.zeros_(parameter)
    emissions, tags = torch.randn(2, 4, 5, dtype=torch.float64), torch.randint(5, (2, 4))
    expected = torch.nn.functional.cross_entropy(emissions.transpose(1, 2), tags, reduction="none").sum(dim=1)
    torch.testing.assert_close(crf(emissions, tags, torch.tensor([4, 4])), expected)
    assert crf.decode(emissions, torch.tensor([4, 4])) == emissions.argmax(dim=2).tolist()


@pytest.mark.parametrize("path", [(0, 0, 2), (2, 1, 2), (0, 2, 1)], ids=["inside", "start", "end"])
def test_training_on_a_sequence_that_is_not_legal_is_an_error(path: tuple[int, ...]) -> None:
    crf = make(legal=no_repeats())
    emissions = torch.zeros(2, 5, TAGS, dtype=torch.float64)
    fine = (0, 1, 2, 1, 2)
    crf.loss(emissions, torch.tensor([fine, (1, 2, 2, 2, 2)]), torch.tensor([5, 2]))  # past the end all is legal
    with pytest.raises(ValueError, match="not legal"):
        crf.loss(emissions, torch.tensor([fine, (*path, 1, 2)]), torch.tensor([5, 3]))


def test_decoding_where_nothing_is_legal_is_an_error_and_nothing_at_all_is_empty() -> None:
    crf = make(legal=no_repeats())  # of one word there is no legal sequence: the last tag may not begin
    with pytest.raises(ValueError, match="No sequence"):
        crf.decode(torch.zeros(1, 1, TAGS), torch.tensor([1]))
    assert crf.decode(torch.zeros(2, 0, TAGS), torch.tensor([0, 0])) == [[], []]
    assert crf.decode(torch.zeros(0, 3, TAGS), torch.tensor([], dtype=torch.long)) == []
    assert crf.loss(torch.zeros(2, 0, TAGS), torch.zeros(2, 0, dtype=torch.long), torch.tensor([0, 0])).item() == 0


def test_legal_transitions_of_another_size_are_an_error_and_are_not_weights() -> None:
    with pytest.raises(ValueError, match=r"\(5, 5\)"):
        CRF(3, legal=torch.ones(3, 3, dtype=torch.bool))
    assert set(CRF(3).state_dict()) == {"transitions", "start", "end"}


def test_training_learns_tags_that_only_the_tag_before_tells() -> None:
    """Emissions are all alike: 0 1 2 0 1 2 … can be known from start and transitions alone."""
    torch.manual_seed(0)
    crf = CRF(3)
    optimizer = torch.optim.Adam(crf.parameters(), lr=0.2)
    tags, emissions, lengths = torch.arange(9).remainder(3).expand(2, -1), torch.zeros(2, 9, 3), torch.tensor([9, 5])
    for _ in range(60):
        optimizer.zero_grad()
        crf.loss(emissions, tags, lengths).backward()
        optimizer.step()
    assert crf.decode(emissions, lengths) == [[0, 1, 2, 0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1]]


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def operations(sentences: int, words: int, tags: int) -> int:
    crf = CRF(tags)
    emissions = torch.randn(sentences, words, tags, requires_grad=True)
    with Operations() as done:
        crf.loss(emissions, torch.randint(tags, (sentences, words)), torch.full((sentences,), words)).backward()
        crf.decode(emissions, torch.full((sentences,), words))
    return done.count


def test_the_number_of_operations_grows_with_the_words_of_a_sentence_alone() -> None:
    few = operations(2, 10, 3)
    assert operations(32, 10, 50) == few
    assert operations(2, 20, 3) < 2 * few


@pytest.mark.gpu
def test_on_a_gpu_it_is_the_same() -> None:
    crf = make(legal=no_repeats())
    emissions, lengths = torch.randn(3, 6, TAGS, dtype=torch.float64), torch.tensor([6, 2, 4])
    tags = torch.tensor([[0, 1, 0, 1, 0, 2], [1, 2, 0, 0, 0, 0], [0, 2, 1, 2, 0, 0]])
    expected, paths = crf(emissions, tags, lengths), crf.decode(emissions, lengths)
    crf.cuda()
    torch.testing.assert_close(crf(emissions.cuda(), tags.cuda(), lengths).cpu(), expected)
    assert crf.decode(emissions.cuda(), lengths.cuda()) == paths


def test_of_a_softmaxs_scores_the_best_legal_sequence_is_chosen() -> None:
    torch.manual_seed(0)
    crf, lengths = make(legal=no_repeats()), torch.tensor([4, 2, 0])
    scores = torch.randn(3, 4, TAGS, dtype=torch.float64)
    scores[1, 0, 0] = NEVER
    found = best_legal(scores, lengths, no_repeats())
    for row, length in enumerate(lengths.tolist()):
        sums = {tags: sum(float(scores[row, t, tag]) for t, tag in enumerate(tags)) for tags in every(crf, length)}
        assert tuple(found[row]) == (max(sums, key=sums.__getitem__) if length else ())
    assert found[1][0] != 0

"""Skip-gram: the loss is its definition's, pair by pair; what the text gives to it is what the paper says."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relmo.networks.skipgram import Groups, SkipGram
from relmo.settings.lm import SkipgramModelSettings
from relmo.training.batch import GROUP_SIZE, NUM_NEGATIVES, Contexts

END = 1


def contexts_of(
    stream: np.ndarray, counts: np.ndarray, *, batch: int = 1 << 20, seed: int = 0, **model: float
) -> Contexts:
    chosen = SkipgramModelSettings(**model)  # type: ignore[arg-type]
    return Contexts(stream, counts, chosen, end=END, batch=batch, seed=seed)


def stream_of(words: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids 2 to words + 1 by Zipf's law, with an end of text here and there; and their counts."""
    generator = np.random.default_rng(seed)
    shares = 1 / np.arange(1, words + 1)
    ids = 2 + generator.choice(words, size=length, p=shares / shares.sum())
    ids[generator.random(length) < 0.05] = END
    counts = np.bincount(ids, minlength=words + 2)
    counts[END] = 0
    return ids.astype(np.uint16), counts


def network_of(vocab_size: int, *, negatives: int = 3, seed: int = 0) -> SkipGram:
    torch.manual_seed(seed)
    network = SkipGram(SkipgramModelSettings(dimensions=4, negatives=negatives), vocab_size=vocab_size).double()
    torch.nn.init.normal_(network.words.weight)
    torch.nn.init.normal_(network.contexts.weight)
    return network


def slow_loss(network: SkipGram, groups: Groups) -> float:
    """The definition: for each pair, -log s(u.v) and k times the mean of -log s(-u.v) over the group's negatives."""
    u, v = network.words.weight.tolist(), network.contexts.weight.tolist()

    def minus_log_sigmoid(word: int, context: int, sign: int) -> float:
        return math.log1p(math.exp(-sign * sum(a * b for a, b in zip(u[word], v[context], strict=True))))

    losses = []
    for g, s, c in groups.pairs.nonzero().tolist():
        word, context, noise = int(groups.centres[g, s]), int(groups.contexts[g, c]), groups.negatives[g].tolist()
        random = sum(minus_log_sigmoid(word, n, -1) for n in noise) / len(noise)
        losses.append(minus_log_sigmoid(word, context, 1) + network.negatives * random)
    return sum(losses) / len(losses)


@given(st.integers(2, 90), st.integers(1, 4), st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_loss_is_the_mean_over_all_pairs_of_the_definition(length: int, window: int, seed: int) -> None:
    stream, counts = stream_of(9, length, seed)
    stream[:2] = 2
    counts[2] += 2
    groups = contexts_of(stream, counts, seed=seed, window=window, subsample=1.0).get(0, 0)
    network = network_of(len(counts), seed=seed)
    loss = network.loss(groups, None)
    assert loss.predictions == int(groups.pairs.sum()) > 0
    assert loss.mean.item() == pytest.approx(slow_loss(network, groups), rel=1e-9)


def test_gradients_are_sparse_and_those_of_the_sum_over_the_pairs_by_finite_differences() -> None:
    stream, counts = stream_of(12, 80, seed=1)
    groups = contexts_of(stream, counts, window=3, subsample=1.0).get(0, 0)
    network = network_of(len(counts))
    network.loss(groups, None).mean.backward()
    for weight in network.parameters():
        assert weight.grad is not None
        assert weight.grad.is_sparse
        gradient, direction = weight.grad.to_dense(), torch.randn_like(weight)
        with torch.no_grad():
            ends = []
            for step in (1e-5, -2e-5):
                weight += step * direction
                ends.append(network.loss(groups, None).mean.item() * groups.predictions)
            weight += 1e-5 * direction
        assert (gradient * direction).sum().item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


def test_a_batch_without_words_has_no_pairs_and_no_loss() -> None:
    groups = contexts_of(np.full(20, END), np.array([0, 0, 5])).get(0, 0)
    loss = network_of(3).loss(groups, None)
    assert (loss.predictions, loss.mean.item()) == (0, 0.0)


def found_pairs(groups: Groups, window: int) -> list[tuple[int, int]]:
    """The pairs as places in the thinned text: (centre, context)."""
    return [(g * GROUP_SIZE + s, g * GROUP_SIZE + c - window) for g, s, c in groups.pairs.nonzero().tolist()]


@given(st.integers(1, 150), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_with_a_window_of_one_the_pairs_are_all_neighbours_within_a_text(length: int, seed: int) -> None:
    stream, counts = stream_of(6, length, seed)
    counts[2:] += 1
    groups = contexts_of(stream, counts, window=1, subsample=1.0, seed=seed).get(0, 0)
    place, expected, before = 0, set(), None
    for symbol in stream:
        if symbol == END:
            before = None
            continue
        if before is not None:
            expected |= {(before, place), (place, before)}
        before, place = place, place + 1
    assert sorted(found_pairs(groups, 1)) == sorted(expected)
    assert groups.centres.flatten()[:place].tolist() == stream[stream != END].tolist()


def test_nearer_words_are_paired_more_often_and_none_further_than_the_window() -> None:
    stream = np.full(100_000, 2)
    groups = contexts_of(stream, np.array([0, 0, 100_000]), window=4, subsample=1.0).get(0, 0)
    distances = np.array([abs(i - j) for i, j in found_pairs(groups, 4)])
    shares = np.bincount(distances, minlength=6) / len(stream)
    assert shares == pytest.approx([0, 2, 1.5, 1, 0.5, 0], abs=0.02), "reach 1 to 4, each as likely, to both sides"


def test_frequent_words_stay_with_the_root_of_the_threshold_over_their_share() -> None:
    stream, counts = stream_of(50, 400_000, seed=3)
    groups = contexts_of(stream, counts, subsample=0.01).get(0, 0)
    stayed = np.bincount(groups.centres.flatten(), minlength=len(counts))
    expected = np.minimum(1, np.sqrt(0.01 / (counts[2:] / counts.sum())))
    assert stayed[2:] / counts[2:] == pytest.approx(expected, abs=0.02)
    assert expected.min() < 0.25 < expected.max() == 1


def test_negatives_follow_the_counts_to_the_power_of_three_quarters() -> None:
    stream, counts = stream_of(30, 200_000, seed=4)
    groups = contexts_of(stream, counts, subsample=1.0).get(0, 0)
    assert groups.negatives.shape[1] == NUM_NEGATIVES
    drawn = np.bincount(groups.negatives.flatten(), minlength=len(counts)) / groups.negatives.numel()
    assert drawn == pytest.approx(counts**0.75 / (counts**0.75).sum(), abs=0.003)
    assert drawn[END] == 0


def test_batches_depend_on_nothing_but_their_place_and_an_epoch_reads_all_in_a_new_order() -> None:
    stream = np.arange(2, 502)
    contexts = contexts_of(stream, np.ones(502), batch=60, subsample=1.0)
    first, second = ([contexts.get(epoch, i) for i in range(len(contexts))] for epoch in (0, 1))
    again = contexts_of(stream, np.ones(502), batch=60, subsample=1.0)
    for i in reversed(range(len(contexts))):
        for epoch, batches in ((1, second), (0, first)):
            assert all(np.array_equal(a, b) for a, b in zip(again.get(epoch, i), batches[i], strict=True))
    orders = [torch.cat([b.centres[b.pairs.any(dim=2)] for b in batches]).tolist() for batches in (first, second)]
    assert sorted(orders[0]) == sorted(orders[1]) == stream.tolist()
    assert orders[0] != orders[1]

"""Batches: lanes cover the stream once and go on where they ended; buckets deal every sequence once an epoch."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relmo.batch import Lanes, LengthBuckets, pad
from relmo.errors import CorpusError

CPU = torch.device("cpu")


def lanes_of(length: int, batch: int, unroll: int, dtype: type = np.uint16) -> Lanes:
    """Over a stream whose symbols are their own places."""
    return Lanes(np.arange(length, dtype=dtype), batch=batch, unroll=unroll, device=CPU)


sizes = st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(0, 200))  # batch, unroll, symbols beyond one window


@given(sizes)
@settings(max_examples=100, deadline=None)
def test_lanes_predict_every_symbol_once_but_a_tail_shorter_than_the_batch(size: tuple[int, int, int]) -> None:
    batch, unroll, more = size
    length = batch * unroll + 1 + more
    lanes = lanes_of(length, batch, unroll)
    targets = torch.cat([lanes.get(0, i).targets.flatten() for i in range(len(lanes))]).sort().values
    covered = len(targets)
    assert targets.tolist() == list(range(1, covered + 1))
    assert 0 <= length - 1 - covered < batch


@given(sizes)
@settings(max_examples=50, deadline=None)
def test_targets_are_the_symbols_after_the_inputs(size: tuple[int, int, int]) -> None:
    batch, unroll, more = size
    lanes = lanes_of(batch * unroll + 1 + more, batch, unroll)
    for index in range(len(lanes)):
        inputs, targets = lanes.get(0, index)
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.shape == targets.shape
        assert torch.equal(targets, inputs + 1)


@given(sizes)
@settings(max_examples=50, deadline=None)
def test_each_lane_goes_on_in_the_next_window_where_it_ended(size: tuple[int, int, int]) -> None:
    batch, unroll, more = size
    lanes = lanes_of(batch * unroll + 1 + more, batch, unroll)
    windows = [lanes.get(0, index) for index in range(len(lanes))]
    for before, after in pairwise(windows):
        assert before.inputs.shape == (batch, unroll)
        assert torch.equal(after.inputs[:, 0], before.targets[:, -1])
    assert 1 <= windows[-1].inputs.shape[1] <= unroll
    starts = windows[0].inputs[:, 0]
    assert (starts.diff() == lanes.length).all(), "the lanes are equal pieces, one after the other"


def test_every_epoch_of_lanes_reads_the_same() -> None:
    lanes = lanes_of(101, 4, 7)
    for index in range(len(lanes)):
        assert torch.equal(lanes.get(0, index).inputs, lanes.get(5, index).inputs)


@pytest.mark.parametrize("length", [0, 1, 2, 24])
def test_a_stream_shorter_than_one_window_is_an_error_that_says_both_sizes(length: int) -> None:
    with pytest.raises(CorpusError, match=rf"has {length - 1} symbols.*4 lanes x 6 steps.*--batch"):
        lanes_of(length, batch=4, unroll=6)


def test_a_stream_of_exactly_one_window_is_enough() -> None:
    lanes = lanes_of(25, batch=4, unroll=6)
    assert len(lanes) == 1
    assert lanes.get(0, 0).targets.flatten().tolist() == list(range(1, 25))


def test_lanes_neither_copy_nor_change_the_stream() -> None:
    stream = np.arange(50, dtype=np.uint16)
    lanes = Lanes(stream, batch=3, unroll=4, device=CPU)
    assert np.shares_memory(lanes.lanes, stream)
    lanes.get(0, 0).inputs.zero_()
    assert stream.tolist() == list(range(50))


def test_lanes_of_a_strided_stream_read_its_own_symbols() -> None:
    stream = np.arange(100)[::2]
    inputs, targets = Lanes(stream, batch=2, unroll=5, device=CPU).get(0, 0)
    assert inputs[0].tolist() == [0, 2, 4, 6, 8]
    assert targets[0].tolist() == [2, 4, 6, 8, 10]


@given(st.lists(st.lists(st.integers(1, 99), max_size=7), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_padding_keeps_every_sequence_and_is_zero_behind_it(sequences: list[list[int]]) -> None:
    ids, lengths = pad([np.array(sequence, dtype=np.int32) for sequence in sequences])
    assert ids.dtype == torch.int64
    assert lengths.tolist() == [len(sequence) for sequence in sequences]
    width = max(len(sequence) for sequence in sequences)
    assert ids.tolist() == [sequence + [0] * (width - len(sequence)) for sequence in sequences]


lengths_lists = st.lists(st.integers(1, 30), min_size=1, max_size=60)


@given(lengths_lists, st.integers(1, 100), st.integers(0, 5), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_buckets_deal_every_sequence_once_an_epoch_within_the_budget(
    lengths: list[int], budget: int, seed: int, epoch: int
) -> None:
    buckets = LengthBuckets(lengths, tokens_per_batch=budget, seed=seed)
    batches = [buckets.get(epoch, index).tolist() for index in range(len(buckets))]
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    for batch in batches:
        assert batch
        assert len(batch) * max(lengths[place] for place in batch) <= budget or len(batch) == 1


@given(lengths_lists, st.integers(1, 100))
@settings(max_examples=50, deadline=None)
def test_buckets_are_as_full_as_the_budget_allows(lengths: list[int], budget: int) -> None:
    """The shortest sequence of the next longer batch would not have fitted in."""
    buckets = LengthBuckets(lengths, tokens_per_batch=budget, seed=0)
    batches = [sorted(lengths[place] for place in buckets.get(0, index)) for index in range(len(buckets))]
    batches.sort(key=lambda batch: (batch[0], batch[-1], -len(batch)))  # as they were filled
    for batch, longer in pairwise(batches):
        assert batch[-1] <= longer[0], "batches do not mix lengths that others lie between"
        assert (len(batch) + 1) * longer[0] > budget


@given(lengths_lists, st.integers(1, 100), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_buckets_depend_on_seed_epoch_and_index_alone(lengths: list[int], budget: int, seed: int) -> None:
    one, other = (LengthBuckets(lengths, tokens_per_batch=budget, seed=seed) for _ in range(2))
    places = [(epoch, index) for epoch in range(3) for index in range(len(one))]
    forward = {place: one.get(*place).tolist() for place in places}
    backward = {place: other.get(*place).tolist() for place in reversed(places)}
    assert forward == backward


def epoch_of(buckets: LengthBuckets, epoch: int) -> list[list[int]]:
    return [buckets.get(epoch, index).tolist() for index in range(len(buckets))]


def test_epochs_and_seeds_differ_in_the_order_and_in_the_mates() -> None:
    lengths = [3] * 40 + [5] * 40
    buckets = LengthBuckets(lengths, tokens_per_batch=30, seed=0)
    first, second = epoch_of(buckets, 0), epoch_of(buckets, 1)
    other_seed = epoch_of(LengthBuckets(lengths, tokens_per_batch=30, seed=1), 0)
    for other in (second, other_seed):
        assert first != other
        assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in other}, "dealt anew"
        assert [lengths[batch[0]] for batch in first] != [lengths[batch[0]] for batch in other], "in another order"
    assert len(first) == len(second) == len(buckets)


def test_a_sequence_longer_than_the_budget_makes_a_batch_of_its_own() -> None:
    buckets = LengthBuckets([50, 2, 2, 60], tokens_per_batch=10, seed=0)
    assert sorted(map(sorted, epoch_of(buckets, 0))) == [[0], [1, 2], [3]]

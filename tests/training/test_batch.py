"""Batches: lanes cover the stream once and go on where they ended; buckets deal every sequence once an epoch."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relmo.errors import CorpusError
from relmo.networks.bilm import BiLMNetwork, BiWindow
from relmo.settings.bilm import BiLMModelSettings
from relmo.text.characters import Spellings, character_ids
from relmo.text.vocabulary import SentenceVocabulary
from relmo.training.batch import BiLanes, BiText, Lanes, LengthBuckets, move_to_device, round_up_size

CPU = torch.device("cpu")


def lanes_of(length: int, batch: int, unroll: int, dtype: type = np.uint16) -> Lanes:
    """Over a stream whose symbols are their own places."""
    return Lanes(np.arange(length, dtype=dtype), batch=batch, unroll=unroll)


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


@given(st.integers(1, 4), st.integers(1, 80), st.integers(0, 3000), st.integers(0, 9), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_varied_windows_read_every_symbol_once_in_order_in_every_epoch(
    batch: int, unroll: int, more: int, seed: int, epoch: int
) -> None:
    stream = np.arange(batch * unroll + 1 + more, dtype=np.uint16)
    lanes = Lanes(stream, batch=batch, unroll=unroll, seed=seed)
    plain = Lanes(stream, batch=batch, unroll=unroll)
    for window in (0, epoch):
        inputs = torch.cat([lanes.get(window, i).inputs for i in range(len(lanes))], dim=1)
        targets = torch.cat([lanes.get(window, i).targets for i in range(len(lanes))], dim=1)
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs, torch.cat([plain.get(0, i).inputs for i in range(len(plain))], dim=1))
    again = Lanes(stream, batch=batch, unroll=unroll, seed=seed).get(epoch, len(lanes) - 1)
    assert torch.equal(again.inputs, lanes.get(epoch, len(lanes) - 1).inputs), "a function of its place alone"


def test_varied_windows_have_few_lengths_around_the_whole_and_the_half_of_the_unroll() -> None:
    lanes = Lanes(np.zeros(2_000_000, dtype=np.uint16), batch=4, unroll=70, seed=1)
    lengths = [[lanes.get(epoch, i).inputs.shape[1] for i in range(len(lanes))] for epoch in range(3)]
    assert set(lengths[0]) <= {25, 30, 35, 40, 45, 60, 65, 70, 75, 80, lanes.bounds[-1] - lanes.bounds[-2]}
    assert np.mean(np.array(lengths[0]) < 50) == pytest.approx(0.05, abs=0.01)
    assert np.mean(lengths[0]) == pytest.approx(0.95 * 70 + 0.05 * 35, abs=0.3)
    assert np.std([n for n in lengths[0] if n > 50]) == pytest.approx(5, abs=0.3)
    assert lengths[0] != lengths[1] != lengths[2]
    assert sorted(lengths[0]) == sorted(lengths[1]) == sorted(lengths[2])
    assert [lanes.lr_factor(1, i) for i in range(50)] == [n / 70 for n in lengths[1][:50]]
    assert Lanes(np.zeros(300, dtype=np.uint16), batch=4, unroll=70).lr_factor(0, 1) == 1


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
    lanes = Lanes(stream, batch=3, unroll=4)
    assert np.shares_memory(lanes.lanes, stream)
    lanes.get(0, 0).inputs.zero_()
    assert stream.tolist() == list(range(50))


def test_lanes_of_a_strided_stream_read_its_own_symbols() -> None:
    stream = np.arange(100)[::2]
    inputs, targets = Lanes(stream, batch=2, unroll=5).get(0, 0)
    assert inputs[0].tolist() == [0, 2, 4, 6, 8]
    assert targets[0].tolist() == [2, 4, 6, 8, 10]


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


VOCABULARY = SentenceVocabulary(["a", "</S>", "b", "<UNK>", "<S>", "cc"])
LEXICON = [*VOCABULARY.symbols, "ddd", "e", "sesquipedalian"]


def sentences_of(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Sentences of one word or more, of any words of the lexicon."""
    return [rng.choice([0, 2, 3, 5, 6, 7, 8], size=rng.integers(1, 9)).tolist() for _ in range(count)]


def as_stream(sentences: list[list[int]]) -> np.ndarray:
    return np.array([-1, *(number for sentence in sentences for number in [*sentence, -1])], dtype=np.int32)


def bitext(sentences: list[list[int]], *, by_characters: bool = True, fixed_shapes: bool | None = None) -> BiText:
    spellings = Spellings(LEXICON, 12) if by_characters else None
    stream = as_stream(sentences)
    return BiText(stream, VOCABULARY, spellings=spellings, margin=3, device=CPU, fixed_shapes=fixed_shapes)


def read_words(window: BiWindow, *, by_characters: bool = True) -> list[list[list[str]]]:
    """The words that a window reads, found from what it looks like to a network: [direction][lane][step]."""
    if by_characters:
        full = {tuple(row): word for word, row in zip(LEXICON, character_ids(LEXICON, 12).tolist(), strict=True)}
        groups = [window.words] if isinstance(window.words, torch.Tensor) else window.words
        padded = [row + [261] * (12 - len(row)) for ids in groups for row in ids.tolist()]
        words = [full[tuple(row)] for row in padded]
    else:
        assert isinstance(window.words, torch.Tensor)
        words = [VOCABULARY.symbols[i] for i in window.words.tolist()]
    assert len(set(words)) == len(words)
    return [[[words[i] for i in lane] for lane in direction.T.tolist()] for direction in window.inputs]


def predicted_words(window: BiWindow) -> list[list[list[str]]]:
    return [[[VOCABULARY.symbols[i] for i in lane] for lane in direction.T.tolist()] for direction in window.targets]


def known(words: list[str]) -> list[str]:
    return [word if word in VOCABULARY.index else "<UNK>" for word in words]


@pytest.mark.parametrize("by_characters", [True, False])
def test_both_directions_read_each_sentence_from_its_mark_and_predict_to_the_other_one(by_characters: bool) -> None:
    text = bitext([[0, 6, 5], [2], [8, 8]], by_characters=by_characters)
    window = text.window(np.arange(text.steps + 1).reshape(1, -1))
    (forward,), (backward,) = read_words(window, by_characters=by_characters)
    if by_characters:
        assert forward == ["<S>", "a", "ddd", "cc", "<S>", "b", "<S>", "sesquipedalian", "sesquipedalian"]
        assert backward == ["</S>", "cc", "ddd", "a", "</S>", "b", "</S>", "sesquipedalian", "sesquipedalian"]
    else:
        assert forward == ["<S>", "a", "<UNK>", "cc", "<S>", "b", "<S>", "<UNK>", "<UNK>"]
    (forward,), (backward,) = predicted_words(window)
    assert forward == ["a", "<UNK>", "cc", "</S>", "b", "</S>", "<UNK>", "<UNK>", "</S>"]
    assert backward == ["cc", "<UNK>", "a", "<S>", "b", "<S>", "<UNK>", "<UNK>", "<S>"]


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_the_lanes_of_all_processes_read_the_text_once_as_a_ring(
    seed: int, batch: int, unroll: int, size: int, epoch: int
) -> None:
    sentences = sentences_of(np.random.default_rng(seed), 5 + batch * unroll * size)
    forwards = [word for s in sentences for word in ["<S>", *(LEXICON[i] for i in s)]]
    backwards = [word for s in sentences for word in ["</S>", *(LEXICON[i] for i in reversed(s))]]
    text = bitext(sentences)
    read: tuple[list[str], list[str]] = ([], [])
    for rank in range(size):
        lanes = BiLanes(text, batch=batch, unroll=unroll, rank=rank, world_size=size)
        windows = [read_words(lanes.get(epoch, i)) for i in range(len(lanes))]
        for lane in range(batch):
            for direction in range(2):
                read[direction].extend(word for window in windows for word in window[direction][lane])
    left_out = text.steps - len(read[0])
    assert 0 <= left_out < batch * size
    begins = [
        begin
        for begin in range(text.steps)
        if (forwards[begin:] + forwards[:begin])[: len(read[0])] == read[0]
        and (backwards[begin:] + backwards[:begin])[: len(read[1])] == read[1]
    ]
    assert begins, "both directions begin at the same place of the ring"
    assert epoch or 0 in begins


def test_targets_are_the_words_read_next_unknown_ones_marked_so() -> None:
    text = bitext(sentences_of(np.random.default_rng(1), 40))
    lanes = BiLanes(text, batch=3, unroll=5)
    for epoch in range(3):
        for index in range(len(lanes) - 1):
            window, following = lanes.get(epoch, index), read_words(lanes.get(epoch, index + 1))
            for direction, other in ((0, ("<S>", "</S>")), (1, ("</S>", "<S>"))):
                for read, after, targets in zip(
                    read_words(window)[direction], following[direction], predicted_words(window)[direction], strict=True
                ):
                    expected = [other[1] if word == other[0] else word for word in known([*read[1:], after[0]])]
                    assert targets == expected


def test_epochs_cut_the_text_at_other_places_and_each_window_is_a_function_of_its_place() -> None:
    text = bitext(sentences_of(np.random.default_rng(1), 40))
    lanes, again = (BiLanes(text, batch=2, unroll=5) for _ in range(2))
    firsts = [lanes.get(epoch, 0).targets for epoch in range(6)]
    assert all(not torch.equal(a, b) for i, a in enumerate(firsts) for b in firsts[:i])
    assert torch.equal(again.get(3, 2).targets, lanes.get(3, 2).targets)
    assert torch.equal(again.get(0, 0).inputs, lanes.get(0, 0).inputs)


def test_with_a_seed_every_epoch_reads_every_sentence_once_in_an_order_of_its_own() -> None:
    sentences = sentences_of(np.random.default_rng(1), 60)
    text = bitext(sentences)
    lanes, again, other = (BiLanes(text, batch=1, unroll=7, seed=seed) for seed in (3, 3, 4))
    read: dict[int, list[str]] = {}
    for epoch in (0, 2, 1):
        windows = [lanes.get(epoch, i) for i in range(len(lanes))]
        forward, backward = ([word for w in windows for word in read_words(w)[d][0]] for d in range(2))
        found = [part.split() for part in " ".join(forward).split("<S>")[1:]]
        mirrored = [part.split()[::-1] for part in " ".join(backward).split("</S>")[1:]]
        assert found == mirrored, "both directions have the same order"
        assert sorted(found) == sorted([LEXICON[i] for i in sentence] for sentence in sentences)
        read[epoch] = forward
    assert read[0] != read[1] != read[2] != read[0]
    for index in (0, 5):
        assert torch.equal(again.get(2, index).targets, lanes.get(2, index).targets)
        assert not torch.equal(other.get(2, index).targets, lanes.get(2, index).targets)


def test_a_stretch_of_sentences_stays_together_and_is_cut_elsewhere_in_every_epoch() -> None:
    sentences = [[0, 1], [2], [3, 0], [1], [2, 3, 0], [1, 3], [0], [3, 3], [2, 0], [1, 1, 1]]
    text = bitext(sentences)
    cuts = set()
    for epoch in range(20):
        order = text.shuffle(np.random.default_rng((1, epoch)), stretch=4)
        assert sorted(order.sentences) == list(range(len(sentences)))
        assert [len(sentences[i]) + 1 for i in order.sentences[:-1]] == list(np.diff(order.starts))
        begins = [0, *(i for i in range(1, 10) if order.sentences[i] != order.sentences[i - 1] + 1), 10]
        for begin, end in pairwise(begins):
            first, last = order.sentences[begin], order.sentences[end - 1]
            assert (end - begin) % 4 == 0 or first == 0 or last == 9, "only the ends of the text are shorter"
        cuts |= {int(order.sentences[begin]) % 4 for begin in begins[:-1] if order.sentences[begin]}
    assert cuts == {0, 1, 2, 3}
    lanes = BiLanes(text, batch=1, unroll=7, seed=1, stretch=4)
    lanes.get(0, 0)
    assert lanes.order is not None
    assert list(lanes.order.sentences) == list(text.shuffle(np.random.default_rng((1, 0)), stretch=4).sentences)


def test_lanes_of_shuffled_sentences_go_on_where_they_ended() -> None:
    text = bitext(sentences_of(np.random.default_rng(1), 60))
    for rank in range(2):
        lanes = BiLanes(text, batch=2, unroll=5, seed=3, rank=rank, world_size=2)
        one = BiLanes(text, batch=4, unroll=5, seed=3)
        for index in range(len(lanes)):
            window, whole = lanes.get(1, index), one.get(1, index)
            assert torch.equal(window.targets, whole.targets[:, :, 2 * rank : 2 * rank + 2])
            assert read_words(window) == [direction[2 * rank : 2 * rank + 2] for direction in read_words(whole)]


@given(st.integers(1, 100_000))
def test_few_values_are_the_quarters_of_powers_of_two(count: int) -> None:
    rounded = round_up_size(count)
    assert rounded >= count
    assert rounded == 64 or rounded < 1.25 * count
    power = 1 << (rounded.bit_length() - 1)
    assert rounded / power in (1, 1.25, 1.5, 1.75)


@pytest.mark.parametrize("by_characters", [True, False])
def test_fixed_shapes_change_neither_loss_nor_gradients(by_characters: bool) -> None:
    sentences = sentences_of(np.random.default_rng(1), 40)
    options: dict[str, Any] = {"char_dim": 4, "filters": ("1x8", "3x8"), "hidden": 12, "projection": 8, "dropout": 0.0}
    settings_ = BiLMModelSettings(
        **options, highway=1, max_characters=12, softmax="full", input="char" if by_characters else "word"
    )
    torch.manual_seed(0)
    network = BiLMNetwork(settings_, vocab_size=len(VOCABULARY))
    found = []
    for fixed in (False, True):
        text = bitext(sentences, by_characters=by_characters, fixed_shapes=fixed)
        window = BiLanes(text, batch=3, unroll=5).get(0, 1)
        loss = network.loss(window, None).mean
        found.append((loss, torch.autograd.grad(loss, list(network.parameters()))))
        shapes = [tuple(w.shape) for w in ([window.words] if isinstance(window.words, torch.Tensor) else window.words)]
    torch.testing.assert_close(found[0], found[1])
    assert shapes == ([(32, 12), (24, 12), (8, 12)] if by_characters else [(64,)])


def test_fixed_shapes_of_the_windows_of_a_text_are_few() -> None:
    rng = np.random.default_rng(1)
    lexicon = [*VOCABULARY.symbols, *("x" * length + str(i) for i, length in enumerate(rng.poisson(5, size=3000)))]
    numbers = rng.zipf(1.3, size=20_000)
    stream = np.where(numbers < 3000, numbers + len(VOCABULARY) - 1, -1).astype(np.int32)
    stream = np.concatenate([[-1], stream[(stream >= 0) | np.r_[False, stream[:-1] >= 0]], [0, -1]])
    shapes = []
    for fixed in (False, True):
        text = BiText(stream, VOCABULARY, spellings=Spellings(lexicon, 50), margin=7, device=CPU, fixed_shapes=fixed)
        lanes = BiLanes(text, batch=32, unroll=20, seed=1)
        windows = [lanes.get(0, i) for i in range(len(lanes) - 1)]
        shapes.append({tuple(tuple(group.shape) for group in window.words) for window in windows})
    assert len(shapes[0]) > 20
    assert len(shapes[1]) <= 6
    assert all(columns in (16, 24, 32, 50) for shape in shapes[1] for _, columns in shape)


def test_a_gpus_text_has_fixed_shapes_and_a_cpus_has_not() -> None:
    for device, fixed in (("cpu", False), ("cuda", True)):
        text = BiText(as_stream([[0]]), VOCABULARY, spellings=None, device=torch.device(device))
        assert text.fixed_shapes == fixed


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_batch_goes_to_the_device_with_all_that_is_in_it(device: str) -> None:
    ids = torch.arange(6).view(2, 3)
    batch = BiWindow([ids, ids[:, :-1]], ids.T, ids[:, 1:])
    found = move_to_device(batch, torch.device(device))
    assert isinstance(found, BiWindow)
    assert isinstance(found.words, list)
    for a, b in zip([*batch.words, *batch[1:]], [*found.words, *found[1:]], strict=True):
        assert b.device.type == device
        assert torch.equal(a, b.cpu())
    assert move_to_device((ids, 3), torch.device(device))[1] == 3


def test_fewer_words_than_one_window_of_all_processes_is_an_error() -> None:
    text = bitext([[0, 2, 5], [6]])
    BiLanes(text, batch=2, unroll=3)
    with pytest.raises(CorpusError, match=r"6 words and sentence ends, fewer than one window of 4 lanes x 3 steps"):
        BiLanes(text, batch=2, unroll=3, world_size=2)

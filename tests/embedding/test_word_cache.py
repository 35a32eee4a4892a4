"""What is kept of words: the same bits at both levels whatever is evicted, and nothing of weights that are gone."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from relmo.embedding.word_cache import Recency, WordCache, split_by_size
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.quantize import Factor, Precision
from relmo.settings.bilm import BiLMModelSettings
from relmo.text.characters import BOS, EOS, character_ids
from support.small_models import bilm

MODEL = BiLMModelSettings(char_dim=4, filters=("1x8", "2x8", "3x16"), highway=2, hidden=24, projection=16)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def network() -> BiLMNetwork:
    torch.manual_seed(1)
    return BiLMNetwork(MODEL, vocab_size=None)


@pytest.fixture
def asked(network: BiLMNetwork, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many words the encoder was asked for, call by call."""
    asked: list[int] = []
    forward = type(network.encoder).forward
    monkeypatch.setattr(
        type(network.encoder), "forward", lambda self, ids: asked.append(len(ids)) or forward(self, ids)
    )
    return asked


def both(cache: WordCache, words: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors (N, P) and gates (2, N, 4H)."""
    slots = cache.find(words)
    cache.find_gates([slots[: len(slots) // 2], slots])  # in two calls, the first of which one direction knows half
    cache.find_gates([slots, slots])
    gates = [cache.gates[d, cache.gate_rows[d, slots]] for d in range(2)]
    return cache.vectors[slots].clone(), torch.stack(gates)


def test_vectors_and_gates_are_those_of_the_definition(network: BiLMNetwork) -> None:
    words = ["a", "bank", "<S>", "", "straightforward", "日本語"]
    vectors, gates = both(WordCache(network, 50), words)
    slow = BiLMNetwork(MODEL, vocab_size=None, fast=False)
    slow.load_state_dict(network.state_dict())
    expected = slow.encoder(torch.from_numpy(character_ids(words, 50)))
    torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=0)
    expected = network.lstm.stack[0].input_gates(expected.expand(2, *expected.shape))
    torch.testing.assert_close(gates, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("vectors", "gates"), [(1000, 1000), (50, 7), (1, 1), (1000, 3), (3, 1000)])
def test_no_bit_depends_on_what_was_evicted_or_computed_together(
    network: BiLMNetwork, vectors: int, gates: int
) -> None:
    rng = np.random.default_rng(0)
    words = [f"word{i * i}" for i in range(120)]
    whole = both(WordCache(network, 50), words)
    cache = WordCache(network, 50, vectors=vectors, gates=gates)
    for _ in range(30):
        some = rng.choice(120, size=rng.integers(1, 40), replace=False)
        for one, other in zip(both(cache, [words[i] for i in some]), (whole[0][some], whole[1][:, some]), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_gates_are_of_the_precision_asked_for_and_no_bit_depends_on_other_words(
    network: BiLMNetwork, precision: Precision
) -> None:
    cache, words = WordCache(network, 50), [f"word{i * i}" for i in range(40)]
    vectors, exact = both(cache, words)
    slots = cache.find(words)
    cache.find_gates([slots, slots], precision)
    found = torch.stack([cache.gates[d, cache.gate_rows[d, slots]] for d in range(2)])
    first = network.lstm.stack[0]
    expected = Factor(first.weight_ih, precision).product(vectors) + first.full_bias().unsqueeze(1)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert not torch.allclose(found, exact, atol=1e-6, rtol=0)
    for i in (0, 7, 39):
        other = WordCache(network, 50)
        slot = other.find(words[i : i + 1])
        other.find_gates([slot, slot], precision)
        assert torch.equal(other.gates[:, other.gate_rows[0, slot[0]]], found[:, i])
    assert torch.equal(both(cache, words)[1], exact)


def test_words_are_encoded_once_and_the_one_used_longest_ago_goes(network: BiLMNetwork, asked: list[int]) -> None:
    cache = WordCache(network, 50, vectors=20)
    cache.find(["a", "b", "c"])
    cache.find(["c", "a", "b"])
    assert len(asked) == 1
    cache.find([str(i) for i in range(17)])  # 20 in all: nobody has to go
    cache.find(["a"])
    assert len(asked) == 2
    cache.find(["new"])  # now c goes
    cache.find(["a", "b"])
    assert len(asked) == 3
    cache.find(["c"])
    assert len(asked) == 4


def test_gates_that_were_evicted_are_made_again_without_encoding(
    network: BiLMNetwork, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = WordCache._make_gates
    monkeypatch.setattr(WordCache, "_make_gates", lambda self, d, s, p: made.append(len(s)) or make(self, d, s, p))
    cache = WordCache(network, 50, gates=4)
    slots = cache.find(["a", "b", "c", "d", "e", "f"])
    for words, count in (([0, 1, 2, 3], 4), ([3, 0], 0), ([4, 5], 2), ([0, 3], 0), ([1], 1)):
        made.clear()
        cache.find_gates([slots[:0], slots[words]])
        assert sum(made) == count
    assert len(asked) == 1


def test_an_interruption_leaves_no_word_without_its_numbers(
    network: BiLMNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    first, second = [f"x{i}" for i in range(8)], [f"y{i}" for i in range(8)]
    expected = both(WordCache(network, 50), first + second)
    cache = WordCache(network, 50, vectors=16, gates=10)
    both(cache, first)
    for place, name in ((type(network.encoder), "forward"), (WordCache, "_make_gates")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                both(cache, second)
    rng = np.random.default_rng(0)
    for _ in range(30):  # few at a time: they fit, and those of before have to go
        some = rng.choice(16, size=4, replace=False)
        words = [(first + second)[i] for i in some]
        for one, other in zip(both(cache, words), (expected[0][some], expected[1][:, some]), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    "name",
    [
        "encoder.cnn.embedding",
        "encoder.cnn.weights.1",
        "encoder.cnn.biases.0",
        "encoder.highways.1.carry.bias",
        "encoder.highways.0.transform.weight",
        "encoder.projection.weight",
        "lstm.layers.0.bias",
        "lstm.layers.0.weight_ih",
    ],
)
def test_changed_weights_are_seen_at_both_levels(network: BiLMNetwork, name: str) -> None:
    words = ["a", "bank", "river"]
    cache = WordCache(network, 50)
    before, epoch = both(cache, words), cache.refresh()
    network.get_parameter(name).mul_(1.5).add_(0.1)
    after = both(cache, words)
    assert cache.refresh() == epoch + 1
    assert not torch.equal(before[1], after[1])
    for one, other in zip(after, both(WordCache(network, 50), words), strict=True):
        assert torch.equal(one, other)


def test_places_are_given_once_and_then_those_used_longest_ago() -> None:
    places = Recency(4)
    assert places.allocate(3).tolist() == [0, 1, 2]
    places.touch(np.array([0]))
    assert sorted(places.allocate(2).tolist()) == [1, 3]  # the last fresh one, then the oldest
    assert sorted(places.allocate(2).tolist()) == [0, 2]


def test_pieces_hold_everything_within_their_bounds() -> None:
    sizes = np.sort(np.random.default_rng(0).integers(1, 50, size=333))
    pieces = list(split_by_size(sizes, 1000))
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert pieces[-1][1] == 333
    for start, stop in pieces:
        assert (stop - start) * sizes[stop - 1] <= 1000 or stop - start <= 16
    assert list(split_by_size(sizes[:0], 1000)) == []


@pytest.mark.filterwarnings("ignore:.*cut to the:UserWarning")
@pytest.mark.parametrize("letter", ["x", "é", "語", "🙂"])
def test_of_a_long_word_only_the_part_that_is_read_is_kept(letter: str) -> None:
    model = bilm()
    room = model.settings.model.max_characters
    long = [letter * 10_000, letter * 20_000, "a" + letter * 10_000]
    vectors = model.embed([[word] for word in long])
    keys = [key for key in model.embedder.cache.keys if isinstance(key, str)]
    assert max(len(key.encode()) for key in keys) <= room + 4
    assert np.array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])
    kept = [key for key in keys if key not in (BOS, EOS)]
    assert {ids.tobytes() for ids in character_ids(kept, room)} == {ids.tobytes() for ids in character_ids(long, room)}

"""The nearest sense, in cases whose answers are known."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pytest
import torch

from experiments.senses import Lemma, SenseIndex, SenseSentence, SenseTag
from experiments.wsd import (
    Embed,
    SenseAverages,
    bilm_embedder,
    disambiguate,
    mark_correct,
    occurrences,
    static_embedder,
)
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTextSettings
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary

BANK, RIVER, MONEY = Lemma("bank", "NOUN"), "bank%1:17:01::", "bank%1:14:00::"
TO_BANK, TRUST = Lemma("bank", "VERB"), "bank%2:31:00::"
INDEX = SenseIndex(
    {
        BANK: [RIVER, MONEY, "bank%1:06:00::"],
        TO_BANK: ["bank%2:40:00::", TRUST],
        Lemma("heron", "NOUN"): ["heron%1:05:00::", "heron%1:06:00::"],
    }
)
AXES = {"river": (1, 0, 0), "money": (0, 1, 0), "trust": (0, 0, 1)}


def tagged(word: str, lemma: Lemma, *senses: str, end: int = 2) -> SenseSentence:
    """'word bank', the second of which is tagged."""
    return SenseSentence([word, "bank"], [SenseTag(1, end, lemma, senses)])


def neighbours(sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
    """Layer 0 is the same for all; layer 1 of a word is the sum of the axes of all words of its sentence."""
    for words in sentences:
        context = np.sum([AXES.get(word, (0, 0, 0)) for word in words], axis=0, dtype=np.float32)
        yield np.stack([np.ones((len(words), 3), dtype=np.float32), np.tile(context, (len(words), 1))])


CORPUS = [
    tagged("money", BANK, MONEY),
    tagged("money", BANK, MONEY),
    tagged("river", BANK, RIVER),
    tagged("trust", TO_BANK, TRUST),
    tagged("trust", BANK, "bank%1:99:99::"),
]


def test_the_nearest_sense_of_the_lemma_and_its_part_of_speech_wins() -> None:
    test = [tagged("river", BANK, RIVER), tagged("money", BANK, MONEY), tagged("river", TO_BANK, "bank%2:40:00::")]
    found = disambiguate(neighbours, CORPUS, test, INDEX)
    assert found.nearest[1] == [RIVER, MONEY, TRUST], "the verb was seen in one sense only, so that is the nearest"
    assert mark_correct(found.nearest[1], test).tolist() == [True, True, False]


def test_senses_that_cannot_be_told_apart_give_the_one_that_wordnet_lists_first() -> None:
    found = disambiguate(neighbours, CORPUS, [tagged("money", BANK, MONEY)], INDEX)
    assert found.nearest[0] == [RIVER]
    assert found.most_frequent == [MONEY]
    assert found.first_sense == [RIVER]


def test_rounding_does_not_choose_between_senses_with_the_same_mean() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        vector = rng.normal(size=(1, 64)).astype(np.float32)
        same = [(SenseTag(0, 1, BANK, (key,)), vector) for key in [MONEY] * 7 + [RIVER] * 3]
        assert SenseAverages(same, INDEX).nearest(BANK, vector) == [RIVER]


def test_a_lemma_not_seen_gets_its_first_sense_in_every_layer() -> None:
    heron = SenseSentence(["money", "heron"], [SenseTag(1, 2, Lemma("heron", "NOUN"), ("heron%1:05:00::",))])
    found = disambiguate(neighbours, CORPUS, [heron, tagged("money", BANK, MONEY)], INDEX)
    assert [layer[0] for layer in found.nearest] == ["heron%1:05:00::"] * 2
    assert found.most_frequent[0] == "heron%1:05:00::"
    assert found.seen.tolist() == [False, True]


def test_a_key_that_wordnet_does_not_have_is_no_candidate() -> None:
    found = disambiguate(neighbours, CORPUS, [tagged("trust", BANK, MONEY)], INDEX)
    assert found.nearest[1] != ["bank%1:99:99::"]


def test_a_sense_is_the_mean_of_its_places_and_distance_is_the_angle() -> None:
    index = SenseIndex({BANK: [RIVER, MONEY]})
    corpus = [tagged("river", BANK, RIVER), tagged("river", BANK, RIVER), tagged("money", BANK, RIVER)]
    averages = SenseAverages(occurrences(neighbours, corpus), index)
    assert averages.directions[RIVER][1] == pytest.approx(np.array([2, 1, 0]) / np.sqrt(5))
    assert averages.counts == {RIVER: 3}
    large = SenseAverages(occurrences(neighbours, [*corpus, tagged("money", BANK, MONEY)] * 50), index)
    assert large.nearest(BANK, np.array([[1, 1, 1], [100, 90, 0]])) == [RIVER, RIVER], "10.6 degrees against 48"


def test_a_phrase_is_the_mean_of_its_words() -> None:
    def place(sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        yield from (np.arange(len(words), dtype=np.float32)[None, :, None] for words in sentences)

    sentence = SenseSentence(list("abcde"), [SenseTag(1, 4, BANK, (RIVER,)), SenseTag(4, 5, BANK, (MONEY,))])
    assert [vectors.item() for _, vectors in occurrences(place, [sentence])] == [2.0, 4.0]


def test_several_right_senses_are_all_right_and_all_are_averaged() -> None:
    both = tagged("river", BANK, RIVER, MONEY)
    averages = SenseAverages(occurrences(neighbours, [both]), INDEX)
    assert averages.counts == {RIVER: 1, MONEY: 1}
    assert mark_correct([MONEY], [both]).tolist() == [True]
    assert mark_correct(["bank%1:06:00::"], [both]).tolist() == [False]


def test_only_sentences_with_the_lemmas_asked_for_are_read() -> None:
    read = []

    def recorded(sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        yield from neighbours(read.append(words[0]) or words for words in sentences)  # type: ignore[func-returns-value]

    disambiguate(recorded, CORPUS, [tagged("river", TO_BANK, TRUST)], INDEX)
    assert read == ["trust", "river"]


def make_bilm(*, lowercase: bool = False) -> BiLM:
    torch.manual_seed(0)
    network = BiLMModelSettings(hidden=8, projection=4, filters=("1x4", "2x4"), char_dim=3, max_characters=12)
    settings = BiLMSettings(model=network, text=BiLMTextSettings(lowercase=lowercase))
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, "bank"])
    return BiLM(BiLMNetwork(network, vocab_size=len(vocabulary)), settings, vocabulary)


def test_a_models_layers_come_with_their_average_and_with_what_stands_around_a_word() -> None:
    model = make_bilm()
    (found,) = bilm_embedder(model)([["The", "old", "bank"]])
    (layers,) = model.embed([["The", "old", "bank"]])
    assert np.array_equal(found[:3], layers)
    assert found[3] == pytest.approx(layers.mean(axis=0))
    forward, backward = np.split(layers[1], 2, axis=1)
    assert np.array_equal(found[4, 1], np.concatenate([forward[0], backward[2]])), "the states on both sides of old"
    assert np.array_equal(found[4, 0], np.concatenate([0 * forward[0], backward[1]])), "nothing stands before The"
    (other,) = bilm_embedder(model)([["The", "new", "bank"]])
    assert np.array_equal(found[4:, 1], other[4:, 1]), "the word itself was not read"


def test_a_model_of_small_letters_reads_small_letters() -> None:
    model = make_bilm(lowercase=True)
    (found,) = bilm_embedder(model)([["The", "BANK"]])
    assert np.array_equal(found[:3], model.embed([["the", "bank"]])[0])


def test_static_vectors_know_a_word_by_its_small_letters_and_give_zeros_for_others() -> None:
    matrix = np.array([[0, 0], [0, 0], [1, 2], [3, 4]], dtype=np.float32)
    embed: Embed = static_embedder(WordVectors(Vocabulary(["<unk>", "</s>", "bank", "River"]), matrix))
    found, empty = embed([["Bank", "River", "river", "bank"], []])
    assert found.tolist() == [[[1, 2], [3, 4], [0, 0], [1, 2]]]
    assert empty.shape == (1, 0, 2)

"""Minimal pairs, in cases whose answers are known."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from experiments.agreement import (
    SentencePair,
    WordChoice,
    accuracy,
    find_differing_words,
    is_known,
    score_by_frequency,
    score_choices,
    score_sentence_pairs,
)
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.text.vocabulary import SentenceVocabulary

WORDS = ["the", "is", "cats", "are", "cat", "here"]


class Agreeing(BiLM):
    """Forwards "is" and "are" have log-probability 0 after the noun of their number and -2 otherwise; backwards the
    noun that does not fit costs 5; every other word costs its length, and an end or a beginning 1."""

    def __init__(self) -> None:
        network = BiLMModelSettings(input="word", hidden=4, projection=2)
        vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, *WORDS])
        super().__init__(BiLMNetwork(network, vocab_size=len(vocabulary)), BiLMSettings(model=network), vocabulary)

    def log_probs(self, sentences: Sequence[str | Sequence[str]], *, direction: str = "both") -> list[np.ndarray]:  # type: ignore[override]
        both = [self.score(self.tokens(words) if isinstance(words, str) else list(words)) for words in sentences]
        return both if direction == "both" else [each[0] for each in both]

    def score(self, words: list[str]) -> np.ndarray:
        plain = [-float(len(word)) for word in words]
        forward, backward = [*plain, -1.0], [-1.0, *plain]
        fits = {("cat", "is"), ("cats", "are")}
        for place in range(1, len(words)):
            pair = (words[place - 1], words[place])
            if pair[1] in ("is", "are"):
                forward[place] = 0.0 if pair in fits else -2.0
                backward[place] = 0.0 if pair in fits else -5.0  # that of the noun, one place before
        return np.array([forward, backward], dtype=np.float32)


def test_a_pairs_score_is_the_difference_of_whole_sentences_each_way_and_summed() -> None:
    pairs = [
        SentencePair("the cat is here", "the cat are here"),
        SentencePair(["the", "cats", "is"], ["the", "cats", "are"]),
    ]
    found = score_sentence_pairs(Agreeing(), pairs)
    assert found.tolist() == [[2.0, 5.0 + 1.0, 8.0], [-2.0, -5.0 + 1.0, -6.0]]  # "are" is a letter longer backwards


def test_ends_count_and_lengths_are_not_divided_by() -> None:
    (found,) = score_sentence_pairs(Agreeing(), [SentencePair("the cat", "the cat here")])
    assert found.tolist() == [4.0, 4.0, 8.0]


def test_a_choice_is_the_word_itself_given_what_stands_before_it() -> None:
    choices = [
        WordChoice(["the", "cat"], "is", "are"),
        WordChoice(["the", "cats"], "is", "are"),
        WordChoice([], "the", "cat"),
    ]
    assert score_choices(Agreeing(), choices).tolist() == [2.0, -2.0, 0.0]


def test_a_choice_with_a_real_network_is_the_difference_of_its_log_probabilities() -> None:
    torch.manual_seed(0)
    settings = BiLMModelSettings(filters=("1x4", "2x4"), char_dim=3, hidden=8, projection=4)
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, *WORDS])
    model = BiLM(BiLMNetwork(settings, vocab_size=len(vocabulary)), BiLMSettings(model=settings), vocabulary)
    (found,) = score_choices(model, [WordChoice(["the", "cat"], "is", "are")])
    one, other = (model.log_probs([f"the cat {verb} here"])[0][0, 2] for verb in ("is", "are"))
    assert found == pytest.approx(float(one) - float(other), abs=1e-6)
    unknown = score_choices(model, [WordChoice(["the", "cat"], "purrs", "purr")])
    assert unknown.tolist() == [0.0], "both are <UNK>"


def test_frequency_prefers_the_word_that_stands_earlier_in_the_vocabulary() -> None:
    choices = [
        WordChoice([], "is", "are"),
        WordChoice([], "are", "is"),
        WordChoice([], "purr", "here"),
        WordChoice([], "purr", "purrs"),
    ]
    assert np.sign(score_by_frequency(Agreeing(), choices)).tolist() == [1, -1, -1, 0]


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("the cat is here", "the cat are here", {"is", "are"}),
        ("who is the cat", "who the cat is", set()),
        (["the", "the", "cat"], ["the", "cat"], {"the"}),
    ],
)
def test_the_words_that_differ_are_those_that_one_has_more_often(good: str, bad: str, words: set[str]) -> None:
    assert find_differing_words(Agreeing(), SentencePair(good, bad)) == words


def test_words_are_known_if_the_vocabulary_has_them_all() -> None:
    assert is_known(Agreeing(), ["cat", "is"])
    assert not is_known(Agreeing(), ["cat", "purrs"])
    assert is_known(Agreeing(), [])


def test_accuracy_counts_a_tie_half_and_known_pairs_apart() -> None:
    found = accuracy(np.array([0.5, -1.0, 0.0, 3.0]), np.array([True, True, False, True]))
    assert (found.share.value, found.pairs) == (2.5 / 4, 4)
    assert (found.known.value, found.known_pairs) == (2 / 3, 3)
    assert found.share.low < 2.5 / 4 < found.share.high
    assert found.summary()["accuracy"] == 62.5
    assert found.summary()["known_pairs"] == 3

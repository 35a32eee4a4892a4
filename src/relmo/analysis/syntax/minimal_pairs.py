"""Minimal pairs: does a language model prefer the right sentence, or the right word, to the wrong one?

    pairs      two whole sentences, by their log-probabilities: forwards, backwards, and the two summed
    choices    two words after the same left context, by their log-probabilities forwards

A tie is worth half a point; two words outside the vocabulary are a tie. Words outside the vocabulary all have the
probability of <UNK>, which is large. So a pair in which only one of the two words is known says little about grammar,
and results come for all pairs and for the pairs whose differing words are all known.

    Linzen et al. 2016, Assessing the ability of LSTMs to learn syntax-sensitive dependencies;  Marvin & Linzen 2018,
    Targeted syntactic evaluation of language models;  Warstadt et al. 2020, BLiMP
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from relmo.analysis.core.intervals import Interval, wilson
from relmo.models.bilm import BiLM

SIDES = ("forward", "backward", "sum")


class SentencePair(NamedTuple):
    """Two sentences of which the first is acceptable and the second is not, as strings or as words."""

    good: str | Sequence[str]
    bad: str | Sequence[str]


class WordChoice(NamedTuple):
    """A left context, the word that goes on from it, and one that does not."""

    context: Sequence[str]
    right: str
    wrong: str


class Accuracy(NamedTuple):
    """The share of points in so many pairs, with its 95% interval; and the same of the pairs whose words that matter
    are known."""

    share: Interval
    pairs: int
    known: Interval
    known_pairs: int

    def summary(self) -> dict[str, float | int | list[float]]:
        """The figures by name, shares in percent."""
        return {
            "accuracy": 100 * self.share.value,
            "interval": [100 * self.share.low, 100 * self.share.high],
            "pairs": self.pairs,
            "known_accuracy": 100 * self.known.value,
            "known_interval": [100 * self.known.low, 100 * self.known.high],
            "known_pairs": self.known_pairs,
        }


def pair_scores(model: BiLM, pairs: Iterable[SentencePair]) -> np.ndarray:
    """log p(good) - log p(bad) of each pair, forwards, backwards, summed; (N, 3)."""
    sentences = [sentence for pair in pairs for sentence in pair]
    whole = np.array([log_p.sum(axis=1, dtype=np.float64) for log_p in model.log_probs(sentences)]).reshape(-1, 2, 2)
    gaps = whole[:, 0] - whole[:, 1]  # (N, 2)
    return np.column_stack([gaps, gaps.sum(axis=1)])


def choice_scores(model: BiLM, choices: Sequence[WordChoice]) -> np.ndarray:
    """log p(right | left context) - log p(wrong | left context) of each choice; (N,)."""
    sentences = [[*choice.context, word] for choice in choices for word in (choice.right, choice.wrong)]
    log_p = model.log_probs(sentences, direction="forward")
    last = np.array([each[-2] for each in log_p], dtype=np.float64).reshape(-1, 2)  # before the end, which is [-1]
    return last[:, 0] - last[:, 1]


def frequency_scores(model: BiLM, choices: Sequence[WordChoice]) -> np.ndarray:
    """How many places the right word stands before the wrong one in the vocabulary, which is sorted by falling
    frequency: what a model that knows frequencies alone goes by. Unknown words stand at its end; (N,)."""
    assert model.vocabulary is not None
    index, last = model.vocabulary.index, len(model.vocabulary)
    return np.array([index.get(c.wrong, last) - index.get(c.right, last) for c in choices], dtype=np.float64)


def words_that_differ(model: BiLM, pair: SentencePair) -> set[str]:
    """The words of which one sentence of a pair has more than the other; none where only their order differs."""
    good, bad = (Counter(model.tokens(s) if isinstance(s, str) else s) for s in pair)
    return {*(good - bad), *(bad - good)}


def is_known(model: BiLM, words: Iterable[str]) -> bool:
    """Whether the vocabulary has all of these words."""
    assert model.vocabulary is not None
    return all(word in model.vocabulary.index for word in words)


def points_of(scores: np.ndarray) -> np.ndarray:
    """A point for each score above 0, where the right one is preferred; half a point for a tie."""
    return np.where(scores > 0, 1.0, np.where(scores == 0, 0.5, 0.0))


def accuracy(scores: np.ndarray, known: np.ndarray) -> Accuracy:
    """The accuracy of pairs with these scores (N,); `known` (N,) of bool says whose words that matter are known."""
    points = points_of(scores)
    kept = points[known]
    return Accuracy(
        wilson(float(points.sum()), len(points)), len(points), wilson(float(kept.sum()), len(kept)), len(kept)
    )

"""Word senses by the nearest neighbour: how well a vector tells which sense a word has where it stands.

    senses of a lemma   each has the mean vector of the places where a corpus tags it
    a new place         gets the sense whose mean is nearest, by cosine
    a lemma not seen    gets WordNet's first sense

Choices:
- Vectors of a word are the paper's way. Vectors of what stands around it (`around`) are Melamud's: they have nothing of
  the word's own form, which says little about its sense.
- A phrase (take place) is the mean of its words' vectors.
- Candidates are the senses that the corpus has for the lemma with that part of speech. Keys that are not in WordNet's
  index, left over from other versions of it, are no candidates.
- Cosines nearer than 1e-6 are the same, and the sense that WordNet lists first wins: a layer without context gives a
  word's senses vectors that differ by rounding alone.

    Melamud et al. 2016, context2vec;  Peters et al. 2018, Deep contextualized word representations, section 5.3
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from relmo.analysis.meaning.neighbours import unit
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.text.senses import Lemma, SenseIndex, SenseSentence, SenseTag

Embed = Callable[[Iterable[Sequence[str]]], Iterator[np.ndarray]]
"""Sentences to their words' vectors, (layers, words, dim) each."""

SAME = 1e-6  # cosines this near are equal


def layers_of(model: BiLM) -> Embed:
    """A bidirectional model's layers from the token layer on, the average of them all, and last what stands around a
    word in each layer that has context."""

    def embed(sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        folded = ([word.lower() for word in words] for words in sentences)
        for layers in model.embed_stream(folded if model.settings.text.lowercase else sentences):
            yield np.concatenate([layers, layers.mean(axis=0, keepdims=True), around(layers[1:])])

    return embed


def around(layers: np.ndarray) -> np.ndarray:
    """Of layers (K, T, 2P), the states that a biLM predicts each word from, and so has not read it: forwards that of
    the word before, backwards that of the word after; zeros where the sentence begins and ends."""
    found, half = np.zeros_like(layers), layers.shape[2] // 2
    found[:, 1:, :half] = layers[:, :-1, :half]
    found[:, :-1, half:] = layers[:, 1:, half:]
    return found


def static_layer(vectors: WordVectors) -> Embed:
    """One layer: a word's vector, or else that of the word in small letters, or else zeros."""

    def embed(sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        for words in sentences:
            layer = np.zeros((1, len(words), vectors.matrix.shape[1]), dtype=np.float32)
            for place, word in enumerate(words):
                form = word if word in vectors else word.lower()
                if form in vectors:
                    layer[0, place] = vectors[form]
            yield layer

    return embed


class TaggedOccurrence(NamedTuple):
    """A tagged word or phrase, the number of its sentence, and its vectors (layers, dim)."""

    tagged: SenseTag
    sentence: int
    vectors: np.ndarray


def occurrences(embed: Embed, sentences: Sequence[SenseSentence]) -> Iterator[TaggedOccurrence]:
    """The tagged words of sentences, in order."""
    vectors = embed(sentence.words for sentence in sentences)
    for number, (sentence, layers) in enumerate(zip(sentences, vectors, strict=True)):
        for tagged in sentence.tagged:
            yield TaggedOccurrence(tagged, number, layers[:, tagged.start : tagged.end].mean(axis=1))


class SenseAverages:
    """The mean vector of every sense that a corpus has; a lemma's senses in WordNet's order."""

    def __init__(self, corpus: Iterable[TaggedOccurrence], index: SenseIndex):
        sums: dict[str, np.ndarray] = {}
        self.counts: dict[str, int] = {}
        """How often each sense was seen."""
        self.senses: dict[Lemma, list[str]] = {}
        """The senses seen of each lemma, in WordNet's order."""
        for tagged, _, vectors in corpus:
            for key in tagged.senses:
                if key not in index:
                    continue
                if key not in sums:
                    sums[key] = np.zeros(vectors.shape, dtype=np.float64)
                    self.senses.setdefault(tagged.lemma, []).append(key)
                sums[key] += vectors
                self.counts[key] = self.counts.get(key, 0) + 1
        for keys in self.senses.values():
            keys.sort(key=lambda key: index.rank[key])
        self.directions = {key: unit(total) for key, total in sums.items()}
        """The mean vector of each sense, with length 1; (layers, dim)."""

    def nearest(self, lemma: Lemma, vectors: np.ndarray) -> list[str] | None:
        """For each layer of a place (layers, dim), the sense whose mean is nearest; None for a lemma not seen."""
        keys = self.senses.get(lemma)
        if keys is None:
            return None
        means = np.stack([self.directions[key] for key in keys])  # (senses, layers, dim)
        cosines = np.einsum("sld,ld->ls", means, unit(vectors))
        near = cosines >= cosines.max(axis=1, keepdims=True) - SAME
        return [keys[first] for first in near.argmax(axis=1)]

    def most_frequent(self, lemma: Lemma) -> str | None:
        """The sense seen most often, in a tie the one WordNet lists first; None for a lemma not seen."""
        return max(self.senses.get(lemma, ()), key=lambda key: self.counts[key], default=None)


class Answers(NamedTuple):
    """The answers for each instance of a test: WordNet's first sense, the corpus's most frequent sense (the first sense
    where there is none), and the nearest sense of each layer. `seen` says whether its lemma was in the corpus."""

    first: list[str]
    most_frequent: list[str]
    nearest: list[list[str]]
    seen: np.ndarray


def disambiguate(
    embed: Embed, corpus: Iterable[SenseSentence], test: Sequence[SenseSentence], index: SenseIndex
) -> Answers:
    """Answers for the tagged words of `test` from the senses of `corpus`."""
    asked = {tagged.lemma for sentence in test for tagged in sentence.tagged}
    averages = SenseAverages(occurrences(embed, only(corpus, asked)), index)
    first, frequent, nearest, seen = [], [], [], []
    for tagged, _, vectors in occurrences(embed, test):
        default = index.first(tagged.lemma) or ""
        found = averages.nearest(tagged.lemma, vectors)
        first.append(default)
        frequent.append(averages.most_frequent(tagged.lemma) or default)
        nearest.append([default] * len(vectors) if found is None else found)
        seen.append(found is not None)
    return Answers(first, frequent, [list(layer) for layer in zip(*nearest, strict=True)], np.array(seen, dtype=bool))


def only(sentences: Iterable[SenseSentence], lemmas: set[Lemma]) -> list[SenseSentence]:
    """The sentences in which these lemmas are tagged, with no other tags."""
    kept = (SenseSentence(words, [t for t in tagged if t.lemma in lemmas]) for words, tagged in sentences)
    return [sentence for sentence in kept if sentence.tagged]


def right(answers: Sequence[str], test: Sequence[SenseSentence]) -> np.ndarray:
    """Which answers are among an instance's senses; (N,) of bool."""
    tagged = [tagged for sentence in test for tagged in sentence.tagged]
    return np.array([answer in each.senses for answer, each in zip(answers, tagged, strict=True)], dtype=bool)

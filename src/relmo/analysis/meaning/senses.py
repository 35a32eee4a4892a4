"""Word sense disambiguation with the nearest sense average.

    sense of a lemma    mean vector of the occurrences that a corpus tags with it
    new occurrence      the sense whose mean is nearest by cosine
    unseen lemma        WordNet's first sense

Choices:
- Word vectors are the paper's method. Context states (`context_states`) are Melamud's: they exclude the word's form,
  which says little about its sense.
- A phrase (take place) is the mean of its words' vectors.
- Candidates are the senses that the corpus has for the lemma with that part of speech. Keys missing from WordNet's
  index (from other WordNet versions) are no candidates.
- Cosines within 1e-6 are equal, and the sense that WordNet lists first wins: in a layer without context the senses of
  a word differ by rounding alone.

    Melamud et al. 2016, context2vec;  Peters et al. 2018, Deep contextualized word representations, section 5.3
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from relmo.analysis.meaning.neighbours import normalize
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.text.senses import Lemma, SenseIndex, SenseSentence, SenseTag

Embed = Callable[[Iterable[Sequence[str]]], Iterator[np.ndarray]]
"""Function from sentences to word vectors, (layers, words, dim) each."""

COSINE_TOLERANCE = 1e-6


def bilm_embedder(model: BiLM) -> Embed:
    """Return a function that embeds sentences with all layers of a model, their average, and the context states of
    every layer above the token layer."""

    def embed(sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        folded = ([word.lower() for word in words] for words in sentences)
        for layers in model.embed_stream(folded if model.settings.text.lowercase else sentences):
            yield np.concatenate([layers, layers.mean(axis=0, keepdims=True), context_states(layers[1:])])

    return embed


def context_states(layers: np.ndarray) -> np.ndarray:
    """Return, for layers (K, T, 2P), the states from which a biLM predicts each word, so that they have not read it:
    the forward state of the previous word and the backward state of the next; zeros beyond the sentence."""
    states, half = np.zeros_like(layers), layers.shape[2] // 2
    states[:, 1:, :half] = layers[:, :-1, :half]
    states[:, :-1, half:] = layers[:, 1:, half:]
    return states


def static_embedder(vectors: WordVectors) -> Embed:
    """Return a function that embeds words in one layer: the word's vector, else that of its lower-case form, else
    zeros."""

    def embed(sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        for words in sentences:
            layer = np.zeros((1, len(words), vectors.matrix.shape[1]), dtype=np.float32)
            for position, word in enumerate(words):
                form = word if word in vectors else word.lower()
                if form in vectors:
                    layer[0, position] = vectors[form]
            yield layer

    return embed


class TaggedOccurrence(NamedTuple):
    """A tagged word or phrase, the index of its sentence, and its vectors (layers, dim)."""

    tagged: SenseTag
    sentence: int
    vectors: np.ndarray


def occurrences(embed: Embed, sentences: Sequence[SenseSentence]) -> Iterator[TaggedOccurrence]:
    """Yield the tagged words of sentences in order."""
    vectors = embed(sentence.words for sentence in sentences)
    for number, (sentence, layers) in enumerate(zip(sentences, vectors, strict=True)):
        for tagged in sentence.tagged:
            yield TaggedOccurrence(tagged, number, layers[:, tagged.start : tagged.end].mean(axis=1))


class SenseAverages:
    """Mean vectors of all senses in a corpus.

    counts        occurrences of each sense
    senses        senses of each lemma that the corpus has, in WordNet's order
    directions    mean vector of each sense, of length 1; (layers, dim)
    """

    def __init__(self, corpus: Iterable[TaggedOccurrence], index: SenseIndex):
        sums: dict[str, np.ndarray] = {}
        self.counts: dict[str, int] = {}
        self.senses: dict[Lemma, list[str]] = {}
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
        self.directions = {key: normalize(total) for key, total in sums.items()}

    def nearest(self, lemma: Lemma, vectors: np.ndarray) -> list[str] | None:
        """Return the nearest sense in each layer of an occurrence (layers, dim); None for an unseen lemma."""
        keys = self.senses.get(lemma)
        if keys is None:
            return None
        means = np.stack([self.directions[key] for key in keys])  # (senses, layers, dim)
        cosines = np.einsum("sld,ld->ls", means, normalize(vectors))
        near = cosines >= cosines.max(axis=1, keepdims=True) - COSINE_TOLERANCE
        return [keys[sense] for sense in near.argmax(axis=1)]

    def most_frequent(self, lemma: Lemma) -> str | None:
        """Return the most frequent sense (on ties the one WordNet lists first); None for an unseen lemma."""
        return max(self.senses.get(lemma, ()), key=lambda key: self.counts[key], default=None)


class Answers(NamedTuple):
    """Senses of each test instance: WordNet's first, the corpus's most frequent (else the first), and the nearest by
    layer. `seen` marks instances whose lemma is in the corpus."""

    first_sense: list[str]
    most_frequent: list[str]
    nearest: list[list[str]]
    seen: np.ndarray


def disambiguate(
    embed: Embed, corpus: Iterable[SenseSentence], test: Sequence[SenseSentence], index: SenseIndex
) -> Answers:
    """Return senses for the tagged words of `test`, from the senses of `corpus`."""
    lemmas = {tagged.lemma for sentence in test for tagged in sentence.tagged}
    averages = SenseAverages(occurrences(embed, filter_lemmas(corpus, lemmas)), index)
    defaults, frequent, nearest, seen = [], [], [], []
    for tagged, _, vectors in occurrences(embed, test):
        default = index.first(tagged.lemma) or ""
        senses = averages.nearest(tagged.lemma, vectors)
        defaults.append(default)
        frequent.append(averages.most_frequent(tagged.lemma) or default)
        nearest.append([default] * len(vectors) if senses is None else senses)
        seen.append(senses is not None)
    by_layer = [list(layer) for layer in zip(*nearest, strict=True)]
    return Answers(defaults, frequent, by_layer, np.array(seen, dtype=bool))


def filter_lemmas(sentences: Iterable[SenseSentence], lemmas: set[Lemma]) -> list[SenseSentence]:
    """Return the sentences in which these lemmas are tagged, without other tags."""
    filtered = (SenseSentence(words, [t for t in tagged if t.lemma in lemmas]) for words, tagged in sentences)
    return [sentence for sentence in filtered if sentence.tagged]


def mark_correct(answers: Sequence[str], test: Sequence[SenseSentence]) -> np.ndarray:
    """Return whether each answer is among the senses of its instance; (N,) of bool."""
    instances = [tagged for sentence in test for tagged in sentence.tagged]
    return np.array([answer in tag.senses for answer, tag in zip(answers, instances, strict=True)], dtype=bool)

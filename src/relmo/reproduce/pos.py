"""Parts of speech read off one layer at a time by a linear classifier.

    Peters et al. 2018, Deep contextualized word representations, section 5.3 and Table 6, after Belinkov et al. 2017

A multinomial logistic regression on one frozen layer's vectors of the English Web Treebank's words: 17 universal tags,
trained on its training part, scored on its development part, both with the treebank's own words.

What the figures depend on:
- The published ones are for the Penn Treebank: news, 45 tags. The Web Treebank is e-mail, reviews, blogs, questions and
  newsgroups, where taggers make more mistakes. Compare layers with each other and with the controls.
- Every tenth sentence of the training part chooses the strength of the penalty; the development part is only scored.
- Half of all words have the same tag wherever they stand, so the floor is the tag that a word has most often. Words
  that training does not have show what spelling and context add.
- The tags of a sentence's words depend on each other, so the intervals come from drawing whole sentences anew.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relmo.analysis.core.intervals import bootstrap_difference
from relmo.analysis.meaning.probe import linear_probe, usual_labels
from relmo.analysis.meaning.senses import static_layer
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.reproduce.controls import Controls
from relmo.reproduce.data import required
from relmo.reproduce.table import ComparedRow, Reproduction
from relmo.text.conllu import read_conllu_sentences

PAPER = "Peters et al. 2018, Deep contextualized word representations, Table 6"
ALL, UNSEEN = "all words", "unseen words"
COLUMNS = (ALL, f"± {ALL}", UNSEEN, f"± {UNSEEN}")
PUBLISHED = {"layer 1": 97.3, "layer 2": 96.8}
PEERS = {
    "CoVe, first layer": 93.3,
    "CoVe, second layer": 92.8,
    "Collobert et al. 2011": 97.3,
    "Ma and Hovy 2016": 97.6,
    "Ling et al. 2015": 97.8,
}
NOTES = [
    "accuracy in percent on the development part of the English Web Treebank, 17 universal tags; ±: half the 95% "
    "interval",
    "published: test part of the Penn Treebank, news with 45 tags; the peers are taggers trained for it, CoVe a linear "
    "classifier as here. Another corpus and other tags: compare layers, not levels",
    "unseen words: those whose form is nowhere in the training part",
]

Vectors = Callable[[Sequence[Sequence[str]]], np.ndarray]
"""Sentences to the vectors of all their words, (N, D)."""


class TaggedCorpus(NamedTuple):
    """Sentences, the tags of all their words, and the number of each word's sentence."""

    sentences: list[list[str]]
    tags: list[str]
    sentence: np.ndarray  # (N,)

    @property
    def words(self) -> list[str]:
        """The words of all sentences, one after the other."""
        return [word for sentence in self.sentences for word in sentence]


def reproduce(model: BiLM, *, data: Path, controls: Controls, say: Callable[[str], None]) -> Reproduction:
    """The table: every layer of the model and of the untrained network, static vectors, the most frequent tag."""
    folder = required(data, "tasks/pos_ud/en_ewt", "the English Web Treebank")
    train, dev = (read_tagged(required(folder, f"en_ewt-ud-{part}.conllu", part)) for part in ("train", "dev"))
    score = TagAccuracy(train, dev)
    layers = range(model.network.layer_count)
    names = ["layer 0 (no context)", *(f"layer {k}" for k in layers[1:])]
    sources: dict[str, Vectors] = {name: layer_of(model, k) for k, name in enumerate(names)}
    if controls.vectors is not None:
        static = static_layer(controls.vectors)
        sources["skip-gram vectors"] = lambda sentences: np.concatenate([v[0] for v in static(sentences)])
    sources |= {f"untrained, {name}": layer_of(controls.untrained, k) for k, name in enumerate(names)}
    extra: dict[str, Any] = {"train_words": len(train.tags), "dev_words": len(dev.tags), "probes": {}}
    usual = np.array(usual_labels(train.words, train.tags, dev.words))
    rows = [ComparedRow("most frequent tag of the word", score(usual == dev.tags))]
    right: dict[str, np.ndarray] = {}
    for name, vectors in sources.items():
        say(f"pos: {name}")
        held = train.sentence % 10 == 9
        probe = linear_probe(vectors(train.sentences), train.tags, held_out=held, device=model.device)
        right[name] = probe.right(vectors(dev.sentences), dev.tags)
        extra["probes"][name] = {"strength": probe.strength, "held_out": 100 * probe.held_out_accuracy}
        published = {ALL: PUBLISHED[name]} if name in PUBLISHED else None
        rows.append(ComparedRow(name, score(right[name]), published))
    rows += [ComparedRow(name, published={ALL: accuracy}) for name, accuracy in PEERS.items()]
    extra |= {"unseen": int(score.unseen.sum()), "differences": _differences(right, names, dev.sentence)}
    return Reproduction("pos", "parts of speech by a linear classifier", PAPER, COLUMNS, rows, _notes(extra), extra)


def read_tagged(path: Path) -> TaggedCorpus:
    """Words and universal tags of a CoNLL-U file, without ranges (3-4) and empty nodes (5.1)."""
    sentences: list[list[str]] = []
    tags: list[str] = []
    numbers: list[int] = []
    for words in read_conllu_sentences(path):
        numbers += [len(sentences)] * len(words)
        sentences.append([word.form for word in words])
        tags += [word.upos for word in words]
    if not sentences:
        raise CorpusError(f"{path}: there is no sentence in it; it should be CoNLL-U with universal tags")
    return TaggedCorpus(sentences, tags, np.array(numbers))


def layer_of(model: BiLM, layer: int) -> Vectors:
    """One layer of a model; the others are never in memory."""

    def embed(sentences: Sequence[Sequence[str]]) -> np.ndarray:
        folded = ([word.lower() for word in words] for words in sentences)
        return np.concatenate(model.embed(folded if model.settings.text.lowercase else sentences, layers=layer))

    return embed


class TagAccuracy:
    """Accuracies in percent, of all words of `dev` and of those that `train` does not have."""

    def __init__(self, train: TaggedCorpus, dev: TaggedCorpus):
        seen = set(train.words)
        self.unseen = np.array([word not in seen for word in dev.words])
        self.sentence = dev.sentence

    def __call__(self, right: np.ndarray) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, where in ((ALL, np.ones_like(self.unseen)), (UNSEEN, self.unseen)):
            if where.any():
                interval = bootstrap_difference(right[where], np.zeros(where.sum()), self.sentence[where])
                found[name] = 100 * interval.value
                found[f"± {name}"] = 50 * (interval.high - interval.low)
        return found


def _differences(right: dict[str, np.ndarray], names: Sequence[str], sentence: np.ndarray) -> dict[str, list[float]]:
    """How much better each layer is than the one before and than its untrained self, in points, with 95% intervals."""
    pairs = [(b, a) for a, b in pairwise(names)] + [(name, f"untrained, {name}") for name in names]
    return {
        f"{b} - {a}": [100 * value for value in bootstrap_difference(right[b], right[a], sentence)] for b, a in pairs
    }


def _notes(extra: dict[str, Any]) -> list[str]:
    sizes = f"{extra['train_words']:,} words to learn from, {extra['dev_words']:,} scored, {extra['unseen']:,} unseen"
    said = [
        f"{name}: {value:+.1f} points, 95% interval {low:+.1f} to {high:+.1f}"
        for name, (value, low, high) in extra["differences"].items()
    ]
    return [*NOTES, sizes, *said]

"""Part-of-speech tagging by a linear classifier on one layer at a time.

    Peters et al. 2018, Deep contextualized word representations, section 5.3 and Table 6, after Belinkov et al. 2017

Multinomial logistic regression on the frozen vectors of one layer: 17 universal tags, trained on the training set of
the English Web Treebank and scored on its development set, with the treebank's tokens.

- The published scores are for the Penn Treebank: news, 45 tags. The Web Treebank is e-mail, reviews, blogs, questions
  and newsgroups, where taggers make more mistakes. Compare layers with each other and with the controls.
- Every tenth training sentence is held out to choose the strength of the penalty; the development set is only scored.
- Half of all words always have the same tag, so the baseline is the most frequent tag of the word. Words that do not
  occur in training show what spelling and context add.
- The tags of a sentence depend on each other, so intervals are bootstrapped over sentences.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relmo.analysis.core.effects import bootstrap_difference
from relmo.analysis.core.published import ComparedRow, Controls, PublishedTable, require_data
from relmo.analysis.meaning.probe import linear_probe, most_frequent_labels
from relmo.analysis.meaning.senses import static_embedder
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
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
    "accuracy in percent on the development set of the English Web Treebank, 17 universal tags; ±: half of the 95% "
    "interval",
    "published: test set of the Penn Treebank, news with 45 tags; the other systems are taggers trained for it, CoVe a "
    "linear classifier as here. Corpus and tags differ: compare layers, not levels",
    "unseen words: words that do not occur in the training set",
]

EmbedTokens = Callable[[Sequence[Sequence[str]]], np.ndarray]
"""Function from sentences to the vectors of all their tokens, (N, D)."""


class TaggedCorpus(NamedTuple):
    """Sentences, the tags of all tokens, and the sentence index of each token."""

    sentences: list[list[str]]
    tags: list[str]
    sentence: np.ndarray  # (N,)

    @property
    def words(self) -> list[str]:
        """Tokens of all sentences."""
        return [word for sentence in self.sentences for word in sentence]


def make_table(model: BiLM, *, data: Path, controls: Controls, on_message: Callable[[str], None]) -> PublishedTable:
    """Score every layer of the model and of the untrained network, static vectors, and the most frequent tag."""
    folder = require_data(data, "tasks/pos_ud/en_ewt", "the English Web Treebank")
    train, dev = (read_tagged(require_data(folder, f"en_ewt-ud-{part}.conllu", part)) for part in ("train", "dev"))
    score = TagAccuracy(train, dev)
    names = ["layer 0 (no context)", *(f"layer {k}" for k in range(1, model.network.layer_count))]
    embedders: dict[str, EmbedTokens] = {name: layer_embedder(model, k) for k, name in enumerate(names)}
    if controls.vectors is not None:
        static = static_embedder(controls.vectors)
        embedders["skip-gram vectors"] = lambda sentences: np.concatenate([v[0] for v in static(sentences)])
    embedders |= {f"untrained, {name}": layer_embedder(controls.untrained, k) for k, name in enumerate(names)}
    extra: dict[str, Any] = {"train_words": len(train.tags), "dev_words": len(dev.tags), "probes": {}}
    frequent = np.array(most_frequent_labels(train.words, train.tags, dev.words))
    rows = [ComparedRow("most frequent tag of the word", score(frequent == dev.tags))]
    correct: dict[str, np.ndarray] = {}
    for name, embed in embedders.items():
        on_message(f"pos: {name}")
        held_out = train.sentence % 10 == 9
        probe = linear_probe(embed(train.sentences), train.tags, held_out=held_out, device=model.device)
        correct[name] = probe.mark_correct(embed(dev.sentences), dev.tags)
        extra["probes"][name] = {"strength": probe.strength, "held_out": 100 * probe.held_out_accuracy}
        published = {ALL: PUBLISHED[name]} if name in PUBLISHED else None
        rows.append(ComparedRow(name, score(correct[name]), published))
    rows += [ComparedRow(name, published={ALL: accuracy}) for name, accuracy in PEERS.items()]
    # each layer against the one below it and against the same layer untrained
    pairs = [(upper, lower) for lower, upper in pairwise(names)] + [(name, f"untrained, {name}") for name in names]
    differences = {
        f"{a} - {b}": [100 * figure for figure in bootstrap_difference(correct[a], correct[b], dev.sentence)]
        for a, b in pairs
    }
    extra |= {"unseen": int(score.unseen.sum()), "differences": differences}
    notes = [
        *NOTES,
        f"{extra['train_words']:,} training words, {extra['dev_words']:,} scored, {extra['unseen']:,} unseen",
        *(
            f"{name}: {difference:+.1f} points, 95% interval {low:+.1f} to {high:+.1f}"
            for name, (difference, low, high) in differences.items()
        ),
    ]
    return PublishedTable("pos", "parts of speech by a linear classifier", PAPER, COLUMNS, rows, notes, extra)


def read_tagged(path: Path) -> TaggedCorpus:
    """Read the words and universal tags of a CoNLL-U file, without ranges (3-4) and empty nodes (5.1)."""
    sentences: list[list[str]] = []
    tags: list[str] = []
    indices: list[int] = []
    for words in read_conllu_sentences(path):
        indices += [len(sentences)] * len(words)
        sentences.append([word.form for word in words])
        tags += [word.upos for word in words]
    if not sentences:
        raise CorpusError(f"{path}: no sentence found; expected CoNLL-U with universal tags")
    return TaggedCorpus(sentences, tags, np.array(indices))


def layer_embedder(model: BiLM, layer: int) -> EmbedTokens:
    """Return a function that embeds tokens with one layer; the other layers are never in memory."""

    def embed(sentences: Sequence[Sequence[str]]) -> np.ndarray:
        lowercase = ([word.lower() for word in words] for words in sentences)
        return np.concatenate(model.embed(lowercase if model.settings.text.lowercase else sentences, layers=layer))

    return embed


class TagAccuracy:
    """Accuracy in percent over all words of `dev` and over those that do not occur in `train`."""

    def __init__(self, train: TaggedCorpus, dev: TaggedCorpus):
        train_words = set(train.words)
        self.unseen = np.array([word not in train_words for word in dev.words])
        self.sentence = dev.sentence

    def __call__(self, correct: np.ndarray) -> dict[str, float]:
        accuracies: dict[str, float] = {}
        for name, mask in ((ALL, np.ones_like(self.unseen)), (UNSEEN, self.unseen)):
            if mask.any():
                interval = bootstrap_difference(correct[mask], np.zeros(mask.sum()), self.sentence[mask])
                accuracies[name] = 100 * interval.value
                accuracies[f"± {name}"] = 50 * (interval.high - interval.low)
        return accuracies

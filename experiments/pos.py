"""Part-of-speech tagging of the English Web Treebank by a linear classifier of each layer's vectors (Peters et al.
2018, Deep contextualized word representations, section 5.3 and Table 6)."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.tables import ComparedRow, Controls, PublishedTable, require_data
from experiments.wsd import static_embedder
from relmo.analysis.core.effects import bootstrap_difference
from relmo.analysis.meaning.probe import linear_probe, most_frequent_labels
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.text.trees import read_conllu_sentences

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


class TaggedCorpus(NamedTuple):
    """Sentences, all their tokens, and the tag and the sentence index of each token."""

    sentences: list[list[str]]
    words: list[str]
    tags: list[str]
    sentence: np.ndarray  # (N,)


def make_table(model: BiLM, *, data: Path, controls: Controls, on_message: Callable[[str], None]) -> PublishedTable:
    """Score every layer of the model and of the untrained network, static vectors, and the most frequent tag."""
    folder = require_data(data, "tasks/pos_ud/en_ewt", "the English Web Treebank")
    train, dev = (read_tagged(require_data(folder, f"en_ewt-ud-{part}.conllu", part)) for part in ("train", "dev"))
    train_words = set(train.words)
    unseen = np.array([word not in train_words for word in dev.words])
    score = partial(score_tags, unseen=unseen, sentence=dev.sentence)
    names = ["layer 0 (no context)", *(f"layer {k}" for k in range(1, model.network.layer_count))]
    embedders: dict[str, Any] = {name: partial(embed_layer, model, k) for k, name in enumerate(names)}
    if controls.vectors is not None:
        static = static_embedder(controls.vectors)
        embedders["skip-gram vectors"] = lambda sentences: np.concatenate([v[0] for v in static(sentences)])
    embedders |= {f"untrained, {name}": partial(embed_layer, controls.untrained, k) for k, name in enumerate(names)}
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
    extra |= {"unseen": int(unseen.sum()), "differences": differences}
    counts = f"{extra['train_words']:,} training words, {extra['dev_words']:,} scored, {extra['unseen']:,} unseen"
    notes = [*NOTES, counts]
    for name, (difference, low, high) in differences.items():
        notes.append(f"{name}: {difference:+.1f} points, 95% interval {low:+.1f} to {high:+.1f}")
    return PublishedTable("pos", "parts of speech by a linear classifier", PAPER, COLUMNS, rows, notes, extra)


def read_tagged(path: Path) -> TaggedCorpus:
    """Read the words and universal tags of a CoNLL-U file, without ranges (3-4) and empty nodes (5.1)."""
    sentences: list[list[str]] = []
    tags: list[str] = []
    indices: list[int] = []
    for tokens in read_conllu_sentences(path):
        indices += [len(sentences)] * len(tokens)
        sentences.append([token.form for token in tokens])
        tags += [token.upos for token in tokens]
    if not sentences:
        raise CorpusError(f"{path}: no sentence found; expected CoNLL-U with universal tags")
    return TaggedCorpus(sentences, [word for words in sentences for word in words], tags, np.array(indices))


def embed_layer(model: BiLM, layer: int, sentences: Sequence[Sequence[str]]) -> np.ndarray:
    """Return one layer of all tokens of sentences, (N, D); the other layers are never in memory."""
    lowercase = ([word.lower() for word in words] for words in sentences)
    return np.concatenate(model.embed(lowercase if model.settings.text.lowercase else sentences, layers=layer))


def score_tags(correct: np.ndarray, unseen: np.ndarray, sentence: np.ndarray) -> dict[str, float]:
    """Return the accuracy in percent over all words and over unseen ones, with half of the 95% interval."""
    accuracies: dict[str, float] = {}
    for name, mask in ((ALL, np.ones_like(unseen)), (UNSEEN, unseen)):
        if mask.any():
            interval = bootstrap_difference(correct[mask], np.zeros(mask.sum()), sentence[mask])
            accuracies[name] = 100 * interval.value
            accuracies[f"± {name}"] = 50 * (interval.high - interval.low)
    return accuracies

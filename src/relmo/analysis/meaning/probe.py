"""Linear probe, multinomial logistic regression on frozen vectors, and the table of part-of-speech tagging by layer
(English Web Treebank;  Peters et al. 2018, Deep contextualized word representations, section 5.3 and Table 6)."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from relmo.analysis.core.effects import bootstrap_difference
from relmo.analysis.core.published import ComparedRow, Controls, PublishedTable, require_data
from relmo.analysis.meaning.senses import static_embedder
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.text.trees import read_conllu_sentences

STRENGTHS = (1e-4, 1e-5)  # of the penalty on the mean loss
ROUND_STEPS, MAX_ROUNDS = 25, 20  # L-BFGS steps per round
CONVERGED = 2e-3  # a round with a smaller relative decrease of the loss is the last
BATCH_ROWS = 1 << 15  # rows classified together
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


@dataclass(frozen=True)
class Probe:
    """A classifier of vectors (D,) into labels: softmax(W (x - mean) / scale + b)."""

    labels: tuple[str, ...]
    weight: Tensor  # (D, C)
    bias: Tensor  # (C,)
    mean: Tensor  # (D,)
    scale: Tensor  # (D,)
    strength: float  #: chosen strength of the L2 penalty
    held_out_accuracy: float  #: accuracy on the held-out rows, before they were used for training

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """Return the label indices of vectors (N, D); (N,)."""
        predictions = []
        for begin in range(0, len(vectors), BATCH_ROWS):
            rows = torch.as_tensor(vectors[begin : begin + BATCH_ROWS], dtype=torch.float32, device=self.weight.device)
            logits = ((rows - self.mean) / self.scale) @ self.weight + self.bias
            predictions.append(logits.argmax(dim=1).cpu().numpy())
        return np.concatenate(predictions) if predictions else np.zeros(0, dtype=np.int64)

    def mark_correct(self, vectors: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """Return whether each vector gets its label; (N,) of bool. A label unseen in training is always wrong."""
        index = {label: i for i, label in enumerate(self.labels)}
        return self.predict(vectors) == np.array([index.get(label, -1) for label in labels], dtype=np.int64)


def linear_probe(
    vectors: np.ndarray,
    labels: Sequence[str],
    *,
    held_out: np.ndarray,
    strengths: Sequence[float] = STRENGTHS,
    device: torch.device | str = "cpu",
) -> Probe:
    """Fit a classifier of `vectors` (N, D) into `labels` (N). The rows marked in `held_out` (N,) choose the strength of
    the penalty. Hold out complete sentences, since the words of a sentence share their context."""
    names = tuple(sorted(set(labels)))
    index = {label: i for i, label in enumerate(names)}
    targets = torch.tensor([index[label] for label in labels], device=device)
    x = torch.tensor(vectors, dtype=torch.float32, device=device)  # a copy: it is standardised in place
    mean, scale = x.mean(dim=0), x.std(dim=0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    x.sub_(mean).div_(scale)
    is_held_out = torch.as_tensor(held_out, device=device)
    if len(names) == 1 or not 0 < int(is_held_out.sum()) < len(is_held_out):
        raise ValueError("A probe needs two labels, training rows and held out rows.")

    w = torch.zeros(x.shape[1] + 1, len(names), device=device)  # the bias is the last row
    best, best_loss, strength = w, float("inf"), strengths[0]
    for l2 in sorted(strengths, reverse=True):
        w = _fit(x, targets, ~is_held_out, l2, w)
        loss = float(cross_entropy(torch.addmm(w[-1], x, w[:-1])[is_held_out], targets[is_held_out]))
        if loss >= best_loss:
            break
        best, best_loss, strength = w, loss, l2
    predictions = torch.addmm(best[-1], x, best[:-1]).argmax(dim=1)
    accuracy = float((predictions == targets)[is_held_out].double().mean())
    w = _fit(x, targets, torch.ones_like(is_held_out), strength, best)
    return Probe(names, w[:-1], w[-1], mean, scale, strength, accuracy)


def most_frequent_labels(words: Sequence[str], labels: Sequence[str], test_words: Sequence[str]) -> list[str]:
    """Return each test word's most frequent label in training, or for an unseen word the most frequent one of all."""
    counts: dict[str, Counter[str]] = {}
    for word, label in zip(words, labels, strict=True):
        counts.setdefault(word, Counter())[label] += 1
    default = Counter(labels).most_common(1)[0][0]
    label_by_word = {word: word_counts.most_common(1)[0][0] for word, word_counts in counts.items()}
    return [label_by_word.get(word, default) for word in test_words]


def _fit(x: Tensor, targets: Tensor, rows: Tensor, l2: float, start: Tensor) -> Tensor:
    """Return the weights (D + 1, C) that minimise the mean loss of the marked rows plus l2 / 2 of their squares."""
    w = start.clone().requires_grad_()
    settings = {"max_iter": ROUND_STEPS, "history_size": 20, "tolerance_grad": 0.0, "tolerance_change": 0.0}
    optimizer = torch.optim.LBFGS([w], line_search_fn="strong_wolfe", **settings)  # type: ignore[arg-type]
    shares = rows / rows.sum()  # weights rather than a selection, so that no part of a large matrix is copied

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = cross_entropy(torch.addmm(w[-1], x, w[:-1]), targets, reduction="none")
        loss = (losses * shares).sum() + l2 / 2 * w[:-1].square().sum()
        loss.backward()
        return loss

    previous = float("inf")
    for _ in range(MAX_ROUNDS):
        optimizer.step(closure)
        loss = float(closure().detach())
        if not loss < previous * (1 - CONVERGED):
            break
        previous = loss
    return w.detach()


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

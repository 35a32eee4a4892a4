"""Word sense disambiguation with the nearest sense average in SemCor 3.0, and its table by layer; an unseen lemma gets
WordNet's first sense, so precision, recall and F1 are the same (Peters et al. 2018, Deep contextualized word
representations, section 5.3 and Table 5;  Melamud et al. 2016)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.senses import POS, Lemma, SenseIndex, SenseSentence, SenseTag, read_framework, read_semcor
from experiments.tables import ComparedRow, Controls, PublishedTable, require_data
from relmo.analysis.core.effects import bootstrap_difference
from relmo.analysis.meaning.occurrences import normalize
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors

Embed = Callable[[Iterable[Sequence[str]]], Iterator[np.ndarray]]
"""Function from sentences to word vectors, (layers, words, dim) each."""

COSINE_TOLERANCE = 1e-6
PAPER = "Peters et al. 2018, Deep contextualized word representations, Table 5"
SETS = ("senseval2", "semeval2007")
BOTH, ALL = "both sets", "all five sets"
COLUMNS = (*SETS, BOTH, *POS, ALL)
PUBLISHED: dict[str, dict[str, float]] = {
    "WordNet first sense": {ALL: 65.9, "senseval2": 66.8, "semeval2007": 55.2},
    "Raganato et al. 2017": {ALL: 69.9},
    "Iacobacci et al. 2016": {ALL: 70.1},
    "CoVe, first layer": {ALL: 59.4},
    "CoVe, second layer": {ALL: 64.7},
    "layer 1": {ALL: 67.4},
    "layer 2": {ALL: 69.0, "senseval2": 71.6, "semeval2007": 62.2},
}
NO_CONTEXT, AROUND = "layer 0 (no context)", "around the word, layer {}"
PEERS = ("Raganato et al. 2017", "Iacobacci et al. 2016", "CoVe, first layer", "CoVe, second layer")
NOTES = [
    "F1 in percent. Parts of speech are over both sets; semeval2007 has nouns and verbs only",
    "published: the paper's scores are over all five sets of the framework; those of single sets are the framework's "
    "baseline, and ELMo as later surveys list it",
    "without context only the form of a word distinguishes its senses, and a sense seen once in that form beats a "
    "frequent sense seen in several forms: layer 0 and static vectors are below the first sense",
    "around the word: the forward state before the word and the backward state after it, from which the model predicts "
    "the word; they do not depend on the word itself. The paper has no such row",
    "senses from SemCor 3.0 without punctuation, a full stop added to each sentence; phrases are means of their words",
]


def bilm_embedder(model: BiLM) -> Embed:
    """Return a function that embeds sentences with all layers of a model, their average, and the context states of
    every layer above the token layer: the forward state of the previous word and the backward state of the next, from
    which the model predicts the word; zeros beyond the sentence."""

    def embed(sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        folded = ([word.lower() for word in words] for words in sentences)
        for layers in model.embed_stream(folded if model.settings.text.lowercase else sentences):  # (K, T, 2P)
            states, half = np.zeros_like(layers[1:]), layers.shape[2] // 2
            states[:, 1:, :half] = layers[1:, :-1, :half]
            states[:, :-1, half:] = layers[1:, 1:, half:]
            yield np.concatenate([layers, layers.mean(axis=0, keepdims=True), states])

    return embed


def static_embedder(vectors: WordVectors) -> Embed:
    """Return a function that embeds a word in one layer: its vector, else that of its lower-case form, else zeros."""

    def embed(sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        for words in sentences:
            layer = np.zeros((1, len(words), vectors.matrix.shape[1]), dtype=np.float32)
            for position, word in enumerate(words):
                form = word if word in vectors else word.lower()
                if form in vectors:
                    layer[0, position] = vectors[form]
            yield layer

    return embed


def occurrences(embed: Embed, sentences: Sequence[SenseSentence]) -> Iterator[tuple[SenseTag, np.ndarray]]:
    """Yield the tagged words and phrases of sentences in order, with their vectors (layers, dim)."""
    vectors = embed(sentence.words for sentence in sentences)
    for sentence, layers in zip(sentences, vectors, strict=True):
        for tagged in sentence.tagged:
            yield tagged, layers[:, tagged.start : tagged.end].mean(axis=1)


class SenseAverages:
    """Mean vectors of all senses in a corpus, their counts, and the senses of each lemma in WordNet's order."""

    def __init__(self, corpus: Iterable[tuple[SenseTag, np.ndarray]], index: SenseIndex):
        sums: dict[str, np.ndarray] = {}
        self.counts: dict[str, int] = {}
        self.senses: dict[Lemma, list[str]] = {}
        for tagged, vectors in corpus:
            for key in tagged.senses:
                if key not in index:  # 4% of SemCor's tags, which can never be correct
                    continue
                if key not in sums:
                    sums[key] = np.zeros(vectors.shape, dtype=np.float64)
                    self.senses.setdefault(tagged.lemma, []).append(key)
                sums[key] += vectors
                self.counts[key] = self.counts.get(key, 0) + 1
        for keys in self.senses.values():
            keys.sort(key=lambda key: index.rank[key])
        self.directions = {key: normalize(total) for key, total in sums.items()}  # (layers, dim)

    def nearest(self, lemma: Lemma, vectors: np.ndarray) -> list[str] | None:
        """Return the nearest sense in each layer of an occurrence (layers, dim); None for an unseen lemma."""
        keys = self.senses.get(lemma)
        if keys is None:
            return None
        means = np.stack([self.directions[key] for key in keys])  # (senses, layers, dim)
        cosines = np.einsum("sld,ld->ls", means, normalize(vectors))
        near = cosines >= cosines.max(axis=1, keepdims=True) - COSINE_TOLERANCE
        return [keys[sense] for sense in near.argmax(axis=1)]


class Answers(NamedTuple):
    """Senses of each test instance: WordNet's first, the corpus's most frequent (else the first), nearest by layer."""

    first_sense: list[str]
    most_frequent: list[str]
    nearest: list[list[str]]
    seen: np.ndarray  # whether the lemma is in the corpus


def disambiguate(
    embed: Embed, corpus: Iterable[SenseSentence], test: Sequence[SenseSentence], index: SenseIndex
) -> Answers:
    """Return senses for the tagged words of `test`, from the senses of `corpus`."""
    lemmas = {tagged.lemma for sentence in test for tagged in sentence.tagged}
    filtered = (SenseSentence(words, [tag for tag in tags if tag.lemma in lemmas]) for words, tags in corpus)
    averages = SenseAverages(occurrences(embed, [sentence for sentence in filtered if sentence.tagged]), index)
    defaults, frequent, nearest, seen = [], [], [], []
    for tagged, vectors in occurrences(embed, test):
        default = index.first(tagged.lemma) or ""
        senses = averages.nearest(tagged.lemma, vectors)
        defaults.append(default)
        seen_senses = averages.senses.get(tagged.lemma, ())
        frequent.append(max(seen_senses, key=lambda key: averages.counts[key], default=default))
        nearest.append([default] * len(vectors) if senses is None else senses)
        seen.append(senses is not None)
    by_layer = [list(layer) for layer in zip(*nearest, strict=True)]
    return Answers(defaults, frequent, by_layer, np.array(seen, dtype=bool))


def mark_correct(answers: Sequence[str], test: Sequence[SenseSentence]) -> np.ndarray:
    """Return whether each answer is among the senses of its instance; (N,) of bool."""
    instances = [tagged for sentence in test for tagged in sentence.tagged]
    return np.array([answer in tag.senses for answer, tag in zip(answers, instances, strict=True)], dtype=bool)


def make_table(model: BiLM, *, data: Path, controls: Controls, on_message: Callable[[str], None]) -> PublishedTable:
    """Score a model, its controls, and the main differences with their intervals."""
    folder = require_data(data, "tasks/wsd", "SemCor, WordNet's senses and the evaluation sets")
    on_message("wsd: reading SemCor and WordNet's senses")
    index = SenseIndex.read(require_data(folder, "wordnet-3.0.index.sense", "WordNet 3.0's index of senses"))
    semcor = read_semcor(require_data(folder, "semcor3.jsonl", "SemCor 3.0"))
    corpus = [normalise(sentence, end=".") for sentence in semcor]
    test, names_by_word = [], []
    for name in SETS:
        suffixes = ("data.xml", "gold.key.txt")
        paths = (require_data(folder, f"{name}.{suffix}", f"evaluation set {name}") for suffix in suffixes)
        sentences = [normalise(sentence) for sentence in read_framework(*paths)]
        test += sentences
        names_by_word += [name for sentence in sentences for _ in sentence.tagged]
    set_names = np.array(names_by_word)
    pos = np.array([tagged.lemma.pos for sentence in test for tagged in sentence.tagged])
    masks = {name: set_names == name for name in SETS} | {BOTH: set_names != ""} | {name: pos == name for name in POS}
    sentence_ids = np.repeat(np.arange(len(test)), [len(sentence.tagged) for sentence in test])

    def score(answers: Sequence[str]) -> dict[str, float]:
        correct = mark_correct(answers, test)
        return {name: 100 * float(correct[mask].mean()) for name, mask in masks.items() if mask.any()}

    on_message(f"wsd: embedding {len(corpus):,} sentences of SemCor with the model")
    answers = disambiguate(bilm_embedder(model), corpus, test, index)
    on_message("wsd: embedding them with the untrained network")
    untrained_answers = disambiguate(bilm_embedder(controls.untrained), corpus, test, index)
    # 2 K + 2 vectors per word: layers 0 to K, their average, and the context states of layers 1 to K
    top = (len(answers.nearest) - 2) // 2
    contexts = range(1, top + 1)
    names = [NO_CONTEXT, *(f"layer {k}" for k in contexts), "average of layers", *(AROUND.format(k) for k in contexts)]
    rows = [ComparedRow("WordNet first sense", score(answers.first_sense), PUBLISHED["WordNet first sense"])]
    rows.append(ComparedRow("SemCor most frequent sense", score(answers.most_frequent)))
    rows += [ComparedRow(name, published=PUBLISHED[name]) for name in PEERS]
    for name, senses in zip(names, answers.nearest, strict=True):
        rows.append(ComparedRow(name, score(senses), PUBLISHED.get(name)))
    if controls.vectors is not None:
        on_message("wsd: static vectors")
        static = disambiguate(static_embedder(controls.vectors), corpus, test, index)
        rows.append(ComparedRow("skip-gram vectors", score(static.nearest[0])))
    for name, senses in zip(names, untrained_answers.nearest, strict=True):
        rows.append(ComparedRow(f"untrained, {name}", score(senses)))
    methods = {"first sense": answers.first_sense, **{f"layer {k}": answers.nearest[k] for k in range(top + 1)}}
    methods[AROUND.format(top)] = answers.nearest[-1]
    pairs = [(f"layer {top}", "first sense"), *((f"layer {top}", f"layer {k}") for k in range(top - 1, -1, -1))]
    pairs += [(AROUND.format(top), f"layer {top}"), (AROUND.format(top), "first sense")]
    seen = int(answers.seen.sum())
    notes = [*NOTES, f"SemCor has the lemma of {seen:,} of {len(set_names):,} words; the others get the first sense"]
    differences: dict[str, dict[str, list[float]]] = {}  # in points, on both sets and each, with 95% intervals
    for a, b in pairs:
        arrays = mark_correct(methods[a], test), mark_correct(methods[b], test), sentence_ids
        differences[f"{a} - {b}"] = {
            name: [100 * figure for figure in bootstrap_difference(*(array[masks[name]] for array in arrays))]
            for name in (BOTH, *SETS)
        }
        difference, low, high = differences[f"{a} - {b}"][BOTH]
        notes.append(f"{a} - {b}, both sets: {difference:+.1f} points, 95% interval {low:+.1f} to {high:+.1f}")
    extra = {"instances": len(set_names), "seen": seen, "differences": differences}
    return PublishedTable("wsd", "word senses by the nearest neighbour", PAPER, COLUMNS, rows, notes, extra)


def normalise(sentence: SenseSentence, end: str = "") -> SenseSentence:
    """Return the sentence with quotes as typed and, if `end` is given, with that full stop appended."""
    words = ['"' if word in ("``", "''") else word for word in sentence.words]
    return SenseSentence([*words, end] if end else words, sentence.tagged)

"""Word sense disambiguation by the nearest neighbour, layer by layer.

    Peters et al. 2018, Deep contextualized word representations, section 5.3 and Table 5, after Melamud et al. 2016

Every sense has its mean vector over SemCor 3.0. Each test word gets the sense of its lemma and part of speech whose
mean is nearest, or WordNet's first sense where SemCor has no sense of the lemma. Every word is answered, so precision,
recall and F1 are one number. An answer is right if it is one of the keys that the annotators gave.

What the figures depend on:
- The published ones are over all five sets of the unified framework (Raganato et al. 2017), 7,253 words; ours over two
  of them, senseval2 and semeval2007, 2,737 words.
- This SemCor has no punctuation, but the test sentences do. SemCor's sentences get a full stop at their end, as in the
  original text. The test sentences stay as they are, except that their quotes `` become ". Leaving out the full stop,
  or the test sentences' punctuation, moved no layer of a small model by more than half a point on both sets together
  (and by up to 1.1 on the 455 words of semeval2007).
- 4% of SemCor's tags are keys that WordNet 3.0's index does not have; they are left out, as they can never be right.
  With them among the candidates every layer of that model lost 2.0 to 2.4 points.
- A phrase is the mean of its words' vectors.
- Around the word: the forward state before it and the backward state after it, without the word itself. That is no row
  of the paper's. It was tried on these two sets, beside others (docs/results.md), and was the best by far.
- Nothing else was chosen by these test sets. Intervals are bootstrapped over sentences, whose words share a context.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relmo.analysis.core.intervals import bootstrap_difference
from relmo.analysis.meaning.senses import Answers, disambiguate, layers_of, right, static_layer
from relmo.models.bilm import BiLM
from relmo.reproduce.controls import Controls
from relmo.reproduce.data import required
from relmo.reproduce.table import ComparedRow, Reproduction
from relmo.text.senses import POS, SenseIndex, SenseSentence, read_framework, read_semcor

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
    "published: the paper's figures are over all five sets of the framework; those of single sets are of the "
    "framework's baseline, and of ELMo as later surveys list it",
    "without context only a word's form tells senses apart, and one seen once in that very form beats a frequent one "
    "seen in many: so layer 0 and static vectors end up below the first sense",
    "around the word: the states that the model predicts the word from, the forward one before it and the backward one "
    "after it; they have not read the word itself. The paper has no such row",
    "senses seen in SemCor 3.0 without its punctuation, a full stop put at each end; phrases are means of their words",
]


def reproduce(model: BiLM, *, data: Path, controls: Controls, say: Callable[[str], None]) -> Reproduction:
    """The table for a model, its controls, and the differences that matter with their intervals."""
    folder = required(data, "tasks/wsd", "SemCor, WordNet's senses and the evaluation sets")
    say("wsd: reading SemCor and WordNet's senses")
    index = SenseIndex.read(required(folder, "wordnet-3.0.index.sense", "WordNet 3.0's index of senses"))
    corpus = [as_text(sentence, end=".") for sentence in read_semcor(required(folder, "semcor3.jsonl", "SemCor 3.0"))]
    sets = [_read_set(folder, name) for name in SETS]
    test = [as_text(sentence) for sentences in sets for sentence in sentences]
    names = [name for name, sentences in zip(SETS, sets, strict=True) for s in sentences for _ in s.tagged]
    measure = Measure(test, np.array(names))

    say(f"wsd: {len(corpus):,} sentences of SemCor through the model")
    trained = disambiguate(layers_of(model), corpus, test, index)
    say("wsd: the same through the untrained network")
    fresh = disambiguate(layers_of(controls.untrained), corpus, test, index)
    rows = [
        ComparedRow("WordNet first sense", measure(trained.first), PUBLISHED["WordNet first sense"]),
        ComparedRow("SemCor most frequent sense", measure(trained.most_frequent)),
        *(ComparedRow(name, published=PUBLISHED[name]) for name in PEERS),
    ]
    rows += _layer_rows(trained, measure, "")
    if controls.vectors is not None:
        say("wsd: the static vectors")
        static = disambiguate(static_layer(controls.vectors), corpus, test, index)
        rows.append(ComparedRow("skip-gram vectors", measure(static.nearest[0])))
    rows += _layer_rows(fresh, measure, "untrained, ")
    extra = {"instances": len(names), "seen": int(trained.seen.sum()), "differences": _differences(trained, measure)}
    return Reproduction("wsd", "word senses by the nearest neighbour", PAPER, COLUMNS, rows, _notes(extra), extra)


def _read_set(folder: Path, name: str) -> list[SenseSentence]:
    what = f"the evaluation set {name}"
    data, gold = (required(folder, f"{name}.{ending}", what) for ending in ("data.xml", "gold.key.txt"))
    return read_framework(data, gold)


def as_text(sentence: SenseSentence, end: str = "") -> SenseSentence:
    """The sentence as text is written: quotes as typed and, where it has lost it, a full stop."""
    words = ['"' if word in ("``", "''") else word for word in sentence.words]
    return SenseSentence([*words, end] if end else words, sentence.tagged)


def _layer_rows(answers: Answers, measure: "Measure", prefix: str) -> list[ComparedRow]:
    """A row a layer, one for their average, and one for what stands around the word in each layer with context."""
    contexts = range(1, top_layer(answers) + 1)
    names = [NO_CONTEXT, *(f"layer {k}" for k in contexts), "average of layers", *(AROUND.format(k) for k in contexts)]
    return [
        ComparedRow(prefix + name, measure(layer), None if prefix else PUBLISHED.get(name))
        for name, layer in zip(names, answers.nearest, strict=True)
    ]


def top_layer(answers: Answers) -> int:
    """The number K of the top layer, of the answers of 2 K + 2 vectors: layers 0 to K, their average, 1 to K around the
    word."""
    return (len(answers.nearest) - 2) // 2


class Measure:
    """The F1 of answers in each column, in percent."""

    def __init__(self, test: Sequence[SenseSentence], sets: np.ndarray):
        self.test = test
        self.sentence = np.repeat(np.arange(len(test)), [len(sentence.tagged) for sentence in test])  # (N,)
        pos = np.array([tagged.lemma.pos for sentence in test for tagged in sentence.tagged])
        self.columns = {name: sets == name for name in SETS} | {BOTH: sets != ""} | {name: pos == name for name in POS}

    def __call__(self, answers: Sequence[str]) -> dict[str, float]:
        found = right(answers, self.test)
        return {name: 100 * float(found[where].mean()) for name, where in self.columns.items() if where.any()}


def _differences(answers: Answers, measure: Measure) -> dict[str, Any]:
    """How much better one way is than another, in points, on both sets and each, with 95% intervals."""
    top = top_layer(answers)
    ways = {"first sense": answers.first, **{f"layer {k}": answers.nearest[k] for k in range(top + 1)}}
    ways[AROUND.format(top)] = answers.nearest[-1]
    pairs = [(f"layer {top}", "first sense"), *((f"layer {top}", f"layer {k}") for k in range(top - 1, -1, -1))]
    pairs += [(AROUND.format(top), f"layer {top}"), (AROUND.format(top), "first sense")]
    found: dict[str, Any] = {}
    for better, worse in pairs:
        first, second = right(ways[better], measure.test), right(ways[worse], measure.test)
        for name in (BOTH, *SETS):
            where = measure.columns[name]
            interval = bootstrap_difference(first[where], second[where], measure.sentence[where])
            found.setdefault(f"{better} - {worse}", {})[name] = [100 * value for value in interval]
    return found


def _notes(extra: dict[str, Any]) -> list[str]:
    said = [
        f"{name}, both sets: {value[BOTH][0]:+.1f} points, 95% interval {value[BOTH][1]:+.1f} to {value[BOTH][2]:+.1f}"
        for name, value in extra["differences"].items()
    ]
    seen, instances = extra["seen"], extra["instances"]
    return [*NOTES, f"SemCor has the lemma of {seen:,} of {instances:,} words; the rest get the first sense", *said]

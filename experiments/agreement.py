"""Agreement and other minimal pairs by the probabilities of a bidirectional model.

    BLiMP      67 paradigms x 1,000 pairs of sentences; correct if the acceptable sentence is more probable.
               Warstadt et al. 2020, BLiMP: the benchmark of linguistic minimal pairs for English, Table 3
    Linzen     sentences of Wikipedia, by the number of attractors (nouns of the opposite number between subject and
               verb); correct if the verb's form is more probable than its other form, given all words before it.
               Linzen et al. 2016; the 7,489 sentences that Gulordava et al. 2018 and Lakretz et al. 2019 used
    Lakretz    constructed sentences that end in the verb, by construction and by the number of the subject.
               Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models, Table 2

- The published LSTM is one model for all three (Gulordava et al. 2018: 2 layers of 650 cells, 83M words of Wikipedia,
  50,000 words). It is a forward model; compare it with our forward column.
- Sentence probabilities include the end of the sentence and are not divided by length.
- Every sentence starts from the zero state. The published Lakretz scores start from states after other sentences.
- The Linzen text is lower-case and is read as it is; `extra` also has it with a capital first letter.
- Words outside the vocabulary share the probability of <UNK>. "known words" leaves out pairs in which a differing word
  is unknown; two unknown verb forms are a tie, half a point.
- Controls are the untrained network, which reads only the first 100 pairs of each BLiMP paradigm, and for verbs the
  more frequent form (the vocabulary is sorted by frequency). Static vectors and the layer without context give no
  probabilities.
- BLiMP's two selection paradigms count as argument structure, as in the paper's table.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.tables import ComparedRow, Controls, PublishedTable, require_data
from relmo.analysis.syntax.pair_scores import Accuracy, accuracy
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.text import minimal_pairs

SIDES = ("forward", "backward", "sum")
PAPER = "Warstadt et al. 2020, Table 3; Lakretz et al. 2019, Table 2 (its LSTM is that of Gulordava et al. 2018)"
KNOWN, UNTRAINED, FREQUENCY = "known words", "untrained", "more frequent form"
PAIRS, KNOWN_PAIRS = "pairs", "with known words"
COLUMNS = (*SIDES, KNOWN, UNTRAINED, FREQUENCY, PAIRS, KNOWN_PAIRS, "LSTM", "5-gram")
UNTRAINED_PAIRS = 100  # of each paradigm
PHENOMENA: dict[str, dict[str, float]] = {
    "anaphor_agreement": {"LSTM": 91.7, "5-gram": 47.9},
    "argument_structure": {"LSTM": 73.2, "5-gram": 71.9},
    "binding": {"LSTM": 73.5, "5-gram": 64.4},
    "control_raising": {"LSTM": 67.0, "5-gram": 68.5},
    "determiner_noun_agreement": {"LSTM": 85.4, "5-gram": 70.0},
    "ellipsis": {"LSTM": 67.6, "5-gram": 36.9},
    "filler_gap_dependency": {"LSTM": 73.9, "5-gram": 60.2},
    "irregular_forms": {"LSTM": 89.1, "5-gram": 79.5},
    "island_effects": {"LSTM": 46.6, "5-gram": 57.2},
    "npi_licensing": {"LSTM": 51.7, "5-gram": 45.5},
    "quantifiers": {"LSTM": 64.5, "5-gram": 53.5},
    "subject_verb_agreement": {"LSTM": 80.1, "5-gram": 60.3},
}
BLIMP = {"LSTM": 69.8, "5-gram": 61.2}
OTHER_MODELS = "other published models: Transformer-XL 69.6, GPT-2 large 83.0, people 88.6"
LINZEN = {"LSTM": 93.9}
LAKRETZ: dict[str, tuple[str, dict[str, float]]] = {
    "simple": ("simple", {"singular": 100.0, "plural": 100.0}),
    "adv": ("adverb", {"singular": 100.0, "plural": 99.6}),
    "adv_adv": ("two adverbs", {"singular": 99.9, "plural": 99.3}),
    "adv_conjunction": ("adverb and adverb", {"singular": 98.7, "plural": 99.3}),
    "namepp": ("preposition and name", {"singular": 99.3, "plural": 68.9}),
}
NOTES = [
    "accuracy in percent; a tie is half a point. The published models are forward models: compare them with 'forward', "
    "which for Linzen and Lakretz is the verb given all words before it",
    "published LSTM: Gulordava et al. 2018, 83M words of Wikipedia",
    f"{KNOWN}: forward, without pairs in which a differing word is not in the vocabulary; where these are few, the "
    "forward column says more about the vocabulary than about grammar",
    f"{UNTRAINED}: forward; on BLiMP the first {UNTRAINED_PAIRS} pairs of each paradigm",
    "static vectors and the layer without context give no probabilities and cannot be controls here",
]


class SentencePair(NamedTuple):
    """An acceptable and an unacceptable sentence, as strings or words."""

    good: str | Sequence[str]
    bad: str | Sequence[str]


class WordChoice(NamedTuple):
    """A left context, a word that continues it, and one that does not."""

    context: Sequence[str]
    right: str
    wrong: str


class Paradigm(NamedTuple):
    """BLiMP paradigm: a set of pairs and the phenomenon it belongs to."""

    name: str
    phenomenon: str
    pairs: list[SentencePair]


class PairScores(NamedTuple):
    """Differences in log-probability (N, sides) and which pairs have known words (N,); the same for the untrained
    network, on the first M pairs; differences in frequency (N,), for verbs only."""

    scores: np.ndarray
    known: np.ndarray
    untrained: np.ndarray
    untrained_known: np.ndarray
    frequency: np.ndarray | None = None

    def select(self, mask: np.ndarray) -> "PairScores":
        """Return the pairs that the mask selects."""
        return PairScores(*(None if array is None else array[mask] for array in self))  # type: ignore[arg-type]

    def accuracies(self) -> dict[str, Accuracy]:
        """Return the accuracy of each column."""
        columns = {side: accuracy(scores, self.known) for side, scores in zip(SIDES, self.scores.T, strict=False)}
        columns[UNTRAINED] = accuracy(self.untrained, self.untrained_known)
        if self.frequency is not None:
            columns[FREQUENCY] = accuracy(self.frequency, self.known)
        return columns

    def summary(self) -> dict[str, Any]:
        """Return the accuracies with their intervals as plain values."""
        return {column: share.summary() for column, share in self.accuracies().items()}

    def row(self, name: str, published: dict[str, float] | None = None, note: str = "") -> ComparedRow:
        """Return a row of the table."""
        accuracies = self.accuracies()
        ours: dict[str, float] = {column: 100 * share.share.value for column, share in accuracies.items()}
        forward = accuracies["forward"]
        if forward.known_pairs:
            ours[KNOWN] = 100 * forward.known.value
        return ComparedRow(name, ours | {PAIRS: forward.pairs, KNOWN_PAIRS: forward.known_pairs}, published, note)


def _concatenate(parts: Sequence[PairScores]) -> PairScores:
    arrays = [[array for array in part if array is not None] for part in parts]
    return PairScores(*(np.concatenate(column) for column in zip(*arrays, strict=True)))


def make_table(model: BiLM, *, data: Path, controls: Controls, on_message: Callable[[str], None]) -> PublishedTable:
    """Score a model and its controls on BLiMP, the Linzen set and the Lakretz tasks."""
    model.get_output_vocabulary()  # fail early if the model has no output layer
    folder = require_data(data, "tasks/agreement", "BLiMP and the agreement sets of Linzen and Lakretz")
    paradigms = read_blimp(require_data(folder, "blimp", "BLiMP"))
    linzen = read_linzen(require_data(folder, "linzen", "the Linzen set"))
    lakretz = {
        name: read_lakretz(require_data(folder, f"lakretz/{name}.txt", "the Lakretz tasks"), name) for name in LAKRETZ
    }
    scorer = Scorer(model, controls.untrained, on_message)
    rows: list[ComparedRow] = []
    extra: dict[str, Any] = {}
    notes = list(NOTES)
    for name, (set_rows, set_extra) in {
        "blimp": scorer.score_blimp(paradigms),
        "linzen": scorer.score_linzen(linzen),
        "lakretz": scorer.score_lakretz(lakretz),
    }.items():
        rows += set_rows
        extra[name] = set_extra
        forward = set_extra["overall"]["forward"]
        low, high = forward["interval"]
        notes.append(
            f"{name}, forward: 95% interval {low:.1f} to {high:.1f}; the words that differ are in the vocabulary in "
            f"{100 * forward['known_pairs'] / forward['pairs']:.1f}% of pairs"
        )
    return PublishedTable("agreement", "agreement and other minimal pairs", PAPER, COLUMNS, rows, notes, extra)


RowsAndExtra = tuple[list[ComparedRow], dict[str, Any]]


class Scorer(NamedTuple):
    """Scores of a model and of the same network untrained on the three sets."""

    model: BiLM
    untrained: BiLM
    on_message: Callable[[str], None]

    def score_blimp(self, paradigms: Sequence[Paradigm]) -> RowsAndExtra:
        """Score BLiMP: overall, each phenomenon and, in the extra, each paradigm."""
        by_paradigm: dict[str, PairScores] = {}
        for number, (name, _, pairs) in enumerate(paradigms, start=1):
            self.on_message(f"agreement: BLiMP {number} of {len(paradigms)}, {name}")
            differing = (find_differing_words(self.model, pair) for pair in pairs)
            known = np.array([is_known(self.model, words) for words in differing], dtype=bool)
            untrained = score_sentence_pairs(self.untrained, pairs[:UNTRAINED_PAIRS])[:, 0]
            scores = score_sentence_pairs(self.model, pairs)
            by_paradigm[name] = PairScores(scores, known, untrained, known[: len(untrained)])
        by_phenomenon = {
            phenomenon: _concatenate([by_paradigm[p.name] for p in paradigms if p.phenomenon == phenomenon])
            for phenomenon in sorted({paradigm.phenomenon for paradigm in paradigms})
        }
        overall = _concatenate(list(by_paradigm.values()))
        rows = [overall.row("BLiMP", BLIMP, OTHER_MODELS)]
        rows += [part.row(f"  {name.replace('_', ' ')}", PHENOMENA.get(name)) for name, part in by_phenomenon.items()]
        return rows, {
            "overall": overall.summary(),
            "phenomena": {name: part.summary() for name, part in by_phenomenon.items()},
            "paradigms": {name: part.summary() for name, part in by_paradigm.items()},
        }

    def score_linzen(self, sentences: Sequence[tuple[int, WordChoice]]) -> RowsAndExtra:
        """Score the Linzen set: overall and by the number of attractors."""
        self.on_message(f"agreement: Linzen, {len(sentences):,} sentences")
        choices = [choice for _, choice in sentences]
        attractors = np.array([count for count, _ in sentences])
        overall = self.score_verbs(choices)
        by_count = {count: overall.select(attractors == count) for count in np.unique(attractors).tolist()}
        rows = [overall.row("Linzen", LINZEN)]
        rows += [
            part.row("  1 attractor" if count == 1 else f"  {count} attractors") for count, part in by_count.items()
        ]
        capital = [choice._replace(context=_capitalise(choice.context)) for choice in choices]
        return rows, {
            "overall": overall.summary(),
            "attractors": {str(count): part.summary() for count, part in by_count.items()},
            "first_letter_capital": accuracy(score_choices(self.model, capital), overall.known).summary(),
        }

    def score_lakretz(self, tasks: dict[str, list[tuple[str, WordChoice]]]) -> RowsAndExtra:
        """Score the Lakretz tasks: overall and by the number of the subject."""
        rows, by_condition, by_task = [], {}, []
        for name, sentences in tasks.items():
            self.on_message(f"agreement: Lakretz, {name}")
            conditions = np.array([condition for condition, _ in sentences])
            scores = self.score_verbs([choice for _, choice in sentences])
            by_task.append(scores)
            title, published = LAKRETZ[name]
            for condition, figure in published.items():
                part = scores.select(conditions == condition)
                rows.append(part.row(f"  {title}, {condition}", {"LSTM": figure}))
                by_condition[f"{name} {condition}"] = part.summary()
        overall = _concatenate(by_task)
        rows.insert(0, overall.row("Lakretz, by the subject's number"))
        return rows, {"overall": overall.summary(), "conditions": by_condition}

    def score_verbs(self, choices: Sequence[WordChoice]) -> PairScores:
        """Score choices between two forms of a verb."""
        known = np.array([is_known(self.model, choice[1:]) for choice in choices], dtype=bool)
        scores = score_choices(self.model, choices)[:, None]
        frequency = score_by_frequency(self.model, choices)
        return PairScores(scores, known, score_choices(self.untrained, choices), known, frequency)


def score_sentence_pairs(model: BiLM, pairs: Iterable[SentencePair]) -> np.ndarray:
    """Return log p(good) - log p(bad) of each pair: forward, backward, and their sum; (N, 3)."""
    sentences = [sentence for pair in pairs for sentence in pair]
    totals = np.array([log_p.sum(axis=1, dtype=np.float64) for log_p in model.log_probs(sentences)]).reshape(-1, 2, 2)
    scores = totals[:, 0] - totals[:, 1]  # (N, 2)
    return np.column_stack([scores, scores.sum(axis=1)])


def score_choices(model: BiLM, choices: Sequence[WordChoice]) -> np.ndarray:
    """Return log p(right | context) - log p(wrong | context) of each choice; (N,)."""
    sentences = [[*choice.context, word] for choice in choices for word in (choice.right, choice.wrong)]
    log_probs = model.log_probs(sentences, direction="forward")
    last = np.array([log_p[-2] for log_p in log_probs], dtype=np.float64).reshape(-1, 2)  # [-1] is the sentence end
    return last[:, 0] - last[:, 1]


def score_by_frequency(model: BiLM, choices: Sequence[WordChoice]) -> np.ndarray:
    """Return rank(wrong) - rank(right) in the vocabulary, which is sorted by descending frequency: the baseline of a
    model that knows frequencies alone. Unknown words rank last; (N,)."""
    assert model.vocabulary is not None
    index, last = model.vocabulary.index, len(model.vocabulary)
    return np.array([index.get(c.wrong, last) - index.get(c.right, last) for c in choices], dtype=np.float64)


def find_differing_words(model: BiLM, pair: SentencePair) -> set[str]:
    """Return the words that one sentence has more often than the other; none if only their order differs."""
    good, bad = (Counter(model.tokens(s) if isinstance(s, str) else s) for s in pair)
    return {*(good - bad), *(bad - good)}


def is_known(model: BiLM, words: Iterable[str]) -> bool:
    """Return whether the vocabulary has all of these words."""
    assert model.vocabulary is not None
    return all(word in model.vocabulary.index for word in words)


def _capitalise(words: Sequence[str]) -> list[str]:
    return [word[:1].upper() + word[1:] if i == 0 else word for i, word in enumerate(words)]


def read_blimp(folder: Path) -> list[Paradigm]:
    """Read all paradigms of a folder, one .jsonl file each."""
    paradigms = []
    for path in sorted(folder.glob("*.jsonl")):
        pairs = minimal_pairs.read_pairs(path)
        sentences = [SentencePair(pair.good, pair.bad) for pair in pairs]
        paradigms.append(Paradigm(path.stem, pairs[0].phenomenon, sentences))
    if not paradigms:
        raise CorpusError(f"{folder}: no .jsonl files of BLiMP found")
    return paradigms


def read_linzen(folder: Path) -> list[tuple[int, WordChoice]]:
    """Read the number of attractors of each sentence and the verb choice it ends in. One file has positions and forms,
    the other the text."""
    _, gold = (require_data(folder, f"subj_agr_filtered.{suffix}", "the Linzen set") for suffix in ("text", "gold"))
    return [(int(pair.condition.split()[0]), _choice_of(pair)) for pair in minimal_pairs.read_linzen(gold)]


def read_lakretz(path: Path, name: str) -> list[tuple[str, WordChoice]]:
    """Read the number of each subject and the choice between the last words of two lines, the correct one first."""
    choices = [(pair.condition.split()[-1], _choice_of(pair)) for pair in minimal_pairs.read_lakretz(path)]
    if not choices:
        raise CorpusError(f"{path}: no pairs found")
    if unknown := {number for number, _ in choices} - LAKRETZ[name][1].keys():
        raise CorpusError(f"{path}: {unknown.pop()!r} is not the number of a subject (singular, plural)")
    return choices


def _choice_of(pair: minimal_pairs.MinimalPair) -> WordChoice:
    return WordChoice(pair.good[:-1], pair.good[-1], pair.bad[-1])

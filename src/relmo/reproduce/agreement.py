"""Agreement and other minimal pairs, by a bidirectional model's probabilities.

    BLiMP      67 paradigms x 1,000 pairs of sentences; right if the acceptable one is more probable.
               Warstadt et al. 2020, BLiMP: the benchmark of linguistic minimal pairs for English, Table 3
    Linzen     sentences of Wikipedia, by the number of nouns of the other number between subject and verb; right if
               the verb's form is more probable than its other form, given all before it.
               Linzen et al. 2016; the 7,489 sentences that Gulordava et al. 2018 and Lakretz et al. 2019 used
    Lakretz    made-up sentences that end in the verb, by construction and by the number of the subject.
               Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models, Table 2

What the figures depend on:
- The published LSTM is one model for all three (Gulordava et al. 2018: 2 layers of 650 cells, 83M words of Wikipedia,
  50,000 words). It reads forwards, so our forward column is the one to compare with it.
- Where sentences are compared, their probabilities include their ends and are not divided by length.
- Every sentence is read from zero. The published Lakretz figures come from states warmed up with other sentences.
- The Linzen text is in small letters throughout and is read so; `extra` has it with its first letter capital.
- Words outside the vocabulary share the probability of <UNK>. "known words" leaves out pairs in which a word that
  differs between the two is unknown; two unknown verb forms are a tie, half a point.
- Controls are the untrained network, which reads only the first 100 pairs of each BLiMP paradigm, and for verbs the
  more frequent form (the vocabulary is sorted by frequency). Static vectors and the layer without context give no
  probabilities.
- BLiMP's two paradigms on selection count as argument structure, as in the paper's table.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relmo.analysis.syntax.minimal_pairs import (
    SIDES,
    Accuracy,
    SentencePair,
    WordChoice,
    accuracy,
    choice_scores,
    frequency_scores,
    is_known,
    pair_scores,
    words_that_differ,
)
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.reproduce.controls import Controls
from relmo.reproduce.data import required
from relmo.reproduce.table import ComparedRow, Reproduction
from relmo.text import minimal_pairs
from relmo.text.corpus import read_lines
from relmo.text.minimal_pairs import blimp_fields

PAPER = "Warstadt et al. 2020, Table 3; Lakretz et al. 2019, Table 2 (its LSTM is that of Gulordava et al. 2018)"
KNOWN, UNTRAINED, FREQUENCY = "known words", "untrained", "more frequent form"
PAIRS, KNOWN_PAIRS = "pairs", "with known words"
COLUMNS = (*SIDES, KNOWN, UNTRAINED, FREQUENCY, PAIRS, KNOWN_PAIRS, "LSTM", "5-gram")
OF_UNTRAINED = 100  # pairs of each paradigm
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
OTHERS = "published of others: Transformer-XL 69.6, GPT-2 large 83.0, people 88.6"
MERGED = {"s-selection": "argument_structure"}
LINZEN = {"LSTM": 93.9}
LAKRETZ: dict[str, tuple[str, dict[str, float]]] = {
    "simple": ("simple", {"singular": 100.0, "plural": 100.0}),
    "adv": ("adverb", {"singular": 100.0, "plural": 99.6}),
    "adv_adv": ("two adverbs", {"singular": 99.9, "plural": 99.3}),
    "adv_conjunction": ("adverb and adverb", {"singular": 98.7, "plural": 99.3}),
    "namepp": ("preposition and name", {"singular": 99.3, "plural": 68.9}),
}
NOTES = [
    "accuracy in percent; a tie is half a point. The published models read forwards; so 'forward' is to be compared "
    "with them; of Linzen and Lakretz it is the verb given all before it",
    "published LSTM: that of Gulordava et al. 2018, 83M words of Wikipedia",
    f"{KNOWN}: forwards, without pairs in which a word that differs between the two is not in the vocabulary; where "
    "they are few, the forward column says more about the vocabulary than about grammar",
    f"{UNTRAINED}: forwards; of BLiMP the first {OF_UNTRAINED} pairs of each paradigm",
    "static vectors and the layer without context give no probabilities, so they cannot be controls here",
]


class Paradigm(NamedTuple):
    """One of BLiMP's sets of pairs, and the phenomenon it belongs to."""

    name: str
    phenomenon: str
    pairs: list[SentencePair]


class PairResults(NamedTuple):
    """Differences in log-probability (N, k), and which pairs have known words (N,); the same for the untrained network,
    perhaps on fewer pairs (M,); differences in frequency (N,), where there are any."""

    scores: np.ndarray
    known: np.ndarray
    untrained: np.ndarray
    untrained_known: np.ndarray
    frequency: np.ndarray | None = None


def reproduce(model: BiLM, *, data: Path, controls: Controls, say: Callable[[str], None]) -> Reproduction:
    """The table for a model and its controls."""
    model.output_words()  # says at once where there are none
    folder = required(data, "tasks/agreement", "BLiMP and the agreement sets of Linzen and Lakretz")
    paradigms = read_blimp(required(folder, "blimp", "BLiMP"))
    linzen = read_linzen(required(folder, "linzen", "the Linzen set"))
    lakretz = {
        name: read_lakretz(required(folder, f"lakretz/{name}.txt", "the Lakretz tasks"), name) for name in LAKRETZ
    }
    rows, extra = _blimp_rows(model, controls.untrained, paradigms, say)
    more_rows, more = _linzen_rows(model, controls.untrained, linzen, say)
    last_rows, last = _lakretz_rows(model, controls.untrained, lakretz, say)
    extra = {"blimp": extra, "linzen": more, "lakretz": last}
    title = "agreement and other minimal pairs"
    rows = [*rows, *more_rows, *last_rows]
    return Reproduction("agreement", title, PAPER, COLUMNS, rows, [*NOTES, *_shares(extra)], extra)


def _blimp_rows(
    model: BiLM, untrained: BiLM, paradigms: Sequence[Paradigm], say: Callable[[str], None]
) -> tuple[list[ComparedRow], dict[str, Any]]:
    """All of BLiMP, each phenomenon and, in the extra, each paradigm."""
    results: dict[str, PairResults] = {}
    for number, (name, _, pairs) in enumerate(paradigms, start=1):
        say(f"agreement: BLiMP {number} of {len(paradigms)}, {name}")
        known = np.array([is_known(model, words_that_differ(model, pair)) for pair in pairs], dtype=bool)
        fresh = pair_scores(untrained, pairs[:OF_UNTRAINED])[:, 0]
        results[name] = PairResults(pair_scores(model, pairs), known, fresh, known[: len(fresh)])
    phenomena = sorted({paradigm.phenomenon for paradigm in paradigms})
    parts = {each: [results[p.name] for p in paradigms if p.phenomenon == each] for each in phenomena}
    whole = _join(list(results.values()))
    rows = [row("BLiMP", whole, BLIMP, OTHERS)]
    rows += [row(f"  {name.replace('_', ' ')}", _join(part), PHENOMENA.get(name)) for name, part in parts.items()]
    extra = {"overall": summary(whole), "phenomena": {name: summary(_join(part)) for name, part in parts.items()}}
    return rows, extra | {"paradigms": {name: summary(result) for name, result in results.items()}}


def _linzen_rows(
    model: BiLM, untrained: BiLM, sentences: Sequence[tuple[int, WordChoice]], say: Callable[[str], None]
) -> tuple[list[ComparedRow], dict[str, Any]]:
    """The Linzen set as a whole and by the number of attractors."""
    say(f"agreement: Linzen, {len(sentences):,} sentences")
    choices = [choice for _, choice in sentences]
    attractors = np.array([count for count, _ in sentences])
    whole = _choose(model, untrained, choices)
    capital = [choice._replace(context=_capitalised(choice.context)) for choice in choices]
    parts = {count: _part(whole, attractors == count) for count in np.unique(attractors).tolist()}
    rows = [row("Linzen", whole, LINZEN)]
    rows += [row(f"  {count} attractor{'s' * (count != 1)}", result) for count, result in parts.items()]
    extra = {"overall": summary(whole), "attractors": {str(count): summary(each) for count, each in parts.items()}}
    return rows, extra | {"first_letter_capital": accuracy(choice_scores(model, capital), whole.known).summary()}


def _lakretz_rows(
    model: BiLM, untrained: BiLM, tasks: dict[str, list[tuple[str, WordChoice]]], say: Callable[[str], None]
) -> tuple[list[ComparedRow], dict[str, Any]]:
    """The Lakretz tasks as a whole, and by the number of the subject."""
    rows, extra, all_tasks = [], {}, []
    for name, items in tasks.items():
        say(f"agreement: Lakretz, {name}")
        conditions = np.array([condition for condition, _ in items])
        whole = _choose(model, untrained, [choice for _, choice in items])
        all_tasks.append(whole)
        title, published = LAKRETZ[name]
        for condition, figure in published.items():
            result = _part(whole, conditions == condition)
            rows.append(row(f"  {title}, {condition}", result, {"LSTM": figure}))
            extra[f"{name} {condition}"] = summary(result)
    every = _join(all_tasks)
    return [row("Lakretz, by the subject's number", every), *rows], {"overall": summary(every), "conditions": extra}


def _choose(model: BiLM, untrained: BiLM, choices: Sequence[WordChoice]) -> PairResults:
    """A model and its controls on choices between two forms of a verb."""
    known = np.array([is_known(model, choice[1:]) for choice in choices], dtype=bool)
    scores = choice_scores(model, choices)[:, None]
    return PairResults(scores, known, choice_scores(untrained, choices), known, frequency_scores(model, choices))


def _part(result: PairResults, where: np.ndarray) -> PairResults:
    scores, known, untrained, untrained_known, frequency = result
    kept = (scores[where], known[where], untrained[where], untrained_known[where])
    return PairResults(*kept, None if frequency is None else frequency[where])


def _join(results: Sequence[PairResults]) -> PairResults:
    given = [[array for array in result if array is not None] for result in results]
    return PairResults(*(np.concatenate(arrays) for arrays in zip(*given, strict=True)))


def _by_column(result: PairResults) -> dict[str, Accuracy]:
    found = {side: accuracy(scores, result.known) for side, scores in zip(SIDES, result.scores.T, strict=False)}
    found[UNTRAINED] = accuracy(result.untrained, result.untrained_known)
    if result.frequency is not None:
        found[FREQUENCY] = accuracy(result.frequency, result.known)
    return found


def row(name: str, result: PairResults, published: dict[str, float] | None = None, note: str = "") -> ComparedRow:
    """A line of the table."""
    found = _by_column(result)
    ours: dict[str, float] = {column: 100 * each.share.value for column, each in found.items()}
    forward = found["forward"]
    if forward.known_pairs:
        ours[KNOWN] = 100 * forward.known.value
    return ComparedRow(name, ours | {PAIRS: forward.pairs, KNOWN_PAIRS: forward.known_pairs}, published, note)


def summary(result: PairResults) -> dict[str, Any]:
    """All figures with their intervals."""
    return {column: each.summary() for column, each in _by_column(result).items()}


def _shares(extra: dict[str, Any]) -> list[str]:
    """How many pairs have known words, and the intervals of the main figures."""
    said = []
    for name in ("blimp", "linzen", "lakretz"):
        forward = extra[name]["overall"]["forward"]
        low, high = forward["interval"]
        said.append(
            f"{name}, forward: 95% interval {low:.1f} to {high:.1f}; the words that differ are in the vocabulary in "
            f"{100 * forward['known_pairs'] / forward['pairs']:.1f}% of pairs"
        )
    return said


def _capitalised(words: Sequence[str]) -> list[str]:
    return [word[:1].upper() + word[1:] if place == 0 else word for place, word in enumerate(words)]


def read_blimp(folder: Path) -> list[Paradigm]:
    """All paradigms in a folder, a .jsonl file each."""
    paradigms = []
    for path in sorted(folder.glob("*.jsonl")):
        pairs, terms = [], []
        for number, line in enumerate(read_lines(path), start=1):
            good, bad, term = (blimp_fields(line.text, f"{path}:{number}")[name] for name in minimal_pairs.BLIMP)
            pairs.append(SentencePair(good, bad))
            terms.append(term)
        if not pairs:
            raise CorpusError(f"{path}: has no pairs")
        paradigms.append(Paradigm(path.stem, MERGED.get(terms[0], terms[0]), pairs))
    if not paradigms:
        raise CorpusError(f"{folder}: has none of BLiMP's .jsonl files")
    return paradigms


def read_linzen(folder: Path) -> list[tuple[int, WordChoice]]:
    """The number of attractors of each sentence, and the choice it ends in. One file has positions and forms, another
    beside it the text."""
    _, gold = (required(folder, f"subj_agr_filtered.{ending}", "the Linzen set") for ending in ("text", "gold"))
    return [(int(pair.condition.split()[0]), _choice_of(pair)) for pair in minimal_pairs.read_linzen(gold)]


def read_lakretz(path: Path, name: str) -> list[tuple[str, WordChoice]]:
    """The number of each subject, and the choice between the last words of two lines, the right one first."""
    found = [(pair.condition.split()[-1], _choice_of(pair)) for pair in minimal_pairs.read_lakretz(path)]
    if not found:
        raise CorpusError(f"{path}: has no pairs")
    if unknown := {number for number, _ in found} - LAKRETZ[name][1].keys():
        raise CorpusError(f"{path}: {unknown.pop()!r} is not the number of a subject, singular or plural")
    return found


def _choice_of(pair: minimal_pairs.MinimalPair) -> WordChoice:
    return WordChoice(pair.good[:-1], pair.good[-1], pair.bad[-1])

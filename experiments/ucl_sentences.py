"""Reading times and N400 of the UCL sentences: what each published predictor and our surprisals add to a baseline.

    Frank et al. 2013, Reading time data for evaluating broad-coverage models of English sentence processing
    Frank et al. 2015, The ERP response to the amount of information conveyed by words in sentences
    de Varda, Marelli & Amenta 2023, Cloze probability, predictability ratings, and computational estimates for 205
        English sentences, aligned with existing EEG and reading time data

The measures are means per word over readers, in milliseconds or microvolts. Eye-tracking means include skipped words,
so they are not logarithms. The baseline has length, log frequency (Subtlex), their product, and whether the word ends
in punctuation, of the word and of the one before it, and the position in the sentence. A predictor adds two columns:
its value of the word and of the one before it. The first two words of a sentence and its last one are left out: the
table begins with the second word. Folds, gains and intervals are those of `experiments.reading_times`; the regressions
those of `experiments.reading_models`.

Adapted models are updated after each sentence, in the order of the file, and never return to their original weights.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.reading_models import Intercepts, mixed_log_likelihoods, smooth_log_likelihood, word_form
from experiments.reading_times import (
    ADAPTATION_NOTE,
    FOLDS,
    Reader,
    held_out_log_likelihood,
    make_readers,
    mean_with_interval,
    shift,
)
from experiments.tables import require_data
from relmo.analysis.core.show import Table
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.text.readers.tables import TableRow, table_rows

FILE = "tasks/reading_times/ucl_sentences.tsv"
MEASURES = {
    "self_paced_reading_time": "self-paced",
    "RTfirstfix": "first fixation",
    "RTfirstpass": "first pass",
    "RTrightbound": "right-bounded",
    "RTgopast": "go-past",
    "N400": "N400",
}
PUBLISHED = {
    "cloze_s": "cloze surprisal",
    "rating_mean": "rated predictability",
    "entropy": "entropy of cloze answers",
    "bigram": "bigram",
    "trigram": "trigram",
    "tetragram": "tetragram",
    "rnn": "RNN",
    "psg": "phrase structure grammar",
    "s_GPT2": "GPT-2",
    "s_GPT2_medium": "GPT-2 medium",
    "s_GPT2_large": "GPT-2 large",
    "s_GPT2_xl": "GPT-2 XL",
    "s_GPTNeo_2.7B": "GPT-Neo 2.7B",
}
REGRESSIONS = {
    "linear": "linear effects",
    "smooth": "smooth effects of the predictor (cubic regression splines)",
    "mixed": "linear effects and random intercepts of sentences and word forms",
}
ADAPTED = "adapted - plain"


class Sentences(NamedTuple):
    """Words of the sentences from the second one on, in order; all columns are (N,)."""

    texts: list[str]  # one per sentence
    sentence: np.ndarray  # index of the text
    position: np.ndarray  # index of the word in its sentence
    is_last: np.ndarray
    words: list[str]
    frequency: np.ndarray
    columns: dict[str, np.ndarray]  # measures and published predictors


def read_sentences(data: Path) -> Sentences:
    """Read the sentences of the data folder."""
    path = require_data(data, FILE, "UCL sentences")
    texts: dict[str, int] = {}
    rows = list(table_rows(path, "strict"))
    parsed = [_parse_row(row, texts) for row in rows]
    if not parsed:
        raise CorpusError(f"{path}: no words found")
    sentence, position, last, frequency = (np.array([row[i] for row in parsed]) for i in (0, 1, 2, 3))
    # The frequencies of names are missing; they are as rare as the rarest word.
    frequency = np.where(np.isnan(frequency), np.nanmin(frequency), frequency)
    columns = {name: np.array([row[4][name] for row in parsed]) for name in (*MEASURES, *PUBLISHED)}
    words = [list(texts)[i].split()[j] for i, j in zip(sentence, position, strict=True)]
    return Sentences(list(texts), sentence, position, last, words, frequency, columns)


def _parse_row(row: TableRow, texts: dict[str, int]) -> tuple[int, int, bool, float, dict[str, float]]:
    try:
        text, position = row.values["sentence"].strip(), int(row.values["context_length"])
        words = text.split()
        if not 0 < position < len(words) or words[position] != row.values["word"]:
            raise CorpusError(f"{row.place}: {row.values['word'][:40]!r} is not word {position + 1} of its sentence")
        frequency = row.values["Subtlex_log10"].strip()
        columns = {name: float(row.values[name]) for name in (*MEASURES, *PUBLISHED)}
        index = texts.setdefault(text, len(texts))
        return index, position, position + 1 == len(words), float(frequency or "nan"), columns
    except (KeyError, ValueError) as error:
        raise CorpusError(f"{row.place}: expected the columns of {Path(FILE).name} ({error})") from error


def compute_predictors(reader: Reader, sentences: Sentences) -> dict[str, np.ndarray]:
    """Return surprisal, entropy reduction and whether it is unknown, of each word (N,) with its punctuation; each
    sentence is read alone."""
    table = reader.model.surprisal(sentences.texts, context="sentence", rows="whitespace", adapt=reader.adapt)
    rows = {(row.line - 1, row.position - 1): row for row in table}
    places = list(zip(sentences.sentence.tolist(), sentences.position.tolist(), strict=True))
    names = ("surprisal", "entropy_reduction", "unknown")
    return {name: np.array([getattr(rows[place], name) for place in places]) for name in names}


def measure_gains(
    sentences: Sentences,
    predictors: Mapping[str, np.ndarray],
    plain: Mapping[str, str],
    on_message: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return by regression, predictor and measure the gain in nats per 1,000 words with its interval; `plain` is the
    predictor without adaptation of each adapted one."""
    mask = select_words(sentences)
    length = np.array([len(word) for word in sentences.words], dtype=float)
    punctuation = np.array([not word[-1].isalnum() for word in sentences.words], dtype=float)
    controls = [length, sentences.frequency, length * sentences.frequency, punctuation]
    shifted = [shift(column, 1) for column in controls]
    baseline = np.column_stack([np.ones(len(length)), sentences.position, *controls, *shifted])[mask]
    added = [np.column_stack([values, shift(values, 1)])[mask] for values in predictors.values()]
    designs = [baseline, *(np.column_stack([baseline, columns]) for columns in added)]
    sentence = sentences.sentence[mask]
    folds = sentence % FOLDS
    intercepts = Intercepts(sentence, np.array([word_form(word) for word in sentences.words])[mask])
    names = (*REGRESSIONS, "smooth - linear")
    gains: dict[str, Any] = {name: {predictor: {} for predictor in predictors} for name in names}
    gains |= {ADAPTED: {predictor: {} for predictor in plain}} if plain else {}
    for measure, label in MEASURES.items():
        on_message(f"reading-times: {label}")
        times = sentences.columns[measure][mask]
        linear = [held_out_log_likelihood(design, times, folds) for design in designs]
        smooth = [linear[0], *(smooth_log_likelihood(baseline, columns, times, folds) for columns in added)]
        mixed = mixed_log_likelihoods(designs, times, folds, intercepts)
        for name, (base, *full) in zip(REGRESSIONS, (linear, smooth, mixed), strict=True):
            for predictor, log_likelihood in zip(predictors, full, strict=True):
                gains[name][predictor][label] = mean_with_interval(log_likelihood - base, sentence)
        for predictor, curved, straight in zip(predictors, smooth[1:], linear[1:], strict=True):
            gains["smooth - linear"][predictor][label] = mean_with_interval(curved - straight, sentence)
        by_predictor = dict(zip(predictors, linear[1:], strict=True))
        for adapted, name in plain.items():
            difference = by_predictor[adapted] - by_predictor[name]
            gains[ADAPTED][adapted][label] = mean_with_interval(difference, sentence)
    return gains


def compare_models(
    sentences: Sentences,
    models: Mapping[str, BiLM | LanguageModel],
    *,
    rates: Sequence[float] = (),
    seed: int = 0,
    on_message: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Compare the predictors of the models, also adapted at these learning rates, the last of them also untrained, and
    the published ones."""
    predictors, unknown, bits = {}, {}, {}
    mask = select_words(sentences)
    readers = make_readers(models, rates, seed)
    for name, reader in readers.items():
        on_message(f"reading-times: surprisal of {name}")
        columns = compute_predictors(reader, sentences)
        predictors[name] = columns["surprisal"]
        unknown[name] = float(columns["unknown"][mask].mean())
        bits[name] = float(columns["surprisal"][mask].mean())
        if name in models:
            predictors[f"{name}, entropy reduction"] = columns["entropy_reduction"]
    predictors |= {label: sentences.columns[name] for name, label in PUBLISHED.items()}
    plain = {name: reader.plain for name, reader in readers.items() if reader.plain is not None}
    counts = {"words": int(mask.sum()), "sentences": len(np.unique(sentences.sentence[mask]))}
    details = {"unknown": unknown, "bits/word": bits}
    return {"corpus": "ucl"} | counts | details | {"gains": measure_gains(sentences, predictors, plain, on_message)}


def select_words(sentences: Sentences) -> np.ndarray:
    """Return a mask (N,) of the words that are measured: from the third to the last but one."""
    return (sentences.position > 1) & ~sentences.is_last


def make_tables(report: Mapping[str, Any]) -> list[Table]:
    """Return one table per regression, and one of the differences that adaptation makes."""
    descriptions = REGRESSIONS | ({ADAPTED: "with linear effects"} if ADAPTED in report["gains"] else {})
    tables = []
    for name, description in descriptions.items():
        rows = []
        for predictor, by_measure in report["gains"][name].items():
            cells = (by_measure[label] for label in MEASURES.values())
            rows.append(
                [predictor, *(f"{cell['gain']:.1f}{'*' if cell['from'] * cell['to'] > 0 else ' '}" for cell in cells)]
            )
        title = f"{name}: {description}; gain in held-out log-likelihood, nats per 1,000 words"
        tables.append(Table(["", *MEASURES.values()], rows, title))
    bits = "; ".join(f"{name}: {value:.2f}" for name, value in report["bits/word"].items())
    tables[-1].notes.append("*: the 95% interval, bootstrapped over sentences, excludes 0; --json has the intervals")
    tables[-1].notes.append(f"bits/word, unknown words counted as <unk>: {bits}")
    if ADAPTED in report["gains"]:
        tables[-1].notes.append(ADAPTATION_NOTE.format(reset="they are never reset"))
    return tables

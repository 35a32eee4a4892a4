"""Reading times: does surprisal explain how long people read a word?

    Futrell et al. 2021, The Natural Stories corpus: a reading-time corpus of English texts containing rare syntactic
        constructions; its self-paced reading times, and the surprisals of GPT-3 that are published with it
    Smith & Levy 2013, The effect of word predictability on reading time is logarithmic
    Goodkind & Bicknell 2018, Predictive power of word surprisal for reading times is a linear function of language
        model quality
    van Schijndel & Linzen 2018, A neural model of adaptation in reading

A word's reading time is the logarithm of the geometric mean over its readers. Two linear models are fitted to it:

    baseline    length in characters, log2 of the frequency of the form, their product, and whether it ends in
                punctuation, of the word and of the SPILLOVER words before it; the position in the sentence and the
                story
    surprisal   the same, and the surprisal of the word and of the SPILLOVER words before it

Ten-fold cross-validation over sentences. The gain is the mean over held-out words of

    log N(time; prediction, variance | surprisal) - log N(time; prediction, variance | baseline)

in nats per 1,000 words; the variances are those of the residuals in the fit. The 95% interval is from BOOTSTRAPS
samples of whole sentences, as words of one sentence are not independent. The first and the last word of a sentence are
left out, as is customary (onset and wrap-up effects). `experiments.reading_models` has two other regressions, with
smooth effects of surprisal and with random intercepts.

- Words are those that readers saw, with their punctuation: the surprisals of a model's tokens are summed.
- Language models read a story as one line, as paragraphs are in their training text. Bidirectional models read one
  sentence per line, forward, with the state carried from one to the next.
- Adapted models are updated after each sentence, which is scored before. Each story begins with the original weights,
  as in van Schijndel & Linzen's analysis of reading times. They read one sentence per line, and so do the models that
  they are compared with.
- The 5-gram and the LSTM are trained here on the same text, the first TEXT_BYTES of one part of the training mix, a
  hundredth of what a study would use. Use --model for better ones.
- An unknown word has the surprisal of <unk>, which is low. The share of such words is stated.
- The untrained network has surprisals, too, which carry no information about English, so its gain should be zero. They
  do depend on the number of tokens of a word, that is its punctuation; hence that control.
- Logarithms, punctuation as a control and the words that are left out were chosen on these stories: with all words the
  gains are about half as large. The published figures are from stories 1 to 5; files may have any stories.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from experiments.reading_models import Intercepts, mixed_log_likelihoods, smooth_log_likelihood, word_form
from experiments.tables import ComparedRow, PublishedTable, require_data
from relmo.analysis.core.show import save_figure
from relmo.errors import CorpusError, ModelError, SettingError, quote
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.models.sequence_model import untrained
from relmo.runs.train_lm import train_lm
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.settings.options import SurprisalOptions
from relmo.settings.sections import TrainSettings
from relmo.text.corpus import read_lines
from relmo.text.readers.tables import TableRow, table_rows
from relmo.text.sources import SourceText

Device = Literal["auto", "cpu", "cuda"]

PAPER = "Futrell et al. 2021, The Natural Stories corpus; Goodkind & Bicknell 2018; Smith & Levy 2013"
GAIN, LOW, HIGH = "gain", "from", "to"
SMOOTH, MIXED = "smooth", "mixed"
COLUMNS = ("bits/word", "unknown %", GAIN, LOW, HIGH, SMOOTH, MIXED, "%/bit", "%/bit, word before")
STORIES = "natural_stories*.tsv"
SPILLOVER = 2  # preceding words whose properties are predictors too
FOLDS, BOOTSTRAPS = 10, 2000
TEXT, TEXT_BYTES = "lm/pretrain-0.txt", 20_000_000
MAX_RATE = 1e6
SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*")
GPT3 = "GPT-3 (davinci, published)"
NOTES = [
    "gain: difference in log-likelihood of held-out reading times with and without the surprisal of a word and of the "
    "two before it; in nats per 1,000 words. from, to: 95% interval, bootstrapped over sentences",
    "both linear models of log times have length, log frequency, their product and punctuation, of three words, and "
    "the positions in sentence and story; the first and last word of a sentence are left out",
    "smooth, mixed: the gain with smooth effects of surprisal (cubic regression splines), and with random intercepts "
    "of sentences and word forms; --json has their intervals",
    "%/bit: how much longer a word is read per bit of its own surprisal, and per bit of the surprisal of the word "
    "before it, in a fit to all words",
    f"the 5-gram and the LSTM are trained on the first {TEXT_BYTES // 10**6} MB of {TEXT}; keep them with --keep DIR",
    "bits/word: words with their punctuation, unknown words counted as <unk>; models with different vocabularies "
    "cannot be compared",
]
ADAPTATION_NOTE = (
    "adapted: the weights are updated after each sentence at this learning rate, as by relmo surprisal --adapt; "
    "{reset}. Choose the rate by bits/word on another text, not by these gains"
)
STORY_RESET = "each story begins with the original ones, and with --adapt all models read one sentence per line"


class StoryWord(NamedTuple):
    """Word as readers saw it, with the frequency of its form and the published surprisal of GPT-3, if any."""

    story: int
    text: str
    milliseconds: float
    frequency: int
    gpt3: float | None


class Stories(NamedTuple):
    """Words with their position in the story, position in the sentence, and sentence index; (N,) each."""

    words: list[StoryWord]
    in_story: np.ndarray
    in_sentence: np.ndarray
    sentence: np.ndarray


class Gain(NamedTuple):
    """Gain in held-out log-likelihood of each word (N,), and relative cost in time of one bit of surprisal of the word
    and of those before it (1 + SPILLOVER,)."""

    by_word: np.ndarray
    costs: np.ndarray


class Reader(NamedTuple):
    """Model that reads whole stories or one sentence per line, and may adapt to the text at a learning rate; `plain` is
    the name of the reader without adaptation that it is compared with."""

    model: BiLM | LanguageModel
    by_sentence: bool = False
    adapt: float | None = None
    plain: str | None = None


def make_readers(
    models: Mapping[str, BiLM | LanguageModel], rates: Sequence[float] = (), seed: int = 0
) -> dict[str, Reader]:
    """Return the rows of a comparison: each model, plain and adapted at each rate, and the last one untrained. N-gram
    models have no weights to adapt or to initialise."""
    readers: dict[str, Reader] = {}
    for name, model in models.items():
        by_sentence = bool(rates) or isinstance(model, BiLM)
        readers[name] = Reader(model, by_sentence)
        if next(model.network.parameters(), None) is not None:
            readers |= {f"{name}, adapted {rate:g}": Reader(model, by_sentence, rate, name) for rate in rates}
    if rates and len(readers) == len(models):
        raise SettingError("--adapt needs a neural network; n-gram models have no weights to adapt.")
    last = list(models)[-1]
    with suppress(ModelError):
        readers[f"{last}, untrained"] = readers[last]._replace(model=untrained(models[last], seed))
    return readers


def parse_rates(text: str) -> list[float]:
    """Return comma-separated learning rates."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate <= MAX_RATE for rate in rates):
        raise SettingError(f"--adapt: expected comma-separated learning rates above 0, not {quote(text)}")
    return rates


def read_data(data: Path) -> Stories:
    """Read the stories of the data folder, from one or more files."""
    folder = require_data(data, "tasks/reading_times", "Natural Stories")
    paths = sorted(folder.glob(STORIES))
    if not paths:
        raise CorpusError(f"Natural Stories: {folder} has no file {STORIES}")
    return read_stories(*paths)


def make_table(
    stories: Stories,
    models: Mapping[str, BiLM | LanguageModel],
    *,
    rates: Sequence[float] = (),
    seed: int = 0,
    on_message: Callable[[str], None] = lambda _: None,
) -> PublishedTable:
    """Compare the models, also adapted at these learning rates, the last of them also untrained, and GPT-3."""
    readers = make_readers(models, rates, seed)
    surprisals: dict[str, tuple[np.ndarray, float | None]] = {}
    for name, reader in readers.items():
        on_message(f"reading-times: surprisal of {name}")
        surprisals[name] = compute_surprisal(reader, stories.words)
    published = np.array([np.nan if word.gpt3 is None else word.gpt3 for word in stories.words])
    surprisals[GPT3] = published, None
    mask = _select_words(stories, published)
    sentence = stories.sentence[mask]
    gains = {name: compute_gain(stories, bits, mask) for name, (bits, _) in surprisals.items()}
    on_message("reading-times: regressions with smooth effects and random intercepts")
    regressions = compare_regressions(stories, {name: bits for name, (bits, _) in surprisals.items()}, mask)
    rows = []
    for name, (bits, unknown) in surprisals.items():
        costs = {"%/bit": 100 * float(gains[name].costs[0]), "%/bit, word before": 100 * float(gains[name].costs[1])}
        others = {regression: regressions[regression][name][GAIN] for regression in (SMOOTH, MIXED)}
        linear = mean_with_interval(gains[name].by_word, sentence)
        ours = {"bits/word": float(bits[mask].mean()), **linear, **others, **costs}
        rows.append(ComparedRow(name, ours if unknown is None else ours | {"unknown %": 100 * unknown}))
    pairs = [(name, reader.plain) for name, reader in readers.items() if reader.plain is not None]
    differences = {
        f"{a} - {b}": mean_with_interval(gains[a].by_word - gains[b].by_word, sentence)
        for a, b in [*pairs, *combinations(gains, 2)]
    }
    notes = [*NOTES, ADAPTATION_NOTE.format(reset=STORY_RESET)] if rates else list(NOTES)
    for name, plain in pairs:
        difference = differences[f"{name} - {plain}"]
        interval = f"{difference[LOW]:.2f} to {difference[HIGH]:.2f}"
        notes.append(f"difference in gain, {name} - {plain}: {difference[GAIN]:.2f} ({interval})")
    counts = {"words": int(mask.sum()), "sentences": len(np.unique(sentence))}
    extra = {"differences": differences, "regressions": regressions, **counts}
    title = f"reading times of {int(mask.sum()):,} words and what surprisal explains of them"
    return PublishedTable("reading-times", title, PAPER, COLUMNS, rows, notes, extra)


def read_stories(*paths: Path) -> Stories:
    """Read the words of one or more files, with their positions."""
    words = [_parse_word(row) for path in paths for row in table_rows(path, "strict")]
    if not words:
        raise CorpusError(f"{paths[0]}: no words found")
    in_story, in_sentence, sentence = (np.zeros(len(words), dtype=np.int64) for _ in range(3))
    for i, word in enumerate(words[1:], start=1):
        previous = words[i - 1]
        is_start = word.story != previous.story or SENTENCE_END.search(previous.text[-3:]) is not None
        in_story[i] = 0 if word.story != previous.story else in_story[i - 1] + 1
        in_sentence[i] = 0 if is_start else in_sentence[i - 1] + 1
        sentence[i] = sentence[i - 1] + is_start
    return Stories(words, in_story, in_sentence, sentence)


def _parse_word(row: TableRow) -> StoryWord:
    try:
        fields = row.values
        gpt3 = fields["gpt3_surprisal_bits"].strip()
        word = StoryWord(
            int(fields["story"]),
            fields["word"],
            float(fields["geometric_mean_ms"]),
            int(fields["google_count"]),
            float(gpt3) if gpt3 else None,
        )
    except (KeyError, ValueError) as error:
        raise CorpusError(
            f"{row.place}: expected story, word, geometric_mean_ms, google_count and gpt3_surprisal_bits ({error})"
        ) from error
    if not word.milliseconds > 0 or word.frequency < 0 or len(word.text.split()) != 1:
        raise CorpusError(f"{row.place}: expected one word, a time above 0 and a count")
    return word


def compute_surprisal(reader: Reader, words: Sequence[StoryWord]) -> tuple[np.ndarray, float]:
    """Return the surprisal of each word in bits (N,) and the share of unknown words. Each story starts from the initial
    state and the original weights."""
    options = SurprisalOptions(rows="whitespace", adapt=reader.adapt)
    rows = []
    for story in sorted({word.story for word in words}):
        lines = _split_lines([word.text for word in words if word.story == story], sentences=reader.by_sentence)
        rows += [row for row in reader.model.surprisal_rows(lines, options) if not row.is_end]
    if [row.word for row in rows] != [word.text for word in words]:
        raise CorpusError("the stories are not in order, or have words that contain whitespace")
    return np.array([row.surprisal for row in rows]), float(np.mean([row.unknown for row in rows]))


def _split_lines(words: Sequence[str], *, sentences: bool) -> Iterator[SourceText]:
    """Yield a story as one line, or one sentence per line."""
    line: list[str] = []
    for i, word in enumerate(words):
        line.append(word)
        if i + 1 == len(words) or (sentences and SENTENCE_END.search(word[-3:])):
            yield SourceText(" ".join(line))
            line = []


def _select_words(stories: Stories, published: np.ndarray) -> np.ndarray:
    """Return a mask (N,) of the words inside a sentence whose preceding words have all surprisals."""
    has_surprisal = ~np.isnan(published)
    complete = np.all([shift(has_surprisal, n) for n in range(SPILLOVER + 1)], axis=0) & (stories.in_story > SPILLOVER)
    is_last = np.append(stories.in_sentence[1:] == 0, True)
    return complete & (stories.in_sentence > 0) & ~is_last


def shift(column: np.ndarray, n: int) -> np.ndarray:
    """Return for each word the entry of the word `n` positions before."""
    return np.concatenate([column[:1].repeat(n), column[: len(column) - n]])


def control_predictors(stories: Stories) -> np.ndarray:
    """Return the predictors of the baseline (N, D), with a constant."""
    length = np.array([len(word.text) for word in stories.words], dtype=float)
    frequency = np.log2(1.0 + np.array([word.frequency for word in stories.words]))
    punctuation = np.array([not word.text[-1].isalnum() for word in stories.words], dtype=float)
    word_columns = [length, frequency, length * frequency, punctuation]
    columns = [shift(column, n) for n in range(SPILLOVER + 1) for column in word_columns]
    return np.column_stack([np.ones(len(length)), stories.in_story, stories.in_sentence, *columns])


def compute_gain(stories: Stories, bits: np.ndarray, mask: np.ndarray) -> Gain:
    """Return the gain of the surprisals (N,) of all words for the selected words."""
    times = np.log([word.milliseconds for word in stories.words])[mask]
    baseline = control_predictors(stories)[mask]
    surprisal = np.column_stack([shift(bits, n) for n in range(SPILLOVER + 1)])[mask]
    folds = stories.sentence[mask] % FOLDS
    predictors = np.column_stack([baseline, surprisal])
    gain = held_out_log_likelihood(predictors, times, folds) - held_out_log_likelihood(baseline, times, folds)
    coefficients, *_ = np.linalg.lstsq(predictors, times, rcond=None)
    return Gain(gain, np.expm1(coefficients[-surprisal.shape[1] :]))


def compare_regressions(
    stories: Stories, surprisals: Mapping[str, np.ndarray], mask: np.ndarray
) -> dict[str, dict[str, dict[str, float]]]:
    """Return by regression and model the gain of surprisal with its interval."""
    times = np.log([word.milliseconds for word in stories.words])[mask]
    baseline, sentence = control_predictors(stories)[mask], stories.sentence[mask]
    folds = sentence % FOLDS
    added = [np.column_stack([shift(bits, n) for n in range(SPILLOVER + 1)])[mask] for bits in surprisals.values()]
    designs = [baseline, *(np.column_stack([baseline, columns]) for columns in added)]
    linear_base, *linear = [held_out_log_likelihood(design, times, folds) for design in designs]
    smooth = [smooth_log_likelihood(baseline, columns, times, folds) for columns in added]
    forms = np.array([word_form(word.text) for word in stories.words])[mask]
    mixed_base, *mixed = mixed_log_likelihoods(designs, times, folds, Intercepts(sentence, forms))
    gains = {SMOOTH: [values - linear_base for values in smooth], MIXED: [values - mixed_base for values in mixed]}
    gains["smooth - linear"] = [curved - straight for curved, straight in zip(smooth, linear, strict=True)]
    return {
        name: dict(zip(surprisals, (mean_with_interval(gain, sentence) for gain in by_model), strict=True))
        for name, by_model in gains.items()
    }


def held_out_log_likelihood(predictors: np.ndarray, times: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return log N(time; prediction, variance) of each word (N,) under the linear model fitted without its fold.

    The variance is that of the residuals of the fit, corrected for the degrees of freedom."""
    log_likelihood = np.empty(len(times))
    for fold in np.unique(folds):
        held_out = folds == fold
        x, y = predictors[~held_out], times[~held_out]
        coefficients, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
        variance = ((y - x @ coefficients) ** 2).sum() / (len(y) - rank)
        residuals = times[held_out] - predictors[held_out] @ coefficients
        log_likelihood[held_out] = -0.5 * (np.log(2 * np.pi * variance) + residuals**2 / variance)
    return log_likelihood


def bootstrap_interval(gains: np.ndarray, sentence: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Return the 95% interval of the mean of `gains` (N,), bootstrapped over sentences."""
    _, group = np.unique(sentence, return_inverse=True)
    sums, sizes = np.bincount(group, weights=gains), np.bincount(group)
    samples = np.random.default_rng(seed).integers(len(sums), size=(BOOTSTRAPS, len(sums)))
    means = sums[samples].sum(axis=1) / sizes[samples].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def mean_with_interval(gains: np.ndarray, sentence: np.ndarray) -> dict[str, float]:
    """Return the mean of gains (N,) and its interval, in nats per 1,000 words."""
    low, high = bootstrap_interval(gains, sentence)
    return {GAIN: 1000 * float(gains.mean()), LOW: 1000 * low, HIGH: 1000 * high}


def baseline_settings(device: Device) -> dict[str, LMSettings]:
    """Return the settings of the two models that are trained here, in minutes on a CPU."""
    text = TextSettings(unit="word", vocabulary_size=20_000, valid_fraction=0.01)
    ngram = LanguageModelSettings(cell="ngram", order=5)
    lstm = LanguageModelSettings(hidden=256, tied=True, softmax="sampled", samples=2048, dropout=0.1)
    train = TrainSettings(epochs=1, batch=64, unroll=35, lr=0.004, device=device)
    return {
        "5-gram": LMSettings(text=text, model=ngram, train=TrainSettings(device=device)),
        "LSTM": LMSettings(text=text, model=lstm, train=train),
    }


def train_baselines(
    data: Path, keep: Path | None, *, device: Device = "auto", on_message: Callable[[str], None]
) -> dict[str, LanguageModel]:
    """Train the 5-gram and the LSTM on the beginning of the same text, or load them from `keep` if they exist there."""
    text = require_data(data, TEXT, "training text of the 5-gram and the LSTM")
    models = {}
    with tempfile.TemporaryDirectory() as temporary:
        beginning = Path(temporary) / "text.txt"
        for name, settings in baseline_settings(device).items():
            folder = (Path(temporary) if keep is None else keep) / name
            if not (folder / "config.json").is_file():
                on_message(f"reading-times: training the {name} on {TEXT_BYTES // 10**6} MB of {text}")
                if not beginning.exists():
                    write_beginning(text, beginning, TEXT_BYTES)
                train_lm([str(beginning)], settings, folder, overwrite=True)
            models[name] = load(folder, kinds="lm", device=device)
    return models


def write_beginning(text: Path, out: Path, size: int) -> None:
    """Write the first lines of a text, at most `size` characters together, to a file."""
    with out.open("w", encoding="utf-8") as file:
        for line in read_lines(text):
            size -= len(line.text) + 1
            if size < 0:
                return
            file.write(line.text + "\n")


def draw_gains(path: Path, rows: Sequence[ComparedRow]) -> None:
    """Draw the gain of each model with its interval, the best at the top."""
    ordered = sorted(rows, key=lambda row: row.ours[GAIN])
    with save_figure(path, 8.0, 1.2 + 0.5 * len(rows)) as figure:
        axes = figure.add_subplot()
        gains = np.array([row.ours[GAIN] for row in ordered])
        ends = np.array([[row.ours[LOW], row.ours[HIGH]] for row in ordered])
        y = np.arange(len(ordered))
        errors = [gains - ends[:, 0], ends[:, 1] - gains]
        axes.errorbar(gains, y, xerr=errors, fmt="o", capsize=4)
        for gain, height in zip(gains.tolist(), y.tolist(), strict=True):
            axes.annotate(f"{gain:.1f}", (gain, height), textcoords="offset points", xytext=(0, 7), ha="center")
        axes.axvline(0, color="#888", linewidth=1)
        axes.set_yticks(y, [row.name for row in ordered])
        axes.set_ylim(-0.6, len(ordered) - 0.3)
        axes.set_xlabel("gain in log-likelihood, nats per 1,000 words (95% intervals)")

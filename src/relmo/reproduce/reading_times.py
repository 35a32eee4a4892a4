"""Does surprisal explain how long people read a word?

    Futrell et al. 2021, The Natural Stories corpus: a reading-time corpus of English texts containing rare syntactic
        constructions; its self-paced reading times, and the surprisals of GPT-3 that are published with it
    Smith & Levy 2013, The effect of word predictability on reading time is logarithmic
    Goodkind & Bicknell 2018, Predictive power of word surprisal for reading times is a linear function of language
        model quality

A word's reading time is the logarithm of the geometric mean over its readers. Two linear models are fitted to it:

    without   length in characters, log2 of the frequency of the form, their product, and whether punctuation ends it,
              of the word and of the SPILL words before it; the place in the sentence and in the story
    with      the same, and the surprisal of the word and of the SPILL words before it: reading spills over

Each is fitted on nine tenths of the sentences and scored on the rest, ten times. The gain is the mean over words of

    log N(time; prediction with, variance with) - log N(time; prediction without, variance without)

in nats for 1,000 words, the variances being those of the residuals in the fit. The interval is that of 95% of
BOOTSTRAPS samples of whole sentences: words of one sentence are no independent evidence. The first and the last word of
a sentence are left out, as is the custom: readers begin there, and sum up.

What the figures depend on:
- Words are those that readers saw, with their punctuation: the surprisals of a model's tokens are summed.
- Language models read a story as one line, as paragraphs are in their training text. Bidirectional models read a
  sentence a line, forwards, with the state carried from one to the next.
- The 5-gram and the LSTM are trained here on the same text, the first TEXT_BYTES of one part of the training mix; that
  is a hundredth of what a study would take. Better ones can be given with --model.
- A word that a model does not know has the surprisal of <unk>, which is low. The share of such words is stated.
- The untrained network has surprisals, too, but they know nothing of English, and its gain has to be none. They do know
  how many tokens a word has, that is its punctuation; which is why that is among the controls.
- Logarithms, punctuation as a control and the words that are left out were chosen on these stories: with all words the
  gains are about half as large. The published figures are from stories 1 to 5; files may have any stories.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from relmo.analysis.core.show import picture
from relmo.analysis.core.untrained import untrained
from relmo.errors import CorpusError, ModelError
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.reproduce.data import required
from relmo.reproduce.table import ComparedRow, Reproduction
from relmo.runs.train_lm import train_lm
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.settings.surprisal import SurprisalOptions
from relmo.settings.training import TrainSettings
from relmo.text.corpus import read_lines
from relmo.text.readers.tables import TableRow, table_rows
from relmo.text.sources import SourceText

Device = Literal["auto", "cpu", "cuda"]

PAPER = "Futrell et al. 2021, The Natural Stories corpus; Goodkind & Bicknell 2018; Smith & Levy 2013"
GAIN, LOW, HIGH = "gain", "from", "to"
COLUMNS = ("bits/word", "unknown %", GAIN, LOW, HIGH, "%/bit", "%/bit, word before")
STORIES = "natural_stories*.tsv"
SPILL = 2  # words before, whose properties count too
FOLDS, BOOTSTRAPS = 10, 2000
TEXT, TEXT_BYTES = "lm/pretrain-0.txt", 20_000_000
SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*")
GPT3 = "GPT-3 (davinci, published)"
NOTES = [
    "gain: log-likelihood of held-out reading times, with the surprisal of a word and of the two before it, less that "
    "without; in nats for 1,000 words. from, to: 95% of samples of sentences",
    "both linear models of log times have length, log frequency, their product and punctuation, of three words, and "
    "the places in sentence and story; a sentence's first and last word are left out",
    "%/bit: how much longer a word is read for each bit of its own surprisal, and of the surprisal of the word before "
    "it, in a fit to all words",
    f"the 5-gram and the LSTM are trained on the first {TEXT_BYTES // 10**6} MB of {TEXT}; keep them with --keep DIR",
    "bits/word: of words with their punctuation, unknown words counted as <unk>: levels of models with different "
    "vocabularies cannot be compared",
]


class StoryWord(NamedTuple):
    """A word as readers saw it, with how often its form occurs; `gpt3` is None where GPT-3's surprisal is not
    published."""

    story: int
    text: str
    milliseconds: float
    frequency: int
    gpt3: float | None


class Stories(NamedTuple):
    """All words, and for each: its number in its story and in its sentence, the number of its sentence; (N,) each."""

    words: list[StoryWord]
    in_story: np.ndarray
    in_sentence: np.ndarray
    sentence: np.ndarray


class Gain(NamedTuple):
    """What surprisal adds to the held-out log-likelihood of each word (N,); and by what share a bit makes a word's time
    longer, a bit of the word itself and of those before it (1 + SPILL,)."""

    by_word: np.ndarray
    costs: np.ndarray


def read_data(data: Path) -> Stories:
    """Read the stories of the data folder, which may be in several files."""
    folder = required(data, "tasks/reading_times", "Natural Stories")
    paths = sorted(folder.glob(STORIES))
    if not paths:
        raise CorpusError(f"Natural Stories: {folder} has no file {STORIES}")
    return read_stories(*paths)


def reproduce(
    stories: Stories,
    models: Mapping[str, BiLM | LanguageModel],
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Reproduction:
    """The table: each model, the last of them untrained where it has weights, and GPT-3."""
    surprisals: dict[str, tuple[np.ndarray, float | None]] = {}
    for name, model in models.items():
        say(f"reading-times: {name} reads the stories")
        surprisals[name] = story_surprisal(model, stories.words)
    last = list(models)[-1]
    with suppress(ModelError):  # n-grams have no weights to draw
        surprisals[f"{last}, untrained"] = story_surprisal(untrained(models[last], seed), stories.words)
    published = np.array([np.nan if word.gpt3 is None else word.gpt3 for word in stories.words])
    surprisals[GPT3] = published, None
    used = _used(stories, published)
    gains = {name: surprisal_gain(stories, bits, used) for name, (bits, _) in surprisals.items()}
    rows = [
        ComparedRow(name, _figures(gains[name], bits[used], unknown, stories.sentence[used]))
        for name, (bits, unknown) in surprisals.items()
    ]
    title = f"reading times of {int(used.sum()):,} words and what surprisal explains of them"
    return Reproduction("reading-times", title, PAPER, COLUMNS, rows, list(NOTES), _comparisons(gains, stories, used))


def read_stories(*paths: Path) -> Stories:
    """Read the words of one or more files, with their places."""
    words = [_story_word(row) for path in paths for row in table_rows(path, "strict")]
    if not words:
        raise CorpusError(f"{paths[0]}: has no words")
    in_story, in_sentence, sentence = (np.zeros(len(words), dtype=np.int64) for _ in range(3))
    for i, word in enumerate(words[1:], start=1):
        before = words[i - 1]
        begins = word.story != before.story or SENTENCE_END.search(before.text[-3:]) is not None
        in_story[i] = 0 if word.story != before.story else in_story[i - 1] + 1
        in_sentence[i] = 0 if begins else in_sentence[i - 1] + 1
        sentence[i] = sentence[i - 1] + begins
    return Stories(words, in_story, in_sentence, sentence)


def _story_word(row: TableRow) -> StoryWord:
    try:
        values = row.values
        gpt3 = values["gpt3_surprisal_bits"].strip()
        word = StoryWord(
            int(values["story"]),
            values["word"],
            float(values["geometric_mean_ms"]),
            int(values["google_count"]),
            float(gpt3) if gpt3 else None,
        )
    except (KeyError, ValueError) as error:
        raise CorpusError(
            f"{row.place}: expected story, word, geometric_mean_ms, google_count and gpt3_surprisal_bits ({error})"
        ) from error
    if not word.milliseconds > 0 or word.frequency < 0 or len(word.text.split()) != 1:
        raise CorpusError(f"{row.place}: expected one word, a time above 0 and a count")
    return word


def story_surprisal(model: BiLM | LanguageModel, words: Sequence[StoryWord]) -> tuple[np.ndarray, float]:
    """The surprisal of each word (N,) in bits, and the share of those that the model does not know. Each story is read
    from nothing."""
    options = SurprisalOptions(rows="whitespace")
    found = []
    for story in sorted({word.story for word in words}):
        texts = _lines([word.text for word in words if word.story == story], sentences=isinstance(model, BiLM))
        found += [row for row in model.surprisal_rows(texts, options) if not row.is_end]
    if [row.word for row in found] != [word.text for word in words]:
        raise CorpusError("the stories are not in order, or have words with white space in them")
    return np.array([row.surprisal for row in found]), float(np.mean([row.unknown for row in found]))


def _lines(words: Sequence[str], *, sentences: bool) -> Iterator[SourceText]:
    """A story in one line, or a sentence a line."""
    line: list[str] = []
    for i, word in enumerate(words):
        line.append(word)
        if i + 1 == len(words) or (sentences and SENTENCE_END.search(word[-3:])):
            yield SourceText(" ".join(line))
            line = []


def _used(stories: Stories, published: np.ndarray) -> np.ndarray:
    """Which words are looked at: those inside a sentence, with enough words before them that have all surprisals."""
    known = ~np.isnan(published)
    spilled = np.all([_before(known, back) for back in range(SPILL + 1)], axis=0) & (stories.in_story > SPILL)
    last = np.append(stories.in_sentence[1:] == 0, True)
    return spilled & (stories.in_sentence > 0) & ~last


def _before(values: np.ndarray, back: int) -> np.ndarray:
    """The values of the words so many places before."""
    return np.concatenate([values[:1].repeat(back), values[: len(values) - back]])


def control_predictors(stories: Stories) -> np.ndarray:
    """What explains reading times without surprisal: (N, D), with a constant."""
    length = np.array([len(word.text) for word in stories.words], dtype=float)
    frequency = np.log2(1.0 + np.array([word.frequency for word in stories.words]))
    punctuation = np.array([not word.text[-1].isalnum() for word in stories.words], dtype=float)
    own = [length, frequency, length * frequency, punctuation]
    columns = [_before(column, back) for back in range(SPILL + 1) for column in own]
    return np.column_stack([np.ones(len(length)), stories.in_story, stories.in_sentence, *columns])


def surprisal_gain(stories: Stories, bits: np.ndarray, used: np.ndarray) -> Gain:
    """What the surprisals (N,) of all words add for the words that are used."""
    times = np.log([word.milliseconds for word in stories.words])[used]
    without = control_predictors(stories)[used]
    more = np.column_stack([_before(bits, back) for back in range(SPILL + 1)])[used]
    folds = stories.sentence[used] % FOLDS
    both = np.column_stack([without, more])
    gain = held_out_log_likelihood(both, times, folds) - held_out_log_likelihood(without, times, folds)
    coefficients, *_ = np.linalg.lstsq(both, times, rcond=None)
    return Gain(gain, np.expm1(coefficients[-more.shape[1] :]))


def held_out_log_likelihood(predictors: np.ndarray, times: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """log N(time; prediction, variance) of each word by the model that was fitted without its fold; (N,).

    (N, D), (N,), (N,) -> (N,). The variance is that of the residuals, by the degrees of freedom that are left."""
    found = np.empty(len(times))
    for fold in np.unique(folds):
        here = folds == fold
        x, y = predictors[~here], times[~here]
        coefficients, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
        variance = ((y - x @ coefficients) ** 2).sum() / (len(y) - rank)
        residuals = times[here] - predictors[here] @ coefficients
        found[here] = -0.5 * (np.log(2 * np.pi * variance) + residuals**2 / variance)
    return found


def interval(values: np.ndarray, sentence: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Between which two numbers the mean of values (N,) lies in 95% of samples of whole sentences."""
    _, group = np.unique(sentence, return_inverse=True)
    sums, sizes = np.bincount(group, weights=values), np.bincount(group)
    drawn = np.random.default_rng(seed).integers(len(sums), size=(BOOTSTRAPS, len(sums)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _figures(gain: Gain, bits: np.ndarray, unknown: float | None, sentence: np.ndarray) -> dict[str, float]:
    low, high = interval(gain.by_word, sentence)
    shown = {
        "bits/word": float(bits.mean()),
        GAIN: 1000 * float(gain.by_word.mean()),
        LOW: 1000 * low,
        HIGH: 1000 * high,
    }
    costs = {"%/bit": 100 * float(gain.costs[0]), "%/bit, word before": 100 * float(gain.costs[1])}
    return shown | costs | ({} if unknown is None else {"unknown %": 100 * unknown})


def _comparisons(gains: dict[str, Gain], stories: Stories, used: np.ndarray) -> dict[str, Any]:
    """Of each two models, how much more the first gains, with its interval; they have read the same words."""
    found: dict[str, Any] = {}
    names = list(gains)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            more = gains[first].by_word - gains[second].by_word
            low, high = interval(more, stories.sentence[used])
            found[f"{first} - {second}"] = {GAIN: 1000 * float(more.mean()), LOW: 1000 * low, HIGH: 1000 * high}
    return {"differences": found, "words": int(used.sum()), "sentences": len(np.unique(stories.sentence[used]))}


def baselines(device: Device) -> dict[str, LMSettings]:
    """The two models that are trained here, in minutes on a CPU."""
    text = TextSettings(unit="word", vocabulary_size=20_000, valid_fraction=0.01)
    counts = LanguageModelSettings(cell="ngram", order=5)
    lstm = LanguageModelSettings(hidden=256, tied=True, softmax="sampled", samples=2048, dropout=0.1)
    train = TrainSettings(epochs=1, batch=64, unroll=35, lr=0.004, device=device)
    return {
        "5-gram": LMSettings(text=text, model=counts, train=TrainSettings(device=device)),
        "LSTM": LMSettings(text=text, model=lstm, train=train),
    }


def train_baselines(
    data: Path, keep: Path | None, *, device: Device = "auto", say: Callable[[str], None]
) -> dict[str, LanguageModel]:
    """The 5-gram and the LSTM, trained on the beginning of the same text; in `keep` they stay, and may be there
    already."""
    text = required(data, TEXT, "the text that the 5-gram and the LSTM are trained on")
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        beginning = Path(scratch) / "text.txt"
        for name, settings in baselines(device).items():
            folder = (Path(scratch) if keep is None else keep) / name
            if not (folder / "config.json").is_file():
                say(f"reading-times: training the {name} on {TEXT_BYTES // 10**6} MB of {text}")
                if not beginning.exists():
                    write_beginning(text, beginning, TEXT_BYTES)
                train_lm([str(beginning)], settings, folder, overwrite=True)
            found[name] = load(folder, kinds="lm", device=device)
    return found


def write_beginning(text: Path, out: Path, size: int) -> None:
    """The first lines of a text, of so many characters together, as a file of its own."""
    with out.open("w", encoding="utf-8") as file:
        for line in read_lines(text):
            size -= len(line.text) + 1
            if size < 0:
                return
            file.write(line.text + "\n")


def draw(path: Path, rows: Sequence[ComparedRow]) -> None:
    """The gain of each model with its interval, the best first."""
    ordered = sorted(rows, key=lambda row: row.ours[GAIN])
    with picture(path, 8.0, 1.2 + 0.5 * len(rows)) as drawn:
        axes = drawn.add_subplot()
        gains = np.array([row.ours[GAIN] for row in ordered])
        ends = np.array([[row.ours[LOW], row.ours[HIGH]] for row in ordered])
        places = np.arange(len(ordered))
        spans = [gains - ends[:, 0], ends[:, 1] - gains]
        axes.errorbar(gains, places, xerr=spans, fmt="o", color="#1f5f99", capsize=4)
        for gain, place in zip(gains.tolist(), places.tolist(), strict=True):
            axes.annotate(f"{gain:.1f}", (gain, place), textcoords="offset points", xytext=(0, 7), ha="center")
        axes.axvline(0, color="#888", linewidth=1)
        axes.set_yticks(places, [row.name for row in ordered])
        axes.set_ylim(-0.6, len(ordered) - 0.3)
        axes.set_xlabel("gain in log-likelihood of reading times, nats for 1,000 words (95% intervals)")
        axes.spines[["top", "right"]].set_visible(False)

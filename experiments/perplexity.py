"""Perplexity of held-out text, forward and backward.

    Peters et al. 2018, Deep contextualized word representations, section 3.4

Every word is read once in each direction, with the state carried through a text; a line is read between <S> and </S>.
"joint" is e to the mean negative log-likelihood of both directions together. The paper reports "average", the mean of
the two perplexities.

- A word outside the vocabulary is predicted as one symbol, <UNK>, so a smaller vocabulary is an easier task.
  Perplexities with different vocabularies cannot be compared, and the share of unknown words is stated.
- WikiText is tokenised at spaces. Its marks " @-@ ", " @,@ ", " @.@ " and its spaced "n 't" are undone, and the text is
  split by the model's tokenizer, as in training. Headings (= Title =) and blank lines are left out. Its <unk> counts as
  an unknown word; the model, which has never seen it, reads it as the word "<UNK>", spelled.
- WikiText-2 and WikiText-103 have the same articles here. They differ in which words are replaced by <unk>.
- The frequencies of a vocabulary are not stored with a model. So the unigram control is estimated on the scored text
  itself: a lower bound for any model without context.
- An untrained network is as good as a guess on any text, so it reads only the beginning of each.
"""

import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.tables import ComparedRow, Controls, PublishedTable, require_data
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import BiScore
from relmo.text.corpus import read_lines
from relmo.text.vocabulary import SentenceVocabulary

PAPER = "Peters et al. 2018, Deep contextualized word representations, section 3.4"
COLUMNS = ("vocabulary", "tokens", "unknown %", "forward", "backward", "joint", "average")
PERPLEXITIES = COLUMNS[3:]
SETS = {
    "WikiText-2 valid": "lm/wikitext-2/wiki.valid.tokens",
    "WikiText-103 valid": "lm/wikitext-103/wiki.valid.tokens",
    "pretrain-valid": "lm/pretrain-valid.txt",
}
LANES = 16
UNTRAINED_WORDS = 8192  # words that the untrained network reads of each text
PROGRESS_SECONDS = 20.0  # between progress messages
NOTES = [
    "published: the mean of both directions on the 1 Billion Word Benchmark, a vocabulary of 793,471 words; the "
    "forward model of twice its width, CNN-BIG-LSTM, had 30.0. Text and vocabulary differ: levels cannot be compared",
    "tokens are words and, once per line, the end of the line; unknown words are predicted as one symbol, <UNK>",
    "WikiText: @-@ @,@ @.@ and n 't joined, split by the model's tokenizer, headings left out, <unk> is unknown; so "
    "these perplexities cannot be compared with the literature on WikiText, which counts other tokens",
    "unigram: the frequencies of the scored text itself, a lower bound for models without context; uniform: a guess "
    f"among the vocabulary; the untrained network reads about the first {UNTRAINED_WORDS:,} words",
]

HEADING = re.compile(r"\s*=.*=\s*")
MARK = re.compile(r" @([-,.])@ ")
NEGATION = re.compile(r"n 't\b")
UNKNOWN_WORD = re.compile(r"\S*<unk>\S*")

Sentences = Sequence[list[str]]


def make_table(model: BiLM, *, data: Path, controls: Controls, on_message: Callable[[str], None]) -> PublishedTable:
    """Score each text with the model, the untrained network, its own unigrams, and a uniform guess."""
    vocabulary = model.get_output_vocabulary()
    paths = {name: require_data(data, file, name) for name, file in SETS.items()}
    rows = [ComparedRow("biLM of the paper", published={"vocabulary": 793_471, "average": 39.7})]
    extra = {}
    for name, path in paths.items():
        sentences = list(read_sentences(path, model, wikitext=path.suffix == ".tokens"))
        if not sentences:
            raise CorpusError(f"{path}: no text found")
        score = evaluate(model, name, sentences, on_message)
        untrained = evaluate(controls.untrained, name, take_words(sentences, UNTRAINED_WORDS), on_message)
        extra[name] = score.summary() | {"untrained_tokens": untrained.tokens}
        size = {"vocabulary": len(vocabulary)}
        rows += [
            ComparedRow(name, size | _scores(score)),
            ComparedRow(f"{name}, untrained network", size | _scores(untrained)),
            ComparedRow(f"{name}, unigram", dict.fromkeys(PERPLEXITIES, unigram_perplexity(sentences, vocabulary))),
            ComparedRow(f"{name}, uniform", dict.fromkeys(PERPLEXITIES, float(len(vocabulary)))),
        ]
    return PublishedTable("perplexity", "perplexity of held-out text", PAPER, COLUMNS, rows, list(NOTES), extra)


def read_sentences(path: Path, model: BiLM, *, wikitext: bool) -> Iterator[list[str]]:
    """Read the lines of a file that have words, split by the model's tokenizer."""
    assert model.vocabulary is not None
    for line in read_lines(path):
        if not wikitext:
            words = model.tokens(line.text)
        elif HEADING.fullmatch(line.text):
            continue
        else:
            words = split_wikitext(line.text, model.tokens, model.vocabulary.unknown_symbol)
        if words:
            yield words


def split_wikitext(line: str, tokenize: Callable[[str], list[str]], unknown: str) -> list[str]:
    """Split a line of WikiText with its marks undone and `unknown` in place of every word that contains <unk>."""
    text = NEGATION.sub("n't", MARK.sub(r"\1", line))
    words: list[str] = []
    end = 0
    for match in UNKNOWN_WORD.finditer(text):
        words += [*tokenize(text[end : match.start()]), unknown]
        end = match.end()
    return words + tokenize(text[end:])


def take_words(sentences: Sentences, count: int) -> Sentences:
    """Return the first sentences with at least `count` words together."""
    total = 0
    for index, sentence in enumerate(sentences):
        if total >= count:
            return sentences[:index]
        total += len(sentence)
    return sentences


def evaluate(model: BiLM, name: str, sentences: Sentences, on_message: Callable[[str], None]) -> BiScore:
    """Score a text that is already split into words."""
    done, last_message = 0, time.monotonic()

    def watch(count: int, total: int) -> None:
        nonlocal done, last_message
        done += count
        if time.monotonic() - last_message > PROGRESS_SECONDS:
            last_message = time.monotonic()
            on_message(f"perplexity: {name}, {done:,} of {total:,}{' (some again)' if done > total else ''}")

    on_message(f"perplexity: {name}, {sum(map(len, sentences)):,} words")
    settings = replace(model.settings, text=replace(model.settings.text, tokenizer="whitespace", lowercase=False))
    reader = BiLM(model.network, settings, model.vocabulary, model.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        path.write_text("".join(f"{' '.join(words)}\n" for words in sentences), encoding="utf-8")
        return reader.evaluate(str(path), lanes=LANES, watch=watch)


def _scores(score: BiScore) -> dict[str, float]:
    return {
        "tokens": score.tokens,
        "unknown %": 100 * score.unknown / score.tokens,
        "forward": score.forward_perplexity,
        "backward": score.backward_perplexity,
        "joint": score.perplexity,
        "average": score.average_perplexity,
    }


def unigram_perplexity(sentences: Iterable[list[str]], vocabulary: SentenceVocabulary) -> float:
    """Return the perplexity of a text, with one end per sentence, by its own frequencies: e to their entropy."""
    counts: Counter[int] = Counter()
    for words in sentences:
        counts.update(vocabulary.ids(words).tolist())
        counts[vocabulary.end] += 1
    total = counts.total()
    return math.exp(-sum(n / total * math.log(n / total) for n in counts.values()))

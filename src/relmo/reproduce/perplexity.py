"""How well held-out text is predicted, forwards and backwards.

    Peters et al. 2018, Deep contextualized word representations, section 3.4

Every word is read once in each direction, with the state carried through a text; a line is read between <S> and </S>.
"joint" is e to the mean negative log-likelihood of both directions together. The paper reports "average", the mean of
the two perplexities.

What the figures depend on:
- A word outside the vocabulary is predicted as one symbol, <UNK>, so a smaller vocabulary is an easier task.
  Perplexities with different vocabularies cannot be compared, and the share of unknown words is stated.
- WikiText comes with spaces between words. Its marks " @-@ ", " @,@ ", " @.@ " and its spaced "n 't" are undone, and
  the text is split by the model's own tokenizer, as in training. Headings (= Title =) and blank lines are left out. Its
  <unk> counts as an unknown word; the model, which has never seen it, reads it as the word "<UNK>", spelled.
- WikiText-2 and WikiText-103 have the same articles here. They differ in what their makers replaced by <unk>.
- The frequencies of a vocabulary are not stored with a model. So the unigram control is estimated on the very text that
  it is scored on: the best that any model without context could do.
- An untrained network is as good as a guess whatever it reads, so it reads only the beginning of each text.
"""

import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import BiScore
from relmo.reproduce.controls import Controls
from relmo.reproduce.data import required
from relmo.reproduce.table import ComparedRow, Reproduction
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
BEGINNING = 8192  # words that the untrained network reads of each text
TELL_EVERY = 20.0  # seconds between words on how far it is
NOTES = [
    "published: the mean of both directions on the 1 Billion Word Benchmark, a vocabulary of 793,471 words; the "
    "forward model of twice its width, CNN-BIG-LSTM, had 30.0. Another text and vocabulary: no comparison of levels",
    "tokens are words and, once a line, its end; unknown words are predicted as one symbol, <UNK>",
    "WikiText: @-@ @,@ @.@ and n 't joined again, split by the model's tokenizer, headings left out, <unk> is unknown; "
    "these figures are therefore not those of the literature on WikiText, which counts other tokens",
    "unigram: the frequencies of the scored text itself, the least that a model without context could have; uniform: "
    f"a guess among the vocabulary; the untrained network reads the first {BEGINNING:,} words or so",
]

HEADING = re.compile(r"\s*=.*=\s*")
MARK = re.compile(r" @([-,.])@ ")
NEGATION = re.compile(r"n 't\b")
HIDDEN = re.compile(r"\S*<unk>\S*")


class HeldOutText(NamedTuple):
    """A text of the table: its sentences, with unknown words marked where the text hides them."""

    name: str
    sentences: list[list[str]]

    def beginning(self, words: int) -> "HeldOutText":
        """The first sentences, until they have so many words."""
        kept, count = [], 0
        for sentence in self.sentences:
            if count >= words:
                break
            kept.append(sentence)
            count += len(sentence)
        return HeldOutText(self.name, kept)


def reproduce(model: BiLM, *, data: Path, controls: Controls, say: Callable[[str], None]) -> Reproduction:
    """The table: each text by the model, the untrained network, its own unigrams, a guess."""
    vocabulary = model.output_words()
    files = {name: required(data, file, name) for name, file in SETS.items()}
    rows = [ComparedRow("biLM of the paper", published={"vocabulary": 793_471, "average": 39.7})]
    extra = {}
    for name, file in files.items():
        text = HeldOutText(name, list(sentences(file, model, wikitext=file.suffix == ".tokens")))
        if not text.sentences:
            raise CorpusError(f"{file}: there is no text in it")
        score = evaluate(model, text, say)
        untrained = evaluate(controls.untrained, text.beginning(BEGINNING), say)
        size = {"vocabulary": len(vocabulary)}
        extra[name] = score.summary() | {"untrained_tokens": untrained.tokens}
        rows += [
            ComparedRow(name, size | _figures(score)),
            ComparedRow(f"{name}, untrained network", size | _figures(untrained)),
            ComparedRow(f"{name}, unigram", dict.fromkeys(PERPLEXITIES, unigram(text.sentences, vocabulary))),
            ComparedRow(f"{name}, uniform", dict.fromkeys(PERPLEXITIES, float(len(vocabulary)))),
        ]
    return Reproduction("perplexity", "perplexity of held-out text", PAPER, COLUMNS, rows, list(NOTES), extra)


def sentences(file: Path, model: BiLM, *, wikitext: bool) -> Iterator[list[str]]:
    """The lines of a file that have words, split as the model splits text."""
    assert model.vocabulary is not None
    for line in read_lines(file):
        if wikitext and HEADING.fullmatch(line.text):
            continue
        text = plain(line.text) if wikitext else line.text
        if words := split(text, model.tokens, model.vocabulary.unknown_symbol if wikitext else None):
            yield words


def plain(line: str) -> str:
    """A line of WikiText with its marks undone."""
    return NEGATION.sub("n't", MARK.sub(r"\1", line))


def split(text: str, tokens: Callable[[str], list[str]], unknown: str | None) -> list[str]:
    """The words of a text; with `unknown`, that in place of every word that has <unk> in it."""
    if unknown is None:
        return tokens(text)
    words: list[str] = []
    end = 0
    for hidden in HIDDEN.finditer(text):
        words += [*tokens(text[end : hidden.start()]), unknown]
        end = hidden.end()
    return words + tokens(text[end:])


def evaluate(model: BiLM, text: HeldOutText, say: Callable[[str], None]) -> BiScore:
    """The score of a text that is split already."""
    done, told = 0, time.monotonic()

    def watch(more: int, total: int) -> None:
        nonlocal done, told
        done += more
        if time.monotonic() - told > TELL_EVERY:
            told = time.monotonic()
            say(f"perplexity: {text.name}, {done:,} of {total:,}{' (some again)' if done > total else ''}")

    say(f"perplexity: {text.name}, {sum(map(len, text.sentences)):,} words")
    settings = replace(model.settings, text=replace(model.settings.text, tokenizer="whitespace", lowercase=False))
    reader = BiLM(model.network, settings, model.vocabulary, model.device)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "text.txt"
        file.write_text("".join(f"{' '.join(words)}\n" for words in text.sentences), encoding="utf-8")
        return reader.evaluate(str(file), lanes=LANES, watch=watch)


def _figures(score: BiScore) -> dict[str, float]:
    return {
        "tokens": score.tokens,
        "unknown %": 100 * score.unknown / score.tokens,
        "forward": score.forward_perplexity,
        "backward": score.backward_perplexity,
        "joint": score.perplexity,
        "average": score.average_perplexity,
    }


def unigram(sentences: Iterable[list[str]], vocabulary: SentenceVocabulary) -> float:
    """The perplexity of a text, with one end a sentence, by its own frequencies: e to their entropy."""
    counts: Counter[int] = Counter()
    for words in sentences:
        counts.update(vocabulary.ids(words).tolist())
        counts[vocabulary.end] += 1
    total = counts.total()
    return math.exp(-sum(n / total * math.log(n / total) for n in counts.values()))

"""Surprisal: how many bits each word of a text takes, given its context. For those who study reading.

    surprisal(w) = -log2 p(w | what was read before)            Hale 2001;  Levy 2008
    entropy(w)   = -sum_v p(v | before) log2 p(v | before)      of what is predicted at the word's first symbol

A model predicts symbols: characters, or tokens. A row of the table is a word. Each symbol counts to exactly one row, so
the sum over all rows, those of ends included, is the negative log-likelihood that `evaluate` gives.

- Words of several tokens (rows at white space, tokens by the tokenizer) have the sum of their tokens.
- Characters are summed to words. White space counts to the word before it: a word is not over until something ends it,
  so its probability has to have that of its end (Oh & Schuler 2024, Leading whitespaces of language models' subword
  vocabulary pose a confound for calculating word probabilities; Pimentel & Meister 2024, How to compute the
  probability of a word). The other convention, white space counted to the word that follows, can be chosen. White space
  at a line's beginning, or end, counts to the line's first, or last, word.
- A line's end and a text's end are predicted too, and are rows of their own, which are shown where they are asked for.

`_bits` has the only arithmetic. A text is read in blocks of lines with the state carried between them, or in batches of
lines that begin from nothing; memory does not grow with the text.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from relmo.models.evaluate import full_precision
from relmo.nn.cells import State
from relmo.settings.arguments import check_sentences
from relmo.settings.surprisal import SurprisalOptions
from relmo.text.sources import SourceText, folded, lines_of, words_in
from relmo.text.tokenize import Token, split_whitespace, tokenize
from relmo.text.vocabulary import Vocabulary, escape

BLOCK = 1 << 14  # symbols that are read at once
SIDE_BY_SIDE = 64  # lines in a batch of lines that begin from nothing
UNROLL = 256  # symbols that a network reads at a time
DISTRIBUTIONS = {"cuda": 1 << 26, "cpu": 1 << 22}  # probabilities held at once; on a CPU more of them cost more time


@dataclass(frozen=True)
class WordSurprisal:
    """A row: a word, where it stands, and its surprisal.

    line        from 1; of CoNLL-U, the number of the sentence
    position    in the line, from 1; of the beginning of a sentence, 0
    start, end  the characters of the line that it is
    surprisal   in bits
    entropy     in bits, before its first symbol
    unknown     whether the model's vocabulary lacks it, or a part of it
    name        of a table, what its column of names says
    """

    line: int
    position: int
    word: str
    start: int
    end: int
    surprisal: float
    entropy: float
    unknown: bool
    is_end: bool = False
    name: str | None = None


Texts = str | Iterable[str | Sequence[str]]
"""What a caller gives: a text, or its sentences, which may be lists of words."""


def given_texts(text: Texts) -> Iterator[SourceText]:
    """The lines of what a caller gives."""
    if isinstance(text, str):
        return lines_of(text)
    sentences = enumerate(check_sentences(text, "surprisal"), start=1)
    return (
        SourceText(each, line=number) if isinstance(each, str) else SourceText(" ".join(each), list(each), number)
        for number, each in sentences
    )


class SymbolScores(NamedTuple):
    """Of the symbols of a line, each (N,): surprisal and entropy in bits."""

    bits: np.ndarray
    entropy: np.ndarray


@dataclass(frozen=True)
class ReadLine:
    """A line as a model reads it.

    words     the rows
    symbols   what is predicted in this line, in the order of the text, ends aside
    owners    (symbols,): the number of the word that each counts to; beyond the last word, the end
    ends      what is predicted after the line (backwards, before it)
    """

    source: SourceText
    words: list[Token]
    symbols: list[str]
    owners: np.ndarray
    ends: list[str]

    @property
    def size(self) -> int:
        """How many predictions it takes."""
        return len(self.symbols) + len(self.ends)


class Predictor(Protocol):
    """What the rows of a table need of a model: lines as it reads them, and the scores of lines."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The symbols that are predicted."""

    def read(self, source: SourceText, *, last: bool) -> ReadLine | None:
        """A line of a text, which may be its last; None where the model passes over it."""

    def carried(self, lines: Sequence[ReadLine], state: State | None) -> tuple[list[SymbolScores], State]:
        """The scores of lines that follow each other, from a state on, and the state after them."""

    def alone(self, lines: Sequence[ReadLine]) -> list[SymbolScores]:
        """The scores of lines that each begin from nothing."""


def surprisal_rows(
    predictor: Predictor, texts: Iterable[SourceText], options: SurprisalOptions
) -> Iterator[WordSurprisal]:
    """The rows of the table, ends included, in the order of the text."""
    state: State | None = None
    for lines in _blocks(predictor, texts):
        with torch.no_grad(), full_precision():
            if options.context == "text":
                scores, state = predictor.carried(lines, state)
            else:
                scores = _alone(predictor, lines)
        for line, score in zip(lines, scores, strict=True):
            yield from _rows(line, score, predictor.vocabulary, backward=options.direction == "backward")


def _blocks(predictor: Predictor, texts: Iterable[SourceText]) -> Iterator[list[ReadLine]]:
    """Lines in lists of about BLOCK symbols."""
    held: list[ReadLine] = []
    size = 0
    for source, after in _with_next(texts):
        line = predictor.read(source, last=after is None)
        if line is not None:
            held.append(line)
            size += line.size
        if size > BLOCK:
            yield held
            held, size = [], 0
    if held:
        yield held


def _with_next(texts: Iterable[SourceText]) -> Iterator[tuple[SourceText, SourceText | None]]:
    """Each text with the one that follows; None follows the last."""
    before: SourceText | None = None
    for text in texts:
        if before is not None:
            yield before, text
        before = text
    if before is not None:
        yield before, None


def _alone(predictor: Predictor, lines: Sequence[ReadLine]) -> list[SymbolScores]:
    """As `Predictor.alone`, lines of about one length together."""
    order = sorted(range(len(lines)), key=lambda i: lines[i].size)
    found: dict[int, SymbolScores] = {}
    for start in range(0, len(order), SIDE_BY_SIDE):
        which = order[start : start + SIDE_BY_SIDE]
        found.update(zip(which, predictor.alone([lines[i] for i in which]), strict=True))
    return [found[i] for i in range(len(lines))]


def _rows(line: ReadLine, scores: SymbolScores, vocabulary: Vocabulary, *, backward: bool) -> Iterator[WordSurprisal]:
    """The rows of a line: symbols summed to their words, and the end."""
    count, source = len(line.words), line.source
    symbols = [*line.symbols, *line.ends]
    owners = np.concatenate([line.owners, np.full(len(line.ends), count, dtype=np.int64)])
    bits = np.bincount(owners, weights=scores.bits, minlength=count + 1).tolist()
    first = np.searchsorted(owners, np.arange(count + 1))  # owners rise: the symbols of a word are together
    last = np.searchsorted(owners, np.arange(count + 1), side="right") - 1
    unseen = np.zeros(count + 1, dtype=bool)
    np.logical_or.at(unseen, owners, vocabulary.ids(symbols) == vocabulary.unknown)

    def row(i: int, token: Token, position: int) -> WordSurprisal:
        entropy = float(scores.entropy[last[i] if backward else first[i]])  # before what is read first
        place = (source.line, position, token.text, token.start, token.end)
        return WordSurprisal(*place, bits[i], entropy, bool(unseen[i]), is_end=i == count, name=source.name)

    end = [row(count, *_end(line, backward=backward))] if last[count] >= first[count] else []
    words = [row(i, token, i + 1) for i, token in enumerate(line.words)]
    yield from (*end, *words) if backward else (*words, *end)


def _end(line: ReadLine, *, backward: bool) -> tuple[Token, int]:
    """The end of a line as a word, and its position."""
    place = 0 if backward else len(line.source.text)
    return Token(escape("".join(line.ends)), place, place), 0 if backward else len(line.words) + 1


def _bits(distribution: Callable[[Tensor], Tensor], features: Tensor, targets: Tensor, vocab_size: int) -> SymbolScores:
    """The surprisal of targets (N,) and the entropy of the distributions that features (N, D) give."""
    at_once = max(1, DISTRIBUTIONS["cuda" if features.is_cuda else "cpu"] // vocab_size)
    bits, entropy = [], []
    for x, y in zip(features.split(at_once), targets.split(at_once), strict=True):
        log_p = distribution(x)  # (n, V)
        bits.append(-log_p.gather(1, y.unsqueeze(1)).squeeze(1).double())
        entropy.append(torch.special.entr(log_p.exp()).sum(dim=1, dtype=torch.float64))
    scores = torch.stack([torch.cat(bits), torch.cat(entropy)]).cpu().numpy() / math.log(2)
    return SymbolScores(*scores)


def side_by_side(rows: Sequence[np.ndarray], filler: int) -> np.ndarray:
    """Rows of ids as one array (B, T), with a filler behind the ends of shorter ones."""
    array = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array


def scored(
    read: Callable[[slice, State], tuple[Tensor, State]],
    distribution: Callable[[Tensor], Tensor],
    targets: Tensor,
    state: State,
    vocab_size: int,
) -> tuple[np.ndarray, State]:
    """Bits and entropy (2, B, T) of targets (B, T). `read` gives the features (B, t, D) of a stretch of time, and the
    state after it."""
    pieces = []
    for start in range(0, targets.shape[1], UNROLL):
        window = slice(start, start + UNROLL)
        features, state = read(window, state)
        y = targets[:, window]
        found = _bits(distribution, features.flatten(0, 1), y.flatten(), vocab_size)
        pieces.append(np.stack(found).reshape(2, *y.shape))
    return np.concatenate(pieces, axis=2), state


def line_tokens(source: SourceText, tokenizer: str) -> list[Token]:
    """The tokens of a line, with where they stand."""
    if source.words is not None:
        return words_in(source.words)
    return tokenize(source.text) if tokenizer == "words" else split_whitespace(source.text)


def read_tokens(source: SourceText, *, tokenizer: str, rows: str | None, lowercase: bool, ends: list[str]) -> ReadLine:
    """A line as a model of tokens reads it."""
    text, origins = folded(source.text) if lowercase else (source.text, np.arange(len(source.text) + 1))
    if source.words is not None:  # kept as they are
        words = words_in(source.words)
        symbols = [word.lower() if lowercase else word for word in source.words]
        return ReadLine(source, words, symbols, np.arange(len(words)), ends)
    tokens = line_tokens(source._replace(text=text), tokenizer)
    placed = [_placed(token, source.text, origins) for token in tokens]
    words = split_whitespace(source.text) if rows == "whitespace" else placed
    starts = [word.start for word in words]
    owners = np.searchsorted(starts, [token.start for token in placed], side="right") - 1
    return ReadLine(source, words, [token.text for token in tokens], owners.astype(np.int64), ends)


def _placed(token: Token, text: str, origins: np.ndarray) -> Token:
    """A token of the text in lower case as it stands in the text itself."""
    start, end = int(origins[token.start]), int(origins[token.end - 1]) + 1
    return Token(text[start:end], start, end)


def read_characters(source: SourceText, *, rows: str, space: str, lowercase: bool, ends: list[str]) -> ReadLine:
    """A line as a model of characters reads it, with white space counted to a word."""
    text, origins = folded(source.text) if lowercase else (source.text, np.arange(len(source.text) + 1))
    words = line_tokens(source, rows)
    places = origins[:-1]
    if space == "after":  # the last word that has begun
        owners = np.searchsorted([word.start for word in words], places, side="right") - 1
    else:  # the first word that has not ended
        owners = np.searchsorted([word.end for word in words], places, side="right")
    owners = np.clip(owners, 0, max(len(words) - 1, 0))
    return ReadLine(source, words, list(text.replace("\0", "\ufffd")), owners.astype(np.int64), ends)

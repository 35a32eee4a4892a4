"""Surprisal: the number of bits that each word of a text takes, given its context, for studies of reading.

    surprisal(w) = -log2 p(w | preceding text)                    Hale 2001;  Levy 2008
    entropy(w)   = -sum_v p(v | preceding) log2 p(v | preceding)  of the prediction at the word's first symbol

A model predicts symbols (characters or tokens); a row of the table is a word. Each symbol belongs to one row, so that
the sum over all rows, including ends, is the negative log-likelihood of `evaluate`.

- A word of several tokens (rows split at whitespace, tokens by the tokenizer) has the sum of its tokens.
- Characters are summed to words. Whitespace belongs to the word before it: a word is not complete until something ends
  it, so its probability includes that of its end (Oh & Schuler 2024, Leading whitespaces of language models' subword
  vocabulary pose a confound for calculating word probabilities; Pimentel & Meister 2024, How to compute the
  probability of a word). Optionally, it belongs to the word after it. Whitespace at the start, or end, of a line
  belongs to the first, or last, word of the line.
- The ends of lines and texts are predicted too, and have rows of their own, which are optional in the output.

A language model reads one stream that begins with </s>; a bidirectional model reads sentences, forwards <S> w1 … wn and
backwards </S> wn … w1. Both read as `evaluate` does: in blocks of lines with the state carried between them, or in
batches of independent lines; memory does not grow with the text. `_score_targets` has the only arithmetic.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from relmo.models.evaluate import full_precision
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.language_model import NeuralLM
from relmo.networks.ngram import NGramLM
from relmo.nn.cells import State
from relmo.settings.arguments import check_sentences
from relmo.settings.bilm import BiLMSettings
from relmo.settings.lm import TextSettings
from relmo.settings.options import SurprisalOptions
from relmo.text.characters import BOS, EOS, Spellings
from relmo.text.sources import SourceText, fold_case, split_lines
from relmo.text.tokenize import Token, place_tokens, split_whitespace, tokenize
from relmo.text.vocabulary import END, SentenceVocabulary, Vocabulary, escape

BLOCK = 1 << 14  # symbols per block of lines
BATCH_LINES = 64  # independent lines per batch
UNROLL = 256  # symbols that a network reads at a time
MAX_PROBS = {"cuda": 1 << 26, "cpu": 1 << 22}  # probabilities in memory; on a CPU more of them are slower


@dataclass(frozen=True)
class WordSurprisal:
    """Row of a table: a word, its position, and its surprisal.

    line        from 1; in CoNLL-U, the number of the sentence
    position    in the line, from 1; 0 for the beginning of a sentence
    start, end  character offsets in the line
    surprisal   in bits
    entropy     in bits, before its first symbol
    unknown     whether the model's vocabulary lacks it, or a part of it
    name        value of the column of names, if the text came from a table
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
"""A text, or its sentences, each a string or a list of words."""


def parse_texts(text: Texts) -> Iterator[SourceText]:
    """Return the lines of a text or of sentences."""
    if isinstance(text, str):
        return split_lines(text)
    return (
        SourceText(line, line=number) if isinstance(line, str) else SourceText(" ".join(line), list(line), number)
        for number, line in enumerate(check_sentences(text, "surprisal"), start=1)
    )


class SymbolScores(NamedTuple):
    """Surprisal and entropy, in bits, of the symbols of a line; each (N,)."""

    bits: np.ndarray
    entropy: np.ndarray


@dataclass(frozen=True)
class ReadLine:
    """Line as a model reads it.

    words     the rows
    symbols   predicted symbols of the line in text order, without ends
    owners    (symbols,): index of the word that each belongs to
    ends      symbols predicted after the line (backwards, before it)
    """

    source: SourceText
    words: list[Token]
    symbols: list[str]
    owners: np.ndarray
    ends: list[str]

    @property
    def size(self) -> int:
        """Number of predictions."""
        return len(self.symbols) + len(self.ends)


class Predictor(Protocol):
    """Interface between a model and the rows of a table."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Symbols that are predicted."""

    def read(self, source: SourceText, *, last: bool) -> ReadLine | None:
        """Convert a line of a text, of which it may be the last; return None if the model skips it."""

    def score_stream(self, lines: Sequence[ReadLine], state: State | None) -> tuple[list[SymbolScores], State]:
        """Score consecutive lines, from a state on; return the scores and the state after them."""

    def score_batch(self, lines: Sequence[ReadLine]) -> list[SymbolScores]:
        """Score independent lines."""


def surprisal_rows(
    predictor: Predictor, texts: Iterable[SourceText], options: SurprisalOptions
) -> Iterator[WordSurprisal]:
    """Yield the rows of the table, including ends, in the order of the text."""
    state: State | None = None
    for lines in _split_blocks(predictor, texts):
        with torch.no_grad(), full_precision():
            if options.context == "text":
                scores, state = predictor.score_stream(lines, state)
            else:
                scores_by_line: dict[int, SymbolScores] = {}
                order = sorted(range(len(lines)), key=lambda i: lines[i].size)  # similar lengths together
                for start in range(0, len(order), BATCH_LINES):
                    batch = order[start : start + BATCH_LINES]
                    batch_scores = predictor.score_batch([lines[i] for i in batch])
                    scores_by_line.update(zip(batch, batch_scores, strict=True))
                scores = [scores_by_line[i] for i in range(len(lines))]
        for line, line_scores in zip(lines, scores, strict=True):
            yield from _rows(line, line_scores, predictor.vocabulary, backward=options.direction == "backward")


def _split_blocks(predictor: Predictor, texts: Iterable[SourceText]) -> Iterator[list[ReadLine]]:
    """Yield lists of lines of about BLOCK symbols."""
    lines: list[ReadLine] = []
    size = 0
    sources = iter(texts)
    source = next(sources, None)
    while source is not None:
        following = next(sources, None)
        line = predictor.read(source, last=following is None)
        if line is not None:
            lines.append(line)
            size += line.size
        if size > BLOCK:
            yield lines
            lines, size = [], 0
        source = following
    if lines:
        yield lines


def _rows(line: ReadLine, scores: SymbolScores, vocabulary: Vocabulary, *, backward: bool) -> Iterator[WordSurprisal]:
    """Yield the rows of a line: symbols summed to their words, and the end."""
    count, source = len(line.words), line.source
    symbols = [*line.symbols, *line.ends]
    owners = np.concatenate([line.owners, np.full(len(line.ends), count, dtype=np.int64)])
    bits = np.bincount(owners, weights=scores.bits, minlength=count + 1).tolist()
    starts = np.searchsorted(owners, np.arange(count + 1))  # owners increase: the symbols of a word are adjacent
    stops = np.searchsorted(owners, np.arange(count + 1), side="right") - 1
    unknown = np.zeros(count + 1, dtype=bool)
    np.logical_or.at(unknown, owners, vocabulary.ids(symbols) == vocabulary.unknown)

    def make_row(i: int, token: Token, position: int) -> WordSurprisal:
        entropy = float(scores.entropy[stops[i] if backward else starts[i]])  # at the symbol that is read first
        place = (source.line, position, token.text, token.start, token.end)
        return WordSurprisal(*place, bits[i], entropy, bool(unknown[i]), is_end=i == count, name=source.name)

    words = [make_row(i, token, i + 1) for i, token in enumerate(line.words)]
    end = []
    if stops[count] >= starts[count]:
        offset = 0 if backward else len(source.text)
        token = Token(escape("".join(line.ends)), offset, offset)
        end = [make_row(count, token, 0 if backward else count + 1)]
    yield from (*end, *words) if backward else (*words, *end)


def _score_targets(
    distribution: Callable[[Tensor], Tensor], features: Tensor, targets: Tensor, vocab_size: int
) -> np.ndarray:
    """Return the surprisal of targets (N,) and the entropy of the distributions that features (N, D) give; (2, N)."""
    batch_size = max(1, MAX_PROBS["cuda" if features.is_cuda else "cpu"] // vocab_size)
    bits, entropy = [], []
    for x, y in zip(features.split(batch_size), targets.split(batch_size), strict=True):
        log_p = distribution(x)  # (n, V)
        bits.append(-log_p.gather(1, y.unsqueeze(1)).squeeze(1).double())
        entropy.append(torch.special.entr(log_p.exp()).sum(dim=1, dtype=torch.float64))
    return torch.stack([torch.cat(bits), torch.cat(entropy)]).cpu().numpy() / math.log(2)


def _score_windows(
    read: Callable[[slice, State], tuple[Tensor, State]],
    distribution: Callable[[Tensor], Tensor],
    targets: Tensor,
    state: State,
    vocab_size: int,
) -> tuple[np.ndarray, State]:
    """Return bits and entropy (2, B, T) of targets (B, T), and the final state.

    `read` returns the features (B, t, D) of a window and the state after it."""
    pieces = []
    for start in range(0, targets.shape[1], UNROLL):
        window = slice(start, start + UNROLL)
        features, state = read(window, state)
        y = targets[:, window]
        scores = _score_targets(distribution, features.flatten(0, 1), y.flatten(), vocab_size)
        pieces.append(scores.reshape(2, *y.shape))
    return np.concatenate(pieces, axis=2), state


def _pad(rows: Sequence[np.ndarray], filler: int) -> np.ndarray:
    array = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array


def _split_line(source: SourceText, tokenizer: str) -> list[Token]:
    if source.words is not None:
        return place_tokens(source.words)
    return tokenize(source.text) if tokenizer == "words" else split_whitespace(source.text)


def _read_tokens(source: SourceText, *, tokenizer: str, rows: str | None, lowercase: bool, ends: list[str]) -> ReadLine:
    if source.words is not None:  # given tokens are not split again
        words = place_tokens(source.words)
        symbols = [word.lower() if lowercase else word for word in source.words]
        return ReadLine(source, words, symbols, np.arange(len(words)), ends)
    text, origins = fold_case(source.text) if lowercase else (source.text, np.arange(len(source.text) + 1))
    tokens = _split_line(source._replace(text=text), tokenizer)
    spans = [(int(origins[token.start]), int(origins[token.end - 1]) + 1) for token in tokens]  # before lower-casing
    words = [Token(source.text[start:end], start, end) for start, end in spans]
    if rows == "whitespace":
        words = split_whitespace(source.text)
    starts = [word.start for word in words]
    owners = np.searchsorted(starts, [start for start, _ in spans], side="right") - 1
    return ReadLine(source, words, [token.text for token in tokens], owners.astype(np.int64), ends)


def _read_characters(source: SourceText, *, rows: str, space: str, lowercase: bool, ends: list[str]) -> ReadLine:
    text, origins = fold_case(source.text) if lowercase else (source.text, np.arange(len(source.text) + 1))
    words = _split_line(source, rows)
    positions = origins[:-1]
    if space == "after":  # the last word that has begun
        owners = np.searchsorted([word.start for word in words], positions, side="right") - 1
    else:  # the first word that has not ended
        owners = np.searchsorted([word.end for word in words], positions, side="right")
    owners = np.clip(owners, 0, max(len(words) - 1, 0))
    return ReadLine(source, words, list(text.replace("\0", "\ufffd")), owners.astype(np.int64), ends)


class StreamPredictor:
    """Predictor of a language model over characters or words."""

    def __init__(
        self,
        network: NeuralLM | NGramLM,
        vocabulary: Vocabulary,
        text: TextSettings,
        options: SurprisalOptions,
        device: torch.device,
    ):
        self.network, self.vocabulary, self.text, self.device = network, vocabulary, text, device
        self.options = options
        self.characters = text.unit == "char"
        options.check_for(characters=self.characters, bidirectional=False, tokenizer=text.tokenizer)
        self.last_symbol = vocabulary.end

    def read(self, source: SourceText, *, last: bool) -> ReadLine:
        """Convert a line; the end of the text follows the last one."""
        ends = ["\n"] if source.ended else []
        if self.text.text_per == "line":
            ends = [END]
        elif last and self.options.context == "text":
            ends.append(END)
        rows, lowercase = self.options.rows, self.text.lowercase
        if self.characters:
            space = self.options.space or "after"
            return _read_characters(source, rows=rows or "words", space=space, lowercase=lowercase, ends=ends)
        return _read_tokens(source, tokenizer=self.text.tokenizer, rows=rows, lowercase=lowercase, ends=ends)

    def score_stream(self, lines: Sequence[ReadLine], state: State | None) -> tuple[list[SymbolScores], State]:
        """Score consecutive lines as one stream."""
        if state is None:
            state, self.last_symbol = self.network.initial_state(1), self.vocabulary.end
        ids = [self._ids(line) for line in lines]
        stream = np.concatenate([[self.last_symbol], *ids])
        scores, state = self._score(stream[None], state)
        self.last_symbol = int(stream[-1])
        bounds = np.cumsum([len(line_ids) for line_ids in ids])[:-1]
        return [SymbolScores(*piece) for piece in np.split(scores[:, 0], bounds, axis=1)], state

    def score_batch(self, lines: Sequence[ReadLine]) -> list[SymbolScores]:
        """Score lines in a batch, each after </s>."""
        ids = [np.concatenate([[self.vocabulary.end], self._ids(line)]) for line in lines]
        scores, _ = self._score(_pad(ids, self.vocabulary.end), self.network.initial_state(len(ids)))
        return [SymbolScores(*scores[:, i, : len(line_ids) - 1]) for i, line_ids in enumerate(ids)]

    def _ids(self, line: ReadLine) -> np.ndarray:
        return self.vocabulary.ids([*line.symbols, *line.ends])

    def _score(self, ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        symbols = torch.from_numpy(ids.astype(np.int64)).to(self.device)  # (B, T + 1)
        network = self.network

        def read(window: slice, state: State) -> tuple[Tensor, State]:
            return network.features(symbols[:, :-1][:, window], state)

        return _score_windows(read, network.log_probs, symbols[:, 1:], state, network.vocab_size)


class SentencePredictor:
    """Predictor of one direction of a bidirectional model."""

    def __init__(
        self,
        network: BiLMNetwork,
        vocabulary: SentenceVocabulary,
        settings: BiLMSettings,
        options: SurprisalOptions,
        device: torch.device,
    ):
        self.network, self.vocabulary, self.settings, self.device = network, vocabulary, settings, device
        self.options, self.direction = options, int(options.direction == "backward")
        options.check_for(characters=False, bidirectional=True, tokenizer=settings.text.tokenizer)

    def read(self, source: SourceText, *, last: bool) -> ReadLine | None:
        """Convert a sentence; lines without words are skipped."""
        text = self.settings.text
        ends = [BOS if self.direction else EOS]
        rows, lowercase = self.options.rows, text.lowercase
        line = _read_tokens(source, tokenizer=text.tokenizer, rows=rows, lowercase=lowercase, ends=ends)
        return line if line.symbols else None

    def score_stream(self, lines: Sequence[ReadLine], state: State | None) -> tuple[list[SymbolScores], State]:
        """Score consecutive sentences."""
        rows = [[line.symbols for line in lines]]
        scores, state = self._score(rows, self.network.initial_state(1) if state is None else state)
        bounds = np.cumsum([line.size for line in lines])[:-1]
        return [self._in_text_order(piece) for piece in np.split(scores[:, 0], bounds, axis=1)], state

    def score_batch(self, lines: Sequence[ReadLine]) -> list[SymbolScores]:
        """Score sentences in a batch."""
        scores, _ = self._score([[line.symbols] for line in lines], self.network.initial_state(len(lines)))
        return [self._in_text_order(scores[:, i, : line.size]) for i, line in enumerate(lines)]

    def _in_text_order(self, scores: np.ndarray) -> SymbolScores:
        # scores come in the order of reading; the end stays last
        if self.direction:
            scores = np.concatenate([scores[:, -2::-1], scores[:, -1:]], axis=1)
        return SymbolScores(*scores)

    def _score(self, rows: Sequence[Sequence[list[str]]], state: State) -> tuple[np.ndarray, State]:
        """Return bits and entropy (2, B, T) of rows of consecutive sentences."""
        network, d = self.network, self.direction
        assert network.softmax is not None
        words, inputs, targets = self._encode_rows(rows)
        if self.settings.model.input == "word":
            word_ids = self.vocabulary.ids(words)
        else:
            word_ids = Spellings(words, self.settings.model.max_characters).ids()
        vectors = network.encoder(torch.from_numpy(word_ids).to(self.device))

        def read(window: slice, state: State) -> tuple[Tensor, State]:
            run = network.lstm(embedding(inputs[:, window], vectors), state)
            return run.layers[-1][d].transpose(0, 1), run.state

        return _score_windows(read, network.softmax.log_probs, targets[d].T.contiguous(), state, len(self.vocabulary))

    def _encode_rows(self, rows: Sequence[Sequence[list[str]]]) -> tuple[list[str], Tensor, Tensor]:
        """Return the distinct words, and the inputs (as indices of these) and targets of both directions, (2, T, B)."""
        index: dict[str, int] = {BOS: 0, EOS: 1}
        inputs: list[list[np.ndarray]] = [[], []]
        targets: list[list[np.ndarray]] = [[], []]
        for row in rows:
            for d, (begin, end) in enumerate(((BOS, EOS), (EOS, BOS))):
                sentences = [sentence[::-1] if d else sentence for sentence in row]
                ids = [index.setdefault(word, len(index)) for words in sentences for word in (begin, *words)]
                inputs[d].append(np.array(ids))
                targets[d].append(self.vocabulary.ids(word for words in sentences for word in (*words, end)))
        padded = (
            np.stack([_pad(direction, filler).T for direction in directions])
            for directions, filler in ((inputs, 0), (targets, self.vocabulary.end))
        )
        input_ids, target_ids = (torch.from_numpy(array).to(self.device) for array in padded)
        return list(index), input_ids, target_ids

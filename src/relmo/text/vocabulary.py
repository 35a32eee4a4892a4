"""Vocabularies: symbols (characters, words, labels) and their ids, as a text file with one symbol per line; subwords.
Those of language models continue by falling frequency after the specials: adaptive and sampled softmax rely on it."""

import io
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

import numpy as np

from relmo.errors import CorpusError, VocabularyError, optional_import, quote
from relmo.text.corpus import read_lines

BOS, EOS = "<S>", "</S>"
UNKNOWN = "<unk>"
END = "</s>"
SPECIALS = (UNKNOWN, END)
SURROGATE = re.compile("[\ud800-\udfff]")

SPACE = "▁"
UNKNOWN_COST = 10.0  # of sentencepiece: score of an unknown character below that of the worst piece
MAX_WORD_LENGTH = 200  # characters; longer words are cut, since merging takes quadratic time
CACHE_SIZE = 200_000  # words


class Vocabulary:
    """Symbols in the order of their ids."""

    specials: tuple[str, ...] = SPECIALS
    """Symbols that are not text, with the first ids."""
    unknown_symbol, end_symbol = UNKNOWN, END

    def __init__(self, symbols: Iterable[str]):
        self.symbols = list(symbols)
        self.index = {symbol: i for i, symbol in enumerate(self.symbols)}
        if len(self.index) != len(self.symbols):
            duplicate = next(symbol for i, symbol in enumerate(self.symbols) if self.index[symbol] != i)
            raise VocabularyError(f"the vocabulary has {quote(escape(duplicate))} more than once")

    @classmethod
    def from_counts(
        cls, symbols: Sequence[str], counts: np.ndarray, *, min_count: int = 1, size: int | None = None
    ) -> Self:
        """Build a vocabulary of the specials and every symbol with at least `min_count` occurrences, by falling count
        (ties by the symbol itself), of at most `size` symbols."""
        order = [i for i in np.flatnonzero(counts >= max(min_count, 1)).tolist() if symbols[i] not in cls.specials]
        order.sort(key=lambda i: (-counts[i], symbols[i]))
        return cls([*cls.specials, *(symbols[i] for i in order)][:size])

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def unknown(self) -> int:
        """Id of <unk>."""
        return self.index[self.unknown_symbol]

    @property
    def end(self) -> int:
        """Id of </s>."""
        return self.index[self.end_symbol]

    def ids(self, symbols: Iterable[str]) -> np.ndarray:
        """Return the ids of symbols; unknown ones become <unk>."""
        unknown = self.unknown
        return np.array([self.index.get(symbol, unknown) for symbol in symbols], dtype=np.int64)

    def save(self, path: Path) -> None:
        """Write one escaped symbol per line."""
        path.write_text("".join(escape(symbol) + "\n" for symbol in self.symbols), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a file of `save`, or any list of words. Missing specials are put first."""
        line_numbers: dict[str, int] = {}
        for number, line in enumerate(read_lines(path), start=1):
            symbol = unescape(line.text, f"{path}:{number}")
            if symbol in line_numbers:
                place = f"{path}:{number}: {quote(escape(symbol))}"
                raise VocabularyError(f"{place} is already on line {line_numbers[symbol]}; remove one")
            if not symbol:
                raise VocabularyError(f"{path}:{number}: empty line; remove it")
            if "\\" in line.text and SURROGATE.search(symbol):
                raise VocabularyError(f"{path}:{number}: {quote(line.text)} is an unpaired surrogate; remove it")
            line_numbers[symbol] = number
        if not line_numbers:
            raise VocabularyError(f"{path}: the vocabulary is empty")
        return cls([*(special for special in cls.specials if special not in line_numbers), *line_numbers])


class SentenceVocabulary(Vocabulary):
    """Vocabulary of a bidirectional language model, with the specials of the original ELMo."""

    specials = (BOS, EOS, "<UNK>")
    unknown_symbol, end_symbol = "<UNK>", EOS


def escape(symbol: str) -> str:
    """Escape whitespace, control characters and the backslash as in Python."""
    return "".join(c.encode("unicode_escape").decode() if c == "\\" or not c.isprintable() else c for c in symbol)


def unescape(text: str, place: str) -> str:
    """Undo `escape`; `place` is for the error message."""
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape") if "\\" in text else text
    except UnicodeDecodeError as error:
        raise VocabularyError(f"{place}: {quote(text)} has an invalid escape; write a backslash as \\\\") from error


class Pieces(Vocabulary):
    """Pieces of BPE in the order of merging, or of a unigram model, each with a space and its log-probability."""

    specials = ()


class Subwords:
    """Conversion of text to pieces and back, without sentencepiece, which learned them. Each word begins with ▁.

    Sennrich, Haddow & Birch 2016, Neural machine translation of rare words with subword units
    Kudo 2018, Subword regularization;  Kudo & Richardson 2018, SentencePiece
    """

    def __init__(self, pieces: Pieces, kind: Literal["bpe", "unigram"]):
        self.kind, self.ranks = kind, pieces.index
        self.scores: dict[str, float] = {}
        self.cache: dict[str, list[str]] = {}
        if kind == "bpe":
            return
        for symbol in pieces.symbols:
            piece, _, score = symbol.rpartition(" ")
            try:
                self.scores[piece] = float(score)
            except ValueError:
                piece = ""
            if not piece or not abs(self.scores[piece]) < float("inf"):
                raise VocabularyError(f"{quote(symbol)} is not a piece followed by its log-probability")
        self.max_piece_length = max(map(len, self.scores), default=1)
        self.unknown = min(self.scores.values(), default=0.0) - UNKNOWN_COST

    def split(self, text: str) -> list[str]:
        """Split a text into pieces."""
        pieces: list[str] = []
        for word in text.split():
            word_pieces = self.cache.get(word)
            if word_pieces is None:
                symbols, cut = SPACE + word, self._merge if self.kind == "bpe" else self._segment
                starts = range(0, len(symbols), MAX_WORD_LENGTH)
                word_pieces = [piece for start in starts for piece in cut(symbols[start : start + MAX_WORD_LENGTH])]
                if len(self.cache) >= CACHE_SIZE:
                    self.cache = {}  # replaced, not cleared: other threads may be reading
                self.cache[word] = word_pieces
            pieces += word_pieces
        return pieces

    @staticmethod
    def join(pieces: Sequence[str]) -> str:
        """Join pieces to a text."""
        return "".join(pieces).replace(SPACE, " ").strip()

    def _merge(self, word: str) -> list[str]:
        """Segment by BPE: merge the neighbours whose union has the lowest rank, leftmost first, while there is one."""
        parts, never = list(word), len(self.ranks)
        while len(parts) > 1:
            ranks = [self.ranks.get(a + b, never) for a, b in pairwise(parts)]
            best = min(ranks)
            if best == never:
                break
            i = ranks.index(best)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return parts

    def _segment(self, word: str) -> list[str]:
        """Segment by Viterbi: best[i] is the largest sum of i characters, starts[i] the start of its last piece."""
        best, starts = [0.0], [0]
        for end in range(1, len(word) + 1):
            choices = (
                (best[start] + self.scores.get(word[start:end], -float("inf")), start)
                for start in range(max(0, end - self.max_piece_length), end)
            )
            score, start = max(choices, key=lambda choice: choice[0])
            if score == -float("inf"):
                score, start = best[end - 1] + self.unknown, end - 1
            best.append(score)
            starts.append(start)
        pieces, end = [], len(word)
        while end:
            pieces.append(word[starts[end] : end])
            end = starts[end]
        return pieces[::-1]


def learn_subwords(texts: Iterable[str], *, kind: Literal["bpe", "unigram"], size: int) -> Pieces:
    """Learn about `size` pieces from texts."""
    with optional_import(f"{kind} needs the package sentencepiece", "translate"):
        import sentencepiece
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(" ".join(text.split()) for text in texts),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            max_sentence_length=1 << 20,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # with more, the order of summation varies
            minloglevel=2,
        )
    except RuntimeError as error:  # for example, fewer pieces than requested
        raise CorpusError(f"{size} subwords cannot be learned from these texts ({error}); use fewer") from error
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    scored_pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(1, len(processor))]
    return Pieces([piece if kind == "bpe" else f"{piece} {score:.6g}" for piece, score in scored_pieces])

"""Vocabularies: symbols (characters, words, labels) and their ids, as a text file with one symbol per line.

An id is a line number, from 0. The vocabulary of a language model begins with the specials <unk> and </s> (end of text)
and continues by falling frequency, which adaptive and sampled softmax rely on. Line ends, other whitespace, control
characters and the backslash are escaped as in Python.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from relmo.errors import VocabularyError, quote
from relmo.text.characters import BOS, EOS
from relmo.text.corpus import read_lines

UNKNOWN = "<unk>"
END = "</s>"
SPECIALS = (UNKNOWN, END)
SURROGATE = re.compile("[\ud800-\udfff]")


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
        symbols: list[str] = []
        line_numbers: dict[str, int] = {}
        for number, line in enumerate(read_lines(path), start=1):
            symbol = unescape(line.text, f"{path}:{number}")
            if symbol in line_numbers:
                raise VocabularyError(
                    f"{path}:{number}: {quote(escape(symbol))} is already on line {line_numbers[symbol]}; remove one"
                )
            if not symbol:
                raise VocabularyError(f"{path}:{number}: empty line; remove it")
            if "\\" in line.text and SURROGATE.search(symbol):
                raise VocabularyError(f"{path}:{number}: {quote(line.text)} is an unpaired surrogate; remove it")
            line_numbers[symbol] = number
            symbols.append(symbol)
        if not symbols:
            raise VocabularyError(f"{path}: the vocabulary is empty")
        return cls([*(special for special in cls.specials if special not in line_numbers), *symbols])


class SentenceVocabulary(Vocabulary):
    """Vocabulary of a bidirectional language model, with the specials of the original ELMo: a sentence is enclosed in
    <S> and </S>."""

    specials = (BOS, EOS, "<UNK>")
    unknown_symbol, end_symbol = "<UNK>", EOS


def escape(symbol: str) -> str:
    """Escape whitespace, control characters and the backslash as in Python."""
    return "".join(
        c.encode("unicode_escape").decode()
        if c in "\\\n\r\t" or (c.isspace() and c != " ") or (not c.isprintable() and c != " ")
        else c
        for c in symbol
    )


def unescape(text: str, place: str) -> str:
    """Undo `escape`; `place` is for the error message."""
    if "\\" not in text:
        return text
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise VocabularyError(f"{place}: {quote(text)} has an invalid escape; write a backslash as \\\\") from error

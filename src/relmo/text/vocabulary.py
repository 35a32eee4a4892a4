"""Vocabularies: symbols (characters, words, labels) and their ids, as a text file with one symbol a line.

An id is a line number, from 0. The vocabulary of a language model begins with the specials <unk> and </s> (the end of a
text) and goes on by falling frequency, which adaptive and sampled softmax rely on. Line ends, other white space,
control characters and the backslash are escaped as in Python, so that each symbol fits on one line.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from relmo.errors import VocabularyError, shown
from relmo.text.characters import BOS, EOS
from relmo.text.corpus import read_lines

UNKNOWN = "<unk>"
END = "</s>"
SPECIALS = (UNKNOWN, END)
SURROGATE = re.compile("[\ud800-\udfff]")


class Vocabulary:
    """Symbols in the order of their ids."""

    specials: tuple[str, ...] = SPECIALS
    """The symbols that are not text; they come first."""
    unknown_symbol, end_symbol = UNKNOWN, END

    def __init__(self, symbols: Iterable[str]):
        self.symbols = list(symbols)
        self.index = {symbol: i for i, symbol in enumerate(self.symbols)}
        if len(self.index) != len(self.symbols):
            twice = next(symbol for i, symbol in enumerate(self.symbols) if self.index[symbol] != i)
            raise VocabularyError(f"the vocabulary has {shown(escape(twice))} more than once")

    @classmethod
    def from_counts(
        cls, symbols: Sequence[str], counts: np.ndarray, *, min_count: int = 1, size: int | None = None
    ) -> Self:
        """The specials, then every symbol seen `min_count` times or more by falling count (ties by the symbol itself),
        at most `size` symbols in all."""
        kept = [i for i in np.flatnonzero(counts >= max(min_count, 1)).tolist() if symbols[i] not in cls.specials]
        kept.sort(key=lambda i: (-counts[i], symbols[i]))
        return cls([*cls.specials, *(symbols[i] for i in kept)][:size])

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def unknown(self) -> int:
        """The id of <unk>."""
        return self.index[self.unknown_symbol]

    @property
    def end(self) -> int:
        """The id of </s>."""
        return self.index[self.end_symbol]

    def ids(self, symbols: Iterable[str]) -> np.ndarray:
        """The ids of symbols; those it does not have become <unk>."""
        unknown = self.unknown
        return np.array([self.index.get(symbol, unknown) for symbol in symbols], dtype=np.int64)

    def save(self, path: Path) -> None:
        """One escaped symbol a line."""
        path.write_text("".join(escape(symbol) + "\n" for symbol in self.symbols), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads what `save` wrote, or a user's own list of words. Specials that are missing are put first."""
        symbols: list[str] = []
        first_line: dict[str, int] = {}
        for number, line in enumerate(read_lines(path), start=1):
            symbol = unescape(line.text, f"{path}:{number}")
            if symbol in first_line:
                raise VocabularyError(
                    f"{path}:{number}: {shown(escape(symbol))} is on line {first_line[symbol]} already; remove one"
                )
            if not symbol:
                raise VocabularyError(f"{path}:{number}: an empty line is not a symbol; remove it")
            if "\\" in line.text and SURROGATE.search(symbol):
                raise VocabularyError(f"{path}:{number}: {shown(line.text)} is half of a character; remove it")
            first_line[symbol] = number
            symbols.append(symbol)
        if not symbols:
            raise VocabularyError(f"{path}: the vocabulary is empty")
        return cls([*(special for special in cls.specials if special not in first_line), *symbols])


class SentenceVocabulary(Vocabulary):
    """The vocabulary of a bidirectional language model, with the specials of the original ELMo: a sentence stands
    between <S> and </S>."""

    specials = (BOS, EOS, "<UNK>")
    unknown_symbol, end_symbol = "<UNK>", EOS


def escape(symbol: str) -> str:
    """White space, control characters and the backslash as Python escapes."""
    return "".join(
        c.encode("unicode_escape").decode()
        if c in "\\\n\r\t" or (c.isspace() and c != " ") or (not c.isprintable() and c != " ")
        else c
        for c in symbol
    )


def unescape(text: str, place: str) -> str:
    """Undoes `escape`; `place` is for the error."""
    if "\\" not in text:
        return text
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise VocabularyError(f"{place}: {shown(text)} has a broken escape; write a backslash as \\\\") from error

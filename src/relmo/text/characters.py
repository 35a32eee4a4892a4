"""Words as character ids, as ELMo reads them (`Spellings`) and as ELMoForManyLangs does (`DictionarySpellings`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from relmo.text.vocabulary import BOS, EOS, Vocabulary

CHARACTERS = 261  # number of character ids, which go from 1 to this
END_OF_WORD = 260  # id of the mark that ends a word; only padding follows
FIRST_MARK, LAST_MARK, PAD = "<eow>", "<bow>", "<pad>"
BOUNDARIES = {BOS: "<bos>", EOS: "<eos>"}

_BEGIN_SENTENCE, _END_SENTENCE, _BEGIN_WORD, _END_WORD, _PADDING = 256, 257, 258, 259, 260


class Spellings:
    """Compact spellings of a list of words, from which rows of ids are made on demand (Peters et al. 2018).

    A word is its UTF-8 bytes (0..255) between two marks, padded: 258 bytes… 259 260 260 …; the boundaries <S> and </S>
    have 256 and 257 in place of the bytes. Then 1 is added to every id, so that 0 is free for positions without a word.
    A word with too many bytes is truncated, possibly inside a character, as in the original; `truncated` lists such.
    """

    def __init__(self, words: Sequence[str], max_characters: int):
        room = max_characters - 2
        spelled = [word.encode("utf-8", "ignore") for word in words]
        self.max_characters = max_characters
        self.truncated = [i for i, spelling in enumerate(spelled) if len(spelling) > room]
        """Indices of the words with too many bytes."""
        spelled = [spelling[:room] for spelling in spelled]
        boundaries = [(i, word) for i, word in enumerate(words) if word in (BOS, EOS)]
        for i, _ in boundaries:
            spelled[i] = b"?"
        self.lengths = np.fromiter(map(len, spelled), dtype=np.int64, count=len(spelled))
        self.starts = np.concatenate([[0], np.cumsum(self.lengths + 2)])[:-1]
        characters = b"".join(b"<%b>" % spelling for spelling in spelled) + bytes(max_characters)
        self.characters = np.frombuffer(characters, dtype=np.uint8).astype(np.uint16)  # words with their marks
        self.characters[self.starts] = _BEGIN_WORD
        self.characters[self.starts + self.lengths + 1] = _END_WORD
        for i, word in boundaries:
            self.characters[self.starts[i] + 1] = _BEGIN_SENTENCE if word == BOS else _END_SENTENCE

    def __len__(self) -> int:
        return len(self.lengths)

    def ids(
        self, indices: np.ndarray | None = None, *, margin: int | None = None, widths: Sequence[int] = ()
    ) -> np.ndarray:
        """Return rows of ids (N, C), int64, for the words with these indices (default: all). C is `max_characters`; or,
        with a `margin`, the length of the longest word plus `margin`, so that windows of up to `margin` characters see
        the same padding, rounded up to the next of ascending `widths`."""
        starts, lengths = self.starts, self.lengths
        if indices is not None:
            starts, lengths = starts[indices], lengths[indices]
        columns = self.max_characters
        if margin is not None:
            required = int(lengths.max(initial=0)) + 2 + margin
            default = columns if widths else required
            columns = min(columns, next((width for width in widths if width >= required), default))
        rows = sliding_window_view(self.characters, columns)[starts]  # each runs on into the following words
        np.copyto(rows, _PADDING, where=np.arange(columns) >= lengths[:, None] + 2)
        return rows.astype(np.int64) + 1


def character_ids(words: Sequence[str], max_characters: int) -> np.ndarray:
    """Return the ids of words; (N, max_characters)."""
    return Spellings(words, max_characters).ids()


class Dictionary(Vocabulary):
    """Characters or words of ELMoForManyLangs; <oov> stands for all others."""

    specials = ("<oov>",)
    unknown_symbol = "<oov>"


@dataclass(frozen=True)
class Dictionaries:
    """Dictionaries of characters, including the marks, and optionally of words."""

    characters: Dictionary
    words: Dictionary | None

    def missing(self) -> list[str]:
        """Return the required symbols that the characters lack."""
        return [s for s in (FIRST_MARK, LAST_MARK, PAD, *BOUNDARIES.values()) if s not in self.characters.index]

    @property
    def end(self) -> int:
        """Id of the mark that ends a word."""
        return self.characters.index[LAST_MARK] + 1


class DictionarySpellings:
    """Spellings of a list of words as in ELMoForManyLangs, from which rows of ids are made on demand (Che et al. 2018).

    A row is: word <eow> characters… <bow> <pad> <pad> …; the characters of a boundary are <bos> or <eos>. The two marks
    are exchanged, as in the training of the published models. A character is a code point, not a byte. A word with too
    many characters is truncated before the lookup. Unknown entries are <oov>. 1 is added to every id.
    """

    def __init__(self, words: Sequence[str], dictionaries: Dictionaries, max_characters: int):
        index = dictionaries.characters.index
        unknown, self.padding = dictionaries.characters.unknown, index[PAD]
        self.max_characters = max_characters
        symbols = [BOUNDARIES.get(word, word[: max_characters - 2]) for word in words]
        inner = [
            [index[symbol]] if word in BOUNDARIES else [index.get(c, unknown) for c in symbol]
            for word, symbol in zip(words, symbols, strict=True)
        ]
        self.rows = [[index[FIRST_MARK], *ids, index[LAST_MARK]] for ids in inner]
        self.lengths = np.fromiter(map(len, inner), dtype=np.int64, count=len(inner))
        self.words = np.zeros(len(symbols), dtype=np.int64)
        if dictionaries.words is not None:
            self.words = dictionaries.words.ids(symbols)

    def ids(self, indices: np.ndarray, *, margin: int) -> np.ndarray:
        """Return rows of ids (N, 1 + C), int64, for the words with these indices; C as in `Spellings.ids`."""
        columns = min(self.max_characters, int(self.lengths[indices].max(initial=0)) + 2 + margin)
        ids = np.full((len(indices), 1 + columns), self.padding, dtype=np.int64)
        ids[:, 0] = self.words[indices]
        for row, number in zip(ids, indices.tolist(), strict=True):
            row[1 : 1 + len(self.rows[number])] = self.rows[number]
        return ids + 1

"""Words as ELMoForManyLangs reads them: by a dictionary of characters and one of words.

A row of ids is the id of the word, then its characters between two marks, padded to a fixed number of columns:

    word   <eow>  characters…  <bow>  <pad> <pad> …       the characters of a boundary, <S> or </S>, are <bos> or <eos>

The two marks are exchanged: a word begins with <eow> and ends with <bow>, as in the training of the published models. A
character is a code point, not a byte. A word with too many characters is truncated before the lookup. Unknown entries
are <oov>. 1 is added to every id, as in `characters`.

    Che et al. 2018, Towards better UD parsing: deep contextualized word embeddings, ensemble, treebank concatenation
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relmo.text.characters import BOS, EOS
from relmo.text.vocabulary import Vocabulary

FIRST_MARK, LAST_MARK, PAD = "<eow>", "<bow>", "<pad>"
BOUNDARIES = {BOS: "<bos>", EOS: "<eos>"}


class Dictionary(Vocabulary):
    """Characters or words; <oov> stands for all others."""

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
    """Spellings of a list of words, from which rows of ids are made on demand; `characters.Spellings` for bytes."""

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
        """Return rows of ids (N, 1 + C), int64, for the words with these indices. C is the length of the longest word
        plus `margin`, at most `max_characters`."""
        columns = min(self.max_characters, int(self.lengths[indices].max(initial=0)) + 2 + margin)
        ids = np.full((len(indices), 1 + columns), self.padding, dtype=np.int64)
        ids[:, 0] = self.words[indices]
        for row, number in zip(ids, indices.tolist(), strict=True):
            row[1 : 1 + len(self.rows[number])] = self.rows[number]
        return ids + 1

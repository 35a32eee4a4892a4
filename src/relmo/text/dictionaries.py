"""Words as ELMoForManyLangs reads them: by a dictionary of characters and, beside it, one of words.

A row of ids is the word's own number, then its characters between two marks, filled up to a fixed number of columns:

    word   <eow>  characters…  <bow>  <pad> <pad> …       the characters of a boundary, <S> or </S>, are <bos> or <eos>

The two marks stand the wrong way round: a word begins with <eow> and ends with <bow>. The published models were trained
that way, so they must be read that way. A character is a code point, not a byte. A word with more characters than there
is room for is cut before it is looked up. What a dictionary does not have is <oov>. 1 is added to every id, as in
`characters`.

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
    """Characters or words, with <oov> for all that it does not have."""

    specials = ("<oov>",)
    unknown_symbol = "<oov>"


@dataclass(frozen=True)
class Dictionaries:
    """What words are read by: the characters, with the marks among them, and the words, where there are any."""

    characters: Dictionary
    words: Dictionary | None

    def missing(self) -> list[str]:
        """The symbols without which no word can be spelled, as far as they are not there."""
        return [s for s in (FIRST_MARK, LAST_MARK, PAD, *BOUNDARIES.values()) if s not in self.characters.index]

    @property
    def end(self) -> int:
        """The id of the mark that ends a word."""
        return self.characters.index[LAST_MARK] + 1


class DictionarySpellings:
    """The spellings of a list of words, to be laid out as rows of ids where they are needed: what
    `characters.Spellings` is for bytes."""

    def __init__(self, words: Sequence[str], dictionaries: Dictionaries, max_characters: int):
        index = dictionaries.characters.index
        unknown, self.padding = dictionaries.characters.unknown, index[PAD]
        self.max_characters = max_characters
        cut = [BOUNDARIES.get(word, word[: max_characters - 2]) for word in words]
        inner = [
            [index[symbol]] if word in BOUNDARIES else [index.get(c, unknown) for c in symbol]
            for word, symbol in zip(words, cut, strict=True)
        ]
        self.rows = [[index[FIRST_MARK], *ids, index[LAST_MARK]] for ids in inner]
        self.lengths = np.fromiter(map(len, inner), dtype=np.int64, count=len(inner))
        self.words = np.zeros(len(cut), dtype=np.int64)
        if dictionaries.words is not None:
            self.words = dictionaries.words.ids(cut)

    def ids(self, which: np.ndarray, *, margin: int) -> np.ndarray:
        """Rows of ids (N, 1 + C), int64, for the words of these numbers. C is as much as the longest word needs and
        `margin` more, at most `max_characters`: windows of up to `margin` characters miss nothing."""
        columns = min(self.max_characters, int(self.lengths[which].max(initial=0)) + 2 + margin)
        found = np.full((len(which), 1 + columns), self.padding, dtype=np.int64)
        found[:, 0] = self.words[which]
        for row, number in zip(found, which.tolist(), strict=True):
            row[1 : 1 + len(self.rows[number])] = self.rows[number]
        return found + 1

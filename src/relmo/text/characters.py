"""Words as character ids, as ELMo reads them.

A word is its UTF-8 bytes (0..255) between a begin and an end mark, padded to a fixed number of columns:

    258  bytes…  259  260 260 260 …            the boundaries <S> and </S> have 256 and 257 in place of the bytes

Then 1 is added to every id, so that 0 is free for positions without a word. A word with too many bytes is truncated,
possibly inside a character, as in the original; `truncated` lists such words.

    Peters et al. 2018, Deep contextualized word representations;  the ids are those of its published models
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

BOS, EOS = "<S>", "</S>"
CHARACTERS = 261
"""Number of character ids, which go from 1 to this."""

END_OF_WORD = 260
"""Id of the mark that ends a word; only padding follows."""

_BEGIN_SENTENCE, _END_SENTENCE, _BEGIN_WORD, _END_WORD, _PADDING = 256, 257, 258, 259, 260


class Spellings:
    """Compact spellings of a list of words, from which rows of ids are made on demand."""

    def __init__(self, words: Sequence[str], max_characters: int):
        room = max_characters - 2
        spelled = [word.encode("utf-8", "ignore") for word in words]
        self.max_characters = max_characters
        self.truncated = [i for i, spelling in enumerate(spelled) if len(spelling) > room]
        """Indices of the words with too many bytes."""
        spelled = [spelling[:room] for spelling in spelled]
        for i, word in enumerate(words):
            if word in (BOS, EOS):
                spelled[i] = b"?"
        self.lengths = np.fromiter(map(len, spelled), dtype=np.int64, count=len(spelled))
        self.starts = np.concatenate([[0], np.cumsum(self.lengths + 2)])[:-1]
        characters = b"".join(b"<%b>" % spelling for spelling in spelled) + bytes(max_characters)
        self.characters = np.frombuffer(characters, dtype=np.uint8).astype(np.uint16)  # words with their marks
        self.characters[self.starts] = _BEGIN_WORD
        self.characters[self.starts + self.lengths + 1] = _END_WORD
        for i, word in enumerate(words):
            if word in (BOS, EOS):
                self.characters[self.starts[i] + 1] = _BEGIN_SENTENCE if word == BOS else _END_SENTENCE

    def __len__(self) -> int:
        return len(self.lengths)

    def ids(
        self, indices: np.ndarray | None = None, *, margin: int | None = None, widths: Sequence[int] = ()
    ) -> np.ndarray:
        """Return rows of ids (N, C), int64, for the words with these indices, by default all.

        C is `max_characters`. With a `margin` it is the length of the longest word plus `margin`: windows of up to
        `margin` characters then see the same padding. With ascending `widths` it is the next of these, so that C takes
        few values, or `max_characters` beyond the last.
        """
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

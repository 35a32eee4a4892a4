"""Word vectors as a user has them: a vocabulary and a matrix with a row for each of its symbols.

    vectors = relmo.load("words")
    vectors["water"], "water" in vectors, len(vectors)
    vectors.most_similar("water")
    vectors.most_similar(positive=["king", "woman"], negative=["man"])      # man is to king as woman is to whom?

The names are those of gensim's KeyedVectors, and so is what they compute.

A row of zeros means that the symbol has no vector. <unk>, </s>, line ends and words that were never seen have none.
They are near to nothing and are not written to a word2vec file; in a network's embedding they do no harm.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from relmo.disk.outputs import atomic
from relmo.errors import ModelError, SettingError, UnknownWordError, VocabularyError, shown
from relmo.models.saved import About, SavedFolder, SavedModel
from relmo.settings.arguments import check_text, check_whole, check_words, typed
from relmo.settings.skipgram import SkipgramSettings
from relmo.text.corpus import read_lines
from relmo.text.vocabulary import SPECIALS, Vocabulary

VECTORS = "vectors.txt"
ABOUT_VECTORS = f"`{VECTORS}` holds the same vectors in word2vec's text format."
WordsOrVectors: TypeAlias = str | np.ndarray | Iterable[str | np.ndarray]
LARGEST = 1 << 16  # dimensions of a file that is not ours


class WordVectors(SavedModel):
    """Words and their vectors; `settings` are those they were trained with, where relmo did it."""

    kind = "skipgram"
    settings: SkipgramSettings | None
    vocabulary: Vocabulary

    def __init__(self, vocabulary: Vocabulary, matrix: np.ndarray, settings: SkipgramSettings | None = None):
        if matrix.ndim != 2 or len(matrix) != len(vocabulary):
            raise ModelError(f"{len(vocabulary)} words need as many vectors; the matrix is {matrix.shape}")
        self.vocabulary = vocabulary
        self.matrix = matrix.astype(np.float32, copy=False)  # (V, D)
        self.settings = settings

    @property
    def network(self) -> nn.Embedding:  # type: ignore[override]
        """The matrix as its file holds it."""
        return nn.Embedding.from_pretrained(torch.from_numpy(self.matrix))

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> "WordVectors":
        """As every kind's; whatever `device` says, vectors are numpy arrays."""
        vocabulary, dimensions = saved.vocabulary(Vocabulary), saved.config.get("dimensions")
        if type(dimensions) is not int or not 1 <= dimensions <= LARGEST:
            raise saved.damaged(f"dimensions is {shown(dimensions)}")
        network = saved.network(lambda: nn.Embedding(len(vocabulary), dimensions))
        made_here = saved.config.get("settings") is not None
        return cls(vocabulary, network.weight.detach().numpy(), saved.settings(cls.kind) if made_here else None)

    def config(self) -> dict[str, Any]:
        sizes = {"vocab_size": len(self.vocabulary), "dimensions": self.matrix.shape[1]}
        return sizes | {"settings": self._settings_values()}

    def save_others(self, folder: Path) -> None:
        """The vectors in word2vec's format."""
        self.write_word2vec(folder / VECTORS)

    def geometry(self) -> str:
        return f"{len(self):,} words in {self.matrix.shape[1]} dimensions"

    def about(self, name: str) -> About:
        facts = []
        if self.settings is not None:
            model = self.settings.model
            facts = [
                f"- skip-gram: window {model.window}, {model.negatives} negatives, subsampling at {model.subsample:g}"
            ]
        example = ["```python", f'relmo.load("{name}").most_similar("water")', "```", "", ABOUT_VECTORS]
        return About(f"Vectors of {self.geometry()}, saved with relmo.", facts, example)

    @classmethod
    def read_word2vec(cls, path: str | Path) -> "WordVectors":
        """The vectors of a file in word2vec's text format, plain or packed: `count dimensions`, then a line a word; or
        in GloVe's, which has no first line."""
        words, rows = _read_rows(path)
        specials = [special for special in SPECIALS if special not in words]
        matrix = np.concatenate([np.zeros((len(specials), rows.shape[1]), dtype=np.float32), rows])
        return cls(Vocabulary([*specials, *words]), matrix)

    def write_word2vec(self, path: str | Path) -> None:
        """Word2vec's text format. Symbols without a vector, or with white space in them, are left out.

        Nine digits of each number, which give the same float32 back."""
        kept = [i for i in np.flatnonzero(self.has_vector) if not any(map(str.isspace, self.vocabulary.symbols[i]))]
        with atomic(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(f"{len(kept)} {self.matrix.shape[1]}\n")
            for i in kept:
                numbers = " ".join(f"{x:.9g}" for x in self.matrix[i].tolist())
                file.write(f"{self.vocabulary.symbols[i]} {numbers}\n")

    def __len__(self) -> int:
        """How many words have a vector."""
        return int(np.count_nonzero(self.has_vector))

    def __iter__(self) -> Iterator[str]:
        """The words that have a vector, the most frequent first."""
        return (self.vocabulary.symbols[i] for i in np.flatnonzero(self.has_vector))

    def __contains__(self, word: object) -> bool:
        i = self.vocabulary.index.get(self._fold(word)) if isinstance(word, str) else None
        return i is not None and bool(self.has_vector[i])

    def __getitem__(self, words: str | Sequence[str]) -> np.ndarray:
        """The vector (D,) of a word, or those (N, D) of several."""
        if isinstance(words, str):
            return self.matrix[self._id(words)]
        check_words(words, f"a key is a word or a list of words, not {typed(words)}")
        return self.matrix[[self._id(word) for word in words]]

    @cached_property
    def has_vector(self) -> np.ndarray:
        """Which rows are not all zeros; (V,)."""
        return np.any(self.matrix != 0, axis=1)

    @cached_property
    def unit(self) -> np.ndarray:
        """The vectors with length 1, so that products are cosines; (V, D)."""
        lengths = np.linalg.norm(self.matrix, axis=1, keepdims=True)
        return self.matrix / np.where(lengths > 0, lengths, 1)

    def similarity(self, first: str, second: str) -> float:
        """The cosine between two words."""
        return float(self.unit[self._id(first)] @ self.unit[self._id(second)])

    def most_similar(
        self, positive: WordsOrVectors = (), negative: WordsOrVectors = (), topn: int = 10
    ) -> list[tuple[str, float]]:
        """The words with the largest cosine to the sum of what is positive less what is negative, best first, with
        their cosines. Each is a word, a vector (D,), or a list of such; vectors count with length 1. The words that are
        given are left out.

        So `most_similar(positive=[b, c], negative=[a])` completes "a is to b as c is to …": Mikolov, Yih & Zweig 2013,
        Linguistic regularities in continuous space word representations."""
        check_whole("topn", topn, least=0)
        signed = [(1, each) for each in _listed(positive)] + [(-1, each) for each in _listed(negative)]
        if not signed:
            raise SettingError('most_similar needs a word: most_similar("king"), say')
        ids = [self._id(each) for _, each in signed if isinstance(each, str)]
        total = sum(sign * self._unit_vector(each) for sign, each in signed)
        return self._nearest(np.asarray(total), topn, without=ids)

    def _unit_vector(self, given: str | np.ndarray) -> np.ndarray:
        """A word's vector or a caller's, with length 1; (D,)."""
        if isinstance(given, str):
            return self.unit[self._id(given)]
        vector = _as_vector(given)
        if vector.shape != self.matrix.shape[1:]:
            raise ModelError(f"a vector of shape {self.matrix.shape[1:]} was expected, not {vector.shape}")
        return vector / max(float(np.linalg.norm(vector)), 1e-30)

    def _nearest(self, vector: np.ndarray, n: int, without: list[int]) -> list[tuple[str, float]]:
        cosines = self.unit @ (vector / max(float(np.linalg.norm(vector)), 1e-30))  # (V,)
        banned = ~self.has_vector
        banned[without] = True
        cosines[banned] = -np.inf
        n = max(0, min(n, int(np.count_nonzero(~banned))))
        best = np.argsort(-cosines, kind="stable")[:n]
        return [(self.vocabulary.symbols[i], float(cosines[i])) for i in best]

    def _fold(self, word: str) -> str:
        return word.lower() if self.settings is not None and self.settings.text.lowercase else word

    def _id(self, word: str) -> int:
        if check_text(word, "a word") not in self:
            others = [other for other in (word.lower(), word.capitalize(), word.upper()) if other in self]
            why = f"{shown(others[0])} has one" if others else "it was too rare in the training text, or not in it"
            raise UnknownWordError(f"{shown(word)} has no vector; {why}")
        return self.vocabulary.index[self._fold(word)]


def _listed(given: WordsOrVectors) -> list[str | np.ndarray]:
    """Words and vectors as a list; one alone is a list of one."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, np.ndarray):
        return [given] if given.ndim == 1 else list(given)
    if not isinstance(given, Iterable):
        raise SettingError(f"expected words or vectors, not {typed(given)}")
    items: list[Any] = list(given)
    numbers = all(isinstance(item, int | float | np.number) for item in items)
    return [np.array(items)] if items and numbers else items


def _as_vector(given: Any) -> np.ndarray:
    """A user's vector as an array; an error where it is not made of numbers."""
    with suppress(ValueError, TypeError):
        vector = np.asarray(given)
        if vector.dtype.kind in "fiu":
            return vector
    raise SettingError(f"expected a word or a vector of numbers, not {typed(given)}")


def _read_rows(path: str | Path) -> tuple[dict[str, int], np.ndarray]:
    """Words, each with its line, and their vectors (N, D). Memory grows with what is read, not with what line 1
    says."""
    lines = enumerate((line.text for line in read_lines(path)), start=1)
    first = next(lines, (1, ""))
    count, dimensions = _read_header(path, first[1])
    found: dict[str, int] = {}
    rows: list[np.ndarray] = []
    for number, line in lines if count is not None else chain([first], lines):
        fields = line.rstrip(" ").split(" ")
        if count is None:  # some of GloVe's words have spaces in them
            fields = [" ".join(fields[:-dimensions]), *fields[-dimensions:]]
        word, *numbers = fields
        if word in found:
            raise VocabularyError(f"{path}:{number}: {shown(word)} is on line {found[word]} already; remove one")
        if not word or len(numbers) != dimensions:
            raise VocabularyError(
                f"{path}:{number}: expected a word and {dimensions} numbers with single spaces between them, "
                f"found {len(numbers)} after the first"
            )
        found[word] = number
        rows.append(_parse_row(numbers, f"{path}:{number}"))
    if count is not None and len(rows) != count:
        raise VocabularyError(f"{path}:1: says {count} words, the file has {len(rows)}; it may have been cut short")
    return found, np.stack(rows)


def _read_header(path: str | Path, line: str) -> tuple[int | None, int]:
    """The first line: how many words (None in GloVe's files, which do not say) and how many dimensions."""
    fields = line.split()
    if 2 < len(fields) <= LARGEST + 1:
        return None, len(fields) - 1
    if len(fields) != 2 or not all(f.isascii() and f.isdigit() and len(f) < 16 for f in fields):
        raise VocabularyError(
            f"{path}:1: expected 'count dimensions' or a word and its vector, found {shown(line)}; give word2vec's or "
            "GloVe's text format"
        )
    count, dimensions = map(int, fields)
    if count < 1 or not 1 <= dimensions <= LARGEST:
        raise VocabularyError(
            f"{path}:1: {count} words of {dimensions} dimensions; expected at least 1 and 1 to {LARGEST}"
        )
    return count, dimensions


def _parse_row(numbers: Iterable[str], place: str) -> np.ndarray:
    """The numbers of a line; (D,)."""
    try:
        row = np.array([float(number) for number in numbers])
    except ValueError as error:
        raise VocabularyError(
            f"{place}: expected a word and its numbers ({error}); give word2vec's or GloVe's text format"
        ) from error
    if not (np.abs(row) <= np.finfo(np.float32).max).all():
        raise VocabularyError(f"{place}: a number is not finite, or too large for a float32")
    return row.astype(np.float32)

"""Word vectors: a vocabulary and a matrix with a row for each of its symbols.

Names and results are those of gensim's KeyedVectors. A row of zeros means that the symbol has no vector: <unk>, </s>,
line ends and words that were never seen."""

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
from relmo.errors import ModelError, SettingError, UnknownWordError, VocabularyError, quote
from relmo.models.saved import ABOUT_VECTORS, VECTORS, CardText, SavedFolder, SavedModel
from relmo.settings.fields import check_integer, check_text, check_words, describe_value
from relmo.settings.lm import SkipgramSettings
from relmo.text.corpus import read_lines
from relmo.text.vocabulary import SPECIALS, Vocabulary

WordsOrVectors: TypeAlias = str | np.ndarray | Iterable[str | np.ndarray]
MAX_DIMENSIONS = 1 << 16  # of a file from elsewhere


class WordVectors(SavedModel):
    """Words and their vectors; `settings` are those of their training by relmo, if any.

    vectors["water"], "water" in vectors, len(vectors)
    vectors.most_similar(positive=["king", "woman"], negative=["man"])    # man is to king as woman is to whom?
    """

    kind = "skipgram"
    settings: SkipgramSettings | None
    vocabulary: Vocabulary

    def __init__(self, vocabulary: Vocabulary, matrix: np.ndarray, settings: SkipgramSettings | None = None):
        if matrix.ndim != 2 or len(matrix) != len(vocabulary):
            raise ModelError(f"expected {len(vocabulary)} vectors, one per word; the matrix is {matrix.shape}")
        self.vocabulary = vocabulary
        self.matrix = matrix.astype(np.float32, copy=False)  # (V, D)
        self.settings = settings

    @property
    def network(self) -> nn.Embedding:  # type: ignore[override]
        """Embedding layer with the vectors."""
        return nn.Embedding.from_pretrained(torch.from_numpy(self.matrix))

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> "WordVectors":
        vocabulary, dimensions = saved.vocabulary(Vocabulary), saved.config.get("dimensions")
        if type(dimensions) is not int or not 1 <= dimensions <= MAX_DIMENSIONS:
            raise saved.config_error(f"dimensions is {quote(dimensions)}")
        network = saved.network(lambda: nn.Embedding(len(vocabulary), dimensions))
        settings = None if saved.config.get("settings") is None else saved.settings(cls.kind)
        return cls(vocabulary, network.weight.detach().numpy(), settings)

    def config(self) -> dict[str, Any]:
        return {"vocab_size": len(self.vocabulary), "dimensions": self.matrix.shape[1]} | super().config()

    def save_extra_files(self, folder: Path) -> None:
        """Write the vectors in word2vec's text format."""
        self.write_word2vec(folder / VECTORS)

    def geometry(self) -> str:
        return f"{len(self):,} words in {self.matrix.shape[1]} dimensions"

    def card_text(self, name: str) -> CardText:
        facts = []
        if self.settings is not None:
            model = self.settings.model
            options = f"window {model.window}, {model.negatives} negatives, subsampling at {model.subsample:g}"
            facts = [f"- skip-gram: {options}"]
        example = ["```python", f'relmo.load("{name}").most_similar("water")', "```", "", ABOUT_VECTORS]
        return CardText(f"Vectors of {self.geometry()}, saved with relmo.", facts, example)

    @classmethod
    def read_word2vec(cls, path: str | Path) -> "WordVectors":
        """Read a file in word2vec's text format (`count dimensions`, then one line per word) or in GloVe's, without a
        header; both plain or compressed."""
        lines = enumerate((line.text for line in read_lines(path)), start=1)
        first = next(lines, (1, ""))
        fields = first[1].split()
        count, dimensions = None, len(fields) - 1  # GloVe's files have no header
        if not 2 < len(fields) <= MAX_DIMENSIONS + 1:
            if len(fields) != 2 or not all(f.isascii() and f.isdigit() and len(f) < 16 for f in fields):
                raise VocabularyError(
                    f"{path}:1: expected 'count dimensions' or a word and its vector, not {quote(first[1])}; give "
                    "word2vec's or GloVe's text format"
                )
            count, dimensions = map(int, fields)
            if count < 1 or not 1 <= dimensions <= MAX_DIMENSIONS:
                raise VocabularyError(
                    f"{path}:1: {count} words of {dimensions} dimensions; expected at least 1 and 1 to {MAX_DIMENSIONS}"
                )
        line_by_word: dict[str, int] = {}
        rows: list[np.ndarray] = []  # memory grows with the lines that are read, not with the count in the header
        for line_number, line in lines if count is not None else chain([first], lines):
            where = f"{path}:{line_number}"
            fields = line.rstrip(" ").split(" ")
            if count is None:  # some words of GloVe contain spaces
                fields = [" ".join(fields[:-dimensions]), *fields[-dimensions:]]
            word, *numbers = fields
            if word in line_by_word:
                raise VocabularyError(f"{where}: {quote(word)} is already on line {line_by_word[word]}; remove one")
            if not word or len(numbers) != dimensions:
                raise VocabularyError(
                    f"{where}: expected a word and {dimensions} numbers with single spaces between them, found "
                    f"{len(numbers)} numbers"
                )
            try:
                row = np.array([float(number) for number in numbers])
            except ValueError as error:
                raise VocabularyError(
                    f"{where}: expected a word and its numbers ({error}); give word2vec's or GloVe's text format"
                ) from error
            if not (np.abs(row) <= np.finfo(np.float32).max).all():
                raise VocabularyError(f"{where}: a number is not finite, or too large for a float32")
            line_by_word[word] = line_number
            rows.append(row.astype(np.float32))
        if count is not None and len(rows) != count:
            raise VocabularyError(f"{path}:1: says {count} words, the file has {len(rows)}; it may be truncated")
        specials = [special for special in SPECIALS if special not in line_by_word]
        matrix = np.concatenate([np.zeros((len(specials), dimensions), dtype=np.float32), np.stack(rows)])
        return cls(Vocabulary([*specials, *line_by_word]), matrix)

    def write_word2vec(self, path: str | Path) -> None:
        """Write word2vec's text format, without symbols that have no vector or contain whitespace.

        Numbers have nine digits, which reproduce the float32 exactly."""
        rows = [i for i in np.flatnonzero(self.has_vector) if not any(map(str.isspace, self.vocabulary.symbols[i]))]
        with atomic(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(f"{len(rows)} {self.matrix.shape[1]}\n")
            for i in rows:
                numbers = " ".join(f"{x:.9g}" for x in self.matrix[i].tolist())
                file.write(f"{self.vocabulary.symbols[i]} {numbers}\n")

    def __len__(self) -> int:
        """Return the number of words with a vector."""
        return int(np.count_nonzero(self.has_vector))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the words with a vector, most frequent first."""
        return (self.vocabulary.symbols[i] for i in np.flatnonzero(self.has_vector))

    def __contains__(self, word: object) -> bool:
        i = self.vocabulary.index.get(self._fold(word)) if isinstance(word, str) else None
        return i is not None and bool(self.has_vector[i])

    def __getitem__(self, words: str | Sequence[str]) -> np.ndarray:
        """Return the vector (D,) of a word, or the vectors (N, D) of several."""
        if isinstance(words, str):
            return self.matrix[self._id(words)]
        check_words(words, f"a key is a word or a list of words, not {describe_value(words)}")
        return self.matrix[[self._id(word) for word in words]]

    @cached_property
    def has_vector(self) -> np.ndarray:
        """Mask (V,) of rows that are not all zeros."""
        return np.any(self.matrix != 0, axis=1)

    @cached_property
    def unit(self) -> np.ndarray:
        """Vectors (V, D) scaled to length 1, so that products are cosines."""
        lengths = np.linalg.norm(self.matrix, axis=1, keepdims=True)
        return self.matrix / np.where(lengths > 0, lengths, 1)

    def similarity(self, first: str, second: str) -> float:
        """Return the cosine similarity of two words."""
        return float(self.unit[self._id(first)] @ self.unit[self._id(second)])

    def most_similar(
        self, positive: WordsOrVectors = (), negative: WordsOrVectors = (), topn: int = 10
    ) -> list[tuple[str, float]]:
        """Return the words with the largest cosine to the sum of `positive` minus `negative`, with their cosines.

        Both are a word, a vector (D,), or a list of these; vectors are scaled to length 1. Given words are left out.

        `most_similar(positive=[b, c], negative=[a])` completes "a is to b as c is to …": Mikolov, Yih & Zweig 2013,
        Linguistic regularities in continuous space word representations."""
        check_integer("topn", topn, least=0)
        signed: list[tuple[int, Any]] = []
        for sign, keys in ((1, positive), (-1, negative)):
            is_vector = isinstance(keys, np.ndarray) and keys.ndim == 1
            if not isinstance(keys, Iterable):
                raise SettingError(f"expected words or vectors, not {describe_value(keys)}")
            entries: list[Any] = [keys] if isinstance(keys, str) or is_vector else list(keys)
            if entries and all(isinstance(entry, int | float | np.number) for entry in entries):
                entries = [np.array(entries)]  # a list of numbers is a vector
            signed += [(sign, entry) for entry in entries]
        if not signed:
            raise SettingError('most_similar needs a word, such as most_similar("king")')
        total: np.ndarray = np.zeros(self.matrix.shape[1:], dtype=np.float32)
        banned = ~self.has_vector
        for sign, key in signed:
            if isinstance(key, str):
                banned[self._id(key)] = True
                total = total + sign * self.unit[self._id(key)]
                continue
            vector = np.empty(0, dtype=object)
            with suppress(ValueError, TypeError):
                vector = np.asarray(key)
            if vector.dtype.kind not in "fiu":
                raise SettingError(f"expected a word or a vector of numbers, not {describe_value(key)}")
            if vector.shape != self.matrix.shape[1:]:
                raise ModelError(f"expected a vector of shape {self.matrix.shape[1:]}, not {vector.shape}")
            total = total + sign * (vector / max(float(np.linalg.norm(vector)), 1e-30))
        cosines = self.unit @ (total / max(float(np.linalg.norm(total)), 1e-30))  # (V,)
        cosines[banned] = -np.inf
        best = np.argsort(-cosines, kind="stable")[: min(topn, int(np.count_nonzero(~banned)))]
        return [(self.vocabulary.symbols[i], float(cosines[i])) for i in best]

    def _fold(self, word: str) -> str:
        return word.lower() if self.settings is not None and self.settings.text.lowercase else word

    def _id(self, word: str) -> int:
        if check_text(word, "a word") not in self:
            variants = [variant for variant in (word.lower(), word.capitalize(), word.upper()) if variant in self]
            hint = f"{quote(variants[0])} has one" if variants else "it was rare or missing in the training text"
            raise UnknownWordError(f"{quote(word)} has no vector; {hint}")
        return self.vocabulary.index[self._fold(word)]

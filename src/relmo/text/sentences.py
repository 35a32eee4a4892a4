"""A corpus of sentences as one array of word numbers on disk.

A bidirectional model reads a word by its characters, whether it is in the vocabulary or not. So every distinct word has
a number: its index in the lexicon, which is the vocabulary followed by all other words. A BOUNDARY is before, between
and after the sentences:

    BOUNDARY w w w BOUNDARY w w BOUNDARY

The text is read once; memory holds the distinct words, never the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relmo.errors import CorpusError
from relmo.settings.bilm import BiLMTextSettings
from relmo.text.corpus import is_conllu, read_conllu, read_lines
from relmo.text.encode import CHUNK, TOKENIZERS, check_numbers, chunks, count, map_numbers, write_numbers
from relmo.text.sources import refuse_table
from relmo.text.vocabulary import SentenceVocabulary

BOUNDARY = -1


@dataclass
class Sentences:
    """Sentences as numbers in a lexicon, and the number of words that are not in the vocabulary."""

    words: np.ndarray
    unknown: int

    @property
    def predictions(self) -> int:
        """Number of predictions of each direction: every word, and the end of each sentence."""
        return len(self.words) - 1


@dataclass
class SentenceCorpus:
    """Parts of a corpus, and the lexicon of all their words, which begins with the vocabulary."""

    lexicon: list[str]
    vocabulary: SentenceVocabulary
    train: Sentences
    valid: Sentences | None


def encode_sentence_corpus(
    files: Sequence[str],
    settings: BiLMTextSettings,
    folder: Path,
    vocabulary: SentenceVocabulary | None = None,
) -> SentenceCorpus:
    """Encode files into `folder`. Without a validation file the last sentences are held out. The vocabulary is the
    given one, or that of the settings' file, or is built from the training part."""
    if vocabulary is None and settings.vocabulary:
        vocabulary = SentenceVocabulary.load(Path(settings.vocabulary))
    index = {"": 0}  # words by their order of appearance; the empty word is the boundary
    main = write_numbers(_number_sentences(files, settings, index), folder / "corpus.numbers")
    parts = {"train": main}
    if settings.valid:
        pieces = _number_sentences([settings.valid], settings, index)
        parts["valid"] = write_numbers(pieces, folder / "valid.numbers")
    elif cut := _find_held_out(main, settings.valid_fraction):
        parts = {"train": main[: cut + 1], "valid": main[cut:]}
    words = list(index)
    if vocabulary is None:
        counts = count(parts["train"], len(words))
        counts[0] = 0
        vocabulary = SentenceVocabulary.from_counts(
            words, counts, min_count=settings.min_count, size=settings.vocabulary_size
        )
    lexicon, table = _make_lexicon(words, vocabulary)
    encoded = {name: _renumber_sentences(part, table, vocabulary, folder / name) for name, part in parts.items()}
    for scratch in folder.glob("*.numbers"):
        scratch.unlink()
    return SentenceCorpus(lexicon, vocabulary, encoded["train"], encoded.get("valid"))


@dataclass
class SentenceFile:
    """Sentences of a file in an existing vocabulary."""

    lexicon: list[str]
    sentences: Sentences


def encode_sentence_file(
    file: str, settings: BiLMTextSettings, vocabulary: SentenceVocabulary, folder: Path
) -> SentenceFile:
    """Encode one file into `folder`."""
    index = {"": 0}
    numbers = write_numbers(_number_sentences([file], settings, index), folder / "file.numbers")
    words = list(index)
    lexicon, table = _make_lexicon(words, vocabulary)
    sentences = _renumber_sentences(numbers, table, vocabulary, folder / "file")
    (folder / "file.numbers").unlink()
    return SentenceFile(lexicon, sentences)


def open_sentences(path: Path) -> np.ndarray:
    """Map the numbers in a file into memory."""
    return map_numbers(path, np.int32)


def check_sentences(path: Path, words: np.ndarray, lexicon_size: int) -> None:
    """Raise `CorpusError` if these numbers are not sentences of a lexicon."""
    check_numbers(path, words, BOUNDARY, lexicon_size - 1)
    if len(words) < 2 or words[0] != BOUNDARY or words[-1] != BOUNDARY:
        raise CorpusError(f"{path}: is damaged (it does not begin and end with a sentence boundary)")


def read_sentence_words(file: str, settings: BiLMTextSettings) -> Iterator[list[str]]:
    """Yield the words of each sentence that is not empty."""
    refuse_table(file)
    if is_conllu(file):
        for sentence in read_conllu(file, errors=settings.errors):
            yield [word.lower() for word in sentence] if settings.lowercase else sentence
        return
    tokenizer = TOKENIZERS[settings.tokenizer]
    for line in read_lines(file, errors=settings.errors):
        if words := tokenizer(line.text.lower() if settings.lowercase else line.text):
            yield words


def _number_sentences(files: Sequence[str], settings: BiLMTextSettings, index: dict[str, int]) -> Iterator[np.ndarray]:
    """Yield the words of all files as numbers in `index`, by order of appearance, in pieces; boundaries are 0."""

    def numbers(words: list[str]) -> np.ndarray:
        return np.fromiter((index.setdefault(w, len(index)) for w in words), dtype=np.int32, count=len(words))

    pending, empty = [""], True
    for file in files:
        for words in read_sentence_words(file, settings):
            pending += words
            pending.append("")
            empty = False
            if len(pending) > CHUNK:
                yield numbers(pending)
                pending = []
    yield numbers(pending)
    if empty:
        raise CorpusError(f"{', '.join(files)}: contains no sentence; give a file with text")


def _find_held_out(numbers: np.ndarray, fraction: float) -> int:
    """Return the start of the last `fraction` of the text, at a boundary; at least one sentence is held out. 0 if
    nothing is held out."""
    if not fraction:
        return 0
    cut = min(int(len(numbers) * (1 - fraction)), len(numbers) - 2)
    while numbers[cut] != 0:
        cut -= 1
    return cut


def _make_lexicon(words: list[str], vocabulary: SentenceVocabulary) -> tuple[list[str], np.ndarray]:
    """Return the lexicon of the words, and the table from order of appearance to the lexicon. `words` begins with the
    boundary."""
    lexicon = [*vocabulary.symbols, *(word for word in words[1:] if word not in vocabulary.index)]
    index = {word: i for i, word in enumerate(lexicon)}
    return lexicon, np.array([BOUNDARY, *(index[word] for word in words[1:])], dtype=np.int32)


def _renumber_sentences(
    numbers: np.ndarray, table: np.ndarray, vocabulary: SentenceVocabulary, path: Path
) -> Sentences:
    """Convert numbers in order of appearance to those of the lexicon, written to `path`.words."""
    path = path.with_suffix(".words")
    unknown = 0
    with path.open("wb") as file:
        for chunk in chunks(numbers):
            words = table[chunk]
            unknown += int(((words >= len(vocabulary)) | (words == vocabulary.unknown)).sum())
            file.write(words.tobytes())
    return Sentences(open_sentences(path), unknown)

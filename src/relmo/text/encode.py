"""A corpus of any size as one array of numbers on disk; memory holds the distinct symbols, never the text. It is read
once: symbols are numbered in order of appearance, and renumbered at the end by a vocabulary of the training part. A
stream is </s> text </s> text </s>; sentences are BOUNDARY w w w BOUNDARY w w BOUNDARY."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from relmo.errors import CorpusError
from relmo.settings.bilm import BiLMTextSettings
from relmo.settings.lm import TextSettings
from relmo.text.corpus import is_conllu, read_conllu, read_lines
from relmo.text.sources import refuse_table
from relmo.text.tokenize import join
from relmo.text.tokenize import words as split_words
from relmo.text.vocabulary import END, SentenceVocabulary, Vocabulary

CHUNK = 1 << 20  # symbols in memory at a time
BOUNDARY = -1
V = TypeVar("V", bound=Vocabulary)
TOKENIZERS: dict[str, Callable[[str], list[str]]] = {"words": split_words, "whitespace": str.split}


@dataclass
class Stream:
    """Text as ids, starting with </s>, or sentences as numbers in a lexicon, starting with BOUNDARY; its number of
    characters, and of symbols that are not in the vocabulary."""

    ids: np.ndarray
    characters: int
    unknown: int = 0

    @property
    def predictions(self) -> int:
        """Number of symbols to predict, ends included: all but the first."""
        return max(len(self.ids) - 1, 0)


@dataclass
class Corpus(Generic[V]):
    """Parts of a corpus, the vocabulary of its training part, and the lexicon of all symbols in its parts, which begins
    with the vocabulary."""

    vocabulary: V
    lexicon: list[str]
    train: Stream
    valid: Stream | None = None
    test: Stream | None = None


class Numbering:
    """Numbering of symbols in order of appearance; 0 is the end of a text. Characters have their code points."""

    def __init__(self, unit: str, end: str = END):
        self.chars = unit == "char"
        self.end = "\0" if self.chars else end  # text contains no NUL
        self.index: dict[str, int] = {end: 0}

    def write(
        self, groups: Iterable[list[str]], path: Path, progress: Callable[[int], object] | None = None
    ) -> np.ndarray:
        """Write the numbers of words, or of the characters of strings, after an end of text; map them into memory."""
        pending, num_pending, num_written, index = [self.end], 0, 0, self.index
        with path.open("wb") as file:
            for group in chain(groups, [None]):  # after the last group, the rest is written
                if group is not None:
                    pending += group
                    num_pending += sum(map(len, group)) if self.chars else len(group)
                    if num_pending <= CHUNK:
                        continue
                if self.chars:
                    numbers = np.frombuffer("".join(pending).encode("utf-32-le"), dtype=np.int32)
                else:
                    ids = (index.setdefault(symbol, len(index)) for symbol in pending)
                    numbers = np.fromiter(ids, dtype=np.int32, count=len(pending))
                file.write(numbers.tobytes())
                num_written += len(numbers)
                pending, num_pending = [], 0
                if progress is not None:
                    progress(num_written)
        return np.memmap(path, dtype=np.int32, mode="r")

    def encode(
        self, parts: dict[str, np.ndarray], symbols: list[str], vocabulary: Vocabulary, folder: Path
    ) -> dict[str, Stream]:
        """Write parts that are not empty as ids of the vocabulary, to NAME.ids."""
        parts = {name: numbers for name, numbers in parts.items() if len(numbers) > 1}
        is_unknown = np.array([symbol not in vocabulary.index for symbol in symbols])
        table = vocabulary.ids(symbols).astype(id_type(len(vocabulary)))
        return self.renumber(parts, symbols, table, is_unknown, folder)

    def renumber(
        self,
        parts: dict[str, np.ndarray],
        symbols: list[str],
        table: np.ndarray,
        is_unknown: np.ndarray,
        folder: Path,
    ) -> dict[str, Stream]:
        """Convert the numbers of symbols by a table to files NAME.ids; the first symbol is not counted."""
        widths = np.array([1 if self.chars or symbol == "\n" else len(symbol) + 1 for symbol in symbols])
        widths[0] = 0  # characters of each symbol, including the space after a word
        streams = {}
        for name, numbers in parts.items():
            path = folder / f"{name}.ids"
            with path.open("wb") as file:
                for chunk in chunks(numbers):
                    file.write(table[chunk].tobytes())
            counts = count(numbers[1:], len(table))
            ids = map_numbers(path, table.dtype.type)
            streams[name] = Stream(ids, int(counts @ widths), int(counts[is_unknown].sum()))
        for scratch in folder.glob("*.numbers"):
            scratch.unlink()
        return streams

    def symbols(self, parts: dict[str, np.ndarray]) -> list[str]:
        """Return the symbols of all numbers."""
        if not self.chars:
            return list(self.index)
        highest = max((int(chunk.max()) for numbers in parts.values() for chunk in chunks(numbers)), default=0)
        return [END, *map(chr, range(1, highest + 1))]


def encode_corpus(files: Sequence[str], settings: TextSettings, folder: Path) -> Corpus[Vocabulary]:
    """Encode files into `folder` and cut them into training, validation and test part, in the order of the text."""
    vocabulary = Vocabulary.load(Path(settings.vocabulary)) if settings.vocabulary else None
    numbering = Numbering(settings.unit)
    main = numbering.write(_read_symbols(files, settings, numbering.end), folder / "corpus.numbers")
    held_out = 0.0 if settings.valid else settings.valid_fraction
    train_end = int(len(main) * (1 - held_out - settings.test_fraction))
    valid_end = int(len(main) * (1 - settings.test_fraction))
    parts = {"train": main[:train_end], "valid": main[train_end - 1 : valid_end], "test": main[valid_end - 1 :]}
    if settings.valid:
        groups = _read_symbols([settings.valid], settings, numbering.end)
        parts["valid"] = numbering.write(groups, folder / "valid.numbers")
    symbols = numbering.symbols(parts)
    if vocabulary is None:
        counts = count(parts["train"], len(symbols))
        vocabulary = Vocabulary.from_counts(
            symbols, counts, min_count=settings.min_count, size=settings.vocabulary_size
        )
    streams = numbering.encode(parts, symbols, vocabulary, folder)
    if "train" not in streams:
        raise CorpusError(f"{', '.join(files)}: no text remains for training after the held-out parts; give more text")
    return Corpus(vocabulary, vocabulary.symbols, **streams)


def encode_file(
    file: str,
    settings: TextSettings,
    vocabulary: Vocabulary,
    folder: Path,
    progress: Callable[[int], object] | None = None,
) -> Stream:
    """Encode one file with an existing vocabulary into `folder`. `progress` receives the number of symbols read."""
    numbering = Numbering(settings.unit)
    groups = _read_symbols([file], settings, numbering.end)
    parts = {"file": numbering.write(groups, folder / "file.numbers", progress)}
    return numbering.encode(parts, numbering.symbols(parts), vocabulary, folder)["file"]


def encode_sentence_corpus(
    files: Sequence[str], settings: BiLMTextSettings, folder: Path, vocabulary: SentenceVocabulary | None = None
) -> Corpus[SentenceVocabulary]:
    """Encode files into `folder`. Without a validation file the last sentences are held out. The vocabulary is the
    given one, or that of the settings' file, or is built from the training part."""
    if vocabulary is None and settings.vocabulary:
        vocabulary = SentenceVocabulary.load(Path(settings.vocabulary))
    numbering = Numbering("word", end="")
    main = numbering.write(_read_sentences(files, settings), folder / "corpus.numbers")
    parts = {"train": main}
    if settings.valid:
        parts["valid"] = numbering.write(_read_sentences([settings.valid], settings), folder / "valid.numbers")
    elif settings.valid_fraction:  # the last part, from a boundary on, but never the only sentence
        cut = min(int(len(main) * (1 - settings.valid_fraction)), len(main) - 2)
        while main[cut] != 0:
            cut -= 1
        parts = {"train": main[: cut + 1], "valid": main[cut:]} if cut else parts
    if vocabulary is None:
        words = list(numbering.index)
        counts = count(parts["train"], len(words))
        counts[0] = 0
        vocabulary = SentenceVocabulary.from_counts(
            words, counts, min_count=settings.min_count, size=settings.vocabulary_size
        )
    lexicon, encoded = _encode_sentences(parts, numbering, vocabulary, folder)
    return Corpus(vocabulary, lexicon, **encoded)


def encode_sentence_file(
    file: str, settings: BiLMTextSettings, vocabulary: SentenceVocabulary, folder: Path
) -> tuple[list[str], Stream]:
    """Encode one file into `folder`; return its lexicon and sentences."""
    numbering = Numbering("word", end="")
    numbers = numbering.write(_read_sentences([file], settings), folder / "file.numbers")
    lexicon, encoded = _encode_sentences({"file": numbers}, numbering, vocabulary, folder)
    return lexicon, encoded["file"]


def encode_text(text: str, settings: TextSettings) -> list[str]:
    """Split a text into symbols as the settings say: characters, or words and line ends."""
    text = text.lower() if settings.lowercase else text
    if settings.unit == "char":
        return list(text)
    tokenizer = TOKENIZERS[settings.tokenizer]
    head, *lines = text.split("\n")
    return [*tokenizer(head), *(symbol for line in lines for symbol in ("\n", *tokenizer(line)))]


def join_symbols(symbols: Sequence[str], settings: TextSettings | BiLMTextSettings) -> str:
    """Join symbols to a text: the inverse of `encode_text`, words with the usual spacing."""
    if getattr(settings, "unit", "word") == "char":
        return "".join(symbols)
    join_words = join if settings.tokenizer == "words" else " ".join
    line_ends = [-1, *(i for i, symbol in enumerate(symbols) if symbol == "\n"), len(symbols)]
    return "\n".join(join_words(symbols[start + 1 : end]) for start, end in pairwise(line_ends))


def _read_symbols(files: Sequence[str], settings: TextSettings, end: str) -> Iterator[list[str]]:
    """Yield the symbols of files by lines or pieces of long lines; characters are joined, one string per line."""
    chars, empty = settings.unit == "char", True
    line_end = [end] if settings.text_per == "line" else ["\n"]
    for file in files:
        ended = True
        for symbols, ended in _read_groups(file, settings, chars=chars):
            empty = empty and symbols in ([], [""], [end])
            yield symbols
            if ended:
                yield line_end
        if settings.text_per == "file":
            yield [end]
        elif not ended:
            yield line_end
    if empty:
        raise CorpusError(f"{', '.join(files)}: the corpus is empty; give a file with text")


def read_sentence_words(file: str, settings: BiLMTextSettings) -> Iterator[list[str]]:
    """Return the words of each sentence that is not empty."""
    return (words for words, _ in _read_groups(file, settings) if words)


def _read_groups(
    file: str, settings: TextSettings | BiLMTextSettings, *, chars: bool = False
) -> Iterator[tuple[list[str], bool]]:
    """Return the words of each line or sentence, or the characters as one string, and whether a line end follows."""
    refuse_table(file)
    fold: Callable[[str], str] = str.lower if settings.lowercase else str
    if is_conllu(file):
        sentences = read_conllu(file, errors=settings.errors)
        return (([fold(" ".join(words))] if chars else [*map(fold, words)], True) for words in sentences)
    tokenizer = TOKENIZERS[settings.tokenizer]
    lines = ((fold(line.text), line.ended) for line in read_lines(file, errors=settings.errors))
    return (([text.replace("\0", "\ufffd")] if chars else tokenizer(text), ended) for text, ended in lines)


def _read_sentences(files: Sequence[str], settings: BiLMTextSettings) -> Iterator[list[str]]:
    """Yield the words of all sentences, each followed by the empty word, which is the boundary."""
    empty = True
    for file in files:
        for words in read_sentence_words(file, settings):
            yield [*words, ""]
            empty = False
    if empty:
        raise CorpusError(f"{', '.join(files)}: contains no sentence; give a file with text")


def _encode_sentences(
    parts: dict[str, np.ndarray], numbering: Numbering, vocabulary: SentenceVocabulary, folder: Path
) -> tuple[list[str], dict[str, Stream]]:
    """Write the parts as numbers of the lexicon, to NAME.ids. The first symbol is the boundary."""
    words = list(numbering.index)
    lexicon = [*vocabulary.symbols, *(word for word in words[1:] if word not in vocabulary.index)]
    index = {word: i for i, word in enumerate(lexicon)}
    table = np.array([BOUNDARY, *(index[word] for word in words[1:])], dtype=np.int32)
    is_unknown = (table >= len(vocabulary)) | (table == vocabulary.unknown)
    return lexicon, numbering.renumber(parts, words, table, is_unknown, folder)


def map_numbers(path: Path, dtype: type[np.generic]) -> np.ndarray:
    """Map the numbers in a file into memory."""
    size = path.stat().st_size
    if not size or size % np.dtype(dtype).itemsize:
        raise CorpusError(f"{path}: is damaged ({size:,} bytes are not a list of numbers)")
    return np.memmap(path, dtype=dtype, mode="r")


def check_numbers(path: Path, numbers: np.ndarray, least: int, most: int) -> None:
    """Raise `CorpusError` if a number is out of range, or if these are not sentences although BOUNDARY is in range."""
    if any(chunk.min() < least or chunk.max() > most for chunk in chunks(numbers)):
        raise CorpusError(f"{path}: is damaged (it has numbers outside {least} to {most:,})")
    if least == BOUNDARY and (len(numbers) < 2 or numbers[0] != BOUNDARY or numbers[-1] != BOUNDARY):
        raise CorpusError(f"{path}: is damaged (it does not begin and end with a sentence boundary)")


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Return the array in pieces that fit in memory."""
    return (array[start : start + CHUNK] for start in range(0, len(array), CHUNK))


def count(numbers: np.ndarray, size: int) -> np.ndarray:
    """Count the occurrences of each number from 0 to size - 1; (size,)."""
    total = np.zeros(size, dtype=np.int64)
    for chunk in chunks(numbers):
        total += np.bincount(chunk, minlength=size)
    return total


def id_type(vocabulary_size: int) -> type[np.generic]:
    """Return the smallest type that holds the ids."""
    return np.uint16 if vocabulary_size <= 1 << 16 else np.int32

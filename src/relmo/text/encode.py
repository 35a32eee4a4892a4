"""A corpus of any size as one array of ids on disk.

The text is read and tokenized once. Symbols are numbered in order of appearance, written to a scratch file, and
renumbered at the end. So the parts (training, validation, test) can be cut by symbol count, and the vocabulary is built
from the training part alone. Memory holds the distinct symbols, never the text.

A stream begins with </s>, the end of an imaginary preceding text, so that every symbol has a context:
    </s> first text </s> second text </s>
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relmo.errors import CorpusError
from relmo.settings.lm import TextSettings
from relmo.text.corpus import is_conllu, read_conllu, read_lines
from relmo.text.sources import refuse_table
from relmo.text.tokenize import words
from relmo.text.vocabulary import END, Vocabulary

CHUNK = 1 << 20  # symbols in memory at a time
TOKENIZERS: dict[str, Callable[[str], list[str]]] = {"words": words, "whitespace": str.split}


@dataclass
class Stream:
    """Text as ids, starting with </s>; its number of characters, and of symbols that are not in the vocabulary."""

    ids: np.ndarray
    characters: int
    unknown: int = 0

    @property
    def predictions(self) -> int:
        """Number of symbols to predict: all but the first."""
        return max(len(self.ids) - 1, 0)


@dataclass
class Corpus:
    """Parts of a corpus with the vocabulary of its training part."""

    vocabulary: Vocabulary
    train: Stream
    valid: Stream | None
    test: Stream | None


class Numbering:
    """Numbering of symbols in order of appearance; 0 is </s>. Characters have their code points."""

    def __init__(self, unit: str):
        self.chars = unit == "char"
        self.end = "\0" if self.chars else END  # text contains no NUL
        self.index: dict[str, int] = {END: 0}

    def ids(self, symbols: list[str]) -> np.ndarray:
        """Return the numbers of words, or of all characters of a list of strings."""
        if self.chars:
            return np.frombuffer("".join(symbols).encode("utf-32-le"), dtype=np.int32)
        index = self.index
        return np.fromiter((index.setdefault(s, len(index)) for s in symbols), dtype=np.int32, count=len(symbols))

    def symbols(self, highest: int) -> list[str]:
        """Return the symbols of the numbers from 0 to at least `highest`."""
        return [END, *map(chr, range(1, highest + 1))] if self.chars else list(self.index)

    def widths(self, symbols: list[str]) -> np.ndarray:
        """Return the number of characters of each symbol, including the space after a word."""
        if self.chars:
            widths = np.ones(len(symbols), dtype=np.int64)
        else:
            widths = np.array([1 if symbol == "\n" else len(symbol) + 1 for symbol in symbols], dtype=np.int64)
        widths[0] = 0
        return widths


def encode_corpus(files: Sequence[str], settings: TextSettings, folder: Path) -> Corpus:
    """Encode files into `folder` and cut them into training, validation and test part, in the order of the text."""
    vocabulary = Vocabulary.load(Path(settings.vocabulary)) if settings.vocabulary else None
    numbering = Numbering(settings.unit)
    main = write_numbers(_number_texts(files, settings, numbering), folder / "corpus.numbers")
    held_out = 0.0 if settings.valid else settings.valid_fraction
    train_end = int(len(main) * (1 - held_out - settings.test_fraction))
    valid_end = int(len(main) * (1 - settings.test_fraction))
    parts = {"train": main[:train_end], "valid": main[train_end - 1 : valid_end], "test": main[valid_end - 1 :]}
    if settings.valid:
        parts["valid"] = write_numbers(_number_texts([settings.valid], settings, numbering), folder / "valid.numbers")
    symbols = numbering.symbols(max(_highest(part) for part in parts.values()))
    if vocabulary is None:
        counts = count(parts["train"], len(symbols))
        vocabulary = Vocabulary.from_counts(
            symbols, counts, min_count=settings.min_count, size=settings.vocabulary_size
        )
    streams = {
        name: _renumber(part, numbering, symbols, vocabulary, folder / f"{name}.ids")
        for name, part in parts.items()
        if len(part) > 1
    }
    for scratch in folder.glob("*.numbers"):
        scratch.unlink()
    if "train" not in streams:
        raise CorpusError(f"{', '.join(files)}: no text remains for training after the held-out parts; give more text")
    return Corpus(vocabulary, streams["train"], streams.get("valid"), streams.get("test"))


def encode_file(
    file: str,
    settings: TextSettings,
    vocabulary: Vocabulary,
    folder: Path,
    progress: Callable[[int], object] | None = None,
) -> Stream:
    """Encode one file with an existing vocabulary into `folder`. `progress` receives the number of symbols read."""
    numbering = Numbering(settings.unit)

    def pieces() -> Iterator[np.ndarray]:
        num_read = 0
        for piece in _number_texts([file], settings, numbering):
            yield piece
            num_read += len(piece)
            if progress is not None:
                progress(num_read)

    numbers = write_numbers(pieces(), folder / "file.numbers")
    stream = _renumber(numbers, numbering, numbering.symbols(_highest(numbers)), vocabulary, folder / "file.ids")
    (folder / "file.numbers").unlink()
    return stream


def open_stream(path: Path, vocabulary_size: int) -> np.ndarray:
    """Map the ids in a file into memory."""
    return map_numbers(path, id_type(vocabulary_size))


def map_numbers(path: Path, dtype: type[np.generic]) -> np.ndarray:
    """Map the numbers in a file into memory."""
    size = path.stat().st_size
    if not size or size % np.dtype(dtype).itemsize:
        raise CorpusError(f"{path}: is damaged ({size:,} bytes are not a list of numbers)")
    return np.memmap(path, dtype=dtype, mode="r")


def check_numbers(path: Path, numbers: np.ndarray, least: int, most: int) -> None:
    """Raise `CorpusError` if a number is out of range."""
    if any(chunk.min() < least or chunk.max() > most for chunk in chunks(numbers)):
        raise CorpusError(f"{path}: is damaged (it has numbers outside {least} to {most:,})")


def encode_text(text: str, settings: TextSettings) -> list[str]:
    """Split a text into symbols as the settings say: characters, or words and line ends."""
    text = text.lower() if settings.lowercase else text
    if settings.unit == "char":
        return list(text)
    tokenizer = TOKENIZERS[settings.tokenizer]
    head, *lines = text.split("\n")
    return [*tokenizer(head), *(symbol for line in lines for symbol in ("\n", *tokenizer(line)))]


def _number_texts(files: Sequence[str], settings: TextSettings, numbering: Numbering) -> Iterator[np.ndarray]:
    """Yield the numbers of all symbols of all files in pieces, beginning with </s>."""
    pending, num_pending, empty = [numbering.end], 0, True
    for file in files:
        for symbols in _read_symbols(file, settings, numbering.end):
            pending.extend(symbols)
            num_pending += sum(map(len, symbols)) if numbering.chars else len(symbols)
            empty = empty and symbols in ([], [""], ["\n"], [numbering.end])
            if num_pending > CHUNK:
                yield numbering.ids(pending)
                pending, num_pending = [], 0
        if settings.text_per == "file":
            pending.append(numbering.end)
    yield numbering.ids(pending)
    if empty:
        raise CorpusError(f"{', '.join(files)}: the corpus is empty; give a file with text")


def _read_symbols(file: str, settings: TextSettings, end: str) -> Iterator[list[str]]:
    """Yield the symbols of a file by lines or pieces of long lines; characters are joined, one string per line."""
    refuse_table(file)
    chars = settings.unit == "char"
    line_end = [end] if settings.text_per == "line" else ["\n"]
    fold: Callable[[str], str] = str.lower if settings.lowercase else str
    if is_conllu(file):
        for sentence in read_conllu(file, errors=settings.errors):
            yield [fold(" ".join(sentence))] if chars else [fold(word) for word in sentence]
            yield line_end
        return
    tokenizer = TOKENIZERS[settings.tokenizer]
    ended = True
    for line in read_lines(file, errors=settings.errors):
        text = fold(line.text)
        yield [text.replace("\0", "\ufffd")] if chars else tokenizer(text)
        ended = line.ended
        if ended:
            yield line_end
    if not ended and settings.text_per == "line":
        yield line_end


def write_numbers(pieces: Iterator[np.ndarray], path: Path) -> np.ndarray:
    """Write the pieces to a file and map it into memory."""
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece.tobytes())
    return np.memmap(path, dtype=np.int32, mode="r")


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Return the array in pieces that fit in memory."""
    return (array[start : start + CHUNK] for start in range(0, len(array), CHUNK))


def _highest(numbers: np.ndarray) -> int:
    return max((int(chunk.max()) for chunk in chunks(numbers)), default=0)


def count(numbers: np.ndarray, size: int) -> np.ndarray:
    """Count the occurrences of each number from 0 to size - 1; (size,)."""
    total = np.zeros(size, dtype=np.int64)
    for chunk in chunks(numbers):
        total += np.bincount(chunk, minlength=size)
    return total


def id_type(vocabulary_size: int) -> type[np.generic]:
    """Return the smallest type that holds the ids."""
    return np.uint16 if vocabulary_size <= 1 << 16 else np.int32


def _renumber(
    numbers: np.ndarray, numbering: Numbering, symbols: list[str], vocabulary: Vocabulary, path: Path
) -> Stream:
    """Convert numbers in order of appearance to ids of the vocabulary, written to `path`."""
    table = vocabulary.ids(symbols).astype(id_type(len(vocabulary)))
    with path.open("wb") as file:
        for chunk in chunks(numbers):
            file.write(table[chunk].tobytes())
    counts = count(numbers[1:], len(symbols))  # the first symbol is not predicted
    is_unknown = np.array([symbol not in vocabulary.index for symbol in symbols])
    return Stream(
        ids=open_stream(path, len(vocabulary)),
        characters=int(counts @ numbering.widths(symbols)),
        unknown=int(counts[is_unknown].sum()),
    )

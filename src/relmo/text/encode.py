"""A corpus of any size as one array of ids on disk.

The text is read and tokenised once. Symbols are numbered in the order in which they turn up, written to a scratch file,
and renumbered when the whole text is known. So the parts (training, validation, test) can be cut by symbol count, and
the vocabulary is made from the training part alone. Memory holds the distinct symbols, never the text.

A stream begins with </s>, the end of an imagined text before it, so that every symbol is predicted from something:
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

CHUNK = 1 << 20  # how many symbols are held in memory at a time
TOKENIZERS: dict[str, Callable[[str], list[str]]] = {"words": words, "whitespace": str.split}


@dataclass
class Stream:
    """A text as ids, </s> first; how many characters it has, and how many symbols that the vocabulary does not know."""

    ids: np.ndarray
    characters: int
    unknown: int = 0

    @property
    def predictions(self) -> int:
        """How many symbols there are to predict: all but the first."""
        return max(len(self.ids) - 1, 0)


@dataclass
class Corpus:
    """The parts of a corpus with the vocabulary of its training part."""

    vocabulary: Vocabulary
    train: Stream
    valid: Stream | None
    test: Stream | None


class Numbering:
    """Numbers symbols in the order they turn up; 0 is </s>. Characters go by code point, which needs no table."""

    def __init__(self, unit: str):
        self.chars = unit == "char"
        self.end = "\0" if self.chars else END  # NUL, which text does not hold, stands for </s> among characters
        self.index: dict[str, int] = {END: 0}

    def ids(self, symbols: list[str]) -> np.ndarray:
        """The numbers of words; or of all characters of a list of strings."""
        if self.chars:
            return np.frombuffer("".join(symbols).encode("utf-32-le"), dtype=np.int32)
        index = self.index
        return np.fromiter((index.setdefault(s, len(index)) for s in symbols), dtype=np.int32, count=len(symbols))

    def symbols(self, highest: int) -> list[str]:
        """The symbols of the numbers from 0 to at least `highest`."""
        return [END, *map(chr, range(1, highest + 1))] if self.chars else list(self.index)

    def widths(self, symbols: list[str]) -> np.ndarray:
        """How many characters of text each symbol stands for: itself and, after a word, a space."""
        if self.chars:
            widths = np.ones(len(symbols), dtype=np.int64)
        else:
            widths = np.array([1 if symbol == "\n" else len(symbol) + 1 for symbol in symbols], dtype=np.int64)
        widths[0] = 0
        return widths


def encode_corpus(files: Sequence[str], settings: TextSettings, folder: Path) -> Corpus:
    """Reads the files into `folder` and cuts them: training, validation and test part, in the order of the text."""
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
        raise CorpusError(f"{', '.join(files)}: nothing is left to train on after the held-out parts; give more text")
    return Corpus(vocabulary, streams["train"], streams.get("valid"), streams.get("test"))


def encode_file(
    file: str,
    settings: TextSettings,
    vocabulary: Vocabulary,
    folder: Path,
    progress: Callable[[int], object] | None = None,
) -> Stream:
    """One file in the ids of an existing vocabulary. `folder` takes the scratch file and the result. `progress` is told
    how many symbols were read."""
    numbering = Numbering(settings.unit)

    def pieces() -> Iterator[np.ndarray]:
        read = 0
        for piece in _number_texts([file], settings, numbering):
            yield piece
            read += len(piece)
            if progress is not None:
                progress(read)

    numbers = write_numbers(pieces(), folder / "file.numbers")
    stream = _renumber(numbers, numbering, numbering.symbols(_highest(numbers)), vocabulary, folder / "file.ids")
    (folder / "file.numbers").unlink()
    return stream


def open_stream(path: Path, vocabulary_size: int) -> np.ndarray:
    """The ids that were written to a file, mapped into memory as they are read."""
    return map_numbers(path, id_type(vocabulary_size))


def map_numbers(path: Path, dtype: type[np.generic]) -> np.ndarray:
    """The numbers of a file, mapped into memory as they are read."""
    size = path.stat().st_size
    if not size or size % np.dtype(dtype).itemsize:
        raise CorpusError(f"{path}: is damaged ({size:,} bytes are not a list of numbers)")
    return np.memmap(path, dtype=dtype, mode="r")


def check_numbers(path: Path, numbers: np.ndarray, least: int, most: int) -> None:
    """An error where a number is not between these two."""
    if any(chunk.min() < least or chunk.max() > most for chunk in chunks(numbers)):
        raise CorpusError(f"{path}: is damaged (it has numbers that are not from {least} to {most:,})")


def encode_text(text: str, settings: TextSettings) -> list[str]:
    """A piece of text as the symbols that the settings make of it: characters, or words and line ends."""
    text = text.lower() if settings.lowercase else text
    if settings.unit == "char":
        return list(text)
    tokenizer = TOKENIZERS[settings.tokenizer]
    first, *rest = text.split("\n")
    return [*tokenizer(first), *(symbol for line in rest for symbol in ("\n", *tokenizer(line)))]


def _number_texts(files: Sequence[str], settings: TextSettings, numbering: Numbering) -> Iterator[np.ndarray]:
    """The numbers of all symbols of all files, in pieces, beginning with </s>."""
    pending, held, empty = [numbering.end], 0, True
    for file in files:
        for symbols in _read_symbols(file, settings, numbering.end):
            pending.extend(symbols)
            held += sum(map(len, symbols)) if numbering.chars else len(symbols)
            empty = empty and symbols in ([], [""], ["\n"], [numbering.end])
            if held > CHUNK:
                yield numbering.ids(pending)
                pending, held = [], 0
        if settings.text_per == "file":
            pending.append(numbering.end)
    yield numbering.ids(pending)
    if empty:
        raise CorpusError(f"{', '.join(files)}: the corpus is empty; give a file with text in it")


def _read_symbols(file: str, settings: TextSettings, end: str) -> Iterator[list[str]]:
    """The symbols of a file, a line or a piece of one at a time; characters come joined, as one string a line."""
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
    """Writes the pieces one after the other and maps the file."""
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece.tobytes())
    return np.memmap(path, dtype=np.int32, mode="r")


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The array in pieces that fit in memory."""
    return (array[start : start + CHUNK] for start in range(0, len(array), CHUNK))


def _highest(numbers: np.ndarray) -> int:
    return max((int(chunk.max()) for chunk in chunks(numbers)), default=0)


def count(numbers: np.ndarray, size: int) -> np.ndarray:
    """How often each number from 0 to size - 1 occurs; (size,)."""
    total = np.zeros(size, dtype=np.int64)
    for chunk in chunks(numbers):
        total += np.bincount(chunk, minlength=size)
    return total


def id_type(vocabulary_size: int) -> type[np.generic]:
    """The smallest type that holds the ids."""
    return np.uint16 if vocabulary_size <= 1 << 16 else np.int32


def _renumber(
    numbers: np.ndarray, numbering: Numbering, symbols: list[str], vocabulary: Vocabulary, path: Path
) -> Stream:
    """From the order of appearance to the vocabulary's ids, written to `path`."""
    table = vocabulary.ids(symbols).astype(id_type(len(vocabulary)))
    with path.open("wb") as file:
        for chunk in chunks(numbers):
            file.write(table[chunk].tobytes())
    counts = count(numbers[1:], len(symbols))  # the first symbol is read, not predicted
    unseen = np.array([symbol not in vocabulary.index for symbol in symbols])
    return Stream(
        ids=open_stream(path, len(vocabulary)),
        characters=int(counts @ numbering.widths(symbols)),
        unknown=int(counts[unseen].sum()),
    )

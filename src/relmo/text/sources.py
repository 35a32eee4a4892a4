"""Texts to be embedded, scored or labelled: a sentence per line, CoNLL-U, a column of a table, prose (paragraphs, which
extend to the next empty line and are split into sentences), or FASTA (proteins, whose words are single letters)."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from relmo.disk.files import read_parquet_rows
from relmo.errors import CorpusError, quote
from relmo.text.corpus import Errors, has_suffix, is_conllu, read_conllu, read_lines
from relmo.text.readers.tables import TEXT, TableRow, is_table, table_rows
from relmo.text.tokenize import split_tokens, tokenize

Split = Literal["lines", "sentences"]

PARQUET = ".parquet"
is_fasta = partial(has_suffix, pattern=r"\.(fasta|faa)")
MAX_WRAPPED_LINE = 120  # characters of a line in a paragraph of several lines
MAX_PARAGRAPH = 1 << 20  # characters; a longer one is cut at a line end


class SourceText(NamedTuple):
    """Text on one line; its words, if it is tokenized; its line in the file, or the number of its sentence, from 1;
    whether a line end follows; and of a text from a table: its name, the number of its row from 1, the columns that
    are copied to outputs, and the offsets of its regions."""

    text: str
    words: list[str] | None = None
    line: int = 1
    ended: bool = True
    name: str | None = None
    row: int | None = None
    columns: Mapping[str, str] | None = None
    regions: Sequence[tuple[int, int]] = ()


class TableColumns(NamedTuple):
    """Columns of a table with the text and the names of rows, by default one of TEXT, and `id`; and with `name`, the
    other columns that are copied to outputs. Without it, all columns are copied."""

    text: str | None = None
    name: str | None = None
    extra_names: Sequence[str] = ()


def read_texts(
    path: str | Path,
    *,
    columns: TableColumns = TableColumns(),  # noqa: B008
    split: Split = "lines",
    errors: Errors = "strict",
) -> Iterator[SourceText]:
    """Yield the texts of a file. Standard input and files with other suffixes are tables if a column is given."""
    if (is_conllu(path) or is_fasta(path)) and (columns != TableColumns() or split != "lines"):
        kind = "FASTA has sequences" if is_fasta(path) else "CoNLL-U has sentences"
        raise CorpusError(f"{path}: {kind} and no columns; omit --column, --id and --split")
    if is_table(path) or str(path).lower().endswith(PARQUET) or columns != TableColumns():
        texts = _table_texts(path, columns, errors)
        return _split_sentences(texts) if split == "sentences" else texts
    if is_conllu(path):
        words = enumerate(read_conllu(path, errors=errors), start=1)
        return (SourceText(" ".join(sentence), sentence, number) for number, sentence in words)
    if is_fasta(path):
        return _fasta_texts(path, errors)
    lines = _line_texts(path, errors)
    return _split_sentences(_paragraphs(lines)) if split == "sentences" else lines


def refuse_table(path: str | Path) -> None:
    """Raise `CorpusError` if the file name is that of a table."""
    if is_table(path) or str(path).lower().endswith(PARQUET):
        advice = "write the column with the text to a .txt file, one sentence per line"
        raise CorpusError(f"{path}: is a table, but plain text is expected; {advice}")


def split_lines(text: str) -> Iterator[SourceText]:
    """Yield the lines of a string like those of a file."""
    *lines, last = text.split("\n")
    for number, line in enumerate(lines, start=1):
        yield SourceText(line, line=number)
    if last:
        yield SourceText(last, line=len(lines) + 1, ended=False)


def fold_case(text: str) -> tuple[str, np.ndarray]:
    """Return a text in lower case, and the offset in the text of each of its characters and of its end."""
    lowered = text.lower()
    if len(lowered) == len(text):  # a few letters have more than one character in lower case
        return lowered, np.arange(len(text) + 1)
    parts = [character.lower() for character in text]
    origins = np.repeat(np.arange(len(text)), [len(part) for part in parts])
    return "".join(parts), np.append(origins, len(text))


def find_words(text: str, words: Sequence[str], *, lowercase: bool) -> np.ndarray:
    """Return start and end of the words of a text, which are all of it except whitespace; (words, 2)."""
    folded, origins = fold_case(text) if lowercase else (text, np.arange(len(text) + 1))
    offsets = np.zeros((len(words), 2), dtype=np.int32)
    start = 0
    for number, word in enumerate(words):
        while start < len(folded) and folded[start].isspace():
            start += 1
        end = min(start + len(word), len(folded))
        offsets[number] = origins[start], origins[max(end - 1, start)] + 1 if end > start else origins[start]
        start = end
    return offsets


def _line_texts(path: str | Path, errors: Errors) -> Iterator[SourceText]:
    pieces: list[str] = []
    number = 1
    for line in read_lines(path, errors=errors):
        pieces.append(line.text)
        if line.ended:
            yield SourceText("".join(pieces), line=number)
            pieces = []
            number += 1
    if pieces:
        yield SourceText("".join(pieces), line=number, ended=False)


def _fasta_texts(path: str | Path, errors: Errors) -> Iterator[SourceText]:
    """Yield each sequence in upper case, with the first word of its header as its name; a final * is left out."""
    name, start, parts = None, 1, list[str]()

    def make_text() -> SourceText:
        letters = list("".join(parts).upper().removesuffix("*"))
        return SourceText(" ".join(letters), letters, start, name=name, columns={"id": name or ""})

    for number, line in enumerate(read_lines(path, errors=errors), start=1):
        if line.text.startswith(">"):
            if name is not None:
                yield make_text()
            name, start, parts = next(iter(line.text[1:].split()), ""), number, []
        elif name is not None:
            parts += line.text.split()
        elif line.text.strip():
            raise CorpusError(f"{path}:{number}: a FASTA file starts with a header, which begins with >")
    if name is not None:
        yield make_text()


def _table_texts(path: str | Path, columns: TableColumns, errors: Errors) -> Iterator[SourceText]:
    """Yield one column of a table, by default the only one or one of TEXT; line ends in a field become spaces."""
    rows = table_rows(path, errors, fewest=1)
    if str(path).lower().endswith(PARQUET):
        records = enumerate(read_parquet_rows(Path(path)), start=1)
        rows = (
            TableRow({key: "" if value is None else str(value) for key, value in record.items()}, f"{path}:{number}")
            for number, record in records
        )
    text = name = None
    for number, row in enumerate(rows, start=1):
        if text is None:
            place = row.header or row.place
            ids = [] if columns.name is None else [columns.name, *columns.extra_names]
            for column, flag in ((columns.text, "--column"), *((key, "--id") for key in ids)):
                if column is not None and column not in row.values:
                    problem = f"there is no column {quote(column)} ({flag})"
                    raise CorpusError(f"{place}: {problem}; the columns are {row.list_names()}")
            texts = list(row.values) if len(row.values) == 1 else [key for key in row.values if key.lower() in TEXT]
            text = next(iter(texts), None) if columns.text is None else columns.text
            keys = (key for key in row.values if key.lower() == "id")
            name = next(keys, None) if columns.name is None else columns.name
            if text is None:
                advice = "name the one with the text with --column NAME"
                raise CorpusError(f"{place}: the columns of this table are {row.list_names()}; {advice}")
        line = int(row.place.rsplit(":", 1)[1])
        value = row.values[text].replace("\r", " ").replace("\n", " ")
        copied = {key: row.values[key] for key in ids or row.values}
        label = None if name is None else row.values[name].strip()
        yield SourceText(value, line=line, name=label, row=number, columns=copied)


def _paragraphs(lines: Iterator[SourceText]) -> Iterator[SourceText]:
    """Yield paragraphs, lines up to the next empty one, with their line ends."""
    pending: list[SourceText] = []
    size = 0
    for line in chain(lines, [SourceText("")]):
        is_long = len(line.text) > MAX_WRAPPED_LINE
        if pending and (is_long or not line.text.strip() or size > MAX_PARAGRAPH):
            yield SourceText("\n".join(part.text for part in pending), line=pending[0].line)
            pending, size = [], 0
        if is_long:
            yield line
        elif line.text.strip():
            pending.append(line)
            size += len(line.text)


def _split_sentences(paragraphs: Iterator[SourceText]) -> Iterator[SourceText]:
    """Yield the sentences of paragraphs, each on one line."""
    for paragraph in paragraphs:
        text = paragraph.text
        for tokens in split_tokens(text, tokenize(text)):
            if tokens:
                start, end = tokens[0].start, tokens[-1].end
                line = paragraph.line + text.count("\n", 0, start)
                yield paragraph._replace(text=text[start:end].replace("\n", " "), line=line, ended=True)

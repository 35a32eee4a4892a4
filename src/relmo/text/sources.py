"""Texts as users have them, to be embedded, scored or labelled: a sentence a line; CoNLL-U; a column of a table; prose.

- Plain text is a sentence a line. `split="sentences"` is for prose: a paragraph goes on to the next empty line, and is
  split where its sentences end. Files that are wrapped have lines of 80 characters or so. A longer line, above WRAPPED,
  is a paragraph by itself.
- A .csv, .tsv or .parquet is a table and never read as plain text: one of its columns has the text, another may name
  the row.
- Words of CoNLL-U are kept as they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from relmo.disk.parquet import read_rows
from relmo.errors import CorpusError, shown
from relmo.text.corpus import Errors, is_conllu, read_conllu, read_lines
from relmo.text.readers.tables import TEXT, TableRow, is_table, table_rows
from relmo.text.sentence_ends import split_tokens
from relmo.text.tokenize import Token, tokenize

Split = Literal["lines", "sentences"]

WRAPPED = 120  # characters of the longest line of a paragraph that goes on in the next line
LONGEST_PARAGRAPH = 1 << 20  # characters; a longer one is cut at a line's end


class SourceText(NamedTuple):
    """A text, in one line.

    words    where it is split into words already, these
    line     the line of the file on which it begins, from 1; of CoNLL-U, the number of the sentence
    ended    whether a line end follows; it does not at the end of some files
    name     what the table's column of names says
    """

    text: str
    words: list[str] | None = None
    line: int = 1
    ended: bool = True
    name: str | None = None


class TableColumns(NamedTuple):
    """Which column of a table has the text and which the names of rows; where not given, TEXT and `id` are looked
    for."""

    text: str | None = None
    name: str | None = None


def read_texts(
    path: str | Path,
    *,
    columns: TableColumns = TableColumns(),  # noqa: B008
    split: Split = "lines",
    errors: Errors = "strict",
) -> Iterator[SourceText]:
    """The texts of a file. Standard input, and a file of any other name, is a table where a column is asked for."""
    if is_conllu(path) and (columns != TableColumns() or split != "lines"):
        raise CorpusError(f"{path}: has sentences and no columns to choose from; leave out --column, --id and --split")
    if is_table(path) or is_parquet(path) or columns != TableColumns():
        texts = _table_texts(path, columns, errors)
        return _sentences_of(texts) if split == "sentences" else texts
    if is_conllu(path):
        words = enumerate(read_conllu(path, errors=errors), start=1)
        return (SourceText(" ".join(sentence), sentence, number) for number, sentence in words)
    lines = _line_texts(path, errors)
    return _sentences_of(_paragraphs(lines)) if split == "sentences" else lines


def refuse_table(path: str | Path) -> None:
    """An error where the name says a table, for whoever reads nothing but plain text."""
    if is_table(path) or is_parquet(path):
        raise CorpusError(
            f"{path}: is a table, and plain text is needed; write the column with the text to a file of its own "
            "(.txt), a sentence a line"
        )


def is_parquet(path: str | Path) -> bool:
    """Whether the name says a table in Parquet."""
    return str(path).lower().endswith(".parquet")


def lines_of(text: str) -> Iterator[SourceText]:
    """The lines of a string, as those of a file that holds it."""
    *ended, last = text.split("\n")
    for number, line in enumerate(ended, start=1):
        yield SourceText(line, line=number)
    if last:
        yield SourceText(last, line=len(ended) + 1, ended=False)


def words_in(words: Sequence[str]) -> list[Token]:
    """Words with where they stand when there is one space between them."""
    found, start = [], 0
    for word in words:
        found.append(Token(word, start, start + len(word)))
        start += len(word) + 1
    return found


def folded(text: str) -> tuple[str, np.ndarray]:
    """A text in lower case; and for each character of that, and for its end, which character of the text it is from. A
    few letters have more than one character in lower case."""
    low = text.lower()
    if len(low) == len(text):
        return low, np.arange(len(text) + 1)
    parts = [character.lower() for character in text]
    origins = np.repeat(np.arange(len(text)), [len(part) for part in parts])
    return "".join(parts), np.append(origins, len(text))


def find_words(text: str, words: Sequence[str], *, lowercase: bool) -> np.ndarray:
    """Where the words of a text stand in it, which are all of it but its white space: (words, 2), the first character
    and the one behind the last."""
    low, origins = folded(text) if lowercase else (text, np.arange(len(text) + 1))
    found = np.zeros((len(words), 2), dtype=np.int32)
    place = 0
    for number, word in enumerate(words):
        while place < len(low) and low[place].isspace():
            place += 1
        end = min(place + len(word), len(low))
        found[number] = origins[place], origins[max(end - 1, place)] + 1 if end > place else origins[place]
        place = end
    return found


def _line_texts(path: str | Path, errors: Errors) -> Iterator[SourceText]:
    """The lines of a file, pieces of a very long one put together."""
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


def _table_texts(path: str | Path, columns: TableColumns, errors: Errors) -> Iterator[SourceText]:
    """One column of a table; line ends inside a field become spaces."""
    text = name = None
    for row in _parquet_rows(Path(path)) if is_parquet(path) else table_rows(path, errors, fewest=1):
        if text is None:
            text, name = _text_column(row, columns.text), _name_column(row, columns.name)
        line = int(row.place.rsplit(":", 1)[1])
        value = row.values[text].replace("\r", " ").replace("\n", " ")
        yield SourceText(value, line=line, name=None if name is None else row.values[name].strip())


def _parquet_rows(path: Path) -> Iterator[TableRow]:
    """The rows of a table in Parquet, numbered from 1; whatever stands in them as text, nothing where it is empty."""
    for number, row in enumerate(read_rows(path), start=1):
        yield TableRow({name: "" if value is None else str(value) for name, value in row.items()}, f"{path}:{number}")


def _text_column(row: TableRow, column: str | None) -> str:
    names = list(row.values)
    if column is not None:
        return _known(row, column, "--column")
    if len(names) == 1:
        return names[0]
    found = next((name for name in names if name.lower() in TEXT), None)
    if found is None:
        raise CorpusError(
            f"{row.names_place}: the columns of this table are {_listed(names)}; say which has the text: --column NAME"
        )
    return found


def _name_column(row: TableRow, column: str | None) -> str | None:
    if column is not None:
        return _known(row, column, "--id")
    return next((name for name in row.values if name.lower() == "id"), None)


def _known(row: TableRow, column: str, flag: str) -> str:
    if column not in row.values:
        raise CorpusError(
            f"{row.names_place}: there is no column {shown(column)} ({flag}); there is {_listed(row.values)}"
        )
    return column


def _listed(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:12])


def _paragraphs(lines: Iterator[SourceText]) -> Iterator[SourceText]:
    """Lines put together up to the next empty one; the line ends in them stay."""
    held: list[SourceText] = []
    size = 0
    for line in lines:
        long = len(line.text) > WRAPPED
        if held and (long or not line.text.strip() or size > LONGEST_PARAGRAPH):
            yield _joined(held)
            held, size = [], 0
        if long:
            yield line
        elif line.text.strip():
            held.append(line)
            size += len(line.text)
    if held:
        yield _joined(held)


def _joined(lines: list[SourceText]) -> SourceText:
    return SourceText("\n".join(line.text for line in lines), line=lines[0].line)


def _sentences_of(paragraphs: Iterator[SourceText]) -> Iterator[SourceText]:
    """The sentences of paragraphs, each in one line."""
    for paragraph in paragraphs:
        text = paragraph.text
        for tokens in split_tokens(text, tokenize(text)):
            if tokens:
                start, end = tokens[0].start, tokens[-1].end
                line = paragraph.line + text.count("\n", 0, start)
                yield paragraph._replace(text=text[start:end].replace("\n", " "), line=line, ended=True)

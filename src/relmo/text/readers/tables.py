"""Tables and JSON lines: rows of values by name.

The first line of a table names its columns. The columns and keys that are looked for are in LABELS, SCORES and TEXT
here, and in FIRST, SECOND, WORDS and TAGS in the files that read them.

- A .csv, and standard input, are read as Python's csv module reads them: a field in quotes may hold separators and line
  ends. The separator is a comma, a semicolon or a tab, whichever the first line has most of.
- Any other table has tabs between its columns, and a row is a line. Many such files of the field have quotation marks
  that mean nothing, at the beginning of a field too. So a line is read with quotes where that gives as many columns as
  the first line has, and otherwise as it stands.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import parse_json
from relmo.errors import CorpusError
from relmo.text.corpus import STDIN, Errors
from relmo.text.readers.lines import filled, filled_lines, whole_lines
from relmo.text.vocabulary import SURROGATE

SCORES = ("score", "relatedness_score", "similarity")  # before LABELS where numbers are wanted, otherwise after
LABELS = ("label", "gold_label", "entailment_judgment", "sentiment", "is_duplicate")
TEXT = ("text", "sentence", "review")
NAN = "nan"  # a missing value that was written as text: str(float("nan")), or pandas with na_rep="NaN"

Split = Callable[[str], list[str]]


class TableRow(NamedTuple):
    """A line of a table or of JSON by its names, where it stands, what a name is called, and where the names stand."""

    values: Mapping[str, Any]
    place: str
    called: str = "column"
    header: str | None = None

    @property
    def names_place(self) -> str:
        """Where the names stand, for messages about missing columns."""
        return self.header or self.place


def is_jsonl(path: str | Path) -> bool:
    """Whether the name says JSON lines: .jsonl, compressed or not."""
    return re.search(r"\.(jsonl|ndjson)(\.gz|\.xz|\.zst)?$", str(path), re.IGNORECASE) is not None


def json_rows(path: str | Path, errors: Errors) -> Iterator[TableRow]:
    """The objects of a file with one on each line."""
    for text, place in filled_lines(path, errors):
        try:
            value = parse_json(text)
        except ValueError as error:
            raise CorpusError(f"{place}: is not a JSON object on a line of its own ({error})") from error
        if not isinstance(value, dict):
            raise CorpusError(f"{place}: expected a JSON object, found {text[:60]}")
        if "\\u" in text and SURROGATE.search(json.dumps(value, ensure_ascii=False)):
            raise CorpusError(f"{place}: has half of a character, such as \\ud83d alone; write the whole of it")
        yield TableRow(value, place, "key")


def is_csv(path: str | Path) -> bool:
    """Whether the name says a table with commas: .csv, compressed or not."""
    return re.search(r"\.csv(\.gz|\.xz|\.zst)?$", str(path), re.IGNORECASE) is not None


def is_table(path: str | Path) -> bool:
    """Whether the name says a table: .csv or .tsv, compressed or not."""
    return re.search(r"\.[ct]sv(\.gz|\.xz|\.zst)?$", str(path), re.IGNORECASE) is not None


def table_rows(path: str | Path, errors: Errors, *, fewest: int = 2) -> Iterator[TableRow]:
    """The rows of a table, by the names in its first line; further columns without a name are passed over. A table has
    at least `fewest` columns."""
    separated = is_csv(path) or path == STDIN
    rows = _csv_fields(path, errors) if separated else _tab_fields(path, errors)
    names: list[str] | None = None
    header = ""
    for fields, place in rows:
        if names is None:
            header = place
            names = [name.strip() for name in fields]
            if len(names) < fewest:
                between = "commas" if separated else "tabs"
                found = " ".join(fields)[:60]
                raise CorpusError(
                    f"{place}: expected the first line of a table, with the names of {fewest} columns or more and "
                    f"{between} between them, found '{found}'"
                )
            continue
        if len(fields) < len(names):
            raise CorpusError(f"{place}: has {len(fields)} columns, the first line has {len(names)}")
        yield TableRow(dict(zip(names, fields, strict=False)), place, header=header)


def _csv_fields(path: str | Path, errors: Errors) -> Iterator[tuple[list[str], str]]:
    """The fields of each row of a .csv, and the line on which it begins."""
    lines = whole_lines(path, errors)
    first = next(((text, place) for text, place in lines if text.strip()), None)
    if first is None:
        return
    read: list[str] = []  # the places of the lines of one row

    def fed() -> Iterator[str]:
        for text, place in chain([first], lines):
            read.append(place)
            yield text + "\n"

    rows = csv.reader(fed(), delimiter=max(",;\t", key=first[0].count), strict=True)
    while True:
        read.clear()
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            place = read[0] if read else path
            raise CorpusError(f'{place}: this row cannot be read ({error}); inside of quotes write "" for "') from error
        if any(field.strip() for field in fields):
            yield fields, read[0]


def _tab_fields(path: str | Path, errors: Errors) -> Iterator[tuple[list[str], str]]:
    """The fields of each line of a table with tabs, and its place."""
    columns = 0
    for text, place in filled_lines(path, errors):
        fields = text.split("\t")
        if '"' in text:
            quoted = _quoted_fields(text)
            fields = quoted if len(quoted) in (columns, len(fields)) else fields
        columns = columns or len(fields)
        yield fields, place


def _quoted_fields(text: str) -> list[str]:
    """The fields of a line with tabs and quotes; none where the quotes are not those of the csv module."""
    try:
        return next(csv.reader([text], delimiter="\t", strict=True))
    except csv.Error:
        return []


def value_of(row: TableRow, names: Sequence[str], advice: str = "rename one of them") -> Any:
    """The value under the first of these names that is there. Where none is, the error has advice."""
    for name in names:
        if name in row.values:
            return row.values[name]
    there = ", ".join(map(str, list(row.values)[:12]))
    source = " (from the first line)" if row.called == "column" else ""
    raise CorpusError(
        f"{row.names_place}: there is no {row.called} {' or '.join(names)}; the {row.called}s{source} are {there}; "
        f"{advice}"
    )


def is_words(value: Any) -> bool:
    """Whether a value is a list of strings with something in them."""
    return isinstance(value, list) and all(isinstance(word, str) and word.strip() for word in value)


def words_of(row: TableRow, names: Sequence[str], split: Split, advice: str) -> list[str]:
    """A text, split into words, or a list of words as it is."""
    value = value_of(row, names, advice)
    if is_words(value):
        return list(value)
    if not isinstance(value, str):
        raise CorpusError(f"{row.place}: a text is a string or a list of words, not {str(value)[:60]}")
    return some_words(value, split, row.place)


def some_words(text: str, split: Split, place: str) -> list[str]:
    """The words of a text that must have some."""
    words = split(text)
    if not words:
        raise CorpusError(f"{place}: the text is empty; remove the line")
    return words


def label_of(row: TableRow, column: str | None, numbers: bool = False) -> str:
    """Return the label of a row as a string, or raise an error if it is missing."""
    names = (*SCORES, *LABELS) if numbers else (*LABELS, *SCORES)
    value = value_of(
        row, names if column is None else (column,), f"say which {row.called} has the labels with --column"
    )
    if isinstance(value, dict | list):
        raise CorpusError(f"{row.place}: a label is a word or a number, not {str(value)[:60]}")
    label = "" if value is None else str(value)
    if label.strip().lower() == NAN:
        rename = "" if numbers else ", or give the class another name if this is one"
        raise CorpusError(f"{row.place}: the label is missing ({label}); fill it in, or remove the example{rename}")
    return filled(label, "label", row.place).strip()

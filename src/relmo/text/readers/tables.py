"""Tables and JSON lines: rows of values by name.

A table has tabs between its columns and names in its first line; quotes mean nothing in it. The columns and keys that
are looked for are in LABELS and SCORES here, and in TEXT, FIRST, SECOND, WORDS and TAGS in the files that read them.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import parse_json
from relmo.errors import CorpusError
from relmo.text.corpus import Errors
from relmo.text.readers.lines import filled_lines
from relmo.text.vocabulary import SURROGATE

SCORES = ("score", "relatedness_score", "similarity")  # before LABELS where numbers are wanted, otherwise after
LABELS = ("label", "gold_label", "entailment_judgment", "sentiment", "is_duplicate")

Split = Callable[[str], list[str]]


class TableRow(NamedTuple):
    """A line of a table or of JSON by its names, and where it stands."""

    values: Mapping[str, Any]
    place: str


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
        yield TableRow(value, place)


def table_rows(path: str | Path, errors: Errors) -> Iterator[TableRow]:
    """The lines of a table, by the names in its first line; further columns without a name are passed over."""
    names: list[str] | None = None
    for text, place in filled_lines(path, errors):
        fields = text.split("\t")
        if names is None:
            names = [name.strip() for name in fields]
            if len(names) < 2:
                raise CorpusError(f"{place}: expected the names of columns with tabs between them, found '{text[:60]}'")
            continue
        if len(fields) < len(names):
            raise CorpusError(f"{place}: has {len(fields)} columns, the first line has {len(names)}")
        yield TableRow(dict(zip(names, fields, strict=False)), place)


def value_of(row: TableRow, names: Sequence[str], advice: str = "name it so") -> Any:
    """The value under the first of these names that is there; where none is, advice."""
    for name in names:
        if name in row.values:
            return row.values[name]
    there = ", ".join(map(str, list(row.values)[:12]))
    raise CorpusError(f"{row.place}: there is no {' or '.join(names)}; there is {there}; {advice}")


def is_words(value: Any) -> bool:
    """Whether a value is a list of strings with something in them."""
    return isinstance(value, list) and all(isinstance(word, str) and word.strip() for word in value)


def words_of(row: TableRow, names: Sequence[str], split: Split) -> list[str]:
    """A text, split into words, or a list of words as it is."""
    value = value_of(row, names)
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
    """A label as a string, whatever JSON has."""
    names = (*SCORES, *LABELS) if numbers else (*LABELS, *SCORES)
    value = value_of(row, names if column is None else (column,), "give the column of labels with --column")
    if isinstance(value, dict | list) or value is None:
        raise CorpusError(f"{row.place}: a label is a word or a number, not {str(value)[:60]}")
    return str(value).strip()

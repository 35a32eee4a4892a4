"""Tables and JSON lines: rows of values by name. A .csv and standard input are read as by Python's csv module. Other
tables have tabs between columns, and a row is a line; quotation marks are often part of the text, so they are parsed
only if that gives as many columns as the first line has."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import parse_json
from relmo.errors import CorpusError
from relmo.text.corpus import STDIN, Errors, has_suffix, numbered_lines
from relmo.text.vocabulary import SURROGATE

TEXT = ("text", "sentence", "review")
MAX_NAMES_TO_LIST = 12

is_jsonl = partial(has_suffix, pattern=r"\.jsonl|\.ndjson")
is_csv = partial(has_suffix, pattern=r"\.csv")
is_table = partial(has_suffix, pattern=r"\.[ct]sv")


class TableRow(NamedTuple):
    """Row of a table or of JSON lines, its place ("path:line"), the noun for a name (column, key), and their place."""

    values: Mapping[str, Any]
    place: str
    called: str = "column"
    header: str | None = None

    def list_names(self) -> str:
        """Return the names of the row for a message."""
        return ", ".join(map(str, list(self.values)[:MAX_NAMES_TO_LIST]))


def json_rows(path: str | Path, errors: Errors = "strict") -> Iterator[TableRow]:
    """Yield the objects of a file with one JSON object per line."""
    for text, place in numbered_lines(path, errors, blank=False):
        try:
            value = parse_json(text)
        except ValueError as error:
            raise CorpusError(f"{place}: is not a JSON object on a single line ({error})") from error
        if not isinstance(value, dict):
            raise CorpusError(f"{place}: expected a JSON object, found {text[:60]}")
        if "\\u" in text and SURROGATE.search(json.dumps(value, ensure_ascii=False)):
            raise CorpusError(f"{place}: contains an unpaired surrogate, such as \\ud83d alone; write the full pair")
        yield TableRow(value, place, "key")


def table_rows(path: str | Path, errors: Errors, *, fewest: int = 2) -> Iterator[TableRow]:
    """Yield the rows of a table by the names in its first line; extra columns without a name are ignored."""
    separated = is_csv(path) or path == STDIN
    names: list[str] = []
    header = ""
    lines = ((text.split("\t"), place) for text, place in numbered_lines(path, errors, blank=False))
    for fields, place in csv_fields(path, errors) if separated else lines:
        if not separated and any('"' in field for field in fields):
            try:
                quoted_fields = next(csv.reader(["\t".join(fields)], delimiter="\t", strict=True))
            except csv.Error:
                quoted_fields = []
            fields = quoted_fields if len(quoted_fields) in (len(names), len(fields)) else fields
        if not header:
            header, names = place, [name.strip() for name in fields]
            if len(names) < fewest:
                expected = f"at least {fewest} column names, separated by {'commas' if separated else 'tabs'}"
                line = " ".join(fields)[:60]
                raise CorpusError(f"{place}: expected the first line of a table with {expected}; found '{line}'")
            continue
        if len(fields) < len(names):
            raise CorpusError(f"{place}: has {len(fields)} columns, the first line has {len(names)}")
        yield TableRow(dict(zip(names, fields, strict=False)), place, header=header)


def csv_fields(
    path: str | Path, errors: Errors = "strict", delimiters: str = ",;\t"
) -> Iterator[tuple[list[str], str]]:
    """Yield the fields of each row that is not blank, and its place. The first line has most of the delimiter."""
    lines = numbered_lines(path, errors)
    header = next(((text, place) for text, place in lines if text.strip()), None)
    if header is None:
        return
    name, _, first_line = header[1].rpartition(":")
    texts = (text + "\n" for text, _ in chain([header], lines))
    rows = csv.reader(texts, delimiter=max(delimiters, key=header[0].count), strict=True)
    while True:
        place = f"{name}:{int(first_line) + rows.line_num}"
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise CorpusError(f'{place}: this row cannot be parsed ({error}); write "" for " within quotes') from error
        if any(field.strip() for field in fields):
            yield fields, place


def get_value(row: TableRow, names: Sequence[str], advice: str = "rename one of them") -> Any:
    """Return the value under the first of these names that the row has; otherwise raise an error with advice."""
    for name in names:
        if name in row.values:
            return row.values[name]
    problem = f"there is no {row.called} {' or '.join(names)}"
    listing = f"the {row.called}s{' (from the first line)' if row.called == 'column' else ''} are {row.list_names()}"
    raise CorpusError(f"{row.header or row.place}: {problem}; {listing}; {advice}")


def is_word_list(value: Any) -> bool:
    """Return whether a value is a list of strings that are not blank."""
    return isinstance(value, list) and all(isinstance(word, str) and word.strip() for word in value)

"""Tables and JSON lines: rows of values by name.

The first line of a table names its columns. The names that are looked for are LABELS, SCORES and TEXT here, and FIRST,
SECOND, WORDS and TAGS in the modules that read them.

- A .csv and standard input are read as by Python's csv module: a quoted field may contain separators and line ends. The
  separator is a comma, a semicolon or a tab, whichever the first line has most of.
- Other tables have tabs between columns, and a row is a line. Many such corpora contain quotation marks that are part
  of the text, also at the beginning of a field. So a line is parsed with quotes only if that gives as many columns as
  the first line has.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import parse_json
from relmo.errors import CorpusError
from relmo.text.corpus import STDIN, Errors, has_suffix, nonblank_lines, numbered_lines, require_text
from relmo.text.vocabulary import SURROGATE

SCORES = ("score", "relatedness_score", "similarity")  # before LABELS if numbers are read, otherwise after
LABELS = ("label", "gold_label", "entailment_judgment", "sentiment", "is_duplicate")
TEXT = ("text", "sentence", "review")
NAN = "nan"  # a missing value that was written as text: str(float("nan")), or pandas with na_rep="NaN"
MAX_NAMES_TO_LIST = 12

Split = Callable[[str], list[str]]


class TableRow(NamedTuple):
    """Row of a table or of JSON lines.

    place    "path:line" of the row
    called   noun for a name: column or key
    header   place of the names of a table
    """

    values: Mapping[str, Any]
    place: str
    called: str = "column"
    header: str | None = None

    @property
    def names_place(self) -> str:
        """Place of the names, for messages about missing columns."""
        return self.header or self.place


def is_jsonl(path: str | Path) -> bool:
    """Return whether the file name ends in .jsonl or .ndjson, optionally compressed."""
    return has_suffix(path, r"\.jsonl|\.ndjson")


def is_csv(path: str | Path) -> bool:
    """Return whether the file name ends in .csv, optionally compressed."""
    return has_suffix(path, r"\.csv")


def is_table(path: str | Path) -> bool:
    """Return whether the file name ends in .csv or .tsv, optionally compressed."""
    return has_suffix(path, r"\.[ct]sv")


def json_rows(path: str | Path, errors: Errors) -> Iterator[TableRow]:
    """Yield the objects of a file with one JSON object per line."""
    for text, place in nonblank_lines(path, errors):
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
    """Yield the rows of a table by the names in its first line; extra columns without a name are ignored. A table has
    at least `fewest` columns."""
    separated = is_csv(path) or path == STDIN
    names: list[str] | None = None
    header = ""
    for fields, place in csv_fields(path, errors) if separated else _tab_fields(path, errors):
        if names is None:
            header = place
            names = [name.strip() for name in fields]
            if len(names) < fewest:
                raise CorpusError(
                    f"{place}: expected the first line of a table with at least {fewest} column names, separated by "
                    f"{'commas' if separated else 'tabs'}; found '{' '.join(fields)[:60]}'"
                )
            continue
        if len(fields) < len(names):
            raise CorpusError(f"{place}: has {len(fields)} columns, the first line has {len(names)}")
        yield TableRow(dict(zip(names, fields, strict=False)), place, header=header)


def csv_fields(path: str | Path, errors: Errors, delimiters: str = ",;\t") -> Iterator[tuple[list[str], str]]:
    """Yield the fields of each row of a .csv that is not blank, and the place at which the row begins. The delimiter is
    the most frequent one in the first line."""
    lines = numbered_lines(path, errors)
    header = next(((text, place) for text, place in lines if text.strip()), None)
    if header is None:
        return
    places: list[str] = []  # of the lines of the current row

    def read_texts() -> Iterator[str]:
        for text, place in chain([header], lines):
            places.append(place)
            yield text + "\n"

    rows = csv.reader(read_texts(), delimiter=max(delimiters, key=header[0].count), strict=True)
    while True:
        places.clear()
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            place = places[0] if places else path
            raise CorpusError(f'{place}: this row cannot be parsed ({error}); write "" for " within quotes') from error
        if any(field.strip() for field in fields):
            yield fields, places[0]


def _tab_fields(path: str | Path, errors: Errors) -> Iterator[tuple[list[str], str]]:
    num_columns = 0
    for text, place in nonblank_lines(path, errors):
        fields = text.split("\t")
        if '"' in text:
            try:
                quoted_fields = next(csv.reader([text], delimiter="\t", strict=True))
            except csv.Error:
                quoted_fields = []
            fields = quoted_fields if len(quoted_fields) in (num_columns, len(fields)) else fields
        num_columns = num_columns or len(fields)
        yield fields, place


def get_value(row: TableRow, names: Sequence[str], advice: str = "rename one of them") -> Any:
    """Return the value under the first of these names that the row has; otherwise raise an error with advice."""
    for name in names:
        if name in row.values:
            return row.values[name]
    existing = ", ".join(map(str, list(row.values)[:MAX_NAMES_TO_LIST]))
    source = " (from the first line)" if row.called == "column" else ""
    raise CorpusError(
        f"{row.names_place}: there is no {row.called} {' or '.join(names)}; the {row.called}s{source} are {existing}; "
        f"{advice}"
    )


def is_word_list(value: Any) -> bool:
    """Return whether a value is a list of strings that are not blank."""
    return isinstance(value, list) and all(isinstance(word, str) and word.strip() for word in value)


def get_words(row: TableRow, names: Sequence[str], split: Split, advice: str) -> list[str]:
    """Return the words of a text: a string is split, a list of words is used as is."""
    value = get_value(row, names, advice)
    if is_word_list(value):
        return list(value)
    if not isinstance(value, str):
        raise CorpusError(f"{row.place}: a text must be a string or a list of words, not {str(value)[:60]}")
    return split_text(value, split, row.place)


def split_text(text: str, split: Split, place: str) -> list[str]:
    """Split a text into words, or raise `CorpusError` if it has none."""
    words = split(text)
    if not words:
        raise CorpusError(f"{place}: the text is empty; remove the line")
    return words


def get_label(row: TableRow, column: str | None, numbers: bool = False) -> str:
    """Return the label of a row as a string, or raise `CorpusError` if it is missing."""
    names = (*SCORES, *LABELS) if numbers else (*LABELS, *SCORES)
    advice = f"name the {row.called} with the labels with --column"
    value = get_value(row, names if column is None else (column,), advice)
    if isinstance(value, dict | list):
        raise CorpusError(f"{row.place}: a label must be a string or a number, not {str(value)[:60]}")
    label = "" if value is None else str(value)
    if label.strip().lower() == NAN:
        rename = "" if numbers else ", or rename the class if this is one"
        raise CorpusError(f"{row.place}: the label is missing ({label}); fill it in, or remove the example{rename}")
    return require_text(label, "label", row.place).strip()

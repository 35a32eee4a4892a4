"""Pairs of texts, one to be turned into the other: parallel files, tables with or without names, JSON lines.

train.en,train.de      two files; line n of one belongs to line n of the other (Multi30k, Europarl, WMT)
fra.txt, pairs.tsv     columns with tabs between them, the first two where nothing else is said (Tatoeba)
pairs.csv              the same with commas and quotes
train.jsonl            objects with a source and a target; a list of sources is one text in pieces, a list of targets
                       is several right answers (SciTLDR)
"""

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import is_file
from relmo.errors import CorpusError, SettingError, shown
from relmo.text.corpus import Errors
from relmo.text.readers.lines import DIGITS, filled_lines, some, whole_lines
from relmo.text.readers.tables import TableRow, is_jsonl, json_rows, value_of

SOURCE = ("source", "src", "input")
TARGET = ("target", "tgt", "output", "summary")


class TextToText(NamedTuple):
    """A text, whether it is split at white space already, and those that it may be turned into."""

    source: str
    targets: list[str]
    tokenized: bool = False


def read_parallel(path: str | Path, *, columns: str | None = None, errors: Errors = "strict") -> Iterator[TextToText]:
    """The pairs of a file, or of two files with a comma between their names. `columns` are the two names, or numbers
    from 1, with a comma between them."""
    names = parse_columns(columns)
    parts = str(path).split(",")
    if len(parts) == 2 and all(parts) and not is_file(Path(path)):
        if columns is not None:
            raise SettingError(f"{path}: two files have no columns; leave out --column")
        pairs = _beside(parts[0], parts[1], errors)
    elif is_jsonl(path):
        pairs = (_of_object(row, names) for row in json_rows(path, errors))
    else:
        pairs = _of_table(_csv_fields(path, errors) if _is_csv(path) else _tab_fields(path, errors), names)
    yield from some(pairs, path, "pair")


def parse_columns(columns: str | None) -> tuple[str, str] | None:
    """The two columns; None where none are given."""
    if columns is None:
        return None
    source, _, target = (part.strip() for part in columns.partition(","))
    if not source or not target or "," in target:
        raise SettingError(f"--column takes two columns with a comma between them, such as 1,2, not {shown(columns)}")
    return source, target


def _is_csv(path: str | Path) -> bool:
    return re.search(r"\.csv(\.gz|\.xz|\.zst)?$", str(path), re.IGNORECASE) is not None


def _beside(source: str, target: str, errors: Errors) -> Iterator[TextToText]:
    """Two parallel files."""
    lines = zip_longest(whole_lines(source, errors), whole_lines(target, errors))
    for first, second in lines:
        if first is None or second is None:
            longer = source if second is None else target
            raise CorpusError(f"{longer}: has more lines than the file beside it; line n of one belongs to line n")
        yield TextToText(_filled(*first), [_filled(*second)])


def _filled(text: str, place: str) -> str:
    if not text.strip():
        raise CorpusError(f"{place}: the text is empty; remove the pair")
    return text.strip()


def _of_object(row: TableRow, names: tuple[str, str] | None) -> TextToText:
    source = value_of(row, SOURCE if names is None else names[:1], "give both keys with --column source,target")
    target = value_of(row, TARGET if names is None else names[1:], "give both keys with --column source,target")
    sources, targets = _strings(source, row.place), _strings(target, row.place)
    return TextToText(_filled(" ".join(sources), row.place), [_filled(text, row.place) for text in targets])


def _strings(value: Any, place: str) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, str) for each in values):
        raise CorpusError(f"{place}: a text is a string or a list of strings, not {shown(value)}")
    return values


def _tab_fields(path: str | Path, errors: Errors) -> Iterator[tuple[list[str], str]]:
    return ((text.split("\t"), place) for text, place in filled_lines(path, errors))


def _csv_fields(path: str | Path, errors: Errors) -> Iterator[tuple[list[str], str]]:
    """The rows of a table with commas and quotes; a field may go over several lines."""
    place = f"{path}:1"

    def lines() -> Iterator[str]:
        nonlocal place
        for text, where in whole_lines(path, errors):
            place = where
            yield text + "\n"

    rows = csv.reader(lines(), strict=True)
    while True:
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise CorpusError(f"{place}: is not a row of a table with commas ({error})") from error
        if any(field.strip() for field in fields):
            yield fields, place


def _of_table(rows: Iterator[tuple[list[str], str]], names: tuple[str, str] | None) -> Iterator[TextToText]:
    """Pairs of rows. The first row has names where the columns are given by name, or where it reads source, target."""
    places: tuple[int, int] | None = None
    for fields, where in rows:
        if places is None:
            places, header = _places(fields, names, where)
            if header:
                continue
        if len(fields) <= max(places):
            raise CorpusError(
                f"{where}: expected a source and a target with a tab between them, in columns {places[0] + 1} and "
                f"{places[1] + 1}, found {shown(' '.join(fields))}; two files are given as one: SOURCE,TARGET"
            )
        yield TextToText(_filled(fields[places[0]], where), [_filled(fields[places[1]], where)])


def _places(first: Sequence[str], names: tuple[str, str] | None, where: str) -> tuple[tuple[int, int], bool]:
    """Where in a row the two columns are, by its first row, and whether that row has their names."""
    found = [field.strip() for field in first]
    known = len(found) > 1 and found[0].lower() in SOURCE and found[1].lower() in TARGET
    if names is None:
        return (0, 1), known
    if all(name.isascii() and name.isdigit() and 0 < len(name) < DIGITS and int(name) for name in names):
        return (int(names[0]) - 1, int(names[1]) - 1), known
    for name in names:
        if name not in found:
            raise CorpusError(f"{where}: there is no column {shown(name)}; there is {', '.join(found[:12])}")
    return (found.index(names[0]), found.index(names[1])), True

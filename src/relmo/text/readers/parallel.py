"""Sources and targets for sequence-to-sequence models: parallel files, tables, JSON lines.

train.en,train.de      two files; line n of one belongs to line n of the other (Multi30k, Europarl, WMT)
fra.txt, pairs.tsv     columns separated by tabs, by default the first two (Tatoeba)
pairs.csv              columns separated by commas, with quotes
train.jsonl            objects with a source and a target; a list of sources is one text in pieces, a list of targets
                       is several references (SciTLDR)
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import is_file
from relmo.errors import CorpusError, SettingError, quote
from relmo.text.corpus import MAX_DIGITS, Errors, nonblank_lines, numbered_lines, require_examples
from relmo.text.readers.tables import TableRow, csv_fields, get_value, is_csv, is_jsonl, json_rows

SOURCE = ("source", "src", "input")
TARGET = ("target", "tgt", "output", "summary")
ADVICE = "give both keys with --column source,target"


class TextToText(NamedTuple):
    """Source text, its possible targets, and whether it is tokenized at whitespace."""

    source: str
    targets: list[str]
    tokenized: bool = False


def read_parallel(path: str | Path, *, columns: str | None = None, errors: Errors = "strict") -> Iterator[TextToText]:
    """Yield the pairs of a file, or of two files with a comma between their names. `columns` are two names, or numbers
    from 1, with a comma between them."""
    names = parse_columns(columns)
    paths = str(path).split(",")
    if len(paths) == 2 and all(paths) and not is_file(Path(path)):
        if columns is not None:
            raise SettingError(f"{path}: parallel files have no columns; omit --column")
        pairs = _read_parallel_files(paths[0], paths[1], errors)
    elif is_jsonl(path):
        pairs = (_parse_object(row, names) for row in json_rows(path, errors))
    elif is_csv(path):
        pairs = _read_table(csv_fields(path, errors, ","), names)
    else:
        rows = ((text.split("\t"), place) for text, place in nonblank_lines(path, errors))
        pairs = _read_table(rows, names)
    yield from require_examples(pairs, path, "pair")


def parse_columns(columns: str | None) -> tuple[str, str] | None:
    """Parse two column names with a comma between them; None if there are none."""
    if columns is None:
        return None
    source, _, target = (part.strip() for part in columns.partition(","))
    if not source or not target or "," in target:
        raise SettingError(f"--column takes two columns with a comma between them, such as 1,2, not {quote(columns)}")
    return source, target


def _read_parallel_files(source: str, target: str, errors: Errors) -> Iterator[TextToText]:
    for source_line, target_line in zip_longest(numbered_lines(source, errors), numbered_lines(target, errors)):
        if source_line is None or target_line is None:
            longer = source if target_line is None else target
            raise CorpusError(f"{longer}: has more lines than the other file; line n of one belongs to line n")
        yield TextToText(_strip(*source_line), [_strip(*target_line)])


def _strip(text: str, place: str) -> str:
    if not text.strip():
        raise CorpusError(f"{place}: the text is empty; remove the pair")
    return text.strip()


def _parse_object(row: TableRow, names: tuple[str, str] | None) -> TextToText:
    def get_strings(keys: Sequence[str]) -> list[str]:
        value: Any = get_value(row, keys, ADVICE)
        texts = value if isinstance(value, list) else [value]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise CorpusError(f"{row.place}: a text must be a string or a list of strings, not {quote(value)}")
        return texts

    sources = get_strings(SOURCE if names is None else names[:1])
    targets = get_strings(TARGET if names is None else names[1:])
    return TextToText(_strip(" ".join(sources), row.place), [_strip(text, row.place) for text in targets])


def _read_table(rows: Iterator[tuple[list[str], str]], names: tuple[str, str] | None) -> Iterator[TextToText]:
    """Yield the pairs of rows. The first row is a header if the columns are given by name, or if it names them."""
    columns: tuple[int, int] | None = None
    for fields, place in rows:
        if columns is None:
            columns, has_header = _find_columns([field.strip() for field in fields], names, place)
            if has_header:
                continue
        if len(fields) <= max(columns):
            raise CorpusError(
                f"{place}: expected a source and a target separated by a tab, in columns {columns[0] + 1} and "
                f"{columns[1] + 1}, found {quote(' '.join(fields))}; give two parallel files as SOURCE,TARGET"
            )
        yield TextToText(_strip(fields[columns[0]], place), [_strip(fields[columns[1]], place)])


def _find_columns(header: Sequence[str], names: tuple[str, str] | None, place: str) -> tuple[tuple[int, int], bool]:
    """Return the indices of the two columns, and whether the first row is a header."""
    is_header = len(header) > 1 and header[0].lower() in SOURCE and header[1].lower() in TARGET
    if names is None:
        return (0, 1), is_header
    if all(name.isascii() and name.isdigit() and 0 < len(name) <= MAX_DIGITS and int(name) for name in names):
        return (int(names[0]) - 1, int(names[1]) - 1), is_header
    for name in names:
        if name not in header:
            raise CorpusError(f"{place}: there is no column {quote(name)}; the columns are {', '.join(header[:12])}")
    return (header.index(names[0]), header.index(names[1])), True

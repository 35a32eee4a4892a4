"""Tables of words with their surprisal, as an object and as files: .tsv, .csv, .parquet.

    line  position  word  start  end  surprisal  entropy  unknown

and before them `id`, where the text came from a table that has such a column. .tsv and .csv are written as the csv
module does, with quotes where a field needs them; `unknown` is 0 or 1.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

from relmo.disk.outputs import atomic, refuse_existing
from relmo.disk.parquet import import_pyarrow
from relmo.errors import SettingError
from relmo.models.surprisal import WordSurprisal

COLUMNS = ("line", "position", "word", "start", "end", "surprisal", "entropy", "unknown")
SHOWN = 200  # rows in a notebook
ROW_GROUP = 1 << 16


class SurprisalTotals(NamedTuple):
    """Sums over a table: words, those that are unknown, the bits of words, and those of ends, shown or not."""

    words: int = 0
    unknown: int = 0
    word_bits: float = 0.0
    end_bits: float = 0.0

    @property
    def bits(self) -> float:
        """Of words and ends: `evaluate`'s negative log-likelihood, in bits."""
        return self.word_bits + self.end_bits

    def plus(self, row: WordSurprisal) -> "SurprisalTotals":
        """With a row more."""
        if row.is_end:
            return self._replace(end_bits=self.end_bits + row.surprisal)
        return SurprisalTotals(
            self.words + 1, self.unknown + row.unknown, self.word_bits + row.surprisal, self.end_bits
        )


@dataclass(frozen=True)
class SurprisalTable(Sequence[WordSurprisal]):
    """The words of a text with their surprisal. `total_bits` is the sum over words and ends, whether these are shown or
    not."""

    rows: list[WordSurprisal]
    total_bits: float

    @classmethod
    def of(cls, rows: Iterable[WordSurprisal], *, ends: bool) -> "SurprisalTable":
        """All rows; those of ends only where they are asked for."""
        held = list(rows)
        return cls([row for row in held if ends or not row.is_end], sum(row.surprisal for row in held))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, which: int) -> WordSurprisal: ...
    @overload
    def __getitem__(self, which: slice) -> Sequence[WordSurprisal]: ...
    def __getitem__(self, which: int | slice) -> WordSurprisal | Sequence[WordSurprisal]:
        return self.rows[which]

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns by name, as `pandas.DataFrame` takes them."""
        return {name: [getattr(row, name) for row in self.rows] for name in COLUMNS}

    def to_tsv(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes the table with tabs between its columns."""
        self._write(path, ".tsv", overwrite)

    def to_csv(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes the table with commas between its columns."""
        self._write(path, ".csv", overwrite)

    def to_parquet(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes the table as .parquet, which needs the package pyarrow."""
        self._write(path, ".parquet", overwrite)

    def _write(self, path: str | Path, kind: str, overwrite: bool) -> None:
        refuse_existing(Path(path), overwrite=overwrite)
        WRITERS[kind](Path(path), iter(self.rows))

    def _repr_html_(self) -> str:
        """A table for notebooks, of the first rows."""
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        cells = (_printed(row) for row in self.rows[:SHOWN])
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
        more = f"<p>{len(self) - SHOWN:,} rows more</p>" if len(self) > SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def write_table(path: Path, rows: Iterator[WordSurprisal]) -> None:
    """Writes rows as they come to a file, whose name says the format; it appears when it is whole."""
    WRITERS[path.suffix.lower()](path, rows)


def table_lines(rows: Iterator[WordSurprisal]) -> Iterator[list[str]]:
    """The names of the columns, then the rows, as text. There is a column `id` where the first row has a name."""
    first = next(rows, None)
    named = first is not None and first.name is not None
    yield [*(["id"] if named else []), *COLUMNS]
    while first is not None:
        yield [*([first.name or ""] if named else []), *_printed(first)]
        first = next(rows, None)


def _printed(row: WordSurprisal) -> list[str]:
    place = [str(row.line), str(row.position), row.word, str(row.start), str(row.end)]
    return [*place, f"{row.surprisal:.6f}", f"{row.entropy:.6f}", str(int(row.unknown))]


def _text_writer(delimiter: str) -> Callable[[Path, Iterator[WordSurprisal]], None]:
    def write(path: Path, rows: Iterator[WordSurprisal]) -> None:
        with atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(table_lines(rows))

    return write


def _write_parquet(path: Path, rows: Iterator[WordSurprisal]) -> None:
    pyarrow = import_pyarrow()
    first = next(rows, None)
    named = first is not None and first.name is not None
    kinds = {"word": pyarrow.string(), "unknown": pyarrow.bool_()}
    kinds |= dict.fromkeys(("surprisal", "entropy"), pyarrow.float64())
    columns = [(name, kinds.get(name, pyarrow.int64())) for name in COLUMNS]
    schema = pyarrow.schema([*([("id", pyarrow.string())] if named else []), *columns])
    held = [] if first is None else [first]
    with atomic(path) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
        while held:
            values = [asdict(row) | {"id": row.name} for row in held]
            writer.write_table(pyarrow.Table.from_pylist(values, schema=schema))
            held = list(islice(rows, ROW_GROUP))


WRITERS: dict[str, Callable[[Path, Iterator[WordSurprisal]], None]] = {
    ".tsv": _text_writer("\t"),
    ".csv": _text_writer(","),
    ".parquet": _write_parquet,
}
"""What each ending of a file's name is written by."""


def check_table(path: Path) -> None:
    """Raises at once where a table could not be written under this name."""
    if path.suffix.lower() not in WRITERS:
        raise SettingError(f"{path}: tables are {', '.join(WRITERS)}; name the file like that")
    if path.suffix.lower() == ".parquet":
        import_pyarrow()

"""Tables of words with their surprisal, in memory and as .tsv, .csv or .parquet files.

    line  position  word  start  end  surprisal  entropy  unknown

and before them `id`, if the text came from a table with such a column. .tsv and .csv follow the csv module, with quotes
where a field needs them; `unknown` is 0 or 1.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

from relmo.disk.files import import_pyarrow
from relmo.disk.outputs import atomic, refuse_existing
from relmo.errors import SettingError
from relmo.models.surprisal import WordSurprisal

COLUMNS = ("line", "position", "word", "start", "end", "surprisal", "entropy", "unknown")
MAX_NOTEBOOK_ROWS = 200
ROW_GROUP = 1 << 16
DELIMITERS = {".tsv": "\t", ".csv": ","}
FORMATS = (*DELIMITERS, ".parquet")


class SurprisalTotals(NamedTuple):
    """Sums over a table: words, unknown words, bits of words, and bits of ends (included in the table or not)."""

    words: int = 0
    unknown: int = 0
    word_bits: float = 0.0
    end_bits: float = 0.0

    @property
    def bits(self) -> float:
        """Negative log-likelihood of words and ends in bits, as in `evaluate`."""
        return self.word_bits + self.end_bits

    def add(self, row: WordSurprisal) -> "SurprisalTotals":
        """Return the totals with another row."""
        if row.is_end:
            return self._replace(end_bits=self.end_bits + row.surprisal)
        return SurprisalTotals(
            self.words + 1, self.unknown + row.unknown, self.word_bits + row.surprisal, self.end_bits
        )


@dataclass(frozen=True)
class SurprisalTable(Sequence[WordSurprisal]):
    """Words of a text with their surprisal. `total_bits` is the sum over words and ends, included as rows or not."""

    rows: list[WordSurprisal]
    total_bits: float

    @classmethod
    def from_rows(cls, rows: Iterable[WordSurprisal], *, ends: bool) -> "SurprisalTable":
        """Create a table; rows of ends are included on request."""
        rows = list(rows)
        return cls([row for row in rows if ends or not row.is_end], sum(row.surprisal for row in rows))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> WordSurprisal: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[WordSurprisal]: ...
    def __getitem__(self, index: int | slice) -> WordSurprisal | Sequence[WordSurprisal]:
        return self.rows[index]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns by name, as `pandas.DataFrame` takes them."""
        return {name: [getattr(row, name) for row in self.rows] for name in COLUMNS}

    def to_tsv(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the table with tabs between its columns."""
        self._write(path, ".tsv", overwrite)

    def to_csv(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the table with commas between its columns."""
        self._write(path, ".csv", overwrite)

    def to_parquet(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the table as .parquet, which needs the package pyarrow."""
        self._write(path, ".parquet", overwrite)

    def _write(self, path: str | Path, suffix: str, overwrite: bool) -> None:
        refuse_existing(Path(path), overwrite=overwrite)
        _write_rows(Path(path), iter(self.rows), suffix)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        rows = (_format_row(row) for row in self.rows[:MAX_NOTEBOOK_ROWS])
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        num_hidden = len(self) - MAX_NOTEBOOK_ROWS
        note = f"<p>{num_hidden:,} more rows</p>" if num_hidden > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def check_table(path: Path) -> None:
    """Raise `SettingError` if a table cannot be written under this name."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"{path}: unknown format; a table must end in {', '.join(FORMATS)}")
    if path.suffix.lower() == ".parquet":
        import_pyarrow()


def write_table(path: Path, rows: Iterator[WordSurprisal]) -> None:
    """Write rows to a file, atomically, in the format of its suffix."""
    _write_rows(path, rows, path.suffix.lower())


def _write_rows(path: Path, rows: Iterator[WordSurprisal], suffix: str) -> None:
    if suffix == ".parquet":
        _write_parquet(path, rows)
        return
    with atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=DELIMITERS[suffix], lineterminator="\n").writerows(table_lines(rows))


def table_lines(rows: Iterator[WordSurprisal]) -> Iterator[list[str]]:
    """Yield the names of the columns, then the rows, as text; there is a column `id` if the first row has a name."""
    row = next(rows, None)
    has_names = row is not None and row.name is not None
    yield [*(["id"] if has_names else []), *COLUMNS]
    while row is not None:
        yield [*([row.name or ""] if has_names else []), *_format_row(row)]
        row = next(rows, None)


def _format_row(row: WordSurprisal) -> list[str]:
    place = [str(row.line), str(row.position), row.word, str(row.start), str(row.end)]
    return [*place, f"{row.surprisal:.6f}", f"{row.entropy:.6f}", str(int(row.unknown))]


def _write_parquet(path: Path, rows: Iterator[WordSurprisal]) -> None:
    pyarrow = import_pyarrow()
    batch = list(islice(rows, 1))
    has_names = bool(batch) and batch[0].name is not None
    types = {"word": pyarrow.string(), "unknown": pyarrow.bool_()}
    types |= dict.fromkeys(("surprisal", "entropy"), pyarrow.float64())
    columns = [(name, types.get(name, pyarrow.int64())) for name in COLUMNS]
    schema = pyarrow.schema([*([("id", pyarrow.string())] if has_names else []), *columns])
    with atomic(path) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
        while batch:
            values = [asdict(row) | {"id": row.name} for row in batch]
            writer.write_table(pyarrow.Table.from_pylist(values, schema=schema))
            batch = list(islice(rows, ROW_GROUP))

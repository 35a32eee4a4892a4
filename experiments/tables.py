"""Tables of published figures beside those of a model: where their data is found, their controls, and their rows."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relmo.cli.terminal import print_table
from relmo.errors import CorpusError
from relmo.explorer.extras import DATA_VARIABLE
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors


def require_data(data: Path, relative: str, description: str) -> Path:
    """Return the path of a file or folder inside the data folder; raise a `CorpusError` if it does not exist."""
    path = data / relative
    if not path.exists():
        raise CorpusError(
            f"{description}: {path} does not exist (looked for {relative} in {data.absolute()}); "
            f"set the data folder with --data DIR or {DATA_VARIABLE}=DIR"
        )
    return path


@dataclass(frozen=True)
class Controls:
    """Control models of a table."""

    untrained: BiLM  # the same network shows what training adds
    vectors: WordVectors | None = None  # one per word type, which show what context adds; their rows are optional


@dataclass(frozen=True)
class ComparedRow:
    """Row of a table: our scores by column, the published ones, or both."""

    name: str
    ours: dict[str, float] = field(default_factory=dict)  # empty for a published system that is not run here
    published: dict[str, float] | None = None
    note: str = ""


@dataclass
class PublishedTable:
    """Published table or figure beside ours. `notes` explain the scores; `extra` has further detail for --json."""

    name: str
    title: str
    paper: str
    columns: tuple[str, ...]
    rows: list[ComparedRow]
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if unknown := {*row.ours, *(row.published or {})} - {*self.columns}:
                raise ValueError(f"{self.name}: the row {row.name!r} has no column named {', '.join(sorted(unknown))}")

    def summary(self) -> dict[str, Any]:
        """Return the table as plain values, as --json prints it."""
        rows = [{"name": row.name, "ours": row.ours, "published": row.published, "note": row.note} for row in self.rows]
        about = {"name": self.name, "title": self.title, "paper": self.paper, "columns": list(self.columns)}
        return about | {"rows": rows, "notes": self.notes, "extra": self.extra}


def print_published_table(table: Any) -> None:
    """Print a published table: our numbers, the published ones in columns of their own, and the notes."""
    published = [column for column in table.columns if any(column in (row.published or {}) for row in table.rows)]
    ours = [column for column in table.columns if any(column in row.ours for row in table.rows)]
    rows = []
    for row in table.rows:
        numbers = [row.ours.get(column) for column in ours]
        numbers += [(row.published or {}).get(column) for column in published]
        rows.append([row.name, *map(format_number, numbers)])
    print(f"{table.name}: {table.title}\n{table.paper}\n")
    print_table(["", *ours, *(f"published {column}" for column in published)], rows)
    notes = [*(f"{row.name}: {row.note}" for row in table.rows if row.note), *table.notes]
    print("", *(f"- {note}".replace(": \n", ":\n").replace("\n", "\n    ") for note in notes), "", sep="\n")


def format_number(number: float | None) -> str:
    """Return a number for a table; None is empty."""
    if number is None:
        return ""
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,.2f}" if abs(number) < 1000 else f"{number:,.0f}"

"""A published table beside ours, as plain data."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ComparedRow:
    """A row of a table: our figures by column and, where the paper has them, its own. A control has only ours; a system
    of the paper that is not run here has only the paper's."""

    name: str
    ours: dict[str, float] = field(default_factory=dict)
    published: dict[str, float] | None = None
    note: str = ""


@dataclass
class Reproduction:
    """A published table or figure, beside ours. `notes` say how the figures came about and what they can be compared
    with; `extra` is further detail for --json."""

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

    def row(self, name: str) -> ComparedRow:
        """The row of this name."""
        return next(row for row in self.rows if row.name == name)

    def summary(self) -> dict[str, Any]:
        """Everything by name, as --json prints it."""
        rows = [{"name": row.name, "ours": row.ours, "published": row.published, "note": row.note} for row in self.rows]
        said = {"name": self.name, "title": self.title, "paper": self.paper, "columns": list(self.columns)}
        return said | {"rows": rows, "notes": self.notes, "extra": self.extra}

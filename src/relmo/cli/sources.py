"""What commands ask of the files that users have: which column of a table, whether to split prose."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from relmo.text.sources import TableColumns


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where the text is in a file."""

    column: str | None = None
    """Tables: the column that has the text; text, sentence or review where it is not given."""
    id_column: Annotated[str | None, Parameter(name="--id")] = None
    """Tables: the column that names the rows, which is kept; id where it is not given."""
    split: Literal["lines", "sentences"] = "lines"
    """lines: each line is a sentence. sentences: the text is prose, in paragraphs, and is split into its sentences."""

    def asked(self) -> "TableColumns":
        """The columns, as readers take them."""
        from relmo.text.sources import TableColumns

        return TableColumns(self.column, self.id_column)

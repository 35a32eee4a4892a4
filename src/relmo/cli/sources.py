"""What commands ask of the files that users have: which column of a table, how text is split into words, whether to
split prose; and where the models are that a task's model is built on."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from relmo.settings.arguments import PathName

Tokenizer = Annotated[
    Literal["words", "whitespace"] | None,
    Parameter(
        help="How text is split into words: words, by relmo's tokenizer; whitespace, for text that is tokenised "
        "already. The default is the model's own way."
    ),
]


@dataclass(frozen=True, kw_only=True)
class BuiltOn:
    """Where the models are that a task's model was trained with, if they have moved."""

    elmo: PathName | None = None
    """Tasks: where the biLM is that the model was trained with, if it has moved."""
    vectors: PathName | None = None
    """Tasks: where the static vectors are that the model was trained with, if they have moved."""

    def places(self) -> dict[str, str | None]:
        """The same as keywords of `relmo.load`."""
        return {"elmo": self.elmo, "vectors": self.vectors}


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where the text is in a file."""

    column: str | None = None
    """Tables: the column that has the text. By default it is text, sentence or review."""
    id_column: Annotated[str | None, Parameter(name="--id")] = None
    """Tables: the column that names the rows. It is kept, and by default it is id."""
    split: Literal["lines", "sentences"] = "lines"
    """lines: each line is a sentence. sentences: the text is prose, in paragraphs, and is split into its sentences."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes that are not UTF-8: stop and say where they are, or read them as U+FFFD."""

    def reading(self) -> dict[str, Any]:
        """The same as keywords of `read_texts`."""
        from relmo.text.sources import TableColumns

        return {"columns": TableColumns(self.column, self.id_column), "split": self.split, "errors": self.errors}

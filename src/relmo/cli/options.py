"""Options that several commands share: output files, tokenizer, device, text, and the models a task is built on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from relmo.disk.outputs import refuse_existing
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

Overwrite = Annotated[bool, Parameter(negative="", help="Replace the output if it exists.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], Parameter(help="Device for computation; auto uses a GPU if one is available.")
]
Errors = Annotated[
    Literal["strict", "replace"],
    Parameter(help="Bytes that are not UTF-8: strict stops with an error, replace reads them as U+FFFD."),
]
Tokenizer = Annotated[
    Literal["words", "whitespace"] | None,
    Parameter(
        help="How text is split into words: words, by relmo's tokenizer; whitespace, for text that is already "
        "tokenised. By default, the tokenizer of the model."
    ),
]


@dataclass(frozen=True, kw_only=True)
class BuiltOn:
    """New locations of the models that a task's model was trained with."""

    elmo: PathName | None = None
    """Tasks: new location of the biLM that the model was trained with."""
    vectors: PathName | None = None
    """Tasks: new location of the static vectors that the model was trained with."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Location of the text in a file."""

    column: str | None = None
    """Tables: the column with the text. By default text, sentence or review."""
    id_column: Annotated[str | None, Parameter(name="--id")] = None
    """Tables: the column with the names of the rows, which are copied to the output. By default id."""
    split: Literal["lines", "sentences"] = "lines"
    """lines: each line is a sentence. sentences: the text is prose in paragraphs and is split into sentences."""
    errors: Errors = "strict"

    def to_keywords(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `read_texts`."""
        from relmo.text.sources import TableColumns

        return {"columns": TableColumns(self.column, self.id_column), "split": self.split, "errors": self.errors}


def check_out(path: Path, suffixes: tuple[str, ...], *, overwrite: bool) -> None:
    """Raise `SettingError` if an output file has an unknown suffix, or exists and may not be overwritten."""
    if path.suffix.lower() not in suffixes:
        raise SettingError(f"{path}: the output file must end in {' or '.join(suffixes)}.")
    refuse_existing(path, overwrite=overwrite)


def check_plot(path: Path | None, *, overwrite: bool) -> None:
    """Raise `SettingError` if a figure, where there is to be one, could not be written."""
    from relmo.analysis.core.show import check_plot_path

    if path is not None:
        check_plot_path(path)
        refuse_existing(path, overwrite=overwrite)


def report_written(path: Path, *, quiet: bool = False) -> None:
    """Report on standard error that a file was written."""
    from relmo.cli.terminal import print_message

    if not quiet:
        print_message(f"wrote {path}")

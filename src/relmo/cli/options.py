"""Options that several commands share: files, models, devices, bounds of numbers, progress, output and figures."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from msgspec import Meta

from relmo.cli.terminal import make_printer, print_json, print_message, print_tables, print_warnings, progress_bar
from relmo.disk.outputs import refuse_existing
from relmo.errors import SettingError
from relmo.settings.fields import MAX_SEED, FrozenSettings, PathName, Progress

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
Draws = Annotated[int, Meta(ge=1, le=100_000)]
Json = Annotated[bool, Parameter(help="Print one JSON object.")]
Quiet = Annotated[bool, Parameter(help="Show no progress.")]
Overwrite = Annotated[bool, Parameter(negative="", help="Replace the output if it exists.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], Parameter(help="Device for computation; auto uses a GPU if one is available.")
]
Direction = Annotated[Literal["forward", "backward"], Parameter(help="Direction of a bidirectional model.")]
Errors = Annotated[
    Literal["strict", "replace"],
    Parameter(help="Bytes that are not UTF-8: strict stops with an error, replace reads them as U+FFFD."),
]
TOKENIZER_HELP = """How text is split into words: words, by relmo's tokenizer; whitespace, for text that is already
tokenised. By default, the tokenizer of the model."""
Tokenizer = Annotated[Literal["words", "whitespace"] | None, Parameter(help=TOKENIZER_HELP)]
LMFolder = Annotated[
    PathName, Parameter(help="The folder of a language model, bidirectional or not; or small, a bundled model.")
]
TEXT_HELP = """Plain text, source code, or .conllu; - for standard input. For a bidirectional model each line is a
sentence."""
TextFile = Annotated[PathName, Parameter(help=TEXT_HELP)]
Control = Annotated[bool, Parameter(help="Also measure the same network untrained.")]
SampleSeed = Annotated[Seed, Parameter(help="The random seed of the untrained network and of samples.")]


class BuiltOn(FrozenSettings):
    """New locations of the models that a task's model was trained with."""

    elmo: PathName | None = None
    """Tasks: new location of the biLM that the model was trained with."""
    vectors: PathName | None = None
    """Tasks: new location of the static vectors that the model was trained with."""


class SourceOptions(FrozenSettings):
    """Location of the text in a file."""

    column: str | None = None
    """Tables: the column with the text. By default text, sentence or review."""
    id_column: Annotated[tuple[str, ...], Parameter(name="--id", negative="")] = ()
    """Tables: a column that is copied to the output; may be repeated. By default, embed copies id, and surprisal all
    columns."""
    split: Literal["lines", "sentences"] = "lines"
    """lines: each line is a sentence. sentences: the text is prose in paragraphs and is split into sentences."""
    errors: Errors = "strict"

    def to_keywords(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `read_texts`."""
        from relmo.text.sources import TableColumns

        columns = TableColumns(self.column, next(iter(self.id_column), None), self.id_column[1:])
        return {"columns": columns, "split": self.split, "errors": self.errors}


class ModelOptions(FrozenSettings):
    """How models are loaded."""

    tokenizer: Tokenizer = None
    device: Device = "auto"

    def load(self, source: str | None, kinds: Any = None) -> Any:
        """Load a model of these kinds; by default a language model, bidirectional or not."""
        from relmo.loading import FORWARD_KINDS, load

        return load(source, kinds=kinds or FORWARD_KINDS, device=self.device).with_tokenizer(self.tokenizer)


class PrintOptions(FrozenSettings):
    """How results are printed."""

    json: Json = False
    quiet: Quiet = False

    def say(self, line: str) -> None:
        """Print a line on standard error unless `quiet`."""
        make_printer(quiet=self.quiet)(line)

    def notes(self) -> AbstractContextManager[None]:
        """Return a context that prints warnings as notes, each once."""
        return print_warnings(self.say)

    def progress(self, name: str) -> AbstractContextManager[Progress]:
        """Return a progress bar."""
        return progress_bar(name, quiet=self.quiet)

    def show(self, record: dict[str, Any], *tables: Any) -> None:
        """Print the record with --json, else the tables."""
        if self.json:
            print_json(record)
        else:
            print_tables(*tables)


class OutputOptions(PrintOptions):
    """How results are printed and drawn."""

    plot: Path | None = None
    """Draw the results to this .png or .svg file."""
    overwrite: Overwrite = False

    def check(self) -> None:
        """Raise `SettingError` before any work if the figure cannot be written."""
        check_plot(self.plot, overwrite=self.overwrite)

    def write(self, write: Callable[[Path], object], path: Path | None) -> None:
        """Write a file and report it, if there is a path."""
        if path is not None:
            write(path)
            report_written(path, quiet=self.quiet)


class AnalysisOptions(ModelOptions, OutputOptions):
    """How models are loaded, and how results are printed and drawn."""


Printing = Annotated[PrintOptions, Parameter(name="*")]
Output = Annotated[OutputOptions, Parameter(name="*")]
Analysis = Annotated[AnalysisOptions, Parameter(name="*")]
Models = Annotated[ModelOptions, Parameter(name="*")]
MODELS, PRINTING, OUTPUT, ANALYSIS = ModelOptions(), PrintOptions(), OutputOptions(), AnalysisOptions()


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
    if not quiet:
        print_message(f"wrote {path}")

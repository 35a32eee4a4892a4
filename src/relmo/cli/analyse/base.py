"""Options and steps shared by the commands under `analyse`: loading models, progress, figures, JSON and tables."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.options import Overwrite, Tokenizer, check_plot, report_written
from relmo.errors import SettingError
from relmo.settings.arguments import Progress

if TYPE_CHECKING:
    from relmo.analysis.core.show import Table

Device = Annotated[
    Literal["auto", "cpu", "cuda"], Parameter(help="Device for computation; auto uses a GPU if one is available.")
]
Direction = Annotated[Literal["forward", "backward"], Parameter(help="Direction of a bidirectional model.")]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How models are loaded."""

    tokenizer: Tokenizer = None
    device: Device = "auto"

    def load(self, source: str | None, kinds: Any = None) -> Any:
        """Load a model of these kinds; by default a language model, bidirectional or not."""
        from relmo.loading import FORWARD_KINDS, load

        return load(source, kinds=kinds or FORWARD_KINDS, device=self.device).with_tokenizer(self.tokenizer)


@dataclass(frozen=True, kw_only=True)
class PrintOptions:
    """How results are printed."""

    json: bool = False
    """Print one JSON object."""
    quiet: bool = False
    """Show no progress."""

    def say(self, line: str) -> None:
        """Print a line on standard error unless `quiet`."""
        from relmo.cli.terminal import make_printer

        make_printer(quiet=self.quiet)(line)

    @contextmanager
    def notes(self) -> Iterator[None]:
        """Print warnings as notes, each once."""
        from relmo.cli.terminal import print_warnings

        with print_warnings(self.say):
            yield

    def progress(self, name: str) -> AbstractContextManager[Progress]:
        """Return a progress bar."""
        from relmo.cli.terminal import share_bar

        return share_bar(name, quiet=self.quiet)

    def print(self, record: dict[str, Any], tables: "Iterable[Table]") -> None:
        """Print the record with --json, else the tables."""
        from relmo.cli.terminal import print_json, print_tables

        if self.json:
            print_json(record)
        else:
            print_tables(*tables)


@dataclass(frozen=True, kw_only=True)
class OutputOptions(PrintOptions):
    """How results are printed and drawn."""

    plot: Path | None = None
    """Draw the results to this .png or .svg file."""
    overwrite: Overwrite = False

    def check(self) -> None:
        """Raise SettingError before any work if the figure cannot be written."""
        check_plot(self.plot, overwrite=self.overwrite)

    def draw(self, draw: Callable[[Path], object], path: Path | None = None) -> None:
        """Draw to `path`, by default --plot, if there is one."""
        path = path or self.plot
        if path is not None:
            draw(path)
            report_written(path, quiet=self.quiet)


Models = Annotated[ModelOptions, Parameter(name="*")]
Printing = Annotated[PrintOptions, Parameter(name="*")]
Output = Annotated[OutputOptions, Parameter(name="*")]
MODELS, PRINTING, OUTPUT = ModelOptions(), PrintOptions(), OutputOptions()


def check_minimum(**minimums: tuple[int | None, int]) -> None:
    """Raise SettingError for options below their minimum: check_minimum(draws=(draws, 1)). None is allowed."""
    for name, (number, minimum) in minimums.items():
        if number is not None and number < minimum:
            raise SettingError(f"--{name.replace('_', '-')} must be {minimum} or more, not {number}")

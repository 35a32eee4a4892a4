"""How the command line talks: all that it shows while it works, on standard error, and how it prints its results, on
standard output.

    say, sayer, warnings_said             lines
    EmbedReporter                         how far the embedding of a file is; training has `runs/progress.py`
    progress_bar, share_bar, count_bar    bars, on a terminal only
    status_line                           one line that changes
    print_json, print_table, …            results

Texts, names and labels are the user's: nothing in them is markup, an emoji, or a number to be coloured.
"""

import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from relmo.cli.streams import takes_everything
from relmo.disk.files import finite
from relmo.runs.progress import PLAIN_EVERY, duration, make_bar, make_console, speaks
from relmo.settings.arguments import Progress

if TYPE_CHECKING:
    from relmo.analysis.core.show import ColouredText, Table
    from relmo.embedding.files import EmbedProgress
    from relmo.reproduce.table import Reproduction
    from relmo.tasks.scores import LabelScore
    from relmo.tasks.task import Prediction

GRACE = 5.0  # seconds
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # characters that do something to a terminal


def say(line: str) -> None:
    """Prints a line on standard error, perhaps the last one before the program fails. torchrun ends all processes when
    one does: those that do not print wait, so that the first one can."""
    if speaks():
        with suppress(OSError):  # a full disk must not hide how the program ended
            print(line, file=sys.stderr, flush=True)
    else:
        time.sleep(GRACE)


def sayer(*, quiet: bool) -> Callable[[str], None]:
    """A function that prints a line on standard error, or nothing."""
    console = make_console(quiet=quiet)
    return lambda message: console.print(message, soft_wrap=True)


@contextmanager
def warnings_said(say: Callable[[str], None]) -> Iterator[None]:
    """What is warned of comes as plain lines, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        say(f"note: {message}")


class EmbedReporter:
    """Progress with rate and time left: a bar on a terminal, a plain line now and then where there is none."""

    def __init__(self, *, quiet: bool):
        self.console = make_console(quiet=quiet)
        columns = ("sentences  {task.fields[rate]} tokens/s", TimeRemainingColumn())
        self.bar = make_bar(self.console, BarColumn(), MofNCompleteColumn(), *columns)
        self.task = self.bar.add_task("", total=None, rate="")
        self.started = self.last = time.monotonic()
        self.progress: EmbedProgress | None = None
        self.bar.start()

    def show(self, progress: "EmbedProgress") -> None:
        """Called after every sentence."""
        self.progress = progress
        now = time.monotonic()
        terminal = self.console.is_terminal
        if now - self.last < (0.1 if terminal else PLAIN_EVERY):
            return
        self.last = now
        rate = progress.tokens / (now - self.started)
        if terminal:
            self.bar.update(self.task, completed=progress.done, total=progress.total, rate=f"{rate:,.0f}")
            return
        of = left = ""
        if progress.total is not None:
            new = progress.done - progress.resumed
            seconds = (now - self.started) / new * (progress.total - progress.done)
            of, left = f" of {progress.total:,}", f"  {duration(seconds)} left"
        self.console.print(f"{progress.done:,}{of} sentences  {rate:,.0f} tokens/s{left}", soft_wrap=True)

    def close(self) -> None:
        """Takes the bar off the screen."""
        self.bar.stop()


@contextmanager
def progress_bar(unit: str, *, quiet: bool = False) -> Iterator[Callable[[str], Callable[[int, int], object]]]:
    """A maker of bars: `bar(name)` gives a function that is told how many units, such as words, more are done, and of
    how many."""
    with make_bar(
        make_console(quiet=quiet), "{task.description}", BarColumn(), RateColumn(unit), TimeRemainingColumn()
    ) as bar:

        def add(name: str) -> Callable[[int, int], object]:
            task = bar.add_task(name, total=None)
            return lambda done, total: bar.update(task, advance=done, total=total)

        yield add


class RateColumn(ProgressColumn):
    """Words, or other units, a second."""

    def __init__(self, unit: str):
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} {self.unit}s/s")


@contextmanager
def share_bar(name: str, *, quiet: bool = False) -> Iterator[Progress]:
    """A bar; the function it gives is told of the share that is done."""
    columns = ("{task.description}", BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with make_bar(make_console(quiet=quiet), *columns) as bar:
        task = bar.add_task(name, total=1.0)
        yield lambda share: bar.update(task, completed=share)


@contextmanager
def count_bar(what: str, *, quiet: bool = False) -> Iterator[Callable[[int], object]]:
    """For work of which nobody knows how much it is; the function it gives is told how many are done."""
    columns = (SpinnerColumn(), f"{{task.completed:,.0f}} {what}", TimeElapsedColumn())
    with make_bar(make_console(quiet=quiet), *columns) as bar:
        task = bar.add_task(what, total=None)
        yield lambda count: bar.update(task, completed=count)


@contextmanager
def status_line(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that shows what goes on: in place on a terminal, as a plain line now and then where there is none."""
    console = make_console(quiet=quiet)
    if console.is_terminal and not quiet:
        with console.status("") as status:
            yield lambda message: status.update(Text(message))
        return
    last = time.monotonic()

    def tell(message: str) -> None:
        nonlocal last
        if time.monotonic() - last > PLAIN_EVERY:
            console.print(message, soft_wrap=True)
            last = time.monotonic()

    yield tell


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    print(json_line(value))


def json_line(value: Any) -> str:
    """A JSON object as standard output takes it: where that cannot say a character, escaped. JSON has no NaN: null."""
    return json.dumps(finite(value), ensure_ascii=not takes_everything(sys.stdout))


def coloured(prediction: "Prediction") -> str:
    """A prediction as standard output shows it: in colours where that is a terminal and the prediction has some."""
    console = make_console(stderr=False)
    pieces = getattr(prediction, "pieces", None)
    if pieces is None or not console.is_terminal:
        return prediction.as_text()
    shown = Text.assemble(*((CONTROLS.sub("\ufffd", text), colour) for text, colour in pieces()))
    with console.capture() as captured:
        console.print(shown, soft_wrap=True, end="")
    return captured.get()


def print_table(columns: list[str], rows: list[list[str]], left: Sequence[int] = (0,)) -> None:
    """A table on standard output; the columns `left` are text, the others numbers."""
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = make_console(stderr=False)
    if not console.is_terminal:
        console.width = 200
    console.print(table)


def print_tables(*tables: "Table", words: Sequence[str] = ()) -> None:
    """Tables on standard output, each with its title and notes; `words` are the names of columns that are of words."""
    for number, table in enumerate(tables):
        if table.title:
            print(f"\n{table.title}" if number else table.title)
        left = [i for i, column in enumerate(table.columns) if i == 0 or column in words]
        print_table(table.columns, table.rows, left)
        for note in table.notes:
            print(f"- {note}")


def print_label_table(labels: "Sequence[LabelScore]") -> None:
    """How well each label was found."""
    if labels:
        print()
        rows = [
            [row.label, *(f"{figure:.4f}" for figure in (row.precision, row.recall, row.f1)), f"{row.support:,}"]
            for row in labels
        ]
        print_table(["label", "precision", "recall", "f1", "count"], rows)


def print_length_table(report: dict[str, Any]) -> None:
    """Of a report of written texts, the scores by the sources' lengths, and how sacreBLEU has computed its own."""
    if rows := report.get("by_length"):
        print()
        names = {"score": report["metric"], "exact": "exact", "prefix": "prefix"}
        names = {key: name for key, name in names.items() if key != "score" or name != "exact"}
        shown = [
            [f"{row['least']}-{row['most'] or ''}", f"{row['texts']:,}", *(f"{row[name]:.4f}" for name in names)]
            for row in rows
        ]
        print_table(["source units", "texts", *names.values()], shown)
    for name, signature in report.get("signatures", {}).items():
        print(f"{name}: {signature}")


def print_coloured(text: "ColouredText") -> None:
    """Coloured text on a terminal; where there is none, a line a symbol with its value."""
    from relmo.analysis.core.show import colour, hexadecimal, scale_of, visible

    console = make_console(stderr=False)
    print(f"{text.title}, from {text.values.min():.3f} to {text.values.max():.3f}, mean {text.values.mean():.3f}")
    if not console.is_terminal:
        print(*(f"{visible(s)}\t{v:.4f}" for s, v in zip(text.symbols, text.values.tolist(), strict=True)), sep="\n")
        return
    size, shown = scale_of(text.values), Text()
    for symbol, value in zip(text.symbols, text.values.tolist(), strict=True):
        style = Style(color="#000000", bgcolor=hexadecimal(colour(value / size)))
        shown.append("↵" if symbol == "\n" else symbol, style)
        shown.append("\n" if symbol == "\n" else text.space)
    console.print(shown, soft_wrap=True)


def print_reproduction(table: "Reproduction") -> None:
    """A published table on standard output: our figures, the published ones in columns of their own, and the notes
    below."""
    published = [column for column in table.columns if any(column in (row.published or {}) for row in table.rows)]
    ours = [column for column in table.columns if any(column in row.ours for row in table.rows)]
    rows = [
        [
            row.name,
            *(figure(row.ours.get(column)) for column in ours),
            *(figure((row.published or {}).get(column)) for column in published),
        ]
        for row in table.rows
    ]
    print(f"{table.name}: {table.title}\n{table.paper}\n")
    print_table(["", *ours, *(f"published {column}" for column in published)], rows)
    notes = [*(f"{row.name}: {row.note}" for row in table.rows if row.note), *table.notes]
    print("", *(f"- {note}".replace(": \n", ":\n").replace("\n", "\n    ") for note in notes), "", sep="\n")


def figure(value: float | None) -> str:
    """A number as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"

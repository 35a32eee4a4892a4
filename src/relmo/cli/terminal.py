"""Messages and progress on standard error, results on standard output.

Texts, names and labels come from the user: they are never interpreted as markup, emoji or numbers to highlight.
"""

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich import progress as bars
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from relmo.disk.files import replace_nonfinite
from relmo.runs.progress import PLAIN_INTERVAL, duration, is_leader, make_bar, make_console
from relmo.settings.fields import Progress

GRACE = 5.0  # seconds
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # control characters of terminals


def prepare_streams() -> None:
    """Make the standard streams usable.

    The descriptor of a closed stream is opened again, so that no other file takes its number: output to a closed
    standard output fails, as results would be lost; messages to a closed standard error are dropped. Characters that
    the encoding of a stream lacks are printed as escapes."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # the lowest free descriptor is this one
            os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_RDWR)
        if getattr(sys, name) is None and name != "stdin":
            setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def find_broken_stream() -> str | None:
    """Flush the standard streams; silence those that fail, and return the name of the first of them."""
    broken = None
    for stream, name in ((sys.stdout, "standard output"), (sys.stderr, "standard error")):
        try:
            stream.flush()
        except OSError:
            broken = broken or name
            silence(stream)
    return broken


def silence(stream: Any) -> None:
    """Discard everything that is or will be written to a stream."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def print_message(line: str) -> None:
    """Print a line on standard error, possibly the last one before the program fails.

    torchrun ends all processes when one of them ends: those that do not print wait, so that the leader can."""
    if is_leader():
        with suppress(OSError):  # a full disk must not hide how the program ended
            print(line, file=sys.stderr, flush=True)
    else:
        time.sleep(GRACE)


def make_printer(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line on standard error unless `quiet`."""
    console = make_console(quiet=quiet)
    return lambda message: console.print(message, soft_wrap=True)


@contextmanager
def print_warnings(on_message: Callable[[str], None]) -> Iterator[None]:
    """Pass warnings to `on_message` as plain lines, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        on_message(f"note: {message}")


class EmbedReporter:
    """Progress of `relmo embed`: a bar on a terminal, otherwise occasional plain lines."""

    def __init__(self, *, quiet: bool):
        self.console = make_console(quiet=quiet)
        columns = ("sentences  {task.fields[rate]} tokens/s", bars.TimeRemainingColumn())
        self.bar = make_bar(self.console, bars.BarColumn(), bars.MofNCompleteColumn(), *columns)
        self.task = self.bar.add_task("", total=None, rate="")
        self.start_time = self.last_time = time.monotonic()
        self.progress: Any = None
        self.bar.start()

    def on_progress(self, progress: Any) -> None:
        """Show the progress after a sentence."""
        self.progress = progress
        now, is_terminal = time.monotonic(), self.console.is_terminal
        if now - self.last_time < (0.1 if is_terminal else PLAIN_INTERVAL):
            return
        self.last_time = now
        rate = progress.tokens / (now - self.start_time)
        if is_terminal:
            self.bar.update(self.task, completed=progress.done, total=progress.total, rate=f"{rate:,.0f}")
            return
        total = remaining = ""
        if progress.total is not None:
            num_new = progress.done - progress.resumed
            seconds = (now - self.start_time) / num_new * (progress.total - progress.done)
            total, remaining = f" of {progress.total:,}", f"  {duration(seconds)} left"
        self.console.print(f"{progress.done:,}{total} sentences  {rate:,.0f} tokens/s{remaining}", soft_wrap=True)


class RateColumn(bars.ProgressColumn):
    """Rate of progress in units per second."""

    def __init__(self, unit: str):
        super().__init__()
        self.unit = unit

    def render(self, task: bars.Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} {self.unit}s/s")


@contextmanager
def rate_bars(unit: str, *, quiet: bool = False) -> Iterator[Callable[[str], Callable[[int, int], object]]]:
    """Yield a function that adds a bar with a name; that returns the callback (number of new units, total)."""
    columns = ("{task.description}", bars.BarColumn(), RateColumn(unit), bars.TimeRemainingColumn())
    with make_bar(make_console(quiet=quiet), *columns) as bar:

        def add_bar(name: str) -> Callable[[int, int], object]:
            task = bar.add_task(name, total=None)
            return lambda num_new, total: bar.update(task, advance=num_new, total=total)

        yield add_bar


@contextmanager
def progress_bar(name: str = "", *, unit: str | None = None, quiet: bool = False) -> Iterator[Progress]:
    """Show a bar and yield its callback, which takes the fraction that is done. With `unit` the length of the work is
    unknown: show a spinner, whose callback takes the number that is done."""
    if unit is None:
        columns: Any = ("{task.description}", bars.BarColumn(), bars.TaskProgressColumn(), bars.TimeRemainingColumn())
    else:
        columns = (bars.SpinnerColumn(), f"{{task.completed:,.0f}} {unit}", bars.TimeElapsedColumn())
    with make_bar(make_console(quiet=quiet), *columns) as bar:
        task = bar.add_task(name, total=1.0 if unit is None else None)
        yield lambda done: bar.update(task, completed=done)


def print_json(record: Any) -> None:
    """Print a JSON object on standard output."""
    print(json_line(record))


def json_line(record: Any) -> str:
    """Return JSON for standard output, in ASCII if its encoding lacks characters; NaN and infinity become null."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return json.dumps(replace_nonfinite(record), ensure_ascii=not encoding.lower().startswith("utf"))


def format_prediction(prediction: Any) -> str:
    """Return a prediction as text, in colour if it has colours and standard output is a terminal."""
    console = make_console(stderr=False)
    pieces = getattr(prediction, "pieces", None)
    if pieces is None or not console.is_terminal:
        return prediction.as_text()
    text = Text.assemble(*((CONTROLS.sub("\ufffd", piece), colour) for piece, colour in pieces()))
    with console.capture() as captured:
        console.print(text, soft_wrap=True, end="")
    return captured.get()


def print_table(columns: list[str], rows: list[list[str]], left: Sequence[int] = (0,)) -> None:
    """Print a table; the columns with the indices `left` are text, the others numbers."""
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = make_console(stderr=False)
    if not console.is_terminal:
        console.width = 200
    console.print(table)


def print_tables(*tables: Any, words: Sequence[str] = ()) -> None:
    """Print tables with their titles and notes; `words` are the names of text columns."""
    for number, table in enumerate(tables):
        if table.title:
            print(f"\n{table.title}" if number else table.title)
        left = [i for i, column in enumerate(table.columns) if i == 0 or column in words]
        print_table(table.columns, table.rows, left)
        for note in table.notes:
            print(f"- {note}")


def print_scores(report: dict[str, Any]) -> None:
    """Print the scores of a report by label and by source length, and the signatures of sacreBLEU."""
    rows = []
    for score in report["labels"]:
        numbers = [f"{score[name]:.4f}" for name in ("precision", "recall", "f1")]
        rows.append([score["label"], *numbers, f"{score['support']:,}"])
    if rows:
        print()
        print_table(["label", "precision", "recall", "f1", "count"], rows)
    if buckets := report.get("by_length"):
        keys = {report["metric"]: "score", "exact": "exact", "prefix": "prefix"}  # by column; the metric may be exact
        rows = []
        for bucket in buckets:
            scores = [f"{bucket[key]:.4f}" for key in keys.values()]
            rows.append([f"{bucket['least']}-{bucket['most'] or ''}", f"{bucket['texts']:,}", *scores])
        print()
        print_table(["source units", "texts", *keys], rows)
    for name, signature in report.get("signatures", {}).items():
        print(f"{name}: {signature}")


def print_coloured(text: Any) -> None:
    """Print coloured text on a terminal, otherwise one line per symbol with its value."""
    from relmo.analysis.core.show import compute_colour_scale, show_whitespace, to_hex

    console = make_console(stderr=False)
    print(f"{text.title}, from {text.values.min():.3f} to {text.values.max():.3f}, mean {text.values.mean():.3f}")
    pairs = list(zip(text.symbols, text.values.tolist(), strict=True))
    if not console.is_terminal:
        print(*(f"{show_whitespace(symbol)}\t{value:.4f}" for symbol, value in pairs), sep="\n")
        return
    scale, output = compute_colour_scale(text.values), Text()
    for symbol, value in pairs:
        style = Style(color="#000000", bgcolor=to_hex(value / scale))
        output.append("↵" if symbol == "\n" else symbol, style)
        output.append("\n" if symbol == "\n" else text.space)
    console.print(output, soft_wrap=True)

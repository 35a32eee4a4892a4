"""How the command line talks: progress and words on standard error, results on standard output."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from relmo.cli.console import make_console, text_column
from relmo.cli.streams import takes_everything
from relmo.runs.reporter import Reporter
from relmo.training.loop import Step
from relmo.training.plan import Plan

PLAIN_EVERY = 10.0  # seconds between lines of progress where there is no terminal


class Terminal(Reporter):
    """A progress bar with rate and time left on a terminal, plain lines where there is none, nothing when quiet."""

    def __init__(self, *, quiet: bool = False):
        self.console = make_console(quiet=quiet)
        self.progress: Progress | None = None
        self.last_line = 0.0
        self.reading = self.console.status("reading the corpus")
        if self.console.is_terminal:
            self.reading.start()

    def plan(self, plan: Plan) -> None:
        self.reading.stop()
        lines = [("device", plan.device), ("symbols in the training part", f"{plan.predictions:,}")]
        if plan.processes > 1:
            lines.insert(1, ("processes", f"{plan.processes:,}"))
        if plan.steps:
            lines += [
                ("parameters", f"{plan.parameters:,}"),
                ("steps", f"{plan.steps:,}"),
                ("time", f"about {duration(plan.seconds)}, validation aside"),
            ]
        if plan.steps and plan.memory is not None:
            lines.append(("memory", f"about {plan.memory / 2**30:.2f} GB{' each' if plan.processes > 1 else ''}"))
        for name, value in lines:
            self.console.print(f"  {name:<30}{value}", soft_wrap=True)

    def said(self, message: str) -> None:
        self.console.print(message, soft_wrap=True)

    def logged(self, record: dict[str, Any]) -> None:
        due = time.monotonic() - self.last_line > PLAIN_EVERY
        if self.console.is_terminal and self.progress is not None:
            self.progress.update(self.progress.task_ids[0], what=_describe(record))
        if "valid" in record or (due and not self.console.is_terminal):
            self.console.print(f"step {record['step']:>7,}  {_describe(record)}", soft_wrap=True)
            self.last_line = time.monotonic()

    def stepped(self, step: Step, total: int) -> None:
        if not self.console.is_terminal or self.console.quiet:
            return
        if self.progress is None:
            columns = (BarColumn(), MofNCompleteColumn(), text_column("{task.fields[what]}"), TimeRemainingColumn())
            self.progress = Progress(*columns, console=self.console, transient=True)
            self.progress.add_task("", total=total, completed=step.number, what="")
            self.progress.start()
        self.progress.update(self.progress.task_ids[0], completed=step.number)

    def close(self) -> None:
        """Takes the bar off the screen."""
        self.reading.stop()
        if self.progress is not None:
            self.progress.stop()


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Callable[[str], Callable[[int, int], object]]]:
    """A maker of bars: `bar(name)` gives a function that is told how much more is done, and of how much. On a terminal
    only."""
    console = make_console(quiet=quiet)
    columns = (text_column("{task.description}"), BarColumn(), RateColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:

        def bar(name: str) -> Callable[[int, int], object]:
            task = progress.add_task(name, total=None)

            def watch(done: int, total: int) -> None:
                progress.update(task, advance=done, total=total)

            return watch

        yield bar


class RateColumn(ProgressColumn):
    """Symbols a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} symbols/s")


def _describe(record: dict[str, Any]) -> str:
    """A line of metrics in words."""
    valid = f"  valid {record['valid']:.4f}" if "valid" in record else ""
    valid += "".join(f"  {k.removeprefix('valid_')} {v:.4f}" for k, v in record.items() if k.startswith("valid_"))
    clipped = f"  clipped {record['clipped']:.0%}" if record["clipped"] else ""
    rate = f"  {record['symbols_per_second']:,.0f} symbols/s"
    return f"epoch {record['epoch']:.2f}  loss {record['loss']:.4f}{valid}{clipped}{rate}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    print(json_line(value))


def json_line(value: Any) -> str:
    """A JSON object as standard output takes it: where that cannot say a character, escaped."""
    return json.dumps(value, ensure_ascii=not takes_everything(sys.stdout))


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """A table on standard output; the first column is text, the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = make_console(stderr=False)
    if not console.is_terminal:
        console.width = 200
    console.print(table)

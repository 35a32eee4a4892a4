"""How far a training run is, shown to whoever waits for it: a bar on a terminal, a bar in a notebook, plain lines
elsewhere.

    TrainingReporter   of the command line, and of Python in a terminal or a script
    NotebookReporter   of Python in a notebook; it needs nothing but IPython, which a notebook has
    shown_progress     the one that fits where this runs

Texts and names are the user's: nothing in them is markup, an emoji, or a number to be coloured.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from relmo.runs.reporter import Reporter

if TYPE_CHECKING:
    from relmo.training.loop import Step
    from relmo.training.plan import Plan

PLAIN_EVERY = 10.0  # seconds between lines of progress where there is no terminal
NOTEBOOK_EVERY = 0.25  # seconds between changes of a bar in a notebook
FEW = 100  # steps, in which a network that begins from nothing learns little
LITTLE = ", which is few: it learns more with a smaller --batch or more --epochs"


class PlainConsole(Console):
    """A console that says when nobody reads on; what is to be done then is `relmo.cli.main`'s to say."""

    def on_broken_pipe(self) -> None:
        """Called where the error is handled: it goes on."""
        raise


def make_console(*, stderr: bool = True, quiet: bool = False) -> Console:
    """A console on standard error, for progress and words, or on standard output, for results."""
    return PlainConsole(stderr=stderr, quiet=quiet, markup=False, highlight=False, emoji=False)


def make_bar(console: Console, *columns: ProgressColumn | str) -> Bar:
    """A bar that is taken off the screen at its end; where there is no terminal, or it is to be quiet, none. Columns
    that are strings are filled in, {task.description} and the like, and shown as they are."""
    made = [TextColumn(column, markup=False) if isinstance(column, str) else column for column in columns]
    return Bar(*made, console=console, transient=True, disable=console.quiet or not console.is_terminal)


def speaks() -> bool:
    """Of several processes that torchrun has started, only the first one prints."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def in_notebook() -> bool:
    """Whether this runs in a notebook: in IPython with a kernel, which a terminal's IPython has not."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


class TrainingReporter(Reporter):
    """A progress bar with rate and time left on a terminal, plain lines where there is none, nothing when quiet."""

    def __init__(self, *, quiet: bool = False):
        self.console = make_console(quiet=quiet)
        self.unit = ""
        self.bar: Bar | None = None
        self.last_line = 0.0
        self.reading = self.console.status("reading the corpus")
        if self.console.is_terminal:
            self.reading.start()

    def plan(self, plan: "Plan") -> None:
        self.reading.stop()
        self.unit = plan.unit
        for line in plan_lines(plan):
            self.said(line)

    def said(self, message: str) -> None:
        self.console.print(message, soft_wrap=True)

    def logged(self, record: dict[str, Any]) -> None:
        due = time.monotonic() - self.last_line > PLAIN_EVERY
        if self.console.is_terminal and self.bar is not None:
            self.bar.update(self.bar.task_ids[0], what=_describe(record, self.unit))
        if "valid" in record or (due and not self.console.is_terminal):
            self.said(_line_of(record, self.unit))
            self.last_line = time.monotonic()

    def stepped(self, step: "Step", total: int) -> None:
        if not self.console.is_terminal or self.console.quiet:
            return
        if self.bar is None:
            columns = (BarColumn(), MofNCompleteColumn(), "{task.fields[what]}", TimeRemainingColumn())
            self.bar = make_bar(self.console, *columns)
            self.bar.add_task("", total=total, completed=step.number, what="")
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], completed=step.number)

    def close(self) -> None:
        """Takes the bar off the screen."""
        self.reading.stop()
        if self.bar is not None:
            self.bar.stop()


class NotebookReporter(Reporter):
    """A bar with rate and time left below a notebook's cell, and a line for each validation."""

    def __init__(self) -> None:
        self.handle: Any = None  # of the bar, once it is there
        self.began, self.shown, self.first = 0.0, 0.0, 0
        self.what = self.unit = ""

    def plan(self, plan: "Plan") -> None:
        self.unit = plan.unit
        for line in plan_lines(plan):
            self.said(line)

    def said(self, message: str) -> None:
        print(message)

    def logged(self, record: dict[str, Any]) -> None:
        self.what = _describe(record, self.unit)
        if "valid" in record:
            self.said(_line_of(record, self.unit))

    def stepped(self, step: "Step", total: int) -> None:
        from IPython.display import display

        now = time.monotonic()
        if self.handle is None:
            self.began, self.first = now, step.number
            self.handle = display(self._bar(step.number, total), raw=True, display_id=True)
        elif now - self.shown < NOTEBOOK_EVERY and step.number < total:
            return
        self.handle.update(self._bar(step.number, total), raw=True)
        self.shown = now

    def _bar(self, done: int, total: int) -> dict[str, str]:
        """The bar as HTML and, where that is not shown, as text."""
        each = (time.monotonic() - self.began) / max(1, done - self.first)
        left = f"  {duration(each * (total - done))} left" if self.first < done < total else ""
        text = f"{done:,} of {total:,} steps  {self.what}{left}"
        bar = f'<progress value="{done}" max="{total}" style="width:12em"></progress>'
        html = f'<div style="font-size:85%">{bar} {escape(text)}</div>'
        return {"text/html": html, "text/plain": text}


@contextmanager
def shown_progress(*, quiet: bool) -> Iterator[Reporter]:
    """Who is told of a run that Python has begun: nobody who is quiet, nor any process but the first."""
    if quiet or not speaks():
        yield Reporter()
    elif in_notebook():
        yield NotebookReporter()
    else:
        reporter = TrainingReporter()
        try:
            yield reporter
        finally:
            reporter.close()


def plan_lines(plan: "Plan") -> list[str]:
    """What is known of a run before its first step, a line each."""
    lines = [("device", plan.device), (f"{plan.unit} to learn from", f"{plan.predictions:,}")]
    if plan.processes > 1:
        lines.insert(1, ("processes", f"{plan.processes:,}"))
    if plan.steps:
        lines += [
            ("parameters", f"{plan.parameters:,}"),
            ("steps", f"{plan.steps:,}{LITTLE if plan.steps < FEW else ''}"),
            ("time", f"about {duration(plan.seconds)}, validation aside"),
        ]
    if plan.steps and plan.memory is not None:
        lines.append(("memory", f"about {plan.memory / 2**30:.2f} GB{' each' if plan.processes > 1 else ''}"))
    return [f"  {name:<30}{value}" for name, value in lines]


def _line_of(record: dict[str, Any], unit: str) -> str:
    return f"step {record['step']:>7,}  {_describe(record, unit)}"


def _describe(record: dict[str, Any], unit: str) -> str:
    """A line of metrics in words. Of a task the scores are shown, in place of what should fall."""
    scores = {name.removeprefix("valid_"): value for name, value in record.items() if name.startswith("valid_")}
    shown = scores or {"valid": record["valid"]} if "valid" in record else {}
    figures = "".join(f"  {name} {value:.4f}" for name, value in shown.items())
    clipped = f"  clipped {record['clipped']:.0%}" if record["clipped"] else ""
    rate = f"  {record['symbols_per_second']:,.0f} {unit}/s"
    return f"epoch {record['epoch']:.2f}  loss {record['loss']:.4f}{figures}{clipped}{rate}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

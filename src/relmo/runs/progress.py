"""Progress of a training run: a bar on a terminal or in a notebook, plain lines elsewhere.

    Reporter             the interface, whose methods do nothing; subclass it to observe a run
    TrainingReporter     for the command line, and for Python in a terminal or a script
    NotebookReporter     for Python in a notebook; needs only IPython
    progress_reporter    the one that fits the environment

Texts and names come from the user: nothing in them is markup, an emoji, or a number to be coloured.
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

if TYPE_CHECKING:
    from relmo.training.loop import Step
    from relmo.training.plan import Plan

PLAIN_INTERVAL = 10.0  # seconds between lines of progress without a terminal
NOTEBOOK_INTERVAL = 0.25  # seconds between updates of a bar in a notebook
MIN_USEFUL_STEPS = 100
FEW_STEPS_HINT = ", which is few: it learns more with a smaller --batch or more --epochs"


class Reporter:
    """Base class for progress reporters; ignores every event."""

    def on_plan(self, plan: "Plan") -> None:
        """Handle the plan of the run, before the first step."""

    def on_log(self, record: dict[str, Any]) -> None:
        """Handle a record of metrics.jsonl."""

    def on_step(self, step: "Step", total: int) -> None:
        """Handle the end of a step."""

    def on_message(self, message: str) -> None:
        """Handle any other message to the user."""


class PlainConsole(Console):
    """Console that raises the error of a broken pipe, which `relmo.cli.main` handles."""

    def on_broken_pipe(self) -> None:
        """Raise the error again; called while it is being handled."""
        raise


def make_console(*, stderr: bool = True, quiet: bool = False) -> Console:
    """Return a console on standard error, for progress and messages, or on standard output, for results."""
    return PlainConsole(stderr=stderr, quiet=quiet, markup=False, highlight=False, emoji=False)


def make_bar(console: Console, *columns: ProgressColumn | str) -> Bar:
    """Return a transient progress bar, disabled if the console is quiet or not a terminal.

    Columns that are strings are format strings, with {task.description} and the like."""
    texts = [TextColumn(column, markup=False) if isinstance(column, str) else column for column in columns]
    return Bar(*texts, console=console, transient=True, disable=console.quiet or not console.is_terminal)


def is_leader() -> bool:
    """Return whether this process prints; of several processes started by torchrun, only the one of rank 0 does."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


class TrainingReporter(Reporter):
    """Progress bar with rate and remaining time on a terminal, plain lines elsewhere, nothing if quiet."""

    def __init__(self, *, quiet: bool = False):
        self.console = make_console(quiet=quiet)
        self.unit = ""
        self.bar: Bar | None = None
        self.last_line = 0.0
        self.status = self.console.status("reading the corpus")
        if self.console.is_terminal:
            self.status.start()

    def on_plan(self, plan: "Plan") -> None:
        self.status.stop()
        self.unit = plan.unit
        for line in format_plan(plan):
            self.on_message(line)

    def on_message(self, message: str) -> None:
        self.console.print(message, soft_wrap=True)

    def on_log(self, record: dict[str, Any]) -> None:
        is_due = time.monotonic() - self.last_line > PLAIN_INTERVAL
        if self.console.is_terminal and self.bar is not None:
            self.bar.update(self.bar.task_ids[0], metrics=_format_record(record, self.unit))
        if "valid" in record or (is_due and not self.console.is_terminal):
            self.on_message(_format_line(record, self.unit))
            self.last_line = time.monotonic()

    def on_step(self, step: "Step", total: int) -> None:
        if not self.console.is_terminal or self.console.quiet:
            return
        if self.bar is None:
            columns = (BarColumn(), MofNCompleteColumn(), "{task.fields[metrics]}", TimeRemainingColumn())
            self.bar = make_bar(self.console, *columns)
            self.bar.add_task("", total=total, completed=step.number, metrics="")
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], completed=step.number)

    def close(self) -> None:
        """Remove the bar from the screen."""
        self.status.stop()
        if self.bar is not None:
            self.bar.stop()


class NotebookReporter(Reporter):
    """Bar with rate and remaining time below the cell of a notebook, and a line for each validation."""

    def __init__(self) -> None:
        self.handle: Any = None  # of the displayed bar
        self.start_time, self.last_update, self.start_step = 0.0, 0.0, 0
        self.metrics = self.unit = ""

    def on_plan(self, plan: "Plan") -> None:
        self.unit = plan.unit
        for line in format_plan(plan):
            self.on_message(line)

    def on_message(self, message: str) -> None:
        print(message)

    def on_log(self, record: dict[str, Any]) -> None:
        self.metrics = _format_record(record, self.unit)
        if "valid" in record:
            self.on_message(_format_line(record, self.unit))

    def on_step(self, step: "Step", total: int) -> None:
        from IPython.display import display

        now = time.monotonic()
        if self.handle is None:
            self.start_time, self.start_step = now, step.number
            self.handle = display(self._render(step.number, total), raw=True, display_id=True)
        elif now - self.last_update < NOTEBOOK_INTERVAL and step.number < total:
            return
        self.handle.update(self._render(step.number, total), raw=True)
        self.last_update = now

    def _render(self, number: int, total: int) -> dict[str, str]:
        seconds_per_step = (time.monotonic() - self.start_time) / max(1, number - self.start_step)
        text = f"{number:,} of {total:,} steps  {self.metrics}"
        if self.start_step < number < total:
            text += f"  {duration(seconds_per_step * (total - number))} left"
        bar = f'<progress value="{number}" max="{total}" style="width:12em"></progress>'
        return {"text/html": f'<div style="font-size:85%">{bar} {escape(text)}</div>', "text/plain": text}


@contextmanager
def progress_reporter(*, quiet: bool) -> Iterator[Reporter]:
    """Return the progress reporter for `relmo.train` (silent if `quiet` or rank > 0)."""
    ipython = sys.modules.get("IPython")  # in a notebook it has a kernel, in a terminal it has not
    if quiet or not is_leader():
        yield Reporter()
    elif ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        yield NotebookReporter()
    else:
        reporter = TrainingReporter()
        try:
            yield reporter
        finally:
            reporter.close()


def format_plan(plan: "Plan") -> list[str]:
    """Return the plan of a run, one fact per line."""
    facts = [("device", plan.device), (f"{plan.unit} to learn from", f"{plan.predictions:,}")]
    if plan.processes > 1:
        facts.insert(1, ("processes", f"{plan.processes:,}"))
    if plan.steps:
        facts += [
            ("parameters", f"{plan.parameters:,}"),
            ("steps", f"{plan.steps:,}{FEW_STEPS_HINT if plan.steps < MIN_USEFUL_STEPS else ''}"),
            ("time", f"about {duration(plan.seconds)}, without validation"),
        ]
    if plan.steps and plan.memory is not None:
        facts.append(("memory", f"about {plan.memory / 2**30:.2f} GB{' each' if plan.processes > 1 else ''}"))
    return [f"  {name:<30}{value}" for name, value in facts]


def _format_line(record: dict[str, Any], unit: str) -> str:
    return f"step {record['step']:>7,}  {_format_record(record, unit)}"


def _format_record(record: dict[str, Any], unit: str) -> str:
    # a task has scores, which replace the validation loss
    scores = {name.removeprefix("valid_"): value for name, value in record.items() if name.startswith("valid_")}
    if not scores and "valid" in record:
        scores = {"valid": record["valid"]}
    figures = "".join(f"  {name} {value:.4f}" for name, value in scores.items())
    clipped = f"  clipped {record['clipped']:.0%}" if record["clipped"] else ""
    rate = f"  {record['symbols_per_second']:,.0f} {unit}/s"
    return f"epoch {record['epoch']:.2f}  loss {record['loss']:.4f}{figures}{clipped}{rate}"


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

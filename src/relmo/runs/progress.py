"""Progress of a training run: a bar on a terminal or in a notebook, plain lines elsewhere.

Texts and names come from the user: nothing in them is markup, an emoji, or a number to be coloured.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from relmo.training.loop import Plan, Step

PLAIN_INTERVAL = 10.0  # seconds between lines of progress without a terminal
NOTEBOOK_INTERVAL = 0.25  # seconds between updates of a bar in a notebook
MIN_USEFUL_STEPS = 100
FEW_STEPS_HINT = ", which is few: it learns more with a smaller --batch or more --epochs"


class Reporter:
    """Base class for progress reporters; ignores every event. Subclass it to observe a run."""

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
    """Return a transient bar, disabled if quiet or not on a terminal; strings are formats, as {task.description}."""
    texts = [TextColumn(column, markup=False) if isinstance(column, str) else column for column in columns]
    return Bar(*texts, console=console, transient=True, disable=console.quiet or not console.is_terminal)


def is_leader() -> bool:
    """Return whether this process prints; of several processes started by torchrun, only the one of rank 0 does."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


class _PlanReporter(Reporter):
    unit = ""

    def on_plan(self, plan: "Plan") -> None:
        self.unit = plan.unit
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
        for name, value in facts:
            self.on_message(f"  {name:<30}{value}")

    def _format(self, record: dict[str, Any]) -> str:
        # a task has scores, which replace the validation loss
        scores = {name.removeprefix("valid_"): value for name, value in record.items() if name.startswith("valid_")}
        if not scores and "valid" in record:
            scores = {"valid": record["valid"]}
        figures = "".join(f"  {name} {value:.4f}" for name, value in scores.items())
        clipped = f"  clipped {record['clipped']:.0%}" if record["clipped"] else ""
        rate = f"  {record['symbols_per_second']:,.0f} {self.unit}/s"
        return f"epoch {record['epoch']:.2f}  loss {record['loss']:.4f}{figures}{clipped}{rate}"


class TrainingReporter(_PlanReporter):
    """Progress bar with rate and remaining time on a terminal, plain lines elsewhere, nothing if quiet."""

    def __init__(self, *, quiet: bool = False):
        self.console = make_console(quiet=quiet)
        self.bar: Bar | None = None
        self.last_line = 0.0
        self.status = self.console.status("reading the corpus")
        if self.console.is_terminal:
            self.status.start()

    def on_plan(self, plan: "Plan") -> None:
        self.status.stop()
        super().on_plan(plan)

    def on_message(self, message: str) -> None:
        self.console.print(message, soft_wrap=True)

    def on_log(self, record: dict[str, Any]) -> None:
        is_due = time.monotonic() - self.last_line > PLAIN_INTERVAL
        if self.console.is_terminal and self.bar is not None:
            self.bar.update(self.bar.task_ids[0], metrics=self._format(record))
        if "valid" in record or (is_due and not self.console.is_terminal):
            self.on_message(f"step {record['step']:>7,}  {self._format(record)}")
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


class NotebookReporter(_PlanReporter):
    """Bar with rate and remaining time below the cell of a notebook, and a line for each validation."""

    def __init__(self) -> None:
        self.handle: Any = None  # of the displayed bar
        self.start_time, self.last_update, self.start_step = 0.0, 0.0, 0
        self.metrics = ""

    def on_message(self, message: str) -> None:
        print(message)

    def on_log(self, record: dict[str, Any]) -> None:
        self.metrics = self._format(record)
        if "valid" in record:
            self.on_message(f"step {record['step']:>7,}  {self.metrics}")

    def on_step(self, step: "Step", total: int) -> None:
        from IPython.display import display

        now, number = time.monotonic(), step.number
        if self.handle is None:
            self.start_time, self.start_step = now, number
        elif now - self.last_update < NOTEBOOK_INTERVAL and number < total:
            return
        text = f"{number:,} of {total:,} steps  {self.metrics}"
        if self.start_step < number < total:
            seconds_per_step = (now - self.start_time) / (number - self.start_step)
            text += f"  {duration(seconds_per_step * (total - number))} left"
        bar = f'<progress value="{number}" max="{total}" style="width:12em"></progress>'
        contents = {"text/html": f'<div style="font-size:85%">{bar} {escape(text)}</div>', "text/plain": text}
        if self.handle is None:
            self.handle = display(contents, raw=True, display_id=True)
        self.handle.update(contents, raw=True)
        self.last_update = now


@contextmanager
def progress_reporter(*, quiet: bool) -> Iterator[Reporter]:
    """Return the progress reporter for `relmo.train` (silent if `quiet` or rank > 0)."""
    ipython = sys.modules.get("IPython")  # in a notebook it has a kernel, in a terminal it has not
    if quiet or not is_leader():
        yield Reporter()
    elif ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        yield NotebookReporter()
    else:
        with closing(TrainingReporter()) as reporter:
            yield reporter


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

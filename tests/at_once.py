"""Threads that begin together, and interruptions at a chosen step: for the tests of both, and their campaigns."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from types import FrameType
from typing import Any, TypeVar

import relmo

Result = TypeVar("Result")
SOURCE = str(Path(relmo.__file__).parent)
OFTEN = 1e-5  # seconds after which a thread gives way to another


def at_once(work: Callable[[int], Result], threads: int) -> list[Result]:
    """What `work` gives for 0, 1, …, each in a thread of its own, all begun together; they give way to each other
    often. The first error of a thread is raised."""
    start, before = Barrier(threads), sys.getswitchinterval()

    def begin(number: int) -> Result:
        start.wait()
        return work(number)

    sys.setswitchinterval(OFTEN)
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(begin, range(threads)))
    finally:
        sys.setswitchinterval(before)


class Steps:
    """The lines of relmo's code as they are executed; one of them is interrupted, as by Ctrl-C just before it."""

    def __init__(self, interrupted: int | None, files: str = ""):
        self.interrupted, self.files = interrupted, files
        self.count = 0

    def enter(self, frame: FrameType, event: str, _: Any) -> Any:
        """For sys.settrace: whether the lines of a function are looked at."""
        name = frame.f_code.co_filename
        return self.line if event == "call" and name.startswith(SOURCE) and name.endswith(self.files) else None

    def line(self, _: FrameType, event: str, __: Any) -> Any:
        """One line."""
        if event == "line":
            self.count += 1
            if self.count == self.interrupted:
                raise KeyboardInterrupt
        return self.line


@contextmanager
def interrupted(step: int | None, files: str = "") -> Iterator[Steps]:
    """Within it the step of this number, counted from 1, is interrupted; where there are less, nothing is. `files` is
    how the names of files end whose lines are counted."""
    steps, before = Steps(step, files), sys.gettrace()
    sys.settrace(steps.enter)
    try:
        yield steps
    finally:
        sys.settrace(before)

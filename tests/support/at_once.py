"""Threads that begin together, and interruptions at a chosen step: for the tests of both, and their campaigns."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from linecache import getline
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
    """The lines of relmo's code as they are executed; one of them is interrupted, as by Ctrl-C just before it.

    A line that begins with `with` is none of them: it comes again when its block ends, and between the end and the
    release of a lock Python lets no signal in.
    """

    def __init__(self, interrupted: int | None):
        self.interrupted = interrupted
        self.count = 0

    def enter(self, frame: FrameType, event: str, _: Any) -> Any:
        """For sys.settrace: whether the lines of a function are looked at."""
        return self.line if event == "call" and frame.f_code.co_filename.startswith(SOURCE) else None

    def line(self, frame: FrameType, event: str, _: Any) -> Any:
        """One line."""
        if event == "line" and not getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            self.count += 1
            if self.count == self.interrupted:
                raise KeyboardInterrupt
        return self.line


@contextmanager
def interrupted(step: int | None) -> Iterator[Steps]:
    """Within it the step of this number, counted from 1, is interrupted; where there are less, nothing is."""
    steps, before = Steps(step), sys.gettrace()
    sys.settrace(steps.enter)
    try:
        yield steps
    finally:
        sys.settrace(before)

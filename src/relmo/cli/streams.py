"""The standard streams as they may be: closed, full, no longer read, or of an encoding that cannot say everything."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMES = ("stdin", "stdout", "stderr")


def prepare_streams() -> None:
    """Makes the streams fit to be used. A closed one takes no file's place, and what is printed there is lost, as to
    /dev/null; a character that a stream's encoding does not have is printed as its number."""
    for number, name in enumerate(NAMES):
        if not _is_open(number):
            os.open(os.devnull, os.O_RDWR)  # takes the first number that is free, which is this one
        if getattr(sys, name) is None and name != "stdin":
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _is_open(number: int) -> bool:
    """Whether there is a file of this number."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def takes_everything(stream: Any) -> bool:
    """Whether a stream's encoding has all characters."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")


def broken_stream() -> str | None:
    """The stream that does not take what is to be printed, if there is one; nothing is printed there any more."""
    found = None
    for stream, name in ((sys.stdout, "standard output"), (sys.stderr, "standard error")):
        try:
            stream.flush()
        except OSError:
            found = found or name
            silence(stream)
    return found


def silence(stream: Any) -> None:
    """What is printed on a stream from now on is lost, and what waits to be printed too."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)

"""The standard streams as they may be: closed, full, no longer read, or of an encoding that cannot say everything."""

import os
import sys
from contextlib import suppress
from typing import Any

NAMES = ("stdin", "stdout", "stderr")


def prepare_streams() -> None:
    """Make the standard streams usable. The descriptor of a closed one is filled, so that no file takes its place:
    output to a closed standard output fails, as results would be lost; messages to a closed standard error are dropped.
    A character that a stream's encoding lacks is printed as its number."""
    for number, name in enumerate(NAMES):
        if not _is_open(number):
            # the first free descriptor is this one
            os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_RDWR)
        if getattr(sys, name) is None and name != "stdin":
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
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

"""The exceptions a user can see. Each message says what is wrong, where, and what to do next, in one line.

The command line prints the message and exits with status 2. A traceback is for our mistakes, never for the user's.
What a message quotes may come from anyone: `shown` cuts it short, and `one_line` makes every message fit to print.
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

LONGEST = 500  # characters of a message
NO_MEMORY = "there is not enough memory"  # how a message begins, so that who started the command knows it
IN_WORDS = {
    errno.ENOENT: "no such file",
    errno.EISDIR: "it is a folder",
    errno.ENOTDIR: "part of its path is not a folder",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.ELOOP: "its links go round in a circle",
}


def shown(value: Any, longest: int = 60) -> str:
    """Return the repr of a value, cut after `longest` characters; a string keeps its closing quote."""
    try:
        text = repr(value[: longest + 1] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits; lists in lists in lists
        text = f"a {type(value).__name__} that is too large to be shown"
    if len(text) <= longest + 2:
        return text
    return f"{text[:longest]}…{text[-1] if isinstance(value, str) else ''}"


def one_line(message: str) -> str:
    """A message on one line that every terminal can print. What is not printable is escaped; the middle of a long
    message is left out."""
    line = _ends(re.sub(r"\s*[\r\n]\s*", " ", message.strip()))
    if line.isprintable():
        return line
    return _ends("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))


def _ends(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST * 2 // 3]} … {line[-LONGEST // 3 + 3 :]}"


class RelmoError(Exception):
    """Something the user can put right: the message says what and how."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


class SettingError(RelmoError):
    """A setting is unknown, of the wrong type, or cannot go with another."""


class CorpusError(RelmoError):
    """A text cannot be read, or is not enough to work with."""


class VocabularyError(RelmoError):
    """A vocabulary file is broken, or does not fit the model."""


class UnknownWordError(VocabularyError, KeyError):
    """A word has no vector. It is a KeyError too, as of a dictionary."""

    __str__ = Exception.__str__  # a KeyError's has quotes around it


class ModelError(RelmoError):
    """A model folder is missing, incomplete, corrupted, or of a kind the verb does not take."""


class WrongKindError(ModelError):
    """A model is of another kind than is needed here."""


class StorageError(RelmoError):
    """Output cannot be written: the disk is full, or the place is not writable."""


def reason(error: Exception) -> str:
    """Why a file cannot be read or written, in words: without the number of the error and without the file's name."""
    if isinstance(error, OSError) and error.errno is not None:
        return IN_WORDS.get(error.errno) or error.strerror or str(error)
    return "its name has a NUL in it" if "embedded null" in str(error) else str(error)


class ComputationCancelled(Exception):
    """Nobody waits for the result of a computation any more."""


_is_cancelled: ContextVar[Callable[[], bool]] = ContextVar("is_cancelled", default=lambda: False)


@contextmanager
def cancellable(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Let `check_cancelled` end computations in this block once `is_cancelled` returns True."""
    token = _is_cancelled.set(is_cancelled)
    try:
        yield
    finally:
        _is_cancelled.reset(token)


def check_cancelled() -> None:
    """Raise `ComputationCancelled` if the result is no longer needed; long computations call it between steps."""
    if _is_cancelled.get()():
        raise ComputationCancelled

"""Exceptions for problems that the user can fix. A message states the problem, its location and a remedy, in one line.
The command line prints it and exits with status 2; a traceback always means a bug in relmo. Quoted values may come from
anyone: `quote` truncates them, and `one_line` makes every message printable."""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

MAX_MESSAGE_LENGTH = 500  # characters
NO_MEMORY = "there is not enough memory"  # start of the message; experiments/trainings.py looks for it
OS_ERRORS = {
    errno.ENOENT: "no such file",
    errno.EISDIR: "it is a folder",
    errno.ENOTDIR: "part of its path is not a folder",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.ELOOP: "its symbolic links form a loop",
}


def quote(value: Any, max_length: int = 60) -> str:
    """Return the repr of a value, truncated after `max_length` characters; a string keeps its closing quote."""
    try:
        text = repr(value[: max_length + 1] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; deeply nested lists
        text = f"a {type(value).__name__} that is too large to print"
    if len(text) <= max_length + 2:
        return text
    return f"{text[:max_length]}…{text[-1] if isinstance(value, str) else ''}"


def one_line(message: str) -> str:
    """Return the message on one line, with unprintable characters escaped and the middle of a long message left out."""
    line = _shorten(re.sub(r"\s*[\r\n]\s*", " ", message.strip()))
    if line.isprintable():
        return line
    return _shorten("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))


def _shorten(line: str) -> str:
    if len(line) <= MAX_MESSAGE_LENGTH:
        return line
    return f"{line[: MAX_MESSAGE_LENGTH * 2 // 3]} … {line[-MAX_MESSAGE_LENGTH // 3 + 3 :]}"


class RelmoError(Exception):
    """Base class of all errors that the user can fix."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


class SettingError(RelmoError):
    """Unknown or invalid setting, or a combination that is not supported."""


class CorpusError(RelmoError):
    """Text that cannot be read, or that is too short."""


class VocabularyError(RelmoError):
    """Vocabulary file that is damaged or does not match the model."""


class UnknownWordError(VocabularyError, KeyError):
    """Word without a vector; also a `KeyError`, like a missing key of a dictionary."""

    __str__ = Exception.__str__  # KeyError adds quotes


class ModelError(RelmoError):
    """Model folder that is missing, incomplete, damaged or of an unsupported kind."""


class WrongKindError(ModelError):
    """Model of a kind that is not supported here."""


class StorageError(RelmoError):
    """Output that cannot be written: the disk is full, or the path is not writable."""


def describe_os_error(error: Exception) -> str:
    """Describe why a file cannot be read or written, without the error number and the file name."""
    if isinstance(error, OSError) and error.errno is not None:
        return OS_ERRORS.get(error.errno) or error.strerror or str(error)
    return "the name contains a NUL character" if "embedded null" in str(error) else str(error)


@contextmanager
def optional_import(need: str, extra: str, error: type[Exception] = SettingError) -> Iterator[None]:
    """Raise `error` with the need and the command that installs an extra of relmo if an import in this block fails."""
    try:
        yield
    except ImportError as cause:
        raise error(f"{need}; try: pip install 'relmo[{extra}]'") from cause


class ComputationCancelled(Exception):
    """Cancellation of a computation whose result is no longer needed."""


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

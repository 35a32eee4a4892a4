"""Small files that anyone may have written: checked before memory is taken, and read as text, JSON or TOML.

A file in a model's folder may be a FIFO, on which a reader waits for ever, or a link to a device, which never ends.
JSON may be nested so deeply that it fills the parser's stack. Whatever is wrong is a ValueError that says so; the
caller adds what to do about it.
"""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relmo.errors import reason

URL = re.compile(r"(https?|ftp|s3|gs|hf):/{1,2}(?!/)", re.IGNORECASE)
NO_DOWNLOAD = "is a URL; relmo does not download, so fetch it yourself and give the path"
LARGEST = 1 << 22
LARGEST_TOML = 1 << 16
MOST_LEVELS = 50
TOO_DEEP = "it is nested too deeply"
MOST_DOTS = 100  # in a line of TOML; tomllib takes time and memory that grow with the square of a key's parts


def find_url(path: str | Path) -> str | None:
    """Return the URL that was given as a path, with the slash that `Path` drops; None for any other path."""
    scheme = URL.match(str(path))
    return f"{scheme[1]}://{str(path)[scheme.end() :]}" if scheme else None


def is_file(path: str | Path) -> bool:
    """Whether this is an ordinary file or a link to one. A name that no system accepts is not."""
    return os.path.isfile(path)  # noqa: PTH113  (Path.is_file raises where a name is too long)


def read_bytes(path: str | Path, largest: int) -> bytes:
    """All bytes of a file; more than `largest` are an error, and are not read: the file may be a device."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(largest + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ValueError(reason(error)) from error
    if len(data) > largest:
        raise ValueError(f"it is too large, with more than {largest:,} bytes")
    return data


def read_small(path: str | Path, largest: int = LARGEST) -> str:
    """The text of a file that is not large."""
    data = read_bytes(path, largest)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte 0x{data[error.start]:02x} at {error.start} is not UTF-8") from error


def parse_json(text: str) -> Any:
    """The value of a JSON text."""
    return _checked(json.loads, text)


def read_json(path: str | Path) -> Any:
    """The value of a JSON file inside a folder, where only an ordinary file is expected."""
    if not is_file(path):
        raise ValueError("it is no ordinary file" if os.path.lexists(path) else "there is no such file")
    return parse_json(read_small(path))


def finite(value: Any) -> Any:
    """A result with None in the place of numbers that JSON has not."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text."""
    if any(line.count(".") > MOST_DOTS for line in text.split("\n") if not line.startswith("#")):
        raise ValueError("a key has too many dots")
    found: dict[str, Any] = _checked(tomllib.loads, text)
    return found


def _checked(parse: Callable[[str], Any], text: str) -> Any:
    """What a parser makes of a text. Deep nesting is refused, since other code could not walk through it."""
    try:
        value = parse(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError):
        raise
    except ValueError as error:  # Python reads no more than some thousands of digits
        raise ValueError("a whole number has too many digits") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    level = [value]
    for _ in range(MOST_LEVELS):
        insides = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [each for inside in insides for each in inside]
        if not level:
            return value
    raise ValueError(TOO_DEEP)

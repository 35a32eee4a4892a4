"""Bounded reading of small files that anyone may have written (text, JSON, TOML), and of .parquet tables.

A file in a model folder may be a FIFO, which blocks its reader, or a link to a device, which never ends; JSON may be
nested deeply enough to overflow the parser's stack. Every problem is a ValueError; the caller adds the advice.
"""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from relmo.errors import CorpusError, SettingError, describe_os_error

URL = re.compile(r"(https?|ftp|s3|gs|hf):/{1,2}(?!/)", re.IGNORECASE)
NO_DOWNLOAD = "is a URL; relmo does not download, so fetch it yourself and give the path"
MAX_TEXT_BYTES = 1 << 22
MAX_TOML_BYTES = 1 << 16
MAX_NESTING = 50
MAX_DOTS = 100  # in a line of TOML; the time and memory of tomllib grow with the square of the parts of a key
PARQUET_BATCH_ROWS = 1024
TOO_DEEP = "it is nested too deeply"


def find_url(path: str | Path) -> str | None:
    """Return the URL that was given as a path, with the slash that `Path` drops; None for any other path."""
    scheme = URL.match(str(path))
    return f"{scheme[1]}://{str(path)[scheme.end() :]}" if scheme else None


def is_file(path: str | Path) -> bool:
    """Return whether this is a regular file or a link to one; False for names that the system rejects."""
    return os.path.isfile(path)  # noqa: PTH113  (Path.is_file raises where a name is too long)


def read_bytes(path: str | Path, max_bytes: int) -> bytes:
    """Read a file of at most `max_bytes`; no more than that is read, since the file may be a device."""
    try:
        with Path(path).open("rb") as file:
            contents = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ValueError(describe_os_error(error)) from error
    if len(contents) > max_bytes:
        raise ValueError(f"it is too large, with more than {max_bytes:,} bytes")
    return contents


def read_text_file(path: str | Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a small UTF-8 file."""
    contents = read_bytes(path, max_bytes)
    try:
        return contents.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte 0x{contents[error.start]:02x} at {error.start} is not UTF-8") from error


def read_json(path: str | Path) -> Any:
    """Read a small JSON file, which must be a regular file."""
    if not is_file(path):
        raise ValueError("it is not a regular file" if os.path.lexists(path) else "no such file")
    return parse_json(read_text_file(path))


def parse_json(text: str) -> Any:
    """Parse JSON; deep nesting is an error."""
    return _parse(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; deep nesting and keys with many parts are errors."""
    if any(line.count(".") > MAX_DOTS for line in text.split("\n") if not line.startswith("#")):
        raise ValueError("a key has too many dots")
    tables: dict[str, Any] = _parse(tomllib.loads, text)
    return tables


def _parse(parse: Callable[[str], Any], text: str) -> Any:
    try:
        value = parse(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError):
        raise
    except ValueError as error:  # Python limits the digits of an integer
        raise ValueError("an integer has too many digits") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    level = [value]  # recursive functions could not process deeply nested values
    for _ in range(MAX_NESTING):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return value
    raise ValueError(TOO_DEEP)


def replace_nonfinite(value: Any) -> Any:
    """Return a JSON value with NaN and infinity, which JSON does not have, replaced by None."""
    if isinstance(value, dict):
        return {name: replace_nonfinite(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def import_pyarrow() -> Any:
    """Import pyarrow, or raise an error that says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise SettingError(".parquet needs the package pyarrow; try: pip install 'relmo[parquet]'") from None
    return pyarrow


def read_parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a .parquet file as dictionaries, in batches of bounded size."""
    pyarrow = import_pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        problem = describe_os_error(error) if isinstance(error, OSError) and error.errno else str(error)
        raise CorpusError(f"{path}: cannot be read as .parquet ({problem})") from error


def read_parquet_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a .parquet file; empty if it cannot be read."""
    pyarrow = import_pyarrow()
    try:
        metadata = pyarrow.parquet.read_schema(path).metadata or {}
        return {key.decode(): value.decode() for key, value in metadata.items()}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError):
        return {}

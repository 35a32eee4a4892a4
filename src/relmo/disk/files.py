"""Reading of files that anyone may have written or damaged: text, JSON and TOML of bounded size, digests, .parquet.

A file may be a FIFO, which blocks its reader, or a link to a device, which never ends. Problems are ValueErrors or,
where the caller gives its `advice`, a one-line error with the path, the problem and the advice.
"""

import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from relmo.errors import CorpusError, ModelError, RelmoError, describe_os_error, optional_import, quote

URL = re.compile(r"(https?|ftp|s3|gs|hf):/{1,2}(?!/)", re.IGNORECASE)
NO_DOWNLOAD = "is a URL; relmo does not download, so fetch it yourself and give the path"
MAX_TEXT_BYTES = 1 << 22
MAX_TOML_BYTES = 1 << 16
MAX_NESTING = 50
MAX_DOTS = 100  # in a line of TOML; the time and memory of tomllib grow with the square of the parts of a key
PARQUET_BATCH_ROWS = 1024
TOO_DEEP = "it is nested too deeply"
SEAL = "digest"
DAMAGED = "is damaged (its checksum does not match)"


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


def parse_json(text: str, loads: Callable[[str], Any] = json.loads) -> Any:
    """Parse JSON, or another format by its `loads`; deep nesting is an error."""
    try:
        value = loads(text)
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


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; deep nesting and keys with many parts are errors."""
    if any(line.count(".") > MAX_DOTS for line in text.split("\n") if not line.startswith("#")):
        raise ValueError("a key has too many dots")
    tables: dict[str, Any] = parse_json(text, tomllib.loads)
    return tables


def replace_nonfinite(value: Any) -> Any:
    """Return a JSON value with NaN and infinity, which JSON does not have, replaced by None."""
    if isinstance(value, dict):
        return {name: replace_nonfinite(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_regular(path: Path, advice: str, error: type[RelmoError] = ModelError) -> None:
    """Raise `error` unless the path is a regular file; a pipe or a device may never end."""
    try:
        is_regular, exists = path.is_file(), path.exists()
    except OSError as problem:
        raise error(f"{path}: cannot be read ({describe_os_error(problem)}); {advice}") from None
    if not is_regular:
        raise error(f"{path}: {'is not a regular file' if exists else 'is missing'}; {advice}")


def read_json(path: Path, advice: str, error: type[RelmoError] = ModelError) -> dict[str, Any]:
    """Read a small JSON object from a regular file."""
    check_regular(path, advice, error)
    try:
        value = parse_json(read_text_file(path))
    except ValueError as problem:
        raise error(f"{path}: is damaged ({problem}); {advice}") from None
    if not isinstance(value, dict):
        raise error(f"{path}: is damaged (it is not a JSON object); {advice}")
    return value


def seal(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with a digest of them."""
    return values | {SEAL: hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()}


def read_sealed(path: Path, advice: str) -> dict[str, Any]:
    """Read a JSON object that `seal` returned, and verify its digest."""
    note = read_json(path, advice)
    if SEAL not in note:
        raise ModelError(f"{path}: has no checksum (it is damaged, or an older relmo wrote it); {advice}")
    if note != seal({name: value for name, value in note.items() if name != SEAL}):
        raise ModelError(f"{path}: {DAMAGED}; {advice}")
    return note


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, as sha256sum prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(path: Path) -> dict[str, Any]:
    """Return the size and the SHA-256 of a file, for `check_file`."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def check_file(path: Path, expected: Any, advice: str) -> None:
    """Raise `ModelError` unless the file has this fingerprint."""
    check_regular(path, advice)
    if not isinstance(expected, dict):
        expected = {}
    try:
        size, expected_size = path.stat().st_size, expected.get("bytes")
        if size != expected_size:
            raise ModelError(f"{path}: is damaged ({size:,} bytes, not {quote(expected_size)}); {advice}")
        if sha256(path) != expected.get("sha256"):
            raise ModelError(f"{path}: {DAMAGED}; {advice}")
    except OSError as problem:
        raise ModelError(f"{path}: cannot be read ({describe_os_error(problem)}); {advice}") from None


def import_pyarrow() -> Any:
    """Import pyarrow, or raise an error that says how to install it."""
    with optional_import(".parquet needs the package pyarrow", "parquet"):
        import pyarrow.parquet
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

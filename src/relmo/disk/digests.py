"""Integrity checks of files that relmo wrote: regular file, expected size, matching digest.

    note = read_sealed(folder / "run.json", "start again")     a JSON object with a digest of itself
    write_json(path, {"files": {"ids": fingerprint(ids)}})     fingerprint of a file: {"bytes": …, "sha256": …}
    check_file(ids, note["files"]["ids"], "start again")       compares the size first, so that no wrong file is read

Files can be damaged, truncated, edited, or replaced by pipes and devices. Each case is a one-line error with the path,
the problem, and `advice`, which says what to do.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from relmo.disk import files
from relmo.errors import ModelError, RelmoError, describe_os_error

SEAL = "digest"
DAMAGED = "is damaged (its checksum does not match)"


def check_regular(path: Path, advice: str, error: type[RelmoError] = ModelError) -> None:
    """Raise `error` unless the path is a regular file; a pipe or a device may never end."""
    try:
        is_regular, exists = path.is_file(), path.exists()
    except OSError as problem:
        raise error(f"{path}: cannot be read ({describe_os_error(problem)}); {advice}") from None
    if not is_regular:
        raise error(f"{path}: {'is not a regular file' if exists else 'is missing'}; {advice}")


def read_json(path: Path, advice: str, error: type[RelmoError] = ModelError) -> dict[str, Any]:
    """Read a JSON object."""
    check_regular(path, advice, error)
    try:
        value = files.read_json(path)
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


def check_file(path: Path, expected: Any, advice: str, error: type[RelmoError] = ModelError) -> None:
    """Raise `error` unless the file has this fingerprint."""
    check_regular(path, advice, error)
    if not isinstance(expected, dict):
        expected = {}
    try:
        size, expected_size = path.stat().st_size, expected.get("bytes")
        if size != expected_size:
            is_size = type(expected_size) is int and 0 <= expected_size < 1 << 63
            text = f"{expected_size:,}" if is_size else "the recorded number"
            raise error(f"{path}: is damaged ({size:,} bytes, not {text}); {advice}")
        if sha256(path) != expected.get("sha256"):
            raise error(f"{path}: {DAMAGED}; {advice}")
    except OSError as problem:
        raise error(f"{path}: cannot be read ({describe_os_error(problem)}); {advice}") from None

"""Checks of what relmo wrote and reads back: is it a file, has it the right size, is it still what was written?

    note = read_sealed(folder / "run.json", "start again")     a JSON object that carries a digest of itself
    write_json(path, {"files": {"ids": fingerprint(ids)}})     of a file: {"bytes": …, "sha256": …}
    check_file(ids, note["files"]["ids"], "start again")       the size first, so that no wrong file is read to its end

Files on a disk can be damaged, cut short, edited, or replaced by pipes and devices. Each such case is an error of one
line: the file, what is wrong with it, and `advice`, which says what to do.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from relmo.disk import files
from relmo.errors import ModelError, RelmoError, reason

SEAL = "digest"
DAMAGED = "is damaged (its checksum does not match)"


def check_regular(path: Path, advice: str, error: type[RelmoError] = ModelError) -> None:
    """An error where there is no file to read: nothing at all, a folder, or a pipe or device, which may never end."""
    try:
        regular, there = path.is_file(), path.exists()
    except OSError as problem:
        raise error(f"{path}: cannot be read ({reason(problem)}); {advice}") from None
    if not regular:
        raise error(f"{path}: {'is not a regular file' if there else 'is missing'}; {advice}")


def read_json(path: Path, advice: str, error: type[RelmoError] = ModelError) -> dict[str, Any]:
    """The JSON object in a file."""
    check_regular(path, advice, error)
    try:
        value = files.read_json(path)
    except ValueError as problem:
        raise error(f"{path}: is damaged ({problem}); {advice}") from None
    if not isinstance(value, dict):
        raise error(f"{path}: is damaged (it is not a JSON object); {advice}")
    return value


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """The values and a digest of them."""
    return values | {SEAL: hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()}


def read_sealed(path: Path, advice: str) -> dict[str, Any]:
    """What `sealed` gave, from a JSON file."""
    found = read_json(path, advice)
    if SEAL not in found:
        raise ModelError(f"{path}: has no checksum (it is damaged, or an older relmo wrote it); {advice}")
    if found != sealed({name: value for name, value in found.items() if name != SEAL}):
        raise ModelError(f"{path}: {DAMAGED}; {advice}")
    return found


def sha256(path: Path) -> str:
    """The checksum of a file, as sha256sum prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(path: Path) -> dict[str, Any]:
    """The size and the checksum of a file, for `check_file`."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def check_file(path: Path, known: Any, advice: str, error: type[RelmoError] = ModelError) -> None:
    """An error where a file is not the one of this fingerprint."""
    check_regular(path, advice, error)
    expected = known if isinstance(known, dict) else {}
    try:
        size = path.stat().st_size
        if size != expected.get("bytes"):
            raise error(f"{path}: is damaged ({size:,} bytes, not {_shown(expected.get('bytes'))}); {advice}")
        if sha256(path) != expected.get("sha256"):
            raise error(f"{path}: {DAMAGED}; {advice}")
    except OSError as problem:
        raise error(f"{path}: cannot be read ({reason(problem)}); {advice}") from None


def _shown(size: Any) -> str:
    return f"{size:,}" if type(size) is int and 0 <= size < 1 << 63 else "those of its record"

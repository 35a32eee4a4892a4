"""Files of a run as a caller gives them: one or several paths, or a DataFrame. A text that was given in place of a path
is detected before anything is written."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from relmo.disk.outputs import atomic
from relmo.errors import SettingError, quote
from relmo.runs.folder import RUN
from relmo.settings.arguments import describe_value
from relmo.settings.kinds import TASKS


@runtime_checkable
class DataFrame(Protocol):
    """Interface of `pandas.DataFrame` that is used here."""

    columns: Any

    def to_json(self, path: Any, /, **options: Any) -> Any:
        """Write the rows to a JSON file."""


Files: TypeAlias = str | Path | Iterable[str | Path]
Data: TypeAlias = Files | DataFrame
MIN_WORDS_OF_TEXT = 5  # a string with fewer words is taken for a path
SUFFIX = re.compile(r"\.\w{1,8}$")


def list_paths(files: Files | None) -> list[str]:
    """Return the paths in order; raise `SettingError` if one of them is a text."""
    if files is None:
        return []
    if isinstance(files, bytes) or not isinstance(files, str | os.PathLike | Iterable):
        raise SettingError(f"files must be a path or a list of paths, not {describe_value(files)}")
    return [check_path(file) for file in ([files] if isinstance(files, str | os.PathLike) else files)]


def check_path(file: Any) -> str:
    """Return a path as a string; raise `SettingError` if it is a text.

    A text has line ends, or is several words that name no file and have no suffix."""
    if not isinstance(file, str | os.PathLike) or not isinstance(path := os.fspath(file), str):
        raise SettingError(f"a file is given by its path, a str or a Path, not {describe_value(file)}")
    if not path.strip():
        raise SettingError("the path of a file is empty")
    is_long = len(path.split()) >= MIN_WORDS_OF_TEXT and not SUFFIX.search(path) and not os.path.lexists(path)
    if "\n" in path or "\r" in path or is_long:
        raise SettingError(
            f"{quote(path)} is a text, not the path of a file; write it to a file, one sentence or paragraph per "
            "line, and give the path of that file"
        )
    return path


def write_frame(data: Any, kind: str, out: Path, part: str) -> Any:
    """Write a DataFrame next to the folder `out` as JSON lines and return the path; return anything else unchanged.

    If `out` holds a run, its original rows are kept."""
    if not isinstance(data, DataFrame):
        return data
    if kind not in TASKS:
        raise SettingError(
            f"kind {kind} is trained on plain text, not on a DataFrame; write the text column to a file, one sentence "
            "or paragraph per line, and give the path of that file"
        )
    path = _frame_file(out, part)
    if (out / RUN).exists() and path.exists():
        return str(path)
    try:
        with atomic(path) as temporary:
            data.to_json(temporary, orient="records", lines=True, force_ascii=False, double_precision=15)
    except ValueError as error:
        raise SettingError(f"the DataFrame cannot be written as a table: {error}") from error
    return str(path)


def remove_frame_files(out: Path) -> None:
    """Remove the files that `write_frame` wrote."""
    for part in ("train", "valid"):
        _frame_file(out, part).unlink(missing_ok=True)


def _frame_file(out: Path, part: str) -> Path:
    folder = out.absolute()
    return folder.with_name(f"{folder.name}.{part}-frame.jsonl")

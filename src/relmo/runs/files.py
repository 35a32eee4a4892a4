"""The files that a run reads, as a caller gives them: one or several, as strings or paths. A text that was given in
place of a file is told from one, before anything is made on disk."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from relmo.disk.outputs import atomic
from relmo.errors import SettingError, shown
from relmo.runs.folder import RUN
from relmo.settings.arguments import typed
from relmo.settings.kinds import TASKS


@runtime_checkable
class DataFrame(Protocol):
    """Methods of `pandas.DataFrame` that are used here."""

    columns: Any

    def to_json(self, path: Any, /, **options: Any) -> Any:
        """Write the rows to a JSON file."""


Files: TypeAlias = str | Path | Iterable[str | Path]
Data: TypeAlias = Files | DataFrame
WORDS_OF_TEXT = 5  # a name with fewer words is taken for a file's
ENDING = re.compile(r"\.\w{1,8}$")


def listed_files(files: Files | None) -> list[str]:
    """The files in their order; an error where one of them is a text and not the path of a file."""
    if files is None:
        return []
    if isinstance(files, bytes) or not isinstance(files, str | os.PathLike | Iterable):
        raise SettingError(f"files must be a path or a list of paths, not {typed(files)}")
    return [one_file(file) for file in ([files] if isinstance(files, str | os.PathLike) else files)]


def one_file(file: Any) -> str:
    """The path of a file as a string; an error where it is a text."""
    if not isinstance(file, str | os.PathLike) or not isinstance(path := os.fspath(file), str):
        raise SettingError(f"a file is given by its path, a str or a Path, not {typed(file)}")
    if not path.strip():
        raise SettingError("the name of a file is empty; give the path of a file")
    if looks_like_text(path):
        raise SettingError(
            f"{shown(path)} is a text and not the path of a file; write it to a file, one sentence or paragraph "
            "a line, and give the path of that file"
        )
    return path


def write_frame(data: Any, kind: str, out: Path, part: str) -> Any:
    """Write a DataFrame beside the folder `out` as JSON lines and return the path; return anything else as it is.

    If `out` holds a run, the rows that it began with are kept."""
    if not isinstance(data, DataFrame):
        return data
    if kind not in TASKS:
        raise SettingError(
            f"kind {kind} learns from plain text, not from a DataFrame; write the column with the text to a file, one "
            "sentence or paragraph per line, and give the path of that file"
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


def looks_like_text(path: str) -> bool:
    """Whether a string that should be a file's path is a text: it has line ends, or is several words that name no file
    and do not end as the names of files do."""
    if "\n" in path or "\r" in path:
        return True
    several = len(path.split()) >= WORDS_OF_TEXT
    return several and not ENDING.search(path) and not os.path.lexists(path)

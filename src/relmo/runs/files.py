"""The files that a run reads, as a caller gives them: one or several, as strings or paths. A text that was given in
place of a file is told from one, before anything is made on disk."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from relmo.errors import SettingError, shown
from relmo.settings.arguments import typed

Files: TypeAlias = str | Path | Iterable[str | Path]
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


def looks_like_text(path: str) -> bool:
    """Whether a string that should be a file's path is a text: it has line ends, or is several words that name no file
    and do not end as the names of files do."""
    if "\n" in path or "\r" in path:
        return True
    several = len(path.split()) >= WORDS_OF_TEXT
    return several and not ENDING.search(path) and not os.path.lexists(path)

"""Where the data of published tables is looked for. None of it ships with relmo."""

import os
from pathlib import Path

from relmo.errors import CorpusError

VARIABLE = "RELMO_DATA"


def data_folder(given: Path | None = None) -> Path:
    """The folder given; else that of $RELMO_DATA; else data/ where the command runs."""
    if given is not None:
        return given
    return Path(os.environ.get(VARIABLE) or "data")


def required(data: Path, relative: str, what: str) -> Path:
    """A file or folder inside the data folder; one line says what is missing and where it was looked for."""
    path = data / relative
    if not path.exists():
        raise CorpusError(
            f"{what}: {path} is not there (looked for {relative} in {data.absolute()}); "
            f"say where the data lies with --data DIR or {VARIABLE}=DIR"
        )
    return path

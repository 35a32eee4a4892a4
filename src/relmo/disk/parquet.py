"""Parquet files, by the package pyarrow of the extra `parquet`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relmo.errors import CorpusError, SettingError, reason

READ_ROWS = 1024  # rows that are in memory together


def import_pyarrow() -> Any:
    """The package pyarrow, or an error that says how to get it."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise SettingError(".parquet needs the package pyarrow; try: pip install 'relmo[parquet]'") from None
    return pyarrow


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file by the names of its columns, some at a time."""
    pyarrow = import_pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=READ_ROWS):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        why = reason(error) if isinstance(error, OSError) and error.errno else str(error)
        raise CorpusError(f"{path}: cannot be read as .parquet ({why})") from error


def read_metadata(path: Path) -> dict[str, str]:
    """What a file that relmo wrote says of itself; empty where it cannot be read."""
    pyarrow = import_pyarrow()
    try:
        found = pyarrow.parquet.read_schema(path).metadata or {}
        return {key.decode(): value.decode() for key, value in found.items()}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError):
        return {}

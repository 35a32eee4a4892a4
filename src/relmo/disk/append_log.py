"""Append-only log that survives a kill at any moment.

    with AppendLog(folder / "lines.jsonl", folder / "vectors.bin", size=lines, data_size=vectors) as log:
        log.append(record, vectors)      the data is written at once, the record waits
        log.commit()                     data on disk first, then the records that refer to it

A record exists once its data is on disk; whatever follows the last complete record is truncated on reopening. The
caller reads the records (`read_lines` for text), decides how many bytes of each file are valid, and passes these sizes.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from relmo.disk.outputs import storage_errors


class AppendLog:
    """Records in one file and, optionally, the data that they refer to in another.

    size, data_size   valid bytes of the two files; the rest is truncated (None: everything is valid)
    num_pending       bytes of data that are not committed yet
    """

    def __init__(self, path: Path, data: Path | None = None, *, size: int | None = None, data_size: int | None = None):
        self.path = path
        self.num_pending = 0
        self._pending: list[bytes] = []
        with storage_errors(path):
            self._records = path.open("ab", buffering=0)
            self._data = None if data is None else data.open("ab", buffering=0)
            for file, valid in ((self._records, size), (self._data, data_size)):
                if file is not None and valid is not None:
                    file.truncate(valid)

    def append(self, record: bytes, data: Any = b"") -> None:
        """Write data now, and its record with the next `commit`."""
        view = memoryview(data).cast("B")
        with storage_errors(self.path):
            _write_all(self._data, view)
        self.num_pending += view.nbytes
        self._pending.append(record)

    def commit(self, *, sync: bool = True) -> None:
        """Write the pending records after their data; with `sync`, both reach the disk before this returns."""
        with storage_errors(self.path):
            if sync and self._data is not None:
                os.fsync(self._data.fileno())
            _write_all(self._records, memoryview(b"".join(self._pending)))
            if sync:
                os.fsync(self._records.fileno())
        self._pending, self.num_pending = [], 0

    def close(self) -> None:
        """Close the files; records that were not committed are lost."""
        self._records.close()
        if self._data is not None:
            self._data.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _write_all(file: Any, view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]


def read_lines(path: Path, max_line_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a log with their line ends, longer ones in pieces; a missing file has none."""
    if path.exists():
        with path.open("rb") as file:
            while line := file.readline(max_line_bytes):
                yield line

"""HDF5 files written atomically.

The HDF5 library terminates the process when the disk is full. It therefore writes through `ErrorCapturingFile`, which
stores the first error and discards everything after it; `HDF5Writer.add` then raises that error.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from relmo.disk.outputs import atomic

LARGE_ATTRIBUTES = ("v108", "v110")
"""File format for attributes over 64 kB; readable by libraries from HDF5 1.8 (2008) on."""


class ErrorCapturingFile(io.RawIOBase):
    """File whose methods never fail; `failure` is the first error, after which nothing is written."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.failure: OSError | None = None

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self.file.seek(offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer, with zeros beyond the end of the file."""
        view = memoryview(buffer).cast("B")
        contents = self.file.read(len(view))
        view[:] = contents + bytes(len(view) - len(contents))
        return len(view)

    def write(self, data: Any, /) -> int:
        """Write all bytes, or store the error."""
        remaining = memoryview(data).cast("B")
        while remaining and self.failure is None:
            try:
                remaining = remaining[self.file.write(remaining) :]
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes

    def truncate(self, size: int | None = None, /) -> int:
        """Truncate the file, or store the error."""
        if self.failure is None:
            try:
                return self.file.truncate(size)
            except OSError as error:
                self.failure = error
        return size or 0


class HDF5Writer:
    """HDF5 file that is being written; `file` is the open h5py file."""

    def __init__(self, file: h5py.File, disk: ErrorCapturingFile):
        self.file, self.disk = file, disk

    def add(self, name: str, **dataset: Any) -> None:
        """Add a dataset; the arguments are those of `h5py.Group.create_dataset`."""
        self.file.create_dataset(name, **dataset)
        self.check()

    def describe(self, name: str, **attributes: Any) -> None:
        """Set attributes of a dataset; an array of objects is stored as strings."""
        for key, value in attributes.items():
            is_text = isinstance(value, np.ndarray) and value.dtype == object
            self.file[name].attrs.create(key, value, dtype=h5py.string_dtype() if is_text else None)
        self.check()

    def check(self) -> None:
        """Raise the first write error, if any."""
        if self.disk.failure is not None:
            raise self.disk.failure


@contextmanager
def create_hdf5(path: Path, *, large_attributes: bool = False) -> Iterator[HDF5Writer]:
    """Open an HDF5 file for writing; it appears at `path` on success."""
    with atomic(path) as temporary, temporary.open("w+b", buffering=0) as raw:
        disk = ErrorCapturingFile(raw)
        with h5py.File(disk, "w", libver=LARGE_ATTRIBUTES if large_attributes else None) as file:
            writer = HDF5Writer(file, disk)
            yield writer
        writer.check()

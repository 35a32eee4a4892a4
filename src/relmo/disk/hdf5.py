"""HDF5 files to write, whole or not at all.

The HDF5 library ends the whole process when a disk is full. So it writes through `Patient`, which remembers the first
failure and silently drops everything after it; `NewHDF5.add` then raises that failure.
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
"""The format of files whose attributes may be larger than 64 kB: libraries from HDF5 1.8 (2008) on read it."""


class Patient(io.RawIOBase):
    """A file whose methods never fail. `failure` is the first error; nothing is written after it."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.failure: OSError | None = None

    def seekable(self) -> bool:
        """As `io.RawIOBase` has it; so are the other methods."""
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self.file.seek(offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        """Fills the buffer; what the file does not have is zeros."""
        view = memoryview(buffer).cast("B")
        data = self.file.read(len(view))
        view[:] = data + bytes(len(view) - len(data))
        return len(view)

    def write(self, data: Any, /) -> int:
        """Writes all of the data, or remembers why not."""
        left = memoryview(data).cast("B")
        while left and self.failure is None:
            try:
                left = left[self.file.write(left) :]
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes

    def truncate(self, size: int | None = None, /) -> int:
        """Cuts the file to a size, or remembers why not."""
        if self.failure is None:
            try:
                return self.file.truncate(size)
            except OSError as error:
                self.failure = error
        return size or 0


class NewHDF5:
    """An HDF5 file that is being written. `file` has what was added so far."""

    def __init__(self, file: h5py.File, disk: Patient):
        self.file, self.disk = file, disk

    def add(self, name: str, **dataset: Any) -> None:
        """Adds a dataset, given as to `h5py.Group.create_dataset`."""
        self.file.create_dataset(name, **dataset)
        self.check()

    def describe(self, name: str, **attributes: Any) -> None:
        """Gives attributes to a dataset; an array of objects is one of strings."""
        for key, value in attributes.items():
            strings = isinstance(value, np.ndarray) and value.dtype == object
            self.file[name].attrs.create(key, value, dtype=h5py.string_dtype() if strings else None)
        self.check()

    def check(self) -> None:
        """Raises what went wrong, if anything did."""
        if self.disk.failure is not None:
            raise self.disk.failure


@contextmanager
def new_hdf5(path: Path, *, large_attributes: bool = False) -> Iterator[NewHDF5]:
    """An HDF5 file at `path` to add datasets to; it appears there when all went well."""
    with atomic(path) as temporary, temporary.open("w+b", buffering=0) as raw:
        disk = Patient(raw)
        with h5py.File(disk, "w", libver=LARGE_ATTRIBUTES if large_attributes else None) as file:
            new = NewHDF5(file, disk)
            yield new
        new.check()

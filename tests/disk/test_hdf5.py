"""HDF5 files appear whole or not at all, on a full disk too."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from relmo.disk.outputs import ErrorCapturingFile, create_hdf5
from relmo.errors import StorageError

resource = pytest.importorskip("resource", reason="limits on the size of files are set with it")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(path: Path) -> None:
    with create_hdf5(path) as file:
        for i in range(20):
            file.add(f"group/{i}", data=np.full((10, i), i, dtype=np.float32))
        file.add("words", data=["Straße"], dtype=h5py.string_dtype())


def test_what_was_added_is_there(tmp_path: Path) -> None:
    write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        assert sorted(file["group"], key=int) == [str(i) for i in range(20)]
        assert all((file[f"group/{i}"][()] == np.full((10, i), i)).all() for i in range(20))
        assert file["words"].asstr()[0] == "Straße"
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def test_a_full_disk_is_one_line_wherever_it_comes_and_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path / "whole.h5")
    size = (tmp_path / "whole.h5").stat().st_size
    (tmp_path / "whole.h5").unlink()
    for limit in (*range(0, size, 997), size - 1):
        with largest_file(limit), pytest.raises(StorageError, match=r"a\.h5: the disk is full"):
            write(tmp_path / "a.h5")
        assert list(tmp_path.iterdir()) == []
    with largest_file(size):
        write(tmp_path / "a.h5")


def test_a_write_that_stops_halfway_is_gone_on_with(tmp_path: Path) -> None:
    class Short(io.FileIO):
        def write(self, data: Any, /) -> int:
            return super().write(bytes(data)[:3])

    class Captured(ErrorCapturingFile, Short):
        pass

    with Captured(tmp_path / "file", "w+b") as file:
        assert file.write(b"abcdefgh") == 8
    assert (tmp_path / "file").read_bytes() == b"abcdefgh"


def test_writing_stops_soon_after_the_disk_is_full(tmp_path: Path) -> None:
    added = []

    def add_many() -> None:
        with create_hdf5(tmp_path / "a.h5") as file:
            for i in range(1000):
                file.add(str(i), data=np.zeros(1000))
                added.append(i)

    with largest_file(100_000), pytest.raises(StorageError):
        add_many()
    assert len(added) < 50


def test_an_error_of_the_writer_leaves_what_was_there(tmp_path: Path) -> None:
    def fail() -> None:
        with create_hdf5(tmp_path / "a.h5") as file:
            file.add("x", data=[1.0])
            raise KeyError("mine")

    write(tmp_path / "a.h5")
    before = (tmp_path / "a.h5").read_bytes()
    with pytest.raises(KeyError, match="mine"):
        fail()
    assert (tmp_path / "a.h5").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]

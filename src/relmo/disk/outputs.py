"""Outputs: files and folders that appear complete or not at all, HDF5 files, append-only logs, locks.

An existing output is refused before any work is done, unless the user says --overwrite. Temporary names end in
PID-NUMBER.tmp, so that leftovers of killed processes can be told from files in use.
"""

import errno
import io
import itertools
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from relmo.errors import StorageError, describe_os_error

if TYPE_CHECKING:
    import h5py  # imported where it is used: it takes a tenth of a second

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNWRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EBUSY, errno.ENXIO, errno.EIO),
)
TEMPORARY = re.compile(r"\..*\.(\d+)-\d+\.tmp")
NUMBERS = itertools.count()
MAX_NAME_PREFIX = 60  # characters of a name that are repeated in its temporary name
COPY_BYTES = 1 << 20
LARGE_ATTRIBUTES = ("v108", "v110")  # format for attributes over 64 kB; libraries from HDF5 1.8 (2008) on read it


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path on the same disk; on success it replaces `path` or, for a symbolic link, its target.

    A FIFO, a device or standard output is not replaced; the contents are copied into it."""
    with storage_errors(path):
        if is_special(path):
            with tempfile.TemporaryDirectory(prefix="relmo-") as scratch:
                temporary = Path(scratch) / "output"
                temporary.touch()
                yield temporary
                move_into_place(temporary, path)
            return
        final = resolve_links(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        sweep(final.parent, final.name)
        folder = temporary_path(final)  # a folder, since libraries create files of their own next to theirs
        try:
            folder.mkdir()
            temporary = folder / final.name
            temporary.touch()
            mode = temporary.stat().st_mode  # follows the umask, which safetensors ignores
            yield temporary
            temporary.chmod(mode)
            move_into_place(temporary, final)
        finally:
            remove(folder)


def temporary_path(path: Path) -> Path:
    """Return a unique name next to `path`."""
    return path.with_name(f".{path.name[:MAX_NAME_PREFIX]}.{os.getpid()}-{next(NUMBERS)}.tmp")


def move_into_place(temporary: Path, path: Path) -> None:
    """Move a finished file to its path, which may be a link, a FIFO, a device, a regular file or new."""
    if not is_special(path):
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(resolve_links(path))
        return
    standard = _find_descriptor(path.stat())
    for stream in (sys.stdout, sys.stderr):
        if standard is not None and stream is not None:
            stream.flush()
    descriptor = os.open(path, os.O_WRONLY) if standard is None else os.dup(standard)
    with temporary.open("rb") as input_file, os.fdopen(descriptor, "wb") as output_file:
        shutil.copyfileobj(input_file, output_file, COPY_BYTES)
    temporary.unlink()


def resolve_links(path: Path) -> Path:
    """Follow all symbolic links, whether the target exists or not; a loop is an error."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def is_special(path: Path) -> bool:
    """Return whether a path is written into, not replaced: a device, a FIFO, or standard output or error."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # it does not exist, or writing will raise a better error
        return False
    return not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)) or _find_descriptor(status) is not None


def _find_descriptor(status: os.stat_result) -> int | None:
    """Return the descriptor of standard output or error if it is this file; writing continues at its position."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(status, os.fstat(descriptor)):
                return descriptor
    return None


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise `StorageError` if the path is a folder, or an existing file that must not be overwritten."""
    with storage_errors(path):
        if path.is_dir():
            raise StorageError(f"{path}: is a folder; give the name of a file")
        if not overwrite and path.is_file() and not is_special(path):
            raise StorageError(f"{path}: already exists; add --overwrite to replace it, or choose another name")


@contextmanager
def new_folder(folder: Path, *, overwrite: bool = False, ours: re.Pattern[str] | None = None) -> Iterator[Path]:
    """Yield a temporary folder of the same name to write to; on success it takes the place of `folder`.

    With `overwrite` it may replace a folder whose entries all have names that match `ours`."""
    with storage_errors(folder):
        final = resolve_links(folder)
        check_replaceable(folder, overwrite=overwrite, ours=ours)
        final.parent.mkdir(parents=True, exist_ok=True)
        sweep(final.parent, final.name)
    scratch = temporary_path(final)
    try:
        with storage_errors(folder):
            temporary = scratch / final.name
            temporary.mkdir(parents=True)
            yield temporary
            with suppress(FileNotFoundError):
                final.rename(scratch / f"{final.name}.before")
            temporary.rename(final)
    except StorageError as error:
        raise StorageError(str(error).replace(str(scratch / final.name), str(folder))) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_replaceable(folder: Path, *, overwrite: bool, ours: re.Pattern[str] | None) -> None:
    """Raise `StorageError` if a folder must not be replaced; an empty one always may."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StorageError(f"{folder}: is a file; give the name of a folder")
    names = sorted(entry.name for entry in folder.iterdir())
    if names and not overwrite:
        raise StorageError(f"{folder}: already exists; add --overwrite to replace it, or choose another name")
    foreign = [name for name in names if ours is None or not ours.fullmatch(name)]
    if foreign:
        raise StorageError(f"{folder}: contains files that relmo did not write ({foreign[0]}); choose another name")


def sweep(folder: Path, name: str = "") -> None:
    """Remove temporary files of dead processes from a folder: all of them, or those of the output `name`."""
    if os.name == "nt":  # os.kill(pid, 0) would end the process there
        return
    prefix = f".{name[:MAX_NAME_PREFIX]}" if name else "."
    for entry in list(os.scandir(folder)):
        match = TEMPORARY.fullmatch(entry.name) if entry.name.startswith(prefix) else None
        if match is None:
            continue
        try:
            os.kill(int(match[1]), 0)
        except (ProcessLookupError, OverflowError):
            remove(Path(entry.path))
        except OSError:  # a process of another user
            pass


def remove(path: Path) -> None:
    """Remove a file or a folder with its contents, ignoring errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def folder_lock(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder against other processes, which wait or get an error; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        raise StorageError(f"{folder}: is in use by another process; wait for it, or choose another folder") from None
    except OSError:  # some network disks have no locks
        pass
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert errors about a full disk, missing permission or an invalid name to `StorageError`."""
    full_message = f"{path}: the disk is full; free some space, then try again"
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise StorageError(full_message) from error
        if error.errno not in UNWRITABLE:
            raise
        name = str(path) if len(str(path)) < 200 else f"{str(path)[:200]}…"
        raise StorageError(f"{name}: cannot be written: {describe_os_error(error)}; choose another path") from error
    except ValueError as error:
        if "embedded null" not in str(error):
            raise
        raise StorageError(f"{str(path)!r}: is not a valid file name; choose another") from error
    except SafetensorError as error:
        if any(f"os error {code}" in str(error) for code in DISK_FULL) or "No space left" in str(error):
            raise StorageError(full_message) from error
        raise


class ErrorCapturingFile(io.FileIO):
    """File for the HDF5 library, which terminates the process when the disk is full: its methods never fail."""

    failure: OSError | None = None  # the first error, after which nothing is written

    def readinto(self, buffer: Any, /) -> int:  # zeros beyond the end of the file
        view = memoryview(buffer).cast("B")
        count = super().readinto(view) or 0
        view[count:] = bytes(len(view) - count)
        return len(view)

    def write(self, data: Any, /) -> int:
        remaining = memoryview(data).cast("B")
        while remaining and self.failure is None:
            try:
                remaining = remaining[super().write(remaining) :]
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes

    def truncate(self, size: int | None = None, /) -> int:
        if self.failure is None:
            try:
                return super().truncate(size)
            except OSError as error:
                self.failure = error
        return size or 0


@dataclass
class HDF5Writer:
    """HDF5 file that is being written; `file` is the open h5py file."""

    file: "h5py.File"
    disk: ErrorCapturingFile

    def add(self, name: str, *, attributes: Mapping[str, Any] | None = None, **dataset: Any) -> None:
        """Add a dataset as `h5py.Group.create_dataset`; attributes that are arrays of objects become strings."""
        import h5py

        node = self.file.create_dataset(name, **dataset)
        for key, value in (attributes or {}).items():
            is_text = str(getattr(value, "dtype", "")) == "object"
            node.attrs.create(key, value, dtype=h5py.string_dtype() if is_text else None)
        if self.disk.failure is not None:
            raise self.disk.failure


@contextmanager
def create_hdf5(path: Path, *, large_attributes: bool = False) -> Iterator[HDF5Writer]:
    """Open an HDF5 file for writing; it appears at `path` on success."""
    import h5py

    with atomic(path) as temporary, ErrorCapturingFile(temporary, "w+b") as disk:
        with h5py.File(disk, "w", libver=LARGE_ATTRIBUTES if large_attributes else None) as file:
            yield HDF5Writer(file, disk)
        if disk.failure is not None:
            raise disk.failure


class AppendLog(AbstractContextManager["AppendLog"]):
    """Append-only log that survives a kill at any moment: records in one file and, optionally, their data in another.

        with AppendLog(folder / "lines.jsonl", folder / "vectors.bin", size=lines, data_size=vectors) as log:
            log.append(record, vectors)      the data is written at once, the record waits
            log.commit()                     data on disk first, then the records that refer to it

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
        size = view.nbytes
        with storage_errors(self.path):
            while view and self._data is not None:
                view = view[self._data.write(view) :]
        self.num_pending += size
        self._pending.append(record)

    def commit(self, *, sync: bool = True) -> None:
        """Write the pending records after their data; with `sync`, both reach the disk before this returns."""
        with storage_errors(self.path):
            if sync and self._data is not None:
                os.fsync(self._data.fileno())
            records = memoryview(b"".join(self._pending))
            self._pending, self.num_pending = [], 0  # before they are written: an interruption must not repeat them
            while records:
                records = records[self._records.write(records) :]
            if sync:
                os.fsync(self._records.fileno())

    def close(self) -> None:
        """Close the files; records that were not committed are lost."""
        self._records.close()
        if self._data is not None:
            self._data.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def read_lines(path: Path, max_line_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a log with their line ends, longer ones in pieces; a missing file has none."""
    if path.exists():
        with path.open("rb") as file:
            while line := file.readline(max_line_bytes):
                yield line

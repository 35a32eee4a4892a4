"""Atomic output: files and folders appear complete or not at all, and never replace anything unasked.

- A file is written in a temporary folder next to its path and then renamed. If the path is a symbolic link, the link's
  target is replaced. Into a FIFO, a device or standard output the finished file is copied.
- An existing output is refused before any work is done, unless the user says --overwrite.
- Temporary names end in PID-NUMBER.tmp, so that leftovers of killed processes can be told from files in use.
- A process locks the folder that it works in. The lock is on the folder itself: it ends with the process and leaves no
  file behind.
"""

import errno
import itertools
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from relmo.errors import StorageError, describe_os_error

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNWRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EBUSY, errno.ENXIO, errno.EIO),
)
TEMPORARY = re.compile(r"\..*\.(\d+)-\d+\.tmp")
NUMBERS = itertools.count()
MAX_NAME_PREFIX = 60  # characters of a name that are repeated in its temporary name
COPY_BYTES = 1 << 20


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path on the same disk; on success it replaces `path`, otherwise it is removed.

    A FIFO or a device is not replaced; the contents are copied into it."""
    with storage_errors(path):
        if is_special(path):
            with tempfile.TemporaryDirectory(prefix="relmo-") as scratch:
                temporary = Path(scratch) / "output"
                temporary.touch()
                yield temporary
                _copy_into(temporary, path)
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
    if is_special(path):
        _copy_into(temporary, path)
        temporary.unlink()
        return
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(resolve_links(path))


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


def _copy_into(source: Path, path: Path) -> None:
    standard = _find_descriptor(path.stat())
    for stream in (sys.stdout, sys.stderr):
        if standard is not None and stream is not None:
            stream.flush()
    descriptor = os.open(path, os.O_WRONLY) if standard is None else os.dup(standard)
    with source.open("rb") as input_file, os.fdopen(descriptor, "wb") as output_file:
        shutil.copyfileobj(input_file, output_file, COPY_BYTES)


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
        if match and not _is_alive(int(match[1])):
            remove(Path(entry.path))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # a process of another user
        return True
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder with its contents, ignoring errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def folder_lock(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder against other processes, which wait or get an error.

    Nothing is locked where the system or the disk does not support it (Windows, some network disks)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        raise StorageError(f"{folder}: is in use by another process; wait for it, or choose another folder") from None
    except OSError:
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

"""Where results go: files and folders that appear whole or not at all, and never replace what was to stay.

Choices:
- A file is written in a temporary folder beside its place and then renamed. Where its place is a symbolic link, the
  file behind the link is replaced. Only regular files are replaced: into a FIFO, a device or standard output the
  finished file is copied.
- An output that exists is refused before any work is done, unless the user says --overwrite.
- A temporary name ends in PID-NUMBER.tmp. So what a killed process left behind differs from what is being written.
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

from relmo.errors import StorageError, reason

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNWRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EBUSY, errno.ENXIO, errno.EIO),
)
TEMPORARY = re.compile(r"\..*\.(\d+)-\d+\.tmp")
NUMBERS = itertools.count()
LONGEST = 60  # characters of a name that its temporary name repeats
COPIED_AT_ONCE = 1 << 20


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path to write to, on the same disk. If all goes well it takes the place of `path`, or is copied into
    `path` where that is a FIFO or a device. Otherwise it is removed."""
    with storage_errors(path):
        if is_special(path):
            with tempfile.TemporaryDirectory(prefix="relmo-") as elsewhere:
                temporary = Path(elsewhere) / "output"
                temporary.touch()
                yield temporary
                _copy_into(temporary, path)
            return
        final = behind_links(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        sweep(final.parent, final.name)
        folder = temporary_path(final)  # a folder, since libraries write files of their own beside theirs
        try:
            folder.mkdir()
            temporary = folder / final.name
            temporary.touch()
            mode = temporary.stat().st_mode  # as the user's umask says, which safetensors does not ask
            yield temporary
            temporary.chmod(mode)
            settle(temporary, final)
        finally:
            remove(folder)


def temporary_path(path: Path) -> Path:
    """A name beside `path` that no other thread or process takes."""
    return path.with_name(f".{path.name[:LONGEST]}.{os.getpid()}-{next(NUMBERS)}.tmp")


def settle(written: Path, path: Path) -> None:
    """Puts a finished file in its place, which may be a link, a FIFO or a device, a regular file, or nothing yet."""
    if is_special(path):
        _copy_into(written, path)
        written.unlink()
        return
    with written.open("rb+") as file:
        os.fsync(file.fileno())
    written.replace(behind_links(path))


def behind_links(path: Path) -> Path:
    """The file or folder at the end of all links, whether it exists or not. Links in a circle are an error."""
    final = Path(os.path.realpath(path))
    if final.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return final


def is_special(path: Path) -> bool:
    """Whether a path is written into instead of replaced: neither file nor folder, or this process's own output."""
    try:
        there = path.stat()
    except (OSError, ValueError):  # it does not exist, or the attempt to write will say more
        return False
    return not (stat.S_ISREG(there.st_mode) or stat.S_ISDIR(there.st_mode)) or _own_descriptor(there) is not None


def _own_descriptor(there: os.stat_result) -> int | None:
    """Standard output or error, where that is the same file; it is written on from where it stands."""
    for number in (1, 2):
        with suppress(OSError):
            if os.path.samestat(there, os.fstat(number)):
                return number
    return None


def _copy_into(written: Path, path: Path) -> None:
    """The bytes of a file into a FIFO, a device or standard output."""
    own = _own_descriptor(path.stat())
    for stream in (sys.stdout, sys.stderr):
        if own is not None and stream is not None:
            stream.flush()
    descriptor = os.open(path, os.O_WRONLY) if own is None else os.dup(own)
    with written.open("rb") as source, os.fdopen(descriptor, "wb") as target:
        shutil.copyfileobj(source, target, COPIED_AT_ONCE)


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """An error where an output file exists and may not be overwritten, or is a folder."""
    with storage_errors(path):
        if path.is_dir():
            raise StorageError(f"{path}: is a folder; give the name of a file")
        if not overwrite and path.is_file() and not is_special(path):
            raise StorageError(f"{path}: exists already; add --overwrite to replace it, or give another name")


@contextmanager
def new_folder(folder: Path, *, overwrite: bool = False, ours: re.Pattern[str] | None = None) -> Iterator[Path]:
    """A temporary folder of the same name to write into. If all goes well it takes the place of `folder`.

    With `overwrite` it may replace a folder, if all files in that have names that relmo gives (`ours`)."""
    with storage_errors(folder):
        final = behind_links(folder)
        check_replaceable(folder, overwrite=overwrite, ours=ours)
        final.parent.mkdir(parents=True, exist_ok=True)
        sweep(final.parent, final.name)
    outer = temporary_path(final)
    try:
        with storage_errors(folder):
            inside = outer / final.name
            inside.mkdir(parents=True)
            yield inside
            with suppress(FileNotFoundError):
                final.rename(outer / f"{final.name}.before")
            inside.rename(final)
    except StorageError as error:
        raise StorageError(str(error).replace(str(outer / final.name), str(folder))) from error
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def check_replaceable(folder: Path, *, overwrite: bool, ours: re.Pattern[str] | None) -> None:
    """An error where a folder may not be replaced. An empty one always may."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StorageError(f"{folder}: is a file; give the name of a folder")
    names = sorted(entry.name for entry in folder.iterdir())
    if names and not overwrite:
        raise StorageError(f"{folder}: exists already; add --overwrite to replace it, or give another name")
    foreign = [name for name in names if ours is None or not ours.fullmatch(name)]
    if foreign:
        raise StorageError(f"{folder}: has files that relmo did not write ({foreign[0]}); give another name")


def sweep(folder: Path, name: str = "") -> None:
    """Removes what dead processes left half-written in a folder: of all outputs, or of the one whose name is given."""
    if os.name == "nt":  # there one cannot ask whether a process lives
        return
    prefix = f".{name[:LONGEST]}" if name else "."
    for entry in list(os.scandir(folder)):
        found = TEMPORARY.fullmatch(entry.name) if entry.name.startswith(prefix) else None
        if found and not _lives(int(found[1])):
            remove(Path(entry.path))


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it, if it can."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keeps other processes that lock this folder out: they wait, or get an error. Where the system or the disk has no
    such locks (Windows, some network disks), nothing is locked."""
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
        raise StorageError(
            f"{folder}: another process is at work here; wait until it has ended, or choose another place"
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns a full disk, a forbidden place or an impossible name into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StorageError(_disk_full(path)) from error
        if error.errno not in UNWRITABLE:
            raise
        name = str(path) if len(str(path)) < 200 else f"{str(path)[:200]}…"
        raise StorageError(f"{name}: cannot be written: {reason(error)}; choose another place") from error
    except ValueError as error:
        if "embedded null" not in str(error):
            raise
        raise StorageError(f"{str(path)!r}: cannot name a file; choose another name") from error
    except SafetensorError as error:
        if any(f"os error {code}" in str(error) for code in FULL) or "No space left" in str(error):
            raise StorageError(_disk_full(path)) from error
        raise


def _disk_full(path: Path) -> str:
    return f"{path}: the disk is full; free some space, then try again"

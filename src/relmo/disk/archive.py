"""Files from untrusted archives: members of a .zip, read in place, and members of a .tar.gz, copied to a folder.

Sizes are checked before memory or disk space is used. Names in a tar archive never decide where a file is written.
"""

import gzip
import io
import lzma
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from relmo.errors import ModelError, describe_os_error

SIZE_ALLOWANCE = 64 << 20  # bytes that are accepted at any compression ratio
MAX_COMPRESSION_RATIO = 20  # trained weights hardly compress; anything above this ratio is not a model
_MAX_ZIP_MEMBERS, _MAX_TAR_MEMBERS = 1_000, 10_000
_MAX_DIRECTORY_BYTES = 1 << 20  # directory of a zip archive, or header of a tar member
_COPY_BYTES = 1 << 18
_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, NotImplementedError, RuntimeError, OSError, ValueError, MemoryError),
)
_TAR_ERRORS = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, MemoryError)


@dataclass(frozen=True)
class Member:
    """File on disk or inside a zip archive."""

    path: Path
    info: zipfile.ZipInfo | None = None

    @property
    def name(self) -> str:
        """Path for messages."""
        return str(self.path) if self.info is None else f"{self.path}/{self.info.filename}"

    @property
    def size(self) -> int:
        """Unpacked size in bytes."""
        return self.path.stat().st_size if self.info is None else self.info.file_size

    def read(self) -> bytes:
        """Return the contents."""
        if self.info is None:
            with self.path.open("rb") as file:
                return file.read(self.size + 1)
        packed, unpacked = self.info.compress_size, self.info.file_size
        if unpacked > packed * MAX_COMPRESSION_RATIO + SIZE_ALLOWANCE:
            raise ModelError(f"{self.name}: would unpack from {packed:,} to {unpacked:,} bytes; it is not a model")
        with open_zip(self.path) as archive:
            return archive.read(self.info)

    def has_suffix(self, *suffixes: str) -> bool:
        """Return whether the name ends with one of the suffixes, ignoring case."""
        return (self.path.name if self.info is None else self.info.filename).lower().endswith(suffixes)


class _BoundedFile(io.FileIO):
    def read(self, size: int | None = -1, /) -> bytes:  # zipfile reads the directory in one call, of any size
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("the list of members is too long for a model")
        return super().read(size)


def is_zip(path: Path) -> bool:
    """Return whether a file ends as zip archives do, damaged or not."""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # raised for some damage
        return True


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive; raise `ModelError` if it is damaged or has too many members."""
    try:
        with _BoundedFile(path) as file, zipfile.ZipFile(file) as directory:
            num_members = len(directory.infolist())
        if num_members > _MAX_ZIP_MEMBERS:
            raise zipfile.BadZipFile(f"it has {num_members:,} members; a model has two")
        with zipfile.ZipFile(path) as archive:
            yield archive
    except _ZIP_ERRORS as error:
        problem = describe_os_error(error)
        raise ModelError(f"{path}: cannot be read as a zip archive ({problem}); download it again") from error


class _BoundedGzip(gzip.GzipFile):
    def read(self, size: int | None = -1) -> bytes:  # tarfile reads the long name of a member in one call
        if size is None or not 0 <= size <= _MAX_DIRECTORY_BYTES:
            raise tarfile.ReadError("it has a header that is too long")
        return super().read(size)


def extract_tar(path: Path, is_needed: Callable[[str], bool], folder: Path) -> dict[str, Path]:
    """Copy the members of a .tar.gz whose names are needed to a folder; return the copies by member name."""
    copies: dict[str, Path] = {}
    try:
        max_size = path.stat().st_size * MAX_COMPRESSION_RATIO + SIZE_ALLOWANCE
        with _BoundedGzip(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            size = 0
            for index, member in enumerate(archive):
                size += member.size
                if size > max_size or index >= _MAX_TAR_MEMBERS:
                    raise tarfile.ReadError("it would unpack to more than a model can have")
                name = member.name.removeprefix("./")
                if not member.isreg() or member.issparse() or name in copies or not is_needed(name):
                    continue
                copies[name] = folder / str(index)
                source = archive.extractfile(member)
                assert source is not None
                with source, copies[name].open("wb") as target:
                    shutil.copyfileobj(source, target, _COPY_BYTES)
    except _TAR_ERRORS as error:
        problem = describe_os_error(error)
        raise ModelError(f"{path}: cannot be read as a .tar.gz ({problem}); restore it from a copy") from error
    return copies

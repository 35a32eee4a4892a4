"""A file that anyone may have packed: by itself, or in a zip archive, which is read without unpacking it to disk.

An archive is checked before memory is taken for it: the length of its list of members, their number, and the size to
which a member would unpack.
"""

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from relmo.errors import ModelError, reason

SPARE = 64 << 20  # bytes that need no explanation
HIGHEST_RATIO = 20  # trained weights hardly compress; what unpacks to more than this many times its size is no model
_MOST_MEMBERS = 1_000  # an archive with more is not a model
_LARGEST_DIRECTORY = 1 << 20  # bytes of an archive's list of members


@dataclass(frozen=True)
class Member:
    """A file, by itself or inside a zip archive."""

    path: Path
    inside: zipfile.ZipInfo | None = None

    @property
    def name(self) -> str:
        """The path, as messages show it."""
        return str(self.path) if self.inside is None else f"{self.path}/{self.inside.filename}"

    @property
    def size(self) -> int:
        """How many bytes it has, unpacked."""
        return self.path.stat().st_size if self.inside is None else self.inside.file_size

    def read(self) -> bytes:
        """The whole file."""
        if self.inside is None:
            with self.path.open("rb") as file:
                return file.read(self.size + 1)
        packed, unpacked = self.inside.compress_size, self.inside.file_size
        if unpacked > packed * HIGHEST_RATIO + SPARE:
            raise ModelError(f"{self.name}: would unpack from {packed:,} to {unpacked:,} bytes; it is not a model")
        with open_zip(self.path) as archive:
            return archive.read(self.inside)

    def is_one_of(self, *suffixes: str) -> bool:
        """Whether its name ends like this."""
        return (self.path.name if self.inside is None else self.inside.filename).lower().endswith(suffixes)


class _Directory(io.FileIO):
    """A zip archive while its list of members is read, which zipfile reads as a whole, however long it is."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Refuses to read more than a model's list of members can have."""
        if size is not None and size > _LARGEST_DIRECTORY:
            raise zipfile.BadZipFile("its list of members is too long for a model")
        return super().read(size)


_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, NotImplementedError, RuntimeError, OSError, ValueError, MemoryError),
)


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive to read from; a broken one, or one with too many members, is one clear line."""
    try:
        with _Directory(path) as listed, zipfile.ZipFile(listed) as directory:
            count = len(directory.infolist())
        if count > _MOST_MEMBERS:
            raise zipfile.BadZipFile(f"it has {count:,} members, a model has two")
        with zipfile.ZipFile(path) as archive:
            yield archive
    except _ZIP_ERRORS as error:
        raise ModelError(f"{path}: cannot be read as a zip archive ({reason(error)}); download it again") from error

"""Files out of a .tar.gz that anyone may have packed.

Those that are asked for are copied into a folder, under names of our own: what an archive calls its files decides
nothing about where they go. Links, devices and the like are passed over. Sizes are compared with that of the archive
before anything is unpacked.
"""

import gzip
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

from relmo.disk.archive import HIGHEST_RATIO, SPARE
from relmo.errors import ModelError, reason

_MOST_MEMBERS = 10_000
_LARGEST_READ = 1 << 20  # bytes; tarfile reads a member's long name as a whole
_CHUNK = 1 << 18
_BROKEN = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, MemoryError)


class _Stream(gzip.GzipFile):
    """The unpacked archive."""

    def read(self, size: int | None = -1) -> bytes:
        """Refuses to read more than an honest archive asks for."""
        if size is None or not 0 <= size <= _LARGEST_READ:
            raise tarfile.ReadError("it has a header that is too long")
        return super().read(size)


def unpack(path: Path, wanted: Callable[[str], bool], folder: Path) -> dict[str, Path]:
    """Copies the files whose names are wanted. -> their places, by their names in the archive"""
    found: dict[str, Path] = {}
    try:
        most = path.stat().st_size * HIGHEST_RATIO + SPARE
        with _Stream(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            total = 0
            for number, member in enumerate(archive):
                total += member.size
                if total > most or number >= _MOST_MEMBERS:
                    raise tarfile.ReadError("it would unpack to more than a model can have")
                name = member.name.removeprefix("./")
                if not member.isreg() or member.issparse() or name in found or not wanted(name):
                    continue
                found[name] = folder / str(number)
                source = archive.extractfile(member)
                assert source is not None
                with source, found[name].open("wb") as copy:
                    shutil.copyfileobj(source, copy, _CHUNK)
    except _BROKEN as error:
        raise ModelError(f"{path}: cannot be read as a .tar.gz ({reason(error)}); restore it from a copy") from error
    return found

"""Text files as streams of lines and sentences: any size, plain or compressed, in bounded memory.

Choices:
- The file is read in blocks of a megabyte. A block is cut at its last line end and decoded as a whole; only if that
  fails is the bad byte looked for.
- Only \\n and \\r\\n end a line. Other Unicode separators are characters of the text: readers that disagree on what a
  line is would disagree on every line number after it.
- A line never takes more memory than LONGEST_LINE: a longer line comes out in pieces, which are marked as such. Where
  it is cut does not depend on the size of the blocks.
"""

import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

from relmo.disk.files import NO_DOWNLOAD, find_url
from relmo.errors import CorpusError, reason

Errors = Literal["strict", "replace"]

STDIN = "<stdin>"
"""Another name for standard input: what "-" is called in messages."""

LONGEST_LINE = 1 << 20
"""Bytes of a line that come out as one; a longer line comes out in pieces."""

_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_PLAIN = "save it as plain text in UTF-8 (.txt), or a table as .csv"
_NOT_TEXT = {
    b"%PDF": f"is a PDF; {_PLAIN}",
    b"PK\x03\x04": f"is a zip archive, as Word and Excel files are; {_PLAIN}",
    b"\xd0\xcf\x11\xe0": f"is a Word or Excel file; {_PLAIN}",
    b"{\\rtf": f"is an RTF file; {_PLAIN}",
    b"\xff\xfe": "is UTF-16; save it as UTF-8, for example with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8, for example with iconv -f UTF-16 -t UTF-8",
}
"""How files begin that are no plain text, and what to do with them."""


class Line(NamedTuple):
    """A line without its line end, or a piece of a very long one."""

    text: str
    ended: bool
    """Whether a line end followed. None follows a piece, or a last line that has none."""


def open_bytes(path: str | Path) -> BinaryIO:
    """Open a file for reading; .gz, .xz and .zst are decompressed on the way, and "-" is standard input."""
    if _is_stdin(path):
        if sys.stdin is None:
            raise CorpusError(f"{STDIN}: standard input is closed; give a file")
        return sys.stdin.buffer
    opener = _OPENERS.get(Path(path).suffix.lower())
    try:
        return cast(BinaryIO, opener(path)) if opener else Path(path).open("rb")
    except FileNotFoundError:
        if url := find_url(path):
            raise CorpusError(f"{url}: {NO_DOWNLOAD}") from None
        raise CorpusError(f"{path}: no such file; check the name (relative to {Path.cwd()})") from None
    except IsADirectoryError:
        raise CorpusError(f"{path}: is a folder; give its files, for example {Path(path) / '*.txt'}") from None
    except PermissionError:
        raise CorpusError(f"{path}: no permission to read it; try: chmod u+r {path}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise CorpusError(f"{path}: cannot be opened ({reason(error)})") from None


def read_lines(path: str | Path, *, errors: Errors = "strict") -> Iterator[Line]:
    """The lines of a UTF-8 file. A leading byte order mark is dropped.

    Joined again, `text` and a newline where `ended`, they are the text of the file with \\r\\n folded into \\n.
    In strict mode a byte that is not UTF-8, or a NUL, is an error; "replace" turns both into U+FFFD.
    """
    return chain.from_iterable(read_blocks(path, errors=errors))


def read_text(path: str | Path, *, errors: Errors = "strict") -> str:
    """The whole text of a file."""
    return "".join(line.text + ("\n" if line.ended else "") for line in read_lines(path, errors=errors))


def read_blocks(path: str | Path, *, errors: Errors = "strict") -> Iterator[Iterable[Line]]:
    """The lines of a file as `read_lines` gives them, in the groups in which they were read: from a pipe, all that have
    come so far. So a caller that waits for the next group has seen every line there is."""
    decoder = _Decoder(path, errors)
    for data, ended in _segments(_blocks(path), LONGEST_LINE):
        text = decoder.decode(data)
        if ended:
            yield map(Line._make, zip(text.removesuffix("\n").split("\n"), repeat(True)))
        elif text:
            yield (Line(text, False),)


def is_conllu(path: str | Path) -> bool:
    """Whether the name says CoNLL-U: .conllu, compressed or not."""
    return re.search(r"\.conllu(\.gz|\.xz|\.zst)?$", str(path), re.IGNORECASE) is not None


def read_conllu(path: str | Path, *, errors: Errors = "strict") -> Iterator[list[str]]:
    """The words of each sentence: the FORM column, without the ranges (3-4) and the empty nodes (5.1)."""
    sentence: list[str] = []
    for number, line in enumerate(read_lines(path, errors=errors), start=1):
        if not line.text.strip():
            if sentence:
                yield sentence
            sentence = []
        elif not line.text.startswith("#"):
            identifier, form = _conllu_fields(line.text, f"{_shown(path)}:{number}")
            if identifier.isdecimal():
                sentence.append(form)
    if sentence:
        yield sentence


def _is_stdin(path: str | Path) -> bool:
    return str(path) in ("-", STDIN)


def _shown(path: str | Path) -> str:
    return STDIN if _is_stdin(path) else str(path)


def _conllu_fields(line: str, where: str) -> tuple[str, str]:
    """ID and FORM of a word line."""
    fields = line.split("\t")
    if len(fields) != 10:
        raise CorpusError(f"{where}: CoNLL-U has 10 columns with tabs between them, this line has {len(fields)}")
    if not re.fullmatch(r"[0-9]+(?:[-.][0-9]+)?", fields[0]):
        raise CorpusError(
            f"{where}: the ID {fields[0]!r} is not of the form 3, 3-4 or 3.1; see universaldependencies.org"
        )
    if not fields[1]:
        raise CorpusError(f"{where}: the FORM, the second column, is empty; write _ where there is no word")
    return fields[0], fields[1]


def _blocks(path: str | Path) -> Iterator[bytes]:
    """The bytes of a file in blocks; a damaged archive is an error of ours."""
    file = open_bytes(path)
    packed = Path(path).suffix.lower() in _OPENERS
    read = file.read if packed else getattr(file, "read1", file.read)  # of a pipe, what has come
    try:
        while block := read(min(_BLOCK, LONGEST_LINE)):
            yield block
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if packed:
            raise CorpusError(
                f"{path}: the archive is truncated or damaged ({reason(error)}); make or fetch it again"
            ) from None
        raise CorpusError(f"{_shown(path)}: cannot be read ({reason(error)})") from None
    finally:
        if not _is_stdin(path):
            file.close()


def _segments(blocks: Iterator[bytes], longest: int) -> Iterator[tuple[bytes, bool]]:
    """Cut a stream into (whole lines, True), (piece of a long line, False) and (last line without an end, False).

    A block is no larger than `longest`, hence only the first line of the buffer can be too long.
    """
    buffer = b""
    for block in blocks:
        buffer += block
        while len(buffer) > longest + 1 and (cut := _long_head(buffer, longest)):
            yield buffer[:cut], False
            buffer = buffer[cut:]
        whole = buffer.rfind(b"\n") + 1
        if whole:
            yield buffer[:whole], True
            buffer = buffer[whole:]
    if len(buffer) > longest:
        cut = _cut(buffer, longest)
        yield buffer[:cut], False
        buffer = buffer[cut:]
    if buffer:
        yield buffer, False


def _long_head(buffer: bytes, longest: int) -> int:
    """Where to cut the first line, if it is longer than `longest` without its line end (\\n or \\r\\n); else 0."""
    end = buffer.find(b"\n", 0, longest + 2)
    if end == -1 or (end == longest + 1 and buffer[longest] != ord("\r")):
        return _cut(buffer, longest)
    return 0


def _cut(buffer: bytes, longest: int) -> int:
    """The last place up to `longest` after a space or tab, else between two characters."""
    cut = max(buffer.rfind(b" ", 0, longest), buffer.rfind(b"\t", 0, longest)) + 1
    if cut:
        return cut
    for back in range(min(4, longest)):
        if buffer[longest - back] & 0xC0 != 0x80:  # not a continuation byte: a character starts here
            return longest - back
    return longest


class _Decoder:
    """UTF-8 to text, keeping count of lines and columns so that an error can say where."""

    def __init__(self, path: str | Path, errors: Errors) -> None:
        self.path, self.errors = _shown(path), errors
        self.line, self.column = 1, 0
        self.at_start = True

    def decode(self, data: bytes) -> str:
        if self.at_start:
            self._check_start(data)
            data, self.at_start = data.removeprefix(_BOM), False
        if b"\0" in data:
            if self.errors == "strict":
                where = self._where(data, data.index(b"\0"))
                raise CorpusError(f"{where} is NUL: the file looks binary, or is UTF-16; {_PLAIN}")
            data = data.replace(b"\0", "\ufffd".encode())
        try:
            text = data.decode("utf-8", self.errors)
        except UnicodeDecodeError as error:
            where = self._where(data, error.start)
            raise CorpusError(
                f"{where} is not UTF-8; save the file as UTF-8 (if it is Latin-1: iconv -f LATIN1 -t UTF-8), or pass "
                "--errors replace"
            ) from None
        self._advance(text)
        return text.replace("\r\n", "\n")

    def _check_start(self, data: bytes) -> None:
        for beginning, what in _NOT_TEXT.items():
            if self.errors == "strict" and data.startswith(beginning):
                raise CorpusError(f"{self.path}: {what}")

    def _advance(self, text: str) -> None:
        lines = text.count("\n")
        self.line += lines
        self.column = 0 if lines else self.column + len(text)

    def _where(self, data: bytes, at: int) -> str:
        before = data[:at].decode("utf-8", "replace")
        start = before.rfind("\n") + 1
        column = len(before) - start + (0 if start else self.column) + 1
        return f"{self.path}:{self.line + before.count(chr(10))}: byte 0x{data[at]:02x} at column {column}"


def _open_zst(path: str | Path) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise CorpusError(f"{path}: reading .zst needs the package zstandard; try: pip install 'relmo[zst]'") from None
    return io.BufferedReader(_ZstdFile(Path(path).open("rb"), zstandard), 1 << 17)


class _ZstdFile(io.RawIOBase):
    """The frames of a .zst file one after another; unlike zstandard's own reader it notices where one is cut short."""

    def __init__(self, file: BinaryIO, zstandard: Any) -> None:
        self._file = file
        self._error = zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj  # for `zstd --long=31`
        self._frame = self._new_frame()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, target: Any) -> int:
        while not self._ready:
            # A kilobyte at a time: repetitive text grows thirty thousandfold, and memory must stay bounded.
            data = self._frame.unused_data or self._file.read(1024)
            if not data and self._frame.eof:
                return 0
            self._ready = memoryview(self._decompress(data))
        size = min(len(target), len(self._ready))
        target[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress(self, data: bytes) -> bytes:
        if not data:
            raise EOFError("it stops in the middle of a frame")
        if self._frame.eof:
            self._frame = self._new_frame()
        try:
            return cast(bytes, self._frame.decompress(data))
        except self._error as error:
            raise OSError(str(error)) from None


_OPENERS: dict[str, Callable[[str | Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".zst": _open_zst}

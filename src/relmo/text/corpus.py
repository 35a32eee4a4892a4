"""Text files as streams of lines and sentences: any size, plain or compressed, in bounded memory.

- Files are read in blocks of a megabyte. A block is cut at its last line end and decoded as a whole; only if that fails
  is the invalid byte located.
- Only \\n and \\r\\n end a line. Other Unicode separators are characters of the text: otherwise line numbers would
  differ from those of other programs.
- A line never takes more memory than MAX_LINE_BYTES: a longer line is returned in pieces, which are marked as such.
  Where it is cut does not depend on the size of the blocks.
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
from relmo.errors import CorpusError, describe_os_error

Errors = Literal["strict", "replace"]

STDIN = "<stdin>"
"""Name of standard input in messages; as a path it means the same as "-"."""

MAX_LINE_BYTES = 1 << 20
"""Bytes of a line; a longer line is returned in pieces."""
MAX_DIGITS = 15
"""Digits of a number in a file; Python refuses to parse thousands of them."""

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")

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
"""First bytes of files that are not plain text, and advice."""


class Line(NamedTuple):
    """Line without its line end, or a piece of a very long line. `ended` tells whether a line end followed."""

    text: str
    ended: bool


def open_bytes(path: str | Path) -> BinaryIO:
    """Open a file for reading; .gz, .xz and .zst are decompressed, and "-" is standard input."""
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
        raise CorpusError(f"{path}: cannot be opened ({describe_os_error(error)})") from None


def read_lines(path: str | Path, *, errors: Errors = "strict") -> Iterator[Line]:
    """Return the lines of a UTF-8 file without a leading byte order mark.

    Joined with a newline where `ended`, they are the text of the file with \\r\\n replaced by \\n. In strict mode an
    invalid byte or a NUL is an error; "replace" turns both into U+FFFD.
    """
    return chain.from_iterable(read_blocks(path, errors=errors))


def read_text(path: str | Path, *, errors: Errors = "strict") -> str:
    """Read the text of a file."""
    return "".join(line.text + ("\n" if line.ended else "") for line in read_lines(path, errors=errors))


def numbered_lines(path: str | Path, errors: Errors) -> Iterator[tuple[str, str]]:
    """Return each line with its place, "path:number"; pieces of a very long line are joined."""
    return chain.from_iterable(numbered_blocks(path, errors))


def numbered_blocks(path: str | Path, errors: Errors) -> Iterator[Iterator[tuple[str, str]]]:
    """Yield the lines of `numbered_lines` in the groups of `read_blocks`."""
    parts: list[str] = []
    number = 1

    def join_pieces(lines: Iterable[Line]) -> Iterator[tuple[str, str]]:
        nonlocal number
        for line in lines:
            parts.append(line.text)
            if line.ended:
                yield "".join(parts), f"{_display_name(path)}:{number}"
                parts.clear()
                number += 1

    yield from map(join_pieces, read_blocks(path, errors=errors))
    if parts:
        yield iter([("".join(parts), f"{_display_name(path)}:{number}")])


def nonblank_lines(path: str | Path, errors: Errors) -> Iterator[tuple[str, str]]:
    """Return the lines that are not blank, with their places."""
    return ((text, place) for text, place in numbered_lines(path, errors) if text.strip())


def require_text(text: str, what: str, place: str, advice: str = "fill it in, or remove the example") -> str:
    """Return a field that is not blank, or raise `CorpusError` with its place."""
    if not text.strip():
        raise CorpusError(f"{place}: the {what} is missing; {advice}")
    return text


def require_examples(examples: Iterator[Any], path: str | Path, what: str) -> Iterator[Any]:
    """Yield the examples of a file, or raise `CorpusError` if there is none."""
    empty = True
    for example in examples:
        empty = False
        yield example
    if empty:
        raise CorpusError(f"{path}: contains no {what}; give a file with examples")


def read_blocks(path: str | Path, *, errors: Errors = "strict") -> Iterator[Iterable[Line]]:
    """Yield the lines of `read_lines` in the groups in which they were read: from a pipe, all that are available. A
    caller that waits for the next group has seen every line so far."""
    decoder = _Decoder(path, errors)
    for data, ended in _segments(_blocks(path), MAX_LINE_BYTES):
        text = decoder.decode(data)
        if ended:
            yield map(Line._make, zip(text.removesuffix("\n").split("\n"), repeat(True)))
        elif text:
            yield (Line(text, False),)


def has_suffix(path: str | Path, pattern: str) -> bool:
    """Return whether a file name ends in a suffix that matches the pattern, optionally followed by .gz, .xz or .zst."""
    return re.search(rf"(?:{pattern})(\.gz|\.xz|\.zst)?$", str(path), re.IGNORECASE) is not None


def is_conllu(path: str | Path) -> bool:
    """Return whether the file name ends in .conllu, optionally compressed."""
    return has_suffix(path, r"\.conllu")


def conllu_rows(
    path: str | Path, errors: Errors, *, separator: str | None = None
) -> Iterator[tuple[list[tuple[list[str], str]], str | None]]:
    """Yield the fields of each line of a CoNLL-U sentence with its place, and the text in its comments. A word that
    equals `separator` also ends a sentence."""
    rows: list[tuple[list[str], str]] = []
    text: str | None = None
    for line, place in chain(numbered_lines(path, errors), [("", "")]):
        if line.startswith("#"):
            name, _, value = line[1:].partition("=")
            text = value.strip() if name.strip() == "text" else text
            continue
        if line.strip():
            fields = line.split("\t")
            if len(fields) != len(CONLLU):
                raise CorpusError(f"{place}: CoNLL-U has {len(CONLLU)} columns separated by tabs, not {len(fields)}")
            if fields[1] != separator:
                rows.append((fields, place))
                continue
        if rows:
            yield rows, text
            rows, text = [], None


def read_conllu(path: str | Path, *, errors: Errors = "strict") -> Iterator[list[str]]:
    """Yield the words of each sentence: the FORM column, without ranges (3-4) and empty nodes (5.1)."""
    for rows, _ in conllu_rows(path, errors):
        sentence = []
        for (identifier, form, *_), place in rows:
            if not re.fullmatch(r"[0-9]+(?:[-.][0-9]+)?", identifier):
                raise CorpusError(
                    f"{place}: the ID {identifier!r} is not of the form 3, 3-4 or 3.1; see universaldependencies.org"
                )
            if not form:
                raise CorpusError(f"{place}: the FORM, the second column, is empty; write _ if there is no word")
            if identifier.isdecimal():
                sentence.append(form)
        if sentence:
            yield sentence


def _is_stdin(path: str | Path) -> bool:
    return str(path) in ("-", STDIN)


def _display_name(path: str | Path) -> str:
    return STDIN if _is_stdin(path) else str(path)


def _blocks(path: str | Path) -> Iterator[bytes]:
    file = open_bytes(path)
    packed = Path(path).suffix.lower() in _OPENERS
    read = file.read if packed else getattr(file, "read1", file.read)  # read1 returns what is available in a pipe
    try:
        while block := read(min(_BLOCK, MAX_LINE_BYTES)):
            yield block
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if packed:
            raise CorpusError(
                f"{path}: the archive is truncated or damaged ({describe_os_error(error)}); create or download it again"
            ) from None
        raise CorpusError(f"{_display_name(path)}: cannot be read ({describe_os_error(error)})") from None
    finally:
        if not _is_stdin(path):
            file.close()


def _segments(blocks: Iterator[bytes], max_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Cut a stream into (complete lines, True), (piece of a long line, False) and (last line without an end, False).

    A block is no larger than `max_bytes`, hence only the first line of the buffer can be too long.
    """
    buffer = b""
    for block in blocks:
        buffer += block
        while len(buffer) > max_bytes + 1 and (cut := _long_head(buffer, max_bytes)):
            yield buffer[:cut], False
            buffer = buffer[cut:]
        end = buffer.rfind(b"\n") + 1
        if end:
            yield buffer[:end], True
            buffer = buffer[end:]
    if len(buffer) > max_bytes:
        cut = _find_cut(buffer, max_bytes)
        yield buffer[:cut], False
        buffer = buffer[cut:]
    if buffer:
        yield buffer, False


def _long_head(buffer: bytes, max_bytes: int) -> int:
    """Return where to cut the first line if it is longer than `max_bytes` without its line end; otherwise 0."""
    end = buffer.find(b"\n", 0, max_bytes + 2)
    if end == -1 or (end == max_bytes + 1 and buffer[max_bytes] != ord("\r")):
        return _find_cut(buffer, max_bytes)
    return 0


def _find_cut(buffer: bytes, max_bytes: int) -> int:
    """Return the last offset up to `max_bytes` after a space or tab, otherwise between two characters."""
    cut = max(buffer.rfind(b" ", 0, max_bytes), buffer.rfind(b"\t", 0, max_bytes)) + 1
    if cut:
        return cut
    for back in range(min(4, max_bytes)):
        if buffer[max_bytes - back] & 0xC0 != 0x80:  # not a continuation byte: a character starts here
            return max_bytes - back
    return max_bytes


class _Decoder:
    """Decoder of UTF-8 that counts lines and columns for error messages."""

    def __init__(self, path: str | Path, errors: Errors) -> None:
        self.path, self.errors = _display_name(path), errors
        self.line, self.column = 1, 0
        self.at_start = True

    def decode(self, data: bytes) -> str:
        if self.at_start:
            for magic, problem in _NOT_TEXT.items():
                if self.errors == "strict" and data.startswith(magic):
                    raise CorpusError(f"{self.path}: {problem}")
            data, self.at_start = data.removeprefix(_BOM), False
        if b"\0" in data:
            if self.errors == "strict":
                where = self._describe_byte(data, data.index(b"\0"))
                raise CorpusError(f"{where} is NUL: the file looks binary, or is UTF-16; {_PLAIN}")
            data = data.replace(b"\0", "\ufffd".encode())
        try:
            text = data.decode("utf-8", self.errors)
        except UnicodeDecodeError as error:
            where = self._describe_byte(data, error.start)
            raise CorpusError(
                f"{where} is not UTF-8; save the file as UTF-8 (if it is Latin-1: iconv -f LATIN1 -t UTF-8), or pass "
                "--errors replace"
            ) from None
        lines = text.count("\n")
        self.line += lines
        self.column = 0 if lines else self.column + len(text)
        return text.replace("\r\n", "\n")

    def _describe_byte(self, data: bytes, at: int) -> str:
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
    """Reader of the frames of a .zst file; unlike zstandard's own reader it detects truncated frames."""

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
            raise EOFError("it ends in the middle of a frame")
        if self._frame.eof:
            self._frame = self._new_frame()
        try:
            return cast(bytes, self._frame.decompress(data))
        except self._error as error:
            raise OSError(str(error)) from None


_OPENERS: dict[str, Callable[[str | Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".zst": _open_zst}

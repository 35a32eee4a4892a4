"""Text files as streams of lines and sentences: any size, plain or compressed, in bounded memory. Files are read in
blocks, which are cut at their last line end and decoded as a whole. Only \\n and \\r\\n end a line, so line numbers are
those of other programs."""

import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar, cast

from relmo.disk.files import NO_DOWNLOAD, find_url
from relmo.errors import CorpusError, describe_os_error, optional_import

Errors = Literal["strict", "replace"]
Reader = TypeVar("Reader", bound=Callable[..., Iterator[Any]])

STDIN = "<stdin>"  # name of standard input in messages; as a path it means the same as "-"
MAX_LINE_BYTES = 1 << 20  # a longer line is returned in pieces
MAX_DIGITS = 15  # of a number in a file; Python refuses to parse thousands of them
EMPTY_FORM = "the FORM, the second column, is empty; write _ if there is no word"
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")

_BLOCK = 1 << 20
_PLAIN = "save it as plain text in UTF-8 (.txt), or a table as .csv"
_NUL = f"is NUL: the file looks binary, or is UTF-16; {_PLAIN}"
_RECODE = "save the file as UTF-8 (if it is Latin-1: iconv -f LATIN1 -t UTF-8), or pass --errors replace"
_UTF16 = "is UTF-16; save it as UTF-8, for example with iconv -f UTF-16 -t UTF-8"
_NOT_TEXT = {  # first bytes of files that are not plain text, and advice
    b"%PDF": f"is a PDF; {_PLAIN}",
    b"PK\x03\x04": f"is a zip archive, as Word and Excel files are; {_PLAIN}",
    b"\xd0\xcf\x11\xe0": f"is a Word or Excel file; {_PLAIN}",
    b"{\\rtf": f"is an RTF file; {_PLAIN}",
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), _UTF16),
}


class Line(NamedTuple):
    """Line without its line end, or a piece of a very long line. `ended` tells whether a line end followed."""

    text: str
    ended: bool


def has_suffix(path: str | Path, pattern: str) -> bool:
    """Return whether a file name ends in a suffix that matches the pattern, optionally followed by .gz, .xz or .zst."""
    return re.search(rf"(?:{pattern})(\.gz|\.xz|\.zst)?$", str(path), re.IGNORECASE) is not None


is_conllu = partial(has_suffix, pattern=r"\.conllu")


def open_bytes(path: str | Path) -> BinaryIO:
    """Open a file for reading; .gz, .xz and .zst are decompressed, and "-" is standard input."""
    if _display_name(path) == STDIN:
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
    """Return the lines of a UTF-8 file without a byte order mark; "replace" turns invalid bytes and NUL into U+FFFD."""
    return chain.from_iterable(read_blocks(path, errors=errors))


def read_text(path: str | Path, *, errors: Errors = "strict") -> str:
    """Read the text of a file."""
    return "".join(line.text + ("\n" if line.ended else "") for line in read_lines(path, errors=errors))


def read_blocks(path: str | Path, *, errors: Errors = "strict") -> Iterator[Iterable[Line]]:
    """Yield the lines of `read_lines` in the groups in which they were read: from a pipe, all that are available."""
    line, column = 1, 0
    for index, (data, ended) in enumerate(_read_segments(path)):
        if not index:
            for magic, problem in _NOT_TEXT.items():
                if errors == "strict" and data.startswith(magic):
                    raise CorpusError(f"{_display_name(path)}: {problem}")
            data = data.removeprefix(b"\xef\xbb\xbf")
        if errors == "replace":
            data = data.replace(b"\0", "\ufffd".encode())
        invalid, problem = data.find(b"\0"), _NUL
        try:
            text = data.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            if invalid < 0:
                invalid, problem = error.start, f"is not UTF-8; {_RECODE}"
        if invalid >= 0:
            before = data[:invalid].decode("utf-8", "replace")
            start = before.rfind("\n") + 1
            place = f"{_display_name(path)}:{line + before.count(chr(10))}"
            number = len(before) - start + (0 if start else column) + 1
            raise CorpusError(f"{place}: byte 0x{data[invalid]:02x} at column {number} {problem}")
        line += text.count("\n")
        column = 0 if ended else column + len(text)
        text = text.replace("\r\n", "\n")
        if ended:
            yield map(Line._make, zip(text.removesuffix("\n").split("\n"), repeat(True)))
        elif text:
            yield (Line(text, False),)


def numbered_blocks(path: str | Path, errors: Errors) -> Iterator[Iterator[tuple[str, str]]]:
    """Yield the lines of `numbered_lines` in the groups of `read_blocks`."""
    name, number = _display_name(path), 1
    pieces: list[str] = []

    def join_pieces(lines: Iterable[Line]) -> Iterator[tuple[str, str]]:
        nonlocal number
        for text, ended in lines:
            pieces.append(text)
            if ended:
                yield "".join(pieces), f"{name}:{number}"
                pieces.clear()
                number += 1

    yield from map(join_pieces, read_blocks(path, errors=errors))
    if pieces:
        yield iter([("".join(pieces), f"{name}:{number}")])


def numbered_lines(path: str | Path, errors: Errors = "strict", *, blank: bool = True) -> Iterator[tuple[str, str]]:
    """Return lines with their places, "path:number", with or without blank ones; pieces of a long line are joined."""
    lines = chain.from_iterable(numbered_blocks(path, errors))
    return lines if blank else ((text, place) for text, place in lines if text.strip())


def require(condition: object, place: str, problem: str) -> None:
    """Raise `CorpusError` with the place of a line and its problem unless the condition holds."""
    if not condition:
        raise CorpusError(f"{place}: {problem}")


def require_text(text: str, what: str, place: str, advice: str = "fill it in, or remove the example") -> str:
    """Return a field that is not blank, or raise `CorpusError` with its place."""
    require(text.strip(), place, f"the {what} is missing; {advice}")
    return text


def require_examples(what: str) -> Callable[[Reader], Reader]:
    """Make a reader of a file raise `CorpusError` if it yields no example."""

    def decorate(read: Reader) -> Reader:
        @wraps(read)
        def read_examples(path: str | Path, *args: Any, **options: Any) -> Iterator[Any]:
            empty = True
            for example in read(path, *args, **options):
                empty = False
                yield example
            if empty:
                raise CorpusError(f"{path}: contains no {what}; give a file with examples")

        return cast(Reader, read_examples)

    return decorate


def conllu_rows(
    path: str | Path, errors: Errors, *, separator: str | None = None
) -> Iterator[tuple[list[tuple[list[str], str]], str | None]]:
    """Yield the fields and places of each sentence, and the text in its comments; `separator` also ends a sentence."""
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
                raise CorpusError(f"{place}: the ID {identifier!r} is not of the form 3, 3-4 or 3.1, as in CoNLL-U")
            require(form, place, EMPTY_FORM)
            if identifier.isdecimal():
                sentence.append(form)
        if sentence:
            yield sentence


def _display_name(path: str | Path) -> str:
    return STDIN if str(path) == "-" else str(path)


def _read_segments(path: str | Path) -> Iterator[tuple[bytes, bool]]:
    """Yield (complete lines, True), (piece of a long line, False) and (last line without an end, False)."""
    file = open_bytes(path)
    packed = Path(path).suffix.lower() in _OPENERS
    read = file.read if packed else getattr(file, "read1", file.read)  # read1 returns what is available in a pipe
    buffer = b""
    try:
        # A block is no larger than MAX_LINE_BYTES, hence only the first line of the buffer can be too long.
        while block := read(min(_BLOCK, MAX_LINE_BYTES)):
            buffer += block
            while len(buffer) > MAX_LINE_BYTES + 1:
                end = buffer.find(b"\n", 0, MAX_LINE_BYTES + 2)
                if end != -1 and (end <= MAX_LINE_BYTES or buffer[MAX_LINE_BYTES] == ord("\r")):
                    break
                cut = _find_cut(buffer)
                yield buffer[:cut], False
                buffer = buffer[cut:]
            if end := buffer.rfind(b"\n") + 1:
                yield buffer[:end], True
                buffer = buffer[end:]
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        cause, advice = describe_os_error(error), "create or download it again"
        problem = f"the archive is truncated or damaged ({cause}); {advice}" if packed else f"cannot be read ({cause})"
        raise CorpusError(f"{_display_name(path)}: {problem}") from None
    finally:
        if _display_name(path) != STDIN:
            file.close()
    if len(buffer) > MAX_LINE_BYTES:
        cut = _find_cut(buffer)
        yield buffer[:cut], False
        buffer = buffer[cut:]
    if buffer:
        yield buffer, False


def _find_cut(buffer: bytes) -> int:
    """Return the last offset up to MAX_LINE_BYTES after a space or tab, otherwise between two characters."""
    limit = MAX_LINE_BYTES
    cut = max(buffer.rfind(b" ", 0, limit), buffer.rfind(b"\t", 0, limit)) + 1
    starts = (limit - back for back in range(min(4, limit)) if buffer[limit - back] & 0xC0 != 0x80)
    return cut or next(starts, limit)  # a byte that does not continue a character starts one


def _open_zst(path: str | Path) -> BinaryIO:
    with optional_import(f"{path}: reading .zst needs the package zstandard", "zst", CorpusError):
        import zstandard
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
            if not data:
                raise EOFError("it ends in the middle of a frame")
            if self._frame.eof:
                self._frame = self._new_frame()
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._error as error:
                raise OSError(str(error)) from None
        size = min(len(target), len(self._ready))
        target[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


_OPENERS: dict[str, Callable[[str | Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".zst": _open_zst}

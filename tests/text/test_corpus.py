import gzip
import io
import lzma
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relmo.errors import CorpusError
from relmo.text import corpus
from relmo.text.corpus import Line, is_conllu, open_bytes, read_conllu, read_lines

zstandard = pytest.importorskip("zstandard")
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".txt": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}

text_with_ends = st.lists(
    st.text() | st.sampled_from(["\n", "\r\n", "\r", " ", "\u2028", "\x0b", "漢" * 9, "a" * 30])
).map("".join)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(content: bytes, name: str = "corpus.txt") -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


def rejoined(lines: list[Line]) -> str:
    return "".join(line.text + ("\n" if line.ended else "") for line in lines)


def error_of(path: Path | str, read: Callable = read_lines) -> str:
    with pytest.raises(CorpusError) as caught:
        list(read(path))
    message = str(caught.value)
    assert "\n" not in message
    return message


relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@relaxed
@given(text=text_with_ends, block=st.integers(1, 40), longest=st.integers(4, 40))
def test_lines_rejoined_are_the_text_for_any_block_and_line_limit(
    write: Callable, text: str, block: int, longest: int
) -> None:
    text = text.replace("\0", "").lstrip("\ufeff")
    path = write(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "MAX_LINE_BYTES", longest)
        patch.setattr(corpus, "_BLOCK", block)
        lines = list(read_lines(path))
        patch.setattr(corpus, "_BLOCK", 1 << 20)
        assert list(read_lines(path)) == lines, "the cuts depend on the block size"
    assert rejoined(lines) == text.replace("\r\n", "\n")
    assert all("\n" not in line.text and len(line.text.encode()) <= longest for line in lines)


@relaxed
@given(content=st.binary(max_size=60), block=st.integers(1, 20), longest=st.integers(4, 20))
def test_replacing_bad_bytes_gives_what_python_gives(write: Callable, content: bytes, block: int, longest: int) -> None:
    path = write(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "MAX_LINE_BYTES", longest)
        patch.setattr(corpus, "_BLOCK", block)
        lines = list(read_lines(path, errors="replace"))
    expected = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    assert rejoined(lines) == expected.replace("\0", "\ufffd").replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\xef\xbb\xbf", []),
        (b"\n", [Line("", True)]),
        (b"a\r\nb\n\nc", [Line("a", True), Line("b", True), Line("", True), Line("c", False)]),
        (b"\xef\xbb\xbfa\n", [Line("a", True)]),
        ("a\u2028b\x0bc\rd\n".encode(), [Line("a\u2028b\x0bc\rd", True)]),
    ],
)
def test_only_newlines_end_a_line_and_a_byte_order_mark_is_dropped(
    write: Callable, content: bytes, lines: list[Line]
) -> None:
    assert list(read_lines(write(content))) == lines


def test_a_long_line_comes_out_in_pieces_cut_after_white_space(
    write: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 8)
    lines = list(read_lines(write("one two three\n漢漢漢漢\n12345678\r\n".encode())))
    assert lines == [
        Line("one two ", False),
        Line("three", True),
        Line("漢漢", False),
        Line("漢漢", True),
        Line("12345678", True),
    ]


@pytest.mark.parametrize("suffix", PACKERS)
def test_every_format_gives_the_same_lines(write: Callable, suffix: str) -> None:
    text = "".join(f"line {number} é\n" for number in range(50_000))
    path = write(PACKERS[suffix](text.encode()), "corpus" + suffix)
    assert rejoined(list(read_lines(path))) == text


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_archives_of_several_parts_are_read_to_the_end(write: Callable, suffix: str) -> None:
    path = write(PACKERS[suffix](b"one\n") + PACKERS[suffix](b"two\n"), "corpus" + suffix)
    assert rejoined(list(read_lines(path))) == "one\ntwo\n"


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("damage", [lambda packed: packed[:-9], lambda packed: b"no archive" + packed])
def test_a_damaged_archive_is_said_to_be_damaged(write: Callable, suffix: str, damage: Callable) -> None:
    packed = PACKERS[suffix](b"".join(b"line %d\n" % (number * number) for number in range(9999)))
    path = write(damage(packed), "corpus" + suffix)
    assert f"{path}: the archive is truncated or damaged" in error_of(path)


def test_a_repetitive_zst_is_decompressed_in_bounded_steps(write: Callable) -> None:
    path = write(zstandard.compress(b"a" * (1 << 26)), "corpus.zst")
    lines = list(read_lines(path))
    assert [len(line.text) for line in lines] == [corpus.MAX_LINE_BYTES] * 64


def test_zst_without_its_package_names_the_extra(write: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "pip install 'relmo[zst]'" in error_of(write(b"", "corpus.zst"))


def test_standard_input_is_read_and_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n\xff")))
    assert "<stdin>:3: byte 0xff at column 1 is not UTF-8" in error_of("-")
    assert not sys.stdin.buffer.closed


def test_files_that_cannot_be_opened_are_told_in_one_line(
    tmp_path: Path, write: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no such file" in error_of(tmp_path / "absent.txt", open_bytes)
    assert "no such file" in error_of(tmp_path / "absent.zst", open_bytes)
    assert f"{tmp_path}: is a folder; give its files, for example {tmp_path}/*.txt" in error_of(tmp_path, open_bytes)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    assert "no permission" in error_of(tmp_path / "secret.txt", open_bytes)


def test_a_bad_byte_is_named_with_line_and_column(write: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(b"fine\n" * 122 + "été".encode() + b"x\xff y\n")
    assert f"{path}:123: byte 0xff at column 5 is not UTF-8; save the file as UTF-8" in error_of(path)
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 16)
    assert f"{path}:123: byte 0xff at column 5 " in error_of(path)
    path = write(b"one\n" + b"four " * 20 + b"\xe6\xbc\n")
    assert f"{path}:2: byte 0xe6 at column 101 " in error_of(path)


@pytest.mark.parametrize("content", [b"a\nbc\0d", "a\nbc".encode("utf-16-be")])
def test_a_binary_file_is_said_to_look_binary(write: Callable, content: bytes) -> None:
    assert re.search(r":[12]: byte 0x00 at column \d is NUL: the file looks binary", error_of(write(content)))


CONLLU = """# text = du vin
1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_
1\tde\tde\tADP\t_\t_\t3\tcase\t_\t_
2\tle\tle\tDET\t_\t_\t3\tdet\t_\t_
2.1\t_\t_\t_\t_\t_\t_\t_\t_\t_
3\tvin\tvin\tNOUN\t_\t_\t0\troot\t_\t_

1\t20 000\t_\tNUM\t_\t_\t0\troot\t_\t_
"""


@pytest.mark.parametrize(("name", "pack"), [("a.conllu", bytes), ("a.CONLLU.gz", gzip.compress)])
def test_conllu_gives_the_words_and_not_the_ranges(write: Callable, name: str, pack: Callable) -> None:
    path = write(pack(CONLLU.replace("\n", "\r\n").encode()), name)
    assert is_conllu(path)
    assert list(read_conllu(path)) == [["de", "le", "vin"], ["20 000"]]


@pytest.mark.parametrize(
    ("broken", "said"),
    [("1 a\n", "10 columns"), ("x\ta" + "\t_" * 8, "the ID 'x'"), ("1\t" + "\t_" * 8, "the FORM")],
)
def test_a_malformed_conllu_line_is_named(write: Callable, broken: str, said: str) -> None:
    path = write((CONLLU + broken).encode(), "a.conllu")
    message = error_of(path, read_conllu)
    assert message.startswith(f"{path}:9: ")
    assert said in message


def test_conllu_of_the_treebank_is_read_whole(data: Callable[[str], Path]) -> None:
    path = data("tasks/pos_ud/en_ewt/en_ewt-ud-dev.conllu")
    sentences = list(read_conllu(path))
    ends = re.findall(r"^[0-9]+\t", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(sentences) == 2001
    assert sum(map(len, sentences)) == len(ends)


@pytest.mark.parametrize("path", ["https://example.org/a.txt", Path("https://example.org/a.txt"), "s3://bucket/a.txt"])
def test_a_url_is_not_a_file_and_keeps_its_slashes(path: str | Path) -> None:
    with pytest.raises(CorpusError, match=r"^(https|s3)://.*does not download"):
        list(read_lines(path))

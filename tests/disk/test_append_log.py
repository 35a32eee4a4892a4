"""The append log: records appear after their data, and an incomplete tail is dropped."""

from pathlib import Path

import pytest

from relmo.disk.outputs import AppendLog, read_lines
from relmo.errors import StorageError


def test_records_are_written_on_commit_and_data_at_once(tmp_path: Path) -> None:
    with AppendLog(tmp_path / "log", tmp_path / "data") as log:
        log.append(b"a\n", b"12345678")
        assert (tmp_path / "data").read_bytes() == b"12345678"
        assert (tmp_path / "log").read_bytes() == b""
        assert log.num_pending == 8
        log.commit()
        log.append(b"b\n", b"x")
    assert list(read_lines(tmp_path / "log", 10)) == [b"a\n"]


def test_what_follows_the_valid_part_is_truncated(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"a\nb\nc")
    (tmp_path / "data").write_bytes(b"123456")
    with AppendLog(tmp_path / "log", tmp_path / "data", size=4, data_size=5) as log:
        log.append(b"d\n", b"7")
        log.commit(sync=False)
    assert (tmp_path / "log").read_bytes() == b"a\nb\nd\n"
    assert (tmp_path / "data").read_bytes() == b"123457"


def test_a_full_disk_is_one_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no device that is always full")
    with AppendLog(Path("/dev/full")) as log:
        log.append(b"a\n")
        with pytest.raises(StorageError, match="disk is full"):
            log.commit(sync=False)


def test_long_lines_come_in_pieces_and_a_missing_log_is_empty(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"abcdef\ng")
    assert list(read_lines(tmp_path / "log", 4)) == [b"abcd", b"ef\n", b"g"]
    assert list(read_lines(tmp_path / "none", 4)) == []

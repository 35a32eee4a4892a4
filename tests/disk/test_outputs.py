"""Outputs: whole or not at all, through links, into FIFOs and devices, never over what was to stay."""

import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relmo.cli import main
from relmo.disk.outputs import (
    atomic,
    check_replaceable,
    folder_lock,
    new_folder,
    refuse_existing,
    storage_errors,
    sweep,
)
from relmo.errors import StorageError

OURS = re.compile(r"config\.json|model\.safetensors")
CHILD = (
    "import sys; from pathlib import Path; from relmo.disk.outputs import atomic, folder_lock; "
    "path = Path(sys.argv[1]);"
)


def write(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text)


def child(code: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD + code, *map(str, arguments)]
    return subprocess.run(command, text=True, check=True, **({"capture_output": True} | options))  # type: ignore[call-overload]


def test_a_link_stays_and_the_file_behind_it_is_written(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    link, far = tmp_path / "link", tmp_path / "far"
    link.symlink_to("there/file")
    write(link, "one")  # the file was not there yet
    write(link, "two")
    far.symlink_to(link)
    write(far, "three")
    assert (there / "file").read_text() == "three"
    assert link.is_symlink()
    assert far.is_symlink()
    assert [path.name for path in there.iterdir()] == ["file"]


def test_a_fifo_is_written_into(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(fifo.read_text()))
    reader.start()
    write(fifo, "text")
    reader.join()
    assert found == ["text"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["fifo"]


def test_a_device_is_written_into_and_its_failure_is_one_line(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write(link, "text")
    assert link.is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116
    with pytest.raises(StorageError, match="/dev/full: the disk is full"):
        write(Path("/dev/full"), "text")


def test_standard_output_is_written_where_it_stands_a_pipe_or_a_file(tmp_path: Path) -> None:
    code = "print('before'); exec('with atomic(path) as t: t.write_text(chr(120))'); print('after')"
    assert child(code, "/dev/stdout").stdout == "before\nxafter\n"
    with (tmp_path / "out").open("w") as file:
        child(code, "/dev/stdout", stdout=file, capture_output=False)
    assert (tmp_path / "out").read_text() == "before\nxafter\n"
    assert Path("/dev/stdout").is_symlink()


def test_names_that_cannot_be_are_one_line(tmp_path: Path) -> None:
    for path, says in [
        (tmp_path / ("x" * 300), "cannot be written: the name is too long"),
        (Path("/proc/x"), "/proc/x: cannot be written"),
        (tmp_path / "a\0b", "valid file name"),
        (tmp_path, "cannot be written: it is a folder"),
    ]:
        with pytest.raises(StorageError, match=says) as raised:
            write(path, "text")
        assert len(str(raised.value)) < 400
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(StorageError, match="loop: cannot be written"):
        write(loop, "text")


def test_a_name_as_long_as_names_may_be_is_written(tmp_path: Path) -> None:
    for name in ("x" * 255, "é" * 127):
        write(tmp_path / name, "text")
        assert (tmp_path / name).read_text() == "text"


def test_an_error_of_what_is_read_is_not_taken_for_one_of_the_output(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError), storage_errors(tmp_path / "out"):
        raise TimeoutError(110, "timed out")


def test_what_exists_is_refused_with_the_flag_to_type(tmp_path: Path) -> None:
    file = tmp_path / "file"
    refuse_existing(file, overwrite=False)
    file.write_text("mine")
    with pytest.raises(StorageError, match=r"file: .*--overwrite"):
        refuse_existing(file, overwrite=False)
    refuse_existing(file, overwrite=True)
    refuse_existing(Path("/dev/null"), overwrite=False)
    with pytest.raises(StorageError, match="is a folder"):
        refuse_existing(tmp_path, overwrite=True)


def test_a_new_folder_takes_the_place_of_one_that_relmo_wrote_and_of_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with new_folder(folder, ours=OURS) as inside:
        (inside / "config.json").write_text("old")
        assert not folder.exists()
    with pytest.raises(StorageError, match=r"model: .*--overwrite"), new_folder(folder, ours=OURS):
        pass
    with pytest.raises(ZeroDivisionError), new_folder(folder, overwrite=True, ours=OURS) as inside:
        raise ZeroDivisionError
    assert (folder / "config.json").read_text() == "old"
    with new_folder(folder, overwrite=True, ours=OURS) as inside:
        (inside / "model.safetensors").write_text("new")
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"thesis\.txt"):
        check_replaceable(folder, overwrite=True, ours=OURS)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_kill_left_half_written_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    gone = child("import os; print(os.getpid())", "x").stdout.strip()
    dead, alive = tmp_path / f".file.{gone}-0.tmp", tmp_path / f".file.{os.getppid()}-0.tmp"
    other, mine = tmp_path / f".other.{gone}-3.tmp", tmp_path / ".file.tmp"
    for path in (dead, alive, mine):
        path.write_text("half")
    other.mkdir()
    write(tmp_path / "file", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"file", alive.name, other.name, mine.name}
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", alive.name, mine.name}


def test_what_a_library_leaves_beside_its_file_goes_too(tmp_path: Path) -> None:
    with atomic(tmp_path / "file") as temporary:
        temporary.write_text("whole")
        temporary.with_name("other.tmp").write_text("half")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_two_processes_do_not_work_in_one_folder(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        done = child("exec('try:\\n with folder_lock(path): pass\\nexcept Exception as error: print(error)')", tmp_path)
        assert done.stdout.startswith(f"{tmp_path}: ")
        assert "another process" in done.stdout
    child("exec('with folder_lock(path): pass')", tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_locks_in_the_system_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with folder_lock(tmp_path), folder_lock(tmp_path):
        pass


def test_a_command_that_would_write_over_a_file_does_no_work_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, page, table = tmp_path / "picture.png", tmp_path / "page.html", tmp_path / "words.tsv"
    for path in (picture, page, table):
        path.write_text("mine")
    commands = [
        ["analyse", "gradients", "none", "--plot", picture],
        ["analyse", "truncation", "none", "--plot", picture],
        ["analyse", "cells", "none", "none.txt", "--plot", picture],
        ["analyse", "compare", "none", "none", "--text", "none.txt", "--plot", picture],
        ["analyse", "agreement", "none", "--plot", picture],
        ["analyse", "number-units", "none", "--gates", picture],
        ["analyse", "counting", "--plot", picture],
        ["analyse", "trace", "none", "none.txt", "--plot", picture],
        ["explore", "none", "--export", page],
        ["surprisal", "none", "none.txt", "--out", table],
    ]
    for command in commands:
        with pytest.raises(SystemExit) as stopped:
            main(list(map(str, command)))
        assert stopped.value.code == 2
        assert "--overwrite" in capsys.readouterr().err, command
    assert {path.read_text() for path in (picture, page, table)} == {"mine"}

"""Terminals as they may be: closed, full, cut off, in ASCII; and texts that look like markup. All end in one line."""

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cyclopts import App

from relmo.cli import main
from relmo.cli.terminal import (
    json_line,
    prepare_streams,
    print_scores,
    print_table,
    progress_bar,
    rate_bars,
)
from relmo.errors import CorpusError
from relmo.runs.progress import TrainingReporter
from relmo.tasks.scores import LabelScore
from relmo.text.corpus import open_bytes

ODD = "[/url] [run1] [bold]x[/bold] :smile: 12"
FULL = Path("/dev/full")


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.fixture
def shell() -> Callable[..., tuple[int, str, str]]:
    """A function that runs a line of a shell, `relmo` and all. -> exit status, standard output and error"""

    def run(line: str, **environment: str) -> tuple[int, str, str]:
        line = line.replace("relmo", f"'{sys.executable}' -m relmo")
        done = subprocess.run(
            ["bash", "-c", line],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""} | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.skipif(not FULL.exists(), reason="there is no device that is always full")
def test_a_full_device_is_one_line_and_status_2(shell: Callable[..., tuple[int, str, str]]) -> None:
    assert shell("relmo --version > /dev/full") == (2, "", "error: standard output: the disk is full\n")
    assert shell("relmo nonsense 2> /dev/full; echo $?")[1:] == ("2\n", "")


def test_a_reader_that_has_seen_enough_is_no_error(shell: Callable[..., tuple[int, str, str]]) -> None:
    line = "(sleep 0.2; relmo train lm --help; echo $? >&2) | true"
    assert shell(line)[1:] == ("", "0\n")


@pytest.mark.slow
def test_results_that_standard_output_cannot_take_are_an_error(shell: Callable[..., tuple[int, str, str]]) -> None:
    status, _, stderr = shell("relmo --version >&-")
    assert status == 2
    assert "standard output" in stderr
    status, _, stderr = shell("echo 12+34 | relmo predict addition >&-")
    assert status == 2
    assert "standard output" in stderr


def test_messages_to_a_closed_standard_error_are_dropped(shell: Callable[..., tuple[int, str, str]]) -> None:
    assert shell("relmo nonsense 2>&- <&-") == (2, "", "")


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[io.TextIOBase], None]]:
    """A function that makes another stream standard output."""
    opened = []

    def take(stream: io.TextIOBase) -> None:
        opened.append(stream)
        monkeypatch.setattr(sys, "stdout", stream)

    yield take
    for stream in opened:
        stream.close()


@pytest.mark.skipif(not FULL.exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("buffering", [1, -1])
def test_every_verb_says_that_its_output_is_full(
    output: Callable[[io.TextIOBase], None], capsys: pytest.CaptureFixture[str], buffering: int
) -> None:
    for arguments in (("info", "words"), ("analyse", "cells", "--list-features"), ("train", "--help")):
        output(FULL.open("w", buffering))
        assert status_of(*arguments) == 2, arguments
        said = capsys.readouterr().err
        assert said.startswith("error: standard output")
        assert said.endswith(": the disk is full\n")
        assert said.count("\n") == 1


def test_tables_end_quietly_where_nobody_reads_on(
    output: Callable[[io.TextIOBase], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("info", "words"), ("analyse", "cells", "--list-features"), ("--help",)):
        read, write = os.pipe()
        os.close(read)
        output(os.fdopen(write, "w"))
        assert status_of(*arguments) == 0, arguments
        assert capsys.readouterr().err == ""


def test_an_ascii_terminal_is_told_the_numbers_of_characters_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    prepare_streams()
    print_table(["wört"], [["naïve"], ["東京"]])
    print(json_line({"wört": "東京 😀"}))
    sys.stdout.flush()
    *table, line = printed.getvalue().decode("ascii").splitlines()
    assert [row.strip() for row in table] == [r"w\xf6rt", r"na\xefve", r"\u6771\u4eac"]
    assert json.loads(line) == {"wört": "東京 😀"}


def test_half_a_character_is_printed_as_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="utf-8"))
    prepare_streams()
    print("a\udcffé")
    print(json_line({"name": "a\udcffé"}))
    sys.stdout.flush()
    first, second = printed.getvalue().decode().splitlines()
    assert first == r"a\udcffé"
    assert json.loads(second) == {"name": "a\udcffé"}


def test_standard_input_that_is_closed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CorpusError, match="<stdin>: standard input is closed; give a file"):
        open_bytes("-")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.txt"), "a.txt: no such file"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), f"{'x' * 300}: the name is too long"),
        (PermissionError(errno.EACCES, "Permission denied", b"b.txt"), "b.txt: no permission"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (ValueError("embedded null byte"), "NUL character"),
        (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"), r"'\udcff'"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("[alloc.cpp] DefaultCPUAllocator: can't allocate memory: 9 bytes"), "not enough memory"),
        (
            RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),
            "not enough memory",
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "not enough memory"),
        (CorpusError("x" * 9999 + "; try y"), "…"),
        (CorpusError("a\n\x1b[2Jb\x07"), r"error: a \x1b[2Jb\x07"),
    ],
)
def test_what_escapes_is_told_in_one_short_line(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(App, "__call__", fails)
    assert status_of() == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert len(said) < 2100
    assert "Errno" not in said


def test_a_mistake_of_ours_stays_a_traceback_and_ctrl_c_says_that_it_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raises(error: BaseException) -> Callable[..., None]:
        def fails(*_: object, **__: object) -> None:
            raise error

        return fails

    for ours in (ValueError("of ours"), RuntimeError("of ours"), TypeError("of ours"), OSError("of ours")):
        monkeypatch.setattr(App, "__call__", raises(ours))
        with pytest.raises(type(ours), match="of ours"):
            main([])
    monkeypatch.setattr(App, "__call__", raises(KeyboardInterrupt()))
    assert status_of() == 130
    assert capsys.readouterr().err == "stopped\n"


def test_no_text_is_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    TrainingReporter().on_message(ODD)
    print_table([ODD], [[ODD]])
    print_scores({"labels": [LabelScore(ODD, 1.0, 1.0, 1.0, 3)._asdict()]})
    assert status_of("evaluate", ODD, ODD) == 2
    output, errors = capsys.readouterr()
    assert output.count(ODD) == 3
    assert errors.count(ODD) == 2
    monkeypatch.setenv("FORCE_COLOR", "1")  # which is a terminal to rich
    monkeypatch.setenv("COLUMNS", "200")
    with rate_bars("word") as bar:
        bar(ODD)(1, 2)
    assert ODD in capsys.readouterr().err
    with progress_bar(ODD) as share:
        share(0.5)
    assert ODD in capsys.readouterr().err

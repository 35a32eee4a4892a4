"""The command `python -m benchmarks`."""

import json
from pathlib import Path

import pytest

from benchmarks import clock
from benchmarks.__main__ import main, status_line


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = 0
    try:
        main(arguments)
    except SystemExit as stop:
        status = int(stop.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clock.MIN_SECONDS, "cpu", 0.0)
    monkeypatch.setattr("benchmarks.machine.SHAPES", {"cpu": [(64, 64, 64)]})


TINY = ["--geometry", "tiny", "--device", "cpu", "--rounds", "1", "--tokens", "40", "--what", "embed"]


def test_it_prints_the_machine_a_table_and_what_speaks_against_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.machine.os.getloadavg", lambda: (3.0, 3.0, 3.0))
    status, output, _ = run(capsys, *TINY, "--quiet")
    assert status == 0
    assert "matrix products in int8" in output
    assert "tokens/s" in output
    line = next(line for line in output.splitlines() if line.startswith("relmo float32, warm cache"))
    assert "%" in line
    assert "within" in line
    assert "cosine" in output
    assert "load average 3.0" in output


def test_json_is_one_object_and_threads_are_those_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, *TINY, "--dtype", "float32", "--threads", "1", "--json")
    found = json.loads(output)
    assert (status, output.count("\n"), found["threads"]) == (0, 1, 1)
    assert {row["name"] for row in found["rows"]} >= {"textbook loop, input order", "relmo float32, cold cache"}


@pytest.mark.slow
def test_the_explorers_answers_are_told_in_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "--what", "explore", "--rounds", "1", "--quiet")
    assert status == 0
    table = output.partition("Explorer, prose")[2].splitlines()
    assert table[2].split() == ["ms", "x"]
    assert [line.split("  ")[0] for line in table[3:5]] == ["a page opened", "another unit"]


def test_a_mistake_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for given, says in (
        (["--geometry", "huge"], "tiny, small, medium, original"),
        (["--text", str(tmp_path / "none.txt")], "none.txt"),
        (["--threads", "0"], "--threads"),
        (["--threads", "1000000000"], "--threads"),
    ):
        status, output, errors = run(capsys, *given)
        assert (status, output, errors.count("\n")) == (2, "", 1)
        assert says in errors


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert "python -m benchmarks --quick" in run(capsys, "--help")[1]


def test_a_message_of_progress_is_not_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which is a terminal to rich
    monkeypatch.setenv("COLUMNS", "200")
    message = "[/url] [run1] [bold]x[/bold] :smile: 12"
    with status_line(quiet=False) as show_message:
        show_message(message)
    assert message in capsys.readouterr().err

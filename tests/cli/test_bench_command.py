"""`relmo bench`, as typed."""

import json
from pathlib import Path

import pytest

from relmo.bench import clock
from relmo.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = 0
    try:
        main(["bench", *arguments])
    except SystemExit as stop:
        status = int(stop.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clock.AT_LEAST, "cpu", 0.0)
    monkeypatch.setattr("relmo.bench.machine.SHAPES", {"cpu": [(64, 64, 64)]})


TINY = ["--geometry", "tiny", "--device", "cpu", "--rounds", "1", "--tokens", "40", "--what", "embed"]


def test_it_prints_the_machine_a_table_and_what_speaks_against_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relmo.bench.machine.os.getloadavg", lambda: (3.0, 3.0, 3.0))
    status, output, _ = run(capsys, *TINY, "--quiet")
    assert status == 0
    assert "matrix products in int8" in output
    assert "tokens/s" in output
    line = next(line for line in output.splitlines() if line.startswith("relmo float32, words known"))
    assert "%" in line
    assert "within" in line
    assert "cosine" in output
    assert "warning: the machine was busy when this began (load average 3.0)" in output


def test_json_is_one_object_and_threads_are_those_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, *TINY, "--dtype", "float32", "--threads", "1", "--json")
    found = json.loads(output)
    assert (status, output.count("\n"), found["threads"]) == (0, 1, 1)
    assert {row["name"] for row in found["rows"]} >= {"textbook loop, input order", "relmo float32, words new"}


def test_the_explorers_answers_are_told_in_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "--what", "explore", "--rounds", "1", "--quiet")
    assert status == 0
    table = output.partition("Explorer, prose")[2].splitlines()
    assert table[2].split() == ["ms", "x"]
    assert [line.split("  ")[0] for line in table[3:5]] == ["a page opened", "another unit"]


def test_a_mistake_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for given, says in (
        (["--geometry", "huge"], "it can be tiny, small, medium, original"),
        (["--text", str(tmp_path / "none.txt")], "no such file"),
        (["--threads", "0"], "--threads must be 1 or more"),
    ):
        status, output, errors = run(capsys, *given)
        assert (status, output, errors.count("\n")) == (2, "", 1)
        assert says in errors


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert "relmo bench --quick" in run(capsys, "--help")[1]

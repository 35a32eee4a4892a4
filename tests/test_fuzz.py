"""A slice of the fuzzer, and that it sees what it is there for. All of it: python tests/fuzz.py"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz import SUBJECTS, Result, Sound, attempts, table
from relmo.errors import RelmoError
from support.fuzz_models import Subject
from support.fuzz_mutations import mutate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the fuzzer limits memory as on Linux"),
]
A_ROUND = len(SUBJECTS)
HANGS = 120.0  # seconds; longer than anything takes on a busy machine


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fuzzer goes from folder to folder; afterwards this is the working folder again."""
    monkeypatch.chdir(tmp_path)


def test_damaged_files_of_every_kind_are_read_as_they_were_or_refused_in_one_line(tmp_path: Path) -> None:
    results = list(attempts(Sound(tmp_path), SUBJECTS, range(6 * A_ROUND), limit=HANGS))
    assert [str(result) for result in results if result.outcome == "failed"] == []
    assert {result.subject for result in results} == {subject.name for subject in SUBJECTS}
    assert len(results) == 6 * A_ROUND
    assert {"refused", "same", "other"} <= {result.outcome for result in results}


def tried(tmp_path: Path, use: Callable[[Path], str], *, limit: float = HANGS, count: int = 3) -> list[Result]:
    """What the fuzzer says of a reader."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "file.json").write_text('{"a": [1, 2]}')

    subject = Subject("mine", make, lambda folder: sound_or(use, folder), covered=("*.json",))
    return list(attempts(Sound(tmp_path), [subject], range(count), limit=limit))


def sound_or(use: Callable[[Path], str], folder: Path) -> str:
    """The file's text where it is sound, what a reader says of it otherwise."""
    path = folder / "file.json"
    whole = path.is_file() and path.read_bytes() == b'{"a": [1, 2]}'
    return "sound" if whole else use(path)


def raises(error: BaseException) -> str:
    raise error


def test_an_error_of_relmo_s_own_is_right(tmp_path: Path) -> None:
    assert {each.outcome for each in tried(tmp_path, lambda _: raises(RelmoError("no")))} == {"refused"}


def test_any_other_exception_is_a_failure(tmp_path: Path) -> None:
    results = tried(tmp_path, lambda _: raises(KeyError("a")))
    assert {each.outcome for each in results} == {"failed"}
    assert "KeyError: 'a'" in results[0].said


def test_other_numbers_from_a_file_with_a_checksum_are_a_failure(tmp_path: Path) -> None:
    results = tried(tmp_path, lambda _: "others")
    assert {each.said for each in results} == {"was read as other numbers, and nothing was said"}


def test_a_process_that_hangs_or_dies_is_a_failure_and_the_next_goes_on(tmp_path: Path) -> None:
    results = tried(tmp_path, lambda _: raises(SystemExit) if time.sleep(60) else "", limit=0.2, count=2)
    assert ["took more than 0.2 seconds" in each.said for each in results] == [True, True]
    results = tried(tmp_path / "again", lambda _: os._exit(3))
    assert [each.said for each in results] == ["the process died or hung (3)"] * 3


def test_memory_without_end_is_a_failure(tmp_path: Path) -> None:
    results = tried(tmp_path, lambda _: str(len(bytearray(3 << 30))), count=1)
    assert "MemoryError" in results[0].said


def test_a_number_always_names_the_same_mutation(tmp_path: Path) -> None:
    path = tmp_path / "a.json"

    def mutated(number: int) -> tuple[object, bytes | None]:
        path.write_text('{"a": [1, 2], "b": "c"}')
        done = mutate(random.Random(number), tmp_path, ["a.json"], special=False)
        return done, path.read_bytes() if path.exists() else None

    found = [mutated(number) for number in range(50)]
    assert [mutated(number) for number in reversed(range(50))] == found[::-1]
    assert len({after for _, after in found}) > 20


def test_the_table_counts_what_became_of_each_kind_of_file() -> None:
    results = [Result(0, "lm", ("config.json",), "", "refused"), Result(1, "lm", ("config.json",), "", "same")]
    assert [line.split() for line in table(results)] == [
        ["files", "of", "file", "refused", "same", "other", "failed"],
        ["lm", "config.json", "1", "1"],
        ["2", "1", "1", "0", "0"],
    ]

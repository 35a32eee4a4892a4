"""Many trainings: what is finished stays, what was killed goes on, what fails is told, and the rest is done."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments import trainings
from experiments.trainings import Location, Outcome, TrainingRun, find_results, run_trainings
from relmo.disk.files import seal
from relmo.errors import NO_MEMORY, ModelError, SettingError

PLACES = {"data": Location("/some where/data"), "small": Location("small", "with 3 layers")}


class FakeProcess:
    """A training that has ended, as it was told, when it was looked at so often; or when it was asked to."""

    def __init__(self, finish: Callable[[], int], looks: int):
        self.finish, self.looks, self.terminated = finish, looks, False
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Looks at it."""
        self.looks -= 1
        if self.looks <= 0 and self.returncode is None:
            self.returncode = self.finish()
        return self.returncode

    def terminate(self) -> None:
        """Asks it to end."""
        self.terminated = True

    def wait(self, timeout: float) -> int:
        """It ends."""
        return 130


class Fakes:
    """In the place of processes: each leaves a model's config.json, but those whose name has `bad` in it fail, and so
    do those with `large` in their name where others run."""

    def __init__(self, looks: int = 1):
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.processes: list[FakeProcess] = []
        self.looks, self.most = looks, 0

    def start(self, command: list[str], log: Any, environment: dict[str, str]) -> FakeProcess:
        """As `start_process`."""
        self.commands.append(command)
        self.environments.append(environment)
        folder = Path(command[-1])
        bad = "bad" in folder.name
        log.write(b"working\nerror: it cannot be\n\n" if bad else b"working\n")

        def finish() -> int:
            if bad:
                return 2
            if "large" in folder.name and sum(process.returncode is None for process in self.processes) > 1:
                (folder.parent / f"{folder.name}.log").write_text(f"error: {NO_MEMORY} for this (CUDA)\n")
                return 2
            write_model(folder, 0.25)
            return 0

        self.processes.append(FakeProcess(finish, self.looks))
        self.most = max(self.most, sum(process.returncode is None for process in self.processes))
        return self.processes[-1]


def write_model(folder: Path, score: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "run").exists():
        (folder / "run").rmdir()
    results = {"metric": "f1", "valid_f1": score, "seconds": 1.5}
    (folder / "config.json").write_text(json.dumps({"results": results}))


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Processes that are none."""
    made = Fakes()
    monkeypatch.setattr(trainings, "start_process", made.start)
    monkeypatch.setattr(trainings, "POLL_SECONDS", 0.0)
    return made


def made(*names: str) -> list[TrainingRun]:
    return [TrainingRun(name, "tagger {data}/t.iob2 --elmo {small} --seed 1") for name in names]


def test_a_command_has_the_places_that_its_text_names(tmp_path: Path) -> None:
    command = made("a")[0].command(PLACES, tmp_path, "cpu")
    assert command == [
        *("train", "tagger", "/some where/data/t.iob2", "--elmo", "small", "--seed", "1"),
        *("--device", "cpu", "--out", str(tmp_path / "a")),
    ]
    assert "--device" not in made("a")[0].command(PLACES, tmp_path)


def test_what_is_finished_stays_and_what_was_killed_goes_on(fakes: Fakes, tmp_path: Path) -> None:
    write_model(tmp_path / "by-hand", 0.5)
    write_model(tmp_path / "killed", 0.1)  # the best so far
    (tmp_path / "killed" / "run").mkdir()
    done = run_trainings(made("by-hand", "killed", "new"), PLACES, tmp_path)
    assert fakes.commands[0] == ["train", "tagger", "--resume", "--out", str(tmp_path / "killed")]
    assert fakes.commands[1] == made("new")[0].command(PLACES, tmp_path)
    assert {name: results["valid_f1"] for name, results in done.results.items()} == {
        "by-hand": 0.5,
        "killed": 0.25,
        "new": 0.25,
    }
    fakes.commands.clear()
    for name in ("by-hand", "new"):  # the records are enough
        (tmp_path / name / "config.json").unlink()
    assert run_trainings(made("by-hand", "killed", "new"), PLACES, tmp_path).results == done.results
    assert fakes.commands == []


def test_one_that_fails_is_told_with_its_last_words_and_the_others_are_done(fakes: Fakes, tmp_path: Path) -> None:
    heard: list[str] = []
    done = run_trainings(made("bad", "good"), PLACES, tmp_path, on_message=heard.append)
    assert list(done.results) == ["good"]
    assert done.failed == {"bad": f"error: it cannot be (see {tmp_path / 'bad.log'})"}
    assert "good: 25.00 after 1.5 s (1 of 2)" in heard
    again = [TrainingRun("bad-2", "lm x"), TrainingRun("bad", "tagger y")]  # of which nothing was kept
    assert run_trainings(again, PLACES, tmp_path).failed.keys() == {"bad", "bad-2"}


def test_one_that_finds_no_memory_waits_until_another_has_ended(fakes: Fakes, tmp_path: Path) -> None:
    fakes.looks = 3
    heard: list[str] = []
    done = run_trainings(made("a", "large", "b", "large-2"), PLACES, tmp_path, jobs=3, on_message=heard.append)
    assert done.results.keys() == {"a", "b", "large", "large-2"}
    assert not done.failed
    assert any("out of memory" in line for line in heard)


def test_they_leave_each_other_memory_unless_the_user_says_how(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    run_trainings(made("a"), PLACES, tmp_path)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    run_trainings(made("b"), PLACES, tmp_path)
    told = [environment["PYTORCH_CUDA_ALLOC_CONF"] for environment in fakes.environments]
    assert told == ["expandable_segments:True", "max_split_size_mb:64"]


@pytest.mark.parametrize(("often", "failed"), [(1, set()), (9, {"bad-a", "bad-b"})])
def test_those_that_find_no_memory_are_tried_alone_before_they_have_failed(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: int, failed: set[str]
) -> None:
    """All of them end at the same time, so that none runs any more when the last one is looked at."""

    def start(command: list[str], log: Any, environment: dict[str, str]) -> FakeProcess:
        log.write(f"error: {NO_MEMORY}\n".encode())
        fakes.commands.append(command)
        before = sum(each[-1] == command[-1] for each in fakes.commands)
        return FakeProcess(lambda: 2 if before <= often else write_model(Path(command[-1]), 0.25) or 0, looks=1)

    monkeypatch.setattr(trainings, "start_process", start)
    done = run_trainings(made("bad-a", "bad-b"), PLACES, tmp_path, jobs=2)
    assert done.failed.keys() == failed
    assert done.results.keys() == {"bad-a", "bad-b"} - failed


@pytest.mark.parametrize("jobs", [1, 3])
def test_so_many_run_at_a_time(fakes: Fakes, tmp_path: Path, jobs: int) -> None:
    fakes.looks = 4
    done = run_trainings(made(*"abcdefg"), PLACES, tmp_path, jobs=jobs)
    assert fakes.most == jobs
    assert list(done.results) == list("abcdefg")


def test_none_runs_where_only_what_is_finished_is_asked_for(fakes: Fakes, tmp_path: Path) -> None:
    done = run_trainings(made("a", "b"), PLACES, tmp_path / "none", jobs=0)
    assert done == Outcome({}, {}, ["a", "b"])
    assert fakes.commands == []
    assert not (tmp_path / "none").exists()


def test_when_the_time_is_over_those_that_run_are_asked_to_end(fakes: Fakes, tmp_path: Path) -> None:
    fakes.looks = 1 << 60
    done = run_trainings(made("a", "b", "c"), PLACES, tmp_path, jobs=2, seconds=0.05)
    assert done.unfinished == ["a", "b", "c"]
    assert [process.terminated for process in fakes.processes] == [True, True]
    fakes.looks = 1
    assert len(run_trainings(made("a", "b", "c"), PLACES, tmp_path).results) == 3


def test_ctrl_c_ends_those_that_run_first(fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    fakes.looks = 1 << 60
    monkeypatch.setattr(trainings.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_trainings(made("a"), PLACES, tmp_path)
    assert fakes.processes[0].terminated


def test_a_record_of_other_settings_or_a_damaged_one_is_one_line(fakes: Fakes, tmp_path: Path) -> None:
    (training,) = made("a")
    run_trainings([training], PLACES, tmp_path)
    other = training._replace(text="tagger {data}/t.iob2 --hidden 3")
    with pytest.raises(SettingError, match=r"a.json: .*--elmo.*--out"):
        find_results(other, tmp_path, PLACES)
    with pytest.raises(SettingError, match=r"another small \(with 3 layers, not with 4 layers\)"):
        find_results(training, tmp_path, PLACES | {"small": Location("small", "with 4 layers")})
    assert find_results(training, tmp_path, PLACES | {"small": Location("moved", "with 3 layers")}) is not None
    record = tmp_path / "a.json"
    record.write_text(record.read_text().replace("0.25", "0.75"))
    with pytest.raises(ModelError, match=r"a.json: .*remove"):
        find_results(training, tmp_path, PLACES)
    wrong = {
        "asked": training.text,
        "about": {"small": "with 3 layers"},
        "results": {"metric": "f1", "valid_f1": "good"},
    }
    record.write_text(json.dumps(seal(wrong)))
    with pytest.raises(ModelError, match=r"a.json: .*score"):
        find_results(training, tmp_path, PLACES)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {"metric": "f1"},
        {"metric": ["f1"], "valid_f1": 1},
        {"metric": "f1", "valid_f1": 1, "elmo_mix": "even"},
        {"metric": "f1", "valid_f1": 1, "elmo_mix": {"input": {"weights": [0.5, "x"], "gamma": 1}}},
        {"metric": "f1", "valid_f1": 1, "elmo_mix": {"input": {"weights": [0.5]}}},
    ],
)
def test_results_of_a_model_that_are_none_are_one_line(wrong: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "a", 0.5)
    (tmp_path / "a" / "config.json").write_text(json.dumps({"results": wrong}))
    with pytest.raises(ModelError, match=r"config.json: .*remove"):
        find_results(made("a")[0], tmp_path, PLACES)

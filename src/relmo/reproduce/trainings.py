"""Many trainings, each of them the `relmo train` that a user would type, some at a time; what is finished stays.

    OUT/NAME/       the model, as `relmo train … --out OUT/NAME` leaves it
    OUT/NAME.log    what that said
    OUT/NAME.json   what was asked for, with which biLM and, once it is finished, its results

A training whose record has results is finished, even where its model's folder is gone. One that was killed goes on from
its checkpoint. One that somebody ran by hand, with the command that is printed, is taken as it is.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.digests import read_json, read_sealed, sealed
from relmo.disk.outputs import storage_errors
from relmo.errors import NO_MEMORY, ModelError, SettingError
from relmo.store.folder import CONFIG, write_json

LOOK_EVERY = 0.1  # seconds
PATIENCE = 60.0  # seconds that a training has to write its checkpoint when it is stopped
RUN = "run"  # the folder that only an unfinished training has
LAST_WORDS = 4096  # bytes of a log
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
GROWING = "expandable_segments:True"
"""Without it torch keeps GPU memory for each shape of a batch that it has met, two or three times what a training
needs, and others beside it find none."""


class Whereabouts(NamedTuple):
    """Where something lies that a training needs, and, of a biLM, which one it is: another at the same place, or under
    the same name, is not taken for it."""

    path: str
    about: str = ""


Places = Mapping[str, Whereabouts]


class TrainingRun(NamedTuple):
    """`relmo train TEXT --out OUT/NAME`. The text names places in braces, {data} or the name of a biLM, so that it says
    the same wherever these lie."""

    name: str
    text: str

    def command(self, places: Places, out: Path, device: str = "auto") -> list[str]:
        """What stands behind `relmo` on the command line."""
        words = [_filled(word, places) for word in shlex.split(self.text)]
        where = [] if device == "auto" else ["--device", device]
        return ["train", *words, *where, "--out", str(out / self.name)]

    def about(self, places: Places) -> dict[str, str]:
        """Which biLMs it reads."""
        return {name: place.about for name, place in places.items() if place.about and f"{{{name}}}" in self.text}


def _filled(word: str, places: Places) -> str:
    for name, place in places.items():
        word = word.replace(f"{{{name}}}", place.path)
    return word


@dataclass
class Trained:
    """The results of all finished trainings by their names, why others failed, and which are not finished."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)


def find_results(training: TrainingRun, out: Path, places: Places) -> dict[str, Any] | None:
    """The results of a training that is finished. An error where the folder holds another one under its name."""
    record, folder = out / f"{training.name}.json", out / training.name
    advice = f"remove it and {folder}, and it is trained again"
    if record.exists():
        found = read_sealed(record, advice)
        if "results" in found or folder.exists():
            _check_same(found, training, places, f"{record}: was made with", f"give another --out, or {advice}")
        if "results" in found:
            return _checked(found["results"], record, advice)
    if (folder / RUN).exists() or not (folder / CONFIG).exists():
        return None
    results = _checked(read_json(folder / CONFIG, advice).get("results"), folder / CONFIG, advice)
    _write_record(training, out, places, results)
    return results


def _check_same(found: Mapping[str, Any], training: TrainingRun, places: Places, made: str, advice: str) -> None:
    """What was asked for before is what is asked for now."""
    if found.get("asked") != training.text:
        raise SettingError(f"{made} other settings ({found.get('asked')}); {advice}")
    for name, about in training.about(places).items():
        before = found.get("about", {}).get(name)
        if before != about:
            raise SettingError(f"{made} another {name} ({before}, not {about}); {advice}, or give it another name")


def _checked(results: Any, path: Path, advice: str) -> dict[str, Any]:
    """Results; those of a task have a score, and weights of layers where it has ELMo."""
    if not isinstance(results, dict):
        raise ModelError(f"{path}: has no results; {advice}")
    if "metric" in results and not isinstance(score_of(results), int | float):
        raise ModelError(f"{path}: has no score in its results; {advice}")
    mixes = results.get("elmo_mix", {})
    if not isinstance(mixes, dict) or not all(_is_mix(mix) for mix in mixes.values()):
        raise ModelError(f"{path}: has weights of layers in its results that are none; {advice}")
    return results


def _is_mix(mix: Any) -> bool:
    if not isinstance(mix, dict) or not isinstance(mix.get("weights"), list):
        return False
    return all(isinstance(number, int | float) for number in [*mix["weights"], mix.get("gamma")])


def score_of(results: Mapping[str, Any]) -> Any:
    """The score that a task's best epoch was chosen by, from 0 to 1."""
    return results.get(f"valid_{results['metric']}")


def _write_record(training: TrainingRun, out: Path, places: Places, results: dict[str, Any] | None = None) -> None:
    record: dict[str, Any] = {"asked": training.text, "about": training.about(places)}
    write_json(out / f"{training.name}.json", sealed(record if results is None else record | {"results": results}))


def run_trainings(
    trainings: Iterable[TrainingRun],
    places: Places,
    out: Path,
    *,
    jobs: int = 1,
    device: str = "auto",
    seconds: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Trained:
    """Runs those that are not finished, `jobs` of them at a time, each a process of its own; none where it is 0. After
    so many seconds, and on Ctrl-C or a polite kill, those that run write a checkpoint and end."""
    done = Trained()
    waiting = []
    for training in trainings:
        if (results := find_results(training, out, places)) is None:
            waiting.append(training)
        else:
            done.results[training.name] = results
    if jobs:
        until = None if seconds is None else time.monotonic() + seconds
        waiting = Runner(places, out, jobs, device, done, say).run(waiting, until)
    done.unfinished = [training.name for training in waiting]
    return done


@dataclass
class Runner:
    """Runs trainings beside each other; what comes of them is added to `done`. One that finds no memory beside the
    others waits, and from then on so many fewer run at a time."""

    places: Places
    out: Path
    jobs: int
    device: str
    done: Trained
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.running: dict[TrainingRun, subprocess.Popen[bytes]] = {}
        self.waiting: list[TrainingRun] = []
        self.crowded: set[TrainingRun] = set()
        """Those that have run beside another since they were started."""

    def run(self, trainings: list[TrainingRun], until: float | None) -> list[TrainingRun]:
        """-> those that are not finished because the time is over"""
        self.waiting = list(trainings)
        self.total = len(trainings) + len(self.done.results)
        with storage_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        with _kill_is_interruption():
            try:
                while (self.waiting or self.running) and (until is None or time.monotonic() < until):
                    while self.waiting and len(self.running) < self.jobs:
                        self._start(self.waiting.pop(0))
                    self._look()
                    time.sleep(LOOK_EVERY)
            finally:
                stopped = self._stop()
        return [*stopped, *self.waiting]

    def _start(self, training: TrainingRun) -> None:
        folder = self.out / training.name
        command = training.command(self.places, self.out, self.device)
        if (folder / RUN).exists():
            command = [*command[:2], "--resume", "--out", str(folder)]
        else:
            _write_record(training, self.out, self.places)
        self.say(shlex.join(["relmo", *command]))
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // self.jobs))
        environment = {"OMP_NUM_THREADS": threads, ALLOCATOR: os.environ.get(ALLOCATOR, GROWING)}
        with (self.out / f"{training.name}.log").open("ab") as log:
            self.running[training] = start_process(command, log, environment)
        if len(self.running) > 1:
            self.crowded.update(self.running)

    def _look(self) -> None:
        """Takes in what has ended."""
        for training, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[training]
                self._take(training, process.returncode)

    def _take(self, training: TrainingRun, status: int) -> None:
        log = self.out / f"{training.name}.log"
        results = find_results(training, self.out, self.places) if status == 0 else None
        if results is None:
            self._take_failed(training, f"{_last_line(log) or f'it ended with status {status}'} (see {log})")
            return
        self.done.results[training.name] = results
        score = f"{100 * score_of(results):.2f}" if "metric" in results else "done"
        seconds = f" after {results['seconds']:g} s" if "seconds" in results else ""
        self.say(f"{training.name}: {score}{seconds} ({len(self.done.results)} of {self.total})")

    def _take_failed(self, training: TrainingRun, why: str) -> None:
        """Where it was for want of memory, and others ran beside it, it is tried again with fewer of them."""
        if training in self.crowded and NO_MEMORY in why:
            self.crowded.remove(training)
            self.jobs = max(1, min(self.jobs - 1, len(self.running)))
            self.waiting.insert(0, training)
            self.say(f"{training.name}: no memory is left beside the others; it waits, and {self.jobs} run at a time")
        else:
            self.done.failed[training.name] = why
            self.say(f"{training.name}: failed: {why}")

    def _stop(self) -> list[TrainingRun]:
        """Asks those that run to write a checkpoint and end. -> those that were not finished"""
        self._look()
        asked = list(self.running)
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()
        for training in asked:
            if (results := find_results(training, self.out, self.places)) is not None:
                self.done.results[training.name] = results
        return [training for training in asked if training.name not in self.done.results]


def start_process(command: list[str], log: Any, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """`relmo` with these arguments, in a group of its own: Ctrl-C is for its parent, which passes it on."""
    group = {"process_group": 0} if os.name == "posix" else {}
    return subprocess.Popen(
        [sys.executable, "-m", "relmo", *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | environment,
        **group,  # type: ignore[call-overload]
    )


def _last_line(log: Path) -> str:
    """The last thing that a training said."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


@contextmanager
def _kill_is_interruption() -> Iterator[None]:
    """A polite kill is like Ctrl-C meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

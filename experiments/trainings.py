"""Many trainings in parallel, each a `relmo train` command, with resume.

    OUT/NAME/       model folder, as `relmo train … --out OUT/NAME` writes it
    OUT/NAME.log    its output
    OUT/NAME.json   record: the command, the biLMs and, when it is finished, its results

A training whose record has results is finished, even if its model folder was removed. A killed training resumes from
its checkpoint. A training that was run by hand, with the printed command, is accepted as it is.
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

from relmo.disk.files import read_json, read_sealed, seal
from relmo.disk.outputs import storage_errors
from relmo.errors import NO_MEMORY, ModelError, SettingError
from relmo.store.folder import CONFIG, write_json

POLL_SECONDS = 0.1
STOP_TIMEOUT = 60.0  # seconds that a stopped training has to write its checkpoint
RUN = "run"  # the folder that only an unfinished training has
LOG_TAIL_BYTES = 4096
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
# Otherwise torch caches GPU memory for each batch shape, two or three times what a training needs, which parallel
# trainings then lack.
ALLOCATOR_SETTINGS = "expandable_segments:True"


class Location(NamedTuple):
    """Path of something a training needs and, for a biLM, its description: a record made with another biLM at the same
    path or under the same name is not reused."""

    path: str
    about: str = ""


Locations = Mapping[str, Location]


class TrainingRun(NamedTuple):
    """`relmo train TEXT --out OUT/NAME`. The text names locations in braces ({data}, or the name of a biLM), so that it
    is the same wherever these are."""

    name: str
    text: str

    def command(self, locations: Locations, out: Path, device: str = "auto") -> list[str]:
        """Return the arguments of the `relmo` command."""
        words = shlex.split(self.text)
        for name, location in locations.items():
            words = [word.replace(f"{{{name}}}", location.path) for word in words]
        return ["train", *words, *([] if device == "auto" else ["--device", device]), "--out", str(out / self.name)]

    def about(self, locations: Locations) -> dict[str, str]:
        """Return the descriptions of the biLMs it reads."""
        return {name: location.about for name, location in locations.items() if location.about and self.reads(name)}

    def reads(self, name: str) -> bool:
        """Return whether the text names a location."""
        return f"{{{name}}}" in self.text


@dataclass
class Outcome:
    """Results of all finished trainings by name, error messages of failed ones, and names of unfinished ones."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        """Add the trainings of another outcome."""
        self.results |= other.results
        self.failed |= other.failed
        self.unfinished += other.unfinished


def find_results(training: TrainingRun, out: Path, locations: Locations) -> dict[str, Any] | None:
    """Return the results of a finished training, or None; raise if another training has its name in this folder."""
    path, folder = out / f"{training.name}.json", out / training.name
    advice = f"to train it again, remove it and {folder}"
    if path.exists():
        record = read_sealed(path, advice)
        if "results" in record or folder.exists():
            _check_same(record, training, locations, path, advice)
        if "results" in record:
            return _check_results(record["results"], path, advice)
    if (folder / RUN).exists() or not (folder / CONFIG).exists():
        return None
    results = _check_results(read_json(folder / CONFIG, advice).get("results"), folder / CONFIG, advice)
    _write_record(training, out, locations, results)
    return results


def _check_same(
    record: Mapping[str, Any], training: TrainingRun, locations: Locations, path: Path, advice: str
) -> None:
    if record.get("asked") != training.text:
        raise SettingError(f"{path}: has other settings ({record.get('asked')}); use another --out; {advice}")
    for name, about in training.about(locations).items():
        before = record.get("about", {}).get(name)
        if before != about:
            raise SettingError(
                f"{path}: has another {name} ({before}, not {about}); give it another name, use another --out; {advice}"
            )


def _check_results(results: Any, path: Path, advice: str) -> dict[str, Any]:
    """Check that the results of a task have a score and valid layer weights."""
    if not isinstance(results, dict):
        raise ModelError(f"{path}: no results; {advice}")
    if "metric" in results and not isinstance(get_score(results), int | float):
        raise ModelError(f"{path}: no score in the results; {advice}")
    mixes = results.get("elmo_mix", {})
    if not isinstance(mixes, dict) or not all(_is_mix(mix) for mix in mixes.values()):
        raise ModelError(f"{path}: invalid layer weights in the results; {advice}")
    return results


def _is_mix(mix: Any) -> bool:
    if not isinstance(mix, dict) or not isinstance(mix.get("weights"), list):
        return False
    return all(isinstance(number, int | float) for number in [*mix["weights"], mix.get("gamma")])


def get_score(results: Mapping[str, Any]) -> Any:
    """Return the score by which the best epoch of a task was chosen, from 0 to 1."""
    return results.get(f"valid_{results['metric']}")


def _write_record(
    training: TrainingRun, out: Path, locations: Locations, results: dict[str, Any] | None = None
) -> None:
    record: dict[str, Any] = {"asked": training.text, "about": training.about(locations)}
    write_json(out / f"{training.name}.json", seal(record if results is None else record | {"results": results}))


def run_trainings(
    trainings: Iterable[TrainingRun],
    locations: Locations,
    out: Path,
    *,
    jobs: int = 1,
    device: str = "auto",
    seconds: float | None = None,
    on_message: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run the unfinished trainings, `jobs` at a time, each in its own process; with `jobs=0` only collect results.

    After `seconds`, on Ctrl-C or on SIGTERM, running trainings write a checkpoint and stop."""
    outcome = Outcome()
    unfinished = []
    for training in trainings:
        if (results := find_results(training, out, locations)) is None:
            unfinished.append(training)
        else:
            outcome.results[training.name] = results
    if jobs:
        deadline = None if seconds is None else time.monotonic() + seconds
        unfinished = Runner(locations, out, jobs, device, outcome, on_message).run(unfinished, deadline)
    outcome.unfinished = [training.name for training in unfinished]
    return outcome


@dataclass
class Runner:
    """Runner of parallel trainings; adds to `outcome`. If a training runs out of memory beside others, it is queued
    again and fewer run at a time from then on."""

    locations: Locations
    out: Path
    jobs: int
    device: str
    outcome: Outcome
    on_message: Callable[[str], None]
    running: dict[TrainingRun, subprocess.Popen[bytes]] = field(default_factory=dict)
    queue: list[TrainingRun] = field(default_factory=list)
    shared: set[TrainingRun] = field(default_factory=set)  # trainings that have run beside another

    def run(self, trainings: list[TrainingRun], deadline: float | None) -> list[TrainingRun]:
        """Run the trainings until the deadline; return the unfinished ones."""
        self.queue = list(trainings)
        self.total = len(trainings) + len(self.outcome.results)
        with storage_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        with _sigterm_interrupts():
            try:
                while (self.queue or self.running) and (deadline is None or time.monotonic() < deadline):
                    while self.queue and len(self.running) < self.jobs:
                        self._start(self.queue.pop(0))
                    self._poll()
                    time.sleep(POLL_SECONDS)
            finally:
                stopped = self._stop()
        return [*stopped, *self.queue]

    def _start(self, training: TrainingRun) -> None:
        folder = self.out / training.name
        command = training.command(self.locations, self.out, self.device)
        if (folder / RUN).exists():
            command = [*command[:2], "--resume", "--out", str(folder)]
        else:
            _write_record(training, self.out, self.locations)
        self.on_message(shlex.join(["relmo", *command]))
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // self.jobs))
        environment = {"OMP_NUM_THREADS": threads, ALLOCATOR: os.environ.get(ALLOCATOR, ALLOCATOR_SETTINGS)}
        with (self.out / f"{training.name}.log").open("ab") as log:
            self.running[training] = start_process(command, log, environment)
        if len(self.running) > 1:
            self.shared.update(self.running)

    def _poll(self) -> None:
        for training, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[training]
                self._collect(training, process.returncode)

    def _collect(self, training: TrainingRun, status: int) -> None:
        log = self.out / f"{training.name}.log"
        results = find_results(training, self.out, self.locations) if status == 0 else None
        if results is not None:
            self.outcome.results[training.name] = results
            score = f"{100 * get_score(results):.2f}" if "metric" in results else "done"
            seconds = f" after {results['seconds']:g} s" if "seconds" in results else ""
            self.on_message(f"{training.name}: {score}{seconds} ({len(self.outcome.results)} of {self.total})")
            return
        message = f"{_last_line(log) or f'exit status {status}'} (see {log})"
        if training in self.shared and NO_MEMORY in message:
            self.shared.remove(training)
            self.jobs = max(1, min(self.jobs - 1, len(self.running)))
            self.queue.insert(0, training)
            self.on_message(
                f"{training.name}: out of memory beside others; queued again, {self.jobs} run at a time now"
            )
        else:
            self.outcome.failed[training.name] = message
            self.on_message(f"{training.name}: failed: {message}")

    def _stop(self) -> list[TrainingRun]:
        """Ask running trainings to write a checkpoint and end; return the unfinished ones."""
        self._poll()
        stopped = list(self.running)
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()
        for training in stopped:
            if (results := find_results(training, self.out, self.locations)) is not None:
                self.outcome.results[training.name] = results
        return [training for training in stopped if training.name not in self.outcome.results]


def start_process(command: list[str], log: Any, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start `relmo` in its own process group: Ctrl-C reaches only the parent, which stops it."""
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
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)

"""Measurements of cells, each a job with a record: OUT/CELL/NAME.json is complete or does not exist."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from experiments.cells.language import (
    LanguageBudget,
    SpeedBudget,
    measure_shakespeare,
    measure_speed,
    measure_wikitext,
)
from experiments.cells.tasks import TASKS
from experiments.cells.train import Protocol, train_task
from relmo.disk.files import read_sealed, seal
from relmo.errors import ModelError, SettingError, quote
from relmo.registry import cell_names
from relmo.store.folder import write_json

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {"irnn": ("elman", {"nonlinearity": "relu", "identity": True})}
"""Cells with other options than the default, by the name of their row."""
LANGUAGE, SPEED = ("shakespeare", "wikitext"), ("speed", "speed-cuda")
MEASUREMENTS = (*TASKS, *LANGUAGE, *SPEED)


def default_cells() -> list[str]:
    """Return the names of all rows."""
    names = list(cell_names())
    position = names.index("elman") + 1
    return [*names[:position], *VARIANTS, *names[position:]]


@dataclass(frozen=True)
class Plan:
    """Rows, columns and budgets of a run."""

    cells: Sequence[str]
    measurements: Sequence[str]
    protocol: Protocol = field(default_factory=Protocol)
    language: LanguageBudget = field(default_factory=LanguageBudget)
    speed: SpeedBudget = field(default_factory=SpeedBudget)
    device: str = "cpu"

    def jobs(self) -> list["Job"]:
        """Return the jobs, column by column, so that a stopped run has complete columns."""
        budgets: dict[str, Any] = dict.fromkeys(LANGUAGE, self.language) | dict.fromkeys(SPEED, self.speed)
        jobs = []
        for name in self.measurements:
            for row in self.cells:
                cell, options = VARIANTS.get(row, (row, {}))
                jobs.append(Job(row, cell, options, name, budgets.get(name, self.protocol), self.device))
        return jobs


@dataclass(frozen=True)
class Job:
    """One measurement of one cell."""

    row: str
    cell: str
    options: dict[str, Any]
    name: str
    budget: Protocol | LanguageBudget | SpeedBudget
    device: str

    def path(self, out: Path) -> Path:
        """Return the path of the record."""
        return out / self.row / f"{self.name}.json"

    def about(self) -> dict[str, Any]:
        """Return what the record has to agree with to be reused."""
        return {"cell": self.cell, "options": self.options, "budget": asdict(self.budget)}

    def is_finished(self, out: Path) -> bool:
        """Whether there is an intact record of this measurement with this budget."""
        record = read_record(self.path(out))
        return record is not None and record["about"] == self.about()

    def run(self, out: Path, data: Path) -> dict[str, Any]:
        """Measure and write the record."""
        folder = out / self.row
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(self.budget, Protocol):
            results = train_task(TASKS[self.name], self.cell, self.options, self.budget, device=self.device)
        elif isinstance(self.budget, LanguageBudget):
            measure = measure_shakespeare if self.name == "shakespeare" else measure_wikitext
            results = measure(folder / self.name, data, self.cell, self.options, self.budget, self.device)
        else:
            device = "cuda" if self.name == "speed-cuda" else "cpu"
            results = measure_speed(self.cell, self.options, self.budget, device)
        record = {"row": self.row, "name": self.name, "about": self.about(), "results": results}
        write_json(self.path(out), seal(record))
        return results


def read_record(path: Path) -> dict[str, Any] | None:
    """Return a record, or None if it is missing or damaged."""
    try:
        return read_sealed(path, "measure again") if path.exists() else None
    except ModelError:
        return None


def read_results(out: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the results of all records by row and measurement."""
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted(out.glob("*/*.json")):
        record = read_record(path)
        if record is not None and record.get("name") in MEASUREMENTS:
            results.setdefault(record["row"], {})[record["name"]] = record["results"]
    return results


def run_jobs(
    plan: Plan, out: Path, data: Path, *, processes: int = 1, on_message: Callable[[str], None] = lambda _: None
) -> dict[str, str]:
    """Run the unfinished jobs; return the messages of those that failed. Speed is measured last, by itself."""
    jobs = [job for job in plan.jobs() if not job.is_finished(out)]
    if not torch.cuda.is_available():
        jobs = [job for job in jobs if job.name != "speed-cuda"]
    shared = [job for job in jobs if job.name not in SPEED]
    alone = [job for job in jobs if job.name in SPEED]
    failures: dict[str, str] = {}
    total, done = len(jobs), 0

    def report(job: Job, error: BaseException | None, results: dict[str, Any] | None) -> None:
        nonlocal done
        done += 1
        name = f"{job.row} {job.name}"
        if error is not None:
            failures[name] = f"{type(error).__name__}: {error}"
        summary = failures.get(name) or summarise(results or {})
        on_message(f"[{done}/{total}] {name}: {summary}")

    if processes > 1 and shared:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, _initialise_worker) as pool:
            futures = {pool.submit(job.run, out, data): job for job in shared}
            try:
                for future in as_completed(futures):
                    error = future.exception()
                    report(futures[future], error, None if error else future.result())
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    else:
        alone = shared + alone
    for job in alone:
        try:
            results = job.run(out, data)
        except Exception as error:  # a cell from elsewhere may fail in any way; the other rows go on
            report(job, error, None)
        else:
            report(job, None, results)
    return failures


def _initialise_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def summarise(results: dict[str, Any]) -> str:
    """Return the main numbers of a job."""
    if "long" in results:
        means = (sum(results[part]) / len(results[part]) for part in ("short", "long"))
        short, long = (f"{100 * mean:.1f}" for mean in means)
        return f"{short} short, {long} long, {results['solved']} solved, {results['seconds']:g} s"
    names = ("diverged", "bits_per_character", "perplexity", "blimp", "reach", "ratio", "seconds")
    return ", ".join(
        f"{name} {results[name]:.4g}" if isinstance(results[name], float) else f"{name} {results[name]}"
        for name in names
        if name in results
    )


def select(text: str | None, names: Sequence[str], flag: str) -> list[str]:
    """Return the comma-separated names in their order of the list, or all."""
    if text is None:
        return list(names)
    selection = [name for name in text.replace(",", " ").split() if name]
    for name in selection:
        if name not in names:
            raise SettingError(f"{flag}: unknown name {quote(name)}; expected some of {', '.join(names)}")
    return selection

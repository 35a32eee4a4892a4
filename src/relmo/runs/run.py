"""A training run in a folder: checkpoints, metrics.jsonl, TensorBoard, interruption and resumption.

A run that is killed at any moment resumes from its last checkpoint to the same weights, bit for bit, as an
uninterrupted one (on a CPU with the same number of threads). Of several processes (`training/parallel.py`) the leader
writes; all of them agree on when to stop and when to write a checkpoint.
"""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from relmo.disk.files import check_regular
from relmo.disk.outputs import AppendLog, atomic, new_folder, read_lines
from relmo.errors import ModelError, RelmoError, optional_import
from relmo.models.saved import SavedModel
from relmo.runs.folder import CHECKPOINT, RESTORE_RUN, TrainingRun, remove_scratch
from relmo.runs.progress import Reporter
from relmo.store.folder import CONFIG, MODEL_FILES, read_tensors, save_weights, write_tensors
from relmo.training.loop import Step, Trainer
from relmo.training.parallel import SINGLE_PROCESS, Team

METRICS, SNAPSHOTS = "metrics.jsonl", "snapshots"
MEASURED_SHARE = 0.02  # of the minutes of a run, after which its speed is measured
MAX_METRICS_BYTES, MAX_RECORD_BYTES = 1 << 30, 1 << 16


class TrainingInterrupted(Exception):
    """Interruption by the user, after a checkpoint was written."""


class Metrics:
    """Writer of metrics.jsonl, without records after `step` and damaged lines, and optionally for TensorBoard."""

    def __init__(self, folder: Path, step: int, tensorboard: bool):
        self.path = folder / METRICS
        lines = list(_parse_lines(self.path))
        # a line that a kill cut off does not count
        self.num_damaged = sum(record is None and line.endswith(b"\n") for line, record in lines)
        valid = [record for _, record in lines if record is not None and record["step"] <= step]
        with atomic(self.path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in valid), encoding="utf-8")
        self.log = AppendLog(self.path)
        self.board: Any = None
        if tensorboard:
            with optional_import("--tensorboard needs the package tensorboard", "tensorboard"):
                from torch.utils.tensorboard import SummaryWriter
            self.board = SummaryWriter(str(folder / "tensorboard"))

    def write(self, record: dict[str, Any]) -> None:
        """Append a record."""
        self.log.append(json.dumps(record).encode() + b"\n")
        self.log.commit(sync=False)
        if self.board is not None:
            for name, value in record.items():
                self.board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Close the files."""
        self.log.close()
        if self.board is not None:
            self.board.close()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a metrics.jsonl; truncated and damaged lines are skipped."""
    return (record for _, record in _parse_lines(path) if record is not None)


def _parse_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield the lines of a metrics.jsonl and their records, None for a line without a valid one."""
    if path.exists():
        advice = "remove it, or restore it from a copy"
        check_regular(path, advice)
        if path.stat().st_size > MAX_METRICS_BYTES:
            raise ModelError(f"{path}: is too large, with {path.stat().st_size:,} bytes; {advice}")
    for line in read_lines(path, MAX_RECORD_BYTES):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        is_valid = isinstance(record, dict) and {"step", "epoch", "loss"} <= record.keys()
        numbers = record.values() if is_valid else ()
        is_valid &= all(type(n) is float or (type(n) is int and abs(n) < 1 << 63) for n in numbers)
        yield line, record if is_valid else None


@dataclass
class StepTotals:
    """Sums over the steps between two records of metrics; only `make_record` waits for the device."""

    loss: Any = 0.0
    num_steps: int = 0
    num_predictions: int = 0
    start: float = field(default_factory=time.perf_counter)

    def add(self, step: Step) -> None:
        """Add a step."""
        self.loss = self.loss + step.loss
        self.num_steps += 1
        self.num_predictions += step.predictions
        self.start += step.validation_seconds  # the rate excludes validation

    def make_record(self, step: Step) -> dict[str, Any]:
        """Return the record of the steps since the last one; raise `RelmoError` if the loss is not finite."""
        loss = float(self.loss) / self.num_steps
        if not math.isfinite(loss):
            raise RelmoError(f"the loss is {loss} at step {step.number}; lower --lr or --clip-norm, then start again")
        return {
            "step": step.number,
            "epoch": round(step.epoch, 4),
            "loss": loss,
            "lr": step.lr,
            "gradient_norm": float(step.norm),
            "clipped": float(step.clipped) / step.number,
            "symbols_per_second": self.num_predictions / (time.perf_counter() - self.start),
        }


class Deadline:
    """Number of steps of a time-limited run, re-estimated once from its actual speed."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.start = trainer, time.monotonic()
        self.seconds = 60 * (trainer.settings.minutes or 0.0)
        self.is_settled = not self.seconds or trainer.number > 0  # a resumed run keeps its number of steps
        self.reference: tuple[int, float] | None = None  # a step and its time
        self.validation_seconds = 0.0

    def update(self, step: Step) -> None:
        """Re-estimate the number of steps, if it is time to; called when the device has finished the step."""
        if self.is_settled:
            return
        now, team = time.monotonic() - self.validation_seconds, self.trainer.team
        if self.reference is None:
            self.reference = step.number, now  # excludes one-time costs
        elif team.broadcast(now - self.start >= MEASURED_SHARE * self.seconds):
            number, then = self.reference
            remaining = (self.seconds - (now - self.start)) * (step.number - number) / max(now - then, 1e-9)
            self.trainer.set_total_steps(team.broadcast(step.number + max(1, int(remaining))))
            self.is_settled = True


def run_training(
    trainer: Trainer,
    folder: Path,
    save: Callable[[Path], None],
    reporter: Reporter,
    *,
    details: Callable[[], dict[str, float]] = dict,
) -> None:
    """Run the trainer to its end, from the checkpoint of the folder if there is one.

    `save` writes the model to a folder; the leader calls it at every new best, or at the end if there is no validation,
    and for snapshots. `details` returns further metrics of the last validation, for metrics.jsonl."""
    settings, team, checkpoint = trainer.settings, trainer.team, folder / CHECKPOINT
    if team.broadcast(checkpoint.exists()):
        with team.barrier():
            tensors, values = read_tensors(checkpoint)
            if problem := trainer.find_mismatch(tensors) or trainer.find_problem(tensors, values):
                raise ModelError(f"{checkpoint}: does not belong to this run ({problem}); {RESTORE_RUN}")
            trainer.load_state(tensors, values)
        reporter.on_message(f"resuming from step {trainer.number} of {trainer.total}")
    with team.barrier():
        metrics = Metrics(folder, trainer.number, settings.tensorboard) if team.is_leader else None
    if metrics is not None and metrics.num_damaged and trainer.number:
        reporter.on_message(f"{metrics.path}: {metrics.num_damaged} lines are damaged and were left out")
    totals, deadline = StepTotals(), Deadline(trainer)
    interval = settings.checkpoint_every
    next_checkpoint = time.monotonic() + interval
    with (
        nullcontext() if metrics is None else closing(metrics),
        _stop_on_signal(team) as stop_event,
        closing(trainer.steps()) as steps,
    ):
        for step in steps:
            totals.add(step)
            deadline.validation_seconds += step.validation_seconds
            if step.number % settings.log_every == 0 or step.valid is not None:
                record = totals.make_record(step) | ({} if step.valid is None else {"valid": step.valid} | details())
                totals = StepTotals()
                with team.barrier():
                    if metrics is not None:
                        metrics.write(record)
                reporter.on_log(record)
                deadline.update(step)
            if step.valid is not None and int(trainer.average_start) == step.number:
                reporter.on_message(f"averaging the weights from step {step.number} on")
            if step.is_best:
                _save_averaged(trainer, save, nullcontext(folder))
            for epoch in settings.snapshots:
                if trainer.count_steps(epoch) == step.number:
                    # It may exist, if the run was killed after it and before the next checkpoint.
                    copy = new_folder(folder / SNAPSHOTS / f"{epoch:g}", overwrite=True, ours=MODEL_FILES)
                    _save_averaged(trainer, save, copy)
            is_due = team.is_leader and time.monotonic() >= next_checkpoint
            should_stop, is_due = team.any([stop_event.is_set(), is_due])
            if should_stop or is_due or trainer.finished:
                start, state = time.monotonic(), trainer.state()
                with team.barrier():
                    if team.is_leader:
                        write_tensors(checkpoint, *state)
                end = time.monotonic()  # writing takes at most a twentieth of the time
                next_checkpoint = end + (max(interval, 20 * (end - start)) if interval else 0.0)
            reporter.on_step(step, trainer.total)
            if should_stop and not trainer.finished:
                raise TrainingInterrupted
    if trainer.stopped_early:
        epoch = trainer.number * settings.accumulate / len(trainer.batches)
        reporter.on_message(
            f"Stopped early at epoch {epoch:.4g}: no improvement in validation for {trainer.since_best} evaluations "
            f"(patience {settings.patience}); the best model is kept."
        )
    if trainer.validate is None:
        _save_averaged(trainer, save, nullcontext(folder))


@dataclass
class Validation:
    """Validation function that keeps the scores, so that the best one is not computed again at the end."""

    model: SavedModel
    evaluate: Callable[[Any], Any]  # returns the `Score` or `BiScore` of a model
    scores: dict[float, Any] = field(default_factory=dict)

    def __call__(self, _: nn.Module) -> float:
        score = self.evaluate(self.model)
        self.scores[float(score.nats)] = score
        return float(score.nats)


def save_best(model: SavedModel, out: Path) -> None:
    """Write the current weights of a model over those of the previous best; the first time, the complete model."""
    if (out / CONFIG).exists():
        save_weights(out, model.network)
    else:
        model.save_pretrained(out)


def finish(run: TrainingRun, model: SavedModel, results: dict[str, Any]) -> dict[str, Any]:
    """Write the description of the model, remove files of the run, and return the results of the leader."""
    results = {"trained_on": [Path(file).name for file in run.files]} | results
    with run.team.barrier():
        if run.team.is_leader:
            model.save_description(run.out, results)
            remove_scratch(run.out)
    return run.team.broadcast(results)


def _save_averaged(trainer: Trainer, save: Callable[[Path], None], target: AbstractContextManager[Path]) -> None:
    with trainer.team.barrier():
        if trainer.team.is_leader:
            with target as folder, trainer.averaged_weights():
                save(folder)


@contextmanager
def _stop_on_signal(team: Team = SINGLE_PROCESS) -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets; a second Ctrl-C interrupts at once."""
    stop_event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop_event
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: Any) -> None:
        stop_event.set()
        if team.world_size == 1:  # torchrun forwards signals, so that every process of a team gets each twice
            signal.signal(signal.SIGINT, handlers[signal.SIGINT])

    for number in handlers:
        signal.signal(number, stop)
    try:
        yield stop_event
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

"""A training run in a folder: checkpoints, metrics.jsonl, TensorBoard, interruption and resumption.

    metrics.jsonl                one JSON object per line: the loss every `log_every` steps, and each validation
    run/checkpoint.safetensors   the complete state of the trainer, written atomically

A run that is killed at any moment resumes from its last checkpoint to the same weights, bit for bit, as an
uninterrupted one (on a CPU with the same number of threads). Of several processes (`training/parallel.py`) the leader
writes; all of them agree on when to stop and when to write a checkpoint.
"""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from relmo.disk.append_log import AppendLog, read_lines
from relmo.disk.digests import check_regular
from relmo.disk.outputs import atomic
from relmo.errors import ModelError, RelmoError
from relmo.models.evaluate import BiScore, Score
from relmo.models.saved import SavedModel
from relmo.runs.folder import CHECKPOINT, RESTORE_RUN, remove_scratch
from relmo.runs.progress import Reporter
from relmo.settings.training import TrainSettings
from relmo.store.folder import CONFIG, open_tensors, pick_device, read_tensors, write_tensors
from relmo.store.weights import save_weights
from relmo.training.loop import Step, Trainer
from relmo.training.parallel import SINGLE_PROCESS, Team, get_local_device

METRICS = "metrics.jsonl"
MEASURED_SHARE = 0.02  # of the minutes of a run, after which its speed is measured
MAX_METRICS_BYTES, MAX_RECORD_BYTES = 1 << 30, 1 << 16
S = TypeVar("S", bound=Score | BiScore)


class TrainingInterrupted(Exception):
    """Interruption by the user, after a checkpoint was written."""


def prepare(settings: TrainSettings) -> torch.device:
    """Set the number of threads; return the device to train on."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return get_local_device(pick_device(settings.device))


class Metrics:
    """Writer of metrics.jsonl and, optionally, of TensorBoard's files.

    Records after `step`, and damaged lines, are removed; `num_damaged` does not count a line that a kill cut off."""

    def __init__(self, folder: Path, step: int, tensorboard: bool):
        self.path = folder / METRICS
        lines = list(_read_metric_lines(self.path))
        records = [_parse_record(line) for line in lines]
        self.num_damaged = sum(r is None and line.endswith(b"\n") for line, r in zip(lines, records, strict=True))
        valid = [record for record in records if record is not None and record["step"] <= step]
        with atomic(self.path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in valid), encoding="utf-8")
        self.log = AppendLog(self.path)
        self.board = tensorboard_writer(folder) if tensorboard else None

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
    return (record for line in _read_metric_lines(path) if (record := _parse_record(line)) is not None)


def _read_metric_lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        advice = "remove it, or restore it from a copy"
        check_regular(path, advice)
        if path.stat().st_size > MAX_METRICS_BYTES:
            raise ModelError(f"{path}: is too large, with {path.stat().st_size:,} bytes; {advice}")
    return read_lines(path, MAX_RECORD_BYTES)


def _parse_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not {"step", "epoch", "loss"} <= record.keys():
        return None
    is_number = (type(value) is float or (type(value) is int and abs(value) < 1 << 63) for value in record.values())
    return record if all(is_number) else None


def tensorboard_writer(folder: Path) -> Any:
    """Return a TensorBoard writer, from the optional package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RelmoError("--tensorboard needs the tensorboard package: pip install 'relmo[tensorboard]'") from error
    return SummaryWriter(str(folder / "tensorboard"))


class StepTotals:
    """Sums over the steps between two records of metrics; only `make_record` waits for the device."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new record."""
        self.loss: torch.Tensor | None = None
        self.num_steps = self.num_predictions = 0
        self.start = time.perf_counter()

    def add(self, step: Step) -> None:
        """Add a step."""
        self.loss = step.loss if self.loss is None else self.loss + step.loss
        self.num_steps += 1
        self.num_predictions += step.predictions
        self.start += step.validation_seconds  # the rate excludes validation

    def make_record(self, step: Step) -> dict[str, Any]:
        """Return the record of the steps since the last one; raise `RelmoError` if the loss is not finite."""
        assert self.loss is not None
        loss = float(self.loss) / self.num_steps
        if not math.isfinite(loss):
            raise RelmoError(f"the loss is {loss} at step {step.number}; lower --lr or --clip-norm, then start again")
        record = {
            "step": step.number,
            "epoch": round(step.epoch, 4),
            "loss": loss,
            "lr": step.lr,
            "gradient_norm": float(step.norm),
            "clipped": float(step.clipped) / step.number,
            "symbols_per_second": self.num_predictions / (time.perf_counter() - self.start),
        }
        self.reset()
        return record


class Checkpoints:
    """Periodic checkpoints, at intervals that keep writing below a twentieth of the time."""

    def __init__(self, trainer: Trainer, path: Path):
        self.trainer, self.path = trainer, path
        self.interval = trainer.settings.checkpoint_every
        self.due = time.monotonic() + self.interval

    @property
    def is_due(self) -> bool:
        """True if it is time for a checkpoint, by the clock of the leader."""
        return self.trainer.team.is_leader and time.monotonic() >= self.due

    def write(self) -> None:
        """Write a checkpoint; all processes take part."""
        start = time.monotonic()
        state = self.trainer.state()
        with self.trainer.team.barrier():
            if self.trainer.team.is_leader:
                write_tensors(self.path, *state)
        end = time.monotonic()
        self.due = end + (max(self.interval, 20 * (end - start)) if self.interval else 0.0)


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
    save: Callable[[], None],
    reporter: Reporter,
    *,
    details: Callable[[], dict[str, float]] = dict,
) -> None:
    """Run the trainer to its end, from the checkpoint of the folder if there is one.

    save      write the model with its current weights; called in the leader at every new best, or at the end if there
              is no validation
    details   return further metrics of the last validation, for metrics.jsonl
    """
    settings, team = trainer.settings, trainer.team
    if team.broadcast((folder / CHECKPOINT).exists()):
        with team.barrier():
            _load_checkpoint(trainer, folder / CHECKPOINT)
        reporter.on_message(f"resuming from step {trainer.number} of {trainer.total}")
    with team.barrier():
        metrics = Metrics(folder, trainer.number, settings.tensorboard) if team.is_leader else None
    if metrics is not None and metrics.num_damaged and trainer.number:
        reporter.on_message(f"{metrics.path}: {metrics.num_damaged} lines are damaged and were left out")
    checkpoints = Checkpoints(trainer, folder / CHECKPOINT)
    totals, deadline = StepTotals(), Deadline(trainer)
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
                with team.barrier():
                    if metrics is not None:
                        metrics.write(record)
                reporter.on_log(record)
                deadline.update(step)
            if step.is_best:
                _save_averaged(trainer, save)
            should_stop, is_due = team.any([stop_event.is_set(), checkpoints.is_due])
            if should_stop or is_due or trainer.finished:
                checkpoints.write()
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
        _save_averaged(trainer, save)


class BestScore(Generic[S]):
    """Validation function that keeps the score of the best weights, so that it is not computed again at the end."""

    def __init__(self, evaluate: Callable[[], S]):
        self.evaluate = evaluate
        self.last: S | None = None
        self.best: S | None = None

    def __call__(self, network: nn.Module) -> float:
        self.last = self.evaluate()
        return self.last.nats

    def save(self, model: SavedModel, out: Path) -> None:
        """Write the current weights, which have the last score."""
        save_best(model, out)
        self.best = self.last


def save_best(model: SavedModel, out: Path) -> None:
    """Write the current weights of a model over those of the previous best; the first time, the complete model."""
    if (out / CONFIG).exists():
        save_weights(out, model.network)
    else:
        model.save_pretrained(out)


def finish(
    model: SavedModel, out: Path, files: Sequence[str], results: dict[str, Any], team: Team = SINGLE_PROCESS
) -> dict[str, Any]:
    """Write the description of the model, remove files of the run, and return the results of the leader."""
    results = {"trained_on": [Path(file).name for file in files]} | results
    with team.barrier():
        if team.is_leader:
            model.save_description(out, results)
            remove_scratch(out)
    return team.broadcast(results)


def _load_checkpoint(trainer: Trainer, path: Path) -> None:
    with open_tensors(path) as file:  # shapes are compared before the numbers are read
        problem = trainer.find_mismatch({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    if problem is None:
        tensors, values = read_tensors(path)
        problem = trainer.find_problem(tensors, values)
    if problem is not None:
        raise ModelError(f"{path}: does not belong to this run ({problem}); {RESTORE_RUN}")
    trainer.load_state(tensors, values)


def _save_averaged(trainer: Trainer, save: Callable[[], None]) -> None:
    with trainer.team.barrier():
        if trainer.team.is_leader:
            with trainer.averaged_weights():
                save()


@contextmanager
def _stop_on_signal(team: Team = SINGLE_PROCESS) -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets; a second Ctrl-C interrupts at once.

    In a team all of them set it, since torchrun forwards each, so that every process gets it twice."""
    stop_event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop_event
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: Any) -> None:
        stop_event.set()
        if team.world_size == 1:
            signal.signal(signal.SIGINT, handlers[signal.SIGINT])

    for number in handlers:
        signal.signal(number, stop)
    try:
        yield stop_event
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

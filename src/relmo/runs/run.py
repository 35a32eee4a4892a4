"""A training run in a folder: checkpoints, metrics.jsonl, TensorBoard, stopping and going on.

    metrics.jsonl                one JSON object a line: the loss every `log_every` steps, and each validation
    run/checkpoint.safetensors   the trainer's whole state, written under another name and renamed: always whole

A run that is killed at any moment goes on from its last checkpoint to the same weights, bit for bit, as one that never
was (on a CPU with the same number of threads). Of several processes (`training/parallel.py`) the first one writes;
whether to stop, and when to write a checkpoint, is for all of them the same.
"""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from relmo.disk.digests import check_regular
from relmo.disk.outputs import atomic, storage_errors
from relmo.errors import ModelError, RelmoError
from relmo.models.saved import SavedModel
from relmo.runs.folder import AGAIN, CHECKPOINT, remove_scratch
from relmo.runs.reporter import Reporter
from relmo.settings.training import TrainSettings
from relmo.store.folder import CONFIG, open_tensors, pick_device, read_tensors, write_tensors
from relmo.store.weights import save_weights
from relmo.training.loop import Step, Trainer
from relmo.training.parallel import ALONE, Team, own_device

METRICS = "metrics.jsonl"
SETTLED = 0.02  # of the minutes of a run, after which its pace is known
LARGEST_METRICS, LONGEST_RECORD = 1 << 30, 1 << 16  # bytes


class Stopped(Exception):
    """The user asked the run to stop; a checkpoint was written first."""


def prepare(settings: TrainSettings) -> torch.device:
    """Sets the number of threads. -> the device to train on"""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return own_device(pick_device(settings.device))


class Metrics:
    """Lines of metrics.jsonl, and TensorBoard's files where asked for."""

    def __init__(self, folder: Path, step: int, tensorboard: bool):
        self.path = folder / METRICS
        lines = list(_metric_lines(self.path))
        records = [_parse_record(line) for line in lines]
        kept = [record for record in records if record is not None and record["step"] <= step]
        self.lost = sum(record is None and line.endswith(b"\n") for line, record in zip(lines, records, strict=True))
        """Lines that were damaged; one that a kill cut short is not counted."""
        with atomic(self.path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        self.board = tensorboard_writer(folder) if tensorboard else None

    def write(self, record: dict[str, Any]) -> None:
        """Adds a line."""
        with storage_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self.board is not None:
            for name, value in record.items():
                self.board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Finishes TensorBoard's files."""
        if self.board is not None:
            self.board.close()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics.jsonl; lines that a kill cut short, or that were damaged, are passed over."""
    return (record for line in _metric_lines(path) if (record := _parse_record(line)) is not None)


def _metric_lines(path: Path) -> Iterator[bytes]:
    """The lines of a metrics.jsonl; of one that no record can have, pieces."""
    if not path.exists():
        return
    check_regular(path, "remove it, or put the right one back")
    if path.stat().st_size > LARGEST_METRICS:
        raise ModelError(f"{path}: {path.stat().st_size:,} bytes are too many; remove it, or put the right one back")
    with path.open("rb") as file:
        while line := file.readline(LONGEST_RECORD):
            yield line


def _parse_record(line: bytes) -> dict[str, Any] | None:
    """The record in a line of metrics.jsonl, which holds numbers alone; None where it is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not {"step", "epoch", "loss"} <= record.keys():
        return None
    whole = (type(value) is float or (type(value) is int and abs(value) < 1 << 63) for value in record.values())
    return record if all(whole) else None


def tensorboard_writer(folder: Path) -> Any:
    """TensorBoard's writer, from the optional package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RelmoError("--tensorboard needs the tensorboard package: pip install 'relmo[tensorboard]'") from error
    return SummaryWriter(str(folder / "tensorboard"))


class Log:
    """Sums up the steps between two lines of metrics; the only place that waits for the device."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins anew after a line."""
        self.loss: torch.Tensor | None = None
        self.steps = self.predictions = 0
        self.begun = time.perf_counter()

    def add(self, step: Step) -> None:
        """Counts a step in."""
        self.loss = step.loss if self.loss is None else self.loss + step.loss
        self.steps += 1
        self.predictions += step.predictions
        self.begun += step.validating  # the rate is that of training

    def record(self, step: Step) -> dict[str, Any]:
        """The line for the steps since the last one; a loss that is not finite is an error."""
        assert self.loss is not None
        loss = float(self.loss) / self.steps
        if not math.isfinite(loss):
            raise RelmoError(f"the loss is {loss} at step {step.number}; lower --lr or --clip-norm, then start again")
        record = {
            "step": step.number,
            "epoch": round(step.epoch, 4),
            "loss": loss,
            "lr": step.lr,
            "gradient_norm": float(step.norm),
            "clipped": float(step.clipped) / step.number,
            "symbols_per_second": self.predictions / (time.perf_counter() - self.begun),
        }
        self.reset()
        return record


class Checkpoints:
    """Writes the trainer's state every so many seconds, and seldom enough that writing stays below a twentieth of the
    time."""

    def __init__(self, trainer: Trainer, path: Path):
        self.trainer, self.path = trainer, path
        self.every = trainer.settings.checkpoint_every
        self.due = time.monotonic() + self.every

    @property
    def is_due(self) -> bool:
        """It is time for one, by the clock of the process that writes it."""
        return self.trainer.team.leads and time.monotonic() >= self.due

    def write(self) -> None:
        """Writes a checkpoint; all processes take part."""
        begun = time.monotonic()
        state = self.trainer.state()
        with self.trainer.team.together():
            if self.trainer.team.leads:
                write_tensors(self.path, *state)
        ended = time.monotonic()
        self.due = ended + (max(self.every, 20 * (ended - begun)) if self.every else 0.0)


class Deadline:
    """Sets once more how many steps a run has that is to take so many minutes: by the pace that it has by then, which
    its rehearsal shows only roughly."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.begun = trainer, time.monotonic()
        self.seconds = 60 * (trainer.settings.minutes or 0.0)
        self.settled = not self.seconds or trainer.number > 0  # a run that goes on has what it had
        self.since: tuple[int, float] | None = None  # a step, and when it was done
        self.validating = 0.0

    def look(self, step: Step) -> None:
        """After steps that are done, on the device too."""
        if self.settled:
            return
        now, team = time.monotonic() - self.validating, self.trainer.team
        if self.since is None:
            self.since = step.number, now  # what takes time but once is over
        elif team.share(now - self.begun >= SETTLED * self.seconds):
            number, then = self.since
            left = (self.seconds - (now - self.begun)) * (step.number - number) / max(now - then, 1e-9)
            self.trainer.end_at(team.share(step.number + max(1, int(left))))
            self.settled = True


def go(
    trainer: Trainer,
    folder: Path,
    save: Callable[[], None],
    reporter: Reporter,
    *,
    details: Callable[[], dict[str, float]] = dict,
) -> None:
    """Runs the trainer to its end, from the folder's checkpoint where there is one. `save` keeps the model as it now
    is: called at every new best, or at the end where nothing is validated; in the first process only. `details` are
    more figures of the validation just done, for metrics.jsonl."""
    settings, team = trainer.settings, trainer.team
    if team.share((folder / CHECKPOINT).exists()):
        with team.together():
            _load_checkpoint(trainer, folder / CHECKPOINT)
        reporter.said(f"going on from step {trainer.number} of {trainer.total}")
    with team.together():
        metrics = Metrics(folder, trainer.number, settings.tensorboard) if team.leads else None
    if metrics is not None and metrics.lost and trainer.number:
        reporter.said(f"{metrics.path}: {metrics.lost} of its lines cannot be read and are left out")
    checkpoints = Checkpoints(trainer, folder / CHECKPOINT)
    log, deadline = Log(), Deadline(trainer)
    with (
        nullcontext() if metrics is None else closing(metrics),
        _stop_on_signal(team) as stopping,
        closing(trainer.steps()) as steps,
    ):
        for step in steps:
            log.add(step)
            deadline.validating += step.validating
            if step.number % settings.log_every == 0 or step.valid is not None:
                record = log.record(step) | ({} if step.valid is None else {"valid": step.valid} | details())
                with team.together():
                    if metrics is not None:
                        metrics.write(record)
                reporter.logged(record)
                deadline.look(step)
            if step.is_best:
                _save_averaged(trainer, save)
            stop, due = team.any([stopping.is_set(), checkpoints.is_due])
            if stop or due or trainer.finished:
                checkpoints.write()
            reporter.stepped(step, trainer.total)
            if stop and not trainer.finished:
                raise Stopped
    if trainer.stopped_early:
        epoch = trainer.number * settings.accumulate / len(trainer.batches)
        reporter.said(
            f"Stopped early at epoch {epoch:.4g}: no improvement in validation for {trainer.since_best} evaluations "
            f"(patience {settings.patience}); the best model is kept."
        )
    if trainer.validate is None:
        _save_averaged(trainer, save)


def save_best(model: SavedModel, out: Path) -> None:
    """Writes a model's weights as they now are, over those of the best so far; the first time, all of the model."""
    if (out / CONFIG).exists():
        save_weights(out, model.network)
    else:
        model.save_pretrained(out)


def finish(
    model: SavedModel, out: Path, files: Sequence[str], results: dict[str, Any], team: Team = ALONE
) -> dict[str, Any]:
    """Writes the model's description with its results, and removes what only the run needed. -> the results, the same
    in every process"""
    results = {"trained_on": [Path(file).name for file in files]} | results
    with team.together():
        if team.leads:
            model.save_description(out, results)
            remove_scratch(out)
    return team.share(results)


def _load_checkpoint(trainer: Trainer, path: Path) -> None:
    """Puts the trainer where it was when the checkpoint was written. A file that is not of this run is an error, for
    its shapes before its numbers are read."""
    with open_tensors(path) as file:
        wrong = trainer.misfit({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    if wrong is None:
        tensors, values = read_tensors(path)
        wrong = trainer.unusable(tensors, values)
    if wrong is not None:
        raise ModelError(f"{path}: is not of this run ({wrong}); {AGAIN}")
    trainer.load_state(tensors, values)


def _save_averaged(trainer: Trainer, save: Callable[[], None]) -> None:
    """Has the first process save the model, with the averaged weights where there are such."""
    with trainer.team.together():
        if trainer.team.leads:
            with trainer.averaged():
                save()


@contextmanager
def _stop_on_signal(team: Team = ALONE) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C (or a polite kill) sets; the second Ctrl-C is an ordinary one. In a team it is
    like the first: torchrun passes each one on, so that every process gets it twice."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: Any) -> None:
        stopping.set()
        if team.size == 1:
            signal.signal(signal.SIGINT, before[signal.SIGINT])

    for number in before:
        signal.signal(number, stop)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""A training run in a folder: checkpoints, metrics.jsonl, TensorBoard, stopping and going on.

    metrics.jsonl             one JSON object a line: the loss and its circumstances every `log_every` steps, and each validation
    run/run.json              what was asked for, so that --resume needs nothing but the folder
    run/checkpoint.safetensors the trainer's whole state, written under another name and renamed: always the last whole one

A run that is killed at any moment goes on from its last checkpoint to the same weights, bit for bit, as one that never was (on a CPU
with the same number of threads).
"""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from relmo.errors import RelmoError
from relmo.folder import atomic, read_tensors, storage_errors, write_tensors
from relmo.train import Step, Trainer

SCRATCH, CHECKPOINT, METRICS = "run", "run/checkpoint.safetensors", "metrics.jsonl"


class Stopped(Exception):
    """The user asked the run to stop; a checkpoint was written first."""


class Reporter:
    """What a run tells while it goes on. This one keeps silent; the command line has one that prints."""

    def plan(self, plan: "Plan") -> None: ...
    def logged(self, record: dict[str, Any]) -> None: ...
    def stepped(self, step: Step, total: int) -> None: ...
    def said(self, message: str) -> None: ...


@dataclass(frozen=True)
class Plan:
    """What a run is going to take, measured on its first batch."""

    device: str
    predictions: int
    steps: int
    parameters: int
    memory: int
    seconds: float


def make_plan(trainer: Trainer, predictions: int) -> Plan:
    """Times two batches forward and backward, and puts everything back as it was."""
    random = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(trainer.device) if trainer.device.type == "cuda" else None
    seconds = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        trainer._loss(trainer.batches.get(0, 0), None).mean.backward()
        if cuda is not None:
            torch.cuda.synchronize(trainer.device)
        seconds = time.perf_counter() - begun
        trainer.optimizer.zero_grad(set_to_none=True)
    torch.set_rng_state(random)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, trainer.device)
    weights = sum(p.numel() * p.element_size() for p in trainer.parameters)
    moments = {"adamw": 2, "adam": 2, "adagrad": 1, "sgd": 1 if trainer.settings.momentum else 0}
    return Plan(
        device=str(trainer.device),
        predictions=predictions,
        steps=trainer.total,
        parameters=sum(p.numel() for p in trainer.parameters),
        memory=peak_memory(trainer.device) + weights * moments[trainer.settings.optimizer],
        seconds=seconds * trainer.settings.accumulate * trainer.total,
    )


def peak_memory(device: torch.device) -> int:
    """The most memory held so far, in bytes: by the process, or on the GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Metrics:
    """Lines of metrics.jsonl, and TensorBoard's files where asked for."""

    def __init__(self, folder: Path, step: int, tensorboard: bool):
        self.path = folder / METRICS
        kept = [record for record in read_metrics(self.path) if record["step"] <= step] if step else []
        with atomic(self.path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        self.board = tensorboard_writer(folder) if tensorboard else None

    def write(self, record: dict[str, Any]) -> None:
        with storage_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self.board is not None:
            for name, value in record.items():
                self.board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics.jsonl; a last line that a kill cut short is passed over."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


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
        self.loss: torch.Tensor | None = None
        self.steps = self.count = 0
        self.begun = time.perf_counter()

    def add(self, step: Step) -> None:
        self.loss = step.loss if self.loss is None else self.loss + step.loss
        self.steps += 1
        self.count += step.count

    def record(self, step: Step) -> dict[str, Any]:
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
            "symbols_per_second": self.count / (time.perf_counter() - self.begun),
        }
        self.__init__()  # type: ignore[misc]
        return record


def go(trainer: Trainer, folder: Path, save: Callable[[], None], reporter: Reporter) -> None:
    """Runs the trainer to its end, from the folder's checkpoint where there is one. `save` keeps the model as it now is: called at every
    new best, or at the end where nothing is validated."""
    settings = trainer.settings
    if (folder / CHECKPOINT).exists():
        trainer.load_state(*read_tensors(folder / CHECKPOINT))
        reporter.said(f"going on from step {trainer.number} of {trainer.total}")
    metrics = Metrics(folder, trainer.number, settings.tensorboard)
    log = Log()
    with stop_on_signal() as stopping:
        for step in trainer.steps():
            log.add(step)
            if step.number % settings.log_every == 0 or step.valid is not None:
                record = log.record(step) | ({} if step.valid is None else {"valid": step.valid})
                metrics.write(record)
                reporter.logged(record)
            if step.is_best:
                with trainer.averaged():
                    save()
            if step.number % settings.checkpoint_every == 0 or stopping.is_set() or trainer.finished:
                write_tensors(folder / CHECKPOINT, *trainer.state())
            reporter.stepped(step, trainer.total)
            if stopping.is_set() and not trainer.finished:
                raise Stopped
    if trainer.validate is None:
        with trainer.averaged():
            save()
    metrics.close()


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C (or a polite kill) sets; the second Ctrl-C is an ordinary one."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: Any) -> None:
        stopping.set()
        signal.signal(signal.SIGINT, before[signal.SIGINT])

    for number in before:
        signal.signal(number, stop)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

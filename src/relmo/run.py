"""A training run in a folder: checkpoints, metrics.jsonl, TensorBoard, stopping and going on.

    metrics.jsonl                one JSON object a line: the loss every `log_every` steps, and each validation
    run/run.json                 what was asked for, so that --resume needs nothing but the folder
    run/encoded.json             the corpus as ids (run/train.ids, …, and the vocabulary), complete once this is there,
                                 and the digests of these files
    run/checkpoint.safetensors   the trainer's whole state, written under another name and renamed: always whole

A run that is killed at any moment goes on from its last checkpoint to the same weights, bit for bit, as one that never
was (on a CPU with the same number of threads). Of several processes (`relmo.parallel`) the first one writes; whether to
stop, and when to write a checkpoint, is for all of them the same.
"""

import dataclasses
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from relmo.digests import check_file, check_regular, fingerprint, read_sealed, sealed
from relmo.errors import ModelError, RelmoError, SettingError, StorageError
from relmo.folder import CONFIG, OURS, VOCABULARY, open_tensors, pick_device, read_tensors, write_json, write_tensors
from relmo.outputs import atomic, locked, remove, storage_errors, sweep, temporary_path
from relmo.parallel import ALONE, Team, join, own_device
from relmo.settings import TextSettings, TrainSettings
from relmo.text.encode import Corpus, Stream, check_numbers, encode_corpus, open_stream
from relmo.text.vocabulary import Vocabulary
from relmo.train import Step, Trainer

SCRATCH, RUN, ENCODED = "run", "run/run.json", "run/encoded.json"
CHECKPOINT, METRICS = "run/checkpoint.safetensors", "metrics.jsonl"
LARGEST_METRICS, LONGEST_RECORD = 1 << 30, 1 << 16  # bytes
AGAIN = "restore it from a copy, or start again in another folder"


class Stopped(Exception):
    """The user asked the run to stop; a checkpoint was written first."""


class Reporter:
    """What a run tells while it goes on. This one keeps silent; the command line has one that prints."""

    def plan(self, plan: "Plan") -> None:
        """Before the first step."""

    def logged(self, record: dict[str, Any]) -> None:
        """After each line of metrics.jsonl."""

    def stepped(self, step: Step, total: int) -> None:
        """After each step."""

    def said(self, message: str) -> None:
        """Anything else worth a line."""


@dataclass(frozen=True)
class Plan:
    """What a run is going to take, by its first steps; memory where the system tells it."""

    device: str
    predictions: int
    steps: int
    parameters: int
    memory: int | None
    seconds: float
    processes: int = 1


def prepare(settings: TrainSettings) -> torch.device:
    """Sets the number of threads. -> the device to train on"""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return own_device(pick_device(settings.device))


def make_plan(trainer: Trainer, predictions: int) -> Plan:
    """What the run takes, by some steps that leave no trace."""
    seconds = trainer.rehearse() * trainer.total
    return Plan(
        device=str(trainer.device),
        predictions=predictions,
        steps=trainer.total,
        parameters=sum(p.numel() for p in trainer.parameters),
        memory=peak_memory(trainer.device),
        seconds=seconds,
        processes=trainer.team.size,
    )


def peak_memory(device: torch.device) -> int | None:
    """The most memory held so far, in bytes, by the process, or on the GPU; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobyte


class Metrics:
    """Lines of metrics.jsonl, and TensorBoard's files where asked for."""

    def __init__(self, folder: Path, step: int, tensorboard: bool):
        self.path = folder / METRICS
        lines = list(metric_lines(self.path))
        records = [parse_record(line) for line in lines]
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
    return (record for line in metric_lines(path) if (record := parse_record(line)) is not None)


def metric_lines(path: Path) -> Iterator[bytes]:
    """The lines of a metrics.jsonl; of one that no record can have, pieces."""
    if not path.exists():
        return
    check_regular(path, "remove it, or put the right one back")
    if path.stat().st_size > LARGEST_METRICS:
        raise ModelError(f"{path}: {path.stat().st_size:,} bytes are too many; remove it, or put the right one back")
    with path.open("rb") as file:
        while line := file.readline(LONGEST_RECORD):
            yield line


def parse_record(line: bytes) -> dict[str, Any] | None:
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
            load_checkpoint(trainer, folder / CHECKPOINT)
        reporter.said(f"going on from step {trainer.number} of {trainer.total}")
    with team.together():
        metrics = Metrics(folder, trainer.number, settings.tensorboard) if team.leads else None
    if metrics is not None and metrics.lost and trainer.number:
        reporter.said(f"{metrics.path}: {metrics.lost} of its lines cannot be read and are left out")
    checkpoints = Checkpoints(trainer, folder / CHECKPOINT)
    log = Log()
    with (
        nullcontext() if metrics is None else closing(metrics),
        stop_on_signal(team) as stopping,
        closing(trainer.steps()) as steps,
    ):
        for step in steps:
            log.add(step)
            if step.number % settings.log_every == 0 or step.valid is not None:
                record = log.record(step) | ({} if step.valid is None else {"valid": step.valid} | details())
                with team.together():
                    if metrics is not None:
                        metrics.write(record)
                reporter.logged(record)
            if step.is_best:
                save_averaged(trainer, save)
            stop, due = team.any([stopping.is_set(), checkpoints.is_due])
            if stop or due or trainer.finished:
                checkpoints.write()
            reporter.stepped(step, trainer.total)
            if stop and not trainer.finished:
                raise Stopped
    if trainer.validate is None:
        save_averaged(trainer, save)


def load_checkpoint(trainer: Trainer, path: Path) -> None:
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


def save_averaged(trainer: Trainer, save: Callable[[], None]) -> None:
    """Has the first process save the model, with the averaged weights where there are such."""
    with trainer.team.together():
        if trainer.team.leads:
            with trainer.averaged():
                save()


@contextmanager
def run_folder(
    out: Path, kind: str, files: Sequence[str], settings: Any, *, resume: bool, keep: bool, overwrite: bool = False
) -> Iterator[Team]:
    """The folder of a run: made, with a note of what was asked for; or found again, where the note must say the same.
    Without `keep` (a dry run) nothing new stays of it, nor after a mistake that showed before the first checkpoint.
    -> the processes that share the run"""
    note: dict[str, Any] = {"kind": kind, "files": list(files), "settings": dataclasses.asdict(settings)}
    with join() as team, ExitStack() as stack:
        if team.size > 1:
            note["processes"] = team.size
        note = sealed(note)
        with team.together():
            if team.leads:
                stack.enter_context(own_folder(out, note, resume=resume, keep=keep, overwrite=overwrite))
        yield team


@contextmanager
def own_folder(out: Path, note: dict[str, Any], *, resume: bool, keep: bool, overwrite: bool) -> Iterator[None]:
    """`run_folder` for the process that writes it; no other process writes there meanwhile."""
    existed = out.exists()
    if existed and not out.is_dir():
        raise SettingError(f"--out {out}: is a file; give a folder")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        sweep(out)
        try:
            check_free(out, note, resume=resume, keep=keep, overwrite=overwrite)
            with set_aside(out, keep=keep, overwrite=overwrite), storage_errors(out):
                (out / SCRATCH).mkdir(exist_ok=True)
                write_json(out / RUN, note)
                yield
        finally:
            if not existed and not (out / RUN).exists() and not (out / CONFIG).exists():
                remove(out)


def processes(count: int) -> str:
    """So many, in words."""
    return "1 process" if count == 1 else f"{count} processes"


@contextmanager
def set_aside(out: Path, *, keep: bool, overwrite: bool) -> Iterator[None]:
    """Takes away what a new run of the folder replaces. After a dry run, and after a mistake that showed before the
    first checkpoint, the new run goes, and what was there is back."""
    begun = not overwrite and (out / RUN).exists()
    aside = temporary_path(out / "before")
    replaced = [path for path in out.iterdir() if OURS.fullmatch(path.name)] if overwrite and keep else []
    for path in replaced:
        aside.mkdir(exist_ok=True)
        path.rename(aside / path.name)
    others = {path.name for path in out.iterdir()}
    try:
        yield
    except RelmoError as error:
        keep = keep and ((out / CHECKPOINT).exists() or isinstance(error, StorageError))
        raise
    finally:
        if not (keep or begun):
            for path in [path for path in out.iterdir() if path.name not in others]:
                remove(path)
            for path in replaced:
                (aside / path.name).rename(path)
        remove(aside)


def check_free(out: Path, note: dict[str, Any], *, resume: bool, keep: bool, overwrite: bool) -> None:
    """An error where the folder holds a model, or a run that is not this one's, and neither is to be replaced."""
    if resume and overwrite:
        raise SettingError("--resume goes on with a run, --overwrite begins it anew; give one of them")
    if resume and (out / RUN).exists():
        check_resumed(out, note)
        return
    if (out / RUN).exists() and not (overwrite and keep):
        ways = "add --resume to go on with it, or --overwrite to begin anew" if keep else "choose another folder"
        raise SettingError(f"--out {out}: holds a run already; {ways}")
    if (out / CONFIG).exists() and not overwrite:
        if resume:
            read_run(out)  # which says that there is nothing to go on with
        raise SettingError(f"--out {out}: holds a finished model; add --overwrite to replace it, or choose another")


def check_resumed(out: Path, note: dict[str, Any]) -> None:
    """An error where the run in the folder was asked for with other words."""
    before = read_run(out)
    wanted, here = before.get("processes", 1), note.get("processes", 1)
    if here != wanted:
        with_it = f"with torchrun --nproc-per-node {wanted}" if wanted > 1 else "without torchrun"
        raise SettingError(
            f"--resume: the run in {out} has {processes(wanted)}, and this is {processes(here)}; go on {with_it}"
        )
    if json.dumps(note) != json.dumps(before):
        raise SettingError(f"--resume: {out} was begun with other files or settings; leave them out to go on with it")


def remove_scratch(out: Path) -> None:
    """Removes what only the run needed; first renamed, so that a kill in between leaves no half of a run."""
    remove((out / SCRATCH).rename(temporary_path(out / SCRATCH)))


def encoded_corpus(files: Sequence[str], text: TextSettings, out: Path, team: Team = ALONE) -> Corpus:
    """The corpus as ids under out/run: read from the files once, by the first process, from there ever after."""
    with team.together():
        if team.leads and not found_encoded(out):
            write_encoded(encode_corpus(files, text, out / SCRATCH), out)
    with team.together():
        check_seen(out, team)
        return read_encoded(out)


def write_encoded(corpus: Corpus, out: Path) -> None:
    """Writes what `read_encoded` needs beside the ids."""
    with atomic(out / SCRATCH / VOCABULARY) as temporary:
        corpus.vocabulary.save(temporary)
    parts = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    figures = {name: (part.characters, part.unknown) for name, part in parts.items() if part}
    note_encoded(out, {"parts": figures}, [VOCABULARY, *(f"{name}.ids" for name in figures)])


def read_encoded(out: Path) -> Corpus:
    """The corpus from out/run."""
    note = read_sealed(out / ENCODED, AGAIN)
    vocabulary = Vocabulary.load(out / SCRATCH / VOCABULARY)
    streams: dict[str, Stream] = {}
    with as_written(out / ENCODED):
        for name, (characters, unknown) in note["parts"].items():
            path = out / SCRATCH / f"{name}.ids"
            streams[name] = Stream(open_stream(path, len(vocabulary)), int(characters), int(unknown))
            check_numbers(path, streams[name].ids, 0, len(vocabulary) - 1)
        return Corpus(vocabulary, streams["train"], streams.get("valid"), streams.get("test"))


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Around the reading of a note whose checksum is right: one that still has not what it must have was forged."""
    try:
        yield
    except (AttributeError, KeyError, OSError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: is no note of a run, though its checksum is right; {AGAIN}") from error


def note_encoded(out: Path, values: dict[str, Any], files: Sequence[str]) -> None:
    """Notes that the corpus is encoded: some values, and the digests of its files in out/run."""
    write_json(out / ENCODED, sealed(values | {"files": {name: fingerprint(out / SCRATCH / name) for name in files}}))


def found_encoded(out: Path) -> bool:
    """Whether the corpus is encoded already, in an earlier run; then its files must be as they were written."""
    if not (out / ENCODED).exists():
        return False
    with as_written(out / ENCODED):
        for name, known in read_sealed(out / ENCODED, AGAIN)["files"].items():
            check_file(out / SCRATCH / name, known, AGAIN)
    return True


def check_seen(out: Path, team: Team) -> None:
    """An error where this process does not see what the first one has written."""
    if not (out / ENCODED).exists():
        raise StorageError(
            f"--out {out}: process {team.rank} does not see what process 0 wrote there; give a folder that all "
            "machines of the run share"
        )


def read_run(out: Path) -> dict[str, Any]:
    """What the run in this folder was asked for: its kind, files and settings."""
    if (out / RUN).exists():
        note = read_sealed(out / RUN, AGAIN)
        files, sections = note.get("files"), note.get("settings")
        if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
            raise ModelError(f"{out / RUN}: has no list of files; {AGAIN}")
        if not isinstance(sections, dict) or not all(isinstance(values, dict) for values in sections.values()):
            raise ModelError(f"{out / RUN}: has no settings; {AGAIN}")
        return note
    if (out / CONFIG).exists():
        sweep(out)
        raise SettingError(f"--resume: the run in {out} is finished; there is nothing to go on with")
    raise SettingError(f"--resume: there is no run in {out}; start it without --resume")


@contextmanager
def stop_on_signal(team: Team = ALONE) -> Iterator[threading.Event]:
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

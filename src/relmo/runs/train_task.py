"""`relmo train KIND` of tasks as a plain function: files -> examples -> network -> the training loop -> a model folder.

    DIR/                 the best model on the validation examples
    DIR/last/            the model after the last step
    DIR/report.json      its scores there, each label by itself, and which was taken for which
    DIR/metrics.jsonl    the loss, and after each validation the score
    DIR/curves.png       both drawn, where that is asked for
    DIR/seed-1/ …        with several seeds, each of them so; the best one's model is at the top too

A run reads its files again when it goes on; a checksum of the examples tells whether they are still the same.
"""

import dataclasses
import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relmo.disk.digests import check_file, fingerprint, read_sealed, sealed
from relmo.disk.outputs import atomic, sweep
from relmo.errors import CorpusError, SettingError
from relmo.runs.files import Files, listed_files
from relmo.runs.folder import AGAIN, CHECKPOINT, ENCODED, RUN, SCRATCH, remove_scratch, run_folder
from relmo.runs.reporter import Reporter
from relmo.runs.run import METRICS, go, prepare, read_metrics, save_best
from relmo.settings.kinds import check_settings
from relmo.settings.task import TaskTrainSettings
from relmo.store.folder import (
    CARD,
    CONFIG,
    COPY_OF_BILM,
    COPY_OF_VECTORS,
    SETTINGS,
    text_files,
    write_json,
    write_tensors,
)
from relmo.store.weights import PATTERN
from relmo.tasks.scores import TaskReport, spread
from relmo.tasks.task import EncodedExamples, Task
from relmo.text.corpus import STDIN
from relmo.training.batch import LengthBuckets
from relmo.training.loop import Trainer
from relmo.training.parallel import one_process_only
from relmo.training.plan import make_plan

LAST, CURVES, REPORT = "last", "curves.png", "report.json"
COPIED = (SETTINGS, CARD, METRICS, CURVES, REPORT)


@dataclass(frozen=True)
class TaskRun:
    """A run: what is trained, on which files, with which settings, where to, on which device, and who is told."""

    task: type[Task[Any, Any]]
    files: Sequence[str]
    settings: Any
    out: Path
    device: torch.device
    reporter: Reporter


@dataclass
class Data:
    """What all seeds of a run share: the examples, as they are and as numbers, the model without a network, and what
    the validation examples tell of raw text."""

    train: list[Any]
    valid: list[Any]
    model: Task[Any, Any]
    encoded_train: EncodedExamples
    encoded_valid: EncodedExamples
    raw_text: dict[str, float]


class ExampleBatches:
    """Training examples in batches of about one length, in a new order every epoch."""

    def __init__(self, encoded: EncodedExamples, settings: TaskTrainSettings):
        self.encoded = encoded
        self.buckets = LengthBuckets(
            encoded.lengths.tolist(),
            tokens_per_batch=settings.tokens_per_batch,
            seed=settings.seed,
            most=settings.batch,
        )

    def __len__(self) -> int:
        return len(self.buckets)

    def get(self, epoch: int, index: int) -> Any:
        """Batch `index` of an epoch."""
        return self.encoded.batch(self.buckets.get(epoch, index))


class Validation:
    """Scores the validation examples: `1 - score` is what should fall; the last report is kept."""

    def __init__(self, model: Task[Any, Any], data: Data):
        self.model, self.data = model, data
        self.report: TaskReport | None = None

    def __call__(self, network: torch.nn.Module) -> float:
        self.report = _score(self.model, self.data)
        return 1.0 - self.report.score

    def details(self) -> dict[str, float]:
        """The figures of the last validation, for metrics.jsonl."""
        return {} if self.report is None else {f"valid_{name}": value for name, value in self.report.values.items()}


def _score(model: Task[Any, Any], data: Data) -> TaskReport:
    return model.score(data.valid, model.predict_encoded(data.valid, data.encoded_valid))


def train_task(
    task: type[Task[Any, Any]],
    files: Files,
    settings: Any,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Trains a task's model on the files into the folder `out`. -> its results: the scores of the validation examples.

    With several seeds each is trained in a folder of its own; the results are of the best, with mean and deviation."""
    files, out = listed_files(files), Path(out)
    settings, start = task.complete(settings)
    check_settings(task.kind, settings)
    one_process_only(f"relmo train {task.kind}")
    if STDIN in files:
        raise SettingError(
            "a task cannot learn from standard input, since its files are read again when a run goes on; give a file"
        )
    reporter = reporter or Reporter()
    settings = task.infer_settings(settings, files, reporter.said)
    check_settings(task.kind, settings)
    if settings.train.plot:
        _import_pyplot()
    run = TaskRun(task, files, settings, out, prepare(settings.train), reporter)
    with run_folder(out, task.kind, files, settings, resume=resume, overwrite=overwrite, keep=not dry_run):
        data = _read_data(run, start, dry_run=dry_run)
        if settings.train.seeds == 1 or dry_run:
            results = _train_once(run, data, dry_run=dry_run)
            if not dry_run:
                remove_scratch(out)
            return results
        return _train_seeds(run, data)


def _read_data(run: TaskRun, start: Any, *, dry_run: bool) -> Data:
    """Reads the examples, counts labels and words, opens the models that the settings name, and encodes."""
    text = run.settings.text
    train = [example for file in run.files for example in run.task.read(file, text, training=True)]
    if text.valid is not None:
        valid = run.task.read(text.valid, text)
    else:
        train, valid = hold_out(train, text.valid_fraction, run.task.classes)
    _check_same(run.out, [train, valid])
    model = run.task.prepare(run.settings, train, run.device, start)
    model.features.keep_layers(dry_run=dry_run)
    say = run.reporter.said
    model.features.warn_low_coverage((words for example in train for words in run.task.texts(example)), say)
    encoded = model.encode(train, answers=True, say=say), model.encode(valid, say=say)
    return Data(train, valid, model, *encoded, model.check_raw_text(valid, say))


def hold_out(
    examples: list[Any], share: float, classes: Callable[[Any], Collection[str]] = lambda _: ()
) -> tuple[list[Any], list[Any]]:
    """Examples to learn from, and those to validate on: about this share of each class, at even distances. An example
    that has several classes counts for its rarest. Where two examples or more count for a class, each side has one."""
    count = round(share * len(examples))
    if not 0 < count < len(examples):
        raise CorpusError(
            f"there are too few examples, {len(examples)}, to hold out a share of {share:g} for validation; give more, "
            "or a file to validate on with --valid"
        )
    groups = _by_rarest_class([classes(example) for example in examples])
    order = [i for group in groups for i in group]
    held = {order[int((i + 0.5) * len(order) / count)] for i in range(count)}
    for group in groups:
        if len(group) > 1 and held.isdisjoint(group):
            held.add(group[len(group) // 2])
        elif len(group) > 1 and held.issuperset(group):
            held.remove(group[len(group) // 2])
    return [e for i, e in enumerate(examples) if i not in held], [e for i, e in enumerate(examples) if i in held]


def _by_rarest_class(classes: Sequence[Collection[str]]) -> list[list[int]]:
    """The numbers of the examples, those with the same rarest class together."""
    counts = Counter(name for each in classes for name in set(each))
    groups: dict[str | None, list[int]] = {}
    for i, each in enumerate(classes):
        groups.setdefault(min(each, key=lambda name: (counts[name], name), default=None), []).append(i)
    return list(groups.values())


def _check_same(out: Path, examples: Any) -> None:
    """Notes a checksum of the examples in the run's folder; where one is noted, it must be theirs."""
    found = hashlib.sha256(json.dumps(examples, default=vars).encode()).hexdigest()
    path = out / ENCODED
    if not path.exists():
        write_json(path, sealed({"examples": found}))
    elif read_sealed(path, AGAIN).get("examples") != found:
        raise CorpusError("--resume: the files are not as they were when the run began; put them back, or start again")


def _train_once(run: TaskRun, data: Data, *, dry_run: bool = False) -> dict[str, Any]:
    """One run with one seed. -> its results"""
    torch.manual_seed(run.settings.train.seed)
    model = data.model.copy(settings=run.settings).begin()
    validation = Validation(model, data)
    batches = ExampleBatches(data.encoded_train, run.settings.train)
    trainer = Trainer(model.network, batches, run.settings.train, validation)
    run.reporter.plan(make_plan(trainer, data.encoded_train.predictions, model.counted))
    if dry_run:
        return {}
    begun = time.monotonic()
    go(trainer, run.out, partial(save_best, model, run.out), run.reporter, details=validation.details)
    _save_last(model, trainer, run.out)
    results = _summarize(run, data, seconds=round(time.monotonic() - begun, 1))
    if run.settings.train.plot:
        _draw_curves(run.out, results["metric"])
        run.reporter.said(f"wrote {run.out / CURVES}")
    return results


def _save_last(model: Task[Any, Any], trainer: Trainer, out: Path) -> None:
    """The model as it was after the last step, averaged where the settings ask for that; copies are the best one's."""
    features = model.features.inside()
    settings = dataclasses.replace(model.settings, input=features.settings)
    with trainer.averaged():
        model.copy(features=features, settings=settings).save_pretrained(out / LAST)


def _summarize(run: TaskRun, data: Data, *, seconds: float) -> dict[str, Any]:
    """The results of a run, written to its folder: the best model, loaded as anybody would load it, on the validation
    examples."""
    model = run.task.from_pretrained(run.out, device=run.device.type)
    report = _score(model, data)
    valid = run.settings.text.valid
    results = {
        "trained_on": [Path(file).name for file in run.files],
        "valid": None if valid is None else Path(valid).name,
        "train_examples": len(data.train),
        "valid_examples": len(data.valid),
        "parameters": model.parameter_count(),
        "seed": run.settings.train.seed,
        **_epochs_of(run.out),
        "metric": report.metric,
        **{f"valid_{name}": value for name, value in report.values.items()},
        **data.raw_text,
        "seconds": seconds,
    }
    if mixes := model.network.inputs.mix_weights():
        results["elmo_mix"] = mixes
    write_json(run.out / REPORT, report.summary())
    model.save_description(run.out, results)
    return results


def _epochs_of(out: Path) -> dict[str, float]:
    """How many epochs a run took, and after how many it was best; nothing where metrics.jsonl was lost."""
    records = [record for record in read_metrics(out / METRICS) if "valid" in record]
    if not records:
        return {}
    return {"epochs": records[-1]["epoch"], "best_epoch": min(records, key=lambda record: record["valid"])["epoch"]}


def _train_seeds(run: TaskRun, data: Data) -> dict[str, Any]:
    """A run for each seed, in a folder of its own; those that are finished stay as they are. The best one's model is
    copied to the top. -> its results, with the mean and the deviation of all"""
    out = run.out
    every = [_train_seed(run, data, number) for number in range(1, run.settings.train.seeds + 1)]
    metric = f"valid_{every[0]['metric']}"
    scores = [results[metric] for results in every]
    best = max(range(len(scores)), key=scores.__getitem__)
    results = every[best] | {"seeds": scores}
    for name in [name for name, value in every[best].items() if name.startswith("valid_") and isinstance(value, float)]:
        mean, deviation = spread([each[name] for each in every])
        results |= {f"{name}_mean": mean, f"{name}_deviation": deviation}
    results["seconds"] = sum(each["seconds"] for each in every)
    chosen = f"seed-{best + 1}"
    check_file(out / chosen / REPORT, read_sealed(out / SCRATCH / f"{chosen}.json", AGAIN)["report"], AGAIN)
    _copy_model(out / chosen, out)
    run.task.from_pretrained(out, device=run.device.type).save_description(out, results)
    remove_scratch(out)
    return results


def _train_seed(run: TaskRun, data: Data, number: int) -> dict[str, Any]:
    """The run of one seed of several, or what is noted of it where it is finished. -> its results"""
    folder, note = run.out / f"seed-{number}", run.out / SCRATCH / f"seed-{number}.json"
    if note.exists() and (folder / CONFIG).exists():
        sweep(folder)
        if (folder / SCRATCH).exists():  # a kill came in between
            remove_scratch(folder)
        return read_sealed(note, f"remove {note} and {folder}, and the seed is trained again")["results"]
    train = run.settings.train
    own = dataclasses.replace(train, seed=train.seed + number - 1, seeds=1)
    one = dataclasses.replace(run, settings=dataclasses.replace(run.settings, train=own), out=folder)
    run.reporter.said(f"seed {own.seed}, {number} of {train.seeds}")
    with run_folder(folder, run.task.kind, run.files, one.settings, resume=(folder / RUN).exists(), keep=True):
        results = _train_once(one, data)
        write_json(note, sealed({"results": results, "report": fingerprint(folder / REPORT)}))
        remove_scratch(folder)
    write_tensors(run.out / CHECKPOINT, {}, {"finished": number})  # from now on there is something to keep
    return results


def _copy_model(source: Path, out: Path) -> None:
    """A model's folder into another, config.json last; what is in folders of its own, copies aside, stays there."""
    for folder in (COPY_OF_BILM, COPY_OF_VECTORS):
        if (source / folder).is_dir():
            shutil.copytree(source / folder, out / folder, dirs_exist_ok=True)
    names = [*text_files(source), *(name for name in COPIED if (source / name).is_file())]
    for name in [*names, *(path.name for path in source.glob(PATTERN)), CONFIG]:
        with atomic(out / name) as temporary:
            shutil.copyfile(source / name, temporary)


def _import_pyplot() -> Any:
    """matplotlib's drawing functions, without a screen."""
    try:
        import matplotlib
    except ImportError as error:
        raise SettingError("--plot needs the matplotlib package: pip install 'relmo[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _draw_curves(out: Path, metric: str) -> None:
    """The loss and the validation score over the epochs: curves.png."""
    pyplot = _import_pyplot()
    records = list(read_metrics(out / METRICS))
    scored = [record for record in records if f"valid_{metric}" in record]
    if not scored:
        return
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5))
    left.plot([r["epoch"] for r in records], [r["loss"] for r in records], color="tab:blue")
    left.set(xlabel="epoch", ylabel="training loss")
    scores = [100 * r[f"valid_{metric}"] for r in scored]
    right.plot([r["epoch"] for r in scored], scores, color="tab:orange", marker=".")
    best = int(np.argmax(scores))
    right.plot(scored[best]["epoch"], scores[best], color="tab:red", marker="o")
    title = f"best {scores[best]:.2f} after epoch {scored[best]['epoch']:g}"
    right.set(xlabel="epoch", ylabel=f"validation {metric}, percent", title=title)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    with atomic(out / CURVES) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    pyplot.close(figure)

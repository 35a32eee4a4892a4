"""`relmo train KIND` of tasks as a function: files -> examples -> network -> training loop -> model folder.

    DIR/                 the best model on the validation examples
    DIR/last/            the model after the last step
    DIR/report.json      its validation scores, overall and per label, and its confusion matrix
    DIR/metrics.jsonl    the loss, and the score of each validation
    DIR/curves.png       both as curves, on request
    DIR/seed-1/ …        with several seeds, one folder each; the best model is at the top as well

A resumed run reads its files again; a digest of the examples verifies that they are the same.
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

from relmo.disk.digests import check_file, fingerprint, read_sealed, seal
from relmo.disk.outputs import atomic, sweep
from relmo.errors import CorpusError, SettingError
from relmo.runs.files import Files, list_paths
from relmo.runs.folder import CHECKPOINT, ENCODED, RESTORE_RUN, RUN, SCRATCH, remove_scratch, run_folder
from relmo.runs.progress import Reporter
from relmo.runs.run import METRICS, prepare, read_metrics, run_training, save_best
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
from relmo.tasks.scores import TaskReport, mean_and_deviation
from relmo.tasks.task import EncodedExamples, Task
from relmo.text.corpus import STDIN
from relmo.training.batch import LengthBuckets
from relmo.training.loop import Trainer
from relmo.training.parallel import require_single_process
from relmo.training.plan import make_plan

LAST, CURVES, REPORT = "last", "curves.png", "report.json"
COPIED_FILES = (SETTINGS, CARD, METRICS, CURVES, REPORT)


@dataclass(frozen=True)
class TaskRun:
    """Task, files, settings, folder, device and reporter of a run."""

    task: type[Task[Any, Any]]
    files: Sequence[str]
    settings: Any
    out: Path
    device: torch.device
    reporter: Reporter


@dataclass
class Data:
    """Data that all seeds share: examples, their encodings, the model without a network, and checks on raw text."""

    train: list[Any]
    valid: list[Any]
    model: Task[Any, Any]
    encoded_train: EncodedExamples
    encoded_valid: EncodedExamples
    raw_text: dict[str, float]


class ExampleBatches:
    """Batches of training examples of similar length, in a new order every epoch."""

    def __init__(self, encoded: EncodedExamples, settings: TaskTrainSettings):
        self.encoded = encoded
        self.buckets = LengthBuckets(
            encoded.lengths.tolist(),
            tokens_per_batch=settings.tokens_per_batch,
            seed=settings.seed,
            max_size=settings.batch,
        )

    def __len__(self) -> int:
        return len(self.buckets)

    def get(self, epoch: int, index: int) -> Any:
        """Return batch `index` of an epoch."""
        return self.encoded.batch(self.buckets.get(epoch, index))


class Validation:
    """Validation function, which returns 1 - score and keeps the last report."""

    def __init__(self, model: Task[Any, Any], data: Data):
        self.model, self.data = model, data
        self.report: TaskReport | None = None

    def __call__(self, network: torch.nn.Module) -> float:
        self.report = _score(self.model, self.data)
        return 1.0 - self.report.score

    def details(self) -> dict[str, float]:
        """Return the metrics of the last validation, for metrics.jsonl."""
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
    """Train a task's model on the files, and write it to the folder `out`; return its validation scores.

    With several seeds each has a folder of its own; the results are those of the best, with mean and deviation."""
    files, out = list_paths(files), Path(out)
    settings, start = task.resolve_settings(settings)
    settings.check()
    require_single_process(f"relmo train {task.kind}")
    if STDIN in files:
        raise SettingError(
            "a task cannot be trained on standard input, since a resumed run reads its files again; give a file"
        )
    reporter = reporter or Reporter()
    settings = task.infer_settings(settings, files, reporter.on_message)
    settings.check()
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
    text = run.settings.text
    train = [example for file in run.files for example in run.task.read(file, text, training=True)]
    if text.valid is not None:
        valid = run.task.read(text.valid, text)
    else:
        train, valid = hold_out(train, text.valid_fraction, run.task.classes)
    _check_unchanged(run.out, [train, valid])
    model = run.task.prepare(run.settings, train, run.device, start)
    if not dry_run:
        model.features.enable_cache()
    on_message = run.reporter.on_message
    model.features.warn_low_coverage((words for example in train for words in run.task.texts(example)), on_message)
    encoded = model.encode(train, answers=True, on_message=on_message), model.encode(valid, on_message=on_message)
    return Data(train, valid, model, *encoded, model.check_raw_text(valid, on_message))


def hold_out(
    examples: list[Any], share: float, classes: Callable[[Any], Collection[str]] = lambda _: ()
) -> tuple[list[Any], list[Any]]:
    """Split examples into a training and a validation part, about this share of each class, at even distances.

    An example of several classes counts for its rarest. Each part has an example of every class with two or more."""
    count = round(share * len(examples))
    if not 0 < count < len(examples):
        raise CorpusError(
            f"{len(examples)} examples are too few to hold out a share of {share:g} for validation; give more, or a "
            "validation file with --valid"
        )
    class_sets = [classes(example) for example in examples]
    frequencies = Counter(name for names in class_sets for name in set(names))
    groups: dict[str | None, list[int]] = {}
    for i, names in enumerate(class_sets):
        rarest = min(names, key=lambda name: (frequencies[name], name), default=None)
        groups.setdefault(rarest, []).append(i)
    order = [i for group in groups.values() for i in group]
    held_out = {order[int((i + 0.5) * len(order) / count)] for i in range(count)}
    for group in groups.values():
        if len(group) > 1 and held_out.isdisjoint(group):
            held_out.add(group[len(group) // 2])
        elif len(group) > 1 and held_out.issuperset(group):
            held_out.remove(group[len(group) // 2])
    train = [example for i, example in enumerate(examples) if i not in held_out]
    return train, [example for i, example in enumerate(examples) if i in held_out]


def _check_unchanged(out: Path, examples: Any) -> None:
    digest = hashlib.sha256(json.dumps(examples, default=vars).encode()).hexdigest()
    path = out / ENCODED
    if not path.exists():
        write_json(path, seal({"examples": digest}))
    elif read_sealed(path, RESTORE_RUN).get("examples") != digest:
        raise CorpusError("--resume: the files have changed since the run began; restore them, or start again")


def _train_once(run: TaskRun, data: Data, *, dry_run: bool = False) -> dict[str, Any]:
    torch.manual_seed(run.settings.train.seed)
    model = data.model.copy(settings=run.settings).initialize()
    validation = Validation(model, data)
    batches = ExampleBatches(data.encoded_train, run.settings.train)
    trainer = Trainer(model.network, batches, run.settings.train, validation)
    run.reporter.on_plan(make_plan(trainer, data.encoded_train.predictions, model.prediction_unit))
    if dry_run:
        return {}
    start = time.monotonic()
    run_training(trainer, run.out, partial(save_best, model, run.out), run.reporter, details=validation.details)
    features = model.features.for_subfolder()  # copies of other models are in the folder of the best model
    settings = dataclasses.replace(model.settings, input=features.settings)
    with trainer.averaged_weights():
        model.copy(features=features, settings=settings).save_pretrained(run.out / LAST)
    results = _summarize(run, data, seconds=round(time.monotonic() - start, 1))
    if run.settings.train.plot:
        _draw_curves(run.out, results["metric"])
        run.reporter.on_message(f"wrote {run.out / CURVES}")
    return results


def _summarize(run: TaskRun, data: Data, *, seconds: float) -> dict[str, Any]:
    """Score the best model, loaded from its folder, and write the report and the description."""
    model = run.task.from_pretrained(run.out, device=run.device.type)
    report = _score(model, data)
    valid = run.settings.text.valid
    records = [record for record in read_metrics(run.out / METRICS) if "valid" in record]
    epochs = {}
    if records:  # metrics.jsonl may have been lost
        best = min(records, key=lambda record: record["valid"])
        epochs = {"epochs": records[-1]["epoch"], "best_epoch": best["epoch"]}
    results = {
        "trained_on": [Path(file).name for file in run.files],
        "valid": None if valid is None else Path(valid).name,
        "train_examples": len(data.train),
        "valid_examples": len(data.valid),
        "parameters": model.parameter_count(),
        "seed": run.settings.train.seed,
        **epochs,
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


def _train_seeds(run: TaskRun, data: Data) -> dict[str, Any]:
    """Train each seed in a folder of its own, unless it is finished, and copy the best model to the top."""
    out = run.out
    results_by_seed = [_train_seed(run, data, number) for number in range(1, run.settings.train.seeds + 1)]
    metric = f"valid_{results_by_seed[0]['metric']}"
    scores = [results[metric] for results in results_by_seed]
    best = max(range(len(scores)), key=scores.__getitem__)
    best_results = results_by_seed[best]
    results = best_results | {"seeds": scores}
    for name, value in best_results.items():
        if name.startswith("valid_") and isinstance(value, float):
            mean, deviation = mean_and_deviation([seed_results[name] for seed_results in results_by_seed])
            results |= {f"{name}_mean": mean, f"{name}_deviation": deviation}
    results["seconds"] = sum(seed_results["seconds"] for seed_results in results_by_seed)
    name = f"seed-{best + 1}"
    note = read_sealed(out / SCRATCH / f"{name}.json", RESTORE_RUN)
    check_file(out / name / REPORT, note["report"], RESTORE_RUN)
    _copy_model(out / name, out)
    run.task.from_pretrained(out, device=run.device.type).save_description(out, results)
    remove_scratch(out)
    return results


def _train_seed(run: TaskRun, data: Data, number: int) -> dict[str, Any]:
    """Train one of several seeds, or read the results of a finished one."""
    folder, note = run.out / f"seed-{number}", run.out / SCRATCH / f"seed-{number}.json"
    if note.exists() and (folder / CONFIG).exists():
        sweep(folder)
        if (folder / SCRATCH).exists():  # the process was killed before it was removed
            remove_scratch(folder)
        return read_sealed(note, f"remove {note} and {folder} to train this seed again")["results"]
    train = run.settings.train
    seed_train = dataclasses.replace(train, seed=train.seed + number - 1, seeds=1)
    seed_run = dataclasses.replace(run, settings=dataclasses.replace(run.settings, train=seed_train), out=folder)
    run.reporter.on_message(f"seed {seed_train.seed}, {number} of {train.seeds}")
    with run_folder(folder, run.task.kind, run.files, seed_run.settings, resume=(folder / RUN).exists(), keep=True):
        results = _train_once(seed_run, data)
        write_json(note, seal({"results": results, "report": fingerprint(folder / REPORT)}))
        remove_scratch(folder)
    write_tensors(run.out / CHECKPOINT, {}, {"finished": number})  # marks the run as resumable
    return results


def _copy_model(source: Path, out: Path) -> None:
    """Copy the model in a folder, with copies of other models, to another folder; config.json comes last."""
    for folder in (COPY_OF_BILM, COPY_OF_VECTORS):
        if (source / folder).is_dir():
            shutil.copytree(source / folder, out / folder, dirs_exist_ok=True)
    names = [*text_files(source), *(name for name in COPIED_FILES if (source / name).is_file())]
    for name in [*names, *(path.name for path in source.glob(PATTERN)), CONFIG]:
        with atomic(out / name) as temporary:
            shutil.copyfile(source / name, temporary)


def _import_pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise SettingError("--plot needs the matplotlib package: pip install 'relmo[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _draw_curves(out: Path, metric: str) -> None:
    """Plot the loss and the validation score over the epochs: curves.png."""
    pyplot = _import_pyplot()
    records = list(read_metrics(out / METRICS))
    scored = [record for record in records if f"valid_{metric}" in record]
    if not scored:
        return
    figure, (loss_axes, score_axes) = pyplot.subplots(1, 2, figsize=(9, 3.5))
    loss_axes.plot([r["epoch"] for r in records], [r["loss"] for r in records], color="tab:blue")
    loss_axes.set(xlabel="epoch", ylabel="training loss")
    scores = [100 * r[f"valid_{metric}"] for r in scored]
    score_axes.plot([r["epoch"] for r in scored], scores, color="tab:orange", marker=".")
    best = int(np.argmax(scores))
    score_axes.plot(scored[best]["epoch"], scores[best], color="tab:red", marker="o")
    title = f"best {scores[best]:.2f} after epoch {scored[best]['epoch']:g}"
    score_axes.set(xlabel="epoch", ylabel=f"validation {metric}, percent", title=title)
    for axes in (loss_axes, score_axes):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    with atomic(out / CURVES) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    pyplot.close(figure)

"""`relmo train KIND` of tasks as a function: files -> examples -> network -> training loop -> model folder.

DIR/                 the best model on the validation examples
DIR/last/            the model after the last step
DIR/snapshots/1/ …   the model after that epoch, on request
DIR/report.json      its validation scores, overall and per label, and its confusion matrix
DIR/curves.png       the loss and the score of each validation, on request
DIR/seed-1/ …        with several seeds, one folder each; the best model is at the top as well
"""

import dataclasses
import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from relmo.disk.files import check_file, fingerprint, read_sealed, seal
from relmo.disk.outputs import atomic, sweep
from relmo.errors import CorpusError, SettingError, optional_import
from relmo.runs.folder import (
    CHECKPOINT,
    ENCODED,
    RESTORE_RUN,
    RUN,
    SCRATCH,
    Files,
    RunArguments,
    TrainingRun,
    list_paths,
    open_run,
    remove_scratch,
)
from relmo.runs.progress import Reporter
from relmo.runs.run import METRICS, read_metrics, run_training, save_best
from relmo.store.folder import (
    CARD,
    CONFIG,
    COPY_OF_BILM,
    COPY_OF_VECTORS,
    PATTERN,
    SETTINGS,
    text_files,
    write_json,
    write_tensors,
)
from relmo.tasks.scores import TaskReport, mean_and_deviation
from relmo.tasks.task import EncodedExamples, Task
from relmo.text.corpus import STDIN
from relmo.training.batch import LengthBuckets
from relmo.training.loop import Trainer, make_plan
from relmo.training.parallel import require_single_process

LAST, CURVES, REPORT = "last", "curves.png", "report.json"
COPIED_FILES = (SETTINGS, CARD, METRICS, CURVES, REPORT)


@dataclass
class Data:
    """Data that all seeds share: examples, their encodings, the model without a network, and checks on raw text."""

    train: list[Any]
    valid: list[Any]
    model: Task[Any, Any]
    encoded_train: EncodedExamples
    encoded_valid: EncodedExamples
    raw_text: dict[str, float]

    def score(self, model: Task[Any, Any]) -> TaskReport:
        """Return the scores of a model on the validation examples."""
        return model.score(self.valid, model.predict_encoded(self.valid, self.encoded_valid))


def train_task(
    task: type[Task[Any, Any]], files: Files, settings: Any, out: str | Path, **arguments: Unpack[RunArguments]
) -> dict[str, Any]:
    """Train a task's model on the files, and write it to the folder `out`; return its validation scores.

    With several seeds each has a folder of its own; the results are those of the best, with mean and deviation."""
    files = list_paths(files)
    settings, start = task.resolve_settings(settings)
    settings.check()
    require_single_process(f"relmo train {task.kind}")
    if STDIN in files:
        raise SettingError(
            "a task cannot be trained on standard input: a resumed run reads its files again; give a file"
        )
    reporter = arguments.get("reporter") or Reporter()
    settings = task.infer_settings(settings, files, reporter.on_message)
    settings.check()
    if settings.train.plot:
        _import_pyplot()
    with open_run(task.kind, files, settings, out, **arguments) as run:
        text, on_message = settings.text, run.reporter.on_message
        train = [example for file in run.files for example in task.read(file, text, training=True)]
        if text.valid is not None:
            valid = task.read(text.valid, text)
        else:
            train, valid = hold_out(train, text.valid_fraction, task.classes)
        digest = hashlib.sha256(json.dumps([train, valid], default=vars).encode()).hexdigest()
        if not (run.out / ENCODED).exists():
            write_json(run.out / ENCODED, seal({"examples": digest}))
        elif read_sealed(run.out / ENCODED, RESTORE_RUN).get("examples") != digest:
            raise CorpusError("--resume: the files have changed since the run began; restore them, or start again")
        model = task.prepare(settings, train, run.device, start)
        if not run.dry_run:
            model.features.enable_cache()
        model.features.warn_low_coverage((words for example in train for words in model.texts(example)), on_message)
        encoded = model.encode(train, answers=True, on_message=on_message), model.encode(valid, on_message=on_message)
        data = Data(train, valid, model, *encoded, model.check_raw_text(valid, on_message))
        if settings.train.seeds > 1 and not run.dry_run:
            return _train_seeds(run, data)
        results = _train_once(run, data)
        if not run.dry_run:
            remove_scratch(run.out)
        return results


def hold_out(
    examples: list[Any], share: float, classes: Callable[[Any], Collection[str]] = lambda _: ()
) -> tuple[list[Any], list[Any]]:
    """Hold out about this share of each class, at even distances; classes with two or more examples are in both."""
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


def _train_once(run: TrainingRun, data: Data) -> dict[str, Any]:
    """Train with one seed; score the best model, loaded from its folder; write the report and the description."""
    settings, out = run.settings, run.out
    torch.manual_seed(settings.train.seed)
    model = data.model.copy(settings=settings).initialize()
    batches = LengthBuckets(
        data.encoded_train.lengths.tolist(),
        tokens_per_batch=settings.train.tokens_per_batch,
        seed=settings.train.seed,
        max_size=settings.train.batch,
        collate=data.encoded_train.batch,
    )
    details: dict[str, float] = {}  # of the last validation, for metrics.jsonl

    def validate(_: torch.nn.Module) -> float:
        report = data.score(model)
        details.clear()
        details.update({f"valid_{name}": value for name, value in report.values.items()})
        return 1.0 - report.score

    trainer = Trainer(model.network, batches, settings.train, validate)
    run.reporter.on_plan(make_plan(trainer, data.encoded_train.predictions, model.prediction_unit))
    if run.dry_run:
        return {}
    begin = time.monotonic()
    run_training(trainer, out, partial(save_best, model), run.reporter, details=lambda: details)
    features = model.features.for_subfolder()  # copies of other models are in the folder of the best model
    last_settings = dataclasses.replace(model.settings, input=features.settings)
    with trainer.averaged_weights():
        model.copy(features=features, settings=last_settings).save_pretrained(out / LAST)
    seconds = round(time.monotonic() - begin, 1)
    best = type(data.model).from_pretrained(out, device=run.device.type)
    report, valid = data.score(best), settings.text.valid
    records = [record for record in read_metrics(out / METRICS) if "valid" in record]
    epochs = {}
    if records:  # metrics.jsonl may have been lost
        best_epoch = min(records, key=lambda record: record["valid"])["epoch"]
        epochs = {"epochs": records[-1]["epoch"], "best_epoch": best_epoch}
    results = {
        "trained_on": [Path(file).name for file in run.files],
        "valid": None if valid is None else Path(valid).name,
        "train_examples": len(data.train),
        "valid_examples": len(data.valid),
        "parameters": best.parameter_count(),
        "seed": settings.train.seed,
        **epochs,
        "metric": report.metric,
        **{f"valid_{name}": value for name, value in report.values.items()},
        **data.raw_text,
        "seconds": seconds,
    }
    if mixes := best.network.inputs.mix_weights():
        results["elmo_mix"] = mixes
    write_json(out / REPORT, report.summary())
    best.save_description(out, results)
    if settings.train.plot:
        _draw_curves(out, report.metric)
        run.reporter.on_message(f"wrote {out / CURVES}")
    return results


def _train_seeds(run: TrainingRun, data: Data) -> dict[str, Any]:
    """Train each seed in a folder of its own, unless it is finished, and copy the best model to the top."""
    out, train = run.out, run.settings.train
    results_by_seed = []
    for number in range(1, train.seeds + 1):
        folder, note = out / f"seed-{number}", out / SCRATCH / f"seed-{number}.json"
        if note.exists() and (folder / CONFIG).exists():
            sweep(folder)
            if (folder / SCRATCH).exists():  # the process was killed before it was removed
                remove_scratch(folder)
            advice = f"remove {note} and {folder} to train this seed again"
            results_by_seed.append(read_sealed(note, advice)["results"])
            continue
        seed = train.seed + number - 1
        settings = dataclasses.replace(run.settings, train=dataclasses.replace(train, seed=seed, seeds=1))
        run.reporter.on_message(f"seed {seed}, {number} of {train.seeds}")
        resume = (folder / RUN).exists()
        with open_run(run.kind, run.files, settings, folder, resume=resume, reporter=run.reporter) as seed_run:
            results = _train_once(seed_run, data)
            write_json(note, seal({"results": results, "report": fingerprint(folder / REPORT)}))
            remove_scratch(folder)
        write_tensors(out / CHECKPOINT, {}, {"finished": number})  # marks the run as resumable
        results_by_seed.append(results)
    scores = [results[f"valid_{results_by_seed[0]['metric']}"] for results in results_by_seed]
    best = max(range(len(scores)), key=scores.__getitem__)
    results = results_by_seed[best] | {"seeds": scores}
    for name, value in results_by_seed[best].items():
        if name.startswith("valid_") and isinstance(value, float):
            mean, deviation = mean_and_deviation([seed_results[name] for seed_results in results_by_seed])
            results |= {f"{name}_mean": mean, f"{name}_deviation": deviation}
    results["seconds"] = sum(seed_results["seconds"] for seed_results in results_by_seed)
    source = out / f"seed-{best + 1}"
    check_file(source / REPORT, read_sealed(out / SCRATCH / f"{source.name}.json", RESTORE_RUN)["report"], RESTORE_RUN)
    for subfolder in (COPY_OF_BILM, COPY_OF_VECTORS):
        if (source / subfolder).is_dir():
            shutil.copytree(source / subfolder, out / subfolder, dirs_exist_ok=True)
    names = [*text_files(source), *(name for name in COPIED_FILES if (source / name).is_file())]
    for name in [*names, *(path.name for path in source.glob(PATTERN)), CONFIG]:  # config.json comes last
        with atomic(out / name) as temporary:
            shutil.copyfile(source / name, temporary)
    type(data.model).from_pretrained(out, device=run.device.type).save_description(out, results)
    remove_scratch(out)
    return results


def _import_pyplot() -> Any:
    with optional_import("--plot needs the package matplotlib", "plot"):
        import matplotlib
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

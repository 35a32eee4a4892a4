"""`relmo evaluate MODEL FILE…`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.options import BuiltOn, Device, Tokenizer
from relmo.cli.terminal import print_json, print_label_table, print_length_table, print_table, progress_bar
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM
    from relmo.models.evaluate import BiScore, Score
    from relmo.models.lm import LanguageModel
    from relmo.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How files are read; by default as in training."""

    column: str | None = None
    """Tasks: the column (name or number), or the key of JSON, with the labels."""
    text_column: str | None = None
    """Classifiers: the column, or key, with the text."""
    text_columns: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Pairs: the two columns, or keys, with the texts; give the flag twice."""
    errors: Literal["strict", "replace"] | None = None
    """Bytes that are not UTF-8: strict stops with an error, replace reads them as U+FFFD."""


def evaluate(
    model: PathName,
    *files: PathName,
    batch: int = 16,
    confusion: bool = False,
    tokenizer: Tokenizer = None,
    reading: Annotated[FileOptions, Parameter(name="*")] = FileOptions(),
    built_on: Annotated[BuiltOn, Parameter(name="*")] = BuiltOn(),  # noqa: B008
    device: Device = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Score a model on files: the perplexity of a language model, the accuracy or F1 of a task's model.

    Language models also get the negative log-likelihood and bits per character, bidirectional ones the perplexity of
    each direction, task models the scores of each label. A language model predicts every character or word of a file
    once, a bidirectional one every word and sentence end once per direction. The state is carried through the file.

        echo "Natasha was going to the ball." | relmo evaluate prose -

        relmo evaluate models/mine test.txt

        relmo evaluate models/pos dev.conllu --confusion

        relmo evaluate models/mine test.csv --text-column comment --column topic

    Parameters
    ----------
    model
        A model folder, or small, a bundled model.
    files
        Files as for training; each is scored separately.
    batch
        Language models: number of lanes that are read in parallel; this affects the speed, not the scores.
    confusion
        Tasks: print the confusion matrix.
    json
        Print one JSON object.
    quiet
        Print only the perplexity, or the score of the task, one line per file.
    """
    from relmo.loading import FORWARD_KINDS, load
    from relmo.settings.kinds import KINDS, TASKS
    from relmo.tasks.task import Task

    if not files:
        raise SettingError("No files to score: relmo evaluate MODEL FILE…")
    if batch < 1:
        raise SettingError(f"--batch must be 1 or more, not {batch}")
    loaded: Any = load(model, kinds=(*TASKS, *FORWARD_KINDS), device=device, **vars(built_on))
    if tokenizer is not None and loaded.kind in ("tagger", "srl", "coref"):
        raise SettingError(
            f"--tokenizer has no effect: the files of {KINDS[loaded.kind].called} are already tokenised."
        )
    reading_options = {name: value for name, value in vars(reading).items() if value}
    loaded = loaded.with_tokenizer(tokenizer).with_text(**reading_options)
    if isinstance(loaded, Task):
        _evaluate_task(loaded, model, files, confusion=confusion, json=json, quiet=quiet)
    elif confusion:
        raise SettingError("--confusion needs a task's model, such as a tagger.")
    else:
        _evaluate_language_model(loaded, model, files, batch=batch, json=json, quiet=quiet)


def _evaluate_language_model(
    loaded: "LanguageModel | BiLM", model: str, files: Sequence[str], *, batch: int, json: bool, quiet: bool
) -> None:
    scores: dict[str, Score | BiScore] = {}
    unit = "character" if getattr(loaded.settings.text, "unit", "word") == "char" else "word"
    with progress_bar(unit, quiet=quiet) as add_bar:
        for file in files:
            scores[file] = loaded.evaluate(file, lanes=batch, watch=add_bar(file))
    total = sum(list(scores.values())[1:], start=next(iter(scores.values())))
    if json:
        records = [{"file": file} | score.summary() for file, score in scores.items()]
        print_json({"model": model, "files": records, "total": total.summary()})
    elif quiet:
        print(*(f"{score.perplexity:.4f}" for score in scores.values()), sep="\n")
    else:
        rows = [{"file": file} | _format_score(score, unit) for file, score in scores.items()]
        if len(scores) > 1:
            rows.append({"file": "all"} | _format_score(total, unit))
        print_table(list(rows[0]), [list(row.values()) for row in rows])


def _format_score(score: "Score | BiScore", unit: str) -> dict[str, str]:
    """Return a row of the table by column; `unit` is what the model predicts, a word or a character."""
    from relmo.models.evaluate import BiScore

    if isinstance(score, BiScore):
        return {
            "words": f"{score.tokens:,}",
            "unknown": f"{score.unknown:,} ({score.unknown / score.tokens:.2%})",
            "forward": f"{score.forward_perplexity:,.3f}",
            "backward": f"{score.backward_perplexity:,.3f}",
            "joint": f"{score.perplexity:,.3f}",
            "average": f"{score.average_perplexity:,.3f}",
        }
    return {
        f"{unit}s": f"{score.symbols:,}",
        "unknown": f"{score.unknown:,} ({score.unknown / score.symbols:.2%})",
        "perplexity": f"{score.perplexity:,.3f}",
        "bits/character": f"{score.bits_per_character:.4f}",
        f"nats/{unit}": f"{score.nats:.4f}",
        "nll": f"{score.nll:,.1f}",
    }


def _evaluate_task(
    task: "Task[Any, Any]", model: str, files: Sequence[str], *, confusion: bool, json: bool, quiet: bool
) -> None:
    reports = [(file, task.evaluate(file)) for file in files]
    if json:
        print_json({"model": model, "files": [{"file": file} | report.summary() for file, report in reports]})
        return
    if quiet:
        print(*(f"{report.score:.6f}" for _, report in reports), sep="\n")
        return
    names = list(dict.fromkeys(name for _, report in reports for name in report.values))
    rows = []
    for file, report in reports:  # some files have more scores than others
        scores = [f"{report.values[name]:.4f}" if name in report.values else "" for name in names]
        rows.append([file, f"{report.count:,}", *scores])
    print_table(["file", "count", *names], rows)
    for _, report in reports:
        print_label_table(report.labels)
        print_length_table(report.summary())
        if confusion and report.confusion is not None:
            print("\nrows: true labels; columns: predicted labels")
            labels = report.confusion.labels
            counts = zip(labels, report.confusion.counts, strict=True)
            print_table(["", *labels], [[label, *map(str, numbers)] for label, numbers in counts])

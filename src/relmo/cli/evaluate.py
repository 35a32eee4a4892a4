"""`relmo evaluate MODEL FILE…`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.sources import BuiltOn, Tokenizer
from relmo.cli.terminal import print_json, print_label_table, print_length_table, print_table, progress_bar
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM
    from relmo.models.evaluate import BiScore, Score
    from relmo.models.lm import LanguageModel
    from relmo.tasks.scores import TaskReport
    from relmo.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How files are read, if not as in training."""

    column: str | None = None
    """Tasks: the column, by name or number, or the key of JSON, that has the labels."""
    text_column: str | None = None
    """Classifiers: the column, or key, that has the text."""
    text_columns: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Pairs: the two columns, or keys, that have the texts; give the flag twice."""
    errors: Literal["strict", "replace"] | None = None
    """What to do with bytes that are not UTF-8: stop and say where they are, or read them as U+FFFD."""


def evaluate(
    model: PathName,
    *files: PathName,
    batch: int = 16,
    confusion: bool = False,
    tokenizer: Tokenizer = None,
    reading: Annotated[FileOptions, Parameter(name="*")] = FileOptions(),
    built_on: Annotated[BuiltOn, Parameter(name="*")] = BuiltOn(),  # noqa: B008
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Score a model on files: the perplexity of a language model, the accuracy or F1 of a task's model.

    A language model also gets its negative log-likelihood and bits per character; a bidirectional one the perplexity of
    each direction; a task's model the figures of each label. A language model predicts every character or word of a
    file once. A bidirectional one predicts every word and sentence end once in each direction. The state is carried
    from the beginning to the end of a file.

        echo "Natasha was going to the ball." | relmo evaluate prose -

        relmo evaluate models/mine test.txt

        relmo evaluate models/pos dev.conllu --confusion

        relmo evaluate models/mine test.csv --text-column comment --column topic

    Parameters
    ----------
    model
        The model's folder, or small, which ships with relmo.
    files
        Files as for training; each is scored by itself.
    batch
        Language models: how many places of a text are read side by side; it changes the speed, not the result.
    confusion
        Tasks: show how often each label was taken for each.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object.
    quiet
        Print the perplexity, or the task's score, alone, a line a file.
    """
    from relmo.loading import FORWARDS, load
    from relmo.settings.kinds import KINDS, TASKS
    from relmo.tasks.task import Task

    if not files:
        raise SettingError("no files to score: relmo evaluate MODEL FILE…")
    if batch < 1:
        raise SettingError(f"batch must be 1 or more, not {batch}")
    loaded: Any = load(model, kinds=(*TASKS, *FORWARDS), device=device, **built_on.places())
    if tokenizer is not None and loaded.kind in ("tagger", "srl", "coref"):
        raise SettingError(
            f"--tokenizer has no meaning here: the files of {KINDS[loaded.kind].called} have words already"
        )
    loaded = loaded.splitting(tokenizer).with_text(**{name: value for name, value in vars(reading).items() if value})
    if isinstance(loaded, Task):
        _evaluate_task(loaded, model, files, confusion=confusion, json=json, quiet=quiet)
        return
    if confusion:
        raise SettingError("--confusion goes with a task's model, such as a tagger")
    _evaluate_language_model(loaded, model, files, batch=batch, json=json, quiet=quiet)


def _evaluate_language_model(
    loaded: "LanguageModel | BiLM", model: str, files: Sequence[str], *, batch: int, json: bool, quiet: bool
) -> None:
    """Score a language model on each file and on all of them."""
    scores: dict[str, Score | BiScore] = {}
    unit = "character" if getattr(loaded.settings.text, "unit", "word") == "char" else "word"
    with progress_bar(unit, quiet=quiet) as bar:
        for file in files:
            scores[file] = loaded.evaluate(file, lanes=batch, watch=bar(file))
    total = sum(list(scores.values())[1:], start=next(iter(scores.values())))
    if json:
        rows = [{"file": file} | score.summary() for file, score in scores.items()]
        print_json({"model": model, "files": rows, "total": total.summary()})
    elif quiet:
        print(*(f"{score.perplexity:.4f}" for score in scores.values()), sep="\n")
    else:
        shown = {**scores, **({"all": total} if len(scores) > 1 else {})}
        tables = [{"file": file} | _columns(score, unit) for file, score in shown.items()]
        print_table(list(tables[0]), [list(row.values()) for row in tables])


def _columns(score: "Score | BiScore", unit: str) -> dict[str, str]:
    """A row of the table, by column; the unit is what a language model predicts, a word or a character."""
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
    """Scores a task's model on each file."""
    reports = [(file, task.evaluate(file)) for file in files]
    if json:
        print_json({"model": model, "files": [{"file": file} | report.summary() for file, report in reports]})
        return
    if quiet:
        print(*(f"{report.score:.6f}" for _, report in reports), sep="\n")
        return
    names = list(dict.fromkeys(name for _, report in reports for name in report.values))
    rows = [[file, f"{report.count:,}", *(_figure(report, name) for name in names)] for file, report in reports]
    print_table(["file", "count", *names], rows)
    for _, report in reports:
        _print_details(report, confusion=confusion)


def _figure(report: "TaskReport", name: str) -> str:
    """A figure as the table shows it; some files have more of them than others."""
    return f"{report.values[name]:.4f}" if name in report.values else ""


def _print_details(report: "TaskReport", *, confusion: bool) -> None:
    """Each label by itself, and, where asked for, which was taken for which; of texts, the scores by length."""
    print_label_table(report.labels)
    print_length_table(report.summary())
    if confusion and report.confusion is not None:
        print("\nrows: what it is; columns: what it was taken for")
        labels = report.confusion.labels
        print_table(["", *labels], [[r, *map(str, n)] for r, n in zip(labels, report.confusion.counts, strict=True)])

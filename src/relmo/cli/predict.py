"""`relmo predict MODEL [FILE]` and `relmo evaluate MODEL FILE…`"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.options import BuiltOn, Device, Errors, Json, Overwrite, Positive, Tokenizer, check_plot, report_written
from relmo.cli.terminal import (
    format_prediction,
    json_line,
    print_json,
    print_message,
    print_scores,
    print_table,
    rate_bars,
)
from relmo.disk.outputs import atomic, refuse_existing
from relmo.errors import CorpusError, SettingError
from relmo.settings.fields import FrozenSettings, PathName
from relmo.settings.kinds import KINDS, PREDICT_OPTIONS, TASKS, TOKENIZED_KINDS
from relmo.settings.options import AdaptOptions

MAX_CHUNK_LINES = 2048  # lines that are predicted together, if that many have arrived
MAX_PLOTTED_TEXTS = 20
SEPARATORS_TO_SPACES = str.maketrans("\t\r\n", "   ")


class AnswerOptions(FrozenSettings):
    """Options of readers and coreference models."""

    passage: Path | None = None
    """reader: a file with the passage that all questions refer to."""
    best: int = 1
    """reader: number of answers per question, best first, followed by an empty line; no two overlap. seq2seq: number
    of texts per line, each with its score, best first."""
    format: Literal["text", "conll"] = "text"
    """coref: print text, or the columns of CoNLL-2012."""
    html: Path | None = None
    """coref: write a self-contained page with coloured clusters to this file, and print no text."""


class SearchOptions(FrozenSettings):
    """Beam search and attention of sequence-to-sequence models."""

    beams: int | None = None
    """Number of beams; 1 is greedy. By default, the setting of the model."""
    length_penalty: float | None = None
    """Alpha: larger values prefer longer texts."""
    coverage: float | None = None
    """Beta: larger values prefer texts that attend to every word of the source."""
    limit: int | None = None
    """Maximum number of units of a text; 0 for twice the length of the source plus 50."""
    attention: bool = False
    """Print the attention weights; with --json they are always included."""
    plot: Path | None = None
    """Draw the attention weights of up to 20 texts to this .png or .svg file."""


def predict(
    model: PathName,
    file: PathName | None = None,
    *,
    column: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    tokenizer: Tokenizer = None,
    built_on: Annotated[BuiltOn, Parameter(name="*")] = BuiltOn(),
    errors: Errors = "strict",
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: bool = False,
    quiet: bool = False,
    answer: Annotated[AnswerOptions, Parameter(name="*", group="Readers, coreference")] = AnswerOptions(),
    search: Annotated[SearchOptions, Parameter(name="*", group="Sequence to sequence")] = SearchOptions(),
) -> None:
    """Apply a task's model to text: tags, labels, answers, roles. Lines from a pipe are answered as they arrive.

    - tagger: one sentence per line. Prints each word and its tag, separated by a tab; an empty line after a sentence.
    - classifier: one text per line. Prints the label and its probability.
    - pairs: two sentences per line, separated by a tab. Prints the label and its probability, or a score.
    - reader: a passage, a tab and a question per line; with --passage one question per line; or SQuAD (.json), JSON
      lines (.jsonl). Prints the answer, its start and end offsets in the passage, and its score.
    - srl: one sentence per line, or JSON lines with predicates (.jsonl). Prints each predicate with its roles.
    - coref: a document; or several, as CoNLL-2012 (.conll, ._conll) or JSON lines (.jsonl). Prints the text with the
      mentions in brackets, numbered by cluster and, on a terminal, coloured.
    - seq2seq: one text per line. Prints the generated text.

    For example:

        echo "Anna lives in Berlin." | relmo predict models/ner
        relmo predict models/pos text.txt --json > tagged.jsonl
        echo "Who founded the town?" | relmo predict models/squad --passage town.txt --best 3
        relmo predict models/coref chapter.txt --html chapter.html
        echo "The cat is black." | relmo predict models/en-fr --beams 5 --best 3 --attention

    Args:
        model: A model folder.
        file: Text: plain, .gz, .xz, .zst; .conllu, already tokenised; a table, .csv or .tsv. By default standard input.
        column: Tables: the column with the text or, given twice, the columns of a pair; by default those of training.
        json: Print one JSON object per line, with the offsets of the words or the probability of each label.
        quiet: Do not report truncated words, or the path of a page.
    """
    from relmo.loading import load

    loaded: Any = load(model, kinds=TASKS, device=device, **vars(built_on)).with_tokenizer(tokenizer)
    loaded = _configure(loaded, answer, search, json=json, overwrite=overwrite, errors=errors)
    predictions: list[Any] = []
    for examples in read_examples(loaded, file, column, errors):
        chunk = list(loaded.predict_examples(examples))
        if answer.html is not None or search.plot is not None:
            predictions += chunk
        if search.plot is not None and sum(bool(prediction.source) for prediction in predictions) > MAX_PLOTTED_TEXTS:
            raise SettingError(f"--plot draws at most {MAX_PLOTTED_TEXTS} texts; give fewer lines.")
        if answer.html is None:
            _print_predictions(examples, chunk, json=json, conll=answer.format == "conll", attention=search.attention)
    if answer.html is not None:
        from relmo.tasks.coref import page

        with atomic(answer.html) as temporary:
            temporary.write_text(page(predictions), encoding="utf-8", errors="backslashreplace")
        report_written(answer.html, quiet=quiet)
    if search.plot is not None and any(prediction.source for prediction in predictions):
        from relmo.analysis.core.show import draw_attention

        draw_attention([prediction for prediction in predictions if prediction.source], search.plot)
        report_written(search.plot)
    if loaded.features.bilm is not None and loaded.features.cut.count and not quiet:
        print_message(f"warning: {loaded.features.cut.message()}")


def _configure(
    model: Any, answer: AnswerOptions, search: SearchOptions, *, json: bool, overwrite: bool, errors: Errors
) -> Any:
    """Return the model with these options; raise `SettingError` for those that belong to other kinds of model."""
    from relmo.text.corpus import read_text

    for group in (answer, search):
        for field in fields(group):
            owners = [kind for kind, names in PREDICT_OPTIONS.items() if field.name in names]
            if getattr(group, field.name) != field.default and model.kind not in owners:
                flag, called = f"--{field.name.replace('_', '-')}", " or ".join(KINDS[kind].called for kind in owners)
                raise SettingError(f"{flag} needs {called}; this is {KINDS[model.kind].called}.")
    if json + (answer.format == "conll") + (answer.html is not None) > 1:
        raise SettingError("--json, --format and --html cannot be used together.")
    if answer.html is not None:
        refuse_existing(answer.html, overwrite=overwrite)
    if answer.passage is not None:
        model = model.with_passage(read_text(answer.passage, errors=errors))
    if hasattr(model, "with_best"):
        return model.with_best(answer.best)
    if not hasattr(model, "with_search"):
        return model
    is_drawn = search.attention or search.plot is not None
    if is_drawn and not model.has_attention:
        raise SettingError("--attention and --plot need a model with attention.")
    check_plot(search.plot, overwrite=overwrite)
    names = ("beams", "length_penalty", "coverage", "limit")
    options = {name: getattr(search, name) for name in names if getattr(search, name) is not None}
    if answer.best > 1 and search.beams is None:
        options["beams"] = max(answer.best, model.search.beams)
    return model.with_search(best=answer.best, attention=json or is_drawn, **options)


def read_examples(
    model: Any, file: str | None, columns: Sequence[str], errors: Literal["strict", "replace"]
) -> Iterator[list[Any]]:
    """Yield examples in chunks: the whole file if the model reads it as a whole, otherwise lines or sentences, from a
    pipe what has arrived so far. With `columns`, every file is read as a table."""
    from relmo.text.corpus import STDIN, is_conllu, numbered_blocks, read_conllu
    from relmo.text.readers.tables import get_value, is_table, table_rows

    path = STDIN if file in (None, "-") else file
    examples = None if columns else model.read_file(path, errors=errors)
    if examples is not None:
        yield examples
        return

    def read_table(columns: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
        for row in table_rows(path, errors, fewest=1):
            texts = [get_value(row, names, "name it with --column") for names in columns]
            yield "\t".join(text.translate(SEPARATORS_TO_SPACES) for text in texts), row.place

    blocks: Iterable[Iterator[tuple[str, str]]]  # of texts and their places
    is_tokenized = False
    if columns or is_table(path):
        blocks = [read_table([(name,) for name in columns] or model.text_columns)]
    elif is_tokenized := is_conllu(path):
        sentences = enumerate(read_conllu(path, errors=errors), start=1)
        blocks = [((" ".join(words), f"{path}: sentence {number}") for number, words in sentences)]
    else:
        blocks = numbered_blocks(path, errors)
    for block in blocks:
        while lines := list(islice(block, MAX_CHUNK_LINES)):
            examples = []
            for text, place in lines:
                try:
                    examples.append(model.read_line(text, tokenized=is_tokenized))
                except CorpusError as error:
                    raise CorpusError(f"{place}: {error}") from error
            yield examples


def _print_predictions(
    examples: Sequence[Any], predictions: Sequence[Any], *, json: bool, conll: bool, attention: bool
) -> None:
    from relmo.tasks.coref import conll as format_conll
    from relmo.tasks.results import attention_text

    outputs = []
    for example, prediction in zip(examples, predictions, strict=True):
        if json:
            outputs.append(json_line(prediction.to_dict()))
        elif conll:
            outputs.append(format_conll(example, prediction.places))
        else:
            outputs.append(format_prediction(prediction))
            for candidate in prediction.candidates if attention else ():
                outputs += ["", attention_text(prediction.source, candidate.units, candidate.attention), ""]
    sys.stdout.write("\n".join(outputs) + "\n")
    sys.stdout.flush()


class FileOptions(FrozenSettings):
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
    batch: Positive = 16,
    confusion: bool = False,
    tokenizer: Tokenizer = None,
    reading: Annotated[FileOptions, Parameter(name="*")] = FileOptions(),
    adaptation: Annotated[AdaptOptions, Parameter(name="*")] = AdaptOptions(),
    built_on: Annotated[BuiltOn, Parameter(name="*")] = BuiltOn(),
    device: Device = "auto",
    json: Json = False,
    quiet: bool = False,
) -> None:
    """Score a model on files: the perplexity of a language model, the accuracy or F1 of a task's model.

    Language models also get the negative log-likelihood and bits per character, bidirectional ones the perplexity of
    each direction, task models the scores of each label. A language model predicts every character or word of a file
    once, a bidirectional one every word and sentence end once per direction. The state is carried through the file.
    With --adapt or --cache there is a second score, of a model that adapts to the file while it is scored on it.

        echo "Natasha was going to the ball." | relmo evaluate prose -
        relmo evaluate models/mine test.txt
        relmo evaluate models/mine test.txt --adapt 0.1 --cache 500
        relmo evaluate models/pos dev.conllu --confusion
        relmo evaluate models/mine test.csv --text-column comment --column topic

    Args:
        model: A model folder, or small, a bundled model.
        files: Files as for training; each is scored separately.
        batch: Language models: number of lanes that are read in parallel; this affects the speed, not the scores.
        confusion: Tasks: print the confusion matrix.
        quiet: Print only the perplexity, or the score of the task, one line per file.
    """
    from relmo.loading import FORWARD_KINDS, load
    from relmo.tasks.task import Task

    if not files:
        raise SettingError("No files to score: relmo evaluate MODEL FILE…")
    loaded: Any = load(model, kinds=(*TASKS, *FORWARD_KINDS), device=device, **vars(built_on))
    if tokenizer is not None and loaded.kind in TOKENIZED_KINDS:
        called = KINDS[loaded.kind].called
        raise SettingError(f"--tokenizer has no effect: the files of {called} are already tokenised.")
    reading_options = {name: value for name, value in vars(reading).items() if value}
    loaded = loaded.with_tokenizer(tokenizer).with_text(**reading_options)
    if isinstance(loaded, Task):
        if adaptation != AdaptOptions():
            raise SettingError("--adapt and --cache need a language model.")
        _evaluate_task(loaded, model, files, confusion=confusion, json=json, quiet=quiet)
    elif confusion:
        raise SettingError("--confusion needs a task's model, such as a tagger.")
    else:
        _evaluate_language_model(loaded, model, files, adaptation, batch=batch, json=json, quiet=quiet)


def _evaluate_language_model(
    loaded: Any, model: str, files: Sequence[str], options: AdaptOptions, *, batch: int, json: bool, quiet: bool
) -> None:
    from relmo.models.adapt import Adaptation
    from relmo.models.evaluate import BiScore

    adaptation: Adaptation | None = None
    scores: dict[str, Any] = {}
    unit = "character" if getattr(loaded.settings.text, "unit", "word") == "char" else "word"
    with rate_bars(unit, quiet=quiet) as add_bar:
        if options != AdaptOptions():
            watch = None if options.adapt_statistics is None else add_bar(str(options.adapt_statistics))
            adaptation = Adaptation(loaded, watch, **vars(options))
        for file in files:
            scores[file] = loaded.evaluate(file, lanes=batch, watch=add_bar(file), adaptation=adaptation)
    total = sum(list(scores.values())[1:], start=next(iter(scores.values())))
    if json:
        records = [{"file": file} | score.summary() for file, score in scores.items()]
        settings = {} if adaptation is None else {"adaptation": vars(options)}
        print_json({"model": model} | settings | {"files": records, "total": total.summary()})
        return
    if quiet:
        pairs = ((score, score.adapted) for score in scores.values())
        print(*("\t".join(f"{score.perplexity:.4f}" for score in pair if score) for pair in pairs), sep="\n")
        return
    rows = []
    scores |= {"all": total} if len(scores) > 1 else {}
    scores |= {f"{name} adapted": score.adapted for name, score in scores.items() if score.adapted is not None}
    for name, score in scores.items():
        if isinstance(score, BiScore):
            count, forward, backward = score.tokens, score.forward_perplexity, score.backward_perplexity
            numbers = {"forward": forward, "backward": backward, "joint": score.perplexity}
            columns = {k: f"{v:,.3f}" for k, v in (numbers | {"average": score.average_perplexity}).items()}
        else:
            count = score.symbols
            columns = {"perplexity": f"{score.perplexity:,.3f}", "bits/character": f"{score.bits_per_character:.4f}"}
            columns |= {f"nats/{unit}": f"{score.nats:.4f}", "nll": f"{score.nll:,.1f}"}
        unknown = f"{score.unknown:,} ({score.unknown / count:.2%})"
        rows.append({"file": name, f"{unit}s": f"{count:,}", "unknown": unknown} | columns)
    print_table(list(rows[0]), [list(row.values()) for row in rows])


def _evaluate_task(task: Any, model: str, files: Sequence[str], *, confusion: bool, json: bool, quiet: bool) -> None:
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
        print_scores(report.summary())
        if confusion and report.confusion is not None:
            print("\nrows: true labels; columns: predicted labels")
            labels = report.confusion.labels
            counts = zip(labels, report.confusion.counts, strict=True)
            print_table(["", *labels], [[label, *map(str, numbers)] for label, numbers in counts])

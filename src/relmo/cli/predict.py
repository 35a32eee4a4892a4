"""`relmo predict MODEL [FILE]`"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from relmo.cli.options import BuiltOn, Device, Errors, Overwrite, Tokenizer, check_plot, report_written
from relmo.cli.terminal import format_prediction, json_line, print_message
from relmo.disk.outputs import atomic, refuse_existing
from relmo.errors import CorpusError, SettingError
from relmo.settings.arguments import PathName
from relmo.settings.kinds import KINDS, TASKS

if TYPE_CHECKING:
    from relmo.tasks.task import Task

MAX_CHUNK_LINES = 2048  # lines that are predicted together, if that many have arrived
MAX_PLOTTED_TEXTS = 20
OPTION_OWNERS = {  # kinds with an option; those of `SearchOptions` belong to seq2seq
    "--passage": ("reader",),
    "--best": ("reader", "seq2seq"),
    "--format": ("coref",),
    "--html": ("coref",),
}
SEPARATORS_TO_SPACES = str.maketrans("\t\r\n", "   ")


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
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


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
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


class InputLine(NamedTuple):
    """A line to predict, whether it is already tokenised, and its place in the file."""

    text: str
    is_tokenized: bool
    place: str


def predict(
    model: PathName,
    file: PathName | None = None,
    *,
    column: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    tokenizer: Tokenizer = None,
    built_on: Annotated[BuiltOn, Parameter(name="*")] = BuiltOn(),  # noqa: B008
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

    Parameters
    ----------
    model
        A model folder.
    file
        Text: plain, .gz, .xz, .zst; .conllu, which is already tokenised; or a table, .csv or .tsv. By default standard
        input.
    column
        Tables: the column with the text or, given twice, the two columns of a pair; by default those of training.
    json
        Print one JSON object per line, with the offsets of the words or the probability of each label.
    quiet
        Do not report truncated words, or the path of a page.
    """
    from relmo.loading import load
    from relmo.text.corpus import read_text

    loaded: Any = load(model, kinds=TASKS, device=device, **vars(built_on)).with_tokenizer(tokenizer)
    _check_options(loaded.kind, answer, search)
    is_conll = answer.format == "conll"
    if json + is_conll + (answer.html is not None) > 1:
        raise SettingError("--json, --format and --html cannot be used together.")
    if answer.html is not None:
        refuse_existing(answer.html, overwrite=overwrite)
    if answer.passage is not None:
        loaded = loaded.with_passage(read_text(answer.passage, errors=errors))
    if hasattr(loaded, "with_best"):
        loaded = loaded.with_best(answer.best)
    elif hasattr(loaded, "with_search"):
        loaded = _configure_search(loaded, search, num_best=answer.best, json=json, overwrite=overwrite)
    chunks = _read_examples(loaded, file, column, errors)
    predictions: list[Any] = []
    for examples in chunks:
        chunk = list(loaded.predict_examples(examples))
        if answer.html is not None or search.plot is not None:
            predictions += chunk
        if search.plot is not None and sum(bool(prediction.source) for prediction in predictions) > MAX_PLOTTED_TEXTS:
            raise SettingError(f"--plot draws at most {MAX_PLOTTED_TEXTS} texts; give fewer lines.")
        if answer.html is None:
            _print_predictions(examples, chunk, json=json, conll=is_conll, attention=search.attention)
    _write_files(predictions, answer.html, search.plot, quiet=quiet)
    features = loaded.features
    if features.bilm is not None and features.cut.count and not quiet:
        print_message(f"warning: {features.cut.message()}")


def _write_files(predictions: list[Any], html: Path | None, plot: Path | None, *, quiet: bool) -> None:
    """Write the page with clusters and the figure of attention, where they are asked for."""
    if html is not None:
        from relmo.tasks.coref_text import page

        with atomic(html) as temporary:
            temporary.write_text(page(predictions), encoding="utf-8", errors="backslashreplace")
        report_written(html, quiet=quiet)
    if plot is not None and any(prediction.source for prediction in predictions):
        from relmo.analysis.core.show import draw_attention

        draw_attention([prediction for prediction in predictions if prediction.source], plot)
        report_written(plot)


def _check_options(kind: str, *options: Any) -> None:
    """Raise `SettingError` if an option was given that belongs to other kinds of model."""
    for group in options:
        for field in fields(group):
            flag = f"--{field.name.replace('_', '-')}"
            owners = OPTION_OWNERS.get(flag, ("seq2seq",))
            if getattr(group, field.name) != field.default and kind not in owners:
                names = " or ".join(KINDS[owner].called for owner in owners)
                raise SettingError(f"{flag} needs {names}; this is {KINDS[kind].called}.")


def _configure_search(model: Any, options: SearchOptions, *, num_best: int, json: bool, overwrite: bool) -> Any:
    """Return a sequence-to-sequence model with these search options."""
    is_drawn = options.attention or options.plot is not None
    if is_drawn and not model.has_attention:
        raise SettingError("--attention and --plot need a model with attention.")
    check_plot(options.plot, overwrite=overwrite)
    names = ("beams", "length_penalty", "coverage", "limit")
    search = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if num_best > 1 and options.beams is None:
        search["beams"] = max(num_best, model.search.beams)
    return model.with_search(best=num_best, attention=json or is_drawn, **search)


def _read_examples(
    model: "Task[Any, Any]", file: str | None, columns: Sequence[str], errors: Literal["strict", "replace"]
) -> Iterator[list[Any]]:
    """Yield examples in chunks: the whole file if the model reads it as a whole, otherwise line by line. With
    `columns`, every file is read as a table."""
    from relmo.text.corpus import STDIN
    from relmo.text.readers.tables import is_table

    path = STDIN if file in (None, "-") else file
    examples = None if columns else model.read_file(path, errors=errors)
    if examples is not None:
        yield examples
        return
    column_names = [(name,) for name in columns] or model.text_columns
    for lines in read_lines(path, errors, column_names if columns or is_table(path) else ()):
        examples = []
        for line in lines:
            try:
                examples.append(model.read_line(line.text, tokenized=line.is_tokenized))
            except CorpusError as error:
                raise CorpusError(f"{line.place}: {error}") from error
        yield examples


def _print_predictions(
    examples: Sequence[Any], predictions: Sequence[Any], *, json: bool, conll: bool, attention: bool
) -> None:
    """Print predictions as JSON lines, in the columns of CoNLL-2012, or as text."""
    from relmo.tasks.coref_text import conll as format_conll
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


def read_lines(
    path: str, errors: Literal["strict", "replace"], columns: Sequence[Sequence[str]] = ()
) -> Iterator[list[InputLine]]:
    """Yield the lines or sentences of a file in chunks, from a pipe what has arrived so far. With `columns` the file is
    a table."""
    from relmo.text.corpus import is_conllu, numbered_blocks, read_conllu
    from relmo.text.readers.tables import get_value, table_rows

    def read_table() -> Iterator[InputLine]:
        for row in table_rows(path, errors, fewest=1):
            texts = [get_value(row, names, "name it with --column") for names in columns]
            yield InputLine("\t".join(text.translate(SEPARATORS_TO_SPACES) for text in texts), False, row.place)

    blocks: Iterable[Iterator[InputLine]]
    if columns:
        blocks = [read_table()]
    elif is_conllu(path):
        sentences = enumerate(read_conllu(path, errors=errors), start=1)
        blocks = [(InputLine(" ".join(words), True, f"{path}: sentence {number}") for number, words in sentences)]
    else:
        blocks = ((InputLine(text, False, place) for text, place in block) for block in numbered_blocks(path, errors))
    for block in blocks:
        while chunk := list(islice(block, MAX_CHUNK_LINES)):
            yield chunk

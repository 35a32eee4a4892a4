"""`relmo predict MODEL [FILE]`"""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from relmo.cli.terminal import json_line, say
from relmo.errors import CorpusError

if TYPE_CHECKING:
    from relmo.tasks.task import Task

AT_ONCE = 2048  # lines that are predicted together, where so many have come
IN_ONE_FIELD = str.maketrans("\t\r\n", "   ")


class Input(NamedTuple):
    """A line to answer, whether it is tokenised already, and where it stands."""

    text: str
    tokenized: bool
    place: str


def predict(
    model: str,
    file: str | None = None,
    *,
    column: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    tokenized: bool = False,
    errors: Literal["strict", "replace"] = "strict",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Apply a model to text. A tagger gives each word with its tag, a tab between them, an empty line after a sentence;
    a classifier the label of each line and its probability; one for pairs the same, or a score.

    Text has one sentence a line, or two with a tab between them for a model of pairs; what has come so far is answered
    at once, so that it works in a pipe.

        echo "Anna lives in Berlin." | relmo predict models/ner

        printf "A man sleeps.\\tA person is awake.\\n" | relmo predict models/snli --json

        relmo predict models/pos text.txt --json > tagged.jsonl

    Parameters
    ----------
    model
        The model's folder.
    file
        Text: plain, .gz, .xz, .zst; .conllu, whose words are kept as they are; or a table with names in its first line,
        .csv or .tsv. Standard input where it is not given.
    column
        Tables: the column that has the text, or, given twice, the two of a pair; those of training where it is not
        given.
    tokenized
        Words are split at white space, not by the model's tokenizer.
    errors
        What to do with bytes that are not UTF-8: stop with the place, or read them as U+FFFD.
    device
        Where to compute; auto takes a GPU where there is one.
    json
        Print a JSON object a line: with the places of the words in the text, or the probability of each label.
    quiet
        Say nothing of words that were cut.
    """
    from relmo.loading import load
    from relmo.settings.kinds import TASKS

    loaded: Any = load(model, kinds=TASKS, device=device)
    for lines in read(file, errors, [(name,) for name in column] or loaded.text_columns):
        _answer(loaded, lines, tokenized=tokenized, json=json)
    features = loaded.features
    if features.bilm is not None and features.cut.count and not quiet:
        say(f"warning: {features.cut.message()}")


def _answer(model: "Task[Any, Any]", lines: list[Input], *, tokenized: bool, json: bool) -> None:
    """Prints the predictions for lines, of which some are tokenised."""
    asked = []
    for line in lines:
        try:
            asked.append(model.read_line(line.text, tokenized=tokenized or line.tokenized))
        except CorpusError as error:
            raise CorpusError(f"{line.place}: {error}") from error
    answered = zip(asked, model.answer(asked), strict=True)
    results = [json_line(model.as_record(*each)) if json else each[1].as_text() for each in answered]
    sys.stdout.write("\n".join(results) + "\n")
    sys.stdout.flush()


def read(
    file: str | None, errors: Literal["strict", "replace"], columns: Sequence[Sequence[str]] = (("text",),)
) -> Iterator[list[Input]]:
    """The lines of a file, or its sentences, a portion at a time: of a pipe, what has come so far. Of a table, the
    columns."""
    from relmo.text.corpus import STDIN, is_conllu, read_conllu
    from relmo.text.readers.lines import blocks_of_lines
    from relmo.text.readers.tables import is_table

    path = STDIN if file is None else file
    if is_table(path):
        yield from _portions(_table_lines(path, errors, columns))
    elif is_conllu(path):
        sentences = enumerate(read_conllu(path, errors=errors), start=1)
        yield from _portions(Input(" ".join(words), True, f"{path}: sentence {number}") for number, words in sentences)
    else:
        for block in blocks_of_lines(path, errors):
            yield from _portions(Input(text, False, place) for text, place in block)


def _table_lines(path: str, errors: Literal["strict", "replace"], columns: Sequence[Sequence[str]]) -> Iterator[Input]:
    """The rows of a table, with tabs between the columns that are asked for."""
    from relmo.text.readers.tables import table_rows, value_of

    for row in table_rows(path, errors, fewest=1):
        texts = [value_of(row, names, "say which it is with --column") for names in columns]
        yield Input("\t".join(text.translate(IN_ONE_FIELD) for text in texts), False, row.place)


def _portions(lines: Iterator[Input]) -> Iterator[list[Input]]:
    """Lines in lists, none of them empty or very long."""
    while portion := list(islice(lines, AT_ONCE)):
        yield portion

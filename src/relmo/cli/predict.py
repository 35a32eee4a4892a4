"""`relmo predict MODEL [FILE]`"""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from relmo.cli.output import Overwrite
from relmo.cli.search import SearchOptions, Shown, with_search
from relmo.cli.terminal import json_line, say
from relmo.errors import CorpusError

if TYPE_CHECKING:
    from relmo.tasks.task import Task

AT_ONCE = 2048  # lines that are predicted together, where so many have come


class Input(NamedTuple):
    """A line to answer, whether it is tokenised already, and where it stands."""

    text: str
    tokenized: bool
    place: str


def predict(
    model: str,
    file: str | None = None,
    *,
    tokenized: bool = False,
    errors: Literal["strict", "replace"] = "strict",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
    overwrite: Overwrite = False,
    search: Annotated[SearchOptions, Parameter(name="*", group="Sequence to sequence")] = SearchOptions(),  # noqa: B008
) -> None:
    """Apply a model to text. A tagger gives each word with its tag, a tab between them, an empty line after a sentence;
    a classifier the label of each line and its probability; one for pairs the same, or a score; a sequence-to-sequence
    model another text.

    Text has one sentence a line, or two with a tab between them for a model of pairs; what has come so far is answered
    at once, so that it works in a pipe.

        echo "Anna lives in Berlin." | relmo predict models/ner

        printf "A man sleeps.\\tA person is awake.\\n" | relmo predict models/snli --json

        relmo predict models/pos text.txt --json > tagged.jsonl

        echo "The cat is black." | relmo predict models/en-fr --beams 5 --best 3 --attention

    Parameters
    ----------
    model
        The model's folder.
    file
        Text: plain, .gz, .xz, .zst, or .conllu, whose words are kept as they are; standard input where it is not given.
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
    loaded, shown = with_search(loaded, search, json=json, overwrite=overwrite)
    for lines in read(file, errors):
        _answer(loaded, lines, tokenized=tokenized, json=json, shown=shown)
    if shown is not None:
        shown.draw()
    features = loaded.features
    if features.bilm is not None and features.cut.count and not quiet:
        say(f"warning: {features.cut.message()}")


def _answer(
    model: "Task[Any, Any]", lines: list[Input], *, tokenized: bool, json: bool, shown: Shown | None = None
) -> None:
    """Prints the predictions for lines, of which some are tokenised."""
    asked = []
    for line in lines:
        try:
            asked.append(model.read_line(line.text, tokenized=tokenized or line.tokenized))
        except CorpusError as error:
            raise CorpusError(f"{line.place}: {error}") from error
    answered = zip(asked, model.answer(asked), strict=True)
    results = []
    for example, prediction in answered:
        if shown is not None:
            shown.keep(prediction)
        text = prediction.as_text() if shown is None else shown.text(prediction)
        results.append(json_line(model.as_record(example, prediction)) if json else text)
    sys.stdout.write("\n".join(results) + "\n")
    sys.stdout.flush()


def read(file: str | None, errors: Literal["strict", "replace"]) -> Iterator[list[Input]]:
    """The lines of a file, or its sentences, a portion at a time: of a pipe, what has come so far."""
    from relmo.text.corpus import STDIN, is_conllu, read_conllu
    from relmo.text.readers.lines import blocks_of_lines

    path = STDIN if file is None else file
    if is_conllu(path):
        sentences = enumerate(read_conllu(path, errors=errors), start=1)
        yield from _portions(Input(" ".join(words), True, f"{path}: sentence {number}") for number, words in sentences)
    else:
        for block in blocks_of_lines(path, errors):
            yield from _portions(Input(text, False, place) for text, place in block)


def _portions(lines: Iterator[Input]) -> Iterator[list[Input]]:
    """Lines in lists, none of them empty or very long."""
    while portion := list(islice(lines, AT_ONCE)):
        yield portion

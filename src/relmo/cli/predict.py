"""`relmo predict MODEL [FILE]`"""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from relmo.cli.documents import Shown, predict_documents
from relmo.cli.output import Overwrite
from relmo.cli.terminal import coloured, json_line, say
from relmo.errors import CorpusError, SettingError

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
    passage: Path | None = None,
    best: int = 1,
    tokenized: bool = False,
    errors: Literal["strict", "replace"] = "strict",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    format: Literal["text", "conll"] = "text",  # noqa: A002
    html: Path | None = None,
    overwrite: Overwrite = False,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Apply a model to text. A tagger gives each word with its tag, a tab between them, an empty line after a sentence;
    a classifier the label of each line and its probability; one for pairs the same, or a score; a reader the answer,
    the characters of the passage where it begins and ends, and its score; one for semantic roles the predicates of each
    line, with their roles in brackets; one for coreference the text with its mentions in brackets, those of one thing
    with one number and, on a terminal, one colour.

    Text has one sentence a line; two with a tab between them for a model of pairs; a passage, a tab and a question for
    a reader, or, with --passage, a question. What has come so far is answered at once, so that it works in a pipe. A
    reader answers the questions of a file in SQuAD's format (.json), too; a model for coreference takes all of the text
    as one document.

        echo "Anna lives in Berlin." | relmo predict models/ner

        relmo predict models/pos text.txt --json > tagged.jsonl

        relmo predict models/coref chapter.txt --html chapter.html

        echo "Who founded the town?" | relmo predict models/squad --passage town.txt --best 3

    Parameters
    ----------
    model
        The model's folder.
    file
        Text: plain, .gz, .xz, .zst, or .conllu, whose words are kept as they are; standard input where it is not given.
        Coreference also takes documents of CoNLL-2012 (.conll, ._conll) and of JSON lines (.jsonl).
    passage
        Readers: a file with the text that all questions are about; each line to answer is then a question alone.
    best
        Readers: give so many answers to each question, no two of which share a word, the best first; an empty line
        follows them.
    tokenized
        Words are split at white space, not by the model's tokenizer.
    errors
        What to do with bytes that are not UTF-8: stop with the place, or read them as U+FFFD.
    device
        Where to compute; auto takes a GPU where there is one.
    format
        Coreference: text, or the columns of CoNLL-2012.
    html
        Coreference: write a page with coloured clusters, which needs nothing else, to this file.
    json
        Print a JSON object a line: with the places of the words in the text, or the probability of each label.
    quiet
        Say nothing of words that were cut.
    """
    from relmo.loading import load
    from relmo.settings.kinds import TASKS

    loaded: Any = load(model, kinds=TASKS, device=device)
    if not loaded.documents and (html is not None or format != "text"):
        raise SettingError("--html and --format go with a model for coreference")
    if passage is not None or best != 1:
        loaded = _reader(loaded, passage, best, tokenized=tokenized, errors=errors)
    if loaded.documents:
        shown = Shown(json, format, html, overwrite, quiet)
        predict_documents(loaded, file, shown, tokenized=tokenized, errors=errors)
    elif (examples := loaded.read_whole(file, tokenized=tokenized, errors=errors)) is not None:
        _print_answers(loaded, examples, json=json)
    else:
        for lines in read(file, errors):
            _print_answers(loaded, _asked(loaded, lines, tokenized=tokenized), json=json)
    features = loaded.features
    if features.bilm is not None and features.cut.count and not quiet:
        say(f"warning: {features.cut.message()}")


def _reader(
    model: "Task[Any, Any]", passage: Path | None, best: int, *, tokenized: bool, errors: Literal["strict", "replace"]
) -> "Task[Any, Any]":
    """A reader that gives the so many best answers to questions, about one passage where it is given."""
    from relmo.tasks.reader import PassageReader
    from relmo.text.corpus import read_text

    if not isinstance(model, PassageReader):
        raise SettingError(f"--passage and --best go with a reader, and this is a {model.kind}")
    if passage is not None:
        model = model.about_passage(read_text(passage, errors=errors), tokenized=tokenized)
    return model.giving(best)


def _asked(model: "Task[Any, Any]", lines: list[Input], *, tokenized: bool) -> list[Any]:
    """The examples of lines, of which some are tokenised."""
    asked = []
    for line in lines:
        try:
            asked.append(model.read_line(line.text, tokenized=tokenized or line.tokenized))
        except CorpusError as error:
            raise CorpusError(f"{line.place}: {error}") from error
    return asked


def _print_answers(model: "Task[Any, Any]", asked: list[Any], *, json: bool) -> None:
    """Prints the predictions for examples."""
    answered = zip(asked, model.answer(asked), strict=True)
    results = [json_line(model.as_record(*each)) if json else coloured(each[1]) for each in answered]
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

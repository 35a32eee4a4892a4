"""`relmo predict MODEL [FILE]`"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from relmo.cli.output import Overwrite
from relmo.cli.search import SearchOptions, Shown, given_options, with_search
from relmo.cli.sources import BuiltOn, Tokenizer
from relmo.cli.terminal import coloured, json_line, say
from relmo.disk.outputs import atomic, refuse_existing
from relmo.errors import CorpusError, SettingError
from relmo.settings.arguments import PathName
from relmo.settings.kinds import KINDS, TASKS

if TYPE_CHECKING:
    from relmo.tasks.coref_text import ResolvedText
    from relmo.tasks.reader import PassageReader
    from relmo.tasks.task import Task

AT_ONCE = 2048  # lines that are predicted together, where so many have come
WHOSE = {  # the kinds that an option has a meaning for; those of a search are of seq2seq
    "--passage": ("reader",),
    "--best": ("reader", "seq2seq"),
    "--format": ("coref",),
    "--html": ("coref",),
}
IN_ONE_FIELD = str.maketrans("\t\r\n", "   ")


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """What readers and models of coreference are asked for, and how it is shown."""

    passage: Path | None = None
    """reader: a file with the text that all questions are about."""
    best: int = 1
    """reader: give so many answers to each question, the best first, and then an empty line. No two share a word.
    seq2seq: give so many texts for each line, each with its score, the best first."""
    format: Literal["text", "conll"] = "text"
    """coref: print text, or the columns of CoNLL-2012."""
    html: Path | None = None
    """coref: write a self-contained page with coloured clusters to this file, and print no text."""


class Input(NamedTuple):
    """A line to answer, whether it is tokenised already, and where it stands."""

    text: str
    tokenized: bool
    place: str


def predict(
    model: PathName,
    file: PathName | None = None,
    *,
    column: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    tokenizer: Tokenizer = None,
    built_on: Annotated[BuiltOn, Parameter(name="*")] = BuiltOn(),  # noqa: B008
    errors: Literal["strict", "replace"] = "strict",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    overwrite: Overwrite = False,
    json: bool = False,
    quiet: bool = False,
    own: Annotated[AnswerOptions, Parameter(name="*", group="Readers, coreference")] = AnswerOptions(),
    search: Annotated[SearchOptions, Parameter(name="*", group="Sequence to sequence")] = SearchOptions(),  # noqa: B008
) -> None:
    """Apply a task's model to text: tags, labels, answers, roles. It answers each line as it comes, also in a pipe.

    - tagger: a sentence a line. It gives each word with its tag, a tab between them, an empty line after a sentence.
    - classifier: a text a line. It gives the label and its probability.
    - pairs: two sentences a line with a tab between them. It gives the label and its probability, or a score.
    - reader: a passage, a tab and a question a line; with --passage a question a line; or SQuAD (.json), JSON lines
      (.jsonl). It gives the answer, the characters of the passage where it begins and ends, and its score.
    - srl: a sentence a line, or JSON lines with predicates (.jsonl). It gives each predicate with its roles.
    - coref: a whole text; or several, as CoNLL-2012 (.conll, ._conll) or JSON lines (.jsonl). It gives the text with
      mentions in brackets; those of one thing have one number and, on a terminal, one colour.
    - seq2seq: a text a line. It gives another text.

    For example:

        echo "Anna lives in Berlin." | relmo predict models/ner
        relmo predict models/pos text.txt --json > tagged.jsonl
        echo "Who founded the town?" | relmo predict models/squad --passage town.txt --best 3
        relmo predict models/coref chapter.txt --html chapter.html
        echo "The cat is black." | relmo predict models/en-fr --beams 5 --best 3 --attention

    Parameters
    ----------
    model
        The model's folder.
    file
        Text: plain, .gz, .xz, .zst; .conllu, whose words are kept; a table, .csv or .tsv. By default standard input
        is read.
    column
        Tables: the column that has the text or, given twice, the two of a pair; by default those of training.
    errors
        What to do with bytes that are not UTF-8: stop and say where they are, or read them as U+FFFD.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print a JSON object a line: with the places of the words in the text, or the probability of each label.
    quiet
        Do not mention words that were cut, or where a page is.
    """
    from relmo.loading import load

    loaded: Any = load(model, kinds=TASKS, device=device, **built_on.places()).splitting(tokenizer)
    _check_kind(loaded.kind, [*given_options(own), *given_options(search)])
    html, columns = own.html, own.format == "conll"
    if json + columns + (html is not None) > 1:
        raise SettingError("--json, --format and --html are three ways to show an answer; give one of them")
    if html is not None:
        refuse_existing(html, overwrite=overwrite)
    shown = None
    if loaded.kind == "reader":
        loaded = _reader(loaded, own.passage, own.best, errors=errors)
    elif loaded.kind == "seq2seq":
        loaded, shown = with_search(loaded, search, best=own.best, json=json, overwrite=overwrite)
    portions = _examples(loaded, file, column, errors=errors)
    if html is not None:
        _write_page(html, [found for examples in portions for found in loaded.answer(examples)], quiet=quiet)
    for examples in portions:  # of which a page leaves none
        _print_answers(loaded, examples, json=json, columns=columns, shown=shown)
    if shown is not None:
        shown.draw()
    features = loaded.features
    if features.bilm is not None and features.cut.count and not quiet:
        say(f"warning: {features.cut.message()}")


def _check_kind(kind: str, given: Sequence[str]) -> None:
    """Raises where an option was given that has a meaning for other kinds of models alone."""
    for option in given:
        wanted = WHOSE.get(option, ("seq2seq",))
        if kind not in wanted:
            those = " and ".join(KINDS[name].called for name in wanted)
            raise SettingError(f"{option} is for {those} only; this is {KINDS[kind].called}")


def _reader(
    model: "PassageReader", passage: Path | None, best: int, *, errors: Literal["strict", "replace"]
) -> "PassageReader":
    """A reader that gives the so many best answers to questions, about one passage where it is given."""
    from relmo.text.corpus import read_text

    if passage is not None:
        model = model.about_passage(read_text(passage, errors=errors))
    return model.giving(best)


def _examples(
    model: "Task[Any, Any]",
    file: str | None,
    columns: Sequence[str],
    *,
    errors: Literal["strict", "replace"],
) -> Iterator[list[Any]]:
    """What a file asks, a portion at a time: all of it where the model reads it as a whole, otherwise line by line. Of
    a table, the columns, or those that the model looks for; where a column is asked for, every file is a table."""
    from relmo.text.corpus import STDIN
    from relmo.text.readers.tables import is_table

    path = STDIN if file in (None, "-") else file
    whole = None if columns else model.read_whole(path, errors=errors)
    if whole is not None:
        yield whole
        return
    names = [(name,) for name in columns] or model.text_columns
    for lines in read(path, errors, names if columns or is_table(path) else ()):
        yield _asked(model, lines)


def _asked(model: "Task[Any, Any]", lines: list[Input]) -> list[Any]:
    """The examples of lines, of which some are tokenised."""
    asked = []
    for line in lines:
        try:
            asked.append(model.read_line(line.text, tokenized=line.tokenized))
        except CorpusError as error:
            raise CorpusError(f"{line.place}: {error}") from error
    return asked


def _print_answers(
    model: "Task[Any, Any]", asked: list[Any], *, json: bool, columns: bool, shown: Shown | None
) -> None:
    """Prints the predictions for examples: as JSON lines, in the columns of CoNLL-2012, or as text."""
    answered = list(zip(asked, model.answer(asked), strict=True))
    if shown is not None:
        shown.keep([found for _, found in answered])
    if json:
        results = [json_line(found.to_dict()) for _, found in answered]
    elif columns:
        from relmo.tasks.coref_text import conll

        results = [conll(document, found.places) for document, found in answered]
    else:
        results = [coloured(found) if shown is None else shown.text(found) for _, found in answered]
    sys.stdout.write("\n".join(results) + "\n")
    sys.stdout.flush()


def _write_page(path: Path, found: "list[ResolvedText]", *, quiet: bool) -> None:
    """Writes documents with their clusters as one page."""
    from relmo.tasks.coref_text import page

    with atomic(path) as temporary:
        temporary.write_text(page(found), encoding="utf-8", errors="backslashreplace")
    if not quiet:
        say(f"the page is in {path}")


def read(
    path: str, errors: Literal["strict", "replace"], columns: Sequence[Sequence[str]] = ()
) -> Iterator[list[Input]]:
    """The lines of a file, or its sentences, a portion at a time: of a pipe, what has come so far. With `columns` it is
    a table."""
    from relmo.text.corpus import is_conllu, read_conllu
    from relmo.text.readers.lines import blocks_of_lines

    if columns:
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

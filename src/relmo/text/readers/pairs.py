"""Pairs of texts with a label or a number each: SNLI, SICK and other tables with a header; STS-B; JSON lines."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from relmo.errors import CorpusError, shown
from relmo.text.corpus import Errors
from relmo.text.readers.lines import filled_lines, first_line, some
from relmo.text.readers.tables import Split, TableRow, is_jsonl, json_rows, label_of, table_rows, words_of

FIRST = ("sentence1", "sentence_A", "premise", "first", "question1")
SECOND = ("sentence2", "sentence_B", "hypothesis", "second", "question2")
NO_LABEL = "-"  # pairs on which the annotators of SNLI did not agree
STSB_COLUMNS = 7
ADVICE = "name the two that have the texts with --text-columns"

PairFormat = Literal["auto", "tsv", "stsb", "jsonl"]


class TextPair(NamedTuple):
    """Two texts and what holds between them: a label, or a number."""

    first: list[str]
    second: list[str]
    label: str | float


def read_pairs(
    path: str | Path,
    *,
    split: Split,
    layout: PairFormat = "auto",
    column: str | None = None,
    text_columns: Sequence[str] = (),
    numbers: bool = False,
    errors: Errors = "strict",
) -> Iterator[TextPair]:
    """Pairs of texts with a label each, or, with `numbers`, a number. SNLI's pairs without a label are left out.

    layout        told by the name and the first line where it is "auto"
    column        the name of the column, or the key, with the label, where it is not one of LABELS or SCORES
    text_columns  the names of those with the two texts, where they are not one of FIRST and one of SECOND
    """
    if layout == "auto":
        layout = "jsonl" if is_jsonl(path) else "stsb" if _looks_like_stsb(path, errors) else "tsv"
    if layout == "stsb":
        if not numbers or column is not None or text_columns:
            raise CorpusError(
                f"{path}: is STS-B, which has scores and no names of columns; train a model for it with relmo train "
                "pairs --preset stsb, without naming columns"
            )
        rows = _stsb_rows(path, errors)
    else:
        rows = json_rows(path, errors) if layout == "jsonl" else table_rows(path, errors)
    first, second = ((text_columns[0],), (text_columns[1],)) if text_columns else (FIRST, SECOND)
    found = (
        TextPair(words_of(row, first, split, ADVICE), words_of(row, second, split, ADVICE), label)
        for row, label in _labelled_rows(rows, column, numbers)
    )
    yield from some(found, path, "pair")


def _labelled_rows(
    rows: Iterator[TableRow], column: str | None, numbers: bool
) -> Iterator[tuple[TableRow, str | float]]:
    """The rows that have a label, with it."""
    for row in rows:
        label: str | float = label_of(row, column, numbers)
        if label == NO_LABEL and not numbers:
            continue
        if numbers:
            label = _number_of(str(label), row.place)
        yield row, label


def _number_of(text: str, place: str) -> float:
    """A label that must be a finite number."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) < float("inf"):
        raise CorpusError(
            f"{place}: {shown(text)} is not a number; say which column has the scores with --column, or train a model "
            "of labels"
        )
    return number


def _looks_like_stsb(path: str | Path, errors: Errors) -> bool:
    """Whether the first line is a pair of STS-B, which has no names of columns."""
    fields = first_line(path, errors).split("\t")
    return len(fields) >= STSB_COLUMNS and re.fullmatch(r"[0-9.]+", fields[4]) is not None


def _stsb_rows(path: str | Path, errors: Errors) -> Iterator[TableRow]:
    """STS-B: genre, file, year, number, score, two sentences, and sometimes their sources."""
    for text, place in filled_lines(path, errors):
        fields = text.split("\t")
        if len(fields) < STSB_COLUMNS:
            raise CorpusError(f"{place}: STS-B has {STSB_COLUMNS} columns or more with tabs between, not {len(fields)}")
        yield TableRow({"score": fields[4], "sentence1": fields[5], "sentence2": fields[6]}, place)

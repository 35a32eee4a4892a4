"""Pairs of texts with a label or a number: SNLI, SICK and other tables with a header, STS-B, JSON lines."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from relmo.errors import CorpusError, quote
from relmo.text.corpus import Errors, nonblank_lines, require_examples
from relmo.text.readers.tables import Split, TableRow, get_label, get_words, is_jsonl, json_rows, table_rows

FIRST = ("sentence1", "sentence_A", "premise", "first", "question1")
SECOND = ("sentence2", "sentence_B", "hypothesis", "second", "question2")
NO_LABEL = "-"  # pairs on which the annotators of SNLI did not agree
STSB_COLUMNS = 7
ADVICE = "name the two with the texts with --text-columns"

PairFormat = Literal["auto", "tsv", "stsb", "jsonl"]


class TextPair(NamedTuple):
    """Words of two texts, and their label or score."""

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
    """Yield pairs of texts with a label each, or, with `numbers`, a number. Pairs of SNLI without a label are skipped.

    layout        "auto" recognizes the format by the name and the first line
    column        name of the column or key with the label, if it is not one of LABELS or SCORES
    text_columns  names of the columns or keys with the two texts, if they are not in FIRST and SECOND
    """
    if layout == "auto":
        line, _ = ("", "") if is_jsonl(path) else next(nonblank_lines(path, errors), ("", ""))
        fields = line.split("\t")
        is_stsb = len(fields) >= STSB_COLUMNS and re.fullmatch(r"[0-9.]+", fields[4]) is not None
        layout = "jsonl" if is_jsonl(path) else "stsb" if is_stsb else "tsv"
    if layout == "stsb":
        if not numbers or column is not None or text_columns:
            raise CorpusError(
                f"{path}: STS-B has scores and no column names; use relmo train pairs --preset stsb without naming "
                "columns"
            )
        rows = _stsb_rows(path, errors)
    else:
        rows = json_rows(path, errors) if layout == "jsonl" else table_rows(path, errors)
    first, second = ((text_columns[0],), (text_columns[1],)) if text_columns else (FIRST, SECOND)
    pairs = (
        TextPair(get_words(row, first, split, ADVICE), get_words(row, second, split, ADVICE), label)
        for row, label in _labelled_rows(rows, column, numbers)
    )
    yield from require_examples(pairs, path, "pair")


def _labelled_rows(
    rows: Iterator[TableRow], column: str | None, numbers: bool
) -> Iterator[tuple[TableRow, str | float]]:
    for row in rows:
        label = get_label(row, column, numbers)
        if not numbers:
            if label != NO_LABEL:
                yield row, label
            continue
        try:
            number = float(label)
        except ValueError:
            number = float("nan")
        if not abs(number) < float("inf"):
            raise CorpusError(
                f"{row.place}: {quote(label)} is not a number; name the column with the scores with --column, or train "
                "a model of labels"
            )
        yield row, number


def _stsb_rows(path: str | Path, errors: Errors) -> Iterator[TableRow]:
    """Yield the rows of STS-B: genre, file, year, number, score, two sentences, and sometimes their sources."""
    for text, place in nonblank_lines(path, errors):
        fields = text.split("\t")
        if len(fields) < STSB_COLUMNS:
            raise CorpusError(f"{place}: STS-B has {STSB_COLUMNS} columns or more, with tabs, not {len(fields)}")
        yield TableRow({"score": fields[4], "sentence1": fields[5], "sentence2": fields[6]}, place)

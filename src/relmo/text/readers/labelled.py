"""Texts and pairs of texts with labels: bracketed trees (SST), CoLA, a folder of texts per label (IMDB); STS-B; tables
with a header (SNLI, SICK), JSON lines."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from relmo.disk.files import is_file
from relmo.errors import CorpusError, quote
from relmo.text.corpus import Errors, is_conllu, numbered_lines, read_lines, require, require_examples, require_text
from relmo.text.readers.tables import TEXT, TableRow, get_value, is_csv, is_jsonl, is_word_list, json_rows, table_rows

TREE = re.compile(r"\s*(?:\(([^\s()]+)\s*|([^\s()]+)|(\)))")
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
COLA_COLUMNS = 4
SCORES = ("score", "relatedness_score", "similarity")  # before LABELS if numbers are read, otherwise after
LABELS = ("label", "gold_label", "entailment_judgment", "sentiment", "is_duplicate")
NAN = "nan"  # a missing value that was written as text: str(float("nan")), or pandas with na_rep="NaN"
FIRST = ("sentence1", "sentence_A", "premise", "first", "question1")
SECOND = ("sentence2", "sentence_B", "hypothesis", "second", "question2")
NO_LABEL = "-"  # pairs on which the annotators of SNLI did not agree
STSB_COLUMNS = 7

Split = Callable[[str], list[str]]
LabelledFormat = Literal["auto", "trees", "cola", "tsv", "jsonl", "folder"]
PairFormat = Literal["auto", "tsv", "stsb", "jsonl"]


class Labelled(NamedTuple):
    """Words of a text and its label."""

    words: list[str]
    label: str


class TextPair(NamedTuple):
    """Words of two texts, and their label or score."""

    first: list[str]
    second: list[str]
    label: str | float


@require_examples("text")
def read_labelled(
    path: str | Path,
    *,
    split: Split,
    layout: LabelledFormat = "auto",
    subtrees: bool = False,
    column: str | None = None,
    text_column: str | None = None,
    errors: Errors = "strict",
) -> Iterator[Labelled]:
    """Yield texts with a label each; with `subtrees`, every phrase of trees. `column` and `text_column` name those with
    the label and the text, if they are not in LABELS, SCORES and TEXT."""
    if is_conllu(path):
        raise CorpusError(f"{path}: CoNLL-U has tagged words, for relmo train tagger, not texts with labels")
    if layout == "auto":
        layout = labelled_format(path, errors)
    if (column is not None or text_column is not None) and layout not in ("tsv", "jsonl"):
        raise CorpusError(f"{path}: column has no effect for the format {layout}; omit it")
    if layout == "trees":
        for text, place in numbered_lines(path, errors, blank=False):
            phrases = parse_tree(text, place)
            yield from phrases if subtrees else phrases[-1:]
    elif layout == "folder":  # as the original IMDB reviews; `unsup` has no labels
        labels = sorted(folder for folder in Path(path).iterdir() if folder.is_dir() and folder.name != "unsup")
        if not labels:
            raise CorpusError(f"{path}: contains no folders; give a file, or a folder with one folder per label")
        for label in labels:
            for file in sorted(file for file in label.glob("*.txt") if is_file(file)):
                text = " ".join(line.text for line in read_lines(file, errors=errors))
                yield Labelled(_split_text(text, split, str(file)), label.name)
    elif layout == "cola":  # source, label, the author's mark, sentence
        for text, place in numbered_lines(path, errors, blank=False):
            fields = text.split("\t")
            problem = f"CoLA has {COLA_COLUMNS} columns separated by tabs, not {len(fields)}"
            require(len(fields) == COLA_COLUMNS, place, problem)
            yield Labelled(_split_text(fields[3], split, place), require_text(fields[1], "label", place))
    else:
        names = TEXT if text_column is None else (text_column,)
        for row in json_rows(path, errors) if layout == "jsonl" else table_rows(path, errors):
            words = _get_words(row, names, split, "name the one with the text with --text-column")
            yield Labelled(words, _get_label(row, column))


def labelled_format(path: str | Path, errors: Errors) -> LabelledFormat:
    """Recognize the format of a file of labelled texts."""
    if Path(path).is_dir():
        return "folder"
    if is_jsonl(path):
        return "jsonl"
    if is_csv(path):
        return "tsv"
    line, _ = next(numbered_lines(path, errors, blank=False), ("", ""))
    if re.match(r"\s*\(\S+\s", line):
        return "trees"
    fields = line.split("\t")
    has_names = bool(set(fields) & {*TEXT, *LABELS})
    return "cola" if not has_names and len(fields) == COLA_COLUMNS and fields[1].strip() in ("0", "1") else "tsv"


def parse_tree(text: str, place: str) -> list[Labelled]:
    """Parse a tree such as (3 (2 It) (4 works)) into phrases with labels, each after those within it."""
    phrases: list[Labelled] = []
    open_nodes: list[tuple[str, int]] = []  # label, first word
    words: list[str] = []
    position, done = 0, False
    text = text.rstrip()
    while position < len(text):
        match = TREE.match(text, position)
        if match is None or done:
            remainder = text[position : position + 20]
            raise CorpusError(f"{place}: invalid tree at column {position + 1}: '{remainder}'")
        label, word, _ = match.groups()
        if label is not None:
            open_nodes.append((label, len(words)))
        elif word is not None:
            words.append(ESCAPES.get(word, word.replace("\\/", "/").replace("\\*", "*")))
        elif open_nodes:
            label, start = open_nodes.pop()
            require(start < len(words), place, f"phrase without words at column {position + 1}")
            phrases.append(Labelled(words[start:], label))
        done = not open_nodes
        position = match.end()
    if open_nodes or not phrases:
        raise CorpusError(f"{place}: a bracket is not closed; a tree is on one line, such as (3 (2 It) (4 works))")
    return phrases


@require_examples("pair")
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
    `column` and `text_columns` name those with the label and the texts, if not in LABELS, SCORES, FIRST and SECOND."""
    if layout == "auto":
        line, _ = ("", "") if is_jsonl(path) else next(numbered_lines(path, errors, blank=False), ("", ""))
        fields = line.split("\t")
        is_stsb = len(fields) >= STSB_COLUMNS and re.fullmatch(r"[0-9.]+", fields[4]) is not None
        layout = "jsonl" if is_jsonl(path) else "stsb" if is_stsb else "tsv"
    if layout == "stsb":
        if not numbers or column is not None or text_columns:
            raise CorpusError(f"{path}: STS-B has scores and no column names; use --preset stsb without naming columns")
        rows = _stsb_rows(path, errors)
    else:
        rows = json_rows(path, errors) if layout == "jsonl" else table_rows(path, errors)
    names: list[tuple[str, ...]] = [(name,) for name in text_columns] or [FIRST, SECOND]
    for row in rows:
        label = _get_label(row, column, numbers)
        if label == NO_LABEL and not numbers:
            continue
        try:
            score = float(label) if numbers else 0.0
        except ValueError:
            score = float("nan")
        if not abs(score) < float("inf"):
            advice = "name the column with the scores with --column, or train a model of labels"
            raise CorpusError(f"{row.place}: {quote(label)} is not a number; {advice}")
        first, second = (_get_words(row, n, split, "name the two with the texts with --text-columns") for n in names)
        yield TextPair(first, second, score if numbers else label)


def _stsb_rows(path: str | Path, errors: Errors) -> Iterator[TableRow]:
    """Yield the rows of STS-B: genre, file, year, number, score, two sentences, and sometimes their sources."""
    for text, place in numbered_lines(path, errors, blank=False):
        fields = text.split("\t")
        if len(fields) < STSB_COLUMNS:
            raise CorpusError(f"{place}: STS-B has {STSB_COLUMNS} columns or more, with tabs, not {len(fields)}")
        yield TableRow({"score": fields[4], "sentence1": fields[5], "sentence2": fields[6]}, place)


def _get_words(row: TableRow, names: Sequence[str], split: Split, advice: str) -> list[str]:
    """Return the words of a text: a string is split, a list of words is used as is."""
    value = get_value(row, names, advice)
    if is_word_list(value):
        return list(value)
    if not isinstance(value, str):
        raise CorpusError(f"{row.place}: a text must be a string or a list of words, not {str(value)[:60]}")
    return _split_text(value, split, row.place)


def _split_text(text: str, split: Split, place: str) -> list[str]:
    words = split(text)
    require(words, place, "the text is empty; remove the line")
    return words


def _get_label(row: TableRow, column: str | None, numbers: bool = False) -> str:
    names = (*SCORES, *LABELS) if numbers else (*LABELS, *SCORES)
    advice = f"name the {row.called} with the labels with --column"
    value = get_value(row, names if column is None else (column,), advice)
    if isinstance(value, dict | list):
        raise CorpusError(f"{row.place}: a label must be a string or a number, not {str(value)[:60]}")
    label = "" if value is None else str(value)
    if label.strip().lower() == NAN:
        rename = "" if numbers else ", or rename the class if this is one"
        raise CorpusError(f"{row.place}: the label is missing ({label}); fill it in, or remove the example{rename}")
    return require_text(label, "label", row.place).strip()

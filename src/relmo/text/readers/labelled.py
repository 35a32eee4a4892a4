"""Labelled texts: bracketed trees (SST), CoLA, tables with a header, JSON lines, a folder of texts per label (IMDB)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from relmo.disk.files import is_file
from relmo.errors import CorpusError
from relmo.text.corpus import Errors, is_conllu, nonblank_lines, read_lines, require_examples, require_text
from relmo.text.readers.tables import (
    LABELS,
    TEXT,
    Split,
    get_label,
    get_words,
    is_csv,
    is_jsonl,
    json_rows,
    split_text,
    table_rows,
)

TREE = re.compile(r"\s*(?:\(([^\s()]+)\s*|([^\s()]+)|(\)))")
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
COLA_COLUMNS = 4
ADVICE = "name the one with the text with --text-column"

LabelledFormat = Literal["auto", "trees", "cola", "tsv", "jsonl", "folder"]


class Labelled(NamedTuple):
    """Words of a text and its label."""

    words: list[str]
    label: str


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
    """Yield texts with a label each.

    layout       "auto" recognizes the format by the name and the first line
    subtrees     for trees, every phrase with its label instead of sentences alone
    column       name of the column or key with the label, if it is not one of LABELS or SCORES
    text_column  name of the column or key with the text, if it is not one of TEXT
    """
    if is_conllu(path):
        raise CorpusError(
            f"{path}: CoNLL-U has tagged words, for relmo train tagger; a classifier needs texts with labels"
        )
    if layout == "auto":
        layout = labelled_format(path, errors)
    if (column is not None or text_column is not None) and layout not in ("tsv", "jsonl"):
        raise CorpusError(f"{path}: column has no effect for the format {layout}; omit it")
    if layout == "trees":
        examples = _read_trees(path, subtrees, errors)
    elif layout == "folder":
        examples = _read_folder(Path(path), split, errors)
    elif layout == "cola":
        examples = _read_cola(path, split, errors)
    else:
        rows = json_rows(path, errors) if layout == "jsonl" else table_rows(path, errors)
        texts = TEXT if text_column is None else (text_column,)
        examples = (Labelled(get_words(row, texts, split, ADVICE), get_label(row, column)) for row in rows)
    yield from require_examples(examples, path, "text")


def labelled_format(path: str | Path, errors: Errors) -> LabelledFormat:
    """Recognize the format of a file of labelled texts."""
    if Path(path).is_dir():
        return "folder"
    if is_jsonl(path):
        return "jsonl"
    if is_csv(path):
        return "tsv"
    line, _ = next(nonblank_lines(path, errors), ("", ""))
    if re.match(r"\s*\(\S+\s", line):
        return "trees"
    fields = line.split("\t")
    has_names = bool(set(fields) & {*TEXT, *LABELS})
    return "cola" if not has_names and len(fields) == COLA_COLUMNS and fields[1].strip() in ("0", "1") else "tsv"


def _read_cola(path: str | Path, split: Split, errors: Errors) -> Iterator[Labelled]:
    """Yield the examples of CoLA: source, label, the author's mark, sentence."""
    for text, place in nonblank_lines(path, errors):
        fields = text.split("\t")
        if len(fields) != COLA_COLUMNS:
            raise CorpusError(f"{place}: CoLA has {COLA_COLUMNS} columns separated by tabs, not {len(fields)}")
        yield Labelled(split_text(fields[3], split, place), require_text(fields[1], "label", place))


def _read_folder(folder: Path, split: Split, errors: Errors) -> Iterator[Labelled]:
    """Yield the texts of a folder per label, as the original IMDB reviews; `unsup` has no labels."""
    labels = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "unsup")
    if not labels:
        raise CorpusError(f"{folder}: contains no folders; give a file, or a folder with one folder per label")
    for label in labels:
        for file in sorted(file for file in label.glob("*.txt") if is_file(file)):
            text = " ".join(line.text for line in read_lines(file, errors=errors))
            yield Labelled(split_text(text, split, str(file)), label.name)


def _read_trees(path: str | Path, subtrees: bool, errors: Errors) -> Iterator[Labelled]:
    for text, place in nonblank_lines(path, errors):
        phrases = parse_tree(text, place)
        yield from phrases if subtrees else phrases[-1:]


def parse_tree(text: str, place: str) -> list[Labelled]:
    """Parse a tree such as (3 (2 It) (4 works)) into phrases with labels, each after those within it.

    Escapes of brackets and quotes are replaced.
    """
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
            if start == len(words):
                raise CorpusError(f"{place}: phrase without words at column {position + 1}")
            phrases.append(Labelled(words[start:], label))
        done = not open_nodes
        position = match.end()
    if open_nodes or not phrases:
        raise CorpusError(f"{place}: a bracket is not closed; a tree is on one line, such as (3 (2 It) (4 works))")
    return phrases

"""Texts with a label each: trees in brackets (SST); CoLA; a table with a header; JSON lines; a folder of texts for each
label (IMDB)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from relmo.disk.files import is_file
from relmo.errors import CorpusError
from relmo.text.corpus import Errors, is_conllu, read_lines
from relmo.text.readers.lines import filled, filled_lines, first_line, some
from relmo.text.readers.tables import (
    LABELS,
    TEXT,
    Split,
    is_csv,
    is_jsonl,
    json_rows,
    label_of,
    some_words,
    table_rows,
    words_of,
)

TREE = re.compile(r"\s*(?:\(([^\s()]+)\s*|([^\s()]+)|(\)))")
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
COLA_COLUMNS = 4
ADVICE = "say which has the text with --text-column"

LabelledFormat = Literal["auto", "trees", "cola", "tsv", "jsonl", "folder"]


class Labelled(NamedTuple):
    """A text's words and its label."""

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
    """Texts with a label each.

    layout       told by the name and the first line where it is "auto"
    subtrees     trees only: every phrase with its own label, not whole sentences alone
    column       the name of the column, or the key, with the label, where it is not one of LABELS or SCORES
    text_column  the same with the text, where it is not one of TEXT
    """
    if is_conllu(path):
        raise CorpusError(
            f"{path}: is CoNLL-U, words with tags, which relmo train tagger learns from; a classifier learns from "
            "texts with labels"
        )
    if layout == "auto":
        layout = labelled_format(path, errors)
    if (column is not None or text_column is not None) and layout not in ("tsv", "jsonl"):
        raise CorpusError(f"{path}: column has no meaning for the format {layout}; leave it out")
    if layout == "trees":
        found = _tree_examples(path, subtrees, errors)
    elif layout == "folder":
        found = _folder_examples(Path(path), split, errors)
    elif layout == "cola":
        found = _cola_examples(path, split, errors)
    else:
        rows = json_rows(path, errors) if layout == "jsonl" else table_rows(path, errors)
        texts = TEXT if text_column is None else (text_column,)
        found = (Labelled(words_of(row, texts, split, ADVICE), label_of(row, column)) for row in rows)
    yield from some(found, path, "text")


def labelled_format(path: str | Path, errors: Errors) -> LabelledFormat:
    """The format of a file of labelled texts."""
    if Path(path).is_dir():
        return "folder"
    if is_jsonl(path):
        return "jsonl"
    if is_csv(path):
        return "tsv"
    first = first_line(path, errors)
    if re.match(r"\s*\(\S+\s", first):
        return "trees"
    fields = first.split("\t")
    named = set(fields) & {*TEXT, *LABELS}
    return "cola" if not named and len(fields) == COLA_COLUMNS and fields[1].strip() in ("0", "1") else "tsv"


def _cola_examples(path: str | Path, split: Split, errors: Errors) -> Iterator[Labelled]:
    """CoLA: source, label, the author's mark, sentence."""
    for text, place in filled_lines(path, errors):
        fields = text.split("\t")
        if len(fields) != COLA_COLUMNS:
            raise CorpusError(f"{place}: CoLA has {COLA_COLUMNS} columns with tabs between them, not {len(fields)}")
        yield Labelled(some_words(fields[3], split, place), filled(fields[1], "label", place))


def _folder_examples(folder: Path, split: Split, errors: Errors) -> Iterator[Labelled]:
    """A folder for each label, with a text in each .txt file, as the original IMDB reviews; `unsup` has no labels."""
    labels = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "unsup")
    if not labels:
        raise CorpusError(
            f"{folder}: is a folder without folders; give a file, or a folder that has one for each label"
        )
    for label in labels:
        for file in sorted(file for file in label.glob("*.txt") if is_file(file)):
            text = " ".join(line.text for line in read_lines(file, errors=errors))
            yield Labelled(some_words(text, split, str(file)), label.name)


def _tree_examples(path: str | Path, subtrees: bool, errors: Errors) -> Iterator[Labelled]:
    """One tree a line: (3 (2 It) (4 works)). Phrases come in the order in which they end, the sentence last."""
    for text, place in filled_lines(path, errors):
        phrases = parse_tree(text, place)
        yield from phrases if subtrees else phrases[-1:]


def parse_tree(text: str, place: str) -> list[Labelled]:
    """All phrases of a tree with their labels, each after those within it; words without the escapes of such files."""
    phrases: list[Labelled] = []
    open_nodes: list[tuple[str, int]] = []  # label, first word
    words: list[str] = []
    position, done = 0, False
    text = text.rstrip()
    while position < len(text):
        found = TREE.match(text, position)
        if found is None or done:
            rest = text[position : position + 20]
            raise CorpusError(f"{place}: the tree is broken at column {position + 1}: '{rest}'")
        label, word, _ = found.groups()
        if label is not None:
            open_nodes.append((label, len(words)))
        elif word is not None:
            words.append(ESCAPES.get(word, word.replace("\\/", "/").replace("\\*", "*")))
        elif open_nodes:
            label, start = open_nodes.pop()
            if start == len(words):
                raise CorpusError(f"{place}: there is a phrase without words at column {position + 1}")
            phrases.append(Labelled(words[start:], label))
        done = not open_nodes
        position = found.end()
    if open_nodes or not phrases:
        raise CorpusError(f"{place}: a bracket is not closed; a tree is on one line, such as (3 (2 It) (4 works))")
    return phrases

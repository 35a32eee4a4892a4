"""Sentences of tagged words: CoNLL-U; columns (CoNLL, IOB2: a word per line, a blank line between sentences); JSON
lines."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from relmo.errors import CorpusError, quote
from relmo.text.corpus import (
    CONLLU,
    MAX_DIGITS,
    Errors,
    conllu_rows,
    is_conllu,
    numbered_lines,
    require_examples,
    require_text,
)
from relmo.text.readers.tables import get_value, is_csv, is_jsonl, is_word_list, json_rows
from relmo.text.treebank import PlacedText, SurfaceForm, place_words

WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags", "labels")
UNTAGGED, UNTAGGED_COLUMNS = "_", ("upos", "xpos", "deprel")  # in other columns _ is a value: in feats, no features
DOCUMENT = "-DOCSTART-"
RANGE = re.compile(rf"(\d{{1,{MAX_DIGITS}}})-(\d{{1,{MAX_DIGITS}}})")
COMMENT = re.compile(r"#\s*\S+(\s\w+)?\s=\s")  # as in Universal Dependencies

TaggedFormat = Literal["auto", "conllu", "columns", "jsonl"]


class TaggedWords(NamedTuple):
    """Words with a tag each, empty if the file leaves it unspecified; `raw` is the text with the offsets of the words,
    if the file has it."""

    words: list[str]
    tags: list[str]
    raw: PlacedText = PlacedText()


def read_tagged(
    path: str | Path, *, layout: TaggedFormat = "auto", column: str | None = None, errors: Errors = "strict"
) -> Iterator[TaggedWords]:
    """Yield sentences of words with their tags.

    layout   "auto" recognizes the format by the name: .conllu, .jsonl, otherwise columns
    column   column of the tags. CoNLL-U: a name such as upos (the default), xpos or deprel, or a number from 1.
             Columns: a number from 1; by default the last one, or the third if the first one counts the words.
             JSON lines: a key
    """
    if is_csv(path):
        raise CorpusError(f"{path}: is a table; a tagger needs CoNLL-U, lines of a word and its tag, or JSON lines")
    if layout == "auto":
        layout = "conllu" if is_conllu(path) else "jsonl" if is_jsonl(path) else "columns"
    if layout == "jsonl":
        sentences = _read_json(path, column, errors)
    elif layout == "conllu":
        sentences = _read_conllu(path, _find_conllu_column(path, column), errors)
    else:
        sentences = _read_columns(path, column, errors)
    yield from require_examples(sentences, path, "sentence")


def _find_conllu_column(path: str | Path, column: str | None) -> int:
    name = (column or "upos").lower()
    if name in CONLLU:
        return CONLLU.index(name)
    if name.isdecimal() and len(name) <= MAX_DIGITS and 1 <= int(name) <= len(CONLLU):
        return int(name) - 1
    raise CorpusError(
        f"{path}: CoNLL-U has no column {quote(column)}; it has {', '.join(CONLLU)}, or 1 to {len(CONLLU)}"
    )


def _read_conllu(path: str | Path, column: int, errors: Errors) -> Iterator[TaggedWords]:
    """Yield the sentences of CoNLL-U, without empty nodes (5.1). Ranges (3-4) give the surface forms."""
    for rows, text in conllu_rows(path, errors, separator=DOCUMENT):
        words: list[str] = []
        tags: list[str] = []
        forms: list[SurfaceForm] = []
        num_remaining = 0  # words of the current range
        for fields, place in rows:
            number, form, spaced = fields[0], fields[1], "SpaceAfter=No" not in fields[-1].split("|")
            if number.isdecimal():
                words.append(require_text(form, "word", place))
                tag = require_text(fields[column], "tag", place, f"write {UNTAGGED} if it is not specified").strip()
                tags.append("" if tag == UNTAGGED and CONLLU[column] in UNTAGGED_COLUMNS else tag)
                if num_remaining:
                    forms[-1].words.append(form)
                    num_remaining -= 1
                else:
                    forms.append(SurfaceForm(form, [form], spaced))
                continue
            if (match := RANGE.fullmatch(number)) and int(match[2]) >= int(match[1]):
                forms.append(SurfaceForm(form, [], spaced))
                num_remaining = int(match[2]) - int(match[1]) + 1
        if words:
            yield TaggedWords(words, tags, place_words(forms, text))


class ColumnLayout(NamedTuple):
    """Layout of a file of columns, which the line of its first word determines."""

    has_tabs: bool
    num_columns: int
    has_numbers: bool
    tag_column: int


def _read_columns(path: str | Path, column: str | None, errors: Errors) -> Iterator[TaggedWords]:
    """Yield the sentences of a file of columns, separated by tabs or otherwise by whitespace.

    A line that begins with # is a comment if the first column counts the words (IOB2 of Universal NER), if it has no
    tab in a file of tabs, or if it looks like a comment of Universal Dependencies. Lines with # before the first word
    wait until the layout is known. The mark of a document's start ends a sentence, like a blank line.
    """
    layout: ColumnLayout | None = None
    pending: list[tuple[str, str]] = []
    words: list[str] = []
    tags: list[str] = []
    for text, place in numbered_lines(path, errors):
        pending.append((text, place))
        may_be_comment = text.startswith("#") and ("\t" not in text or COMMENT.match(text) is not None)
        if layout is None and (_is_boundary(text) or may_be_comment):
            continue
        layout = layout or _infer_layout(text, column, place)
        for line, line_place in pending:
            if line.startswith("#") and not _is_boundary(line) and _is_comment(line, layout):
                continue
            word, tag = (DOCUMENT, "") if _is_boundary(line) else _parse_columns(line, layout, line_place)
            if word != DOCUMENT:
                words.append(word)
                tags.append(tag)
            elif words:
                yield TaggedWords(words, tags)
                words, tags = [], []
        pending.clear()
    if words:
        yield TaggedWords(words, tags)


def _is_boundary(line: str) -> bool:
    return not line.strip() or line.split()[0] == DOCUMENT


def _is_comment(line: str, layout: ColumnLayout) -> bool:
    return layout.has_numbers or (layout.has_tabs and "\t" not in line) or COMMENT.match(line) is not None


def _parse_columns(line: str, layout: ColumnLayout, place: str) -> tuple[str, str]:
    fields = line.split("\t") if layout.has_tabs else line.split()
    if len(fields) != layout.num_columns:
        count = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
        raise CorpusError(
            f"{place}: has {count}, the lines before have {layout.num_columns}; a line is a word and its tag, and an "
            "empty line ends a sentence"
        )
    word = require_text(fields[int(layout.has_numbers)], "word", place)
    return word, require_text(fields[layout.tag_column], "tag", place).strip()


def _infer_layout(line: str, column: str | None, place: str) -> ColumnLayout:
    has_tabs = "\t" in line
    fields = line.split("\t") if has_tabs else line.split()
    has_numbers = len(fields) > 2 and fields[0] == "1"
    if len(fields) < 2:
        raise CorpusError(f"{place}: expected a word and its tag, separated by a tab or a space; found '{line[:60]}'")
    tag_column = 2 if has_numbers else len(fields) - 1
    if column is not None:
        if not column.isdecimal() or len(column) > MAX_DIGITS or not 1 <= int(column) <= len(fields):
            raise CorpusError(f"{place}: there is no column {quote(column)}; give a number from 1 to {len(fields)}")
        tag_column = int(column) - 1
    return ColumnLayout(has_tabs, len(fields), has_numbers, tag_column)


def _read_json(path: str | Path, column: str | None, errors: Errors) -> Iterator[TaggedWords]:
    for row in json_rows(path, errors):
        words, tags = get_value(row, WORDS), get_value(row, TAGS if column is None else (column,))
        if not (is_word_list(words) and is_word_list(tags) and len(words) == len(tags)):
            raise CorpusError(f"{row.place}: expected as many tags as words, both lists of strings")
        if words:
            yield TaggedWords(words, tags)

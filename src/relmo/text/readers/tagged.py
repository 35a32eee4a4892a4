"""Sentences of words with a tag each: CoNLL-U; columns (CoNLL, IOB2: a word a line, a blank line between sentences);
JSON lines."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from relmo.errors import CorpusError, shown
from relmo.text.corpus import Errors, is_conllu
from relmo.text.readers.lines import DIGITS, filled, some, whole_lines
from relmo.text.readers.tables import is_csv, is_jsonl, is_words, json_rows, value_of
from relmo.text.treebank import PlacedText, SurfaceForm, place_words

WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags", "labels")
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
UNTAGGED, UNTAGGED_COLUMNS = "_", ("upos", "xpos", "deprel")  # elsewhere _ is a value: in feats, no features
DOCUMENT = "-DOCSTART-"
COMMENT = re.compile(r"#\s*\S+(\s\w+)?\s=\s")  # as those of Universal Dependencies

TaggedFormat = Literal["auto", "conllu", "columns", "jsonl"]


class TaggedWords(NamedTuple):
    """Words and a tag for each, empty if the file leaves it unspecified; where the file tells it, the text and where in
    it the words stand."""

    words: list[str]
    tags: list[str]
    raw: PlacedText = PlacedText()


def read_tagged(
    path: str | Path, *, layout: TaggedFormat = "auto", column: str | None = None, errors: Errors = "strict"
) -> Iterator[TaggedWords]:
    """Sentences of words with their tags.

    layout   told by the name where it is "auto": .conllu, .jsonl, columns otherwise
    column   where the tags are. CoNLL-U: a name such as upos (where not given), xpos or deprel, or a number from 1 on.
             Columns: a number from 1 on; the last one where not given, or the third where the first one counts the
             words. JSON lines: a key
    """
    if is_csv(path):
        raise CorpusError(
            f"{path}: is a table; a tagger learns from CoNLL-U, from lines of a word and its tag, or from JSON lines"
        )
    if layout == "auto":
        layout = "conllu" if is_conllu(path) else "jsonl" if is_jsonl(path) else "columns"
    if layout == "jsonl":
        found = _tagged_json(path, column, errors)
    elif layout == "conllu":
        found = _conllu_sentences(path, _conllu_column(path, column), errors)
    else:
        found = sentences(_column_words(path, column, errors))
    yield from some(found, path, "sentence")


class Word(NamedTuple):
    """A word, its tag."""

    text: str
    tag: str


def sentences(words: Iterator[Word | None]) -> Iterator[TaggedWords]:
    """Sentences from words with None between sentences. The mark of a document's start is no word: a sentence ends
    before it, and what follows belongs to the next, with or without an empty line between."""
    sentence: list[Word] = []
    for word in chain(words, [None]):
        if word is not None and word.text != DOCUMENT:
            sentence.append(word)
        elif sentence:
            yield TaggedWords([each.text for each in sentence], [each.tag for each in sentence])
            sentence = []


def _conllu_column(path: str | Path, column: str | None) -> int:
    """The place of a column of CoNLL-U, from 0."""
    name = (column or "upos").lower()
    if name in CONLLU:
        return CONLLU.index(name)
    if name.isdecimal() and len(name) < DIGITS and 1 <= int(name) <= len(CONLLU):
        return int(name) - 1
    raise CorpusError(
        f"{path}: CoNLL-U has no column {shown(column)}; it has {', '.join(CONLLU)}, or 1 to {len(CONLLU)}"
    )


def _conllu_sentences(path: str | Path, column: int, errors: Errors) -> Iterator[TaggedWords]:
    """The sentences of a CoNLL-U file, without empty nodes (5.1). Ranges (3-4) tell how words stand in the text."""
    rows: list[tuple[list[str], str]] = []
    text: str | None = None
    for line, place in chain(whole_lines(path, errors), [("", "")]):
        if line.startswith("#"):
            name, _, value = line[1:].partition("=")
            text = value.strip() if name.strip() == "text" else text
        elif line.strip():
            fields = line.split("\t")
            if len(fields) != len(CONLLU):
                raise CorpusError(f"{place}: CoNLL-U has {len(CONLLU)} columns with tabs between, not {len(fields)}")
            if fields[1] != DOCUMENT:
                rows.append((fields, place))
                continue
        if rows and not line.startswith("#"):
            if found := _conllu_sentence(rows, column, text):
                yield found
            rows, text = [], None


def _conllu_sentence(rows: Sequence[tuple[list[str], str]], column: int, text: str | None) -> TaggedWords | None:
    """A sentence by the fields of its lines; None where it has no word."""
    words: list[str] = []
    tags: list[str] = []
    forms: list[SurfaceForm] = []
    left = 0  # words of a range that are still to come
    for fields, place in rows:
        number, form, spaced = fields[0], fields[1], "SpaceAfter=No" not in fields[-1].split("|")
        if number.isdecimal():
            words.append(filled(form, "word", place))
            tag = filled(fields[column], "tag", place, f"write {UNTAGGED} if it is not specified").strip()
            tags.append("" if tag == UNTAGGED and CONLLU[column] in UNTAGGED_COLUMNS else tag)
            if left:
                forms[-1].words.append(form)
                left -= 1
            else:
                forms.append(SurfaceForm(form, [form], spaced))
        elif size := _range_size(number):
            forms.append(SurfaceForm(form, [], spaced))
            left = size
    return TaggedWords(words, tags, place_words(forms, text)) if words else None


def _range_size(number: str) -> int:
    """How many words a range such as 3-4 has; 0 where it is none."""
    first, _, last = number.partition("-")
    if not (first.isdecimal() and last.isdecimal() and max(len(first), len(last)) < DIGITS):
        return 0
    return max(int(last) - int(first) + 1, 0)


def _column_words(path: str | Path, column: str | None, errors: Errors) -> Iterator[Word | None]:
    """The words of a file of columns, with tabs or else white space between them; None after each sentence.

    Where the first column counts the words (IOB2 of Universal NER), a line that begins with # is a comment; where it
    does not but tabs are between columns, one that begins with # and has none is; and in every file one that looks as
    those of Universal Dependencies do. Lines with # that come before the layout is known wait for it."""
    shape: ColumnLayout | None = None
    waiting: list[tuple[str, str]] = []
    for text, place in whole_lines(path, errors):
        waiting.append((text, place))
        if shape is None and (not text.strip() or text.split()[0] == DOCUMENT or _may_be_comment(text)):
            continue
        shape = shape or _column_layout(text, column, place)
        for line, its_place in waiting:
            if not line.strip() or line.split()[0] == DOCUMENT:
                yield None
            elif not (line.startswith("#") and _is_comment(line, shape)):
                yield _column_word(line, shape, its_place)
        waiting.clear()


def _column_word(text: str, shape: "ColumnLayout", place: str) -> Word:
    """The word of a line of columns."""
    fields = text.split("\t") if shape.tabs else text.split()
    if len(fields) != shape.columns:
        raise CorpusError(
            f"{place}: has {_columns(len(fields))}, the lines before have {shape.columns}; a line is a word and its "
            "tag, and an empty line ends a sentence"
        )
    return Word(filled(fields[int(shape.counted)], "word", place), filled(fields[shape.tag], "tag", place).strip())


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _may_be_comment(text: str) -> bool:
    """Whether a line of a file whose layout is not known yet begins with # and may be a comment."""
    return text.startswith("#") and ("\t" not in text or COMMENT.match(text) is not None)


def _is_comment(text: str, shape: "ColumnLayout") -> bool:
    """Whether a line that begins with # is a comment in a file of this layout."""
    return shape.counted or (shape.tabs and "\t" not in text) or COMMENT.match(text) is not None


class ColumnLayout(NamedTuple):
    """How a file of columns is laid out: told by its first word's line."""

    tabs: bool
    columns: int
    counted: bool
    tag: int


def _column_layout(text: str, column: str | None, place: str) -> ColumnLayout:
    """The layout of a file whose first word has this line."""
    tabs = "\t" in text
    fields = text.split("\t") if tabs else text.split()
    counted = len(fields) > 2 and fields[0] == "1"
    if len(fields) < 2:
        raise CorpusError(f"{place}: expected a word and its tag with a tab or a space between, found '{text[:60]}'")
    tag = 2 if counted else len(fields) - 1
    if column is not None:
        if not column.isdecimal() or len(column) >= DIGITS or not 1 <= int(column) <= len(fields):
            raise CorpusError(f"{place}: there is no column {shown(column)}; give a number from 1 to {len(fields)}")
        tag = int(column) - 1
    return ColumnLayout(tabs, len(fields), counted, tag)


def _tagged_json(path: str | Path, column: str | None, errors: Errors) -> Iterator[TaggedWords]:
    """Lines of JSON with a list of words and a list of tags."""
    for row in json_rows(path, errors):
        words, tags = value_of(row, WORDS), value_of(row, TAGS if column is None else (column,))
        if not (is_words(words) and is_words(tags) and len(words) == len(tags)):
            raise CorpusError(f"{row.place}: expected as many tags as words, both lists of strings")
        if words:
            yield TaggedWords(words, tags)

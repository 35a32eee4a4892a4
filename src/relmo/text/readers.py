"""Examples of tasks from the files of the field, checked as they are read; every error says file and line.

    tagged words     CoNLL-U; columns (CoNLL, IOB2: a word a line, a blank line between sentences); JSON lines
    labelled texts   trees in brackets (SST); CoLA; a table with a header; JSON lines; a folder of texts for each label
    pairs            SNLI, SICK and other tables with a header; STS-B; JSON lines

A table has tabs between its columns and names in its first line; quotes mean nothing in it. The columns and keys that
are looked for are in TEXT, FIRST, SECOND, LABELS, SCORES, WORDS and TAGS. Raw text is split by the function that is
given; CoNLL files, trees and lists of words in JSON are split already.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from relmo.disk.files import is_file, parse_json
from relmo.errors import CorpusError, shown
from relmo.text.corpus import Errors, Line, is_conllu, read_blocks, read_lines
from relmo.text.vocabulary import SURROGATE

TEXT = ("text", "sentence", "review")
FIRST = ("sentence1", "sentence_A", "premise", "first", "question1")
SECOND = ("sentence2", "sentence_B", "hypothesis", "second", "question2")
SCORES = ("score", "relatedness_score", "similarity")  # before LABELS where numbers are wanted, otherwise after
LABELS = ("label", "gold_label", "entailment_judgment", "sentiment", "is_duplicate")
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags", "labels")
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DOCUMENT = "-DOCSTART-"
NO_LABEL = ("-", "")  # pairs on which the annotators of SNLI did not agree
COMMENT = re.compile(r"#\s*\S+(\s\w+)?\s=\s")  # as those of Universal Dependencies
TREE = re.compile(r"\s*(?:\(([^\s()]+)\s*|([^\s()]+)|(\)))")
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
COLA_COLUMNS, STSB_COLUMNS = 4, 7
DIGITS = 16  # that no number of a column, a word or a line has; Python refuses to read thousands of them

TaggedFormat = Literal["auto", "conllu", "columns", "jsonl"]
LabelledFormat = Literal["auto", "trees", "cola", "tsv", "jsonl", "folder"]
PairFormat = Literal["auto", "tsv", "stsb", "jsonl"]
Split = Callable[[str], list[str]]


class Tagged(NamedTuple):
    """Words and a tag for each."""

    words: list[str]
    tags: list[str]


class Labelled(NamedTuple):
    """A text's words and its label."""

    words: list[str]
    label: str


class Pair(NamedTuple):
    """Two texts and what holds between them: a label, or a number."""

    first: list[str]
    second: list[str]
    label: str | float


class Row(NamedTuple):
    """A line of a table or of JSON by its names, and where it stands."""

    values: Mapping[str, Any]
    place: str


def read_tagged(
    path: str | Path, *, layout: TaggedFormat = "auto", column: str | None = None, errors: Errors = "strict"
) -> Iterator[Tagged]:
    """Sentences of words with their tags.

    layout   told by the name where it is "auto": .conllu, .jsonl, columns otherwise
    column   where the tags are. CoNLL-U: a name such as upos (where not given), xpos or deprel, or a number from 1 on.
             Columns: a number from 1 on; the last one where not given, or the third where the first one counts the
             words. JSON lines: a key
    """
    if layout == "auto":
        layout = "conllu" if is_conllu(path) else "jsonl" if _is_jsonl(path) else "columns"
    if layout == "jsonl":
        found = _tagged_json(path, column, errors)
    elif layout == "conllu":
        found = sentences(_conllu_words(path, _conllu_column(path, column), errors))
    else:
        found = sentences(_column_words(path, column, errors))
    yield from some(found, path, "sentence")


def read_labelled(
    path: str | Path,
    *,
    split: Split,
    layout: LabelledFormat = "auto",
    subtrees: bool = False,
    column: str | None = None,
    errors: Errors = "strict",
) -> Iterator[Labelled]:
    """Texts with a label each.

    layout     told by the name and the first line where it is "auto"
    subtrees   trees only: every phrase with its own label, not whole sentences alone
    column     the name of the column, or the key, with the label, where it is not one of LABELS or SCORES
    """
    if layout == "auto":
        layout = labelled_format(path, errors)
    if column is not None and layout not in ("tsv", "jsonl"):
        raise CorpusError(f"{path}: column has no meaning for the format {layout}; leave it out")
    if layout == "trees":
        found = _tree_examples(path, subtrees, errors)
    elif layout == "folder":
        found = _folder_examples(Path(path), split, errors)
    elif layout == "cola":
        found = _cola_examples(path, split, errors)
    else:
        rows = _json_rows(path, errors) if layout == "jsonl" else _table_rows(path, errors)
        found = (
            Labelled(_words_of(row, TEXT, split), _filled(_label_of(row, column), "label", row.place)) for row in rows
        )
    yield from some(found, path, "text")


def read_pairs(
    path: str | Path,
    *,
    split: Split,
    layout: PairFormat = "auto",
    column: str | None = None,
    numbers: bool = False,
    errors: Errors = "strict",
) -> Iterator[Pair]:
    """Pairs of texts with a label each, or, with `numbers`, a number. SNLI's pairs without a label are left out.

    layout   told by the name and the first line where it is "auto"
    column   the name of the column, or the key, with the label, where it is not one of LABELS or SCORES
    """
    if layout == "auto":
        layout = "jsonl" if _is_jsonl(path) else "stsb" if _looks_like_stsb(path, errors) else "tsv"
    if layout == "stsb":
        if not numbers or column is not None:
            raise CorpusError(f"{path}: is STS-B, which has scores; compare with --preset stsb, and without --column")
        rows = _stsb_rows(path, errors)
    else:
        rows = _json_rows(path, errors) if layout == "jsonl" else _table_rows(path, errors)
    yield from some(_pair_examples(rows, split, column, numbers), path, "pair")


def some(examples: Iterator[Any], path: str | Path, what: str) -> Iterator[Any]:
    """The examples; none at all is an error."""
    empty = True
    for example in examples:
        empty = False
        yield example
    if empty:
        raise CorpusError(f"{path}: there is no {what} in it; give a file with examples")


def _is_jsonl(path: str | Path) -> bool:
    """Whether the name says JSON lines: .jsonl, compressed or not."""
    return re.search(r"\.(jsonl|ndjson)(\.gz|\.xz|\.zst)?$", str(path), re.IGNORECASE) is not None


def whole_lines(path: str | Path, errors: Errors) -> Iterator[tuple[str, str]]:
    """Each line with its place, pieces of a very long one put together."""
    return chain.from_iterable(blocks_of_lines(path, errors))


def blocks_of_lines(path: str | Path, errors: Errors) -> Iterator[Iterator[tuple[str, str]]]:
    """The same, those together that were read at once, as `read_blocks` gives them."""
    parts: list[str] = []
    number = 1

    def whole(lines: Iterable[Line]) -> Iterator[tuple[str, str]]:
        nonlocal number
        for line in lines:
            parts.append(line.text)
            if line.ended:
                yield "".join(parts), f"{path}:{number}"
                parts.clear()
                number += 1

    yield from map(whole, read_blocks(path, errors=errors))
    if parts:
        yield iter([("".join(parts), f"{path}:{number}")])


def filled_lines(path: str | Path, errors: Errors) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, with their places."""
    return ((text, place) for text, place in whole_lines(path, errors) if text.strip())


def _first_line(path: str | Path, errors: Errors) -> str:
    """The first line of a file that is not blank; nothing where there is none."""
    return next(filled_lines(path, errors), ("", ""))[0]


class Word(NamedTuple):
    """A word, its tag."""

    text: str
    tag: str


def sentences(words: Iterator[Word | None]) -> Iterator[Tagged]:
    """Sentences from words with None between sentences. The mark of a document's start is no word: a sentence ends
    before it, and what follows belongs to the next, with or without an empty line between."""
    sentence: list[Word] = []
    for word in chain(words, [None]):
        if word is not None and word.text != DOCUMENT:
            sentence.append(word)
        elif sentence:
            yield Tagged([each.text for each in sentence], [each.tag for each in sentence])
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


def _conllu_words(path: str | Path, column: int, errors: Errors) -> Iterator[Word | None]:
    """The words of a CoNLL-U file, without ranges (3-4) and empty nodes (5.1); None after each sentence."""
    for text, place in whole_lines(path, errors):
        if not text.strip():
            yield None
        elif not text.startswith("#"):
            fields = text.split("\t")
            if len(fields) != len(CONLLU):
                raise CorpusError(f"{place}: CoNLL-U has {len(CONLLU)} columns with tabs between, not {len(fields)}")
            if fields[0].isdecimal():
                yield Word(_filled(fields[1], "word", place), _filled(fields[column], "tag", place).strip())


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
        raise CorpusError(f"{place}: has {len(fields)} columns where the lines before have {shape.columns}")
    return Word(_filled(fields[int(shape.counted)], "word", place), _filled(fields[shape.tag], "tag", place).strip())


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


def _filled(text: str, what: str, place: str) -> str:
    """A field that must not be empty."""
    if not text.strip():
        raise CorpusError(f"{place}: the {what} is empty; write _ where there is none")
    return text


def _tagged_json(path: str | Path, column: str | None, errors: Errors) -> Iterator[Tagged]:
    """Lines of JSON with a list of words and a list of tags."""
    for row in _json_rows(path, errors):
        words, tags = _value_of(row, WORDS), _value_of(row, TAGS if column is None else (column,))
        if not (_is_words(words) and _is_words(tags) and len(words) == len(tags)):
            raise CorpusError(f"{row.place}: expected as many tags as words, both lists of strings")
        if words:
            yield Tagged(words, tags)


def _is_words(value: Any) -> bool:
    """Whether a value is a list of strings with something in them."""
    return isinstance(value, list) and all(isinstance(word, str) and word.strip() for word in value)


def _json_rows(path: str | Path, errors: Errors) -> Iterator[Row]:
    """The objects of a file with one on each line."""
    for text, place in filled_lines(path, errors):
        try:
            value = parse_json(text)
        except ValueError as error:
            raise CorpusError(f"{place}: is not a JSON object on a line of its own ({error})") from error
        if not isinstance(value, dict):
            raise CorpusError(f"{place}: expected a JSON object, found {text[:60]}")
        if "\\u" in text and SURROGATE.search(json.dumps(value, ensure_ascii=False)):
            raise CorpusError(f"{place}: has half of a character, such as \\ud83d alone; write the whole of it")
        yield Row(value, place)


def _table_rows(path: str | Path, errors: Errors) -> Iterator[Row]:
    """The lines of a table, by the names in its first line; further columns without a name are passed over."""
    names: list[str] | None = None
    for text, place in filled_lines(path, errors):
        fields = text.split("\t")
        if names is None:
            names = [name.strip() for name in fields]
            if len(names) < 2:
                raise CorpusError(f"{place}: expected the names of columns with tabs between them, found '{text[:60]}'")
            continue
        if len(fields) < len(names):
            raise CorpusError(f"{place}: has {len(fields)} columns, the first line has {len(names)}")
        yield Row(dict(zip(names, fields, strict=False)), place)


def _value_of(row: Row, names: Sequence[str], advice: str = "name it so") -> Any:
    """The value under the first of these names that is there; where none is, advice."""
    for name in names:
        if name in row.values:
            return row.values[name]
    there = ", ".join(map(str, list(row.values)[:12]))
    raise CorpusError(f"{row.place}: there is no {' or '.join(names)}; there is {there}; {advice}")


def _words_of(row: Row, names: Sequence[str], split: Split) -> list[str]:
    """A text, split into words, or a list of words as it is."""
    value = _value_of(row, names)
    if _is_words(value):
        return list(value)
    if not isinstance(value, str):
        raise CorpusError(f"{row.place}: a text is a string or a list of words, not {str(value)[:60]}")
    return _some_words(value, split, row.place)


def _some_words(text: str, split: Split, place: str) -> list[str]:
    """The words of a text that must have some."""
    words = split(text)
    if not words:
        raise CorpusError(f"{place}: the text is empty; remove the line")
    return words


def _label_of(row: Row, column: str | None, numbers: bool = False) -> str:
    """A label as a string, whatever JSON has."""
    names = (*SCORES, *LABELS) if numbers else (*LABELS, *SCORES)
    value = _value_of(row, names if column is None else (column,), "give the column of labels with --column")
    if isinstance(value, dict | list) or value is None:
        raise CorpusError(f"{row.place}: a label is a word or a number, not {str(value)[:60]}")
    return str(value).strip()


def _pair_examples(rows: Iterator[Row], split: Split, column: str | None, numbers: bool) -> Iterator[Pair]:
    for row in rows:
        label: str | float = _label_of(row, column, numbers)
        if label in NO_LABEL and not numbers:
            continue
        if numbers:
            label = _number_of(str(label), row.place)
        yield Pair(_words_of(row, FIRST, split), _words_of(row, SECOND, split), label)


def _number_of(text: str, place: str) -> float:
    """A label that must be a finite number."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) < float("inf"):
        raise CorpusError(
            f"{place}: {shown(text)} is not a number; give the column with the scores, or compare by labels"
        )
    return number


def labelled_format(path: str | Path, errors: Errors) -> LabelledFormat:
    """The format of a file of labelled texts."""
    if Path(path).is_dir():
        return "folder"
    if _is_jsonl(path):
        return "jsonl"
    first = _first_line(path, errors)
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
        yield Labelled(_some_words(fields[3], split, place), _filled(fields[1], "label", place))


def _looks_like_stsb(path: str | Path, errors: Errors) -> bool:
    """Whether the first line is a pair of STS-B, which has no names of columns."""
    fields = _first_line(path, errors).split("\t")
    return len(fields) >= STSB_COLUMNS and re.fullmatch(r"[0-9.]+", fields[4]) is not None


def _stsb_rows(path: str | Path, errors: Errors) -> Iterator[Row]:
    """STS-B: genre, file, year, number, score, two sentences, and sometimes their sources."""
    for text, place in filled_lines(path, errors):
        fields = text.split("\t")
        if len(fields) < STSB_COLUMNS:
            raise CorpusError(f"{place}: STS-B has {STSB_COLUMNS} columns or more with tabs between, not {len(fields)}")
        yield Row({"score": fields[4], "sentence1": fields[5], "sentence2": fields[6]}, place)


def _folder_examples(folder: Path, split: Split, errors: Errors) -> Iterator[Labelled]:
    """A folder for each label, with a text in each .txt file, as the original IMDB reviews; `unsup` has no labels."""
    labels = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "unsup")
    for label in labels:
        for file in sorted(file for file in label.glob("*.txt") if is_file(file)):
            text = " ".join(line.text for line in read_lines(file, errors=errors))
            yield Labelled(_some_words(text, split, str(file)), label.name)


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

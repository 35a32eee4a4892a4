"""Sentences with semantic roles: JSON lines; CoNLL-2012 and PropBank, whose third column counts the words from 0 and
whose last columns are the brackets of each predicate, (ARG0* * *) (V*); CoNLL-2005, with the word first, and predicates
(- for other words) in the column before the brackets."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from relmo.errors import CorpusError
from relmo.text.corpus import Errors, numbered_lines, require, require_examples
from relmo.text.readers.tables import TableRow, get_value, is_jsonl, is_word_list, json_rows
from relmo.text.readers.tagged import DOCUMENT, OUTSIDE, WORDS, bio, is_span_tag

PLACE, FRAMES, TAGS = ("verb_index", "predicate"), ("frames",), ("tags", "roles")
AUXILIARIES = ("be.03", "do.01", "have.01")
VERB = "V"
BEGIN_VERB = f"B-{VERB}"
MAX_WORDS = 1000  # of a sentence: time and memory grow with words times predicates
NO_PREDICATE = ("-", "_")
BRACKETS = re.compile(r"(?:\(([^()*\s]+))?\*(\))?")  # optional begin, the word, optional end
NUMBERED, CONLL_2012 = 8, 12  # number of columns without those of the predicates

RoleFormat = Literal["auto", "jsonl", "columns"]


class Proposition(NamedTuple):
    """Predicate: the index of its word, the BIO tags of all words, and whether it is a verb, if known."""

    place: int
    tags: list[str]
    verb: bool | None = None


class RoleSentence(NamedTuple):
    """Words and their predicates; None if the predicates are unknown."""

    words: list[str]
    propositions: list[Proposition] | None


@require_examples("sentence")
def read_roles(path: str | Path, *, layout: RoleFormat = "auto", errors: Errors = "strict") -> Iterator[RoleSentence]:
    """Yield sentences with their predicates. `layout` "auto" reads .jsonl as JSON lines, other files as columns."""
    if is_jsonl(path) if layout == "auto" else layout == "jsonl":
        for row in json_rows(path, errors):
            words, frames = get_value(row, WORDS), get_value(row, FRAMES)
            require(is_word_list(words), row.place, "the words must be a list of strings")
            require(isinstance(frames, list), row.place, "the frames must be a list, one for each predicate")
            pos: Any = row.values.get("pos") or [None] * len(words)
            are_matched = isinstance(pos, list) and len(pos) == len(words)
            require(are_matched, row.place, "expected as many parts of speech as words")
            if not words:
                continue
            check_length(words, row.place)
            propositions = []
            for frame in frames:
                problem = f"a frame must be an object ({PLACE[0]}, {TAGS[0]}), not {str(frame)[:60]}"
                require(isinstance(frame, dict), row.place, problem)
                frame_row = TableRow(frame, row.place, "key")
                index, tags = get_value(frame_row, PLACE), get_value(frame_row, TAGS)
                problem = f"{PLACE[0]} must be an index from 0 to {len(words) - 1}, not {str(index)[:60]}"
                require(type(index) is int and 0 <= index < len(words), row.place, problem)
                predicate = f"predicate '{words[index][:40]}'"
                are_matched = is_word_list(tags) and len(tags) == len(words)
                require(are_matched, row.place, f"expected as many tags as words for the {predicate}")
                place, sense = f"{row.place}, {predicate}", frame.get("frame")
                propositions.append(_make_proposition(index, tags, pos=pos[index], frame=sense, place=place))
            yield RoleSentence(words, propositions)
        return
    rows: list[list[str]] = []
    start_place = ""
    for text, place in numbered_lines(path, errors):
        fields = text.split()
        if fields and not fields[0].startswith(("#begin", "#end", DOCUMENT)):
            start_place = start_place or place
            rows.append(fields)
            if len(fields) != len(rows[0]):
                advice = "expected a word per line, with a column of brackets for each predicate"
                counts = f"{len(fields)} columns where the lines before have {len(rows[0])}"
                raise CorpusError(f"{place}: has {counts}; {advice}")
        elif rows:
            yield _parse_columns(rows, start_place)
            rows, start_place = [], ""
    if rows:
        yield _parse_columns(rows, start_place)


def check_length(words: Sequence[str], place: str = "") -> None:
    """Raise `CorpusError` if a sentence is too long."""
    if len(words) > MAX_WORDS:
        prefix = f"{place}: " if place else ""
        raise CorpusError(f"{prefix}the sentence has {len(words):,} words, more than {MAX_WORDS:,}; split it")


def _make_proposition(index: int, tags: list[str], *, pos: Any, frame: Any, place: str) -> Proposition:
    for tag in tags:
        if not is_span_tag(tag):
            raise CorpusError(f"{place}: '{tag[:40]}' is not a tag of a span, such as B-ARG0, I-ARG0 or O")
    tags = bio(tags)
    if tags[index] == OUTSIDE:
        tags[index] = BEGIN_VERB
    role = tags[index][2:]
    require(role == VERB, place, f"has the role {role[:40]} for itself; expected {BEGIN_VERB} or O")
    verb = pos.startswith("V") and frame not in AUXILIARIES if isinstance(pos, str) else None
    return Proposition(index, tags, verb)


def _parse_columns(rows: list[list[str]], place: str) -> RoleSentence:
    columns = list(zip(*rows, strict=True))
    check_length(columns[0], place)
    counts = [sum(mark not in NO_PREDICATE for mark in column) for column in columns]
    pos: Sequence[str]
    if len(columns) >= NUMBERED and list(columns[2]) == [str(number) for number in range(len(rows))]:
        words, pos, marks = columns[3], columns[4], columns[7]
        starts = {NUMBERED + counts[7]: NUMBERED, CONLL_2012 + counts[7]: CONLL_2012 - 1}
        if len(columns) not in starts:
            expected = f"{NUMBERED + counts[7]} (PropBank) or {CONLL_2012 + counts[7]} (CoNLL-2012)"
            reason = f"with {counts[7]} predicates in the eighth there should be {expected}"
            raise CorpusError(f"{place}: has {len(columns)} columns; {reason}")
        start = starts[len(columns)]
    else:  # the column of predicates is the last one with as many predicates as columns after it
        ends = (number + 1 for number in range(len(columns) - 1, 0, -1) if counts[number] == len(columns) - number - 1)
        start = next(ends, 0)
        if not start:
            expected = "a word, its predicate or -, and (ARG0* *) (V*) for each predicate"
            raise CorpusError(f"{place}: no column of predicates has as many columns of brackets; expected {expected}")
        words, marks, pos = columns[0], columns[start - 1], columns[1] if start > 2 else ()
    predicates = [number for number, mark in enumerate(marks) if mark not in NO_PREDICATE]
    propositions = []
    for number, column in zip(predicates, columns[start:], strict=False):  # CoNLL-2012 has one more, of coreference
        tags, label = [], None  # (ARG0* *) (V*) * becomes B-ARG0 I-ARG0 B-V O
        for field in column:
            match = BRACKETS.fullmatch(field)
            if match is None or (match[1] and label) or (match[2] and not (match[1] or label)):
                raise CorpusError(f"{place}: unbalanced brackets, such as (ARG0* and *): '{field[:40]}'")
            label = match[1] or label
            tags.append(f"{'B' if match[1] else 'I'}-{label}" if label else OUTSIDE)
            label = None if match[2] else label
        if label:
            raise CorpusError(f"{place}: a bracket ({label[:40]}* is not closed")
        # a predicate of two words is marked at both, and has two identical columns
        index = tags.index(BEGIN_VERB) if BEGIN_VERB in tags else number
        predicate_place = f"{place}, predicate '{words[number][:40]}'"
        word_pos = pos[index] if pos else None
        propositions.append(_make_proposition(index, tags, pos=word_pos, frame=marks[number], place=predicate_place))
    return RoleSentence(list(words), propositions)


def as_brackets(tags: Sequence[str]) -> list[str]:
    """Convert B-ARG0 I-ARG0 B-V O to (ARG0* *) (V*) *."""
    brackets = []
    for tag, following in zip(tags, [*tags[1:], OUTSIDE], strict=False):
        begin = f"({tag[2:]}" if tag[:1] == "B" else ""
        end = ")" if tag != OUTSIDE and following[:1] != "I" else ""
        brackets.append(f"{begin}*{end}")
    return brackets

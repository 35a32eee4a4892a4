"""Sentences with predicates and the roles that words play for them: JSON lines; columns with a word a line.

JSON lines     {"words": […], "pos": […], "frames": [{"verb_index": 1, "frame": "get.01", "tags": ["B-ARG0", …]}]}
columns        a blank line between sentences, a column of brackets for each predicate: (ARG0* * *) (V*)
  numbered       as CoNLL-2012 and PropBank's own releases have them: the third column counts the words from 0 on
  CoNLL-2005     the word first, the predicates in the column before the brackets, - for words that are none

Parts of speech and frames are optional. They tell verbs from other predicates, and auxiliaries from other verbs.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from relmo.errors import CorpusError
from relmo.text.corpus import Errors
from relmo.text.readers.lines import some, whole_lines
from relmo.text.readers.tables import TableRow, is_jsonl, is_words, json_rows, value_of
from relmo.text.readers.tagged import DOCUMENT, WORDS
from relmo.text.tags import OUTSIDE, bio, is_span_tag

PLACE, FRAMES, TAGS = ("verb_index", "predicate"), ("frames",), ("tags", "roles")
AUXILIARIES = ("be.03", "do.01", "have.01")
VERB = "V"
BEGIN_VERB = f"B-{VERB}"
LONGEST = 1000  # words of a sentence: time and memory grow with the words times the predicates
NONE = ("-", "_")
BRACKETS = re.compile(r"(?:\(([^()*\s]+))?\*(\))?")  # one begins, the word, it ends
NUMBERED, CONLL_2012 = 8, 12  # columns beside those of the predicates

RoleFormat = Literal["auto", "jsonl", "columns"]


class Proposition(NamedTuple):
    """A predicate: the number of its word, the tags of all words in BIO, and whether it is a verb, where that is
    known."""

    place: int
    tags: list[str]
    verb: bool | None = None


class RoleSentence(NamedTuple):
    """Words and their predicates; None where nobody has said which they are."""

    words: list[str]
    propositions: list[Proposition] | None


def read_roles(path: str | Path, *, layout: RoleFormat = "auto", errors: Errors = "strict") -> Iterator[RoleSentence]:
    """Sentences with their predicates; `layout` is told by the name where it is "auto": .jsonl, columns otherwise."""
    json = is_jsonl(path) if layout == "auto" else layout == "jsonl"
    yield from some((_json_sentences if json else _column_sentences)(path, errors), path, "sentence")


def check_length(words: Sequence[str], place: str = "") -> None:
    """Sentences, not books."""
    if len(words) > LONGEST:
        where = f"{place}: " if place else ""
        raise CorpusError(f"{where}the sentence has {len(words):,} words, the most is {LONGEST:,}; split the text")


def _json_sentences(path: str | Path, errors: Errors) -> Iterator[RoleSentence]:
    for row in json_rows(path, errors):
        words, frames = value_of(row, WORDS), value_of(row, FRAMES)
        if not is_words(words):
            raise CorpusError(f"{row.place}: the words are a list of strings")
        if not isinstance(frames, list):
            raise CorpusError(f"{row.place}: the frames are a list, one for each predicate")
        pos = row.values.get("pos") or [None] * len(words)
        if not isinstance(pos, list) or len(pos) != len(words):
            raise CorpusError(f"{row.place}: expected as many parts of speech as words")
        if words:
            check_length(words, row.place)
            yield RoleSentence(words, [_json_frame(frame, words, pos, row.place) for frame in frames])


def _json_frame(frame: Any, words: list[str], pos: list[Any], place: str) -> Proposition:
    if not isinstance(frame, dict):
        raise CorpusError(f"{place}: a frame is an object with {PLACE[0]} and {TAGS[0]}, not {str(frame)[:60]}")
    row = TableRow(frame, place, "key")
    at, tags = value_of(row, PLACE), value_of(row, TAGS)
    if type(at) is not int or not 0 <= at < len(words):
        raise CorpusError(
            f"{place}: {PLACE[0]} is the number of a word, from 0 to {len(words) - 1}, not {str(at)[:60]}"
        )
    if not is_words(tags) or len(tags) != len(words):
        raise CorpusError(f"{place}: expected as many tags as words for the predicate '{words[at][:40]}'")
    return _proposition(at, tags, (pos[at], frame.get("frame")), f"{place}, predicate '{words[at][:40]}'")


def _proposition(at: int, tags: list[str], known: tuple[Any, Any], place: str) -> Proposition:
    """A predicate from the tags in any encoding of spans, its part of speech and its frame."""
    for tag in tags:
        if not is_span_tag(tag):
            raise CorpusError(f"{place}: '{tag[:40]}' is not the tag of a span, such as B-ARG0, I-ARG0 or O")
    tags = bio(tags)
    if tags[at] == OUTSIDE:
        tags[at] = BEGIN_VERB
    if tags[at][2:] != VERB:
        raise CorpusError(f"{place}: it has the role {tags[at][2:][:40]} for itself; expected {BEGIN_VERB} or O")
    pos, frame = known
    verb = pos.startswith("V") and frame not in AUXILIARIES if isinstance(pos, str) else None
    return Proposition(at, tags, verb)


def _column_sentences(path: str | Path, errors: Errors) -> Iterator[RoleSentence]:
    rows: list[list[str]] = []
    began = ""
    for text, place in whole_lines(path, errors):
        fields = text.split()
        if fields and not fields[0].startswith(("#begin", "#end", DOCUMENT)):
            began = began or place
            rows.append(fields)
            if len(fields) != len(rows[0]):
                raise CorpusError(
                    f"{place}: has {len(fields)} columns where the lines before have {len(rows[0])}; expected a word a "
                    "line, with a column of brackets for each predicate"
                )
        elif rows:
            yield _column_sentence(rows, began)
            rows, began = [], ""
    if rows:
        yield _column_sentence(rows, began)


def _column_sentence(rows: list[list[str]], place: str) -> RoleSentence:
    """A sentence from its lines, the first of which stands at `place`."""
    columns = list(zip(*rows, strict=True))
    check_length(columns[0], place)
    if len(columns) >= NUMBERED and list(columns[2]) == [str(number) for number in range(len(rows))]:
        words, pos, marks = columns[3], columns[4], columns[7]
        first = _numbered_brackets(columns, place)
    else:
        words, (marks, first) = columns[0], _found_brackets(columns, place)
        pos = columns[1] if first > 2 else ()
    at = [number for number, mark in enumerate(marks) if mark not in NONE]
    found = []
    for number, column in zip(at, columns[first:], strict=False):  # CoNLL-2012 has one more, of coreference
        tags, where = _from_brackets(column, place), f"{place}, predicate '{words[number][:40]}'"
        # a predicate of two words is marked at both, and has two columns, which are the same
        own = tags.index(BEGIN_VERB) if BEGIN_VERB in tags else number
        found.append(_proposition(own, tags, (pos[own] if pos else None, marks[number]), where))
    return RoleSentence(list(words), found)


def _numbered_brackets(columns: list[tuple[str, ...]], place: str) -> int:
    """The number of the first column of brackets in a file with numbered words."""
    count = sum(mark not in NONE for mark in columns[7])
    for beside, first in ((NUMBERED, NUMBERED), (CONLL_2012, CONLL_2012 - 1)):
        if len(columns) == beside + count:
            return first
    raise CorpusError(
        f"{place}: has {len(columns)} columns; with {count} predicates in the eighth there should be "
        f"{NUMBERED + count} (PropBank) or {CONLL_2012 + count} (CoNLL-2012)"
    )


def _found_brackets(columns: list[tuple[str, ...]], place: str) -> tuple[tuple[str, ...], int]:
    """The column of predicates, and the number of the first column of brackets behind it."""
    for number in range(len(columns) - 1, 0, -1):
        if sum(mark not in NONE for mark in columns[number]) == len(columns) - number - 1:
            return columns[number], number + 1
    raise CorpusError(
        f"{place}: there is no column of predicates with as many columns of brackets behind it; expected a word, "
        "its predicate or -, and (ARG0* *) (V*) for each predicate"
    )


def _from_brackets(column: Sequence[str], place: str) -> list[str]:
    """(ARG0* *) (V*) * -> B-ARG0 I-ARG0 B-V O."""
    tags, label = [], None
    for field in column:
        found = BRACKETS.fullmatch(field)
        if found is None or (found[1] and label) or (found[2] and not (found[1] or label)):
            raise CorpusError(f"{place}: brackets such as (ARG0* and *) that do not fit together: '{field[:40]}'")
        label = found[1] or label
        tags.append(f"{'B' if found[1] else 'I'}-{label}" if label else OUTSIDE)
        label = None if found[2] else label
    if label:
        raise CorpusError(f"{place}: a bracket ({label[:40]}* is never closed")
    return tags


def as_brackets(tags: Sequence[str]) -> list[str]:
    """B-ARG0 I-ARG0 B-V O -> (ARG0* *) (V*) *."""
    after = [*tags[1:], OUTSIDE]
    return [
        (f"({tag[2:]}" if tag[:1] == "B" else "") + "*" + (")" if tag != OUTSIDE and following[:1] != "I" else "")
        for tag, following in zip(tags, after, strict=False)
    ]

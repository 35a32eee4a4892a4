"""Questions about passages: SQuAD's JSON; tables with a header; JSON lines.

An answer is a piece of its passage. SQuAD says where it begins; in tables and JSON lines that may be left out, and the
first place where it stands is taken. A question without an answer (SQuAD 2.0's impossible ones) is kept as such.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from relmo.disk.files import parse_json
from relmo.errors import CorpusError, shown
from relmo.text.corpus import Errors, read_text
from relmo.text.readers.lines import some
from relmo.text.readers.tables import TableRow, is_jsonl, json_rows, table_rows, value_of
from relmo.text.vocabulary import SURROGATE

PASSAGE, QUESTION, ANSWER = ("passage", "context"), ("question",), ("answers", "answer")
IN_WORDS: dict[type, str] = {list: "a list", dict: "an object", str: "a string"}

QuestionFormat = Literal["auto", "squad", "jsonl", "tsv"]


class AnswerText(NamedTuple):
    """An answer, and the character of its passage that it begins with."""

    text: str
    start: int


class PassageQuestion(NamedTuple):
    """A passage, a question, the answers that count as right (none where there is none), and the question's name."""

    passage: str
    question: str
    answers: tuple[AnswerText, ...]
    key: str


def read_questions(
    path: str | Path,
    *,
    layout: QuestionFormat = "auto",
    column: str | None = None,
    errors: Errors = "strict",
    answers: bool = True,
) -> Iterator[PassageQuestion]:
    """Questions with their passages and answers.

    layout    told by the name where it is "auto": .json is SQuAD's, .jsonl JSON lines, others are tables
    column    the column, or the key, with the answers, where it is not one of ANSWER; not of SQuAD
    answers   whether tables and JSON lines must have answers; where they need not, none is read
    """
    if layout == "auto":
        layout = "jsonl" if is_jsonl(path) else "squad" if is_squad(path) else "tsv"
    if layout == "squad":
        if column is not None:
            raise CorpusError(f"{path}: is SQuAD's JSON, which has no columns; leave out --column")
        found = _squad_questions(path, errors)
    else:
        rows = json_rows(path, errors) if layout == "jsonl" else table_rows(path, errors)
        found = (_row_question(row, column, answers) for row in rows)
    yield from some(found, path, "question")


def is_squad(path: str | Path) -> bool:
    """Whether the name says JSON: .json, compressed or not."""
    return re.search(r"\.json(\.gz|\.xz|\.zst)?$", str(path), re.IGNORECASE) is not None


def _squad_questions(path: str | Path, errors: Errors) -> Iterator[PassageQuestion]:
    """{"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}"""
    try:
        whole = parse_json(read_text(path, errors=errors))
    except ValueError as error:
        raise CorpusError(f"{path}: is not JSON ({error})") from error
    for a, article in enumerate(_part(whole, "data", list, str(path)), start=1):
        for p, paragraph in enumerate(_part(article, "paragraphs", list, f"{path}: article {a}"), start=1):
            place = f"{path}: article {a}, paragraph {p}"
            passage = _text(_part(paragraph, "context", str, place), "passage", place)
            for q, asked in enumerate(_part(paragraph, "qas", list, place), start=1):
                yield _squad_question(passage, asked, f"{place}, question {q}")


def _squad_question(passage: str, asked: Any, place: str) -> PassageQuestion:
    question = _text(_part(asked, "question", str, place), "question", place)
    given = [] if asked.get("is_impossible") is True else asked.get("answers") or []
    return PassageQuestion(passage, question, _answers(given, passage, place), str(asked.get("id", "")))


def _row_question(row: TableRow, column: str | None, answers: bool) -> PassageQuestion:
    """The question of a line of a table or of JSON."""
    passage = _text(value_of(row, PASSAGE), "passage", row.place)
    question = _text(value_of(row, QUESTION), "question", row.place)
    names = ANSWER if column is None else (column,)
    given = value_of(row, names, "say which has the answers with --column") if answers else []
    if isinstance(given, str):
        given = [given] if given.strip() else []
    return PassageQuestion(passage, question, _answers(given or [], passage, row.place), str(row.values.get("id", "")))


def _answers(given: Any, passage: str, place: str) -> tuple[AnswerText, ...]:
    """Answers as a list of strings; as SQuAD has them; or, of many collections, as one object of two lists."""
    if isinstance(given, dict):
        texts, starts = (_part(given, key, list, f"{place}, answers") for key in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise CorpusError(f"{place}: has {len(texts)} answers and the places of {len(starts)}")
        given = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(given, list):
        raise CorpusError(f"{place}: answers are a list, not {shown(given)}")
    return tuple(dict.fromkeys(_answer(each, passage, place) for each in given))


def _answer(given: Any, passage: str, place: str) -> AnswerText:
    """An answer, which stands in the passage where it says."""
    if isinstance(given, str):
        text, start = _text(given, "answer", place), passage.find(given)
        if start < 0:
            raise CorpusError(f"{place}: the answer {shown(text)} is not in its passage; an answer is a piece of it")
        return AnswerText(text, start)
    text, start = _text(_part(given, "text", str, place), "answer", place), given.get("answer_start")
    if type(start) is not int:
        raise CorpusError(f"{place}: the answer {shown(text)} has no answer_start, a number of characters")
    if start < 0 or not passage.startswith(text, start):
        there = shown(passage[start : start + len(text)] if start >= 0 else "")
        raise CorpusError(f"{place}: the answer {shown(text)} is not at character {start} of its passage, but {there}")
    return AnswerText(text, start)


def _part(value: Any, key: str, kind: type, place: str) -> Any:
    """What an object has under a key."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise CorpusError(f"{place}: expected '{key}', {IN_WORDS[kind]}, as SQuAD has it; found {shown(found)}")
    return found


def _text(value: Any, what: str, place: str) -> str:
    """A string that has something in it, and no half of a character."""
    if not isinstance(value, str) or not value.strip():
        raise CorpusError(f"{place}: the {what} is empty or not a text: {shown(value)}")
    if SURROGATE.search(value):
        raise CorpusError(f"{place}: the {what} has half of a character, such as \\ud83d alone; write the whole of it")
    return value

"""Questions about passages: SQuAD's JSON, tables with a header, JSON lines. An answer without a start is the first
occurrence in its passage."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from relmo.disk.files import parse_json
from relmo.errors import CorpusError, quote
from relmo.text.corpus import Errors, has_suffix, read_text, require, require_examples
from relmo.text.readers.tables import get_value, is_jsonl, json_rows, table_rows
from relmo.text.vocabulary import SURROGATE

PASSAGE, QUESTION, ANSWER = ("passage", "context"), ("question",), ("answers", "answer")
TYPE_NAMES: dict[type, str] = {list: "a list", dict: "an object", str: "a string"}

QuestionFormat = Literal["auto", "squad", "jsonl", "tsv"]

is_squad = partial(has_suffix, pattern=r"\.json")


class AnswerText(NamedTuple):
    """Answer and its start in the passage, in characters."""

    text: str
    start: int


class PassageQuestion(NamedTuple):
    """Passage, question, gold answers if there are any, and the id of the question."""

    passage: str
    question: str
    answers: tuple[AnswerText, ...]
    key: str


@require_examples("question")
def read_questions(
    path: str | Path,
    *,
    layout: QuestionFormat = "auto",
    column: str | None = None,
    errors: Errors = "strict",
    answers: bool = True,
) -> Iterator[PassageQuestion]:
    """Yield questions with their passages and answers, which are in `column` of tables and JSON lines, and are not read
    from these without `answers`."""
    if layout == "auto":
        layout = "jsonl" if is_jsonl(path) else "squad" if is_squad(path) else "tsv"
    if layout == "squad":
        if column is not None:
            raise CorpusError(f"{path}: SQuAD's JSON has no columns; omit --column")
        try:
            squad = parse_json(read_text(path, errors=errors))
        except ValueError as error:
            raise CorpusError(f"{path}: is not JSON ({error})") from error
        # {"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}
        for a, article in enumerate(_get_part(squad, "data", list, str(path)), start=1):
            for p, paragraph in enumerate(_get_part(article, "paragraphs", list, f"{path}: article {a}"), start=1):
                place = f"{path}: article {a}, paragraph {p}"
                passage = _check_text(_get_part(paragraph, "context", str, place), "passage", place)
                for q, record in enumerate(_get_part(paragraph, "qas", list, place), start=1):
                    where = f"{place}, question {q}"
                    question = _check_text(_get_part(record, "question", str, where), "question", where)
                    value = [] if record.get("is_impossible") is True else record.get("answers") or []
                    key = str(record.get("id", ""))
                    yield PassageQuestion(passage, question, _parse_answers(value, passage, where), key)
        return
    for row in json_rows(path, errors) if layout == "jsonl" else table_rows(path, errors):
        passage = _check_text(get_value(row, PASSAGE), "passage", row.place)
        question = _check_text(get_value(row, QUESTION), "question", row.place)
        names = ANSWER if column is None else (column,)
        value = get_value(row, names, "name the one with the answers with --column") if answers else []
        if isinstance(value, str):
            value = [value] if value.strip() else []
        key = str(row.values.get("id", ""))
        yield PassageQuestion(passage, question, _parse_answers(value or [], passage, row.place), key)


def _parse_answers(value: Any, passage: str, place: str) -> tuple[AnswerText, ...]:
    """Parse a list of strings, a list of SQuAD's objects, or one object of two lists."""
    if isinstance(value, dict):
        texts, starts = (_get_part(value, key, list, f"{place}, answers") for key in ("text", "answer_start"))
        require(len(texts) == len(starts), place, f"has {len(texts)} answers and {len(starts)} starts")
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(value, list):
        raise CorpusError(f"{place}: answers must be a list, not {quote(value)}")
    answers = []
    for answer in value:
        is_text = isinstance(answer, str)
        text = _check_text(answer if is_text else _get_part(answer, "text", str, place), "answer", place)
        start = passage.find(text) if is_text else answer.get("answer_start")
        called = f"the answer {quote(text)}"
        require(not is_text or start >= 0, place, f"{called} does not occur in its passage")
        require(type(start) is int, place, f"{called} has no answer_start, its offset in characters")
        if start < 0 or not passage.startswith(text, start):
            actual = quote(passage[start : start + len(text)] if start >= 0 else "")
            raise CorpusError(f"{place}: {called} is not at character {start} of its passage, but {actual}")
        answers.append(AnswerText(text, start))
    return tuple(dict.fromkeys(answers))


def _get_part(value: Any, key: str, kind: type, place: str) -> Any:
    part = value.get(key) if isinstance(value, dict) else None
    if not isinstance(part, kind):
        raise CorpusError(f"{place}: expected '{key}', {TYPE_NAMES[kind]}, as in SQuAD; found {quote(part)}")
    return part


def _check_text(value: Any, what: str, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise CorpusError(f"{place}: the {what} is empty or not a string: {quote(value)}")
    if SURROGATE.search(value):
        raise CorpusError(f"{place}: the {what} contains an unpaired surrogate, such as \\ud83d alone")
    return value

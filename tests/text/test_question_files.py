"""Files of passages, questions and answers: SQuAD 1.1 and 2.0, tables, JSON lines, and broken ones."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relmo.errors import CorpusError
from relmo.text.readers.reading import AnswerText, PassageQuestion, read_questions

PASSAGE = "Anna lives in Oslo. Bob lives in Bergen."
OSLO = {"text": "Oslo", "answer_start": 14}


def squad(path: Path, *questions: dict[str, Any], passage: Any = PASSAGE) -> Path:
    data = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": passage, "qas": list(questions)}]}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_squad_is_read_with_the_places_of_all_answers(tmp_path: Path) -> None:
    answers = [OSLO, {"text": "in Oslo", "answer_start": 11}, OSLO]
    path = squad(tmp_path / "a.json", {"id": "q1", "question": "Where is Anna?", "answers": answers})
    expected = PassageQuestion(PASSAGE, "Where is Anna?", (AnswerText("Oslo", 14), AnswerText("in Oslo", 11)), "q1")
    assert list(read_questions(path)) == [expected]
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(json.loads(path.read_text()), indent=1).encode()))
    assert list(read_questions(packed)) == [expected]


def test_impossible_questions_of_squad_2_and_questions_without_answers_have_none(tmp_path: Path) -> None:
    path = squad(
        tmp_path / "a.json",
        {"id": "1", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": [OSLO]},
        {"id": "2", "question": "Who?", "answers": [OSLO], "is_impossible": True},
        {"id": "3", "question": "Where?", "answers": [OSLO], "is_impossible": False},
        {"id": "4", "question": "When?"},
    )
    assert [len(asked.answers) for asked in read_questions(path)] == [0, 0, 1, 0]


def test_tables_and_json_lines_need_no_places(tmp_path: Path) -> None:
    table = tmp_path / "mine.tsv"
    table.write_text(
        f"passage\tquestion\tanswer\n{PASSAGE}\tWhere is Anna?\tOslo\n{PASSAGE}\tWhy?\t\n", encoding="utf-8"
    )
    assert [asked.answers for asked in read_questions(table)] == [(AnswerText("Oslo", 14),), ()]
    rows: list[dict[str, Any]] = [
        {"context": PASSAGE, "question": "Where?", "answer": "lives"},
        {"context": PASSAGE, "question": "Where?", "answers": ["Oslo", "Bergen"], "id": 7},
        {"context": PASSAGE, "question": "Where?", "answers": {"text": ["lives"], "answer_start": [24]}},
        {"context": PASSAGE, "question": "Where?", "answers": None},
    ]
    lines = tmp_path / "mine.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = list(read_questions(lines))
    assert [[answer.start for answer in asked.answers] for asked in found] == [[5], [14, 33], [24], []]
    assert [asked.key for asked in found] == ["", "7", "", ""]
    lines.write_text(json.dumps({"passage": PASSAGE, "question": "Where?", "mine": "Oslo"}) + "\n", encoding="utf-8")
    assert next(read_questions(lines, column="mine")).answers == (AnswerText("Oslo", 14),)
    with pytest.raises(CorpusError, match=r"mine.jsonl:1: there is no key answers or answer.*with --column"):
        list(read_questions(lines))


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"question": "Where?", "answers": [OSLO | {"answer_start": 15}]}, r"'Oslo' is not at character 15 .* 'slo.'"),
        ({"question": "Where?", "answers": [OSLO | {"answer_start": -4}]}, "is not at character -4"),
        ({"question": "Where?", "answers": [OSLO | {"answer_start": 1 << 70}]}, "is not at character 118"),
        ({"question": "Where?", "answers": [OSLO | {"answer_start": "14"}]}, "answer_start"),
        ({"question": "Where?", "answers": [{"text": "", "answer_start": 0}]}, "the answer is empty"),
        ({"question": "Where?", "answers": ["Rome"]}, "'Rome'"),
        ({"question": "Where?", "answers": [3]}, "expected 'text', a string"),
        ({"question": "Where?", "answers": "Oslo"}, "answers must be a list"),
        ({"question": "Where?", "answers": {"text": ["Oslo"], "answer_start": []}}, "1 answers"),
        ({"question": "\ud83d?", "answers": [OSLO]}, "surrogate"),
        ({"question": " ", "answers": [OSLO]}, "the question is empty"),
        ({"answers": [OSLO]}, "expected 'question', a string"),
        (7, "expected 'question', a string"),
    ],
)
def test_a_broken_question_is_one_line_with_its_place(question: Any, says: str, tmp_path: Path) -> None:
    path = squad(tmp_path / "a.json", question)
    with pytest.raises(CorpusError, match=rf"a.json: article 1, paragraph 1, question 1.*: .*{says}"):
        list(read_questions(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ('{"data": [', "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "expected 'data'"),
        ('{"data": [{"paragraphs": 3}]}', "article 1: expected 'paragraphs', a list"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "paragraph 1: expected 'context', a string"),
        ('{"data": []}', "no question"),
    ],
)
def test_a_broken_file_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CorpusError, match=says):
        list(read_questions(tmp_path / "a.json"))


def test_squad_has_no_columns(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="--column"):
        list(read_questions(squad(tmp_path / "a.json"), column="x"))


def test_the_real_file_is_read_as_it_is(data: Callable[[str], Path]) -> None:
    found = list(read_questions(data("tasks/squad/dev-v1.1.json")))
    assert len(found) == 5457
    assert all(asked.answers and asked.key for asked in found)

"""Readers as a user has them: files to spans and back to characters, learning, ELMo, several answers, going on."""

import dataclasses
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.errors import CorpusError, SettingError
from relmo.runs.progress import Reporter
from relmo.runs.train_task import train_task
from relmo.tasks.features import WordFeatures, count_words
from relmo.tasks.reader import FoundAnswer, FoundSpan, PassageReader, TokenizedQuestion
from relmo.text.readers.reading import AnswerText
from support.reading import questions, reader_settings
from support.tagging import StopAfter, tiny_bilm

PASSAGE = "Anna’s  14-story house 🏠 is\nin New\tYork. It has two doors, and a cat."


def untrained(**sections: dict[str, Any]) -> PassageReader:
    torch.manual_seed(0)
    made = reader_settings(**sections)
    return PassageReader(made, WordFeatures(made.input, count_words([PASSAGE.split()], made.input)), {}).initialize()


def asked(model: PassageReader, answer: str, passage: str = PASSAGE) -> TokenizedQuestion:
    example = model.make_example((passage, "What?"))
    return example._replace(answers=(AnswerText(answer, passage.index(answer)),))


class Listener(Reporter):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_message(self, message: str) -> None:
        self.heard.append(message)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("questions")
    return str(questions(folder / "train.json", 24, impossible=1)), str(questions(folder / "dev.json", 8, seed=1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, files: tuple[str, str]) -> Path:
    """A reader that has learned all there is to learn, from questions some of which cannot be answered."""
    out, listener = tmp_path_factory.mktemp("reader") / "out", Listener()
    made = reader_settings(text={"valid": files[1]}, train={"epochs": 6})
    results = train_task(PassageReader, [files[0]], made, out, reporter=listener)
    assert results["metric"] == "f1"
    assert results["valid_f1"] == results["valid_exact_match"] == 1.0
    assert "24 of 72 questions have no answer and are left out" in listener.heard
    return out


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("Anna", "Anna"),
        ("14", "14-story"),  # a piece of a word is widened to the word
        ("house 🏠", "house 🏠"),
        ("story house", "14-story house"),
        ("in New\tYork", "in New\tYork"),
        ("York. It h", "York. It has"),
        (" two", "two"),
    ],
)
def test_an_answer_is_the_words_that_it_is_a_part_of(answer: str, text: str) -> None:
    model = untrained()
    example = asked(model, answer)
    first, last = model.encode([example], answers=True).batch(np.array([0])).targets[0].tolist()
    assert PASSAGE[example.passage.tokens[first].start : example.passage.tokens[last].end] == text
    with pytest.raises(CorpusError, match="max-words"):
        model.encode([asked(model, "\n")], answers=True)


def test_training_cuts_passages_and_leaves_out_what_lies_beyond_and_answering_cuts_nothing() -> None:
    model = untrained(text={"max_words": 5})
    examples = [asked(model, "house"), asked(model, "cat"), asked(model, "Anna"), model.make_example((PASSAGE, "Why?"))]
    said: list[str] = []
    encoded = model.encode(examples, answers=True, on_message=said.append)
    assert encoded.lengths.tolist() == [5, 5]
    assert encoded.batch(np.arange(2)).targets.tolist() == [[3, 3], [0, 0]]
    assert encoded.predictions == 4
    assert said == [
        "1 of 4 questions have no answer and are left out",
        "1 of 4 questions have no answer in the first 5 words and are left out",
    ]
    assert model.encode(examples).lengths.tolist() == [len(model.split(PASSAGE))] * 4
    with pytest.raises(CorpusError, match="first 5 words"):
        model.encode(examples[1:2], answers=True)


def test_a_passage_is_encoded_once_however_many_questions_are_about_it() -> None:
    model = untrained()
    examples = [
        model.make_example((PASSAGE, "Who?")),
        model.make_example(("A cat.", "What?")),
        model.make_example((PASSAGE, "Where is it?")),
    ]
    encoded = model.encode(examples)
    (passages, questions), *_, (passage_index,) = encoded.batch(np.array([2, 0]))
    assert passages.lengths.tolist() == [len(examples[0].passage)]
    assert passage_index.tolist() == [0, 0]
    assert questions.lengths.tolist() == [4, 2]
    (passages, _), *_, (passage_index,) = encoded.batch(np.arange(3))
    assert len(passages.lengths) == 2
    assert passage_index.tolist() == [0, 1, 0]


def test_answers_do_not_depend_on_order_or_company() -> None:
    model = untrained()
    pairs = [(PASSAGE, "Who?"), ("A cat.", "Where is the house?"), ("", "What?"), (PASSAGE, ""), (PASSAGE, "Why not?")]
    together = model.predict(pairs, best=3)
    for other in (model.predict(pairs[::-1], best=3)[::-1], [model.predict([pair], best=3)[0] for pair in pairs]):
        for a, b in zip(together, other, strict=True):
            assert [(span.text, span.start, span.end) for span in a.spans] == [
                (span.text, span.start, span.end) for span in b.spans
            ]
            assert [span.score for span in a.spans] == pytest.approx([span.score for span in b.spans], abs=1e-6)


def test_answers_are_cut_from_the_passage_and_no_two_share_a_word() -> None:
    model = untrained(model={"max_answer": 3})
    found = model.predict([(PASSAGE, "What?")], best=50)[0]
    assert (found.text, found.start, found.end, found.score) == (
        found.spans[0].text,
        found.spans[0].start,
        found.spans[0].end,
        found.spans[0].score,
    )
    assert len(found.spans) > 5
    words = model.split(PASSAGE)
    for span in found.spans:
        assert span.text == PASSAGE[span.start : span.end]
        assert words[span.start_word : span.end_word] == model.split(span.text)
    assert all(len(model.split(span.text)) <= 3 for span in found.spans)
    assert all(one.score >= other.score > 0 for one, other in pairwise(found.spans))
    places = sorted((span.start, span.end) for span in found.spans)
    assert all(one[1] <= other[0] for one, other in pairwise(places))
    assert sum(len(model.split(span.text)) for span in found.spans) == len(model.split(PASSAGE))  # all words, once


def test_nothing_is_found_where_there_is_nothing() -> None:
    model = untrained()
    for found in model.predict([("", "Who?"), (PASSAGE, " "), ([], ["Who", "?"])]):
        assert found.spans == []
        assert repr(found).endswith(": nothing)")
        assert (found.text, found.start, found.end, found.score) == ("", 0, 0, 0.0)
        assert found.as_text() == "\t0\t0\t0.0000"


def test_an_answer_is_a_line_and_several_are_lines_with_an_empty_one_behind() -> None:
    first, second = FoundSpan("New\n York", 3, 12, 1, 3, 0.51234), FoundSpan("cat", 20, 23, 5, 6, 0.25)
    passage, both = "In New\n York is the cat", "New York\t3\t12\t0.5123\ncat\t20\t23\t0.2500\n"
    best = dataclasses.asdict(first) | {"passage": passage, "question": "Where?"}
    assert FoundAnswer(**best, spans=[first]).as_text() == "New York\t3\t12\t0.5123"
    found = FoundAnswer(**best, spans=[first, second], max_spans=2, key="q1")
    assert found.as_text() == both
    assert repr(found) == "FoundAnswer('Where?': 'New York' 0.51)"
    place = {"start": 20, "end": 23, "start_word": 5, "end_word": 6, "score": 0.25}
    record = found.to_dict()
    assert json.loads(json.dumps(record)) == record
    assert list(record)[:4] == ["id", "passage", "question", "text"]
    assert record["best"][1] == {"text": "cat"} | place
    assert found._repr_html_().count("<span") == 2


@pytest.mark.parametrize("given", [("one", "two"), [["just", "three", "words"]], "text"])
def test_a_question_that_is_not_in_a_list_is_one_clear_line(given: Any) -> None:
    with pytest.raises(SettingError, match="passage, question"):
        untrained().predict(given)


def test_how_many_answers_are_asked_for_is_a_whole_number() -> None:
    for best in (0, 1001, 1.5):
        with pytest.raises(SettingError, match="best"):
            untrained().predict([(PASSAGE, "Who?")], best=best)  # type: ignore[arg-type]


def test_a_line_is_a_passage_and_a_question_or_a_question_alone() -> None:
    model = untrained()
    assert model.texts(model.read_line("A cat.\tWho?")) == (["A", "cat", "."], ["Who", "?"])
    assert model.texts(model.read_line("A cat.\tWho?", tokenized=True)) == (["A", "cat."], ["Who?"])
    with pytest.raises(CorpusError, match="--passage"):
        model.read_line("Who?")
    about = model.with_passage("A\ncat.")
    assert about.texts(about.read_line("Who?")) == (["A", "cat", "."], ["Who", "?"])
    assert model.passage is None


def test_a_trained_reader_answers_and_its_folder_gives_the_same_scores(trained: Path, files: tuple[str, str]) -> None:
    model = relmo.load(trained, device="cpu")
    assert isinstance(model, PassageReader)
    passage = "one day Carl  went to New York! Then,"
    who, where = model.predict([(passage, "Who went?"), (passage, "Where to?")])
    assert (who.text, who.start, who.end) == ("Carl", 8, 12)
    assert (where.text, where.start, where.end) == ("New York", 22, 30)
    assert 0.2 < where.score <= 1
    assert model.evaluate(files[1]).values == {"f1": 1.0, "exact_match": 1.0}
    with_impossible = model.evaluate(files[0]).values
    assert with_impossible["answerable_f1"] == pytest.approx(1.5 * with_impossible["f1"])
    assert sorted(path.name for path in trained.glob("*.txt")) == ["vocabulary.txt"]
    assert "relmo predict" in (trained / "README.md").read_text()


@pytest.mark.parametrize(("place", "tuned"), [("input", False), ("output", False), ("both", False), ("both", True)])
def test_with_elmo_the_folder_gives_the_same_scores(
    place: str, tuned: bool, files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    tiny_bilm().save_pretrained(tmp_path / "bilm")
    inputs = {"elmo": str(tmp_path / "bilm"), "elmo_at": place, "elmo_tune": tuned}
    made = reader_settings(text={"valid": files[1]}, input=inputs, train={"epochs": 1})
    results = train_task(PassageReader, [files[0]], made, tmp_path / "out")
    assert list(results["elmo_mix"]) == (["input", "output"] if place == "both" else [place])
    report = relmo.load(tmp_path / "out", device="cpu").evaluate(files[1])  # type: ignore[union-attr]
    assert report.values["f1"] == pytest.approx(results["valid_f1"])


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(files: tuple[str, str], tmp_path: Path) -> None:
    made = reader_settings(
        text={"valid": files[1]}, model={"dropout": 0.3}, train={"epochs": 2, "checkpoint_every": 0.0, "average": 0.9}
    )
    train_task(PassageReader, [files[0]], made, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_task(PassageReader, [files[0]], made, tmp_path / "broken", reporter=StopAfter(4))
    train_task(PassageReader, [files[0]], made, tmp_path / "broken", resume=True)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "broken"))
    assert one == other


@pytest.mark.slow
def test_real_questions_are_learned(data: Callable[[str], Path], tmp_path: Path) -> None:
    squad = json.loads(data("tasks/squad/dev-v1.1.json").read_text())
    paragraphs = [p for article in squad["data"] for p in article["paragraphs"] if len(p["context"]) < 250][:3]
    (tmp_path / "some.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    file = str(tmp_path / "some.json")
    made = reader_settings(text={"valid": file}, train={"epochs": 12, "lr": 0.02})
    results = train_task(PassageReader, [file], made, tmp_path / "out")
    scores = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    first = next(record["valid_f1"] for record in scores if "valid_f1" in record)
    assert results["train_examples"] > 20
    assert first < 0.4
    assert results["valid_f1"] > first + 0.15

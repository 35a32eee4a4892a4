"""Predicates and roles from JSON lines and from columns; what is wrong with a file is said with its place."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relmo.errors import CorpusError
from relmo.text.readers.roles import MAX_WORDS, Proposition, RoleSentence, as_brackets, read_roles

WORDS = ["Anna", "has", "seen", "Bob"]
SEEN = ["B-ARG0", "O", "B-V", "B-ARG1"]
EXPECTED = RoleSentence(WORDS, [Proposition(1, ["O", "B-V", "O", "O"], False), Proposition(2, SEEN, True)])
NUMBERED = """d 0 0 Anna NNP (S* - - * (ARG0*)
d 0 1 has VBZ * have have.01 (V*) *
d 0 2 seen VBN * see see.01 * (V*)
d 0 3 Bob NNP *) - - * (ARG1*)
"""
CONLL_2012 = """#begin document (d); part 000
d 0 0 Anna NNP (S* - - - - * * (ARG0*) (1)
d 0 1 has VBZ * have 01 - - * (V*) * -
d 0 2 seen VBN * see 01 - - * * (V*) -
d 0 3 Bob NNP *) - - - - * * (ARG1*) -

#end document
"""
CONLL_2005 = "Anna NNP - * (ARG0*)\nhas VBZ have (V*) *\nseen VBN see * (V*)\nBob NNP - * (ARG1*)\n"


def line(**changed: Any) -> str:
    frames = [{"verb_index": 1, "frame": "have.01", "tags": ["O", "B-V", "O", "O"]}, {"verb_index": 2, "tags": SEEN}]
    return json.dumps({"words": WORDS, "pos": ["NNP", "VBZ", "VBN", "NNP"], "frames": frames} | changed) + "\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "auxiliary"),
    [
        ("a.jsonl", line(), False),
        ("a.gold_conll", NUMBERED, False),
        ("a.conll", CONLL_2012, True),
        ("a.txt", CONLL_2005, True),
    ],
    ids=["jsonl", "propbank", "conll-2012", "conll-2005"],
)
def test_every_layout_gives_the_same_sentence(name: str, text: str, auxiliary: bool, tmp_path: Path) -> None:
    found = list(read_roles(written(tmp_path / name, text)))
    words, (first, second) = EXPECTED
    assert found == [RoleSentence(words, [first._replace(verb=auxiliary), second])]  # only PropBank names the frame


def test_sentences_without_predicates_and_without_parts_of_speech(tmp_path: Path) -> None:
    path = written(tmp_path / "a.props", "Hello -\n. -\n\nAnna - (ARG0*\nherself - *)\nruns runs (V*)\n")
    first, second = read_roles(path)
    assert first == RoleSentence(["Hello", "."], [])
    assert second.propositions == [Proposition(2, ["B-ARG0", "I-ARG0", "B-V"], None)]
    bare = written(tmp_path / "a.jsonl", json.dumps({"words": ["Go"], "frames": [{"predicate": 0, "roles": ["O"]}]}))
    assert list(read_roles(bare)) == [RoleSentence(["Go"], [Proposition(0, ["B-V"], None)])]


def test_brackets_are_written_as_they_are_read() -> None:
    tags = ["B-ARG0", "I-ARG0", "O", "B-V", "B-ARG1", "B-ARG1", "I-ARG1"]
    assert as_brackets(tags) == ["(ARG0*", "*)", "*", "(V*)", "(ARG1*)", "(ARG1*", "*)"]
    assert as_brackets([]) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(words="Anna has seen Bob"), "the words must be"),
        (line(frames={}), "the frames must be"),
        (line(frames=[1]), "a frame must be"),
        (line(frames=[{"tags": SEEN}]), "there is no key verb_index or predicate"),
        (line(frames=[{"verb_index": 4, "tags": SEEN}]), "from 0 to 3, not 4"),
        (line(frames=[{"verb_index": True, "tags": SEEN}]), "from 0 to 3, not True"),
        (line(frames=[{"verb_index": 2, "tags": SEEN[:3]}]), "as many tags as words for the predicate 'seen'"),
        (line(frames=[{"verb_index": 2, "tags": ["X", *SEEN[1:]]}]), "'X' is not"),
        (line(frames=[{"verb_index": 0, "tags": SEEN}]), "'Anna': has the role ARG0"),
        (line(pos=["NNP"]), "as many parts of speech"),
        (line(words=["a"] * (MAX_WORDS + 1), pos=[], frames=[]), "has 1,001 words"),
        ("[1]\n", "expected a JSON object"),
        ("{\n", "is not a JSON object"),
        ("", "no sentence"),
    ],
)
def test_what_is_wrong_with_json_lines_is_said_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", (line() + text) if text else "")
    place = f"{path}:2" if text else str(path)
    with pytest.raises(CorpusError, match=re.escape(place) + ".*" + re.escape(message)):
        list(read_roles(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NUMBERED.replace(" (V*)\n", "\n"), "has 9 columns where the lines before have 10"),
        (NUMBERED.replace("have have.01", "- -"), "with 1 predicates in the eighth there should be 9"),
        (CONLL_2005.replace("(ARG0*)", "(ARG0*"), "'(V*)'"),
        (CONLL_2005.replace("(ARG1*)", "(ARG1*"), "a bracket (ARG1*"),
        (CONLL_2005.replace("(ARG1*)", "ARG1"), "'ARG1'"),
        (CONLL_2005.replace("(ARG1*)", "*)"), "'*)'"),
        ("Anna\n", "no column of predicates"),
        ("Anna runs\n", "no column of predicates"),
    ],
)
def test_what_is_wrong_with_columns_is_said_with_the_sentences_place(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", text)
    with pytest.raises(CorpusError, match=re.escape(str(path)) + ".*" + re.escape(message)):
        list(read_roles(path))


def test_both_layouts_of_the_real_data_hold_the_same(data: Callable[[str], Path]) -> None:
    folder = "tasks/srl_propbank_ewt"
    json_lines, columns = (list(read_roles(data(f"{folder}/ewt-dev.{kind}"))) for kind in ("jsonl", "gold_conll"))
    assert len(json_lines) == 1963
    assert sum(len(each.propositions or ()) for each in json_lines) == 4952

    def key(each: RoleSentence) -> Any:
        return each.words, sorted(each.propositions or ())

    assert sorted(map(key, json_lines)) == sorted(map(key, columns))  # the files have other orders

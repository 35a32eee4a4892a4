"""Words tagged with senses, as the field's files have them."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from experiments.senses import Lemma, SenseIndex, SenseSentence, SenseTag, read_framework, read_semcor, split_phrase
from relmo.errors import CorpusError

INDEX = """bank%1:14:00:: 08420278 2 20
bank%1:17:01:: 09213565 1 25
bank%2:40:00:: 02343595 1 0
old%3:00:01:: 01638438 2 67
old%5:00:00:past:00 01729819 3 1
old%3:00:02:: 01638000 1 80
"""
XML = """<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en" source="tiny"><text id="d0"><sentence id="d0.s0">
<wf lemma="it" pos="PRON">It</wf>
<instance id="d0.s0.t0" lemma="point_out" pos="VERB">pointed out</instance>
<wf lemma="the" pos="DET">the</wf>
<instance id="d0.s0.t1" lemma="old" pos="ADJ">old</instance>
<instance id="d0.s0.t2" lemma="bank" pos="NOUN">bank</instance>
</sentence><sentence id="d0.s1"><wf lemma="yes" pos="X">Yes</wf></sentence></text></corpus>
"""
GOLD = "d0.s0.t0 point_out%2:32:01::\nd0.s0.t1 old%3:00:02:: old%5:00:00:past:00\nd0.s0.t2 bank%1:17:01::\n"


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@cache
def read_index(path: Path) -> SenseIndex:
    return SenseIndex.read(path)


def test_an_index_lists_senses_by_their_number_and_satellites_are_adjectives(tmp_path: Path) -> None:
    index = SenseIndex.read(write(tmp_path, "index.sense", INDEX))
    assert index.senses[Lemma("old", "ADJ")] == ["old%3:00:02::", "old%3:00:01::", "old%5:00:00:past:00"]
    assert index.first(Lemma("bank", "NOUN")) == "bank%1:17:01::"
    assert index.first(Lemma("bank", "VERB")) == "bank%2:40:00::"
    assert index.first(Lemma("bank", "ADJ")) is None
    assert "bank%1:14:00::" in index
    assert "bank%1:99:00::" not in index
    assert index.rank["old%5:00:00:past:00"] == 2


def test_semcor_phrases_are_words_of_the_sentence_with_one_tag(tmp_path: Path) -> None:
    line = {
        "tokens": ["The", "only", "New_York", "took_place", "_"],
        "sense_keys": [[], ["only%5:00:00:single(a):00"], [], ["take_place%2:30:00::"], []],
    }
    (sentence,) = read_semcor(write(tmp_path, "semcor.jsonl", json.dumps(line) + "\n"))
    assert sentence.words == ["The", "only", "New", "York", "took", "place", "_"]
    assert sentence.tagged == [
        SenseTag(1, 2, Lemma("only", "ADJ"), ("only%5:00:00:single:00",)),
        SenseTag(4, 6, Lemma("take_place", "VERB"), ("take_place%2:30:00::",)),
    ]


def test_a_set_of_the_framework_keeps_every_right_key_and_its_sentences_in_order(tmp_path: Path) -> None:
    data, gold = write(tmp_path, "x.data.xml", XML), write(tmp_path, "x.gold.key.txt", GOLD)
    first, second = read_framework(data, gold)
    assert first.words == ["It", "pointed", "out", "the", "old", "bank"]
    assert first.tagged == [
        SenseTag(1, 3, Lemma("point_out", "VERB"), ("point_out%2:32:01::",), "d0.s0.t0"),
        SenseTag(4, 5, Lemma("old", "ADJ"), ("old%3:00:02::", "old%5:00:00:past:00"), "d0.s0.t1"),
        SenseTag(5, 6, Lemma("bank", "NOUN"), ("bank%1:17:01::",), "d0.s0.t2"),
    ]
    assert second == SenseSentence(["Yes"], [])


@pytest.mark.parametrize(
    ("token", "words"), [("a_b", ["a", "b"]), ("_", ["_"]), ("a__b_", ["a", "b"]), ("a", ["a"]), ("", []), (" ", [])]
)
def test_a_phrase_is_split_at_its_joints(token: str, words: list[str]) -> None:
    assert split_phrase(token, "_") == words


@pytest.mark.parametrize(
    ("xml", "gold", "message"),
    [
        (XML, GOLD.replace("t2 ", "t3 "), "no line for 'd0.s0.t2'"),
        (XML, GOLD + "d0.s9.t0 bank%1:17:01::\n", "3 instances, .* has 4"),
        (XML, GOLD + GOLD, ":4: expected a new instance"),
        (XML, "d0.s0.t0\n", ":1: expected a new instance"),
        (XML.replace('pos="ADJ"', 'pos="JJ"'), GOLD, "pos 'JJ', not NOUN"),
        (XML[:-20], GOLD, "is not XML"),
        (XML.replace("<corpus", '<!DOCTYPE x [<!ENTITY a "b">]><corpus'), GOLD, "declares a document type"),
    ],
)
def test_files_of_a_set_that_do_not_fit_are_one_clear_line(xml: str, gold: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        read_framework(write(tmp_path, "x.data.xml", xml), write(tmp_path, "x.gold.key.txt", gold))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":1: is not a JSON object"),
        ("[" * 100_000, ":1: is not a JSON object"),
        ("[1]", ":1: expected a JSON object"),
        ('{"tokens": 1, "sense_keys": []}', ':1: expected "tokens"'),
        ('{"tokens": ["a"], "sense_keys": []}', "of the same length"),
        ('{"tokens": ["a"], "sense_keys": ["a%1:00:00::"]}', "of the same length"),
        ('{"tokens": ["a"], "sense_keys": [["a"]]}', ":1: 'a' is not a sense key"),
        ('{"tokens": ["a"], "sense_keys": [["a%7:00:00::"]]}', "is not a sense key"),
    ],
)
def test_a_broken_line_of_semcor_is_named(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        list(read_semcor(write(tmp_path, "semcor.jsonl", line + "\n")))


@pytest.mark.parametrize("text", ["bank%1:14:00:: 08420278 two 20\n", "bank%1:14:00:: 1\n", "bank 1 2 3\n", ""])
def test_a_file_that_is_no_index_is_said_to_be_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"index\.sense|no sense key"):
        SenseIndex.read(write(tmp_path, "index.sense", text))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "instances", "published"), [("senseval2", 2282, 66.8), ("semeval2007", 455, 55.2)])
def test_the_first_sense_scores_what_the_framework_published(
    name: str, instances: int, published: float, data: Callable[[str], Path]
) -> None:
    index = read_index(data("tasks/wsd/wordnet-3.0.index.sense"))
    sentences = read_framework(data(f"tasks/wsd/{name}.data.xml"), data(f"tasks/wsd/{name}.gold.key.txt"))
    tagged = [each for sentence in sentences for each in sentence.tagged]
    right = sum(index.first(each.lemma) in each.senses for each in tagged)
    assert len(tagged) == instances
    assert round(100 * right / instances, 1) == published


@pytest.mark.slow
def test_semcor_has_the_tags_it_is_known_for(data: Callable[[str], Path]) -> None:
    index = read_index(data("tasks/wsd/wordnet-3.0.index.sense"))
    sentences = list(read_semcor(data("tasks/wsd/semcor3.jsonl")))
    keys = [key for sentence in sentences for tagged in sentence.tagged for key in tagged.senses]
    assert (len(sentences), len(keys)) == (37_168, 234_136)
    assert sum(key in index for key in keys) == 225_337
    assert not any("_" in word and word.strip("_") for sentence in sentences for word in sentence.words)

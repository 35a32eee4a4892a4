"""Minimal pairs from files: what each format becomes, and what is said of broken ones."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from relmo.errors import CorpusError
from relmo.text.minimal_pairs import MinimalPair, read_pairs

TAB = (
    "pattern\tconstr_id\tsent_id\tcorrect_number\tform\tclass\ttype\tprefix\tn_attr\n"
    'L\t1\t0\tplur\tare\tcorrect\toriginal\t"The "" cats"\t0\n'
    'L\t1\t0\tplur\tis\twrong\toriginal\t"The "" cats"\t0\n'
    "L\t1\t1\tsing\tare\twrong\tgenerated\tThe cat of dogs\t1\n"
    "L\t1\t1\tsing\tis\tcorrect\tgenerated\tThe cat of dogs\t1\n"
)


def test_each_format_gives_its_pairs(tmp_path: Path) -> None:
    given = {
        "nounpp.txt": "The cat by the dogs is\tsingular\tplural\tcorrect\tid1\n"
        "The cat by the dogs are\tsingular\tplural\twrong\tid1\n",
        "verbs.jsonl": '{"sentence_good": "Cats run.", "sentence_bad": "Cats runs.", "linguistics_term": "a", '
        '"UID": "b"}\n  \n',
        "items.tab": TAB,
        "mine.csv": "condition,good,bad\none,Cats run.,Cats runs.\n  \n",
        "short.tsv": "context\tright\twrong\nThe cat\tis\tare\n",
        "set.gold": "2\tare\tis\t1\n",
    }
    for name, text in given.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "set.text").write_text("`` cats are here . <eos>\n")
    by = {name: read_pairs(tmp_path / name) for name in given}
    cat = ["The", "cat", "by", "the", "dogs"]
    assert by["nounpp.txt"] == [MinimalPair("nounpp singular plural", [*cat, "is"], [*cat, "are"])]
    assert by["verbs.jsonl"] == [MinimalPair("b", "Cats run.", "Cats runs.", whole=True, phenomenon="a")]
    assert by["mine.csv"] == [MinimalPair("one", "Cats run.", "Cats runs.", whole=True)]
    assert by["short.tsv"] == [MinimalPair("short", "The cat is", "The cat are")]
    assert by["set.gold"] == [MinimalPair("1 attractor", ['"', "cats", "are"], ['"', "cats", "is"])]
    first, second = by["items.tab"]
    assert first == MinimalPair("original plur 0 attractors", ["The", '"', "cats", "are"], ["The", '"', "cats", "is"])
    assert second.condition == "generated sing 1 attractors"
    assert (second.good[-1], second.bad[-1]) == ("is", "are")
    assert read_pairs(tmp_path) == [pair for name in sorted(given) for pair in by[name]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "sentence\nx\n", r"a.csv:1: the columns are sentence"),
        ("a.csv", "good,bad\nx,x\n", r"a.csv:2: expected two texts that differ"),
        ("a.csv", "good,bad\nx\n", r"a.csv:2: has 1 columns where the first line names 2"),
        ("a.csv", "", "a.csv: has no pairs"),
        ("a.tab", "prefix\tform\nx\ty\n", r"a.tab:1: has no column class"),
        ("a.tab", "prefix\tform\tclass\nx\ty\tcorrect\n", "has 1 rows"),
        ("a.tab", "prefix\tform\tclass\nx\ty\tcorrect\nx\tz\tcorrect\n", r"a.tab:2: expected two rows"),
        ("a.doc", "", r"minimal pairs are read from \.jsonl"),
        ("a.txt", "Cats\tx\tcorrect\tid\n", "differ in their last word"),
    ],
)
def test_a_broken_file_is_one_clear_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CorpusError, match=message):
        read_pairs(tmp_path / name)


def test_the_real_tasks_have_the_sizes_they_are_known_for(data: Callable[[str], Path]) -> None:
    counts = Counter(pair.condition for pair in read_pairs(data("tasks/agreement/lakretz")))
    assert counts["simple singular"] == 300
    assert counts["namepp plural"] == 900
    assert len(read_pairs(data("tasks/agreement/linzen"))) == 7489

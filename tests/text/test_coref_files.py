"""Documents with clusters, as CoNLL-2012, OntoGUM and JSON lines have them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from relmo.errors import CorpusError
from relmo.tasks.coref import conll
from relmo.text.readers.coref import CorefDocument, read_documents

# Two parts of one document, with white space between columns, as OntoNotes writes them.
CONLL = """\
#begin document (bc/cctv/00/cctv_0000); part 000
bc/cctv/00/cctv_0000   0   0    Anna   NNP  (TOP(S(NP*)   -   -   -   wu_dan     *    (ARG0*)   (7)
bc/cctv/00/cctv_0000   0   1     saw   VBD      (VP*   see  01   1   wu_dan     *      (V*)     -
bc/cctv/00/cctv_0000   0   2     her  PRP$     (NP*    -   -   -   wu_dan     *     (ARG1*  (2|(7)
bc/cctv/00/cctv_0000   0   3     dog    NN      *))    -   -   -   wu_dan     *        *)      2)

bc/cctv/00/cctv_0000   0   0      It   PRP   (TOP*)    -   -   -    Speaker#1  *    -   (2)

#end document
#begin document (bc/cctv/00/cctv_0000); part 001
bc/cctv/00/cctv_0000   1   0      So    RB   (TOP*)    -   -   -   -  *    -   -

#end document
"""
SHORT = """\
# begin document (GUM_court_loan); part 000
0\tHe\t(1)
1\tsaw\t_
2\tMr.\t(2
3\tLee\t2)
4\t.\t_
5\tThe\t(3(4
6\told\t_
7\tman\t4)
8\t\t3)
# end document
"""


def test_columns_parts_speakers_and_nested_mentions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.v4_gold_conll"
    path.write_text(CONLL)
    first, second = read_documents(path)
    assert (first.name, first.part, first.genre) == ("bc/cctv/00/cctv_0000", "000", "bc")
    assert first.sentences == [["Anna", "saw", "her", "dog"], ["It"]]
    assert first.clusters == [[(0, 1), (2, 3)], [(2, 4), (4, 5)]]
    assert list(first.speakers) == ["wu_dan"] * 4 + ["Speaker#1"]
    assert (second.part, second.sentences, second.clusters, list(second.speakers)) == ("001", [["So"]], [], [])


def test_the_short_form_is_split_into_sentences(tmp_path: Path) -> None:
    path = tmp_path / "gum.conll"
    path.write_text(SHORT)
    (document,) = read_documents(path)
    assert document.genre == "court"
    assert document.sentences == [["He", "saw", "Mr.", "Lee", "."], ["The", "old", "man", "_"]]
    assert document.clusters == [[(0, 1)], [(2, 4)], [(5, 8)], [(5, 9)]]


def test_json_lines_are_those_of_e2e_coref(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = {
        "doc_key": "nw/1",
        "sentences": [["A", "b"], ["c"]],
        "clusters": [[[2, 2], [0, 1]]],
        "speakers": [["x", "x"], ["-"]],
    }
    path.write_text(json.dumps(row))
    (document,) = read_documents(path)
    assert document == CorefDocument("nw/1", "0", [["A", "b"], ["c"]], [[(0, 2), (2, 3)]], ["x", "x", ""])
    assert document.genre == "nw"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(CONLL)
    documents = list(read_documents(path))
    path.write_text("\n".join(conll(document, document.clusters) for document in documents))
    assert list(read_documents(path)) == documents


def test_all_columns_are_written_again_where_they_were_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(CONLL)
    written = "\n".join(conll(document, document.clusters) for document in read_documents(path, columns=True))
    before, after = ([line.split() for line in text.splitlines() if line[:1] == "b"] for text in (CONLL, written))
    assert [line[:-1] for line in after] == [line[:-1] for line in before]
    assert [line[-1] for line in after] == ["(0)", "-", "(1|(0)", "1)", "(1)", "-"]


def test_a_mention_of_two_clusters_is_one(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("#begin document (a); part 0\n0\tIt\t(1)(2)\n1\tit\t(2)\n")
    assert next(read_documents(path)).clusters == [[(0, 1)], [(1, 2)]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no document"),
        ("0\tHe\t(1)\n", ":1: expected a line such as '#begin document"),
        ("#begin document (a)\n0\tHe\n", ":2: expected the columns of CoNLL-2012 .* found 2 columns"),
        ("#begin document (a)\n0\tHe\t(1\n1\tshe\t-\n#end document\n", ":4: a mention of cluster 1 has no end"),
        ("#begin document (a)\n0\tHe\t1)\n", ":2: a mention of cluster 1"),
        ("#begin document (a)\n0\tHe\t(x)\n", r":2: the last column .* not '\(x\)'"),
        ("#begin document (a)\n0\tHe\t" + "(111111111)" * 500 + "x\n", ":2: the last column"),
    ],
)
def test_a_broken_file_is_one_line_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(text)
    with pytest.raises(CorpusError, match=says):
        list(read_documents(tmp_path / "a.conll"))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"sentences": ["a"]}, "sentences must be"),
        ({"sentences": [["a"]], "clusters": 1}, "clusters must be"),
        (
            {"sentences": [["a"]], "clusters": [[[0, 1]]]},
            r"a mention must be .* not \[0, 1",
        ),
        ({"sentences": [["a"]], "clusters": [[[True, 0]]]}, "a mention must be"),
        ({"sentences": [["a"]], "speakers": 3}, "speakers must be a list"),
        ({"sentences": [["a"]], "speakers": [["x", "y"]]}, "speakers must have"),
        ({"sentences": [["a"]], "doc_key": 3}, "doc_key must be"),
    ],
)
def test_broken_json_is_one_line_with_its_place(row: dict[str, object], says: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(CorpusError, match=f"jsonl:1: {says}"):
        list(read_documents(tmp_path / "a.jsonl"))


def test_no_mention_of_ontogum_crosses_a_sentence_end_that_we_find(data: Callable[[str], Path]) -> None:
    documents = list(read_documents(data("tasks/coref_gum/ontogum_dev.conll")))
    assert len(documents) == 30
    for document in documents:
        sentence = [number for number, words in enumerate(document.sentences) for _ in words]
        assert all(sentence[start] == sentence[end - 1] for cluster in document.clusters for start, end in cluster)
    assert sum(len(document.sentences) for document in documents) > 1000


def test_litbank_is_read_with_its_singletons(data: Callable[[str], Path]) -> None:
    (document,) = read_documents(data("tasks/coref_litbank/conll/11_alices_adventures_in_wonderland_brat.conll"))
    assert len(document.words) > 2000
    assert any(len(cluster) == 1 for cluster in document.clusters)
    assert max(map(len, document.clusters)) > 100

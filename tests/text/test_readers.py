"""Files of the field as typed examples; every mistake with its line."""

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relmo.errors import CorpusError
from relmo.text.readers.labelled import Labelled, TextPair, read_labelled, read_pairs
from relmo.text.readers.tagged import TaggedWords, read_tagged
from relmo.text.tokenize import words

CONLLU = (
    "# text = vámonos al mar\n1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_\n1\tvamos\tir\tVERB\tV\t_\t0\troot\t_\t_\n"
    "2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_\n2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n\n\n1\tMar\tmar\tNOUN\tN\t_\t0\troot\t_\t_"
)
IOB2 = "# sent_id = 1\n# text = in\ttampa\n1\tin\tO\t-\t-\n2\ttampa\tB-LOC\t-\tx\n\n# text = #\n1\t#\tO\t-\t-\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_conllu_gives_words_and_the_asked_column_without_ranges_and_empty_nodes(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conllu", CONLLU)
    found = list(read_tagged(path))
    assert [each[:2] for each in found] == [(["vamos", "nos"], ["VERB", "PRON"]), (["Mar"], ["NOUN"])]
    assert [found.tags for found in read_tagged(path, column="XPOS")] == [["V", "P"], ["N"]]
    assert [found.tags for found in read_tagged(path, column="8")] == [["root", "obj"], ["root"]]


def test_compressed_files_are_told_by_the_name_below_the_compression(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu.gz"
    path.write_bytes(gzip.compress(CONLLU.encode()))
    assert len(list(read_tagged(path))) == 2


def test_columns_are_counted_words_or_word_and_tag_with_tabs_or_spaces(tmp_path: Path) -> None:
    counted = write(tmp_path, "a.iob2", IOB2)
    assert list(read_tagged(counted)) == [TaggedWords(["in", "tampa"], ["O", "B-LOC"]), TaggedWords(["#"], ["O"])]
    two = write(tmp_path, "b.conll", "#a\tO\n1\tB-X\n\n# c\n2\tO\n")
    assert list(read_tagged(two)) == [TaggedWords(["#a", "1"], ["O", "B-X"]), TaggedWords(["2"], ["O"])]
    spaces = write(tmp_path, "c.txt", "-DOCSTART- -X- -X- O\n\nEU NNP I-NP I-ORG\n# NN I-NP O\n")
    assert list(read_tagged(spaces)) == [TaggedWords(["EU", "#"], ["I-ORG", "O"])]
    assert list(read_tagged(spaces, column="2")) == [TaggedWords(["EU", "#"], ["NNP", "NN"])]


EU, IT = TaggedWords(["EU", "rejects"], ["B-ORG", "O"]), TaggedWords(["It"], ["O"])


@pytest.mark.parametrize(
    "text",
    [
        "-DOCSTART- -X- O\nEU NNP B-ORG\nrejects VBZ O\n\nIt PRP O\n",
        "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n-DOCSTART- -X- O\nIt PRP O\n",
        "-DOCSTART-\nEU NNP B-ORG\nrejects VBZ O\n-DOCSTART-\n\nIt PRP O\n-DOCSTART-",
        "-DOCSTART- -X- -X- O (1)\nEU\tB-ORG\nrejects\tO\n\t\n-DOCSTART-\tO\nIt\tO\n",
        "1\t-DOCSTART-\tO\n2\tEU\tB-ORG\n3\trejects\tO\n\n1\tIt\tO",
    ],
)
def test_the_start_of_a_document_ends_a_sentence_and_takes_none_with_it(tmp_path: Path, text: str) -> None:
    assert list(read_tagged(write(tmp_path, "a.txt", text))) == [EU, IT]


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("blank", ["", "  ", "\t"])
@pytest.mark.parametrize("last", [True, False])
def test_ends_of_lines_blanks_and_marks_change_no_sentence(
    tmp_path: Path, start: str, end: str, blank: str, last: bool
) -> None:
    for tab in ("\t", " "):
        lines = [f"EU{tab}B-ORG", f"rejects{tab}O", blank, blank, f"It{tab}O"]
        (tmp_path / "a.txt").write_bytes((start + end.join(lines) + end * last).encode())
        assert list(read_tagged(tmp_path / "a.txt")) == [EU, IT]


def test_comments_are_no_words_and_words_that_begin_with_a_hash_no_comments(tmp_path: Path) -> None:
    comments = write(tmp_path, "a.txt", "# sent_id = 1\n# C O O\nIt P O O\n\n# sent_id = 2\nIt P O O\n")
    assert [found.words for found in read_tagged(comments)] == [["#", "It"], ["It"]]
    tabs = write(tmp_path, "b.txt", "It\tO \n# text = in\ttampa\nIt\tO\n")
    assert list(read_tagged(tabs)) == [TaggedWords(["It", "It"], ["O", "O"])]


def test_blank_lines_say_nothing_in_any_file(tmp_path: Path) -> None:
    trees = write(tmp_path, "sst.txt", "\n(0 -LRB-)\n  \n")
    cola = write(tmp_path, "cola.tsv", " \ngj04\t1\t\tGood\n\n")
    table = write(tmp_path, "a.tsv", "\nlabel\ttext\n\n1\tGood\n \n")
    assert list(read_labelled(trees, split=words)) == [Labelled(["("], "0")]
    assert [list(read_labelled(path, split=words)) for path in (cola, table)] == [[Labelled(["Good"], "1")]] * 2
    sts = write(tmp_path, "sts.csv", "\ng\tf\t2012\t1\t5.000\tA\tc\n\n")
    assert list(read_pairs(sts, split=words, numbers=True)) == [TextPair(["A"], ["c"], 5.0)]


def test_an_underscore_is_no_tag_in_the_columns_of_conllu_that_may_be_unspecified(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conllu", "1\ta\t_\tDET\t_\t_\t0\troot\t_\t_\n2\tb\t_\t_\tN\tX=Y\t1\t_\t_\t_\n")
    tags = {column: next(read_tagged(path, column=column)).tags for column in ("upos", "5", "deprel", "feats")}
    assert tags == {"upos": ["DET", ""], "5": ["", "N"], "deprel": ["root", ""], "feats": ["_", "X=Y"]}
    assert next(read_tagged(write(tmp_path, "a.tsv", "a\tDET\nb\t_\n"))).tags == ["DET", "_"]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.csv", "text,label\ngood,pos\nbad,\n", 3),
        ("a.csv", "text,label\ngood,NaN\n", 2),
        ("a.tsv", "text\tlabel\ngood\t nan\n", 2),
        ("a.jsonl", '{"text": "good", "label": NaN}\n', 1),
        ("a.jsonl", '{"text": "good", "label": null}\n', 1),
        ("cola.tsv", "gj04\t1\t\tGood\ngj04\t\t\tbad\n", 2),
    ],
)
def test_a_missing_label_is_an_error_with_its_place(tmp_path: Path, name: str, text: str, line: int) -> None:
    with pytest.raises(CorpusError, match=rf"{name}:{line}: the label is missing"):
        list(read_labelled(write(tmp_path, name, text), split=words))


def test_json_lines_hold_lists_of_words_and_tags(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"tokens": ["a b", "c"], "tags": ["X", "Y"], "other": ["P", "Q"]}\n\n')
    assert list(read_tagged(path)) == [TaggedWords(["a b", "c"], ["X", "Y"])]
    assert list(read_tagged(path, column="other")) == [TaggedWords(["a b", "c"], ["P", "Q"])]


@pytest.mark.parametrize(
    ("name", "text", "options", "says"),
    [
        ("a.conllu", "1\ta\t_\n", {}, "a.conllu:1: CoNLL-U has 10 columns"),
        ("a.conllu", CONLLU, {"column": "pos"}, "no column 'pos'"),
        ("a.conllu", CONLLU, {"column": "11"}, "no column '11'"),
        ("a.conllu", "# only a comment\n", {}, "no sentence"),
        ("a.conllu", "1\ta\t_\t \t_\t_\t_\t_\t_\t_\n", {}, "a.conllu:1: the tag is missing"),
        ("a.iob2", "1\ta\tO\n\n2\tb\n", {}, "a.iob2:3: has 2 columns, the lines before have 3"),
        ("a.txt", "word\n", {}, "a.txt:1: expected a word and its tag"),
        ("a.txt", "a b\n", {"column": "3"}, "no column '3'; give a number from 1 to 2"),
        ("a.jsonl", '{"words": ["a"], "tags": []}\n', {}, "a.jsonl:1: expected as many tags as words"),
        ("a.jsonl", '{"words": "a", "tags": "b"}\n', {}, "both lists of strings"),
        ("a.jsonl", '{"words": ["a"]}\n', {}, "there is no key tags or ner_tags or labels; the keys are words"),
        ("a.jsonl", "[1]\n", {}, "expected a JSON object"),
        ("a.jsonl", "{\n", {}, "a.jsonl:1: is not a JSON object"),
        ("a.jsonl", "[" * 100_000, {}, "a.jsonl:1: is not a JSON object"),
        ("a.jsonl", f'{{"n": {"9" * 5000}}}', {}, "a.jsonl:1: is not a JSON object"),
        ("a.jsonl", '{"words": ["\\ud83d"], "tags": ["O"]}', {}, "a.jsonl:1: contains an unpaired surrogate"),
    ],
)
def test_a_mistake_in_a_tagged_file_is_one_line_with_its_place(
    tmp_path: Path, name: str, text: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(CorpusError) as error:
        list(read_tagged(write(tmp_path, name, text), **options))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_bytes_that_are_not_utf8_are_an_error_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_bytes(b"a\tO\nb\xff\tO\n")
    with pytest.raises(CorpusError, match=r"a.conll:2: byte 0xff"):
        list(read_tagged(tmp_path / "a.conll"))
    assert next(iter(read_tagged(tmp_path / "a.conll", errors="replace"))).words == ["a", "b\ufffd"]


def test_trees_give_the_sentence_or_all_its_phrases_without_escapes(tmp_path: Path) -> None:
    path = write(tmp_path, "sst.txt", "(3 (2 It) (4 (2 's) (1 a\\/b)))\n\n(0 -LRB-)\n")
    assert list(read_labelled(path, split=words)) == [Labelled(["It", "'s", "a/b"], "3"), Labelled(["("], "0")]
    assert list(read_labelled(path, split=words, subtrees=True)) == [
        Labelled(["It"], "2"),
        Labelled(["'s"], "2"),
        Labelled(["a/b"], "1"),
        Labelled(["'s", "a/b"], "4"),
        Labelled(["It", "'s", "a/b"], "3"),
        Labelled(["("], "0"),
    ]


@pytest.mark.parametrize("tree", ["(3 (2 It)", "(3 It))", "(3 It) x", "(3 )", "(3 (2 ) a)", "((3 It))", "3 It)"])
def test_a_broken_tree_is_an_error_with_its_line(tmp_path: Path, tree: str) -> None:
    path = write(tmp_path, "sst.txt", f"(2 fine)\n{tree}\n")
    with pytest.raises(CorpusError, match=r"sst.txt:2: "):
        list(read_labelled(path, split=words, layout="trees"))


def test_tables_cola_json_and_folders_give_labelled_texts(tmp_path: Path) -> None:
    expected = [Labelled(["It", "'s", "bad", "."], "neg"), Labelled(["Good"], "pos")]
    table = write(tmp_path, "a.tsv", "id\tlabel\ttext\n1\tneg\tIt's bad.\n2\tpos\tGood\n")
    assert list(read_labelled(table, split=words)) == expected
    lines = write(tmp_path, "a.jsonl", '{"text": "It\'s bad.", "label": "neg"}\n{"text": ["Good"], "label": "pos"}\n')
    assert list(read_labelled(lines, split=words)) == expected
    cola = write(tmp_path, "cola.tsv", "gj04\t1\t\tGood\ngj04\t0\t*\tbad it\n")
    assert list(read_labelled(cola, split=words)) == [Labelled(["Good"], "1"), Labelled(["bad", "it"], "0")]
    for label, text in (("neg", "It's bad."), ("pos", "Good"), ("unsup", "what")):
        (tmp_path / "imdb" / label).mkdir(parents=True)
        write(tmp_path / "imdb" / label, "1_1.txt", text)
    assert list(read_labelled(tmp_path / "imdb", split=words)) == expected
    for path in (cola, tmp_path / "imdb"):
        with pytest.raises(CorpusError, match="column has no effect"):
            list(read_labelled(path, split=words, column="label"))
    with pytest.raises(CorpusError, match=r"a.tsv:1: there is no column stars; .* with --column"):
        list(read_labelled(table, split=words, column="stars"))
    empty = write(tmp_path, "c.tsv", "label\ttext\npos\ta\n \tb\n")
    with pytest.raises(CorpusError, match=r"c.tsv:3: the label is missing"):
        list(read_labelled(empty, split=words))
    other = write(tmp_path, "b.tsv", "label\tstars\ttext\nneg\t1\ta\n")
    assert next(iter(read_labelled(other, split=words, column="stars"))).label == "1"


def test_pairs_come_from_snli_sick_sts_and_json(tmp_path: Path) -> None:
    snli = write(tmp_path, "s.tsv", "gold_label\tsentence1\tsentence2\nneutral\tA man.\tHe\n-\ta\tb\n")
    assert list(read_pairs(snli, split=words)) == [TextPair(["A", "man", "."], ["He"], "neutral")]
    sick = write(
        tmp_path,
        "sick.txt",
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\ta b\tc\t4.5\tNEUTRAL\n",
    )
    assert list(read_pairs(sick, split=words)) == [TextPair(["a", "b"], ["c"], "NEUTRAL")]
    assert next(iter(read_pairs(sick, split=words, numbers=True))).label == 4.5
    assert next(iter(read_pairs(sick, split=words, column="pair_ID", numbers=True))).label == 1
    sts = write(tmp_path, "sts.csv", 'g\tf\t2012\t1\t5.000\tA "b"\tc\td\te\n')
    assert list(read_pairs(sts, split=str.split, numbers=True)) == [TextPair(["A", '"b"'], ["c"], 5.0)]
    for more in ({}, {"numbers": True, "column": "score"}):
        with pytest.raises(CorpusError, match=r"STS-B.*--preset stsb"):
            list(read_pairs(sts, split=words, **more))  # type: ignore[arg-type]
    lines = write(tmp_path, "p.jsonl", '{"premise": "a", "hypothesis": "b", "label": 1}\n')
    assert list(read_pairs(lines, split=words)) == [TextPair(["a"], ["b"], "1")]


@pytest.mark.parametrize(
    ("text", "numbers", "says"),
    [
        ("label\tsentence1\n", False, "no pair"),
        ("label\tsentence1\nx\ta\n", False, "p.tsv:1: there is no column sentence2 or"),
        ("label\tsentence1\tsentence2\nx\ta\n", False, "p.tsv:2: has 2 columns, the first line has 3"),
        ("label\tsentence1\tsentence2\nx\ta\t \n", False, "p.tsv:2: the text is empty"),
        ("label\tsentence1\tsentence2\nx\ta\tb\n", True, "p.tsv:2: 'x' is not a number"),
        ("label\tsentence1\tsentence2\nnan\ta\tb\n", True, "p.tsv:2: the label is missing"),
        ("label\tsentence1\tsentence2\n \ta\tb\n", False, "p.tsv:2: the label is missing"),
        ("one column\n", False, "p.tsv:1: expected the first line of a table"),
    ],
)
def test_a_mistake_in_a_table_of_pairs_is_one_line_with_its_place(
    tmp_path: Path, text: str, numbers: bool, says: str
) -> None:
    with pytest.raises(CorpusError) as error:
        list(read_pairs(write(tmp_path, "p.tsv", text), split=words, numbers=numbers))
    assert says in str(error.value)


def test_the_real_files_hold_what_their_authors_say(data: Callable[[str], Path]) -> None:
    entities = [tag for example in read_tagged(data("tasks/ner_wnut17/wnut17train.conll")) for tag in example.tags]
    assert Counter(tag[0] for tag in entities)["B"] == 1975
    trees = list(read_labelled(data("tasks/sst5/dev.txt"), split=words))
    assert len(trees) == 1101
    assert Counter(label for _, label in trees) == {"0": 139, "1": 289, "2": 229, "3": 279, "4": 165}
    assert len(list(read_pairs(data("tasks/stsb/sts-dev.csv"), split=words, numbers=True))) == 1500
    assert len(list(read_labelled(data("tasks/cola/in_domain_dev.tsv"), split=words))) == 527

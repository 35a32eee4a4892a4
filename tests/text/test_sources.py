"""Texts as users have them: lines, columns of tables, prose; and tables as the csv module reads them."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from relmo.errors import CorpusError
from relmo.settings.bilm import BiLMTextSettings
from relmo.settings.lm import TextSettings
from relmo.text import sources
from relmo.text.corpus import STDIN
from relmo.text.encode import encode_corpus, encode_sentence_corpus
from relmo.text.readers.labelled import read_labelled, read_pairs
from relmo.text.readers.tables import table_rows
from relmo.text.readers.tagged import read_tagged
from relmo.text.sources import SourceText, TableColumns, find_words, fold_case, read_texts, split_lines
from relmo.text.tokenize import split_tokens, tokenize, words

FIELDS = [["id", "text", "note"], ["7", 'He said "no", twice', ""], ["8", "two\nlines", "x;y\tz"], ["9", "", "é"]]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def values(path: Path) -> list[list[str]]:
    return [list(row.values.values()) for row in table_rows(path, "strict")]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_is_read_as_the_csv_module_writes_it(tmp_path: Path, delimiter: str) -> None:
    made = io.StringIO()
    csv.writer(made, delimiter=delimiter).writerows(FIELDS)
    path = tmp_path / "a.csv"
    path.write_bytes(("\ufeff" + made.getvalue()).encode())
    assert values(path) == FIELDS[1:]
    assert [row.place.rsplit(":", 1)[1] for row in table_rows(path, "strict")] == ["2", "3", "5"]


def test_a_table_with_tabs_has_a_row_a_line_and_quotes_only_where_they_make_sense(tmp_path: Path) -> None:
    text = 'label\ttext\n1\t"quoted ""so"" it is"\n2\t"Hi" he said\n3\t"an open one\n4\tsays "x"\n"5"\t"a\tb"\n'
    assert values(write(tmp_path / "a.tsv", text)) == [
        ["1", 'quoted "so" it is'],
        ["2", '"Hi" he said'],
        ["3", '"an open one'],
        ["4", 'says "x"'],
        ["5", "a\tb"],
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", 'id,text\n1,"open\n2,x\n', r"a.csv:2: this row .*unexpected end of data"),
        ("a.csv", "id,text\n1\n", r"a.csv:2: has 1 columns, the first line has 2"),
        ("a.csv", "id,words\n1,x\n", r"a.csv:1: the columns of this table are id, words.*--column NAME"),
        ("a.tsv", "id\tnote\n1\tx\n", r"a.tsv:1: the columns of this table are id, note"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_line_with_its_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(CorpusError, match=message):
        list(read_texts(write(tmp_path / name, text)))


def test_a_column_of_a_table_is_its_text_and_the_id_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'Id,text,other\nq1,"A cat, so",x y\nq2,"two\nlines",z\n')
    assert list(read_texts(path)) == [
        SourceText("A cat, so", line=2, name="q1", row=1, columns={"Id": "q1", "text": "A cat, so", "other": "x y"}),
        SourceText("two lines", line=3, name="q2", row=2, columns={"Id": "q2", "text": "two\nlines", "other": "z"}),
    ]
    other = list(read_texts(path, columns=TableColumns("other", "text")))
    assert [(text.text, text.name) for text in other] == [("x y", "A cat, so"), ("z", "two\nlines")]
    assert other[0].columns == {"text": "A cat, so"}
    several = next(read_texts(path, columns=TableColumns("text", "other", ("Id", "other"))))
    assert (several.name, several.columns) == ("x y", {"other": "x y", "Id": "q1"})
    with pytest.raises(CorpusError, match=r"'txt' \(--id\)"):
        list(read_texts(path, columns=TableColumns("text", "other", ("txt",))))
    with pytest.raises(CorpusError, match=r"there is no column 'txt' .*Id, text, other"):
        list(read_texts(path, columns=TableColumns("txt")))
    assert [text.text for text in read_texts(write(tmp_path / "one.csv", "w\nx\n"))] == ["x"]


def test_a_table_in_parquet_is_read_like_one_with_commas(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"id": [7, 8, 9], "text": ["A bank.", None, "one\ntwo"], "n": [1, 2, 3]}), path)
    assert [(text.text, text.name, text.line) for text in read_texts(path)] == [
        ("A bank.", "7", 1),
        ("", "8", 2),
        ("one two", "9", 3),
    ]
    assert [text.text for text in read_texts(path, columns=TableColumns("n"))] == ["1", "2", "3"]
    with pytest.raises(CorpusError, match="there is no column 'x'"):
        list(read_texts(path, columns=TableColumns("x")))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorpusError, match=r"t.parquet: cannot be read as .parquet"):
        list(read_texts(path))
    with pytest.raises(CorpusError, match=r"none.parquet: cannot be read as .parquet \(no such file\)"):
        list(read_texts(tmp_path / "none.parquet"))


def test_a_csv_is_never_read_as_plain_text(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a.csv", "id,text\n1,a cat\n"))
    with pytest.raises(CorpusError, match=r"a.csv: is a table"):
        encode_corpus([path], TextSettings(), tmp_path)
    with pytest.raises(CorpusError, match=r"a.csv: is a table"):
        encode_sentence_corpus([path], BiLMTextSettings(), tmp_path)
    with pytest.raises(CorpusError, match=r"a.csv: is a table"):
        list(read_tagged(path))


def test_texts_and_labels_are_in_the_columns_that_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'stars,comment,reply\n5,"Good, very",Thanks\n1,Bad,"Oh, no"\n')
    (good, bad) = read_labelled(path, split=words, column="stars", text_column="comment")
    assert (good.label, good.words) == ("5", ["Good", ",", "very"])
    assert bad.words == ["Bad"]
    (first, _) = read_pairs(path, split=words, column="stars", text_columns=("comment", "reply"))
    assert (first.first, first.second, first.label) == (["Good", ",", "very"], ["Thanks"], "5")
    with pytest.raises(CorpusError, match=r"no column text or sentence or review; .* are stars, comment, reply"):
        list(read_labelled(path, split=words, column="stars"))


def test_prose_is_split_into_sentences_over_wrapped_lines_and_at_empty_ones(tmp_path: Path) -> None:
    wrapped = "Chapter 1\n\nMr. Fox ran\naway. He was\nquick! Was\n  he?\n\nYes.\n"
    found = list(read_texts(write(tmp_path / "a.txt", wrapped), split="sentences"))
    assert [(text.line, text.text) for text in found] == [
        (1, "Chapter 1"),
        (3, "Mr. Fox ran away."),
        (4, "He was quick!"),
        (5, "Was   he?"),
        (8, "Yes."),
    ]
    long = "It is so. " * 20
    found = list(read_texts(write(tmp_path / "b.txt", f"A heading\n{long}\nThe end\n"), split="sentences"))
    assert [text.text for text in found] == ["A heading", *["It is so."] * 20, "The end"]
    table = write(tmp_path / "c.csv", 'id,text\n1,"One. Two."\n2,Three.\n')
    split = read_texts(table, split="sentences")
    assert [(text.name, text.text) for text in split] == [("1", "One."), ("1", "Two."), ("2", "Three.")]


def test_a_paragraph_without_an_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_PARAGRAPH", 20)
    text = "so and so and so\n" * 5
    assert len(list(read_texts(write(tmp_path / "a.txt", text), split="sentences"))) == 3


def test_lines_of_a_string_are_those_of_a_file_that_holds_it(tmp_path: Path) -> None:
    for text in ("a b\n\nc", "a\n", "", "\n", "a"):
        assert list(split_lines(text)) == list(read_texts(write(tmp_path / "a.txt", text)))


def test_words_are_found_in_their_text() -> None:
    text = " Don't   go, İstanbul ΑΣ!  "
    for lowercase in (False, True):
        low, origins = fold_case(text) if lowercase else (text, np.arange(len(text) + 1))
        tokens = tokenize(low)
        found = find_words(text, [token.text for token in tokens], lowercase=lowercase)
        assert [text[start:end] for start, end in found.tolist()] == [token.text for token in tokenize(text)]
        assert len(origins) == len(low) + 1


def paragraphs(path: Path) -> Iterator[tuple[str, set[tuple[int, int]]]]:
    """The texts of a treebank, put together from its words, with where its sentences are."""
    text, spans = "", set()
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        if text and any(line.startswith(("# newdoc", "# newpar")) for line in block.split("\n")):
            yield text, spans
            text, spans = "", set()
        start, covered = len(text), 0
        for fields in (line.split("\t") for line in block.split("\n") if not line.startswith("#")):
            if "-" in fields[0]:
                covered = int(fields[0].split("-")[1])
            elif "." in fields[0] or int(fields[0]) <= covered:
                continue
            text += fields[1] + ("" if "SpaceAfter=No" in fields[9] else " ")
        spans.add((start, len(text.rstrip())))
    yield text, spans


@pytest.mark.parametrize(("treebank", "least"), [("en_ewt", 0.80), ("fr_sequoia", 0.77), ("af_afribooms", 0.99)])
def test_sentences_of_a_treebank_are_found(data: Callable[[str], Path], treebank: str, least: float) -> None:
    found = right = wanted = 0
    for text, spans in paragraphs(data(f"tasks/pos_ud/{treebank}/{treebank}-ud-dev.conllu")):
        split = {(tokens[0].start, tokens[-1].end) for tokens in split_tokens(text, tokenize(text)) if tokens}
        found, right, wanted = found + len(split), right + len(split & spans), wanted + len(spans)
    assert 2 * right / (found + wanted) > least


def test_standard_input_is_a_table_where_a_column_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ('id,said\n1,"a, b"\n', "id\tsaid\n1\ta, b\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert [(each.name, each.text) for each in read_texts(STDIN, columns=TableColumns("said"))] == [("1", "a, b")]


def test_conllu_has_nothing_to_choose(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", "1\ta" + "\t_" * 8 + "\n")
    assert [each.words for each in read_texts(path)] == [["a"]]
    for asked in ({"columns": TableColumns("text")}, {"split": "sentences"}):
        with pytest.raises(CorpusError, match=r"a.conllu: .*no columns"):
            read_texts(path, **asked)  # type: ignore[arg-type]


def test_fasta_has_sequences_of_single_letters(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fasta", "\n>sp|P1|A protein A\nMKt\nLV*\n\n>second\nAC\n>empty\n")
    texts = list(read_texts(path))
    assert [(text.name, "".join(text.words or ())) for text in texts] == [
        ("sp|P1|A", "MKTLV"),
        ("second", "AC"),
        ("empty", ""),
    ]
    assert [text.line for text in texts] == [2, 6, 8]
    with pytest.raises(CorpusError, match="no columns"):
        read_texts(path, split="sentences")
    with pytest.raises(CorpusError, match=r"b.faa:1: .*header"):
        list(read_texts(write(tmp_path / "b.faa", "MKT\n")))

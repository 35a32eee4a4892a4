"""Pairs of texts in every layout; a broken file is one line with its place."""

import json
from pathlib import Path

import pytest

from relmo.errors import CorpusError, SettingError
from relmo.text.readers.parallel import TextToText, read_parallel

DATA = Path("data/tasks")
EXPECTED = [("A dog.", ["Ein Hund."]), ("Two, cats", ['Zwei "Katzen"'])]


def written(folder: Path, layout: str) -> str:
    files = {
        "a.en": "A dog.\nTwo, cats\n",
        "a.de": 'Ein Hund.\nZwei "Katzen"\n',
        "bare.tsv": 'A dog.\tEin Hund.\tmore\n\nTwo, cats\tZwei "Katzen"\n',
        "named.tsv": 'Source\tTarget\nA dog.\tEin Hund.\nTwo, cats\tZwei "Katzen"\n',
        "pairs.csv": 'A dog.,Ein Hund.\n"Two, cats","Zwei ""Katzen"""\n',
        "pairs.jsonl": '{"source": ["A", "dog."], "target": "Ein Hund."}\n'
        + json.dumps({"source": "Two, cats", "target": ['Zwei "Katzen"']}),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return str(folder / layout) if layout in files else f"{folder / 'a.en'},{folder / 'a.de'}"


@pytest.mark.parametrize("layout", ["two files", "bare.tsv", "named.tsv", "pairs.csv", "pairs.jsonl"])
def test_every_layout_gives_the_same_pairs(layout: str, tmp_path: Path) -> None:
    assert [tuple(pair)[:2] for pair in read_parallel(written(tmp_path, layout))] == EXPECTED


def test_columns_by_name_and_number_and_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("id\ten\tde\n1\tdog\tHund\n")
    assert list(read_parallel(tmp_path / "t.tsv", columns="de,en")) == [TextToText("Hund", ["dog"])]
    first, _ = read_parallel(written(tmp_path, "bare.tsv"), columns="2,1")
    assert first == TextToText("Ein Hund.", ["A dog."])
    (tmp_path / "t.jsonl").write_text('{"q": "1 + 1", "a": ["2", "two"]}')
    assert list(read_parallel(tmp_path / "t.jsonl", columns="q,a")) == [TextToText("1 + 1", ["2", "two"])]


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        (
            "t.tsv",
            "a\tb\nc\n",
            None,
            "t.tsv:2: expected a source and a target",
        ),
        ("t.tsv", "a\tb\n \tc\n", None, "t.tsv:2: the text is empty; remove the pair"),
        ("t.tsv", "", None, "t.tsv: contains no pair"),
        ("t.tsv", "a\tb\n", "x,y", "t.tsv:1: there is no column 'x'"),
        ("t.tsv", "a\tb\n", "0,1", "t.tsv:1: there is no column '0'"),
        ("t.csv", 'a,b\n"c,d\n', None, "t.csv:2: this row"),
        ("t.jsonl", '{"source": 3, "target": "x"}', None, "t.jsonl:1: a text must be"),
        ("t.jsonl", '{"source": "a", "target": []}', None, "t.jsonl:1: a text must be"),
        ("t.jsonl", '{"source": "a"}', None, "t.jsonl:1: there is no key target or tgt"),
    ],
)
def test_what_is_wrong_has_a_place(name: str, text: str, columns: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CorpusError) as error:
        list(read_parallel(tmp_path / name, columns=columns))
    assert message in str(error.value)


def test_parallel_files_have_as_many_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("1\n")
    with pytest.raises(CorpusError, match="a: has more lines"):
        list(read_parallel(f"{tmp_path / 'a'},{tmp_path / 'b'}"))
    with pytest.raises(SettingError, match="--column"):
        list(read_parallel(f"{tmp_path / 'a'},{tmp_path / 'b'}", columns="1,2"))
    with pytest.raises(SettingError, match="takes two columns"):
        list(read_parallel(tmp_path / "a", columns="1"))


@pytest.mark.parametrize(
    ("path", "count", "source"),
    [
        ("multi30k/val.en,multi30k/val.de", 1014, "A group of men are loading cotton onto a truck"),
        ("tatoeba/fra.txt", 167130, "Go."),
        ("scitldr/dev.jsonl", 619, "Mixed precision training (MPT) is becoming"),
    ],
)
def test_the_files_of_the_field_are_read(path: str, count: int, source: str) -> None:
    whole = ",".join(str(DATA / part) for part in path.split(","))
    if not all(Path(part).is_file() for part in whole.split(",")):
        pytest.skip("the data is not here")
    pairs = list(read_parallel(whole))
    assert len(pairs) == count
    assert pairs[0].source.startswith(source)

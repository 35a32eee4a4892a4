"""Readers on the command line: train, evaluate, predict with a passage from a file, info, convert."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import relmo
from relmo.cli import main
from support.reading import questions
from support.tagging import conllu

Relmo = Callable[..., str]
SMALL = "--word-dim 12 --char-dim 0 --hidden 12 --dropout 0 --batch 16 --lr 0.02 --epochs 5 --device cpu --quiet"
TAGGER = "--word-dim 4 --char-dim 0 --hidden 4 --epochs 1 --device cpu --quiet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader in m, its files, and a passage."""
    folder = tmp_path_factory.mktemp("reader")
    train, dev = questions(folder / "train.json", 24), questions(folder / "dev.json", 6, seed=1)
    (folder / "town.txt").write_text("one day Carl\nwent to New York!\nsome say\n")
    with pytest.raises(SystemExit) as end:
        main(["train", "reader", str(train), "--valid", str(dev), *SMALL.split(), "--out", str(folder / "m")])
    assert end.value.code == 0
    return folder


def test_questions_about_a_file_are_answered_line_by_line(
    command: Relmo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = ["predict", folder / "m", "--passage", folder / "town.txt"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Who went?\n\nWhere to?\n")))
    lines = [line.split("\t") for line in command(*about).splitlines()]
    assert [line[:3] for line in lines] == [["Carl", "8", "12"], ["", "0", "0"], ["New York", "21", "29"]]
    (folder / "asked.txt").write_text("Who went?\nWhere to?\n")
    several = command(*about, folder / "asked.txt", "--best", 2)
    assert [len(block.splitlines()) for block in several.strip("\n").split("\n\n")] == [2, 2]
    assert several.startswith("Carl\t8\t12\t")


def test_json_lines_have_places_scores_and_what_was_asked(command: Relmo, folder: Path) -> None:
    (folder / "asked.txt").write_text("Who went?\n")
    found = json.loads(
        command("predict", folder / "m", folder / "asked.txt", "--passage", folder / "town.txt", "--json")
    )
    place = {"start": 8, "end": 12, "start_word": 2, "end_word": 3}
    assert found | {"score": 0} == {"question": "Who went?", "text": "Carl", **place, "score": 0}
    assert 0 < found["score"] <= 1
    (folder / "pairs.txt").write_text("Carl went to Rome!\tWho went?\n")
    found = json.loads(command("predict", folder / "m", folder / "pairs.txt", "--json", "--best", 2))
    assert (found["passage"], found["text"]) == ("Carl went to Rome!", "Carl")
    assert found["best"][0] == {key: found[key] for key in ("text", *place, "score")}
    assert len(found["best"]) == 2


def test_a_file_of_squad_is_answered_and_scored(command: Relmo, folder: Path) -> None:
    records = [
        json.loads(line) for line in command("predict", folder / "m", folder / "dev.json", "--json").splitlines()
    ]
    assert [record["id"] for record in records[:2]] == ["0-Who went?", "0-Where to?"]
    assert all(record["text"] == record["passage"][record["start"] : record["end"]] for record in records)
    at_spaces = ["--json", "--tokenizer", "whitespace"]
    split = json.loads(command("predict", folder / "m", folder / "dev.json", *at_spaces).splitlines()[1])
    assert not split["passage"][split["end"] : split["end"] + 1].strip()  # the mark behind a word is a part of it
    (folder / "asked.jsonl").write_text('{"id": "x", "passage": "Carl went to Rome!", "question": "Who went?"}\n')
    found = json.loads(command("predict", folder / "m", folder / "asked.jsonl", "--json"))
    assert (found["id"], found["text"]) == ("x", "Carl")
    two = questions(folder / "two.json", 6, seed=1, impossible=1)
    scores = json.loads(command("evaluate", folder / "m", folder / "dev.json", two, "--json"))["files"]
    assert scores[0]["f1"] > 0.9
    assert scores[1]["answerable_f1"] == pytest.approx(scores[0]["f1"])
    assert scores[1]["f1"] == pytest.approx(scores[0]["f1"] * 2 / 3)
    table = command("evaluate", folder / "m", folder / "dev.json", two)
    assert "exact_match" in table
    assert "answerable_f1" in table


def test_info_and_convert_know_a_reader(command: Relmo, folder: Path, tmp_path: Path) -> None:
    assert json.loads(command("info", folder / "m", "--json"))["kind"] == "reader"
    command("convert", folder / "m", tmp_path / "half", "--precision", "float16", "--quiet")
    assert float(command("evaluate", tmp_path / "half", folder / "dev.json", "--quiet")) > 0.9


def test_the_preset_is_the_published_network(command: Relmo, tmp_path: Path) -> None:
    assert [path.name for path in (Path(relmo.__file__).parent / "presets").glob("reader-*")] == ["reader-squad.toml"]
    train = questions(tmp_path / "train.json", 4)
    how = ["--preset", "squad", "--epochs", "0.5", "--device", "cpu", "--quiet"]
    command("train", "reader", train, *how, "--valid-fraction", "0.25", "--out", tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())["settings"]
    assert (config["model"]["hidden"], config["input"]["filters"], config["train"]["average"]) == (90, ["5x100"], 0.999)


def test_mistakes_are_one_line(command: Relmo, folder: Path, tmp_path: Path) -> None:
    tagger = conllu(tmp_path / "train.conllu", 20)
    command("train", "tagger", tagger, *TAGGER.split(), "--out", tmp_path / "tagger")
    for options in (["--best", 2], ["--passage", folder / "town.txt"]):
        errors = command("predict", tmp_path / "tagger", *options, code=2)
        assert options[0] in errors
        assert "a tagger" in errors
    for options in (["--format", "conll"], ["--html", tmp_path / "a.html"]):
        errors = command("predict", folder / "m", *options, code=2)
        assert options[0] in errors
        assert "a reader" in errors
    assert "best" in command("predict", folder / "m", "--best", 0, code=2)
    assert "no such file" in command("predict", folder / "m", "--passage", tmp_path / "none.txt", code=2)
    (tmp_path / "one.txt").write_text("Who?\n")
    assert "one.txt:1" in command("predict", folder / "m", tmp_path / "one.txt", code=2)
    out = ["--out", tmp_path / "m"]
    assert "max_words" in command("train", "reader", folder / "train.json", "--max-words", 0, *out, code=2)
    assert not (tmp_path / "m").exists()

"""Readers on the command line: train, evaluate, predict with a passage from a file, info, convert."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import relmo
from reading import questions
from relmo.cli import main
from tagging import conllu

Relmo = Callable[..., str]
SMALL = "--word-dim 12 --char-dim 0 --hidden 12 --dropout 0 --batch 16 --lr 0.02 --epochs 5 --device cpu --quiet"
TAGGER = "--word-dim 4 --char-dim 0 --hidden 4 --epochs 1 --device cpu --quiet"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Relmo:
    """A function that runs a command, which must end with `code`. -> its standard output, or error where it fails."""

    def command(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        output, errors = capsys.readouterr()
        assert end.value.code == code, errors
        return output if code == 0 else errors

    return command


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
    run: Relmo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = ["predict", folder / "m", "--passage", folder / "town.txt"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Who went?\n\nWhere to?\n")))
    lines = [line.split("\t") for line in run(*about).splitlines()]
    assert [line[:3] for line in lines] == [["Carl", "8", "12"], ["", "0", "0"], ["New York", "21", "29"]]
    (folder / "asked.txt").write_text("Who went?\nWhere to?\n")
    several = run(*about, folder / "asked.txt", "--best", 2)
    assert [len(block.splitlines()) for block in several.strip("\n").split("\n\n")] == [2, 2]
    assert several.startswith("Carl\t8\t12\t")


def test_json_lines_have_places_scores_and_what_was_asked(run: Relmo, folder: Path) -> None:
    (folder / "asked.txt").write_text("Who went?\n")
    found = json.loads(run("predict", folder / "m", folder / "asked.txt", "--passage", folder / "town.txt", "--json"))
    assert found | {"score": 0} == {"question": "Who went?", "text": "Carl", "start": 8, "end": 12, "score": 0}
    assert 0 < found["score"] <= 1
    (folder / "pairs.txt").write_text("Carl went to Rome!\tWho went?\n")
    found = json.loads(run("predict", folder / "m", folder / "pairs.txt", "--json", "--best", 2))
    assert (found["passage"], found["text"]) == ("Carl went to Rome!", "Carl")
    assert found["best"][0] == {key: found[key] for key in ("text", "start", "end", "score")}
    assert len(found["best"]) == 2


def test_a_file_of_squad_is_answered_and_scored(run: Relmo, folder: Path) -> None:
    records = [json.loads(line) for line in run("predict", folder / "m", folder / "dev.json", "--json").splitlines()]
    assert [record["id"] for record in records[:2]] == ["0-Who went?", "0-Where to?"]
    assert all(record["text"] == record["passage"][record["start"] : record["end"]] for record in records)
    split = json.loads(run("predict", folder / "m", folder / "dev.json", "--json", "--tokenized").splitlines()[1])
    assert not split["passage"][split["end"] : split["end"] + 1].strip()  # the mark behind a word is a part of it
    (folder / "asked.jsonl").write_text('{"id": "x", "passage": "Carl went to Rome!", "question": "Who went?"}\n')
    found = json.loads(run("predict", folder / "m", folder / "asked.jsonl", "--json"))
    assert (found["id"], found["text"]) == ("x", "Carl")
    two = questions(folder / "two.json", 6, seed=1, impossible=1)
    scores = json.loads(run("evaluate", folder / "m", folder / "dev.json", two, "--json"))["files"]
    assert scores[0]["f1"] > 0.9
    assert scores[1]["answerable_f1"] == pytest.approx(scores[0]["f1"])
    assert scores[1]["f1"] == pytest.approx(scores[0]["f1"] * 2 / 3)
    table = run("evaluate", folder / "m", folder / "dev.json", two)
    assert "exact_match" in table
    assert "answerable_f1" in table


def test_info_and_convert_know_a_reader(run: Relmo, folder: Path, tmp_path: Path) -> None:
    assert json.loads(run("info", folder / "m", "--json"))["kind"] == "reader"
    run("convert", folder / "m", tmp_path / "half", "--precision", "float16", "--quiet")
    assert float(run("evaluate", tmp_path / "half", folder / "dev.json", "--quiet")) > 0.9


def test_the_preset_is_the_published_network(run: Relmo, tmp_path: Path) -> None:
    assert [path.name for path in (Path(relmo.__file__).parent / "presets").glob("reader-*")] == ["reader-squad.toml"]
    train = questions(tmp_path / "train.json", 4)
    how = ["--preset", "squad", "--epochs", "0.5", "--device", "cpu", "--quiet"]
    run("train", "reader", train, *how, "--valid-fraction", "0.25", "--out", tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())["settings"]
    assert (config["model"]["hidden"], config["input"]["filters"], config["train"]["average"]) == (90, ["5x100"], 0.999)


def test_mistakes_are_one_line(run: Relmo, folder: Path, tmp_path: Path) -> None:
    tagger = conllu(tmp_path / "train.conllu", 20)
    run("train", "tagger", tagger, *TAGGER.split(), "--out", tmp_path / "tagger")
    both = "a reader and a sequence-to-sequence model"
    for whose, *options in ((both, "--best", 2), ("a reader", "--passage", folder / "town.txt")):
        said = run("predict", tmp_path / "tagger", *options, code=2)
        assert f"{options[0]} has a meaning for {whose} alone; this is a tagger" in said
    for options in (["--format", "conll"], ["--html", tmp_path / "a.html"]):
        said = run("predict", folder / "m", *options, code=2)
        assert f"{options[0]} has a meaning for a model of coreference alone; this is a reader" in said
    assert "best must be from 1" in run("predict", folder / "m", "--best", 0, code=2)
    assert "no such file" in run("predict", folder / "m", "--passage", tmp_path / "none.txt", code=2)
    (tmp_path / "one.txt").write_text("Who?\n")
    assert "one.txt:1: expected a passage and a question" in run("predict", folder / "m", tmp_path / "one.txt", code=2)
    out = ["--out", tmp_path / "m"]
    assert "max_words must be from 1" in run("train", "reader", folder / "train.json", "--max-words", 0, *out, code=2)
    assert not (tmp_path / "m").exists()

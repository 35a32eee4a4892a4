"""Labellers of semantic roles on the command line: train, evaluate, predict, convert, info, a pipe and a terminal."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from relmo.cli import main
from support.roles import roles

Run = Callable[..., tuple[int, str, str]]
SMALL = "--word-dim 8 --char-dim 0 --layers 2 --hidden 16 --mark-dim 4 --detector 6 --batch 8 --lr 0.03 --device cpu"
SENTENCE = "Anna sees Bob today who hears Carl.\n"
SHOWN = """\
Anna sees Bob today who hears Carl .
  sees   [ARG0 Anna]  [V sees]  [ARG1 Bob]  [ARGM-TMP today]
  hears  [ARG0 Bob]  [R-ARG0 who]  [V hears]  [ARG1 Carl]

"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, and a labeller that has learned all there is to learn."""
    folder = tmp_path_factory.mktemp("srl")
    train, dev = roles(folder / "train.jsonl", 60), roles(folder / "dev.jsonl", 20, seed=1)
    with pytest.raises(SystemExit) as end:
        main(
            [
                "train",
                "srl",
                str(train),
                "--valid",
                str(dev),
                *f"{SMALL} --epochs 6 --quiet --out {folder / 'm'}".split(),
            ]
        )
    assert end.value.code == 0
    return folder


def test_predicates_are_shown_with_their_roles_in_a_pipe(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = SimpleNamespace(buffer=io.BytesIO(SENTENCE.encode()), isatty=lambda: False, fileno=lambda: 0)
    monkeypatch.setattr("sys.stdin", stdin)
    assert run("predict", folder / "m") == (0, SHOWN, "")


def test_a_terminal_shows_them_in_colours(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text(SENTENCE)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color"}.items():  # as a terminal is to rich
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, shown, _ = run("predict", folder / "m", tmp_path / "text.txt")
    assert "\x1b[34m[ARG0 Bob]\x1b[0m" in shown
    assert "\x1b[1;31m[V hears]\x1b[0m" in shown


def test_records_have_the_places_of_predicates_and_roles(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(SENTENCE + "\nHello .\n")
    first, empty, hello = (
        json.loads(line) for line in run("predict", folder / "m", tmp_path / "text.txt", "--json")[1].splitlines()
    )
    assert [(each["text"], each["start"]) for each in first["predicates"]] == [("sees", 5), ("hears", 24)]
    role = first["predicates"][1]["roles"][0]
    assert 0 < role.pop("probability") <= 1
    place = {"start": 10, "end": 13, "start_word": 2, "end_word": 3}
    assert role == {"label": "ARG0", "text": "Bob", **place}
    assert empty == {"text": "", "tokens": [], "predicates": []}
    assert hello["predicates"] == []


def test_of_json_lines_the_predicates_are_those_of_the_file(run: Run, folder: Path, tmp_path: Path) -> None:
    given = {"words": SENTENCE.split(), "frames": [{"verb_index": 5, "tags": ["O"] * 7}]}
    (tmp_path / "given.jsonl").write_text(json.dumps(given))
    (record,) = map(json.loads, run("predict", folder / "m", tmp_path / "given.jsonl", "--json")[1].splitlines())
    assert [each["text"] for each in record["predicates"]] == ["hears"]


def test_the_field_s_scores_of_a_file(run: Run, folder: Path) -> None:
    _, shown, _ = run("evaluate", folder / "m", folder / "dev.jsonl", "--confusion")
    assert "verb_f1" in shown
    assert "ARGM-TMP" in shown
    assert "predicted labels" in shown
    (file,) = json.loads(run("evaluate", folder / "m", folder / "dev.jsonl", "--json")[1])["files"]
    assert file["metric"] == "f1"
    assert file["f1"] == file["verb_f1"] == file["found_f1"] == file["predicate_f1"] == 1.0
    assert run("convert", folder / "m", folder / "half", "--precision", "float16", "--quiet")[0] == 0
    assert run("evaluate", folder / "half", folder / "dev.jsonl", "--quiet")[1] == "1.000000\n"
    assert json.loads(run("info", folder / "m", "--json")[1])["kind"] == "srl"
    assert "made with relmo" in (folder / "m" / "README.md").read_text()


def test_a_line_that_is_no_sentence_is_refused_with_its_place(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(SENTENCE + "a " * 1001 + "\n")
    status, _, said = run("predict", folder / "m", tmp_path / "text.txt")
    assert status == 2
    assert f"{tmp_path / 'text.txt'}:2: the sentence has 1,001 words" in said


def test_the_preset_is_the_published_network(run: Run, folder: Path, tmp_path: Path) -> None:
    arguments = ["train", "srl", folder / "train.jsonl", "--preset", "propbank", "--hidden", 8, "--mark-dim", 4]
    status, shown, said = run(*arguments, "--detector", 4, "--epochs", 1, "--json", "--out", tmp_path / "m")
    assert status == 0, said
    assert json.loads(shown)["metric"] == "f1"
    settings = json.loads((tmp_path / "m" / "config.json").read_text())["settings"]
    assert settings["model"] | {"hidden": 300, "mark_dim": 100, "detector": 100} == {
        "cell": "highway",
        "cell_options": [],
        "layers": 8,
        "hidden": 300,
        "mark_dim": 100,
        "dropout": 0.1,
        "detector": 100,
    }

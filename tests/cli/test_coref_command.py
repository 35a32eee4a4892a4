"""Coreference on the command line: train, evaluate, predict as text, page, columns and JSON, info, convert."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import relmo
from relmo.cli import main

Run = Callable[..., tuple[int, str, str]]
PEOPLE = Path(relmo.__file__).parent / "data" / "people.conll"
SMALL = "--preset small --hidden 16 --mlp 24 --lr 0.005 --lexical-dropout 0.1 --epochs 4 --device cpu"
TEXT = "Anna has <a dog>. It barks when she comes home.\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned a little."""
    out = tmp_path_factory.mktemp("coref") / "m"
    with pytest.raises(SystemExit) as end:
        main(["train", "coref", str(PEOPLE), "--valid", str(PEOPLE), *f"{SMALL} --quiet --out {out}".split()])
    assert end.value.code == 0
    return out


def test_a_model_is_scored_shown_and_converted(run: Run, model: Path, tmp_path: Path) -> None:
    code, output, _ = run("evaluate", model, PEOPLE, "--json", "--device", "cpu")
    (report,) = json.loads(output)["files"]
    assert code == 0
    assert report["metric"] == "average_f1"
    assert report["average_f1"] > 0.3
    assert [label["label"] for label in report["labels"]] == ["muc", "b3", "ceaf", "mentions"]
    assert "ceaf" in run("evaluate", model, PEOPLE, "--device", "cpu")[1]
    assert "coref" in run("info", model)[1]
    assert run("convert", model, tmp_path / "half", "--precision", "float16", "--quiet")[0] == 0
    assert run("predict", tmp_path / "half", PEOPLE, "--device", "cpu")[0] == 0


def test_text_of_a_pipe_is_one_document(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(TEXT.encode())))
    code, output, errors = run("predict", model, "--device", "cpu")
    assert code == 0, errors
    plain = output.split("\n\n")[0]
    for mark in ("[", *(f"]{number}" for number in range(9, 0, -1))):
        plain = plain.replace(mark, "")
    assert plain == TEXT.strip()
    assert "\n1: " in output


def test_columns_and_json_are_read_again(run: Run, model: Path, tmp_path: Path) -> None:
    for option, name in (("--format=conll", "found.conll"), ("--json", "found.jsonl")):
        code, output, errors = run("predict", model, PEOPLE, option, "--device", "cpu")
        assert code == 0, errors
        (tmp_path / name).write_text(output)
        assert float(run("evaluate", model, tmp_path / name, "--quiet", "--device", "cpu")[1]) == 1
    record = json.loads(output.splitlines()[0])
    start, end = (record["mentions"][0][0][key] for key in ("start", "end"))
    assert record["text"][start:end] == record["mentions"][0][0]["text"]


def test_a_page_holds_the_text_escaped_and_replaces_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    arguments = ["predict", model, tmp_path / "a.txt", "--device", "cpu", "--html", tmp_path / "a.html"]
    code, output, errors = run(*arguments)
    assert (code, output) == (0, ""), errors
    assert "a.html" in errors
    page = (tmp_path / "a.html").read_text()
    assert "&lt;" in page
    assert "<a dog>" not in page
    assert "http" not in page
    assert run(*arguments)[0] == 2
    assert run(*arguments, "--overwrite")[0] == 0


def test_a_terminal_gets_colours_and_nothing_that_would_do_something_to_it(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor"}.items():  # as a terminal is to rich
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    (tmp_path / "a.txt").write_text("Tom has a dog.\x1b]0;gone\x07 It barks when he comes home.\n")
    code, output, errors = run("predict", model, tmp_path / "a.txt", "--device", "cpu")
    assert code == 0, errors
    assert "\x1b[38;2;0;0;0;48;2;" in output
    assert "\x1b]" not in output
    assert "\x07" not in output


def test_mistakes_are_one_line(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("#begin document (a)\n0\tHe\t(1\n")
    code, _, errors = run("predict", model, tmp_path / "a.conll", "--device", "cpu")
    assert (code, errors.count("\n")) == (2, 1)
    assert "cluster 1" in errors
    code, _, errors = run("predict", model, PEOPLE, "--json", "--format", "conll")
    assert (code, errors.count("\n")) == (2, 1)
    assert "--html" in errors
    code, _, errors = run("train", "coref", PEOPLE, "--mlp", "0", "--out", tmp_path / "m")
    assert (code, errors.count("\n")) == (2, 1)
    assert "mlp must" in errors
    code, _, errors = run("train", "coref", PEOPLE, "--column", "3", "--out", tmp_path / "m")
    assert code == 2
    assert "column has no effect" in errors

"""`relmo analyse compare`: what it prints, draws and refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.small_models import TEXT, bilm, language_model

Run = Callable[..., tuple[int, str, str]]
COMMAND = "analyse compare"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two language models, one bidirectional, and a text."""
    language_model().save_pretrained(tmp_path / "one")
    language_model(scale=1.0).save_pretrained(tmp_path / "two")
    bilm().save_pretrained(tmp_path / "bilm")
    (tmp_path / "a.txt").write_text(TEXT * 3)
    return tmp_path


def test_two_models_and_an_n_gram_model_are_one_json_object(run: Run, folder: Path) -> None:
    text = folder / "a.txt"
    options = [
        "--train",
        text,
        "--order",
        9,
        "--samples",
        2,
        "--limit",
        30,
        "--feature",
        "depth",
        "--plot",
        folder / "a.png",
    ]
    status, out, _ = run(folder / "one", folder / "two", "--text", text, *options, "--json", "--quiet")
    assert status == 0
    found = json.loads(out)
    assert found["losses"]["models"] == ["one", "two", "9-gram"]
    assert found["copies"]["the text given"]["80"] == 1.0
    assert {each["model"] for each in found["samples"]} == {"one", "two", "9-gram"}
    assert len(found["samples"]) == 6
    assert len(found["emergence"]["models"]) == 2
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


def test_texts_come_without_names_and_the_names_at_the_end(run: Run, folder: Path) -> None:
    text = folder / "a.txt"
    status, out, _ = run(folder / "one", folder / "two", "--text", text, "--samples", 1, "--limit", 20, "--quiet")
    assert status == 0
    shown, _, answer = out.partition("--- models")
    assert "text A" in shown
    assert "text B" in shown
    assert sorted(answer.split("seed 0: ")[1].replace("A ", "").replace("B ", "").strip().split(", ")) == ["one", "two"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bilm"], "lm"),
        (["one", "one"], "twice"),
        (["one", "--order", "21"], "--order"),
        ([], "MODEL"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, run: Run, folder: Path) -> None:
    given = [str(folder / name) if name in ("one", "bilm") else name for name in arguments]
    status, _, err = run(*given, "--text", folder / "a.txt", "--quiet")
    assert status == 2
    assert message in " ".join(err.split())

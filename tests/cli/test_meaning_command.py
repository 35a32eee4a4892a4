"""`relmo analyse meaning`: an index built, asked, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.small_models import SENTENCES, bilm

Run = Callable[..., tuple[int, str, str]]
COMMAND = "analyse meaning"
ALWAYS = "--quiet"


def test_an_index_is_built_and_asked(run: Run, tmp_path: Path) -> None:
    bilm().save_pretrained(tmp_path / "bilm")
    (tmp_path / "a.txt").write_text(SENTENCES)
    given = ["--model", tmp_path / "bilm", "--index", tmp_path / "index"]
    assert run(*given, "--build", tmp_path / "a.txt")[0] == 0
    status, out, _ = run("a cat sat", "cat", *given, "--k", 3, "--json")
    assert status == 0
    found = json.loads(out)["meaning"]
    assert [len(layer) for layer in found["layers"]] == [3, 3, 3]
    assert found["layers"][0][0]["words"][found["layers"][0][0]["position"]] == "cat"
    status, out, _ = run("a cat sat", 1, *given, "--same-word")
    assert status == 0
    assert "a [cat] sat" in out
    assert "the [cat] sat" in out  # in the table, too, where brackets are no markup
    assert "static vector" in out


def test_an_index_is_asked_with_its_own_model(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bilm().save_pretrained("bilm")
    bilm(hidden=10).save_pretrained("other")
    Path("a.txt").write_text(SENTENCES)
    assert run("--model", "bilm", "--index", "index", "--build", "a.txt")[0] == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    status, out, _ = run("a cat sat", "cat", "--index", "../index", "--json")
    assert status == 0
    assert out == run("a cat sat", "cat", "--index", "../index", "--model", "../bilm", "--json")[1]
    status, _, err = run("a cat sat", "cat", "--index", "../index", "--model", "../other")
    assert status == 2
    assert str(tmp_path / "bilm") in " ".join(err.split())


def test_there_are_no_empty_tables(tmp_path: Path, command: Callable[..., str]) -> None:
    bilm().save_pretrained(tmp_path / "bilm")
    (tmp_path / "a.txt").write_text(SENTENCES)
    command(
        "analyse", "meaning", "--model", tmp_path / "bilm", "--index", tmp_path / "index", "--build", tmp_path / "a.txt"
    )
    question = ("analyse", "meaning", "a zzyzx sat", "zzyzx", "--index", tmp_path / "index", "--same-word")
    assert "cosine" not in command(*question)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a cat"], "WORD"),
        (["a cat", "cat"], "--index"),
        ([], "--build"),
        (["--mix", "small"], "classifier"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, run: Run) -> None:
    status, _, err = run(*arguments)
    assert status == 2
    assert message in " ".join(err.split())

"""`relmo analyse meaning`: an index built, asked, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from small_models import SENTENCES, bilm

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a cat"], "a sentence and a word of it are needed"),
        (["a cat", "cat"], "say where the corpus is"),
        ([], "nothing is asked for"),
        (["--mix", "small"], "give a model that relmo train classifier"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, run: Run) -> None:
    status, _, err = run(*arguments)
    assert status == 2
    assert message in " ".join(err.split())

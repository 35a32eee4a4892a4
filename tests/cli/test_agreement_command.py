"""`relmo analyse agreement`: what it prints, draws and refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.small_models import bilm, language_model

Run = Callable[..., tuple[int, str, str]]
COMMAND = "analyse agreement"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bidirectional model in bilm/, and pairs."""
    bilm().save_pretrained(tmp_path / "bilm")
    (tmp_path / "pairs.csv").write_text(
        "condition,context,right,wrong\none,the cat,sat,a\none,a cat,sat,mat\ntwo,the mat,sat,the\n"
    )
    return tmp_path


def test_everything_at_once_is_one_json_object(run: Run, folder: Path) -> None:
    options = ["--sweep", "--together", "h1.0,h0.2", "--draws", 5, "--trace", "c1.3", "--plot", folder / "a.png"]
    status, out, _ = run(folder / "bilm", folder / "pairs.csv", *options, "--json", "--quiet")
    assert status == 0
    found = json.loads(out)
    assert [each["condition"] for each in found["agreement"]["conditions"]] == ["all", "one", "two"]
    assert len(found["sweep"]["units"]) == 8
    assert found["together"]["units"] == ["h1.0", "h0.2"]
    assert len(found["together"]["random"]) == 5
    assert set(found["trace"]["conditions"][0]["means"]) == {"c", "i", "f", "o", "g"}
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


def test_tables_are_printed(run: Run, folder: Path) -> None:
    status, out, _ = run(folder / "bilm", folder / "pairs.csv", "--sweep", "--plot", folder / "a.svg", "--quiet")
    assert status == 0
    assert "95% interval" in out
    assert "held-out cost" in out
    assert "<svg" in (folder / "a.svg").read_text()


def test_raw_sentences_are_split_as_asked(run: Run, folder: Path) -> None:
    (folder / "raw.csv").write_text("condition,good,bad\none,the (sat,the (mat\n")

    def known(*options: str) -> int:
        status, out, _ = run(folder / "bilm", folder / "raw.csv", *options, "--no-control", "--json", "--quiet")
        assert status == 0
        return json.loads(out)["agreement"]["conditions"][0]["known_pairs"]

    assert (known(), known("--tokenizer", "words"), known("--tokenizer", "whitespace")) == (1, 1, 0)
    language_model().save_pretrained(folder / "letters")
    status, _, err = run(folder / "letters", folder / "raw.csv", "--tokenizer", "words", "--quiet")
    assert (status, "words" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--together", "x1"], "'x1'"),
        (["--trace", "h0.1,h0.2"], "--trace"),
        (["--together", "h9.1"], "layer 9"),
        (["--per-condition", "-1"], "--per-condition"),
        (["--plot", "a.pdf"], ".png"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, run: Run, folder: Path) -> None:
    status, _, err = run(folder / "bilm", folder / "pairs.csv", *options, "--quiet")
    assert status == 2
    assert message in " ".join(err.split())
    assert run(folder / "bilm", "--quiet")[0] == 2

"""`relmo analyse number-units`: what it prints, draws and refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from relmo.analysis.core.show import Table
from relmo.cli.analyse.number_units import titled
from small_models import bilm

Run = Callable[..., tuple[int, str, str]]
COMMAND = "analyse number-units"
ALWAYS = "--quiet"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bidirectional model in bilm/, pairs, and trees."""
    bilm().save_pretrained(tmp_path / "bilm")
    rows = [
        f"{s}{a},the {subject[s == 'P']} of the {other[a == 'P']},{verb[s == 'P']},{verb[s == 'S']}"
        for subject in (("cow", "cows"), ("cub", "cubs"), ("ox", "oxen"))
        for other in (("tub", "tubs"), ("log", "logs"))
        for s in "SP"
        for a in "SP"
        for verb in (("sat", "mat"),)
    ]
    (tmp_path / "pairs.csv").write_text("\n".join(["condition,context,right,wrong", *rows]) + "\n")
    (tmp_path / "trees.txt").write_text("(S (NP the cat) (VP sat))\n(S (NP a mat) (VP (V sat) (NP a cat)))\n" * 8)
    return tmp_path


def test_everything_at_once_is_one_json_object(run: Run, folder: Path) -> None:
    pictures = ["--plot", folder / "a.png", "--gates", folder / "b.svg"]
    options = [*pictures, "--trees", folder / "trees.txt", "--draws", 4, "--best", 2, "--states", "h", "--states", "c"]
    status, out, _ = run(folder / "bilm", folder / "pairs.csv", *options, "--json")
    assert status == 0
    found = json.loads(out)
    assert found["number"]["items"] == 12
    assert found["number"]["words"] == ["subject", "of", "the", "attractor"]
    assert found["number"]["verdict"]
    assert {*found["number"]["units"][0]["costs"]} == {"SP", "PS"}
    assert found["syntax"]["words"] == 64
    assert set(found["syntax"]["controls"]) >= {"the last three words", "the same network untrained"}
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "b.svg").read_text()


def test_raw_sentences_are_split_as_asked(run: Run, folder: Path) -> None:
    rows = [row.split(",") for row in (folder / "pairs.csv").read_text().splitlines()[1:]]
    raw = [f"{condition},{context} ({right},{context} ({wrong}" for condition, context, right, wrong in rows]
    (folder / "raw.csv").write_text("\n".join(["condition,good,bad", *raw]) + "\n")

    def margins(*options: str) -> list[float]:
        options = ("--subject", "1", "--draws", "2", "--no-control", "--json", *options)
        status, out, _ = run(folder / "bilm", folder / "raw.csv", *options)
        assert status == 0
        return json.loads(out)["number"]["sweep"]["margin"]

    assert margins() == margins("--tokenizer", "words") != margins("--tokenizer", "whitespace")


def test_tables_are_printed(run: Run, folder: Path) -> None:
    options = ["--every", "--how", "mean", "--no-control", "--trees", folder / "trees.txt", "--depth", "depth"]
    status, out, _ = run(folder / "bilm", folder / "pairs.csv", *options, "--draws", 3)
    assert status == 0
    assert "against all other units" in out
    assert "the depth of a word, of 64 words" in out
    assert "untrained" not in out


def test_units_off_together_are_named_by_what_they_are() -> None:
    assert titled("together_long", Table([], [], "units off together")).title == "long-range units off together"
    assert titled("together_syntax", Table([], [])).title == "syntax units off together"
    assert titled("number", Table([], [], "as it was")).title == "as it was"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "knows too few of the common nouns"),
        (["--draws", "0"], "--draws must be 1 or more"),
        (["--words", "0"], "--words must be 1 or more"),
        (["--gates", "a.pdf"], "pictures are .png or .svg"),
        (["--trees", "none.conllu"], "none.conllu"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, run: Run, folder: Path) -> None:
    status, _, err = run(folder / "bilm", *options)
    assert status == 2
    assert message in " ".join(err.split())

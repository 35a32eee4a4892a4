"""`relmo analyse number-units`: what it prints, draws and refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from relmo.analysis.core.show import Table
from relmo.cli.analyse.syntax import _show_reports
from relmo.cli.options import OUTPUT
from support.small_models import bilm

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
    assert "all other units" in out
    assert "64 words" in out
    assert "untrained" not in out


class Report:
    """A report of one table with a title."""

    def as_dict(self) -> dict[str, str]:
        return {}

    def table(self) -> Table:
        return Table(["unit"], [["h0.1"]], "title of the report")


def test_sets_of_units_are_named_by_their_kind(capsys: pytest.CaptureFixture[str]) -> None:
    reports = dict.fromkeys(("number", "together_long", "together_syntax"), Report())
    _show_reports(OUTPUT, "small", (), reports)
    titles = [line for line in capsys.readouterr().out.splitlines() if "unit" not in line.split() and len(line) > 6]
    assert "title of the report" in titles[0]
    assert "long-range" in titles[1]
    assert "syntax" in titles[2]
    assert len(titles) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nouns"),
        (["--draws", "0"], "--draws"),
        (["--words", "0"], "--words"),
        (["--gates", "a.pdf"], ".png"),
        (["--trees", "none.conllu"], "none.conllu"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, run: Run, folder: Path) -> None:
    status, _, err = run(folder / "bilm", *options)
    assert status == 2
    assert message in " ".join(err.split())

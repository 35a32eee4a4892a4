"""`relmo surprisal` with tables: columns, identifiers, totals, and regions with differences between conditions."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import relmo
from relmo.cli import main

Run = Callable[..., str]
STIMULI = [
    ("1", "amb", "The old man | saw | the sea.", "saw"),
    ("1", "ctl", "The old men | saw | the sea.", "saw"),
    ("2", "amb", "A small dog | ran | home.", "ran"),
    ("2", "ctl", "The small dog | ran | home.", "ran"),
]


@pytest.fixture
def stimuli(tmp_path: Path) -> Path:
    """Columns item, cond, text (without separators), marked, critical."""
    with (tmp_path / "stimuli.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "cond", "text", "marked", "critical"])
        writer.writerows([item, cond, text.replace(" |", ""), text, critical] for item, cond, text, critical in STIMULI)
    return tmp_path / "stimuli.csv"


@pytest.fixture
def surprisal(stimuli: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object, status: int = 0) -> str:
        with pytest.raises(SystemExit) as stop:
            main(["surprisal", "small", str(stimuli), "--context", "sentence", *map(str, arguments)])
        assert (stop.value.code or 0) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    return run


def read_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines(), delimiter="\t"))


def test_all_columns_are_kept_or_those_that_are_named(surprisal: Run) -> None:
    rows = read_rows(surprisal())
    assert list(rows[0])[:7] == ["row", "item", "cond", "text", "marked", "critical", "line"]
    assert [(row["row"], row["item"], row["cond"]) for row in rows if row["position"] == "1"] == [
        ("1", "1", "amb"),
        ("2", "1", "ctl"),
        ("3", "2", "amb"),
        ("4", "2", "ctl"),
    ]
    table = relmo.load(device="cpu").surprisal(STIMULI[0][2].replace(" |", "") + "\n", context="sentence")
    first = [row for row in rows if row["row"] == "1"]
    assert [row["word"] for row in first] == [row.word for row in table]
    for name in ("surprisal", "entropy", "entropy_reduction"):
        assert [float(row[name]) for row in first] == pytest.approx([getattr(row, name) for row in table], abs=1e-4)
    few = read_rows(surprisal("--id", "cond", "--id", "item"))
    assert list(few[0])[:4] == ["row", "cond", "item", "line"]
    assert "'x' (--id)" in surprisal("--id", "item", "--id", "x", status=2)


def test_totals_are_sums_over_the_rows_of_words(surprisal: Run) -> None:
    rows, totals = read_rows(surprisal()), read_rows(surprisal("--totals"))
    assert [record["row"] for record in totals] == ["1", "2", "3", "4"]
    for record in totals:
        bits = [float(row["surprisal"]) for row in rows if row["row"] == record["row"]]
        assert int(record["words"]) == len(bits)
        assert float(record["surprisal"]) == pytest.approx(sum(bits), abs=1e-3)


def test_regions_are_marked_by_critical_words_or_separators(surprisal: Run, tmp_path: Path) -> None:
    words = read_rows(surprisal())
    options = ["--region", "critical", "--condition", "cond"]
    result = json.loads(surprisal(*options, "--json"))
    expected = [float(row["surprisal"]) for row in words if row["word"] in ("saw", "ran")]
    assert [row["surprisal"] for row in result["rows"]] == pytest.approx(expected, abs=1e-4)
    (difference,) = result["differences"]
    assert difference["conditions"] == "amb - ctl"
    mean = (expected[0] - expected[1] + expected[2] - expected[3]) / 2
    assert difference["mean"] == pytest.approx(mean, abs=1e-4)
    out = tmp_path / "regions.parquet"
    pyarrow = pytest.importorskip("pyarrow.parquet")
    printed = surprisal("--column", "marked", "--region", "marked", "--condition", "cond", "--out", out)
    columns = pyarrow.read_table(out).to_pydict()
    assert columns["region"] == [1, 2, 3] * 4
    assert columns["region_text"][:3] == ["The old man", "saw", "the sea."]
    assert [columns["surprisal"][i] for i in (1, 4, 7, 10)] == pytest.approx(expected, abs=1e-4)
    assert f"region 2, amb - ctl: {mean:.3f} bits" in printed


def test_options_of_regions_that_have_no_effect_or_no_column_are_errors(surprisal: Run) -> None:
    assert "without region" in surprisal("--item", "x", status=2)
    assert "no column 'condition'" in surprisal("--region", "critical", status=2)

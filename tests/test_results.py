"""The README, the guides and the card of `small` repeat figures of docs/results.md; all of them agree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def figures(row: str) -> list[float]:
    """Return the score in each cell of a table row, without its standard deviation."""
    cells = [re.match(r"\s*\**(\d+\.\d+)\**\s*(?:±|\(|$)", cell) for cell in row.strip("|").split("|")]
    return [float(cell[1]) for cell in cells if cell]


def result_row(label: str) -> list[float]:
    (row,) = re.findall(rf"(?m)^\| {re.escape(label)}.*$", RESULTS)
    return figures(row)


@pytest.mark.parametrize(
    ("label", "result"),
    [
        ("part-of-speech tagging, English EWT", "Parts of speech, EWT | 12,544"),
        ("named entities, UNER EWT", "Names, biLSTM-CRF"),
        ("acceptability, CoLA", "CoLA | 8,551"),
        ("inference, a seventh of SNLI", "SNLI, ESIM"),
        ("question answering, SQuAD", "SQuAD, BiDAF++"),
        ("semantic roles, PropBank EWT", "Semantic roles, deep highway LSTM"),
        ("coreference, OntoGUM", "Coreference, span ranking"),
    ],
)
def test_readme_agrees_with_the_results(label: str, result: str) -> None:
    (row,) = re.findall(rf"(?m)^\| {re.escape(label)} \|.*$", (ROOT / "README.md").read_text(encoding="utf-8"))
    expected = result_row(result)[:3]
    assert len(expected) == 3
    assert figures(row) == pytest.approx(expected, abs=0.051)


@pytest.mark.parametrize(
    ("sentence", "result"),
    [
        (r"On SQuAD 1.1 it reaches ([\d.]+) F1, and ([\d.]+) with", "SQuAD, BiDAF++"),
        (r"reaches ([\d.]+) F1, and ([\d.]+) with", "Semantic roles, deep highway LSTM"),
        (r"On OntoGUM `lee` reaches ([\d.]+), and ([\d.]+)", "Coreference, span ranking"),
    ],
)
def test_guide_of_tasks_agrees_with_the_results(sentence: str, result: str) -> None:
    guide = " ".join((ROOT / "docs" / "tasks.md").read_text(encoding="utf-8").split())
    matches = re.findall(sentence, guide)
    expected = result_row(result)[:2]
    assert any([float(x) for x in match] == pytest.approx(expected, abs=0.051) for match in matches)


def test_card_of_small_agrees_with_the_results() -> None:
    card = (ROOT / "src" / "relmo" / "data" / "small" / "README.md").read_text(encoding="utf-8")
    (blimp,) = re.findall(r"(?m)^\| BLiMP \| ([\d.]+)", card)
    (linzen,) = re.findall(r"(?m)^\| Linzen \| ([\d.]+)", card)
    assert float(blimp) == result_row("BLiMP, 67,000 pairs, forward")[0]
    assert float(linzen) == result_row("Linzen's sentences")[0]

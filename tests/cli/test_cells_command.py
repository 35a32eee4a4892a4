"""`relmo cells` lists the registered cells, and describes one."""

import json

import pytest

from relmo.cli import main
from relmo.registry import CELLS, cell_names


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as end:
        main(["cells", *arguments])
    assert end.value.code == status
    return capsys.readouterr()


def test_the_list_has_a_row_per_cell_with_its_options_and_paper(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = run(capsys)[0].splitlines()
    assert header.split() == ["cell", "states", "gates", "over", "time", "options", "paper"]
    first_words = [row.split()[0] for row in rows if not row.startswith(" ")]
    assert first_words == list(cell_names())
    row = next(row for row in rows if row.startswith("mogrifier"))
    assert "rounds=5, rank=none, forget_bias=1.0" in row
    assert "Melis et al. 2020, Mogrifier LSTM" in row


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_described_with_its_equations_quantities_and_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(capsys, name)[0]
    record = json.loads(run(capsys, name, "--json")[0])
    assert record["name"] == name
    assert record["options"] == CELLS[name].options
    assert record["papers"]
    assert all(paper in text for paper in record["papers"])
    assert {quantity["name"] for quantity in record["quantities"]} == record["equations"].keys()
    for equation in record["equations"].values():
        assert text.count(f"= {equation}\n") == 1
    for quantity in record["quantities"]:
        assert quantity["description"] in text


def test_the_records_of_all_cells_are_one_json_list(capsys: pytest.CaptureFixture[str]) -> None:
    records = json.loads(run(capsys, "--json")[0])
    assert [record["name"] for record in records] == list(cell_names())
    assert not records[0]["is_parallel"]
    lstm = next(record for record in records if record["name"] == "lstm")
    assert (lstm["states"], lstm["gates"]) == (["h", "c"], ["i", "f", "o"])


def test_an_unknown_cell_is_an_error_that_lists_the_cells(capsys: pytest.CaptureFixture[str]) -> None:
    message = run(capsys, "sltm", status=2)[1]
    assert "lstm" in message
    assert "RELMO_PLUGINS" in message

"""The notebooks of the docs run from top to bottom, and ship with what they showed."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SMALLER = {"french": "LINES, EPOCHS = 200, 1\nSENTENCES, TAGGER_EPOCHS = 40, 1"}  # in place of the cell of parameters
NEEDS = {"french": [ROOT / "data/lm/multilingual/fr", ROOT / "data/tasks/pos_ud/fr_sequoia"]}
LARGEST = 300_000  # bytes of a notebook with its pictures


def name_of(path: Path) -> str:
    return path.stem


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel: pip install 'relmo[dev]'")
    import nbformat

    for needed in NEEDS.get(path.stem, []):
        if not needed.exists():
            pytest.skip(f"needs {needed.relative_to(ROOT)}, which does not ship")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = SMALLER[path.stem]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RELMO_DATA", os.fspath(ROOT / "data"))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code" and cell.source)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_notebook_ships_as_it_ran_and_small(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    assert [cell["execution_count"] for cell in cells(path)] == list(range(1, len(cells(path)) + 1))
    assert any(cell["outputs"] for cell in cells(path))

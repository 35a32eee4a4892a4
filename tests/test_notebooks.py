"""Tests that execute the notebooks and check their stored outputs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# replacements for the cell with the tag `parameters`
TEST_PARAMETERS = {"french": "LINES, EPOCHS = 200, 1\nSENTENCES, TAGGER_EPOCHS = 40, 1"}
REQUIRED_DATA = {"french": [ROOT / "data/lm/multilingual/fr", ROOT / "data/tasks/pos_ud/fr_sequoia"]}
MAX_BYTES = 300_000


def get_name(path: Path) -> str:
    return path.stem


def read_code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=get_name)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel: pip install 'relmo[dev]'")
    import nbformat

    for folder in REQUIRED_DATA.get(path.stem, []):
        if not folder.exists():
            pytest.skip(f"needs {folder.relative_to(ROOT)}, which is not bundled")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = TEST_PARAMETERS[path.stem]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RELMO_DATA", os.fspath(ROOT / "data"))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code" and cell.source)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=get_name)
def test_a_notebook_ships_as_it_ran_and_small(path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES
    assert [cell["execution_count"] for cell in read_code_cells(path)] == list(range(1, len(read_code_cells(path)) + 1))
    assert any(cell["outputs"] for cell in read_code_cells(path))

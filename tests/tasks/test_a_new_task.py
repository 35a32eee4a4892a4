"""A new task is its settings, its network, its own file and one line of the table of kinds; nothing else is touched.

The task in `predicate/` tags words given a mark on one of them: its batches hold a tensor of their own, it has two
vocabularies, and it answers with a dataclass of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import relmo

SOURCE, HERE = Path(relmo.__file__).parent, Path(__file__).parent / "predicate"
MODEL = "relmo.tasks.predicate:PredicateTagger"
LINE = f'    "predicate": Kind("predicate:PredicateSettings", "{MODEL}", "a predicate tagger"),\n'


@pytest.mark.slow
def test_a_new_task_is_three_files_and_one_line(tmp_path: Path) -> None:
    package = tmp_path / "relmo"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("data", "__pycache__"))
    for file, room in (("settings", "settings"), ("network", "networks"), ("task", "tasks")):
        shutil.copyfile(HERE / f"{file}.py", package / room / "predicate.py")
    table = package / "settings" / "kinds.py"
    table.write_text(table.read_text().replace("KINDS: dict[str, Kind] = {\n", "KINDS: dict[str, Kind] = {\n" + LINE))
    done = subprocess.run(
        [sys.executable, HERE / "script.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "relmo train predicate train.jsonl" in done.stdout
    *_, python, record, line, score, half, kind = done.stdout.splitlines()
    assert python == "sees.01\tA0 V A1 O O O"
    assert json.loads(record) == {
        "text": "Anna sees Bob who hears Carl",
        "start": 18,
        "predicate": "hears",
        "sense": "hears.01",
        "roles": ["O", "O", "A0", "O", "V", "A1"],
    }
    assert line == "hears.01\tO O A0 O V A1"
    assert (score, half, kind) == ("1.000000", "1.000000", "predicate")
    assert "holds a finished model" in done.stderr

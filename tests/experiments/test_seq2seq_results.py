"""The recipe of sequence to sequence: its commands are accepted, its tables show what was found."""

import dataclasses
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from experiments import seq2seq_results
from experiments.elmo_table.tables import to_markdown
from experiments.trainings import Location
from relmo.cli import app
from relmo.disk.files import seal
from relmo.settings.kinds import settings_class
from relmo.store.folder import write_json


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    """experiments/seq2seq_results.py"""
    return seq2seq_results


def test_every_training_is_a_command_that_is_accepted(recipe: ModuleType) -> None:
    cls = settings_class("seq2seq")
    sections = {field.name for field in dataclasses.fields(cls)}
    for training in recipe.list_trainings().values():
        command = training.command(dict.fromkeys(("data", "own"), Location("x")), Path("y"))
        _, bound, _ = app.parse_args(command, exit_on_error=False, print_error=False)
        cls(**{k: v for k, v in bound.arguments.items() if k in sections}).check()


def test_the_models_that_ship_are_among_those_that_are_trained(recipe: ModuleType) -> None:
    assert set(recipe.SHIPPED.values()) <= set(recipe.list_trainings())
    assert set(recipe.SHIPPED) == set(recipe.CARDS)


def rows(*scores: tuple[int, int, float]) -> dict[str, Any]:
    """A report with scores by length."""
    return {"by_length": [{"least": a, "most": b, "texts": 9, "score": score, "prefix": 0.5} for a, b, score in scores]}


def test_tables_hold_scores_of_what_is_finished_and_lengths_beyond_those_learnt(
    recipe: ModuleType, tmp_path: Path
) -> None:
    training = recipe.list_trainings()["reverse-attention"]
    results = {"parameters": 1000, "epochs": 15, "seconds": 61.2, "metric": "exact"}
    results |= {"valid_bleu": 0.5, "valid_chrf": 0.625, "valid_exact": 0.75}
    write_json(tmp_path / f"{training.name}.json", seal({"asked": training.text, "results": results}))
    folder = tmp_path / training.name
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(rows((0, 5, 1.0), (6, 10, 0.875))))
    (folder / "longer.json").write_text(json.dumps({"files": [rows((6, 10, 0.125))]}))
    text = to_markdown(recipe.make_tables(tmp_path))
    assert "| Reversals of up to 10 letters | attention | 1,000 | 15 | 61 | 50.0 | 62.5 | 75.0 |" in text
    assert "| 6 to 10 | 9 | 87.5; 50.0 |" in text
    assert "| 6 to 10, longer than in training | 9 | 12.5; 50.0 |" in text
    assert "Multi30k" not in text

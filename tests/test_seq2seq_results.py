"""The recipe of sequence to sequence: its commands are accepted, its tables show what was found."""

import dataclasses
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from recipe_files import recipe as load_recipe
from relmo.cli import app
from relmo.disk.digests import sealed
from relmo.reproduce.elmo_table.tables import markdown
from relmo.reproduce.trainings import Whereabouts
from relmo.settings.kinds import check_settings, settings_class
from relmo.store.folder import write_json


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    """recipes/seq2seq_results.py"""
    return load_recipe("seq2seq_results")


def test_every_training_is_a_command_that_is_accepted(recipe: ModuleType) -> None:
    cls = settings_class("seq2seq")
    sections = {field.name for field in dataclasses.fields(cls)}
    for training in recipe.trainings().values():
        command = training.command(dict.fromkeys(("data", "own"), Whereabouts("x")), Path("y"))
        _, bound, _ = app.parse_args(command, exit_on_error=False, print_error=False)
        check_settings("seq2seq", cls(**{k: v for k, v in bound.arguments.items() if k in sections}))


def test_the_models_that_ship_are_among_those_that_are_trained(recipe: ModuleType) -> None:
    assert set(recipe.SHIPPED.values()) <= set(recipe.trainings())
    assert set(recipe.SHIPPED) == set(recipe.CARDS)


def rows(*scores: tuple[int, int, float]) -> dict[str, Any]:
    """A report with scores by length."""
    return {"by_length": [{"least": a, "most": b, "texts": 9, "score": score, "prefix": 0.5} for a, b, score in scores]}


def test_tables_hold_scores_of_what_is_finished_and_lengths_beyond_those_learnt(
    recipe: ModuleType, tmp_path: Path
) -> None:
    training = recipe.trainings()["reverse-attention"]
    results = {"parameters": 1000, "epochs": 15, "seconds": 61.2, "metric": "exact"}
    results |= {"valid_bleu": 0.5, "valid_chrf": 0.625, "valid_exact": 0.75}
    write_json(tmp_path / f"{training.name}.json", sealed({"asked": training.text, "results": results}))
    folder = tmp_path / training.name
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(rows((0, 5, 1.0), (6, 10, 0.875))))
    (folder / "longer.json").write_text(json.dumps({"files": [rows((6, 10, 0.125))]}))
    text = markdown(recipe.tables(tmp_path))
    assert "| Reversals of up to 10 letters | attention | 1,000 | 15 | 61 | 50.0 | 62.5 | 75.0 |" in text
    assert "| 6 to 10 | 9 | 87.5; 50.0 |" in text
    assert "| 6 to 10, longer than learned | 9 | 12.5; 50.0 |" in text
    assert "Multi30k" not in text

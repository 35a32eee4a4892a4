"""Installed models, with the texts that the bundled ones are opened on, and the answers and measurements computed for
them in advance."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from relmo.disk.files import parse_json, read_text_file
from relmo.errors import ModelError
from relmo.settings.kinds import KINDS
from relmo.store.installed import DATA, EXAMPLES_DIR, bundled_models, get_installed, packaged_models

COUNTING = EXAMPLES_DIR / "counting.json"
"""Precomputed results of the counting experiment."""
MODELS = EXAMPLES_DIR / "models.json"
"""Bundled models in the order of the list, with the texts that they are opened on."""
CARDS = EXAMPLES_DIR / "cards.json"
"""Cards of the start page, one phenomenon each, in the order of a lecture."""
ANSWERS_FILE = "answers.json"
"""Precomputed answers in a model folder, to the requests that the views make with their default settings about the
initial text. experiments/recipes/explorer_answers.py writes them, the counting results and the cards."""
MAX_BYTES = 1 << 22
EXPLORABLE = ("lm", "bilm", "seq2seq")


@dataclass(frozen=True)
class ModelEntry:
    """A model in the list of the page."""

    name: str
    about: str
    text: str = ""  # name of the passage it is opened on; a sequence-to-sequence model has examples instead
    group: str = ""  # name shared by the models that were trained on the same task, to be compared

    @property
    def folder(self) -> Path:
        """Model folder."""
        model = get_installed(self.name)
        assert model is not None
        return model.folder


def installed_examples() -> list[ModelEntry]:
    """Return the bundled models that are installed."""
    entries = [ModelEntry(**record) for record in json.loads(MODELS.read_text(encoding="utf-8"))]
    return [model for model in entries if model.name in bundled_models()]


def list_models() -> list[ModelEntry]:
    """Return all installed models that the explorer opens."""
    packaged = [
        ModelEntry(model.name, KINDS[model.config["kind"]].called.partition(" ")[2])
        for model in packaged_models()
        if model.config.get("kind") in EXPLORABLE and model.name not in bundled_models()
    ]
    return [*installed_examples(), *packaged]


def list_examples() -> list[str]:
    """Return the names of the bundled models that are installed."""
    return [model.name for model in installed_examples()]


def find_example(name: str) -> ModelEntry | None:
    """Return the bundled model of this name if it is installed."""
    return next((model for model in installed_examples() if model.name == name), None)


def read_answers(path: Path) -> dict[str, Any]:
    """Read the precomputed answers of a file; empty if there is no file."""
    if not path.is_file():
        return {}
    hint = "write it again: experiments/recipes/explorer_answers.py"
    try:
        answers = parse_json(read_text_file(path, MAX_BYTES))
    except ValueError as error:
        raise ModelError(f"{path}: {error}; {hint}") from None
    if not isinstance(answers, dict) or not all(isinstance(answer, dict) for answer in answers.values()):
        raise ModelError(f"{path}: has no answers by name; {hint}")
    return answers


def load_cards() -> list[dict[str, Any]]:
    """Load the cards of the start page that lead to installed models; the page draws their pictures."""
    names = list_examples()
    return [card for card in json.loads(CARDS.read_text(encoding="utf-8")) if card["link"]["model"] in names]


@cache
def get_agreement(model: str) -> dict[str, Any]:
    """Return accuracies with and without each unit (experiments/recipes/agreement_figures.py); empty for others."""
    measured = json.loads((DATA / "agreement.json").read_text(encoding="utf-8"))
    units = measured["without"] if model == measured["model"] else {}
    return {unit: {"pairs": measured["pairs"], "all": measured["all"], "without": units[unit]} for unit in units}


@cache
def load_task_mixes() -> list[dict[str, Any]]:
    """Load the layer weights of the tasks in docs/results.md, averaged over seeds."""
    return json.loads((DATA / "task_mixes.json").read_text(encoding="utf-8"))["tasks"]

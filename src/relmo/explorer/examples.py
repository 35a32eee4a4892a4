"""Bundled models, each with the text it is opened on, and the answers and measurements computed for them in advance."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from relmo.disk.files import parse_json, read_text_file
from relmo.errors import ModelError

DATA = Path(str(resources.files("relmo"))) / "data"
EXAMPLES_DIR = DATA / "examples"
COUNTING = EXAMPLES_DIR / "counting.json"
"""Precomputed results of the counting experiment."""
CARDS = EXAMPLES_DIR / "cards.json"
"""Cards of the start page, one phenomenon each, in the order of a lecture."""
ANSWERS_FILE = "answers.json"
"""Precomputed answers in a model folder, to the requests that the views make with their default settings about the
initial text. experiments/recipes/explorer_answers.py writes them, the counting results and the cards."""
MAX_BYTES = 1 << 22


@dataclass(frozen=True)
class BundledModel:
    """A bundled model."""

    name: str
    about: str
    text: str = ""  # name of the passage it is opened on; a sequence-to-sequence model has examples instead
    group: str = ""  # name shared by the models that were trained on the same task, to be compared

    @property
    def folder(self) -> Path:
        """Model folder."""
        return DATA / "small" if self.name == "small" else EXAMPLES_DIR / self.name


EXAMPLES = (
    BundledModel("prose", "a character-level LSTM trained on War and Peace", "story"),
    BundledModel("code", "a character-level LSTM trained on the source of SQLite, in C", "code"),
    BundledModel("prose-elman", "an Elman network of 256 cells trained on War and Peace", "story", "prose"),
    BundledModel("prose-gru", "a GRU of 256 cells trained on War and Peace", "story", "prose"),
    BundledModel("prose-lstm", "an LSTM of 256 cells trained on War and Peace", "story", "prose"),
    BundledModel("anbn-lstm", "an LSTM that learned to count a's and b's", "counting", "counting"),
    BundledModel("anbn-gru", "a GRU trained on the same task", "counting", "counting"),
    BundledModel("hello", "an Elman network to compute by hand", "hello", "hello"),
    BundledModel("hello-gru", "a GRU to compute by hand", "hello", "hello"),
    BundledModel("hello-lstm", "an LSTM to compute by hand", "hello", "hello"),
    BundledModel("small", "ELMo, which reads words in both directions", "sentences"),
    BundledModel("english-french", "a network that translates English into French"),
    BundledModel("addition", "a network that adds numbers, digit by digit"),
)


def installed_examples() -> list[BundledModel]:
    """Return the bundled models that are installed."""
    return [model for model in EXAMPLES if (model.folder / "config.json").is_file()]


def list_examples() -> list[str]:
    """Return the names of the bundled models that are installed."""
    return [model.name for model in installed_examples()]


def find_example(name: str) -> BundledModel | None:
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

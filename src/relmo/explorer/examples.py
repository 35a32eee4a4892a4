"""Bundled models to explore, each with the text it is opened on."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

DATA = Path(str(resources.files("relmo"))) / "data"
EXAMPLES_DIR = DATA / "examples"
COUNTING = EXAMPLES_DIR / "counting.json"
"""Precomputed results of the counting experiment."""


@dataclass(frozen=True)
class BundledModel:
    """A bundled model.

    text     name of the passage it is opened on; a sequence-to-sequence model has examples of its own instead
    group    name shared by the models that were trained on the same task, to be compared
    """

    name: str
    about: str
    text: str = ""
    group: str = ""

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


def find_example(name: str) -> BundledModel | None:
    """Return the bundled model of this name if it is installed."""
    return next((model for model in EXAMPLES if model.name == name and (model.folder / "config.json").is_file()), None)


def installed_examples() -> list[BundledModel]:
    """Return the bundled models that are installed."""
    return [model for model in EXAMPLES if find_example(model.name) is not None]


def list_examples() -> list[str]:
    """Return the names of the bundled models that are installed."""
    return [model.name for model in installed_examples()]

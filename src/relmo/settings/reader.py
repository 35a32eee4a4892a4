"""The settings of `relmo train reader`: the answer to a question, found in a passage."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.settings.bounds import check_bounds
from relmo.settings.cells import CellName
from relmo.settings.task import (
    TASK_BOUNDS,
    InputSettings,
    TaskTextSettings,
    TaskTrainSettings,
    check_inputs,
    check_task_training,
)


@dataclass(frozen=True, kw_only=True)
class ReaderTextSettings(TaskTextSettings):
    """Files of passages, questions and answers."""

    format: Literal["auto", "squad", "jsonl", "tsv"] = "auto"
    """How files are laid out: SQuAD's JSON (.json), JSON lines (.jsonl), or a table with names in its first line. auto
    looks at the name."""
    max_words: int = 400
    """In training, only so many words of a passage are read, and questions whose answer comes later are left out. When
    a model answers or is scored, it reads the whole passage."""


@dataclass(frozen=True, kw_only=True)
class ReaderModelSettings:
    """The network: passage and question look at each other, the passage at itself, then the answer's two ends."""

    cell: CellName = "gru"
    """The recurrent cell."""
    hidden: int = 90
    """Units of each recurrent layer in each direction."""
    dropout: float = 0.2
    """Dropout before and after recurrent layers, with one mask for all words of a text."""
    max_answer: int = 17
    """The largest number of words in an answer."""


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """Train a reader: it finds the answer to a question in a passage; with or without ELMo.

    For example:

        relmo train reader train.json --valid dev.json --preset squad --out models/squad

        relmo train reader train.json --valid dev.json --preset squad --elmo small --elmo-at both --out models/squad2

        echo "Who founded the town?" | relmo predict models/squad --passage town.txt --best 3
    """

    files: ClassVar[str] = (
        "Passages, questions and answers: SQuAD's JSON; a table with the columns passage, question and answer; or JSON "
        "lines with such keys; plain, .gz, .xz, .zst."
    )
    """What it is trained on."""

    text: ReaderTextSettings = field(default_factory=ReaderTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: ReaderModelSettings = field(default_factory=ReaderModelSettings)
    train: TaskTrainSettings = field(default_factory=TaskTrainSettings)


def check_reader(settings: ReaderSettings) -> None:
    """Settings that make no sense, alone or together, are errors before anything is read."""
    check_bounds(settings.text, settings.model, bounds=TASK_BOUNDS)
    check_inputs(settings.input)
    check_task_training(settings.train)

"""Settings of `relmo train reader`: question answering on a passage."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.settings.cells import CellName
from relmo.settings.fields import Rate, SettingsSection, Size
from relmo.settings.task import TaskSettings, TaskTextSettings


@dataclass(frozen=True, kw_only=True)
class ReaderTextSettings(TaskTextSettings):
    """Files of passages, questions and answers."""

    format: Literal["auto", "squad", "jsonl", "tsv"] = "auto"
    """File format: SQuAD's JSON (.json), JSON lines (.jsonl), or a table with a header. auto looks at the name."""
    max_words: Size = 400
    """Largest number of words of a passage in training; questions whose answer comes later are skipped. Prediction and
    evaluation read the whole passage."""


@dataclass(frozen=True, kw_only=True)
class ReaderModelSettings(SettingsSection):
    """Network: attention between passage and question, self-attention of the passage, and the ends of the answer."""

    cell: CellName = "gru"
    """Recurrent cell."""
    hidden: Size = 90
    """Hidden size of each recurrent layer per direction."""
    dropout: Rate = 0.2
    """Dropout before and after recurrent layers, with one mask for all words of a text."""
    max_answer: Size = 17
    """Largest number of words of an answer."""


@dataclass(frozen=True, kw_only=True)
class ReaderSettings(TaskSettings):
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

    text: ReaderTextSettings = field(default_factory=ReaderTextSettings)
    model: ReaderModelSettings = field(default_factory=ReaderModelSettings)

"""The settings of `relmo train tagger`: a tag for each word."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.errors import SettingError
from relmo.settings.bounds import check_bounds, refuse
from relmo.settings.cells import CellName
from relmo.settings.task import InputSettings, TaskTextSettings, TaskTrainSettings, check_inputs, check_task_training


@dataclass(frozen=True, kw_only=True)
class TaggerTextSettings(TaskTextSettings):
    """Which tags to learn, and from what files."""

    task: Literal["auto", "pos", "ner", "column"] = "auto"
    """pos: a tag for each word (of CoNLL-U the universal one), scored by accuracy. ner: spans, in BIO or its
    relatives, scored by F1. column: the tags of `column`, whatever they are, scored by accuracy. auto: ner if the
    training tags mark spans (B-PER, I-PER, O), otherwise pos."""
    format: Literal["auto", "conllu", "columns", "jsonl"] = "auto"
    """How files are laid out: CoNLL-U (.conllu), JSON lines (.jsonl), or columns. auto looks at the name."""


@dataclass(frozen=True, kw_only=True)
class TaggerModelSettings:
    """The network of a tagger: bidirectional recurrent layers, then a tag for each word."""

    cell: CellName = "lstm"
    """The recurrent cell."""
    layers: int = 1
    """How many recurrent layers."""
    hidden: int = 200
    """Units of each layer in each direction."""
    dropout: float = 0.5
    """Dropout between layers and on the last one's output, with one mask for all words of a sentence."""
    decoder: Literal["softmax", "crf"] = "softmax"
    """How tags are chosen: each by itself, or all of a sentence together by a conditional random field."""
    encoding: Literal["bioul", "bio"] = "bioul"
    """Spans only: the tags that the network learns. Its predictions are always written as BIO."""


@dataclass(frozen=True, kw_only=True)
class TaggerSettings:
    """Train a tagger: parts of speech, names, or any column of tags; with or without ELMo.

    For example:

        relmo train tagger train.conllu --valid dev.conllu --preset pos --elmo small --out models/pos

        relmo train tagger train.iob2 --valid dev.iob2 --preset ner --elmo small --seeds 5 --out models/ner

        echo "Anna lives in Berlin." | relmo predict models/ner
    """

    files: ClassVar[str] = (
        "Sentences to train on: CoNLL-U, columns (CoNLL, IOB2), or JSON lines; plain, .gz, .xz, .zst."
    )
    """What it is trained on."""

    text: TaggerTextSettings = field(default_factory=TaggerTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: TaggerModelSettings = field(default_factory=TaggerModelSettings)
    train: TaskTrainSettings = field(default_factory=TaskTrainSettings)


def check_tagger(settings: TaggerSettings) -> None:
    """Settings that make no sense, alone or together, are errors before anything is read."""
    check_bounds(settings.text, settings.model)
    check_inputs(settings.input)
    check_task_training(settings.train)
    if settings.text.task == "column" and settings.text.column is None:
        raise SettingError("task column needs a column: its name, such as --column xpos, or its number")
    if settings.text.task in ("pos", "column"):
        refuse(settings.model, ["encoding"], f"task {settings.text.task}")

"""The settings of `relmo train srl`: who does what to whom."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.settings.bounds import check_bounds, refuse
from relmo.settings.task import (
    TASK_BOUNDS,
    InputSettings,
    TaskTextSettings,
    TaskTrainSettings,
    check_inputs,
    check_task_training,
)


@dataclass(frozen=True, kw_only=True)
class SRLTextSettings(TaskTextSettings):
    """Which predicates to learn, and from what files."""

    format: Literal["auto", "jsonl", "columns"] = "auto"
    """How files are laid out: JSON lines (.jsonl) or columns. auto looks at the name."""
    predicates: Literal["all", "verbs"] = "all"
    """all: every predicate of the files. verbs: those that are verbs by their part of speech and no auxiliaries (be.03,
    do.01, have.01), as in CoNLL-2012."""


@dataclass(frozen=True, kw_only=True)
class SRLModelSettings:
    """The network: a deep LSTM that reads in turns in both directions, with highways between its layers."""

    layers: int = 8
    """How many layers; the first reads from left to right, the next from right to left, and so on."""
    hidden: int = 300
    """Units of each layer."""
    mark_dim: int = 100
    """Size of the vector that tells the predicate from the other words."""
    dropout: float = 0.1
    """Dropout on the layers' states, and on the input and output of the network that finds predicates; with one mask
    for all words of a sentence."""
    detector: int = 100
    """Units, in each direction, of the biLSTM that finds predicates in text. With 0 the predicates must always be
    given."""


@dataclass(frozen=True, kw_only=True)
class SRLSettings:
    """Train a labeller of semantic roles: for each predicate of a sentence, who does what to whom, when, where and why;
    with or without ELMo.

    For example:

        relmo train srl train.jsonl --valid dev.jsonl --preset propbank --out models/srl

        relmo train srl train.jsonl --valid dev.jsonl --preset propbank --elmo small --seeds 3 --out models/srl-elmo

        echo "Anna gave Bob the key yesterday." | relmo predict models/srl
    """

    files: ClassVar[str] = (
        "Sentences with predicates and roles: JSON lines, or columns (CoNLL-2005, CoNLL-2012, PropBank's releases); "
        "plain, .gz, .xz, .zst."
    )
    """What it is trained on."""

    text: SRLTextSettings = field(default_factory=SRLTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: SRLModelSettings = field(default_factory=SRLModelSettings)
    train: TaskTrainSettings = field(default_factory=TaskTrainSettings)


def check_srl(settings: SRLSettings) -> None:
    """Settings that make no sense, alone or together, are errors before anything is read."""
    check_bounds(settings.text, settings.model, bounds=TASK_BOUNDS)
    check_inputs(settings.input)
    check_task_training(settings.train)
    refuse(settings.text, ["column"], "semantic roles, which have a column for each predicate")

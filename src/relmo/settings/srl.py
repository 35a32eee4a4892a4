"""Settings of `relmo train srl`: semantic role labelling."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.settings.fields import Dimension, NumLayers, OptionalDimension, Rate, SettingsSection, Size, refuse
from relmo.settings.task import TaskSettings, TaskTextSettings


@dataclass(frozen=True, kw_only=True)
class SRLTextSettings(TaskTextSettings):
    """Predicates and files."""

    format: Literal["auto", "jsonl", "columns"] = "auto"
    """File format: JSON lines (.jsonl) or columns. auto looks at the name."""
    predicates: Literal["all", "verbs"] = "all"
    """all: every predicate of the files. verbs: those that are verbs by their part of speech and no auxiliaries (be.03,
    do.01, have.01), as in CoNLL-2012."""

    def check(self) -> None:
        super().check()
        refuse(self, ["column"], "for semantic roles, which have a column for each predicate")


@dataclass(frozen=True, kw_only=True)
class SRLModelSettings(SettingsSection):
    """Network: a deep LSTM of alternating direction with highway connections."""

    layers: NumLayers = 8
    """Number of layers; the first one reads forward, the second backward, and so on."""
    hidden: Size = 300
    """Hidden size of each layer."""
    mark_dim: Dimension = 100
    """Size of the embedding that marks the predicate."""
    dropout: Rate = 0.1
    """Dropout on the states of the layers, and on the input and output of the predicate detector, with one mask for all
    words of a sentence."""
    detector: OptionalDimension = 100
    """Hidden size, per direction, of the biLSTM that finds predicates in text. With 0 the predicates must always be
    given."""


@dataclass(frozen=True, kw_only=True)
class SRLSettings(TaskSettings):
    """Train a semantic role labeller: for each predicate of a sentence, who does what to whom, when, where and why;
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

    text: SRLTextSettings = field(default_factory=SRLTextSettings)
    model: SRLModelSettings = field(default_factory=SRLModelSettings)

"""Settings of `relmo train coref`: coreference resolution."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from relmo.errors import SettingError
from relmo.settings.fields import Count, Dimension, Rate, Size, Sizes, refuse
from relmo.settings.task import EncoderSettings, TaskSettings, TaskTextSettings, TaskTrainSettings


@dataclass(frozen=True, kw_only=True)
class CorefTextSettings(TaskTextSettings):
    """Files of documents."""

    singletons: Literal["keep", "drop"] = "keep"
    """Mentions that are alone in their cluster. keep: they are scored and, with `mention_weight`, learned. drop: they
    are ignored."""

    def check(self) -> None:
        super().check()
        refuse(self, ["column"], "for coreference")


@dataclass(frozen=True, kw_only=True)
class CorefModelSettings(EncoderSettings):
    """Network of Lee et al. 2017: a biLSTM over each sentence, spans, and an antecedent for each span."""

    max_width: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Largest number of words of a span."""
    spans_per_word: Annotated[float, Meta(ge=1e-6, le=100)] = 0.4
    """Lambda: number of spans that are kept per word of a document; at least 24 in a short one."""
    antecedents: Annotated[int, Meta(ge=1, le=1 << 20)] = 250
    """Largest number of preceding spans that may be the antecedent of a span."""
    mlp: Sizes = (150, 150)
    """Sizes of the layers that score spans, and of those that score pairs; may be given several times."""
    feature_dim: Dimension = 20
    """Size of the embeddings of widths, distances, speakers and genres."""
    mention_weight: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Weight of a second loss on whether a span is a mention, which helps with few documents. The published network has
    none."""
    output_singletons: bool = False
    """Also output mentions without a coreferent one if their score is above 0, for files that annotate them; needs
    `mention_weight`. The published network outputs none."""
    lexical_dropout: Rate = 0.5
    """Dropout on the word inputs."""
    dropout: Rate = 0.2
    """Dropout on everything else."""

    def check(self) -> None:
        super().check()
        if not self.mlp:
            raise SettingError("mlp must have one size or more")
        if self.output_singletons and not self.mention_weight:
            raise SettingError("output_singletons needs the loss on mentions; set mention_weight, for example to 0.1")


@dataclass(frozen=True, kw_only=True)
class CorefTrainSettings(TaskTrainSettings):
    """Training loop for documents."""

    batch: Size = 1
    """Largest number of documents per batch."""
    max_sentences: Count = 50
    """Largest number of sentences in training; longer documents are split into such pieces, which bounds the memory."""


@dataclass(frozen=True, kw_only=True)
class CorefSettings(TaskSettings):
    """Train a coreference model: mentions of a document and their clusters; with or without ELMo.

    For example:

        relmo train coref train.conll --valid dev.conll --preset lee --elmo small --out models/coref

        relmo evaluate models/coref dev.conll

        echo "Anna saw Bob. She waved to him." | relmo predict models/coref
    """

    files: ClassVar[str] = (
        "Documents to train on: CoNLL-2012, OntoGUM's short form, or JSON lines; plain, .gz, .xz, .zst."
    )

    text: CorefTextSettings = field(default_factory=CorefTextSettings)
    model: CorefModelSettings = field(default_factory=CorefModelSettings)
    train: CorefTrainSettings = field(default_factory=CorefTrainSettings)

    def check(self) -> None:
        super().check()
        if self.model.output_singletons and self.text.singletons == "drop":
            raise SettingError("output_singletons and singletons drop cannot be used together")

"""The settings of `relmo train coref`: which mentions in a document are of one thing."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.errors import SettingError, shown
from relmo.settings.bounds import check_bounds, refuse
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
class CorefTextSettings(TaskTextSettings):
    """What is read of the files."""

    singletons: Literal["keep", "drop"] = "keep"
    """What to do with mentions that are alone in their cluster. keep: they are scored and, with `mention_weight`,
    learned. drop: files are read as if they had none."""


@dataclass(frozen=True, kw_only=True)
class CorefModelSettings:
    """The network of Lee et al. 2017: a biLSTM over each sentence, spans, and for each span its antecedent."""

    cell: CellName = "lstm"
    """The recurrent cell."""
    layers: int = 1
    """How many recurrent layers."""
    hidden: int = 200
    """Units of each layer in each direction."""
    max_width: int = 10
    """Words of the longest span."""
    spans_per_word: float = 0.4
    """Lambda: how many spans are kept for each word of a document. At least 24 are kept of a short one."""
    antecedents: int = 250
    """How many of the kept spans before a span may be its antecedent."""
    mlp: tuple[int, ...] = (150, 150)
    """Sizes of the layers that score spans, and of those that score pairs; may be given several times."""
    feature_dim: int = 20
    """Size of the vectors of widths, distances, speakers and genres."""
    mention_weight: float = 0.0
    """The weight of a second loss, which teaches whether a span is a mention. With few documents the network then
    learns sooner. The published network has none."""
    output_singletons: bool = False
    """Also output a mention that is in no cluster with another if its score is above 0. This is for files that have
    such mentions, and it needs `mention_weight`. The published network outputs none."""
    lexical_dropout: float = 0.5
    """Dropout on words."""
    dropout: float = 0.2
    """Dropout on everything else."""


@dataclass(frozen=True, kw_only=True)
class CorefTrainSettings(TaskTrainSettings):
    """The training loop, with what suits documents."""

    batch: int = 1
    """The largest number of documents in a batch."""
    max_sentences: int = 50
    """In training, longer documents are cut into pieces of at most so many sentences. This bounds the memory."""


@dataclass(frozen=True, kw_only=True)
class CorefSettings:
    """Train a model of coreference: who is who in a document; with or without ELMo.

    For example:

        relmo train coref train.conll --valid dev.conll --preset lee --elmo small --out models/coref

        relmo evaluate models/coref dev.conll

        echo "Anna saw Bob. She waved to him." | relmo predict models/coref
    """

    files: ClassVar[str] = (
        "Documents to train on: CoNLL-2012, OntoGUM's short form, or JSON lines; plain, .gz, .xz, .zst."
    )
    """What it is trained on."""

    text: CorefTextSettings = field(default_factory=CorefTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: CorefModelSettings = field(default_factory=CorefModelSettings)
    train: CorefTrainSettings = field(default_factory=CorefTrainSettings)


def check_coref(settings: CorefSettings) -> None:
    """Settings that make no sense, alone or together, are errors before anything is read."""
    check_bounds(settings.text, settings.model, bounds=TASK_BOUNDS)
    refuse(settings.text, ["column"], "coreference")
    check_inputs(settings.input)
    check_task_training(settings.train)
    most = TASK_BOUNDS["hidden"][1]
    if not settings.model.mlp or any(not 1 <= size <= most for size in settings.model.mlp):
        raise SettingError(f"mlp has sizes of one layer or more, from 1 to {most:g}, not {shown(settings.model.mlp)}")
    if settings.model.output_singletons and not settings.model.mention_weight:
        raise SettingError(
            "output_singletons needs a loss that teaches what a mention is; give a mention_weight such as 0.1"
        )
    if settings.model.output_singletons and settings.text.singletons == "drop":
        raise SettingError("output_singletons needs the singletons of the files; leave out singletons drop")

"""Settings of `relmo train classifier`: text classification."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from relmo.errors import SettingError
from relmo.settings.arguments import PathName
from relmo.settings.cells import cells_with
from relmo.settings.fields import ENABLED, Only, Size, refuse
from relmo.settings.task import SentenceModelSettings, TaskSettings, TaskTextSettings, TaskTrainSettings

LAYERS = Only(network="pooled", layers=ENABLED)


@dataclass(frozen=True, kw_only=True)
class ClassifierTextSettings(TaskTextSettings):
    """Files of labelled texts."""

    format: Literal["auto", "trees", "cola", "tsv", "jsonl", "folder"] = "auto"
    """File format: bracketed trees (SST), CoLA's columns, a table with a header (.csv, or with tabs), JSON lines, or a
    folder of texts per label (IMDB). auto looks at the name and the first line."""
    text_column: Annotated[str | None, Only(format=("auto", "tsv", "jsonl"))] = None
    """Tables and JSON lines: column or key with the text. The default is text, sentence or review."""
    subtrees: Annotated[bool, Only(format=("auto", "trees"))] = True
    """Trees only: train on every labelled phrase. Scores are always those of whole sentences."""


@dataclass(frozen=True, kw_only=True)
class ClassifierModelSettings(SentenceModelSettings):
    """Network of a classifier."""

    network: Literal["pooled", "bcn"] = "pooled"
    """Recurrent layers and pooling, or the biattentive classification network."""
    projection: Annotated[Size | None, LAYERS, Only(cell=cells_with("projection"))] = None
    """LSTM only: project the output of each layer to this size."""
    residual: Annotated[bool, LAYERS] = False
    """Residual connections between layers of the same size."""

    def check(self) -> None:
        super().check()
        if self.projection is not None and self.projection >= self.hidden:
            raise SettingError(f"projection {self.projection} must be smaller than hidden {self.hidden}")


@dataclass(frozen=True, kw_only=True)
class ClassifierTrainSettings(TaskTrainSettings):
    """Training loop, selection metric and initialisation."""

    metric: Literal["accuracy", "mcc", "f1"] = "accuracy"
    """Metric by which the best model is chosen: accuracy, Matthews correlation (CoLA), or macro-averaged F1."""
    init: PathName | None = None
    """Start from this word language model (kind lm): its vocabulary, embeddings and recurrent layers. Its geometry is
    kept (Dai & Le 2015)."""


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings(TaskSettings):
    """Train a text classifier: sentiment, acceptability, topics; with or without ELMo.

    For example:

        relmo train classifier train.txt --valid dev.txt --preset sst5 --elmo small --elmo-at both --out models/sst5

        relmo train classifier mine.csv --text-column comment --column topic --metric f1 --out models/mine

        relmo train classifier reviews.tsv --init models/lm --pool final --out models/reviews

        echo "A quiet, lovely film." | relmo predict models/sst5 --json
    """

    files: ClassVar[str] = (
        "Labelled texts: trees (SST), CoLA, a table with a header, JSON lines, or a folder per label (IMDB)."
    )

    text: ClassifierTextSettings = field(default_factory=ClassifierTextSettings)
    model: ClassifierModelSettings = field(default_factory=ClassifierModelSettings)
    train: ClassifierTrainSettings = field(default_factory=ClassifierTrainSettings)

    def check(self) -> None:
        super().check()
        if self.train.init is None:
            return
        if self.model.network != "pooled":
            raise SettingError(f"init needs network pooled, whose recurrent layers it sets, not {self.model.network}")
        refuse(self.input, ["min_count", "vectors"], "with init, which sets the vocabulary")
        if self.input.elmo is not None and self.input.elmo_at != "output":
            raise SettingError(f"elmo_at {self.input.elmo_at} and init cannot be used together; use elmo_at output")

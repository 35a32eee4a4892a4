"""The settings of `relmo train classifier`: a label for a text."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.errors import SettingError
from relmo.settings.arguments import PathName
from relmo.settings.bounds import check_bounds, refuse
from relmo.settings.cells import cells_with
from relmo.settings.task import (
    OF_SENTENCES,
    InputSettings,
    SentenceModelSettings,
    TaskTextSettings,
    TaskTrainSettings,
    check_inputs,
    check_sentences,
    check_task_training,
)


@dataclass(frozen=True, kw_only=True)
class ClassifierTextSettings(TaskTextSettings):
    """Files of labelled texts."""

    format: Literal["auto", "trees", "cola", "tsv", "jsonl", "folder"] = "auto"
    """How files are laid out: trees in brackets (SST), CoLA's columns, a table with names in its first line (.csv, or
    with tabs), JSON lines, or a folder of texts for each label (IMDB). auto looks at the name and the first line."""
    text_column: str | None = None
    """Tables and JSON lines: the column, or key, that has the text. By default it is text, sentence or review."""
    subtrees: bool = True
    """Trees only: learn from every phrase that has a label. Scores are always those of whole sentences."""


@dataclass(frozen=True, kw_only=True)
class ClassifierModelSettings(SentenceModelSettings):
    """The network of a classifier."""

    network: Literal["pooled", "bcn"] = "pooled"
    """Recurrent layers and a pool, or the biattentive classification network."""
    projection: int | None = None
    """LSTM only: project each layer's output down to this size."""
    residual: bool = False
    """Layers add their input to their output if the sizes agree."""


@dataclass(frozen=True, kw_only=True)
class ClassifierTrainSettings(TaskTrainSettings):
    """The training loop, what it looks at, and where it starts."""

    metric: Literal["accuracy", "mcc", "f1"] = "accuracy"
    """What the best model is best in: accuracy, the Matthews correlation (CoLA's score), or the labels' mean F1."""
    init: PathName | None = None
    """Start from this language model of words (kind lm): its vocabulary, embedding and recurrent layers. Its geometry
    is kept (Dai & Le 2015)."""


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """Train a classifier of texts: sentiment, acceptability, topics; with or without ELMo.

    For example:

        relmo train classifier train.txt --valid dev.txt --preset sst5 --elmo small --elmo-at both --out models/sst5

        relmo train classifier mine.csv --text-column comment --column topic --metric f1 --out models/mine

        relmo train classifier reviews.tsv --init models/lm --pool final --out models/reviews

        echo "A quiet, lovely film." | relmo predict models/sst5 --json
    """

    files: ClassVar[str] = (
        "Texts with labels: trees (SST), CoLA, a table with a header, JSON lines, or a folder for each label (IMDB)."
    )
    """What it is trained on."""

    text: ClassifierTextSettings = field(default_factory=ClassifierTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: ClassifierModelSettings = field(default_factory=ClassifierModelSettings)
    train: ClassifierTrainSettings = field(default_factory=ClassifierTrainSettings)


def check_classifier(settings: ClassifierSettings) -> None:
    """As `check_tagger`, for a classifier."""
    text, model, train = settings.text, settings.model, settings.train
    check_bounds(text)
    check_sentences(model)
    check_inputs(settings.input)
    check_task_training(train)
    if text.format not in ("auto", "tsv", "jsonl"):
        refuse(text, ["text_column"], f"format {text.format}")
    if text.format not in ("auto", "trees"):
        refuse(text, ["subtrees"], f"format {text.format}")
    if model.network == "bcn":
        refuse(model, [*OF_SENTENCES, "projection", "residual"], "network bcn")
    if model.projection is not None and model.cell not in cells_with("projection"):
        some = ", ".join(cells_with("projection"))
        raise SettingError(f"projection has no meaning for cell {model.cell} (only for {some}); leave it out")
    if model.projection is not None and model.projection >= model.hidden:
        raise SettingError(f"projection {model.projection} must be smaller than hidden {model.hidden}")
    if not model.layers:
        refuse(model, ["projection", "residual"], "layers 0")
    if train.init is None:
        return
    if model.network != "pooled":
        raise SettingError(f"init starts the recurrent layers of network pooled; it has no meaning for {model.network}")
    refuse(settings.input, ["min_count", "vectors"], "a run with init, which has the language model's words")
    if settings.input.elmo is not None and settings.input.elmo_at != "output":
        raise SettingError(f"elmo_at {settings.input.elmo_at} does not go with init; give elmo_at output")

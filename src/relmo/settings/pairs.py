"""The settings of `relmo train pairs`: what holds between two sentences."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.errors import SettingError
from relmo.settings.bounds import check_bounds, refuse
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
class PairsTextSettings(TaskTextSettings):
    """Files of pairs of texts."""

    task: Literal["label", "score"] = "label"
    """What holds between two texts: one of several labels, scored by accuracy; or a number, scored by Pearson's
    correlation."""
    format: Literal["auto", "tsv", "stsb", "jsonl"] = "auto"
    """How files are laid out: a table with names in its first line (SNLI, SICK, your own .csv), STS-B's columns, or
    JSON lines. auto looks at the name and the first line."""
    text_columns: tuple[str, ...] = ()
    """Tables and JSON lines: the two columns, or keys, that have the texts; give the flag twice. By default they are
    sentence1 and sentence2, premise and hypothesis, and the like."""


@dataclass(frozen=True, kw_only=True)
class PairsModelSettings(SentenceModelSettings):
    """The network that compares two sentences."""

    network: Literal["encoder", "esim", "decomposable", "cosine"] = "encoder"
    """encoder: a vector for each sentence, then what they share and where they differ. esim, decomposable: words look
    at the words of the other sentence. cosine: the angle between two vectors, for task score."""
    mlp: tuple[int, ...] = (300,)
    """Encoder only: sizes of the layers between a pair's vector and the labels; may be given several times."""
    dropout: float = 0.2
    """Dropout on what the recurrent layers read, with one mask for all words of a sentence, and on what follows
    them."""
    low: float = -5.0
    """Task score: the score of two sentences whose vectors point in opposite directions; no score may be less. If it is
    -high, sentences that have nothing in common have the score 0."""
    high: float = 5.0
    """Task score: the score of two sentences whose vectors point in the same direction; no score may be greater."""


@dataclass(frozen=True, kw_only=True)
class PairsSettings:
    """Train a network that compares two sentences: inference, paraphrase, similarity; with or without ELMo.

    For example:

        relmo train pairs train.tsv --valid dev.tsv --preset snli --elmo small --elmo-at both --out models/snli

        relmo train pairs sts-train.csv --valid sts-dev.csv --preset stsb --elmo small --out models/stsb

        relmo train pairs mine.jsonl --network encoder --pool max --out models/mine

        printf "A man sleeps.\\tA person is awake.\\n" | relmo predict models/snli
    """

    files: ClassVar[str] = "Pairs with labels or scores: a table with a header (SNLI, SICK), STS-B, or JSON lines."
    """What it is trained on."""

    text: PairsTextSettings = field(default_factory=PairsTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: PairsModelSettings = field(default_factory=PairsModelSettings)
    train: TaskTrainSettings = field(default_factory=TaskTrainSettings)


def check_pairs(settings: PairsSettings) -> None:
    """As `check_tagger`, for pairs."""
    model, task = settings.model, settings.text.task
    check_bounds(settings.text)
    if len(settings.text.text_columns) not in (0, 2):
        raise SettingError(
            f"text_columns are two, not {len(settings.text.text_columns)}; a command has the flag twice, each time "
            "with one name"
        )
    if settings.text.format == "stsb":
        refuse(settings.text, ["text_columns"], "format stsb")
    check_sentences(model)
    check_inputs(settings.input)
    check_task_training(settings.train)
    if (task == "score") != (model.network == "cosine"):
        raise SettingError(
            f"task {task} does not go with network {model.network}; task score needs network cosine, as --preset stsb "
            "has it, and cosine needs task score"
        )
    if task == "label":
        refuse(model, ["low", "high"], "task label")
    elif not model.low < model.high:
        raise SettingError(f"low {model.low:g} must be less than high {model.high:g}")
    if model.network == "cosine":
        refuse(model, ["mlp"], "network cosine")
    elif model.network != "encoder":
        refuse(model, OF_SENTENCES, f"network {model.network}")

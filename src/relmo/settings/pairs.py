"""Settings of `relmo train pairs`: sentence pairs."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from relmo.errors import SettingError
from relmo.settings.fields import Names, Only, Rate, Sizes
from relmo.settings.task import SentenceModelSettings, TaskSettings, TaskTextSettings

COSINE = Only(network="cosine")


@dataclass(frozen=True, kw_only=True)
class PairsTextSettings(TaskTextSettings):
    """Files of sentence pairs."""

    task: Literal["label", "score"] = "label"
    """label: one of several labels, scored by accuracy. score: a number, scored by Pearson's correlation."""
    format: Literal["auto", "tsv", "stsb", "jsonl"] = "auto"
    """File format: a table with a header (SNLI, SICK, your own .csv), STS-B's columns, or JSON lines. auto looks at the
    name and the first line."""
    text_columns: Annotated[Names, Only(format=("auto", "tsv", "jsonl"))] = ()
    """Tables and JSON lines: the two columns or keys with the texts; give the flag twice. The default is sentence1 and
    sentence2, premise and hypothesis, and the like."""

    def check(self) -> None:
        super().check()
        if len(self.text_columns) not in (0, 2):
            raise SettingError(
                f"text_columns must be two names, not {len(self.text_columns)}; give the flag twice, with one name each"
            )


@dataclass(frozen=True, kw_only=True)
class PairsModelSettings(SentenceModelSettings):
    """Network for sentence pairs."""

    network: Literal["encoder", "esim", "decomposable", "cosine"] = "encoder"
    """encoder: features of the two sentence vectors. esim, decomposable: attention between the words of the two
    sentences. cosine: cosine of the two sentence vectors, for task score."""
    mlp: Annotated[Sizes, Only(network="encoder")] = (300,)
    """Encoder only: sizes of the layers between the features of a pair and the labels; may be given several times."""
    dropout: Rate = 0.2
    low: Annotated[float, Meta(ge=-1e9, le=1e9), COSINE] = -5.0
    """Task score: lowest score, that of two sentence vectors of opposite direction. With -high, unrelated sentences
    have the score 0."""
    high: Annotated[float, Meta(ge=-1e9, le=1e9), COSINE] = 5.0
    """Task score: highest score, that of two sentence vectors of the same direction."""

    def check(self) -> None:
        super().check()
        if self.low >= self.high:
            raise SettingError(f"low {self.low:g} must be less than high {self.high:g}")


@dataclass(frozen=True, kw_only=True)
class PairsSettings(TaskSettings):
    """Train a model of sentence pairs: inference, paraphrase, similarity; with or without ELMo.

    For example:

        relmo train pairs train.tsv --valid dev.tsv --preset snli --elmo small --elmo-at both --out models/snli

        relmo train pairs sts-train.csv --valid sts-dev.csv --preset stsb --elmo small --out models/stsb

        relmo train pairs mine.jsonl --network encoder --pool max --out models/mine

        printf "A man sleeps.\\tA person is awake.\\n" | relmo predict models/snli
    """

    files: ClassVar[str] = "Pairs with labels or scores: a table with a header (SNLI, SICK), STS-B, or JSON lines."

    text: PairsTextSettings = field(default_factory=PairsTextSettings)
    model: PairsModelSettings = field(default_factory=PairsModelSettings)

    def check(self) -> None:
        super().check()
        task, network = self.text.task, self.model.network
        if (task == "score") != (network == "cosine"):
            raise SettingError(
                f"task {task} and network {network} cannot be used together; task score needs network cosine, as in "
                "--preset stsb, and cosine needs task score"
            )

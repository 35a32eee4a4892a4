"""Settings of `relmo train skipgram`: static word vectors."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from relmo.errors import SettingError
from relmo.settings.fields import Count, Dimension, HeldOut, KindSettings, SettingsSection, Size, Weight, refuse
from relmo.settings.lm import TextSettings
from relmo.settings.training import Epochs, LearningRate, Steps, TrainSettings


@dataclass(frozen=True, kw_only=True)
class SkipgramTextSettings(TextSettings):
    """Text and vocabulary; by default nothing is held out."""

    unit: Literal["char", "word"] = "word"
    """Always word."""
    lowercase: bool = True
    min_count: Count = 5
    """Words that are less frequent have no vector and are skipped."""
    text_per: Literal["file", "line"] = "line"
    """Unit of text: a whole file, or each line of it. Words do not predict words of another text."""
    valid_fraction: HeldOut = 0.0
    """Fraction of the corpus that is held out for validation if there is no validation file."""


@dataclass(frozen=True, kw_only=True)
class SkipgramModelSettings(SettingsSection):
    """Word vectors and their training pairs."""

    dimensions: Dimension = 100
    """Size of the vectors."""
    window: Annotated[int, Meta(ge=1, le=100)] = 5
    """Largest distance between a word and the words it predicts; for each word it is drawn from 1 to this."""
    negatives: Annotated[int, Meta(ge=1, le=100)] = 5
    """Weight of the negative samples relative to each true neighbour."""
    subsample: Annotated[float, Meta(ge=1e-12, le=1)] = 1e-3
    """Subsample words whose relative frequency is above this; 1 keeps all words."""


@dataclass(frozen=True, kw_only=True)
class SkipgramTrainSettings(TrainSettings):
    """Training loop for sparse gradients."""

    epochs: Epochs = 5.0
    batch: Size = 4096
    """Number of running words per step."""
    optimizer: Literal["adamw", "adam", "sgd", "adagrad"] = "adagrad"
    """Optimiser: adagrad; or sgd, as in word2vec, with a learning rate of 0.025 and a batch of 1024 or fewer."""
    lr: LearningRate = 0.25
    """Learning rate after warm-up, for the sum over the pairs of a batch."""
    warmup: Steps = 0
    """Steps over which the learning rate rises from zero."""
    decay: Literal["cosine", "linear", "constant"] = "linear"
    clip_norm: Weight = 0.0
    """Always 0: sparse gradients are not clipped."""

    def check(self) -> None:
        super().check()
        refuse(self, ["unroll"], "for skipgram")
        if self.optimizer not in ("sgd", "adagrad"):
            raise SettingError(f"optimizer {self.optimizer} takes no sparse gradients; use adagrad or sgd")
        for name in ("clip_norm", "weight_decay", "momentum"):
            if getattr(self, name):
                raise SettingError(f"{name} must be 0 for skipgram, whose gradients are sparse; leave it out")


@dataclass(frozen=True, kw_only=True)
class SkipgramSettings(KindSettings):
    """Train static word vectors: skip-gram with negative sampling.

    The model folder also contains vectors.txt, in word2vec's text format.

    For example:

        relmo train skipgram corpus.txt --out models/vectors
    """

    files: ClassVar[str] = "Files to train on: plain, .gz, .xz, .zst, .conllu, or - for standard input."

    text: SkipgramTextSettings = field(default_factory=SkipgramTextSettings)
    model: SkipgramModelSettings = field(default_factory=SkipgramModelSettings)
    train: SkipgramTrainSettings = field(default_factory=SkipgramTrainSettings)

    def check(self) -> None:
        super().check()
        if self.text.unit != "word":
            raise SettingError("unit must be word for skipgram; leave it out")
        refuse(self.text, ["test_fraction"], "for skipgram")

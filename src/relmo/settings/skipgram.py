"""The settings of `relmo train skipgram`: static word vectors."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.errors import SettingError
from relmo.settings.bounds import check_bounds, refuse
from relmo.settings.lm import TextSettings
from relmo.settings.training import TrainSettings


@dataclass(frozen=True, kw_only=True)
class SkipgramTextSettings(TextSettings):
    """How text becomes words; by default all of it is trained on."""

    unit: Literal["char", "word"] = "word"
    """What has a vector: always words."""
    lowercase: bool = True
    """Fold the text to lower case first."""
    min_count: int = 5
    """Words seen fewer times than this get no vector and are passed over."""
    text_per: Literal["file", "line"] = "line"
    """What one text is: a whole file, or each line of it. A word predicts no words of another text."""
    valid_fraction: float = 0.0
    """The share of the corpus that is held out for validation if there is no validation file."""


@dataclass(frozen=True, kw_only=True)
class SkipgramModelSettings:
    """The word vectors and what they learn from."""

    dimensions: int = 100
    """Size of a vector."""
    window: int = 5
    """A word predicts the words up to this far away; each time the reach is drawn from 1 to this."""
    negatives: int = 5
    """The weight of words drawn at random against each true neighbour."""
    subsample: float = 1e-3
    """Words that make up more than this share of the text are thinned; 1 keeps them all."""


@dataclass(frozen=True, kw_only=True)
class SkipgramTrainSettings(TrainSettings):
    """The training loop, with what suits sparse gradients."""

    epochs: float = 5.0
    """How often to go through the training data; may be a fraction."""
    batch: int = 4096
    """How many words of running text make one step."""
    optimizer: Literal["adamw", "adam", "sgd", "adagrad"] = "adagrad"
    """The optimiser: adagrad; or sgd, as in word2vec, with a learning rate of 0.025 and a batch of 1024 or fewer."""
    lr: float = 0.25
    """The learning rate after warm-up, for the sum over the pairs of a batch."""
    warmup: int = 0
    """Steps over which the learning rate rises from zero."""
    decay: Literal["cosine", "linear", "constant"] = "linear"
    """How the learning rate falls after warm-up."""
    clip_norm: float = 0.0
    """Always 0: sparse gradients are not clipped."""


@dataclass(frozen=True, kw_only=True)
class SkipgramSettings:
    """Train static word vectors, skip-gram with negative sampling.

    The folder also holds them as vectors.txt, in word2vec's text format.

    For example:

        relmo train skipgram corpus.txt --out models/vectors
    """

    files: ClassVar[str] = "Files to train on: plain, .gz, .xz, .zst, .conllu, or - for standard input."
    """What it is trained on."""

    text: SkipgramTextSettings = field(default_factory=SkipgramTextSettings)
    model: SkipgramModelSettings = field(default_factory=SkipgramModelSettings)
    train: SkipgramTrainSettings = field(default_factory=SkipgramTrainSettings)


def check_skipgram(settings: SkipgramSettings) -> None:
    """As `check_lm`, for word vectors."""
    check_bounds(settings.text, settings.model, settings.train)
    if settings.text.unit != "word":
        raise SettingError("unit must be word for skipgram; leave it out")
    if settings.text.test_fraction:
        raise SettingError("test_fraction has no meaning for skipgram; leave it out")
    refuse(settings.train, ["unroll"], "skipgram")
    if settings.train.optimizer not in ("sgd", "adagrad"):
        raise SettingError(
            f"optimizer {settings.train.optimizer} takes no sparse gradients; use adagrad (or sgd) for skipgram"
        )
    for name in ("clip_norm", "weight_decay", "momentum"):
        if getattr(settings.train, name):
            raise SettingError(f"{name} must be 0 for skipgram, whose gradients are sparse; leave it out")

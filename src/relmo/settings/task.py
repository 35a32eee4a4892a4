"""Settings that tasks share: files, word inputs, training, sentence encoders."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from relmo.errors import SettingError
from relmo.settings.arguments import PathName
from relmo.settings.cells import CellName
from relmo.settings.fields import (
    DISABLED,
    ENABLED,
    Count,
    HeldOut,
    KindSettings,
    Names,
    NumLayers,
    Only,
    OptionalDimension,
    OptionalLayers,
    Rate,
    SettingsSection,
    Size,
    Sizes,
    Weight,
    check_filters,
    refuse,
)
from relmo.settings.training import Epochs, LearningRate, Steps, TrainSettings

NONE = NO_CACHE = "none"
ELMO = Only(elmo=ENABLED)


@dataclass(frozen=True, kw_only=True)
class TaskTextSettings(SettingsSection):
    """Files of a task."""

    tokenizer: Literal["words", "whitespace"] = "words"
    """Tokenizer of raw text: relmo's Unicode tokenizer, or split at whitespace if the text is tokenised already. The
    model keeps this setting."""
    valid: PathName | None = None
    """Development file, by which the best model is chosen. By default a part of the training examples is held out."""
    valid_fraction: HeldOut = 0.1
    """Fraction of the training examples that is held out, at even distances, if there is no development file."""
    column: str | None = None
    """Column, by name or number, or key of JSON, with the labels, if it is not the usual one."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not UTF-8: stop with an error that says where they are, or read them as U+FFFD."""


@dataclass(frozen=True, kw_only=True)
class InputSettings(SettingsSection):
    """Word inputs: learned vectors, static vectors, characters and ELMo, concatenated."""

    word_dim: OptionalDimension = 50
    """Size of the word vectors that are learned with the task; 0 for none."""
    lowercase: bool = True
    """Lower-case words for the learned vectors; characters and ELMo are not affected."""
    min_count: Count = 1
    """Words that are less frequent in the training examples share the learned vector of unknown words."""
    word_dropout: Rate = 0.0
    """Fraction of words that are replaced by the unknown word in training."""
    vectors: PathName | None = None
    """Static word vectors: `words`, which is bundled; a folder of kind skipgram; or a text file in the format of
    word2vec or GloVe. Words without a vector are looked up in lower case. `none` overrides a preset."""
    vectors_tune: Annotated[bool, Only(vectors=ENABLED)] = False
    """Train the static vectors of the training words with the task; those of other words do not change."""
    char_dim: OptionalDimension = 16
    """Size of the character embeddings; 0 for no character input."""
    filters: Annotated[Names, Only(char_dim=ENABLED)] = ("3x128",)
    """Convolutions over the characters of a word, separated by commas: 3x128 stands for 128 filters of width 3."""
    max_characters: Annotated[int, Meta(ge=3, le=1 << 12), Only(char_dim=ENABLED)] = 50
    """Largest number of bytes of a word, including two boundary marks. Longer words are truncated."""
    elmo: PathName | None = None
    """Bidirectional language model for contextual vectors: `small`, which is bundled; a folder; or original ELMo files.
    `none` overrides a config file."""
    elmo_at: Annotated[Literal["input", "output", "both"], ELMO] = "input"
    """Place of the ELMo vectors: with the other word inputs, with the output of the (first) encoder, or both, each with
    a scalar mix of its own."""
    elmo_layers: Annotated[Literal["all", "top"], ELMO] = "all"
    """Layers: a learned mix of all layers, or the top layer."""
    elmo_dropout: Annotated[Rate, ELMO] = 0.2
    """Dropout on the mixed vectors. The published value, 0.5, is high for vectors smaller than the original's 1,024."""
    elmo_l2: Annotated[Weight, ELMO, Only(elmo_layers="all")] = 0.001
    """Lambda, the weight of the penalty on the mix: 1 makes it an average, 0.001 leaves it free."""
    elmo_norm: Annotated[bool, ELMO] = False
    """Normalise each layer before the mix: subtract its mean vector over words of the training examples, and divide by
    the standard deviation. The vectors of a biLM have a common component and are shorter than other vectors."""
    elmo_tune: Annotated[bool, ELMO] = False
    """Fine-tune the biLM with the task. Otherwise it is frozen, and its vectors are computed once and cached."""
    cache: Annotated[PathName | None, ELMO, Only(elmo_tune=DISABLED)] = None
    """Cache of these vectors: a folder, or `none` to recompute them every time. The default is $RELMO_CACHE, or
    ~/.cache/relmo."""
    copy: bool = False
    """Copy the biLM and the static vectors into the model folder. Otherwise the folder refers to them, with their
    checksums."""

    def __post_init__(self) -> None:
        # TOML and flags have no null value, so `none` stands for it.
        for name in ("vectors", "elmo"):
            if getattr(self, name) == NONE:
                object.__setattr__(self, name, None)

    def check(self) -> None:
        super().check()
        if self.char_dim:
            check_filters(self.filters, self.max_characters)
        if self.elmo is None and self.vectors is None:
            refuse(self, ["copy"], "without elmo or vectors")
        if not self.word_dim and not self.vectors_tune:
            refuse(self, ["min_count", "lowercase"], "with word_dim 0")
        has_elmo = self.elmo is not None and self.elmo_at != "output"
        if not (self.word_dim or self.char_dim or self.vectors or has_elmo):
            raise SettingError("the network has no input; set word_dim, char_dim, vectors or elmo")


@dataclass(frozen=True, kw_only=True)
class TaskTrainSettings(TrainSettings):
    """Training loop of a task."""

    epochs: Epochs = 30.0
    """Largest number of passes over the training data; may be a fraction."""
    batch: Size = 32
    """Largest number of examples per batch; they have similar lengths."""
    tokens_per_batch: Annotated[int, Meta(ge=1, le=1 << 30)] = 8192
    """Largest number of words per batch, including padding. A longer example is a batch of its own."""
    optimizer: Literal["adamw", "adam", "sgd", "adagrad"] = "adam"
    """Optimiser."""
    lr: LearningRate = 0.001
    warmup: Steps = 0
    decay: Literal["cosine", "linear", "constant"] = "constant"
    clip_norm: Weight = 5.0
    patience: Count | None = 10
    seeds: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Number of runs with different seeds, from `seed` on, each in a folder of its own. The best one is the model."""
    plot: bool = False
    """Plot the learning curves to curves.png in the model folder (needs relmo[plot])."""

    def check(self) -> None:
        super().check()
        refuse(self, ["unroll"], "for tasks")


@dataclass(frozen=True, kw_only=True)
class TaskSettings(KindSettings):
    """Base class of the settings of tasks, which override the sections that differ."""

    text: TaskTextSettings = field(default_factory=TaskTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: SettingsSection = field(default_factory=SettingsSection)
    train: TaskTrainSettings = field(default_factory=TaskTrainSettings)


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(SettingsSection):
    """Bidirectional recurrent layers."""

    cell: CellName = "lstm"
    """Recurrent cell."""
    layers: NumLayers = 1
    """Number of recurrent layers."""
    hidden: Size = 200
    """Hidden size of each layer per direction."""


RECURRENT = Only(network=("pooled", "encoder", "cosine"))


@dataclass(frozen=True, kw_only=True)
class SentenceModelSettings(SettingsSection):
    """Sentence encoder: recurrent layers and pooling. Subclasses have a setting `network`."""

    cell: Annotated[CellName, RECURRENT, Only(layers=ENABLED)] = "lstm"
    """Recurrent cell."""
    layers: Annotated[OptionalLayers, RECURRENT] = 1
    """Number of recurrent layers; 0 replaces them with a linear layer on each word."""
    directions: Annotated[Literal[1, 2], RECURRENT, Only(layers=ENABLED)] = 2
    """1 for forward layers, 2 for bidirectional ones."""
    hidden: Size = 200
    """Hidden size of each layer per direction. Networks with other kinds of layers use it for those."""
    pool: Annotated[Literal["final", "mean", "max", "attention"], RECURRENT] = "max"
    """Pooling over words: final state, mean, maximum, or a mean with learned attention weights."""
    mlp: Annotated[Sizes, Only(network=("pooled", "encoder"))] = ()
    """Sizes of the layers between the sentence vectors and the labels; may be given several times."""
    dropout: Rate = 0.5
    """Dropout on the input of the recurrent layers, with one mask for all words of a sentence, and on what follows
    them."""

    def check(self) -> None:
        super().check()
        if not self.layers and self.pool == "final":
            raise SettingError("pool final needs recurrent layers; with layers 0 use pool mean, max or attention")

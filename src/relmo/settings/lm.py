"""Settings of `relmo train lm`: language models over characters or words."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from relmo.errors import SettingError, quote
from relmo.settings.arguments import PathName
from relmo.settings.cells import CELLS, cells_with
from relmo.settings.fields import (
    Count,
    HeldOut,
    KindSettings,
    NumLayers,
    Only,
    Rate,
    SettingsSection,
    Size,
    refuse,
)
from relmo.settings.training import TrainSettings

RECURRENT, NEURAL = Only(cell=tuple(CELLS)), Only(cell=(*CELLS, "feedforward"))

if TYPE_CHECKING:
    NetworkName = str
else:
    NetworkName = Literal[(*CELLS, "ngram", "feedforward")]


@dataclass(frozen=True, kw_only=True)
class TextSettings(SettingsSection):
    """Text, vocabulary and held-out parts."""

    unit: Literal["char", "word"] = "char"
    """Symbols of the model: characters or words."""
    tokenizer: Annotated[Literal["words", "whitespace"], Only(unit="word")] = "words"
    """Tokenizer: relmo's Unicode tokenizer, or split at whitespace if the text is tokenised already."""
    lowercase: bool = False
    """Lower-case the text."""
    text_per: Literal["file", "line"] = "file"
    """Unit of text: a whole file, or each line of it. The end-of-text symbol follows every text; line ends inside a
    text are symbols of their own."""
    vocabulary: PathName | None = None
    """Vocabulary file, one symbol per line. By default the vocabulary is built from the training part."""
    vocabulary_size: Count | None = None
    """Largest number of symbols; less frequent ones become `<unk>`."""
    min_count: Count = 1
    """Symbols that are less frequent in the training part become `<unk>`."""
    valid: PathName | None = None
    """Validation file. By default the last part of the corpus is held out."""
    valid_fraction: HeldOut = 0.05
    """Fraction of the corpus that is held out for validation if there is no validation file. It follows the training
    part."""
    test_fraction: HeldOut = 0.0
    """Fraction at the end of the corpus that is scored once, after training."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not UTF-8: stop with an error that says where they are, or read them as U+FFFD."""

    def check(self) -> None:
        super().check()
        if self.valid_fraction + self.test_fraction >= 1:
            raise SettingError("valid_fraction and test_fraction leave nothing to train on")


@dataclass(frozen=True, kw_only=True)
class LanguageModelSettings(SettingsSection):
    """Network of a language model."""

    cell: NetworkName = "lstm"
    """Recurrent cell; or, for comparison, an interpolated Kneser-Ney n-gram model or Bengio's fixed-window network."""
    layers: Annotated[NumLayers, RECURRENT] = 1
    """Number of recurrent layers."""
    hidden: Annotated[Size, NEURAL] = 512
    """Hidden size of each layer (feedforward: of the hidden layer)."""
    embedding: Annotated[Size | None, NEURAL] = None
    """Size of the input embeddings. The default is the hidden size."""
    projection: Annotated[Size | None, Only(cell=cells_with("projection"))] = None
    """LSTM only: project the output of each layer to this size."""
    nonlinearity: Annotated[Literal["tanh", "relu"], Only(cell=cells_with("nonlinearity"))] = "tanh"
    """Elman only: activation."""
    forget_bias: Annotated[float, Meta(ge=-1e9, le=1e9), Only(cell=cells_with("forget_bias"))] = 1.0
    """LSTM only: initial bias of the forget gate."""
    residual: Annotated[bool, RECURRENT] = False
    """Residual connections between layers of the same size."""
    order: Annotated[int, Meta(ge=1, le=20), Only(cell=("ngram", "feedforward"))] = 5
    """N-gram and feedforward: predict from the last order - 1 symbols."""
    dropout: Annotated[Rate, NEURAL] = 0.0
    """Dropout between layers, and on the output of the top layer unless output_dropout is set."""
    output_dropout: Annotated[Rate | None, NEURAL] = None
    """Dropout on the output of the top layer."""
    input_dropout: Annotated[Rate, NEURAL] = 0.0
    """Dropout on the input embeddings."""
    word_dropout: Annotated[Rate, RECURRENT] = 0.0
    """Dropout of whole symbols; a symbol is dropped wherever it occurs in the batch."""
    weight_drop: Annotated[Rate, RECURRENT] = 0.0
    """Dropout on the recurrent weights (DropConnect)."""
    variational: Annotated[bool, RECURRENT] = False
    """Variational dropout: one mask for all steps of a window instead of a new one at each step."""
    tied: Annotated[bool, RECURRENT] = False
    """Use the input embeddings as the weights of the output layer."""
    softmax: Annotated[Literal["full", "adaptive", "sampled"], NEURAL] = "full"
    """Output layer in training: exact; adaptive (more capacity for frequent symbols); or sampled."""
    cutoffs: Annotated[tuple[int, ...], Meta(max_length=1000), NEURAL, Only(softmax="adaptive")] = ()
    """Adaptive softmax: ranks at which the clusters end. The default depends on the size of the vocabulary."""
    samples: Annotated[Size, NEURAL, Only(softmax="sampled")] = 8192
    """Sampled softmax: number of sampled symbols per step."""

    def check(self) -> None:
        super().check()
        if self.projection and self.projection >= self.hidden:
            raise SettingError(f"projection {self.projection} must be smaller than hidden {self.hidden}")
        if self.tied and self.softmax == "adaptive":
            raise SettingError("tied and softmax adaptive cannot be used together; use softmax full or sampled")
        if any(low >= high for low, high in pairwise((0, *self.cutoffs))):
            raise SettingError(f"cutoffs must increase and be positive, not {quote(self.cutoffs)}")
        if self.cell == "feedforward" and self.order < 2:
            raise SettingError("order must be 2 or more for cell feedforward, which predicts from order - 1 symbols")


@dataclass(frozen=True, kw_only=True)
class LMSettings(KindSettings):
    """Train a language model over characters or words.

    Text may be plain, .gz, .xz, .zst, .conllu, or - for standard input. The last part is held out for validation.

    For example:

        relmo train lm corpus.txt --cell lstm --hidden 512 --epochs 20 --out models/mine

        relmo generate models/mine --prompt "Once upon a time"
    """

    files: ClassVar[str] = "Files to train on, in this order."

    text: TextSettings = field(default_factory=TextSettings)
    model: LanguageModelSettings = field(default_factory=LanguageModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)

    def check(self) -> None:
        super().check()
        if self.model.cell == "ngram":
            optimised = [name for name in vars(self.train) if name not in ("seed", "device", "threads")]
            refuse(self.train, optimised, "with cell ngram, which is counted")

"""Settings of `relmo train lm`, language models over characters or words, and `relmo train skipgram`, word vectors."""

from dataclasses import field
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta

from relmo.errors import SettingError, quote
from relmo.registry import UNKNOWN_CELL_ADVICE, cell_names, cells_with
from relmo.settings import fields as f
from relmo.settings.kinds import check_cell_options
from relmo.settings.sections import CellOptions, TrainSettings

RECURRENT, NEURAL = f.Only(cell=cell_names), f.Only(cell=lambda: (*cell_names(), "feedforward"))
NetworkName = Annotated[str, f.OneOf(lambda: (*cell_names(), "ngram", "feedforward"), UNKNOWN_CELL_ADVICE)]


class TextSettings(f.SettingsSection):
    """Text, vocabulary and held-out parts."""

    unit: Literal["char", "word"] = "char"
    """Symbols of the model: characters or words."""
    tokenizer: Annotated[Literal["words", "whitespace"], f.Only(unit="word")] = "words"
    """Tokenizer: relmo's Unicode tokenizer, or split at whitespace if the text is tokenised already."""
    lowercase: bool = False
    """Lower-case the text."""
    text_per: Literal["file", "line"] = "file"
    """Unit of text: a whole file, or each line of it. The end-of-text symbol follows every text; line ends inside a
    text are symbols of their own."""
    vocabulary: f.PathName | None = None
    """Vocabulary file, one symbol per line. By default the vocabulary is built from the training part."""
    vocabulary_size: f.Count | None = None
    """Largest number of symbols; less frequent ones become `<unk>`."""
    min_count: f.Count = 1
    """Symbols that are less frequent in the training part become `<unk>`."""
    valid: f.PathName | None = None
    """Validation file. By default the last part of the corpus is held out."""
    valid_fraction: f.HeldOut = 0.05
    """Fraction of the corpus that is held out for validation if there is no validation file. It follows the training
    part."""
    test_fraction: f.HeldOut = 0.0
    """Fraction at the end of the corpus that is scored once, after training."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not UTF-8: stop with an error that says where they are, or read them as U+FFFD."""

    def check(self) -> None:
        super().check()
        if self.valid_fraction + self.test_fraction >= 1:
            raise SettingError("valid_fraction and test_fraction leave nothing to train on")


class LanguageModelSettings(f.SettingsSection):
    """Network of a language model."""

    cell: NetworkName = "lstm"
    """Recurrent cell; or, for comparison, an interpolated Kneser-Ney n-gram model or Bengio's fixed-window network."""
    cell_options: Annotated[CellOptions, RECURRENT] = ()
    """Options of the cell as NAME=VALUE, separated by commas; `relmo cells` lists them."""
    layers: Annotated[f.NumLayers, RECURRENT] = 1
    """Number of recurrent layers."""
    hidden: Annotated[f.Size, NEURAL] = 512
    """Hidden size of each layer (feedforward: of the hidden layer)."""
    last_hidden: Annotated[f.Size | None, RECURRENT] = None
    """Hidden size of the last layer, if it is another one, such as that of tied embeddings."""
    embedding: Annotated[f.Size | None, NEURAL] = None
    """Size of the input embeddings. The default is the hidden size."""
    projection: Annotated[f.Size | None, f.Only(cell=partial(cells_with, "projection"))] = None
    """LSTM only: project the output of each layer to this size."""
    nonlinearity: Annotated[Literal["tanh", "relu"], f.Only(cell=partial(cells_with, "nonlinearity"))] = "tanh"
    """Elman only: activation."""
    forget_bias: Annotated[float, Meta(ge=-1e9, le=1e9), f.Only(cell=partial(cells_with, "forget_bias"))] = 1.0
    """LSTM and other cells with a forget gate: its initial bias."""
    residual: Annotated[bool, RECURRENT] = False
    """Residual connections between layers of the same size."""
    order: Annotated[int, Meta(ge=1, le=20), f.Only(cell=("ngram", "feedforward"))] = 5
    """N-gram and feedforward: predict from the last order - 1 symbols."""
    dropout: Annotated[f.Rate, NEURAL] = 0.0
    """Dropout between layers, and on the output of the top layer unless output_dropout is set."""
    output_dropout: Annotated[f.Rate | None, NEURAL] = None
    """Dropout on the output of the top layer."""
    input_dropout: Annotated[f.Rate, NEURAL] = 0.0
    """Dropout on the input embeddings."""
    word_dropout: Annotated[f.Rate, RECURRENT] = 0.0
    """Dropout of whole symbols; a symbol is dropped wherever it occurs in the batch."""
    weight_drop: Annotated[f.Rate, RECURRENT] = 0.0
    """Dropout on the recurrent weights (DropConnect)."""
    variational: Annotated[bool, RECURRENT] = False
    """Variational dropout: one mask for all steps of a window instead of a new one at each step."""
    activation_penalty: Annotated[f.Weight, RECURRENT] = 0.0
    """Activation regularisation (AR): weight of the mean square of the top layer's outputs after dropout. The training
    loss includes it."""
    temporal_penalty: Annotated[f.Weight, RECURRENT] = 0.0
    """Temporal activation regularisation (TAR): weight of the mean square of the differences between the top layer's
    outputs of successive steps. The training loss includes it."""
    tied: Annotated[bool, RECURRENT] = False
    """Use the input embeddings as the weights of the output layer."""
    softmax: Annotated[Literal["full", "adaptive", "sampled", "mixture"], NEURAL] = "full"
    """Output layer: exact; adaptive (more capacity for frequent symbols); sampled in training; or a mixture of several
    exact ones."""
    cutoffs: Annotated[tuple[int, ...], Meta(max_length=1000), NEURAL, f.Only(softmax="adaptive")] = ()
    """Adaptive softmax: ranks at which the clusters end. The default depends on the size of the vocabulary."""
    samples: Annotated[f.Size, NEURAL, f.Only(softmax="sampled")] = 8192
    """Sampled softmax: number of sampled symbols per step."""
    mixtures: Annotated[int, Meta(ge=1, le=1000), NEURAL, f.Only(softmax="mixture")] = 10
    """Mixture of softmaxes: number of components. Time and memory grow with it."""
    mixture_dropout: Annotated[f.Rate, NEURAL, f.Only(softmax="mixture")] = 0.0
    """Mixture of softmaxes: dropout on the input of each component."""

    def check(self) -> None:
        super().check()
        if self.cell_options:
            check_cell_options(self)
        if self.projection and self.projection >= self.hidden:
            raise SettingError(f"projection {self.projection} must be smaller than hidden {self.hidden}")
        if self.tied and self.softmax == "adaptive":
            raise SettingError("tied and softmax adaptive cannot be used together; use another softmax")
        if any(low >= high for low, high in pairwise((0, *self.cutoffs))):
            raise SettingError(f"cutoffs must increase and be positive, not {quote(self.cutoffs)}")
        if self.cell == "feedforward" and self.order < 2:
            raise SettingError("order must be 2 or more for cell feedforward, which predicts from order - 1 symbols")


class LMSettings(f.KindSettings):
    """Train a language model over characters or words.

    Text may be plain, .gz, .xz, .zst, .conllu, or - for standard input. The last part is held out for validation.

    For example:

        relmo train lm corpus.txt --cell lstm --hidden 512 --epochs 20 --out models/mine

        relmo generate models/mine --prompt "Once upon a time"
    """

    files = "Files to train on, in this order."

    text: TextSettings = field(default_factory=TextSettings)
    model: LanguageModelSettings = field(default_factory=LanguageModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)

    def check(self) -> None:
        super().check()
        if self.model.cell == "ngram":
            optimised = [name for name in vars(self.train) if name not in ("seed", "device", "threads")]
            f.refuse(self.train, optimised, "with cell ngram, which is counted")


class SkipgramTextSettings(TextSettings):
    """Text and vocabulary; by default nothing is held out."""

    unit: Literal["word"] = "word"
    """Always word."""
    lowercase: bool = True
    min_count: f.Count = 5
    """Words that are less frequent have no vector and are skipped."""
    text_per: Literal["file", "line"] = "line"
    """Unit of text: a whole file, or each line of it. Words do not predict words of another text."""
    valid_fraction: f.HeldOut = 0.0
    """Fraction of the corpus that is held out for validation if there is no validation file."""


class SkipgramModelSettings(f.SettingsSection):
    """Word vectors and their training pairs."""

    dimensions: f.Dimension = 100
    """Size of the vectors."""
    window: Annotated[int, Meta(ge=1, le=100)] = 5
    """Largest distance between a word and the words it predicts; for each word it is drawn from 1 to this."""
    negatives: Annotated[int, Meta(ge=1, le=100)] = 5
    """Weight of the negative samples relative to each true neighbour."""
    subsample: Annotated[float, Meta(ge=1e-12, le=1)] = 1e-3
    """Subsample words whose relative frequency is above this; 1 keeps all words."""


class SkipgramTrainSettings(TrainSettings):
    """Training loop for sparse gradients."""

    epochs: f.Epochs = 5.0
    batch: f.Size = 4096
    """Number of running words per step."""
    optimizer: Literal["sgd", "adagrad"] = "adagrad"
    """Optimiser: adagrad; or sgd, as in word2vec, with a learning rate of 0.025 and a batch of 1024 or fewer."""
    lr: f.LearningRate = 0.25
    """Learning rate after warm-up, for the sum over the pairs of a batch."""
    warmup: f.Steps = 0
    decay: Literal["cosine", "linear", "constant"] = "linear"
    clip_norm: f.Weight = 0.0
    """Always 0: sparse gradients are not clipped."""

    def check(self) -> None:
        super().check()
        f.refuse(self, ["unroll", "vary_unroll"], "for skipgram")
        for name in ("clip_norm", "weight_decay", "momentum"):
            if getattr(self, name):
                raise SettingError(f"{name} must be 0 for skipgram, whose gradients are sparse; leave it out")


class SkipgramSettings(f.KindSettings):
    """Train static word vectors: skip-gram with negative sampling.

    The model folder also contains vectors.txt, in word2vec's text format.

    For example:

        relmo train skipgram corpus.txt --out models/vectors
    """

    files = "Files to train on: plain, .gz, .xz, .zst, .conllu, or - for standard input."

    text: SkipgramTextSettings = field(default_factory=SkipgramTextSettings)
    model: SkipgramModelSettings = field(default_factory=SkipgramModelSettings)
    train: SkipgramTrainSettings = field(default_factory=SkipgramTrainSettings)

    def check(self) -> None:
        super().check()
        f.refuse(self.text, ["test_fraction"], "for skipgram")

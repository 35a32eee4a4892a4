"""Settings of `relmo train bilm`: bidirectional language models (ELMo)."""

from dataclasses import field
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta

from relmo.errors import SettingError
from relmo.registry import cells_with
from relmo.settings import fields as f
from relmo.settings.sections import CellSettings, TrainSettings

CHARACTERS = f.Only(input=("char", "dictionary"))


class BiLMTextSettings(f.SettingsSection):
    """Text, vocabulary and validation part; every line of text is a sentence."""

    tokenizer: Literal["words", "whitespace"] = "words"
    """Tokenizer: relmo's Unicode tokenizer, or split at whitespace if the text is tokenised already."""
    lowercase: bool = False
    """Lower-case the text."""
    vocabulary: f.PathName | None = None
    """File with the words to predict, one per line, most frequent first. By default the vocabulary is built from the
    training part. Words outside the vocabulary are still read by their characters."""
    vocabulary_size: Annotated[f.Count | None, f.Only(vocabulary=f.DISABLED)] = None
    """Largest number of words to predict; less frequent words become `<UNK>`."""
    min_count: Annotated[f.Count, f.Only(vocabulary=f.DISABLED)] = 1
    """Words that are less frequent in the training part become `<UNK>`."""
    valid: f.PathName | None = None
    """Validation file. By default the last part of the corpus is held out."""
    valid_fraction: f.HeldOut = 0.01
    """Fraction of the corpus that is held out if there is no validation file."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not UTF-8: stop with an error that says where they are, or read them as U+FFFD."""


class BiLMModelSettings(CellSettings):
    """Network of a bidirectional language model; the defaults are the published small model."""

    input: Literal["char", "word", "dictionary"] = "char"
    """Input of the network: characters, or word embeddings (that of `<UNK>` for words outside the vocabulary).
    dictionary is the input of ELMoForManyLangs, which has both with dictionaries of its own; such models can be loaded
    but not trained."""
    char_dim: Annotated[f.Dimension, CHARACTERS] = 16
    """Size of the character embeddings."""
    filters: Annotated[f.Names, CHARACTERS] = ("1x32", "2x32", "3x64", "4x128", "5x256", "6x512", "7x1024")
    """Convolutions over the characters of a word, separated by commas: 3x128 stands for 128 filters of width 3."""
    activation: Annotated[Literal["relu", "tanh"], CHARACTERS] = "relu"
    """Activation after the convolutions."""
    max_characters: Annotated[int, Meta(ge=3, le=1 << 12), CHARACTERS] = 50
    """Largest number of bytes of a word, including two boundary marks. Longer words are truncated."""
    highway: Annotated[f.OptionalLayers, CHARACTERS] = 1
    """Number of highway layers after the convolutions."""
    layers: f.NumLayers = 2
    """Number of recurrent layers per direction."""
    hidden: f.Size = 1024
    """Hidden size of each recurrent layer."""
    projection: f.Size = 128
    """Size of the token vectors and of the projected output of each layer. There is no projection if it equals hidden.
    An LSTM carries the projected output, other cells the output before the projection."""
    cell_clip: Annotated[f.Weight, f.Only(cell=partial(cells_with, "cell_clip"))] = 3.0
    """LSTM only: clip the cell states to plus or minus this value; 0 turns clipping off."""
    projection_clip: Annotated[f.Weight, f.Only(cell=partial(cells_with, "projection_clip"))] = 3.0
    """LSTM only: clip the projected outputs to plus or minus this value; 0 turns clipping off."""
    skip_connections: bool = True
    """Residual connections from the second layer on."""
    dropout: f.Rate = 0.1
    """Dropout on the input of every recurrent layer and on the output of the top one."""
    state_dropout: f.Rate = 0.01
    """Fraction of lanes that start a training window from the initial state instead of the carried one. A network that
    never does so does not learn how sentences begin, and its cells can saturate when it embeds one."""
    tied: Annotated[bool, f.Only(input="word")] = False
    """Word input only: use the input embeddings as the weights of the output layer."""
    softmax: Literal["full", "sampled"] = "sampled"
    """Output layer in training: exact, or sampled. Evaluation is always exact."""
    samples: Annotated[f.Size, f.Only(softmax="sampled")] = 8192
    """Sampled softmax: number of sampled words per step."""
    softmax_dim: f.Dimension | None = None
    """Size of the output embeddings if it is smaller than projection; a matrix maps the output of the top layer to it.
    This saves parameters with a large vocabulary."""

    def check(self) -> None:
        super().check()
        f.parse_filters(self.filters, self.max_characters)
        if self.projection > self.hidden:
            raise SettingError(f"projection {self.projection} must not be larger than hidden {self.hidden}")
        if self.softmax_dim is not None and self.softmax_dim >= self.projection:
            raise SettingError(f"softmax_dim must be smaller than projection ({self.projection}); leave it out")
        if self.softmax_dim is not None and self.tied:
            raise SettingError("softmax_dim and tied cannot be used together")


class BiLMTrainSettings(TrainSettings):
    """Training loop; the defaults are the original recipe."""

    batch: f.Size = 128
    """Number of lanes of sentences per batch; with several GPUs, on each of them."""
    unroll: f.Size = 20
    """Steps of back-propagation through time per window. The state is carried to the next window."""
    optimizer: Literal["adamw", "adam", "muon", "sgd", "adagrad"] = "adagrad"
    lr: f.LearningRate = 0.2
    initial_accumulator: Annotated[f.Weight, f.Only(optimizer="adagrad")] = 0.0025
    """Adagrad only: initial value of the sums of squared gradients. The original starts at 1 and multiplies the loss by
    the 20 steps of a window; 1/400 with the mean loss takes the same steps."""
    warmup: f.Steps = 0
    decay: Literal["cosine", "linear", "constant"] = "constant"
    clip_norm: f.Weight = 0.5
    """Largest global norm of the gradients; larger ones are scaled down to it. 0 turns clipping off. The original has
    10, for a loss that is 20 times as large."""
    average: f.Rate = 0.99
    """Decay of an exponential moving average of the weights, which is validated and saved. 0 saves the last weights, as
    the original does."""
    shuffle: bool = True
    """Shuffle the sentences in every epoch, as the original does."""
    stretch: Annotated[f.Count, f.Only(shuffle=f.ENABLED)] = 1
    """With shuffle: number of consecutive sentences that stay together. With more than one, the network also learns to
    use the preceding sentences."""
    init: f.PathName | None = None
    """Start from this model, a relmo folder or original ELMo files, and keep its geometry."""
    softmax_first: Annotated[f.Weight, f.Only(init=f.ENABLED)] = 0.1
    """With init and a new output layer: number of epochs in which only that layer is trained, at the start."""
    teacher: f.PathName | None = None
    """Distillation: folder of a larger model with the same vocabulary."""
    teacher_share: Annotated[float, Meta(ge=0, le=1), f.Only(teacher=f.ENABLED)] = 0.5
    """Distillation: share of the loss on the predictions of the teacher. The rest is the loss on the text."""
    teacher_layers: Annotated[f.Weight, f.Only(teacher=f.ENABLED)] = 0.0
    """Distillation: weight of the distance between the layers of teacher and student, after a linear map."""

    def check(self) -> None:
        super().check()
        f.refuse(self, ["vary_unroll"], "for bilm")


class BiLMSettings(f.KindSettings):
    """Train a bidirectional language model (ELMo).

    The text has one sentence per line. The vocabulary is built from it, and its last part is held out.

    For example:

        relmo train bilm corpus.txt --preset small --min-count 3 --epochs 10 --out models/mine

        relmo train bilm domain.txt --init models/mine --epochs 1 --out models/domain

        relmo evaluate models/mine test.txt
    """

    files = "Files to train on, in this order: plain, .gz, .xz, .zst, .conllu, or - for standard input."

    text: BiLMTextSettings = field(default_factory=BiLMTextSettings)
    model: BiLMModelSettings = field(default_factory=BiLMModelSettings)
    train: BiLMTrainSettings = field(default_factory=BiLMTrainSettings)

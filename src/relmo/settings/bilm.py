"""The settings of `relmo train bilm`: bidirectional language models (ELMo)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.errors import SettingError
from relmo.settings.arguments import PathName
from relmo.settings.bounds import check_bounds, parse_filters, refuse
from relmo.settings.training import TrainSettings, check_optimizer


@dataclass(frozen=True, kw_only=True)
class BiLMTextSettings:
    """How text becomes sentences of words; each line is one."""

    tokenizer: Literal["words", "whitespace"] = "words"
    """How lines are split into words: by relmo's Unicode tokenizer, or at white space if the text is tokenised
    already."""
    lowercase: bool = False
    """Fold the text to lower case first."""
    vocabulary: PathName | None = None
    """A file with the words to predict, one a line, the most frequent first. By default it is made from the training
    part. Words that are not in it are read by their characters too."""
    vocabulary_size: int | None = None
    """Predict at most this many words, the most frequent ones; the rest become `<UNK>`."""
    min_count: int = 1
    """Words seen fewer times than this in the training part become `<UNK>`."""
    valid: PathName | None = None
    """A file to validate on. By default the last part of the corpus is held out."""
    valid_fraction: float = 0.01
    """The share of the corpus that is held out for validation if there is no validation file."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes that are not UTF-8: stop and say where they are, or read them as U+FFFD."""


@dataclass(frozen=True, kw_only=True)
class BiLMModelSettings:
    """The network of a bidirectional language model; the defaults are the published small one."""

    input: Literal["char", "word", "dictionary"] = "char"
    """What a word is read as: its characters, or a vector of its own (that of `<UNK>` if it is not in the
    vocabulary). A model of ELMoForManyLangs reads both, by dictionaries of its own. relmo loads such models and does
    not train them."""
    char_dim: int = 16
    """Size of a character's embedding."""
    filters: tuple[str, ...] = ("1x32", "2x32", "3x64", "4x128", "5x256", "6x512", "7x1024")
    """The convolutions over a word's characters, with commas between them: 3x128 is 128 of them that are 3 wide."""
    activation: Literal["relu", "tanh"] = "relu"
    """The activation after the convolutions."""
    max_characters: int = 50
    """Room for a word's bytes and two marks. The rest of a longer word is cut off."""
    highway: int = 1
    """How many highway layers follow the convolutions."""
    layers: int = 2
    """How many LSTM layers in each direction."""
    hidden: int = 1024
    """Units of each LSTM."""
    projection: int = 128
    """Size of a word's vector and of each LSTM's output, which is projected down to it. There is no projection if it
    equals hidden."""
    cell_clip: float = 3.0
    """Keep the LSTM's cells between minus and plus this value; 0 turns this off."""
    projection_clip: float = 3.0
    """Keep the LSTM's projected output between minus and plus this value; 0 turns this off."""
    skip_connections: bool = True
    """Layers add their input to their output, from the second layer on."""
    dropout: float = 0.1
    """Dropout on the input of every LSTM and on the top one's output."""
    state_dropout: float = 0.01
    """The share of streams that begin a training window with a zero state instead of the state carried to it. If
    training never starts from a zero state, the network does not learn how sentences begin, and its cells can saturate
    when it embeds one."""
    tied: bool = False
    """Word input only: the output layer uses the words' input vectors too."""
    softmax: Literal["full", "sampled"] = "sampled"
    """The output layer in training: exact, or a sampled estimate. Evaluation is always exact."""
    samples: int = 8192
    """Sampled softmax: how many words stand for the vocabulary in each step."""
    softmax_dim: int | None = None
    """Size of the vectors that words are predicted with, if it is to be smaller than projection: a matrix takes the
    LSTMs' output down to it. A large vocabulary then needs fewer numbers."""


@dataclass(frozen=True, kw_only=True)
class BiLMTrainSettings(TrainSettings):
    """The training loop, with the original's recipe as its defaults."""

    batch: int = 128
    """How many streams of sentences are read side by side; with several GPUs, on each of them."""
    unroll: int = 20
    """Steps of back-propagation through time in one window; the state is carried to the next."""
    optimizer: Literal["adamw", "adam", "muon", "sgd", "adagrad"] = "adagrad"
    """The optimiser. muon (Jordan et al. 2024) moves the matrices of hidden layers, adam all else."""
    lr: float = 0.2
    """The learning rate after warm-up."""
    initial_accumulator: float = 0.0025
    """Adagrad only: where the sums of squared gradients start. The original starts at 1 with the loss multiplied by the
    20 steps of a window; 1/400 with the plain mean takes the same steps."""
    warmup: int = 0
    """Steps over which the learning rate rises from zero; at most a tenth of the run."""
    decay: Literal["cosine", "linear", "constant"] = "constant"
    """How the learning rate falls after warm-up."""
    clip_norm: float = 0.5
    """Gradients whose global norm is above this are scaled down to it; 0 turns clipping off. The original has 10 for
    its loss, which is 20 times as large."""
    average: float = 0.99
    """Decay of an exponential moving average of the weights, which is validated and saved; 0 takes the last weights, as
    the original does."""
    shuffle: bool = True
    """Read the sentences in a new order every epoch, as the original does; otherwise in the order of the text."""
    stretch: int = 1
    """With shuffle: how many sentences that follow one another stay together. With more than one, the network learns to
    use what stands before a sentence, too."""
    init: PathName | None = None
    """Start from this model, a relmo folder or original ELMo files, and keep its geometry."""
    softmax_first: float = 0.1
    """With init and a new output layer: train that layer alone for this many epochs first."""
    teacher: PathName | None = None
    """Learn from this model too: the folder of a larger one with the same vocabulary."""
    teacher_share: float = 0.5
    """With a teacher: the share of the loss that comes from its predictions. The rest comes from the words that
    follow."""
    teacher_layers: float = 0.0
    """With a teacher: the weight of the distance between its layers and those of the model, after a linear map."""


@dataclass(frozen=True, kw_only=True)
class BiLMSettings:
    """Train a bidirectional language model (ELMo).

    Text has one sentence a line; words are counted, the vocabulary is made, and the last part is held out.

    For example:

        relmo train bilm corpus.txt --preset small --min-count 3 --epochs 10 --out models/mine

        relmo train bilm domain.txt --init models/mine --epochs 1 --out models/domain

        relmo evaluate models/mine test.txt
    """

    files: ClassVar[str] = "Files to train on, in this order: plain, .gz, .xz, .zst, .conllu, or - for standard input."
    """What it is trained on."""

    text: BiLMTextSettings = field(default_factory=BiLMTextSettings)
    model: BiLMModelSettings = field(default_factory=BiLMModelSettings)
    train: BiLMTrainSettings = field(default_factory=BiLMTrainSettings)


CHARACTER_SETTINGS = ("char_dim", "filters", "activation", "max_characters", "highway")


def check_bilm_model(model: BiLMModelSettings) -> None:
    """A geometry that can be built."""
    check_bounds(model)
    widest = max(width for width, _ in parse_filters(model.filters))
    if widest > model.max_characters:
        raise SettingError(f"filters {widest} wide do not fit into max_characters {model.max_characters}")
    if model.projection > model.hidden:
        raise SettingError(f"projection {model.projection} must not be larger than hidden {model.hidden}")
    if model.input == "word":
        refuse(model, CHARACTER_SETTINGS, "input word")
    if model.tied and model.input != "word":
        raise SettingError("tied is for input word only; leave it out")
    if model.softmax_dim is not None and model.softmax_dim >= model.projection:
        raise SettingError(
            f"softmax_dim {model.softmax_dim} must be smaller than projection {model.projection}; leave it out"
        )
    if model.softmax_dim is not None and model.tied:
        raise SettingError("softmax_dim does not go with tied; leave one of them out")
    if model.softmax != "sampled":
        refuse(model, ["samples"], f"softmax {model.softmax}")


def check_bilm(settings: BiLMSettings) -> None:
    """As `check_lm`, for a bidirectional language model."""
    check_bounds(settings.text, settings.train)
    check_bilm_model(settings.model)
    check_optimizer(settings.train)
    if settings.text.vocabulary is not None:
        refuse(settings.text, ["vocabulary_size", "min_count"], "a vocabulary from a file")
    if not settings.train.shuffle:
        refuse(settings.train, ["stretch"], "a run without shuffle")
    if settings.train.init is None:
        refuse(settings.train, ["softmax_first"], "a run without init")
    if settings.train.teacher is None:
        refuse(settings.train, ["teacher_share", "teacher_layers"], "a run without a teacher")

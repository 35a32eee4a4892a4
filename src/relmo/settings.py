"""Every setting of every kind of model, with its default and its documentation.

They stand apart from the models so that `relmo train lm --help` needs no torch. Each kind has sections, and a section's
field names are unique across the kind, so that each is also a command-line flag of that name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from relmo.errors import SettingError, shown


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How text becomes a stream of symbols."""

    unit: Literal["char", "word"] = "char"
    """What the model reads and predicts: characters or words."""
    tokenizer: Literal["words", "whitespace"] = "words"
    """How lines are split into words: by relmo's Unicode tokenizer, or at white space for text that is tokenised
    already."""
    lowercase: bool = False
    """Fold the text to lower case first."""
    text_per: Literal["file", "line"] = "file"
    """What one text is: a whole file, or each line of it. The end-of-text symbol follows every text; line ends inside a
    text are symbols of their own."""
    vocabulary: str | None = None
    """A file with the vocabulary to use, one symbol a line; otherwise it is made from the training part."""
    vocabulary_size: int | None = None
    """Keep at most this many symbols, the most frequent ones; the rest become `<unk>`."""
    min_count: int = 1
    """Symbols seen fewer times than this in the training part become `<unk>`."""
    valid: str | None = None
    """A file to validate on; otherwise the last part of the corpus is held out."""
    valid_fraction: float = 0.05
    """The share of the corpus held out for validation, taken after the training part, where no validation file is
    given."""
    test_fraction: float = 0.0
    """The share of the corpus at its very end that is only scored once, after training."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes that are not UTF-8: stop with the place, or read them as U+FFFD."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelSettings:
    """The network of a language model."""

    cell: Literal["lstm", "gru", "elman", "ngram", "feedforward"] = "lstm"
    """The recurrent cell; or, to compare with, an interpolated Kneser-Ney n-gram model or Bengio's fixed-window
    network."""
    layers: int = 1
    """How many recurrent layers."""
    hidden: int = 512
    """Units of each layer (feedforward: of the hidden layer)."""
    embedding: int | None = None
    """Size of the input embedding; as large as the hidden layer where not given."""
    projection: int | None = None
    """LSTM only: project each layer's output down to this size."""
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """Elman only: the activation."""
    forget_bias: float = 1.0
    """LSTM only: where the forget gate's bias starts."""
    residual: bool = False
    """Layers add their input to their output where the sizes agree."""
    order: int = 5
    """N-gram and feedforward: predict from the last order - 1 symbols."""
    dropout: float = 0.0
    """Dropout between layers, and on the top layer's output where output_dropout says nothing else."""
    output_dropout: float | None = None
    """Dropout on the top layer's output."""
    input_dropout: float = 0.0
    """Dropout on the embedded input."""
    word_dropout: float = 0.0
    """Drop whole symbols of the embedding, each wherever it occurs in the batch."""
    weight_drop: float = 0.0
    """Drop recurrent weights (DropConnect)."""
    variational: bool = False
    """Dropout holds one mask over all steps of a window instead of a new one at each step."""
    tied: bool = False
    """Use the input embedding as the output layer's weights too."""
    softmax: Literal["full", "adaptive", "sampled"] = "full"
    """The output layer in training: exact; adaptive (frequent symbols get more capacity); or a sampled estimate."""
    cutoffs: tuple[int, ...] = ()
    """Adaptive softmax: the ranks at which its clusters end; chosen from the vocabulary's size where not given."""
    samples: int = 8192
    """Sampled softmax: how many symbols stand for the vocabulary in each step."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The training loop, the same for every kind of model."""

    epochs: float = 10
    """How often to go through the training data; may be a fraction."""
    batch: int = 32
    """How many streams or examples are read side by side, by each process where there are several."""
    unroll: int = 128
    """Language models: steps of back-propagation through time in one window; the state is carried to the next."""
    accumulate: int = 1
    """Add up the gradients of this many batches for one step of the optimiser."""
    optimizer: Literal["adamw", "adam", "sgd", "adagrad"] = "adamw"
    """The optimiser."""
    lr: float = 0.002
    """The learning rate after warm-up."""
    weight_decay: float = 0.0
    """Weight decay (decoupled in adamw, an L2 penalty in the others)."""
    momentum: float = 0.0
    """SGD only: momentum."""
    initial_accumulator: float = 1.0
    """Adagrad only: where the sums of squared gradients start; the smaller, the larger the first steps."""
    warmup: int = 100
    """Steps over which the learning rate rises from zero; at most a tenth of the run."""
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after warm-up."""
    final_lr: float = 0.0
    """Where the decay ends, as a fraction of lr."""
    clip_norm: float = 1.0
    """Gradients whose global norm is above this are scaled down to it; 0 turns clipping off."""
    average: float = 0.0
    """Decay of an exponential moving average of the weights (such as 0.999), used for validation and saved; 0 is off.
    """
    precision: Literal["float32", "bfloat16"] = "float32"
    """Compute in float32, or in mixed precision with bfloat16."""
    validate_every: int | None = None
    """Steps between validations; at the end of every epoch where not given."""
    patience: int | None = None
    """Stop after this many validations without a new best."""
    checkpoint_every: float = 60.0
    """Seconds between checkpoints, from which a killed run goes on; more where writing one takes long, 0 for every
    step."""
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    tensorboard: bool = False
    """Write TensorBoard event files too (needs relmo[tensorboard])."""
    seed: int = 1
    """Seed of every random choice."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU where there is one."""
    threads: int | None = None
    """CPU threads; as torch chooses where not given."""


@dataclass(frozen=True, kw_only=True)
class LMSettings:
    """Settings of `relmo train lm`."""

    text: TextSettings = field(default_factory=TextSettings)
    model: LanguageModelSettings = field(default_factory=LanguageModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)


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
    """The share of the corpus held out for validation, where no validation file is given."""


@dataclass(frozen=True, kw_only=True)
class SkipgramModelSettings:
    """The word vectors and what they learn from."""

    dimensions: int = 100
    """Size of a vector."""
    window: int = 5
    """A word predicts the words up to this far away; each time the reach is drawn from 1 to this."""
    negatives: int = 5
    """How much words drawn at random weigh against each true neighbour."""
    subsample: float = 1e-3
    """Words that make up more than this share of the text are thinned; 1 keeps them all."""


@dataclass(frozen=True, kw_only=True)
class SkipgramTrainSettings(TrainSettings):
    """The training loop, with what suits sparse gradients."""

    epochs: float = 5
    """How often to go through the training data; may be a fraction."""
    batch: int = 4096
    """How many symbols of running text make one step."""
    optimizer: Literal["adamw", "adam", "sgd", "adagrad"] = "adagrad"
    """The optimiser: adagrad; or sgd, as word2vec, with a learning rate of 0.025 and a batch of 1024 or fewer."""
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
    """Settings of `relmo train skipgram`."""

    text: SkipgramTextSettings = field(default_factory=SkipgramTextSettings)
    model: SkipgramModelSettings = field(default_factory=SkipgramModelSettings)
    train: SkipgramTrainSettings = field(default_factory=SkipgramTrainSettings)


@dataclass(frozen=True, kw_only=True)
class BiLMTextSettings:
    """How text becomes sentences of words; each line is one."""

    tokenizer: Literal["words", "whitespace"] = "words"
    """How lines are split into words: by relmo's Unicode tokenizer, or at white space for text that is tokenised
    already."""
    lowercase: bool = False
    """Fold the text to lower case first."""
    vocabulary: str | None = None
    """A file with the words to predict, one a line, the most frequent first; otherwise it is made from the training
    part. Words are read by their characters whether they are in it or not."""
    vocabulary_size: int | None = None
    """Predict at most this many words, the most frequent ones; the rest become `<UNK>`."""
    min_count: int = 1
    """Words seen fewer times than this in the training part become `<UNK>`."""
    valid: str | None = None
    """A file to validate on; otherwise the last part of the corpus is held out."""
    valid_fraction: float = 0.01
    """The share of the corpus held out for validation, where no validation file is given."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes that are not UTF-8: stop with the place, or read them as U+FFFD."""


@dataclass(frozen=True, kw_only=True)
class BiLMModelSettings:
    """The network of a bidirectional language model; the defaults are the published small one."""

    input: Literal["char", "word"] = "char"
    """What a word is read as: its characters, or a vector of its own (`<UNK>` where it is not in the vocabulary)."""
    char_dim: int = 16
    """Size of a character's embedding."""
    filters: tuple[str, ...] = ("1x32", "2x32", "3x64", "4x128", "5x256", "6x512", "7x1024")
    """The convolutions over a word's characters: width x how many, with commas between them."""
    activation: Literal["relu", "tanh"] = "relu"
    """The activation after the convolutions."""
    max_characters: int = 50
    """Room for a word's bytes and two marks; the rest of a longer word is cut off."""
    highway: int = 1
    """How many highway layers follow the convolutions."""
    layers: int = 2
    """How many LSTM layers in each direction."""
    hidden: int = 1024
    """Units of each LSTM."""
    projection: int = 128
    """Size of a word's vector and of each LSTM's output, which is projected down to it (not where it equals hidden)."""
    cell_clip: float = 3.0
    """Hold the LSTM's cells within plus and minus this; 0 does not."""
    projection_clip: float = 3.0
    """Hold the LSTM's projected output within plus and minus this; 0 does not."""
    skip_connections: bool = True
    """From the second on, layers add their input to their output."""
    dropout: float = 0.1
    """Dropout on the input of every LSTM and on the top one's output."""
    state_dropout: float = 0.01
    """The share of the streams that in training begin each window without the state carried to it. Without any, a
    network knows no beginnings, and read from none it may get stuck where its cells are clipped."""
    tied: bool = False
    """Word input only: the output layer uses the words' input vectors too."""
    softmax: Literal["full", "sampled"] = "sampled"
    """The output layer in training: exact, or a sampled estimate. Evaluation is always exact."""
    samples: int = 8192
    """Sampled softmax: how many words stand for the vocabulary in each step."""


@dataclass(frozen=True, kw_only=True)
class BiLMTrainSettings(TrainSettings):
    """The training loop, with the original's recipe as its defaults."""

    batch: int = 128
    """How many streams of sentences are read side by side (on each GPU, where there are several)."""
    unroll: int = 20
    """Steps of back-propagation through time in one window; the state is carried to the next."""
    optimizer: Literal["adamw", "adam", "sgd", "adagrad"] = "adagrad"
    """The optimiser."""
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
    """Gradients whose global norm is above this are scaled down to it; 0 turns clipping off. (The original's 10, for
    its multiplied loss.)"""
    average: float = 0.99
    """Decay of an exponential moving average of the weights, used for validation and saved; 0 takes the last weights,
    as the original does."""
    shuffle: bool = True
    """Read the sentences in a new order every epoch, as the original does; otherwise in the order of the text."""
    init: str | None = None
    """Start from this model: a relmo folder or original ELMo files, whose geometry is kept."""
    softmax_first: float = 0.1
    """With init, where the output layer is a fresh one: train it alone for this many epochs first."""


@dataclass(frozen=True, kw_only=True)
class BiLMSettings:
    """Settings of `relmo train bilm`."""

    text: BiLMTextSettings = field(default_factory=BiLMTextSettings)
    model: BiLMModelSettings = field(default_factory=BiLMModelSettings)
    train: BiLMTrainSettings = field(default_factory=BiLMTrainSettings)


SOME_CELLS: dict[str, tuple[str, ...]] = {
    "layers": ("lstm", "gru", "elman"),
    "projection": ("lstm",),
    "nonlinearity": ("elman",),
    "forget_bias": ("lstm",),
    "residual": ("lstm", "gru", "elman"),
    "order": ("ngram", "feedforward"),
    "word_dropout": ("lstm", "gru", "elman"),
    "weight_drop": ("lstm", "gru", "elman"),
    "variational": ("lstm", "gru", "elman"),
    "tied": ("lstm", "gru", "elman"),
    **dict.fromkeys(
        ("hidden", "embedding", "dropout", "output_dropout", "input_dropout", "softmax", "cutoffs", "samples"),
        ("lstm", "gru", "elman", "feedforward"),
    ),
}
"""Which cells a setting of the model has a meaning for, where that is not all."""

BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        ("layers", "hidden", "embedding", "projection", "samples", "batch", "unroll", "accumulate"), (1, 1 << 24)
    ),
    **dict.fromkeys(("vocabulary_size", "min_count", "validate_every", "patience", "log_every"), (1, 1 << 40)),
    **dict.fromkeys(
        (
            "dropout",
            "state_dropout",
            "output_dropout",
            "input_dropout",
            "word_dropout",
            "weight_drop",
            "average",
            "momentum",
        ),
        (0, 0.999999),
    ),
    **dict.fromkeys(("valid_fraction", "test_fraction"), (0, 0.5)),
    "layers": (1, 1000),
    "dimensions": (1, 1 << 16),
    **dict.fromkeys(("window", "negatives"), (1, 100)),
    "subsample": (1e-12, 1),
    "initial_accumulator": (0, 1e9),
    "softmax_first": (0, 1e9),
    "char_dim": (1, 1 << 16),
    "max_characters": (3, 1 << 12),
    "highway": (0, 1000),
    **dict.fromkeys(("cell_clip", "projection_clip", "clip_norm"), (0, 1e9)),
    "forget_bias": (-1e9, 1e9),
    "seed": (0, 1 << 62),
    "threads": (1, 4096),
    "checkpoint_every": (0, 1e9),
    "order": (1, 20),
    "epochs": (1e-9, 1e9),
    "lr": (1e-12, 1e6),
    "weight_decay": (0, 1e6),
    "warmup": (0, 1 << 40),
    "final_lr": (0, 1),
}
"""The least and the greatest value a setting may have."""


def check_bounds(*sections: object, bounds: Mapping[str, tuple[float, float]] = BOUNDS) -> None:
    """Every number lies within its bounds."""
    for section in sections:
        for name, value in vars(section).items():
            low, high = bounds.get(name, (-float("inf"), float("inf")))
            if isinstance(value, int | float) and not low <= value <= high:
                raise SettingError(f"{name} must be from {low:g} to {high:g}, not {shown(value)}")


def refuse(section: object, names: Iterable[str], where: str) -> None:
    """None of these settings may be other than its default: it would be read and do nothing."""
    default = type(section)()
    for name in names:
        if getattr(section, name) != getattr(default, name):
            raise SettingError(f"{name} has no meaning for {where}; leave it out")


def check_lm(settings: LMSettings) -> None:
    """Settings that make no sense, alone or together, are errors before anything is read."""
    check_bounds(settings.text, settings.model, settings.train)
    if settings.model.cell == "ngram":
        refuse(settings.train, set(vars(settings.train)) - {"seed", "device", "threads"}, "cell ngram, which counts")
    if settings.text.unit == "char":
        refuse(settings.text, ["tokenizer"], "unit char")
    check_optimizer(settings.train)
    model, default = settings.model, LanguageModelSettings()
    for name, cells in SOME_CELLS.items():
        if model.cell not in cells and getattr(model, name) != getattr(default, name):
            raise SettingError(
                f"{name} has no meaning for cell {model.cell} (only for {', '.join(cells)}); leave it out"
            )
    if model.softmax != "sampled":
        refuse(model, ["samples"], f"softmax {model.softmax}")
    if model.projection and model.projection >= model.hidden:
        raise SettingError(f"projection {model.projection} must be smaller than hidden {model.hidden}")
    if model.tied and model.softmax == "adaptive":
        raise SettingError("tied does not go with softmax adaptive; use softmax full or sampled")
    if model.cutoffs and model.softmax != "adaptive":
        raise SettingError("cutoffs has a meaning for softmax adaptive only; leave it out")
    if any(low >= high for low, high in pairwise((0, *model.cutoffs))):
        raise SettingError(f"cutoffs must rise from 1 on, not {shown(model.cutoffs)}")
    if model.cell == "feedforward" and model.order < 2:
        raise SettingError("order must be 2 or more for cell feedforward: it predicts from order - 1 symbols")
    if settings.text.valid_fraction + settings.text.test_fraction >= 1:
        raise SettingError("valid_fraction and test_fraction leave nothing to train on")


def check_optimizer(settings: TrainSettings) -> None:
    """What belongs to one optimiser only is refused for the others."""
    if settings.optimizer != "sgd":
        refuse(settings, ["momentum"], f"optimizer {settings.optimizer}")
    if settings.optimizer != "adagrad":
        refuse(settings, ["initial_accumulator"], f"optimizer {settings.optimizer}")


MOST_FILTERS = 1000


def parse_filters(filters: Iterable[str]) -> list[tuple[int, int]]:
    """["1x32", "2x64"], or ["1x32,2x64"] -> [(1, 32), (2, 64)], (width, how many)."""
    filters = [part for text in filters for part in text.replace(",", " ").split()]
    if len(filters) > MOST_FILTERS:
        raise SettingError(f"filters are of at most {MOST_FILTERS} widths, not {len(filters):,}")
    found = [re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,6})", text) for text in filters]
    if not found or None in found:
        given = shown(" ".join(filters)) if filters else "none"
        raise SettingError(f"filters are WIDTHxCOUNT, for example 1x32,2x32,3x64, not {given}")
    return [(int(match[1]), int(match[2])) for match in found if match]


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
        raise SettingError("tied has a meaning for input word only; leave it out")
    if model.softmax != "sampled":
        refuse(model, ["samples"], f"softmax {model.softmax}")


def check_bilm(settings: BiLMSettings) -> None:
    """As `check_lm`, for a bidirectional language model."""
    check_bounds(settings.text, settings.train)
    check_bilm_model(settings.model)
    check_optimizer(settings.train)
    if settings.text.vocabulary is not None:
        refuse(settings.text, ["vocabulary_size", "min_count"], "a vocabulary from a file")
    if settings.train.init is None:
        refuse(settings.train, ["softmax_first"], "a run without init")


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

"""The settings of tasks: what a network reads of a word, and each task's own text, network and training.

As in `settings.py` a kind has sections, and field names are unique across the kind, so that each is also a flag.
"""

from dataclasses import dataclass, field
from typing import Literal

from relmo.errors import SettingError, shown
from relmo.settings import BOUNDS, TrainSettings, check_bounds, check_optimizer, parse_filters, refuse

NO_CACHE = "none"


@dataclass(frozen=True, kw_only=True)
class TaskTextSettings:
    """What every task says of its files."""

    tokenizer: Literal["words", "whitespace"] = "words"
    """How raw text is split into words: by relmo's Unicode tokenizer, or at white space for text that is tokenised
    already. It is kept with the model."""
    valid: str | None = None
    """The file to choose the best model by; otherwise a part of the training examples is held out."""
    valid_fraction: float = 0.1
    """The share of the training examples that is held out, taken at even distances, where no validation file is
    given."""
    column: str | None = None
    """The column, by name or number, or the key of JSON, that holds the labels, where it is not the usual one."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes that are not UTF-8: stop with the place, or read them as U+FFFD."""


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """What a network reads of a word: learned vectors, static vectors, characters, ELMo; side by side."""

    word_dim: int = 50
    """Size of the word vectors that are learned with the task; 0 for none."""
    lowercase: bool = True
    """Learned vectors are those of lower-cased words; characters and ELMo see words as they are."""
    min_count: int = 1
    """Words seen fewer times than this in the training examples have no learned vector of their own."""
    word_dropout: float = 0.0
    """While training, the share of words that are taken for unknown ones."""
    vectors: str | None = None
    """Static word vectors: `words`, which ship with relmo; a folder of kind skipgram; or a text file in word2vec's or
    GloVe's format. A word that has none is looked up in lower case."""
    vectors_tune: bool = False
    """Let the static vectors of the training words change with the task; those of other words stay."""
    char_dim: int = 16
    """Size of a character's embedding; 0 reads no characters."""
    filters: tuple[str, ...] = ("3x128",)
    """The convolutions over a word's characters: width x how many, with commas between them."""
    max_characters: int = 50
    """Room for a word's bytes and two marks; the rest of a longer word is cut off."""
    elmo: str | None = None
    """A bidirectional language model for contextual vectors: `small`, which ships with relmo; a folder; or original
    ELMo files."""
    elmo_at: Literal["input", "output", "both"] = "input"
    """Where its vectors go in: beside the word's other vectors, beside the output of the (first) encoder, or both, each
    with a mix of its own."""
    elmo_layers: Literal["all", "top"] = "all"
    """A learned mix of all layers, or the top one alone."""
    elmo_dropout: float = 0.2
    """Dropout on the mixed vectors; 0.5 as published, which is much for vectors as small as those of `small`."""
    elmo_l2: float = 0.001
    """Lambda, the weight of the penalty that draws the mix towards an even one: 1 makes it an average, 0.001 leaves it
    free."""
    elmo_norm: bool = False
    """Normalise each layer before the mix."""
    elmo_tune: bool = False
    """Train the biLM with the task; otherwise it is frozen, and its vectors are computed once and kept on disk."""
    cache: str | None = None
    """Where such vectors are kept: a folder ($RELMO_CACHE or ~/.cache/relmo where not given), or `none`, which computes
    them anew every time."""
    copy: bool = False
    """Put copies of the biLM and of the static vectors into the model's folder; otherwise it names them, with their
    checksums."""


@dataclass(frozen=True, kw_only=True)
class TaskTrainSettings(TrainSettings):
    """The training loop, with what suits tasks."""

    epochs: float = 30
    """How often to go through the training data, at most; may be a fraction."""
    batch: int = 32
    """Most examples in a batch; they are of about the same length."""
    tokens_per_batch: int = 8192
    """Most words in a batch, padding counted; a longer example makes a batch of its own."""
    optimizer: Literal["adamw", "adam", "sgd", "adagrad"] = "adam"
    """The optimiser."""
    lr: float = 0.001
    """The learning rate after warm-up."""
    warmup: int = 0
    """Steps over which the learning rate rises from zero; at most a tenth of the run."""
    decay: Literal["cosine", "linear", "constant"] = "constant"
    """How the learning rate falls after warm-up."""
    clip_norm: float = 5.0
    """Gradients whose global norm is above this are scaled down to it; 0 turns clipping off."""
    patience: int | None = 10
    """Stop after this many validations without a new best."""
    seeds: int = 1
    """Train this many times, from `seed` on, each in a folder of its own; the best of them is the model."""
    plot: bool = False
    """Draw the learning curves: curves.png in the model's folder (needs relmo[plot])."""


@dataclass(frozen=True, kw_only=True)
class TaggerTextSettings(TaskTextSettings):
    """Which tags to learn, and from what files."""

    task: Literal["pos", "ner", "column"] = "pos"
    """pos: a tag for each word (of CoNLL-U the universal one), scored by accuracy. ner: spans, in BIO or its
    relatives, scored by F1. column: the tags of `column`, whatever they are, scored by accuracy."""
    format: Literal["auto", "conllu", "columns", "jsonl"] = "auto"
    """How files are laid out; told by their names where it is auto (.conllu, .jsonl, columns otherwise)."""


@dataclass(frozen=True, kw_only=True)
class TaggerModelSettings:
    """The network of a tagger: bidirectional recurrent layers, then a tag for each word."""

    cell: Literal["lstm", "gru", "elman"] = "lstm"
    """The recurrent cell."""
    layers: int = 1
    """How many recurrent layers."""
    hidden: int = 200
    """Units of each layer in each direction."""
    dropout: float = 0.5
    """Dropout between layers and on the last one's output, one mask for all words of a sentence."""
    decoder: Literal["softmax", "crf"] = "softmax"
    """How tags are chosen: each by itself, or all of a sentence together by a conditional random field."""
    encoding: Literal["bioul", "bio"] = "bioul"
    """Spans only: the tags that the network learns; what it predicts is always written as BIO."""


@dataclass(frozen=True, kw_only=True)
class TaggerSettings:
    """Settings of `relmo train tagger`."""

    text: TaggerTextSettings = field(default_factory=TaggerTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: TaggerModelSettings = field(default_factory=TaggerModelSettings)
    train: TaskTrainSettings = field(default_factory=TaskTrainSettings)


@dataclass(frozen=True, kw_only=True)
class SentenceModelSettings:
    """A network that makes one vector of a sentence: recurrent layers and a pool over their output."""

    cell: Literal["lstm", "gru", "elman"] = "lstm"
    """The recurrent cell."""
    layers: int = 1
    """How many recurrent layers; with 0 each word goes through a linear layer of its own."""
    directions: Literal[1, 2] = 2
    """1 reads a sentence from left to right, 2 both ways."""
    hidden: int = 200
    """Units of each layer in each direction, and of the other layers that networks of their own shape have."""
    pool: Literal["final", "mean", "max", "attention"] = "max"
    """What becomes of a sentence's words: where reading ended, their mean, their maximum, or a mean with learned
    weights."""
    mlp: tuple[int, ...] = ()
    """Sizes of the layers between a sentence's vector, or a pair's, and the labels; may be given several times."""
    dropout: float = 0.5
    """Dropout on what the recurrent layers read, one mask for all words of a sentence, and on what follows them."""


OF_SENTENCES = ("cell", "layers", "directions", "pool", "mlp")


@dataclass(frozen=True, kw_only=True)
class ClassifierTextSettings(TaskTextSettings):
    """Files of labelled texts."""

    format: Literal["auto", "trees", "cola", "tsv", "jsonl", "folder"] = "auto"
    """How files are laid out, told by name and first line where it is auto: trees in brackets (SST), CoLA's columns, a
    table with names in its first line, JSON lines, or a folder of texts for each label (IMDB)."""
    subtrees: bool = True
    """Trees only: learn from every phrase that has a label; scores are of whole sentences always."""


@dataclass(frozen=True, kw_only=True)
class ClassifierModelSettings(SentenceModelSettings):
    """The network of a classifier."""

    network: Literal["pooled", "bcn"] = "pooled"
    """Recurrent layers and a pool, or the biattentive classification network."""
    projection: int | None = None
    """LSTM only: project each layer's output down to this size."""
    residual: bool = False
    """Layers add their input to their output where the sizes agree."""


@dataclass(frozen=True, kw_only=True)
class ClassifierTrainSettings(TaskTrainSettings):
    """The training loop, what it looks at, and where it starts."""

    metric: Literal["accuracy", "mcc", "f1"] = "accuracy"
    """What the best model is best in: accuracy, the Matthews correlation (CoLA's score), or the labels' mean F1."""
    init: str | None = None
    """Start from this language model of words (kind lm): its vocabulary, embedding and recurrent layers, whose geometry
    is kept (Dai & Le 2015)."""


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """Settings of `relmo train classifier`."""

    text: ClassifierTextSettings = field(default_factory=ClassifierTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: ClassifierModelSettings = field(default_factory=ClassifierModelSettings)
    train: ClassifierTrainSettings = field(default_factory=ClassifierTrainSettings)


@dataclass(frozen=True, kw_only=True)
class PairsTextSettings(TaskTextSettings):
    """Files of pairs of texts."""

    task: Literal["label", "score"] = "label"
    """What holds between two texts: one of several labels, scored by accuracy; or a number, scored by Pearson's
    correlation."""
    format: Literal["auto", "tsv", "stsb", "jsonl"] = "auto"
    """How files are laid out, told by name and first line where it is auto: a table with names in its first line (SNLI,
    SICK), STS-B's columns, or JSON lines."""


@dataclass(frozen=True, kw_only=True)
class PairsModelSettings(SentenceModelSettings):
    """The network that compares two sentences."""

    network: Literal["encoder", "esim", "decomposable", "cosine"] = "encoder"
    """encoder: a vector of each sentence, then what they share and where they differ. esim, decomposable: words looking
    at the other sentence's words. cosine: the angle between two vectors, for task score."""
    mlp: tuple[int, ...] = (300,)
    """Encoder only: sizes of the layers between a pair's vector and the labels; may be given several times."""
    dropout: float = 0.2
    """Dropout on what the recurrent layers read, one mask for all words of a sentence, and on what follows them."""
    low: float = -5.0
    """Task score: the score of two sentences whose vectors point in opposite directions; none may be less. With -high,
    those that have nothing in common have 0."""
    high: float = 5.0
    """Task score: the score of two sentences whose vectors point in the same direction; none may be greater."""


@dataclass(frozen=True, kw_only=True)
class PairsSettings:
    """Settings of `relmo train pairs`."""

    text: PairsTextSettings = field(default_factory=PairsTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: PairsModelSettings = field(default_factory=PairsModelSettings)
    train: TaskTrainSettings = field(default_factory=TaskTrainSettings)


TASK_BOUNDS = BOUNDS | {
    "word_dim": (0, 1 << 16),
    "char_dim": (0, 1 << 16),
    "elmo_dropout": (0, 0.999999),
    "elmo_l2": (0, 1e9),
    "tokens_per_batch": (1, 1 << 30),
    **dict.fromkeys(("low", "high"), (-1e9, 1e9)),
    "seeds": (1, 1000),
}
OF_ELMO = ("elmo_at", "elmo_layers", "elmo_dropout", "elmo_l2", "elmo_norm", "elmo_tune", "cache")


def check_inputs(settings: InputSettings) -> None:
    """What is read of a word is something, and nothing is said in vain."""
    check_bounds(settings, bounds=TASK_BOUNDS)
    if settings.char_dim:
        widest = max(width for width, _ in parse_filters(settings.filters))
        if widest > settings.max_characters:
            raise SettingError(f"filters {widest} wide do not fit into max_characters {settings.max_characters}")
    else:
        refuse(settings, ["filters", "max_characters"], "char_dim 0")
    if settings.elmo is None:
        refuse(settings, OF_ELMO, "a run without elmo")
    if settings.elmo_layers == "top":
        refuse(settings, ["elmo_l2"], "elmo_layers top, which mixes nothing")
    if settings.elmo_tune:
        refuse(settings, ["cache"], "elmo_tune")
    if settings.vectors is None:
        refuse(settings, ["vectors_tune"], "a run without vectors")
    if settings.elmo is None and settings.vectors is None:
        refuse(settings, ["copy"], "a run without elmo and vectors")
    if not settings.word_dim and not settings.vectors_tune:
        refuse(settings, ["min_count", "lowercase"], "word_dim 0")
    at_input = settings.elmo is not None and settings.elmo_at != "output"
    if not (settings.word_dim or settings.char_dim or settings.vectors or at_input):
        raise SettingError("nothing is read of a word; set word_dim or char_dim, or give vectors or elmo")


def check_task_training(settings: TaskTrainSettings) -> None:
    """As for every kind; windows are of language models alone."""
    check_bounds(settings, bounds=TASK_BOUNDS)
    check_optimizer(settings)
    refuse(settings, ["unroll"], "a task")


def check_tagger(settings: TaggerSettings) -> None:
    """Settings that make no sense, alone or together, are errors before anything is read."""
    check_bounds(settings.text, settings.model)
    check_inputs(settings.input)
    check_task_training(settings.train)
    if settings.text.task == "column" and settings.text.column is None:
        raise SettingError("task column needs the column: --column xpos, say, or its number")
    if settings.text.task != "ner":
        refuse(settings.model, ["encoding"], f"task {settings.text.task}")


def check_sentences(model: SentenceModelSettings) -> None:
    """Sizes that can be built."""
    check_bounds(model, bounds=TASK_BOUNDS | {"layers": (0, 1000)})
    if not model.layers:
        refuse(model, ["cell", "directions"], "layers 0")
        if model.pool == "final":
            raise SettingError(
                "pool final is where reading ended, and layers 0 reads nothing; give mean, max, attention"
            )
    if wrong := [size for size in model.mlp if not 1 <= size <= BOUNDS["hidden"][1]]:
        raise SettingError(f"mlp has sizes of layers, from 1 to {BOUNDS['hidden'][1]:g}, not {shown(wrong[0])}")


def check_classifier(settings: ClassifierSettings) -> None:
    """As `check_tagger`, for a classifier."""
    text, model, train = settings.text, settings.model, settings.train
    check_bounds(text)
    check_sentences(model)
    check_inputs(settings.input)
    check_task_training(train)
    if text.format not in ("auto", "trees"):
        refuse(text, ["subtrees"], f"format {text.format}")
    if model.network == "bcn":
        refuse(model, [*OF_SENTENCES, "projection", "residual"], "network bcn")
    if model.projection is not None and model.cell != "lstm":
        raise SettingError(f"projection has no meaning for cell {model.cell} (only for lstm); leave it out")
    if model.projection is not None and model.projection >= model.hidden:
        raise SettingError(f"projection {model.projection} must be smaller than hidden {model.hidden}")
    if not model.layers:
        refuse(model, ["projection", "residual"], "layers 0")
    if train.init is None:
        return
    if model.network != "pooled":
        raise SettingError(f"init starts the recurrent layers of network pooled; it has no meaning for {model.network}")
    refuse(settings.input, ["min_count", "vectors"], "a run with init, which has the language model's words")
    if settings.input.elmo is not None and settings.input.elmo_at != "output":
        raise SettingError(f"elmo_at {settings.input.elmo_at} does not go with init; give elmo_at output")


def check_pairs(settings: PairsSettings) -> None:
    """As `check_tagger`, for pairs."""
    model, task = settings.model, settings.text.task
    check_bounds(settings.text)
    check_sentences(model)
    check_inputs(settings.input)
    check_task_training(settings.train)
    if (task == "score") != (model.network == "cosine"):
        raise SettingError(f"task {task} does not go with network {model.network}; task score goes with cosine alone")
    if task == "label":
        refuse(model, ["low", "high"], "task label")
    elif not model.low < model.high:
        raise SettingError(f"low {model.low:g} must be less than high {model.high:g}")
    if model.network == "cosine":
        refuse(model, ["mlp"], "network cosine")
    elif model.network != "encoder":
        refuse(model, OF_SENTENCES, f"network {model.network}")

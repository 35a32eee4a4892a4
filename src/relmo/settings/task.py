"""The settings that tasks share: what a network reads of a word, how it is trained, one vector of a sentence."""

from dataclasses import dataclass
from typing import Literal

from relmo.errors import SettingError, shown
from relmo.settings.arguments import PathName
from relmo.settings.bounds import BOUNDS, NEARLY_1, check_bounds, parse_filters, refuse
from relmo.settings.cells import CellName
from relmo.settings.training import TrainSettings, check_optimizer

NONE = NO_CACHE = "none"


@dataclass(frozen=True, kw_only=True)
class TaskTextSettings:
    """What every task says of its files."""

    tokenizer: Literal["words", "whitespace"] = "words"
    """How raw text is split into words: by relmo's Unicode tokenizer, or at white space if the text is tokenised
    already. The model keeps this setting."""
    valid: PathName | None = None
    """The file by which the best model is chosen. By default a part of the training examples is held out."""
    valid_fraction: float = 0.1
    """The share of the training examples that is held out, at even distances, if there is no validation file."""
    column: str | None = None
    """The column, by name or number, or the key of JSON, that has the labels, if it is not the usual one."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes that are not UTF-8: stop and say where they are, or read them as U+FFFD."""


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
    """The share of words that are read as unknown ones in training."""
    vectors: PathName | None = None
    """Static word vectors: `words`, which ship with relmo; a folder of kind skipgram; or a text file in word2vec's or
    GloVe's format. A word without a vector is looked up in lower case. `none` turns off those of a preset."""
    vectors_tune: bool = False
    """Let the static vectors of the training words change with the task; those of other words stay."""
    char_dim: int = 16
    """Size of a character's embedding; 0 reads no characters."""
    filters: tuple[str, ...] = ("3x128",)
    """The convolutions over a word's characters, with commas between them: 3x128 is 128 of them that are 3 wide."""
    max_characters: int = 50
    """Room for a word's bytes and two marks. The rest of a longer word is cut off."""
    elmo: PathName | None = None
    """A bidirectional language model for contextual vectors: `small`, which ships with relmo; a folder; or original
    ELMo files. `none` turns off that of a config file."""
    elmo_at: Literal["input", "output", "both"] = "input"
    """Where its vectors go in: beside the word's other vectors, beside the output of the (first) encoder, or both. Each
    place has a mix of its own."""
    elmo_layers: Literal["all", "top"] = "all"
    """A learned mix of all layers, or the top one alone."""
    elmo_dropout: float = 0.2
    """Dropout on the mixed vectors. The published value is 0.5, which is a lot for vectors with fewer than the
    original's 1,024 numbers."""
    elmo_l2: float = 0.001
    """Lambda, the weight of the penalty that draws the mix towards equal weights: 1 makes it an average, 0.001 leaves
    it free."""
    elmo_norm: bool = False
    """Normalise each layer before the mix: its mean vector over words of the training examples is taken from it, and
    its numbers are divided by how far they are from that. A biLM's vectors have a common part, and are shorter than
    other vectors."""
    elmo_tune: bool = False
    """Train the biLM with the task. Otherwise it is frozen, and its vectors are computed once and kept on disk."""
    cache: PathName | None = None
    """Where these vectors are kept: a folder, or `none`, which computes them anew every time. The default is
    $RELMO_CACHE, or else ~/.cache/relmo."""
    copy: bool = False
    """Put copies of the biLM and of the static vectors into the model's folder. Otherwise the folder names them, with
    their checksums."""

    def __post_init__(self) -> None:
        # TOML and flags have no null value, so `none` stands for it.
        for name in ("vectors", "elmo"):
            if getattr(self, name) == NONE:
                object.__setattr__(self, name, None)


@dataclass(frozen=True, kw_only=True)
class TaskTrainSettings(TrainSettings):
    """The training loop, with what suits tasks."""

    epochs: float = 30.0
    """How often to go through the training data, at most; may be a fraction."""
    batch: int = 32
    """The largest number of examples in a batch; they are of about the same length."""
    tokens_per_batch: int = 8192
    """The largest number of words in a batch, with padding. A longer example makes a batch of its own."""
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
    """Train this many times, from `seed` on, each time in a folder of its own. The best one is the model."""
    plot: bool = False
    """Draw the learning curves: curves.png in the model's folder (needs relmo[plot])."""


@dataclass(frozen=True, kw_only=True)
class SentenceModelSettings:
    """A network that makes one vector of a sentence: recurrent layers and a pool over their output."""

    cell: CellName = "lstm"
    """The recurrent cell."""
    layers: int = 1
    """How many recurrent layers; with 0 each word goes through a linear layer of its own."""
    directions: Literal[1, 2] = 2
    """1 reads a sentence from left to right, 2 both ways."""
    hidden: int = 200
    """Units of each layer in each direction. Networks with other kinds of layers have as many units in those."""
    pool: Literal["final", "mean", "max", "attention"] = "max"
    """How the words of a sentence become one vector: the state where reading ended, their mean, their maximum, or a
    mean with learned weights."""
    mlp: tuple[int, ...] = ()
    """Sizes of the layers between a sentence's vector, or a pair's, and the labels; may be given several times."""
    dropout: float = 0.5
    """Dropout on what the recurrent layers read, with one mask for all words of a sentence, and on what follows
    them."""


OF_SENTENCES = ("cell", "layers", "directions", "pool", "mlp")


TASK_BOUNDS = BOUNDS | {
    "word_dim": (0, 1 << 16),
    "char_dim": (0, 1 << 16),
    "elmo_dropout": (0, NEARLY_1),
    "elmo_l2": (0, 1e9),
    "tokens_per_batch": (1, 1 << 30),
    **dict.fromkeys(("low", "high"), (-1e9, 1e9)),
    "seeds": (1, 1000),
    "mark_dim": (1, 1 << 16),
    "detector": (0, 1 << 16),
    "max_width": (1, 1000),
    "spans_per_word": (1e-6, 100),
    "antecedents": (1, 1 << 20),
    "feature_dim": (1, 1 << 16),
    "lexical_dropout": (0, NEARLY_1),
    "mention_weight": (0, 1e6),
    "max_sentences": (1, 1 << 40),
    **dict.fromkeys(("max_words", "max_answer"), (1, 1 << 24)),
    **dict.fromkeys(("label_smoothing", "sampling"), (0, NEARLY_1)),
    **dict.fromkeys(("sampling_steps", "target_min_count"), (1, 1 << 40)),
    "subwords": (32, 1 << 20),
    "longest": (1, 1 << 20),
    "target_dim": (1, 1 << 16),
    "beams": (1, 1000),
    "length_penalty": (0, 10),
    "coverage": (0, 100),
    "limit": (0, 100_000),
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
        raise SettingError("the network reads nothing of a word; set word_dim or char_dim, or give vectors or elmo")


def check_task_training(settings: TaskTrainSettings) -> None:
    """As for every kind; windows are of language models alone."""
    check_bounds(settings, bounds=TASK_BOUNDS)
    check_optimizer(settings)
    refuse(settings, ["unroll"], "a task")


def check_sentences(model: SentenceModelSettings) -> None:
    """Sizes that can be built."""
    check_bounds(model, bounds=TASK_BOUNDS | {"layers": (0, 1000)})
    if not model.layers:
        refuse(model, ["cell", "directions"], "layers 0")
        if model.pool == "final":
            raise SettingError(
                "pool final takes the last state of the layers, and layers 0 has none; give pool mean, max or attention"
            )
    if wrong := [size for size in model.mlp if not 1 <= size <= BOUNDS["hidden"][1]]:
        raise SettingError(f"mlp has sizes of layers, from 1 to {BOUNDS['hidden'][1]:g}, not {shown(wrong[0])}")

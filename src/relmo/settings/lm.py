"""The settings of `relmo train lm`: language models over characters or words."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

from relmo.errors import SettingError, shown
from relmo.settings.arguments import PathName
from relmo.settings.bounds import check_bounds, refuse
from relmo.settings.cells import CELLS, cells_with
from relmo.settings.training import TrainSettings, check_optimizer

RECURRENT = tuple(CELLS)

if TYPE_CHECKING:
    NetworkName = str
else:
    NetworkName = Literal[(*RECURRENT, "ngram", "feedforward")]


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How text becomes a stream of symbols."""

    unit: Literal["char", "word"] = "char"
    """What the model reads and predicts: characters or words."""
    tokenizer: Literal["words", "whitespace"] = "words"
    """How lines are split into words: by relmo's Unicode tokenizer, or at white space if the text is tokenised
    already."""
    lowercase: bool = False
    """Fold the text to lower case first."""
    text_per: Literal["file", "line"] = "file"
    """What one text is: a whole file, or each line of it. The end-of-text symbol follows every text; line ends inside a
    text are symbols of their own."""
    vocabulary: PathName | None = None
    """A file with the vocabulary to use, one symbol a line. By default it is made from the training part."""
    vocabulary_size: int | None = None
    """Keep at most this many symbols, the most frequent ones; the rest become `<unk>`."""
    min_count: int = 1
    """Symbols seen fewer times than this in the training part become `<unk>`."""
    valid: PathName | None = None
    """A file to validate on. By default the last part of the corpus is held out."""
    valid_fraction: float = 0.05
    """The share of the corpus that is held out for validation if there is no validation file. It follows the training
    part."""
    test_fraction: float = 0.0
    """The share at the very end of the corpus that is scored once, after training."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes that are not UTF-8: stop and say where they are, or read them as U+FFFD."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelSettings:
    """The network of a language model."""

    cell: NetworkName = "lstm"
    """The recurrent cell; or, for comparison, an interpolated Kneser-Ney n-gram model or Bengio's fixed-window
    network."""
    layers: int = 1
    """How many recurrent layers."""
    hidden: int = 512
    """Units of each layer (feedforward: of the hidden layer)."""
    embedding: int | None = None
    """Size of the input embedding. By default it is that of the hidden layer."""
    projection: int | None = None
    """LSTM only: project each layer's output down to this size."""
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """Elman only: the activation."""
    forget_bias: float = 1.0
    """LSTM only: where the forget gate's bias starts."""
    residual: bool = False
    """Layers add their input to their output if the sizes agree."""
    order: int = 5
    """N-gram and feedforward: predict from the last order - 1 symbols."""
    dropout: float = 0.0
    """Dropout between layers, and on the top layer's output unless output_dropout is given."""
    output_dropout: float | None = None
    """Dropout on the top layer's output."""
    input_dropout: float = 0.0
    """Dropout on the embedded input."""
    word_dropout: float = 0.0
    """Drop whole symbols of the embedding. A symbol is dropped wherever it occurs in the batch."""
    weight_drop: float = 0.0
    """Drop recurrent weights (DropConnect)."""
    variational: bool = False
    """Dropout keeps one mask for all steps of a window instead of a new one at each step."""
    tied: bool = False
    """Use the input embedding also as the weights of the output layer."""
    softmax: Literal["full", "adaptive", "sampled"] = "full"
    """The output layer in training: exact; adaptive (frequent symbols get more capacity); or a sampled estimate."""
    cutoffs: tuple[int, ...] = ()
    """Adaptive softmax: the ranks at which its clusters end. By default they follow from the size of the vocabulary."""
    samples: int = 8192
    """Sampled softmax: how many symbols stand for the vocabulary in each step."""


@dataclass(frozen=True, kw_only=True)
class LMSettings:
    """Train a language model over characters or words.

    Any text will do: plain, .gz, .xz, .zst, .conllu, or - for standard input. The last part is held out for validation.

    For example:

        relmo train lm corpus.txt --cell lstm --hidden 512 --epochs 20 --out models/mine

        relmo generate models/mine --prompt "Once upon a time"
    """

    files: ClassVar[str] = "Files to train on, in this order."
    """What it is trained on."""

    text: TextSettings = field(default_factory=TextSettings)
    model: LanguageModelSettings = field(default_factory=LanguageModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)


SOME_CELLS: dict[str, tuple[str, ...]] = {
    "order": ("ngram", "feedforward"),
    **dict.fromkeys(("layers", "residual", "word_dropout", "weight_drop", "variational", "tied"), RECURRENT),
    **dict.fromkeys(
        ("hidden", "embedding", "dropout", "output_dropout", "input_dropout", "softmax", "cutoffs", "samples"),
        (*RECURRENT, "feedforward"),
    ),
    **{option: cells_with(option) for options in CELLS.values() for option in options},
}
"""Which cells a setting of the model has a meaning for, where that is not all."""


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
        raise SettingError("cutoffs is for softmax adaptive only; leave it out")
    if any(low >= high for low, high in pairwise((0, *model.cutoffs))):
        raise SettingError(f"cutoffs must rise from 1 on, not {shown(model.cutoffs)}")
    if model.cell == "feedforward" and model.order < 2:
        raise SettingError("order must be 2 or more for cell feedforward: it predicts from order - 1 symbols")
    if settings.text.valid_fraction + settings.text.test_fraction >= 1:
        raise SettingError("valid_fraction and test_fraction leave nothing to train on")

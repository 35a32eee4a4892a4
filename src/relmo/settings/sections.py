"""Sections that several kinds share: the training loop; files, word inputs and encoders of tasks."""

from dataclasses import field
from typing import Annotated, Literal

from msgspec import Meta

from relmo.errors import SettingError, quote
from relmo.registry import UNKNOWN_CELL_ADVICE, cell_names
from relmo.settings import fields as f
from relmo.settings.kinds import check_cell_options

CellName = Annotated[str, f.OneOf(cell_names, UNKNOWN_CELL_ADVICE)]
CellOptions = f.Names
NONE = NO_CACHE = "none"
ELMO = f.Only(elmo=f.ENABLED)


class TrainSettings(f.SettingsSection):
    """Settings of the training loop."""

    epochs: f.Epochs = 10.0
    """Number of passes over the training data; may be a fraction."""
    minutes: Annotated[float, Meta(ge=1e-3, le=1e7)] | None = None
    """Train for about this many minutes instead of a number of epochs. The number of steps follows from the speed of
    the first ones. Reading the text and validation are not included."""
    batch: f.Size = 32
    """Number of lanes or examples per batch; with several processes, in each of them."""
    unroll: f.Size = 128
    """Language models: steps of back-propagation through time per window. The state is carried to the next window."""
    vary_unroll: bool = False
    """Kind lm: vary the length of the windows around unroll, and of one in twenty around half of it, so that they end
    at other places in each epoch. The learning rate is scaled by the length."""
    accumulate: f.Size = 1
    """Number of batches whose gradients are added for one step of the optimiser."""
    optimizer: Literal["adamw", "adam", "muon", "sgd", "adagrad"] = "adamw"
    """Optimiser. muon (Jordan et al. 2024) updates the matrices of hidden layers, adam all other parameters."""
    lr: f.LearningRate = 0.002
    """Learning rate after warm-up."""
    weight_decay: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Weight decay: decoupled for adamw and the matrices of muon, an L2 penalty for the other optimisers."""
    momentum: Annotated[f.Rate, f.Only(optimizer="sgd")] = 0.0
    """SGD only: momentum."""
    initial_accumulator: Annotated[f.Weight, f.Only(optimizer="adagrad")] = 1.0
    """Adagrad only: initial value of the sums of squared gradients. Smaller values make the first steps larger."""
    warmup: f.Steps = 100
    """Steps over which the learning rate rises from zero; at most a tenth of the run."""
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    """Decay of the learning rate after warm-up."""
    final_lr: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Final learning rate of the decay, as a fraction of lr."""
    clip_norm: f.Weight = 1.0
    """Largest global norm of the gradients; larger ones are scaled down to it. 0 turns clipping off."""
    average: f.Rate = 0.0
    """Decay of an exponential moving average of the weights, such as 0.999, which is validated and saved. 0 turns
    averaging off."""
    average_after: Annotated[f.Count | None, f.Only(average=f.DISABLED)] = None
    """Average all weights from the first validation on that is worse than the best one before the last so many
    validations. This average is validated and saved. With optimizer sgd and decay constant, this is NT-ASGD (Merity
    et al. 2018, with 5)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """float32, or mixed precision with bfloat16."""
    validate_every: f.Count | None = None
    """Steps between validations. The default is one validation per epoch."""
    patience: f.Count | None = None
    """Early stopping: number of validations without improvement after which training stops."""
    checkpoint_every: f.Weight = 60.0
    """Seconds between checkpoints, from which an interrupted run can be resumed. They are less frequent if writing one
    takes long. 0 writes one at every step."""
    snapshots: Annotated[tuple[f.Epochs, ...], Meta(max_length=1000)] = ()
    """Epochs, separated by commas, after which a copy of the model is kept in snapshots/EPOCH of the output folder."""
    log_every: f.Count = 50
    """Steps between lines of metrics.jsonl."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs relmo[tensorboard])."""
    seed: Annotated[int, Meta(ge=0, le=f.MAX_SEED)] = 1
    """Random seed."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto uses a GPU if there is one."""
    threads: Annotated[int, Meta(ge=1, le=f.MAX_THREADS)] | None = None
    """Number of CPU threads. The default is that of PyTorch."""

    def check(self) -> None:
        super().check()
        if len({f"{epoch:g}" for epoch in self.snapshots}) < len(self.snapshots):
            raise SettingError(f"snapshots must differ in their first six digits, not {quote(self.snapshots)}")
        if self.minutes is None and max(self.snapshots, default=0.0) > self.epochs:
            raise SettingError(f"snapshots must be at most epochs, {self.epochs:g}, not {max(self.snapshots):g}")


class TaskTextSettings(f.SettingsSection):
    """Files of a task."""

    tokenizer: Literal["words", "whitespace"] = "words"
    """Tokenizer of raw text: relmo's Unicode tokenizer, or split at whitespace if the text is tokenised already. The
    model keeps this setting."""
    valid: f.PathName | None = None
    """Development file, by which the best model is chosen. By default a part of the training examples is held out."""
    valid_fraction: f.HeldOut = 0.1
    """Fraction of the training examples that is held out, at even distances, if there is no development file."""
    column: str | None = None
    """Column, by name or number, or key of JSON, with the labels, if it is not the usual one."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not UTF-8: stop with an error that says where they are, or read them as U+FFFD."""


class InputSettings(f.SettingsSection):
    """Word inputs: learned vectors, static vectors, characters and ELMo, concatenated."""

    word_dim: f.OptionalDimension = 50
    """Size of the word vectors that are learned with the task; 0 for none."""
    lowercase: bool = True
    """Lower-case words for the learned vectors; characters and ELMo are not affected."""
    min_count: f.Count = 1
    """Words that are less frequent in the training examples share the learned vector of unknown words."""
    word_dropout: f.Rate = 0.0
    """Fraction of words that are replaced by the unknown word in training."""
    vectors: f.PathName | None = None
    """Static word vectors: `words`, which is bundled; a folder of kind skipgram; or a text file in the format of
    word2vec or GloVe. Words without a vector are looked up in lower case. `none` overrides a preset."""
    vectors_tune: Annotated[bool, f.Only(vectors=f.ENABLED)] = False
    """Train the static vectors of the training words with the task; those of other words do not change."""
    char_dim: f.OptionalDimension = 16
    """Size of the character embeddings; 0 for no character input."""
    filters: Annotated[f.Names, f.Only(char_dim=f.ENABLED)] = ("3x128",)
    """Convolutions over the characters of a word, separated by commas: 3x128 stands for 128 filters of width 3."""
    max_characters: Annotated[int, Meta(ge=3, le=1 << 12), f.Only(char_dim=f.ENABLED)] = 50
    """Largest number of bytes of a word, including two boundary marks. Longer words are truncated."""
    elmo: f.PathName | None = None
    """Bidirectional language model for contextual vectors: `small`, which is bundled; a folder; or original ELMo files.
    `none` overrides a config file."""
    elmo_at: Annotated[Literal["input", "output", "both"], ELMO] = "input"
    """Place of the ELMo vectors: with the other word inputs, with the output of the (first) encoder, or both, each with
    a scalar mix of its own."""
    elmo_layers: Annotated[Literal["all", "top"], ELMO] = "all"
    """Layers: a learned mix of all layers, or the top layer."""
    elmo_dropout: Annotated[f.Rate, ELMO] = 0.2
    """Dropout on the mixed vectors. The published value, 0.5, is high for vectors smaller than the original's 1,024."""
    elmo_l2: Annotated[f.Weight, ELMO, f.Only(elmo_layers="all")] = 0.001
    """Lambda, the weight of the penalty on the mix: 1 makes it an average, 0.001 leaves it free."""
    elmo_norm: Annotated[bool, ELMO] = False
    """Normalise each layer before the mix: subtract its mean vector over words of the training examples, and divide by
    the standard deviation. The vectors of a biLM have a common component and are shorter than other vectors."""
    elmo_tune: Annotated[bool, ELMO] = False
    """Fine-tune the biLM with the task. Otherwise it is frozen, and its vectors are computed once and cached."""
    cache: Annotated[f.PathName | None, ELMO, f.Only(elmo_tune=f.DISABLED)] = None
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
            f.parse_filters(self.filters, self.max_characters)
        if self.elmo is None and self.vectors is None:
            f.refuse(self, ["copy"], "without elmo or vectors")
        if not self.word_dim and not self.vectors_tune:
            f.refuse(self, ["min_count", "lowercase"], "with word_dim 0")
        has_elmo = self.elmo is not None and self.elmo_at != "output"
        if not (self.word_dim or self.char_dim or self.vectors or has_elmo):
            raise SettingError("the network has no input; set word_dim, char_dim, vectors or elmo")


class TaskTrainSettings(TrainSettings):
    """Training loop of a task."""

    epochs: f.Epochs = 30.0
    """Largest number of passes over the training data; may be a fraction."""
    batch: f.Size = 32
    """Largest number of examples per batch; they have similar lengths."""
    tokens_per_batch: Annotated[int, Meta(ge=1, le=1 << 30)] = 8192
    """Largest number of words per batch, including padding. A longer example is a batch of its own."""
    optimizer: Literal["adamw", "adam", "sgd", "adagrad"] = "adam"
    """Optimiser."""
    lr: f.LearningRate = 0.001
    warmup: f.Steps = 0
    decay: Literal["cosine", "linear", "constant"] = "constant"
    clip_norm: f.Weight = 5.0
    patience: f.Count | None = 10
    seeds: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Number of runs with different seeds, from `seed` on, each in a folder of its own. The best one is the model."""
    plot: bool = False
    """Plot the learning curves to curves.png in the model folder (needs relmo[plot])."""

    def check(self) -> None:
        super().check()
        f.refuse(self, ["unroll", "vary_unroll"], "for tasks")


class TaskSettings(f.KindSettings):
    """Base class of the settings of tasks, which override the sections that differ."""

    text: TaskTextSettings = field(default_factory=TaskTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: f.SettingsSection = field(default_factory=f.SettingsSection)
    train: TaskTrainSettings = field(default_factory=TaskTrainSettings)


class CellSettings(f.SettingsSection):
    """Recurrent cell of a network."""

    cell: CellName = "lstm"
    """Recurrent cell."""
    cell_options: CellOptions = ()
    """Options of the cell as NAME=VALUE, separated by commas; `relmo cells` lists them."""

    def check(self) -> None:
        super().check()
        check_cell_options(self)


class EncoderSettings(CellSettings):
    """Bidirectional recurrent layers."""

    layers: f.NumLayers = 1
    """Number of recurrent layers."""
    hidden: f.Size = 200
    """Hidden size of each layer per direction."""


RECURRENT = f.Only(network=("pooled", "encoder", "cosine"))


class SentenceModelSettings(CellSettings):
    """Sentence encoder: recurrent layers and pooling. Subclasses have a setting `network`."""

    cell: Annotated[CellName, RECURRENT, f.Only(layers=f.ENABLED)] = "lstm"
    cell_options: Annotated[CellOptions, RECURRENT, f.Only(layers=f.ENABLED)] = ()
    layers: Annotated[f.OptionalLayers, RECURRENT] = 1
    """Number of recurrent layers; 0 replaces them with a linear layer on each word."""
    directions: Annotated[Literal[1, 2], RECURRENT, f.Only(layers=f.ENABLED)] = 2
    """1 for forward layers, 2 for bidirectional ones."""
    hidden: f.Size = 200
    """Hidden size of each layer per direction. Networks with other kinds of layers use it for those."""
    pool: Annotated[Literal["final", "mean", "max", "attention"], RECURRENT] = "max"
    """Pooling over words: final state, mean, maximum, or a mean with learned attention weights."""
    mlp: Annotated[f.Sizes, f.Only(network=("pooled", "encoder"))] = ()
    """Sizes of the layers between the sentence vectors and the labels; may be given several times."""
    dropout: f.Rate = 0.5
    """Dropout on the input of the recurrent layers, with one mask for all words of a sentence, and on what follows
    them."""

    def check(self) -> None:
        super().check()
        if not self.layers and self.pool == "final":
            raise SettingError("pool final needs recurrent layers; with layers 0 use pool mean, max or attention")

"""The settings of `relmo train seq2seq`: a text to another text."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.errors import SettingError
from relmo.settings.bounds import check_bounds, refuse
from relmo.settings.cells import CellName
from relmo.settings.task import (
    TASK_BOUNDS,
    InputSettings,
    TaskTextSettings,
    TaskTrainSettings,
    check_inputs,
    check_task_training,
)

UnitName = Literal["word", "char", "bpe", "unigram"]
OF_SUBWORDS = ("bpe", "unigram")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqTextSettings(TaskTextSettings):
    """Files of pairs of texts, and the units in which they are read and written."""

    column: str | None = None
    """The two columns, source and target, by name or number with a comma between them. The default is 1,2. With 2,1 the
    model learns the other direction."""
    source_unit: UnitName = "word"
    """What the encoder reads: words, characters, or subwords. Subwords are learned from the training texts by byte-pair
    encoding or by a unigram model (needs relmo[translate])."""
    target_unit: UnitName = "word"
    """What the decoder writes."""
    subwords: int = 8000
    """How many subwords there are. The two sides share them if both have them."""
    target_min_count: int = 1
    """Units seen fewer times than this in the training targets are unknown to the decoder."""
    longest: int | None = None
    """Pairs with more units than this on a side are left out of training. By default all are kept."""
    metric: Literal["bleu", "chrf", "rouge", "exact"] = "bleu"
    """The score to choose the best model by: BLEU and chrF (both need relmo[translate]), ROUGE-L, or the share of
    targets that are exactly right."""


@dataclass(frozen=True, kw_only=True)
class Seq2SeqInputSettings(InputSettings):
    """What the encoder reads of a unit."""

    word_dim: int = 256
    """Size of the vectors of the source's units, which are learned; 0 for none."""
    lowercase: bool = False
    """Learned vectors are those of lower-cased words; characters and ELMo see words as they are."""
    char_dim: int = 0
    """Size of a character's embedding in the CNN that reads a word's spelling; 0 reads no characters."""


@dataclass(frozen=True, kw_only=True)
class Seq2SeqModelSettings:
    """An encoder, a decoder, and what passes between them."""

    cell: CellName = "lstm"
    """The recurrent cell of both."""
    layers: int = 1
    """How many recurrent layers each of them has."""
    directions: Literal[1, 2] = 2
    """Whether the encoder reads from left to right only, or both ways."""
    hidden: int = 256
    """Units of each layer; of the encoder, in each direction."""
    attention: Literal["additive", "dot", "general", "concat", "none"] = "additive"
    """How the decoder scores what it looks at: additive (Bahdanau et al. 2015); dot, general, concat (Luong et al.
    2015). With none, one vector is all it gets of the source."""
    context: Literal["start", "every"] = "start"
    """Attention none: where the vector goes in. start: it is the decoder's first state (Sutskever et al. 2014). every:
    each step of the decoder reads it too (Cho et al. 2014)."""
    input_feeding: bool = False
    """With attention: each step of the decoder reads what the step before has attended to (Luong et al. 2015)."""
    target_dim: int = 256
    """Size of the vectors of the target's units."""
    tied: bool = False
    """Use the vectors of the target's units also as the weights of the output layer (Press & Wolf 2017)."""
    dropout: float = 0.3
    """Dropout on vectors of units, between layers, and before the output."""
    label_smoothing: float = 0.0
    """The share of a target's probability that goes to all units evenly (Szegedy et al. 2016)."""
    sampling: float = 0.0
    """Scheduled sampling: in training, the share of units for which the decoder reads its own guess in place of the
    right one (Bengio et al. 2015)."""
    sampling_steps: int = 10_000
    """Scheduled sampling: the steps of training over which that share rises evenly from 0."""


@dataclass(frozen=True, kw_only=True)
class Seq2SeqTrainSettings(TaskTrainSettings):
    """The training loop, with what suits pairs of texts."""

    batch: int = 64
    """The largest number of pairs in a batch; they are of about the same length."""
    clip_norm: float = 1.0
    """Gradients whose global norm is above this are scaled down to it; 0 turns clipping off."""


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How a target is looked for, where `predict` is not told otherwise; while a model trains, it is greedy."""

    beams: int = 5
    """How many targets are kept open side by side; 1 always takes the most probable unit."""
    length_penalty: float = 0.6
    """Alpha: log-probabilities are divided by ((5 + length) / 6)^alpha (Wu et al. 2016). 0 takes them as they are, and
    favours short targets."""
    coverage: float = 0.0
    """Beta: the weight of the penalty for source units that got little attention (Wu et al. 2016)."""
    limit: int = 0
    """The largest number of units in a target; 0 allows twice as many as the source has, and 50 more."""
    replace_unknown: bool = True
    """Words: an unknown word in a target becomes the source word that got the most attention (Jean et al. 2015)."""


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSettings:
    """Train a network that turns one text into another: translation, summaries, corrections, sums, dates.

    For example:

        relmo train seq2seq train.en,train.de --valid val.en,val.de --preset multi30k --out models/en-de

        relmo train seq2seq pairs.tsv --source-unit char --target-unit char --metric exact --out models/mine

        relmo train seq2seq sums/train.tsv --valid sums/held-out.tsv --preset addition --out models/sums

        echo "A man sleeps." | relmo predict models/en-de --beams 5 --best 3
    """

    files: ClassVar[str] = (
        "Pairs of texts: two parallel files with a comma between them (train.en,train.de), or files with two columns "
        "(.tsv, .csv, .jsonl)."
    )
    """What it is trained on."""

    text: Seq2SeqTextSettings = field(default_factory=Seq2SeqTextSettings)
    input: Seq2SeqInputSettings = field(default_factory=Seq2SeqInputSettings)
    model: Seq2SeqModelSettings = field(default_factory=Seq2SeqModelSettings)
    train: Seq2SeqTrainSettings = field(default_factory=Seq2SeqTrainSettings)
    search: SearchSettings = field(default_factory=SearchSettings)


def check_seq2seq(settings: Seq2SeqSettings) -> None:
    """As `check_tagger`, for a text to another text."""
    text, model = settings.text, settings.model
    check_bounds(text, model, bounds=TASK_BOUNDS)
    check_inputs(settings.input)
    check_task_training(settings.train)
    check_search(settings.search)
    if not {text.source_unit, text.target_unit} & set(OF_SUBWORDS):
        refuse(text, ["subwords"], "words and characters")
    elif text.source_unit in OF_SUBWORDS and text.target_unit in OF_SUBWORDS and text.source_unit != text.target_unit:
        raise SettingError("both sides must have the same kind of subwords, bpe or unigram")
    if text.source_unit != "word" and (settings.input.elmo is not None or settings.input.vectors is not None):
        raise SettingError("elmo and vectors need words; add --source-unit word")
    if model.attention == "none":
        refuse(model, ["input_feeding"], "attention none")
        refuse(settings.search, ["coverage"], "attention none")
        if settings.input.elmo is not None and settings.input.elmo_at != "input":
            raise SettingError("elmo at the output needs attention; with attention none give --elmo-at input")
    else:
        refuse(model, ["context"], "a network with attention")
    if not model.sampling:
        refuse(model, ["sampling_steps"], "a run without scheduled sampling")
    if model.attention == "dot" and settings.input.elmo_at != "input":
        raise SettingError("attention dot compares vectors of one size; with elmo at the output give general")


def check_search(settings: SearchSettings) -> None:
    """Numbers that a search can do with."""
    check_bounds(settings, bounds=TASK_BOUNDS)

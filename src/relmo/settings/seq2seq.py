"""Settings of `relmo train seq2seq`: sequence-to-sequence models."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from relmo.errors import SettingError
from relmo.settings.cells import CellName
from relmo.settings.fields import (
    ENABLED,
    Count,
    Dimension,
    NumLayers,
    Only,
    OptionalDimension,
    Rate,
    SettingsSection,
    Size,
    Weight,
    refuse,
)
from relmo.settings.task import InputSettings, TaskSettings, TaskTextSettings, TaskTrainSettings

UnitName = Literal["word", "char", "bpe", "unigram"]
SUBWORD_UNITS = ("bpe", "unigram")
ATTENTIONS = ("additive", "dot", "general", "concat")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqTextSettings(TaskTextSettings):
    """Files of text pairs, and their units."""

    column: str | None = None
    """Columns of source and target, by name or number, separated by a comma. The default is 1,2; 2,1 trains the other
    direction."""
    source_unit: UnitName = "word"
    """Units of the source: words, characters, or subwords. Subwords are learned from the training texts by byte-pair
    encoding or a unigram model (needs relmo[translate])."""
    target_unit: UnitName = "word"
    """Units of the target."""
    subwords: Annotated[int, Meta(ge=32, le=1 << 20)] = 8000
    """Number of subwords. They are shared if both sides have them."""
    target_min_count: Count = 1
    """Units that are less frequent in the training targets are unknown to the decoder."""
    longest: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    """Skip training pairs with more units than this on either side. The default is to use all pairs."""
    metric: Literal["bleu", "chrf", "rouge", "exact"] = "bleu"
    """Metric by which the best model is chosen: BLEU or chrF (both need relmo[translate]), ROUGE-L, or the fraction of
    exact matches."""

    def check(self) -> None:
        super().check()
        subword_units = {self.source_unit, self.target_unit} & set(SUBWORD_UNITS)
        if not subword_units:
            refuse(self, ["subwords"], "for words and characters")
        if len(subword_units) > 1:
            raise SettingError("both sides must have the same kind of subwords, bpe or unigram")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqInputSettings(InputSettings):
    """Inputs of the encoder."""

    word_dim: OptionalDimension = 256
    """Size of the embeddings of source units; 0 for none."""
    lowercase: bool = False
    char_dim: OptionalDimension = 0
    """Size of the character embeddings of the CNN over the characters of a word; 0 for no character input."""


@dataclass(frozen=True, kw_only=True)
class Seq2SeqModelSettings(SettingsSection):
    """Encoder, decoder and attention."""

    cell: CellName = "lstm"
    """Recurrent cell of encoder and decoder."""
    layers: NumLayers = 1
    """Number of recurrent layers of encoder and decoder."""
    directions: Literal[1, 2] = 2
    """1 for a forward encoder, 2 for a bidirectional one."""
    hidden: Size = 256
    """Hidden size of each layer; in the encoder, per direction."""
    attention: Literal["additive", "dot", "general", "concat", "none"] = "additive"
    """Attention: additive (Bahdanau et al. 2015); dot, general, concat (Luong et al. 2015). With none, the decoder gets
    one vector of the source."""
    context: Annotated[Literal["start", "every"], Only(attention="none")] = "start"
    """Attention none: use of the source vector. start: as the initial state of the decoder (Sutskever et al. 2014).
    every: also as an input of every step (Cho et al. 2014)."""
    input_feeding: Annotated[bool, Only(attention=ATTENTIONS)] = False
    """Input feeding: each step of the decoder also reads the attentional vector of the previous step (Luong et al.
    2015)."""
    target_dim: Dimension = 256
    """Size of the embeddings of target units."""
    tied: bool = False
    """Use the embeddings of target units as the weights of the output layer (Press & Wolf 2017)."""
    dropout: Rate = 0.3
    """Dropout on embeddings, between layers, and before the output."""
    label_smoothing: Rate = 0.0
    """Label smoothing: probability that is spread evenly over all units (Szegedy et al. 2016)."""
    sampling: Rate = 0.0
    """Scheduled sampling: fraction of target units that are replaced by the prediction of the decoder in training
    (Bengio et al. 2015)."""
    sampling_steps: Annotated[Count, Only(sampling=ENABLED)] = 10_000
    """Scheduled sampling: training steps over which that fraction rises linearly from 0."""


@dataclass(frozen=True, kw_only=True)
class Seq2SeqTrainSettings(TaskTrainSettings):
    """Training loop for text pairs."""

    batch: Size = 64
    """Largest number of pairs per batch; they have similar lengths."""
    clip_norm: Weight = 1.0


@dataclass(frozen=True, kw_only=True)
class SearchSettings(SettingsSection):
    """Defaults of beam search in `predict`; validation during training is greedy."""

    beams: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Number of hypotheses; 1 is greedy search."""
    length_penalty: Annotated[float, Meta(ge=0, le=10)] = 0.6
    """Alpha: log-probabilities are divided by ((5 + length) / 6)^alpha (Wu et al. 2016). 0 is no normalisation, which
    favours short targets."""
    coverage: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Beta: weight of the coverage penalty, for source units with little attention (Wu et al. 2016)."""
    limit: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Largest number of units of a target; 0 allows twice the number of source units plus 50."""
    replace_unknown: bool = True
    """Words: replace an unknown target word by the source word with the most attention (Jean et al. 2015)."""


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSettings(TaskSettings):
    """Train a sequence-to-sequence model: translation, summaries, corrections, sums, dates.

    For example:

        relmo train seq2seq train.en,train.de --valid val.en,val.de --preset multi30k --out models/en-de

        relmo train seq2seq pairs.tsv --source-unit char --target-unit char --metric exact --out models/mine

        relmo train seq2seq sums/train.tsv --valid sums/held-out.tsv --preset addition --out models/sums

        echo "A man sleeps." | relmo predict models/en-de --beams 5 --best 3
    """

    files: ClassVar[str] = (
        "Text pairs: two parallel files separated by a comma (train.en,train.de), or files with two columns (.tsv, "
        ".csv, .jsonl)."
    )

    text: Seq2SeqTextSettings = field(default_factory=Seq2SeqTextSettings)
    input: Seq2SeqInputSettings = field(default_factory=Seq2SeqInputSettings)
    model: Seq2SeqModelSettings = field(default_factory=Seq2SeqModelSettings)
    train: Seq2SeqTrainSettings = field(default_factory=Seq2SeqTrainSettings)
    search: SearchSettings = field(default_factory=SearchSettings)

    def check(self) -> None:
        super().check()
        elmo_at_output = self.input.elmo is not None and self.input.elmo_at != "input"
        if self.text.source_unit != "word" and (self.input.elmo is not None or self.input.vectors is not None):
            raise SettingError("elmo and vectors need words; add --source-unit word")
        if self.model.attention == "none":
            refuse(self.search, ["coverage"], "with attention none")
            if elmo_at_output:
                raise SettingError("elmo at the output needs attention; with attention none use --elmo-at input")
        if self.model.attention == "dot" and elmo_at_output:
            raise SettingError("attention dot needs vectors of one size; with elmo at the output use general")

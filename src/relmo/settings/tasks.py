"""Settings of the tasks: classifier, pairs, tagger, reader, srl, coref, seq2seq. A new task may have its own file."""

from dataclasses import field
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta

from relmo.errors import SettingError
from relmo.registry import cells_with
from relmo.settings import fields as f
from relmo.settings import sections
from relmo.settings.sections import (
    CellName,
    CellSettings,
    EncoderSettings,
    InputSettings,
    TaskSettings,
    TaskTextSettings,
    TaskTrainSettings,
)

LAYERS = f.Only(network="pooled", layers=f.ENABLED)
COSINE = f.Only(network="cosine")
UnitName = Literal["word", "char", "bpe", "unigram"]
SUBWORD_UNITS = ("bpe", "unigram")
ATTENTIONS = ("additive", "dot", "general", "concat")


class ClassifierTextSettings(TaskTextSettings):
    """Files of labelled texts."""

    format: Literal["auto", "trees", "cola", "tsv", "jsonl", "folder"] = "auto"
    """File format: bracketed trees (SST), CoLA's columns, a table with a header (.csv, or with tabs), JSON lines, or a
    folder of texts per label (IMDB). auto looks at the name and the first line."""
    text_column: Annotated[str | None, f.Only(format=("auto", "tsv", "jsonl"))] = None
    """Tables and JSON lines: column or key with the text. The default is text, sentence or review."""
    subtrees: Annotated[bool, f.Only(format=("auto", "trees"))] = True
    """Trees only: train on every labelled phrase. Scores are always those of whole sentences."""


class ClassifierModelSettings(sections.SentenceModelSettings):
    """Network of a classifier."""

    network: Literal["pooled", "bcn"] = "pooled"
    """Recurrent layers and pooling, or the biattentive classification network."""
    projection: Annotated[f.Size | None, LAYERS, f.Only(cell=partial(cells_with, "projection"))] = None
    """LSTM only: project the output of each layer to this size."""
    residual: Annotated[bool, LAYERS] = False
    """Residual connections between layers of the same size."""

    def check(self) -> None:
        super().check()
        if self.projection is not None and self.projection >= self.hidden:
            raise SettingError(f"projection {self.projection} must be smaller than hidden {self.hidden}")


class ClassifierTrainSettings(TaskTrainSettings):
    """Training loop, selection metric and initialisation."""

    metric: Literal["accuracy", "mcc", "f1"] = "accuracy"
    """Metric by which the best model is chosen: accuracy, Matthews correlation (CoLA), or macro-averaged F1."""
    init: f.PathName | None = None
    """Start from this word language model (kind lm): its vocabulary, embeddings and recurrent layers. Its geometry is
    kept (Dai & Le 2015)."""


class ClassifierSettings(TaskSettings):
    """Train a text classifier: sentiment, acceptability, topics; with or without ELMo.

    For example:

        relmo train classifier train.txt --valid dev.txt --preset sst5 --elmo small --elmo-at both --out models/sst5

        relmo train classifier mine.csv --text-column comment --column topic --metric f1 --out models/mine

        relmo train classifier reviews.tsv --init models/lm --pool final --out models/reviews

        echo "A quiet, lovely film." | relmo predict models/sst5 --json
    """

    files = "Labelled texts: trees (SST), CoLA, a table with a header, JSON lines, or a folder per label (IMDB)."

    text: ClassifierTextSettings = field(default_factory=ClassifierTextSettings)
    model: ClassifierModelSettings = field(default_factory=ClassifierModelSettings)
    train: ClassifierTrainSettings = field(default_factory=ClassifierTrainSettings)

    def check(self) -> None:
        super().check()
        if self.train.init is None:
            return
        if self.model.network != "pooled":
            raise SettingError(f"init needs network pooled, whose recurrent layers it sets, not {self.model.network}")
        f.refuse(self.input, ["min_count", "vectors"], "with init, which sets the vocabulary")
        if self.input.elmo is not None and self.input.elmo_at != "output":
            raise SettingError(f"elmo_at {self.input.elmo_at} and init cannot be used together; use elmo_at output")


class PairsTextSettings(TaskTextSettings):
    """Files of sentence pairs."""

    task: Literal["label", "score"] = "label"
    """label: one of several labels, scored by accuracy. score: a number, scored by Pearson's correlation."""
    format: Literal["auto", "tsv", "stsb", "jsonl"] = "auto"
    """File format: a table with a header (SNLI, SICK, your own .csv), STS-B's columns, or JSON lines. auto looks at the
    name and the first line."""
    text_columns: Annotated[f.Names, f.Only(format=("auto", "tsv", "jsonl"))] = ()
    """Tables and JSON lines: the two columns or keys with the texts; give the flag twice. The default is sentence1 and
    sentence2, premise and hypothesis, and the like."""

    def check(self) -> None:
        super().check()
        if len(self.text_columns) not in (0, 2):
            raise SettingError(f"text_columns must be two names, not {len(self.text_columns)}; give the flag twice")


class PairsModelSettings(sections.SentenceModelSettings):
    """Network for sentence pairs."""

    network: Literal["encoder", "esim", "decomposable", "cosine"] = "encoder"
    """encoder: features of the two sentence vectors. esim, decomposable: attention between the words of the two
    sentences. cosine: cosine of the two sentence vectors, for task score."""
    mlp: Annotated[f.Sizes, f.Only(network="encoder")] = (300,)
    """Encoder only: sizes of the layers between the features of a pair and the labels; may be given several times."""
    dropout: f.Rate = 0.2
    low: Annotated[float, Meta(ge=-1e9, le=1e9), COSINE] = -5.0
    """Task score: lowest score, that of two sentence vectors of opposite direction. With -high, unrelated sentences
    have the score 0."""
    high: Annotated[float, Meta(ge=-1e9, le=1e9), COSINE] = 5.0
    """Task score: highest score, that of two sentence vectors of the same direction."""

    def check(self) -> None:
        super().check()
        if self.low >= self.high:
            raise SettingError(f"low {self.low:g} must be less than high {self.high:g}")


class PairsSettings(TaskSettings):
    """Train a model of sentence pairs: inference, paraphrase, similarity; with or without ELMo.

    For example:

        relmo train pairs train.tsv --valid dev.tsv --preset snli --elmo small --elmo-at both --out models/snli

        relmo train pairs sts-train.csv --valid sts-dev.csv --preset stsb --elmo small --out models/stsb

        relmo train pairs mine.jsonl --network encoder --pool max --out models/mine

        printf "A man sleeps.\\tA person is awake.\\n" | relmo predict models/snli
    """

    files = "Pairs with labels or scores: a table with a header (SNLI, SICK), STS-B, or JSON lines."

    text: PairsTextSettings = field(default_factory=PairsTextSettings)
    model: PairsModelSettings = field(default_factory=PairsModelSettings)

    def check(self) -> None:
        super().check()
        task, network = self.text.task, self.model.network
        if (task == "score") != (network == "cosine"):
            advice = "task score needs network cosine, as in --preset stsb, and cosine needs task score"
            raise SettingError(f"task {task} and network {network} cannot be used together; {advice}")


class TaggerTextSettings(TaskTextSettings):
    """Tags and files."""

    task: Literal["auto", "pos", "ner", "column"] = "auto"
    """pos: a tag per word (CoNLL-U: the universal one), scored by accuracy. ner: spans, in BIO or a variant of it,
    scored by F1. column: the tags of `column`, scored by accuracy. auto: ner if the training tags mark spans (B-PER,
    I-PER, O), otherwise pos."""
    format: Literal["auto", "conllu", "columns", "jsonl"] = "auto"
    """File format: CoNLL-U (.conllu), JSON lines (.jsonl), or columns. auto looks at the name."""


class TaggerModelSettings(EncoderSettings):
    """Network of a tagger: bidirectional recurrent layers and a decoder."""

    dropout: f.Rate = 0.5
    """Dropout between layers and on the output of the last one, with one mask for all words of a sentence."""
    decoder: Literal["softmax", "crf"] = "softmax"
    """Choice of tags: each by itself, or those of a sentence jointly by a conditional random field."""
    encoding: Literal["bioul", "bio"] = "bioul"
    """Spans only: encoding of the tags that the network learns. Predictions are always written as BIO."""


class TaggerSettings(TaskSettings):
    """Train a tagger: parts of speech, names, or any column of tags; with or without ELMo.

    For example:

        relmo train tagger train.conllu --valid dev.conllu --preset pos --elmo small --out models/pos

        relmo train tagger train.iob2 --valid dev.iob2 --preset ner --elmo small --seeds 5 --out models/ner

        echo "Anna lives in Berlin." | relmo predict models/ner
    """

    files = "Sentences to train on: CoNLL-U, columns (CoNLL, IOB2), or JSON lines; plain, .gz, .xz, .zst."

    text: TaggerTextSettings = field(default_factory=TaggerTextSettings)
    model: TaggerModelSettings = field(default_factory=TaggerModelSettings)

    def check(self) -> None:
        super().check()
        if self.text.task == "column" and self.text.column is None:
            raise SettingError("task column needs a column: its name, such as --column xpos, or its number")
        if self.text.task in ("pos", "column"):
            f.refuse(self.model, ["encoding"], f"with task {self.text.task}")


class ReaderTextSettings(TaskTextSettings):
    """Files of passages, questions and answers."""

    format: Literal["auto", "squad", "jsonl", "tsv"] = "auto"
    """File format: SQuAD's JSON (.json), JSON lines (.jsonl), or a table with a header. auto looks at the name."""
    max_words: f.Size = 400
    """Largest number of words of a passage in training; questions whose answer comes later are skipped. Prediction and
    evaluation read the whole passage."""


class ReaderModelSettings(CellSettings):
    """Network: attention between passage and question, self-attention of the passage, and the ends of the answer."""

    cell: CellName = "gru"
    hidden: f.Size = 90
    """Hidden size of each recurrent layer per direction."""
    dropout: f.Rate = 0.2
    """Dropout before and after recurrent layers, with one mask for all words of a text."""
    max_answer: f.Size = 17
    """Largest number of words of an answer."""


class ReaderSettings(TaskSettings):
    """Train a reader: it finds the answer to a question in a passage; with or without ELMo.

    For example:

        relmo train reader train.json --valid dev.json --preset squad --out models/squad

        relmo train reader train.json --valid dev.json --preset squad --elmo small --elmo-at both --out models/squad2

        echo "Who founded the town?" | relmo predict models/squad --passage town.txt --best 3
    """

    files = (
        "Passages, questions and answers: SQuAD's JSON; a table with the columns passage, question and answer; or JSON "
        "lines with such keys; plain, .gz, .xz, .zst."
    )

    text: ReaderTextSettings = field(default_factory=ReaderTextSettings)
    model: ReaderModelSettings = field(default_factory=ReaderModelSettings)


class SRLTextSettings(TaskTextSettings):
    """Predicates and files."""

    format: Literal["auto", "jsonl", "columns"] = "auto"
    """File format: JSON lines (.jsonl) or columns. auto looks at the name."""
    predicates: Literal["all", "verbs"] = "all"
    """all: every predicate of the files. verbs: those that are verbs by their part of speech and no auxiliaries (be.03,
    do.01, have.01), as in CoNLL-2012."""

    def check(self) -> None:
        super().check()
        f.refuse(self, ["column"], "for semantic roles, which have a column for each predicate")


class SRLModelSettings(CellSettings):
    """Network: deep recurrent layers of alternating direction with highway connections."""

    cell: CellName = "highway"
    """Recurrent cell. highway is the published LSTM with a highway from its input to its output; other cells have the
    highway around them, with a gate that reads the input."""
    layers: f.NumLayers = 8
    """Number of layers; the first one reads forward, the second backward, and so on."""
    hidden: f.Size = 300
    """Hidden size of each layer."""
    mark_dim: f.Dimension = 100
    """Size of the embedding that marks the predicate."""
    dropout: f.Rate = 0.1
    """Dropout on the states of the layers, and on the input and output of the predicate detector, with one mask for all
    words of a sentence."""
    detector: f.OptionalDimension = 100
    """Hidden size, per direction, of the biLSTM that finds predicates in text. With 0 the predicates must always be
    given."""


class SRLSettings(TaskSettings):
    """Train a semantic role labeller: for each predicate of a sentence, who does what to whom, when, where and why;
    with or without ELMo.

    For example:

        relmo train srl train.jsonl --valid dev.jsonl --preset propbank --out models/srl

        relmo train srl train.jsonl --valid dev.jsonl --preset propbank --elmo small --seeds 3 --out models/srl-elmo

        echo "Anna gave Bob the key yesterday." | relmo predict models/srl
    """

    files = (
        "Sentences with predicates and roles: JSON lines, or columns (CoNLL-2005, CoNLL-2012, PropBank's releases); "
        "plain, .gz, .xz, .zst."
    )

    text: SRLTextSettings = field(default_factory=SRLTextSettings)
    model: SRLModelSettings = field(default_factory=SRLModelSettings)


class CorefTextSettings(TaskTextSettings):
    """Files of documents."""

    singletons: Literal["keep", "drop"] = "keep"
    """Mentions that are alone in their cluster. keep: they are scored and, with `mention_weight`, learned. drop: they
    are ignored."""

    def check(self) -> None:
        super().check()
        f.refuse(self, ["column"], "for coreference")


class CorefModelSettings(EncoderSettings):
    """Network of Lee et al. 2017: a biLSTM over each sentence, spans, and an antecedent for each span."""

    max_width: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Largest number of words of a span."""
    spans_per_word: Annotated[float, Meta(ge=1e-6, le=100)] = 0.4
    """Lambda: number of spans that are kept per word of a document; at least 24 in a short one."""
    antecedents: Annotated[int, Meta(ge=1, le=1 << 20)] = 250
    """Largest number of preceding spans that may be the antecedent of a span."""
    mlp: f.Sizes = (150, 150)
    """Sizes of the layers that score spans, and of those that score pairs; may be given several times."""
    feature_dim: f.Dimension = 20
    """Size of the embeddings of widths, distances, speakers and genres."""
    mention_weight: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Weight of a second loss on whether a span is a mention, which helps with few documents. The published network has
    none."""
    output_singletons: bool = False
    """Also output mentions without a coreferent one if their score is above 0, for files that annotate them; needs
    `mention_weight`. The published network outputs none."""
    lexical_dropout: f.Rate = 0.5
    """Dropout on the word inputs."""
    dropout: f.Rate = 0.2
    """Dropout on everything else."""

    def check(self) -> None:
        super().check()
        if not self.mlp:
            raise SettingError("mlp must have one size or more")
        if self.output_singletons and not self.mention_weight:
            raise SettingError("output_singletons needs the loss on mentions; set mention_weight, for example to 0.1")


class CorefTrainSettings(TaskTrainSettings):
    """Training loop for documents."""

    batch: f.Size = 1
    """Largest number of documents per batch."""
    max_sentences: f.Count = 50
    """Largest number of sentences in training; longer documents are split into such pieces, which bounds the memory."""


class CorefSettings(TaskSettings):
    """Train a coreference model: mentions of a document and their clusters; with or without ELMo.

    For example:

        relmo train coref train.conll --valid dev.conll --preset lee --elmo small --out models/coref

        relmo evaluate models/coref dev.conll

        echo "Anna saw Bob. She waved to him." | relmo predict models/coref
    """

    files = "Documents to train on: CoNLL-2012, OntoGUM's short form, or JSON lines; plain, .gz, .xz, .zst."

    text: CorefTextSettings = field(default_factory=CorefTextSettings)
    model: CorefModelSettings = field(default_factory=CorefModelSettings)
    train: CorefTrainSettings = field(default_factory=CorefTrainSettings)

    def check(self) -> None:
        super().check()
        if self.model.output_singletons and self.text.singletons == "drop":
            raise SettingError("output_singletons and singletons drop cannot be used together")


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
    target_min_count: f.Count = 1
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
            f.refuse(self, ["subwords"], "for words and characters")
        if len(subword_units) > 1:
            raise SettingError("both sides must have the same kind of subwords, bpe or unigram")


class Seq2SeqInputSettings(InputSettings):
    """Inputs of the encoder."""

    word_dim: f.OptionalDimension = 256
    """Size of the embeddings of source units; 0 for none."""
    lowercase: bool = False
    char_dim: f.OptionalDimension = 0
    """Size of the character embeddings of the CNN over the characters of a word; 0 for no character input."""


class Seq2SeqModelSettings(CellSettings):
    """Encoder, decoder and attention."""

    cell: CellName = "lstm"
    """Recurrent cell of encoder and decoder."""
    layers: f.NumLayers = 1
    """Number of recurrent layers of encoder and decoder."""
    directions: Literal[1, 2] = 2
    """1 for a forward encoder, 2 for a bidirectional one."""
    hidden: f.Size = 256
    """Hidden size of each layer; in the encoder, per direction."""
    attention: Literal["additive", "dot", "general", "concat", "none"] = "additive"
    """Attention: additive (Bahdanau et al. 2015); dot, general, concat (Luong et al. 2015). With none, the decoder gets
    one vector of the source."""
    context: Annotated[Literal["start", "every"], f.Only(attention="none")] = "start"
    """Attention none: use of the source vector. start: as the initial state of the decoder (Sutskever et al. 2014).
    every: also as an input of every step (Cho et al. 2014)."""
    input_feeding: Annotated[bool, f.Only(attention=ATTENTIONS)] = False
    """Input feeding: each step of the decoder also reads the attentional vector of the previous step (Luong et al.
    2015)."""
    target_dim: f.Dimension = 256
    """Size of the embeddings of target units."""
    tied: bool = False
    """Use the embeddings of target units as the weights of the output layer (Press & Wolf 2017)."""
    dropout: f.Rate = 0.3
    """Dropout on embeddings, between layers, and before the output."""
    label_smoothing: f.Rate = 0.0
    """Label smoothing: probability that is spread evenly over all units (Szegedy et al. 2016)."""
    sampling: f.Rate = 0.0
    """Scheduled sampling: fraction of target units that are replaced by the prediction of the decoder in training
    (Bengio et al. 2015)."""
    sampling_steps: Annotated[f.Count, f.Only(sampling=f.ENABLED)] = 10_000
    """Scheduled sampling: training steps over which that fraction rises linearly from 0."""


class Seq2SeqTrainSettings(TaskTrainSettings):
    """Training loop for text pairs."""

    batch: f.Size = 64
    """Largest number of pairs per batch; they have similar lengths."""
    clip_norm: f.Weight = 1.0


class SearchSettings(f.SettingsSection):
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


class Seq2SeqSettings(TaskSettings):
    """Train a sequence-to-sequence model: translation, summaries, corrections, sums, dates.

    For example:

        relmo train seq2seq train.en,train.de --valid val.en,val.de --preset multi30k --out models/en-de

        relmo train seq2seq pairs.tsv --source-unit char --target-unit char --metric exact --out models/mine

        relmo train seq2seq sums/train.tsv --valid sums/held-out.tsv --preset addition --out models/sums

        echo "A man sleeps." | relmo predict models/en-de --beams 5 --best 3
    """

    files = (
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
            f.refuse(self.search, ["coverage"], "with attention none")
            if elmo_at_output:
                raise SettingError("elmo at the output needs attention; with attention none use --elmo-at input")
        if self.model.attention == "dot" and elmo_at_output:
            raise SettingError("attention dot needs vectors of one size; with elmo at the output use general")

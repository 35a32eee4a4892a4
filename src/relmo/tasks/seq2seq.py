"""Sequence to sequence: a text is rewritten as another one, such as its translation.

translator = relmo.load("models/en-de")
translator.predict(["A man sleeps."])[0].text                                     # 'Ein Mann schläft.'
translator.predict(["A man sleeps."], beams=5, best=3)[0].candidates              # three of them, with their scores
translator.evaluate("val.en,val.de").values["bleu"]
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from relmo.errors import CorpusError, SettingError
from relmo.models.beam_search import Beam, BeamOptions, beam_search
from relmo.models.saved import CardText, SavedFolder
from relmo.networks.inputs import TaskNetwork, WordInputs
from relmo.networks.seq2seq import EncodedSource, Seq2SeqNetwork, TranslatingNetwork, TranslationBatch
from relmo.nn.cells import State
from relmo.settings.arguments import check_integer, check_sentences
from relmo.settings.seq2seq import SUBWORD_UNITS, SearchSettings, Seq2SeqSettings, Seq2SeqTextSettings, UnitName
from relmo.tasks.features import EncodedSentences, MessageCallback, Words
from relmo.tasks.results import attention_html, shorten
from relmo.tasks.task import Task, Workload
from relmo.tasks.text_scores import TextReport, check_metric, text_report
from relmo.text.corpus import Errors
from relmo.text.encode import TOKENIZERS
from relmo.text.readers.parallel import TextToText, read_parallel
from relmo.text.readers.tables import is_jsonl, is_table
from relmo.text.subwords import Pieces, Subwords, learn_subwords
from relmo.text.tokenize import join
from relmo.text.vocabulary import Vocabulary
from relmo.training.batch import move_to_device

LENGTH_FACTOR, LENGTH_MARGIN = 2, 50  # a target has at most LENGTH_FACTOR * source + LENGTH_MARGIN units
TARGETS, PIECES = "target-vocabulary", "pieces-vocabulary"


@dataclass(frozen=True)
class Candidate:
    """Text that the model would write.

    units       its words, characters or subwords, without the end
    log_prob    log p(text | source)
    score       ranking score: log_prob with the penalties for length and coverage
    attention   (T + 1, S): weight of each source unit when each unit and the end was written; None without attention,
                or if it was not requested
    ids         ids of its units as written, before unknown words are replaced
    ended       whether the end was written; otherwise the text was cut off at the limit
    """

    text: str
    units: list[str]
    log_prob: float
    score: float
    attention: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)
    ids: list[int] = dataclasses.field(default_factory=list, repr=False)
    ended: bool = True


@dataclass(frozen=True, repr=False)
class Rewritten:
    """Text that the model has written for a source: the best candidate's text, and all candidates, best first.

    source        units of the source
    source_text   text of the source
    """

    text: str
    source: list[str]
    candidates: list[Candidate]
    source_text: str = ""

    def as_text(self) -> str:
        """Return the text, or a line for each of several candidates with its score."""
        if len(self.candidates) < 2:
            return self.text
        return "\n".join(f"{candidate.score:.4f}\t{candidate.text}" for candidate in self.candidates)

    def to_dict(self) -> dict[str, Any]:
        """Return the source and its units, the text, and all candidates with their attention."""
        candidates = []
        for candidate in self.candidates:
            attention = candidate.attention
            record = {name: getattr(candidate, name) for name in ("text", "units", "log_prob", "score", "ended")}
            record["attention"] = None if attention is None else attention.astype(float).round(4).tolist()
            candidates.append(record)
        return {"source": self.source_text, "text": self.text, "source_units": self.source, "candidates": candidates}

    def __repr__(self) -> str:
        count = f", {len(self.candidates)} candidates" if len(self.candidates) > 1 else ""
        return f"Rewritten({shorten(self.source_text)!r} -> {shorten(self.text)!r}{count})"

    def _repr_html_(self) -> str:
        best = self.candidates[0]
        rows = "".join(f"<li>{escape(candidate.text)} ({candidate.score:.3f})</li>" for candidate in self.candidates)
        table = "" if best.attention is None else attention_html(self.source, best.units, best.attention)
        return f"<ol>{rows}</ol>{table}"


class EncodedPairs:
    """Pairs of texts as arrays: the sources, and in training the unit ids of the targets."""

    def __init__(self, sources: EncodedSentences, targets: list[np.ndarray] | None, end: int):
        self.sources, self.targets, self.end = sources, targets, end
        self.lengths, self.predictions = sources.lengths, 0
        if targets is not None:
            target_lengths = [len(target) + 1 for target in targets]
            self.lengths, self.predictions = np.maximum(sources.lengths, target_lengths), sum(target_lengths)

    def batch(self, indices: np.ndarray) -> TranslationBatch:
        """Return the batch of the pairs with these indices."""
        source = self.sources.batch(indices)
        if self.targets is None:
            return TranslationBatch(source)
        targets = [self.targets[i] for i in indices.tolist()]
        inputs = decoder_inputs(targets, self.end)
        lengths = np.array([len(target) + 1 for target in targets])
        positions = np.flatnonzero(np.arange(inputs.shape[1]) < lengths[:, None])
        outputs = np.concatenate([np.append(target, self.end) for target in targets])
        tensors = {"positions": torch.from_numpy(positions), "targets": torch.from_numpy(outputs)}
        return TranslationBatch(source, inputs, **tensors, predictions=len(outputs))


class Seq2Seq(Task[TextToText, Rewritten]):
    """Network that rewrites texts, with its vocabularies and settings.

    search      how texts are searched for: greedily during training, then as in the settings
    best        number of candidates of a prediction
    attend      whether predictions include the attention weights
    max_target  upper bound on the length of a prediction, in units; None for the bound of the search alone
    """

    kind = "seq2seq"
    settings: Seq2SeqSettings
    search: SearchSettings = SearchSettings()
    best: int = 1
    attend: bool = False
    max_target: int | None = None

    def __init__(self, settings: Seq2SeqSettings, *arguments: Any, **options: Any):
        super().__init__(settings, *arguments, **options)
        self.prediction_unit = {"word": "words", "char": "characters"}.get(settings.text.target_unit, "subwords")

    def predict(  # type: ignore[override]
        self, texts: Iterable[str | Words], *, best: int = 1, attention: bool = True, **search: Any
    ) -> list[Rewritten]:
        """Rewrite texts: strings, or lists of words. `search` are fields of `SearchSettings`, such as beams=5; others
        are as in the settings of the model."""
        model = self.with_search(best=best, attention=attention, **search)
        return super(Seq2Seq, model).predict(check_sentences(texts, "predict", "text"))

    def with_tokenizer(self, tokenizer: Literal["words", "whitespace"] | None) -> Self:
        """Return a copy that splits sources in another way; targets are joined as before."""
        if tokenizer is None:
            return self
        if self.settings.text.source_unit != "word":
            raise SettingError(f"tokenizer {tokenizer}: this model does not read words; omit the tokenizer")
        text = super().with_tokenizer(tokenizer).settings.text
        return self.copy(source_units=Units("word", text, None))

    def with_search(self, *, best: int = 1, attention: bool = True, **search: Any) -> Self:
        """Return a copy with other search settings."""
        unknown = set(search) - {field.name for field in dataclasses.fields(SearchSettings)}
        if unknown:
            raise SettingError(f"unknown search setting {min(unknown)}; use beams, length_penalty, coverage or limit")
        settings = dataclasses.replace(self.search, **search)
        settings.check()
        check_integer("best", best)
        if best > settings.beams:
            raise SettingError(f"best {best} is more than beams {settings.beams}; use at least as many beams")
        if settings.coverage and not self.has_attention:
            raise SettingError("coverage needs attention, which this model does not have")
        return self.copy(search=settings, best=best, attend=attention)

    def with_full_records(self) -> Self:
        return self.with_search(best=self.best, attention=True)

    def workload(self, example: TextToText) -> Workload:
        """Count the units of the source, and the decoder steps that the search may take."""
        length = len(self._split_source(example))
        return Workload(length, int(target_limits(torch.tensor([length]), self.search, self.max_target)[0]))

    @property
    def has_attention(self) -> bool:
        """Whether the decoder attends to the source."""
        return self.settings.model.attention != "none"

    @property
    def targets(self) -> Vocabulary:
        """Units that the model writes."""
        return self.vocabularies[TARGETS]

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> Self:
        model = super().restore(saved, device)
        if model.targets.symbols[:2] != list(Vocabulary.specials):
            raise saved.config_error(f"{TARGETS}.txt does not begin with {' and '.join(Vocabulary.specials)}")
        _ = model.source_units, model.target_units  # raises if the pieces are damaged
        return model.copy(search=model.settings.search)

    def card_text(self, name: str) -> CardText:
        model, text = self.settings.model, self.settings.text
        connection = f"{model.attention} attention" if self.has_attention else "one vector between them"
        facts = [
            f"- {model.layers} x {model.hidden} {model.cell}, {connection}",
            f"- source: {len(self.features.vocabulary):,} units ({text.source_unit})",
            f"- target: {len(self.targets):,} units ({text.target_unit})",
            f"- parameters: {self.parameter_count():,}",
        ]
        facts += [f"- {what}: {reference.source}" for what, reference in self.features.references.items()]
        return CardText("A sequence-to-sequence model, made with relmo.", facts, super().card_text(name).example)

    @classmethod
    def resolve_settings(cls, settings: Seq2SeqSettings) -> tuple[Seq2SeqSettings, Any]:
        check_metric(settings.text.metric)
        return settings, None

    @classmethod
    def read(cls, path: str | Path, text: Seq2SeqTextSettings, *, training: bool = False) -> list[TextToText]:
        """Read pairs of texts; in training, one pair for each of several targets."""
        pairs = read_parallel(path, columns=text.column, errors=text.errors)
        if not training:
            return list(pairs)
        return [TextToText(pair.source, [target]) for pair in pairs for target in pair.targets]

    @classmethod
    def prepare(
        cls, settings: Seq2SeqSettings, examples: Sequence[TextToText], device: torch.device, start: Any = None
    ) -> Self:
        """Create a model without a network: subwords, the units of both sides, and the features of the source's."""
        text = settings.text
        vocabularies: dict[str, Vocabulary] = {}
        if PIECES in cls.vocabulary_types(settings):
            texts = [example.source for example in examples] if text.source_unit in SUBWORD_UNITS else []
            texts += [example.targets[0] for example in examples] if text.target_unit in SUBWORD_UNITS else []
            kind = text.source_unit if text.source_unit in SUBWORD_UNITS else text.target_unit
            vocabularies[PIECES] = learn_subwords(texts, kind=kind, size=text.subwords)  # type: ignore[arg-type]
        pieces = vocabularies.get(PIECES)
        target = Units(text.target_unit, text, pieces)
        counts = Counter(unit for example in examples for unit in target.split(example.targets[0]))
        numbers = np.array(list(counts.values()), dtype=np.int64)
        vocabularies[TARGETS] = Vocabulary.from_counts(list(counts), numbers, min_count=text.target_min_count)
        source = Units(text.source_unit, text, pieces)
        features = cls.make_features(settings, (source.split(example.source) for example in examples), device, start)
        model = cls(settings, features, vocabularies, device, start)
        return model.copy(search=dataclasses.replace(settings.search, beams=1, length_penalty=0.0, coverage=0.0))

    @classmethod
    def vocabulary_types(cls, settings: Seq2SeqSettings) -> dict[str, type[Vocabulary]]:
        has_subwords = {settings.text.source_unit, settings.text.target_unit} & set(SUBWORD_UNITS)
        return {TARGETS: Vocabulary} | ({PIECES: Pieces} if has_subwords else {})

    @cached_property
    def source_units(self) -> "Units":
        """Units of sources."""
        return Units(self.settings.text.source_unit, self.settings.text, self.vocabularies.get(PIECES))

    @cached_property
    def target_units(self) -> "Units":
        """Units of targets."""
        return Units(self.settings.text.target_unit, self.settings.text, self.vocabularies.get(PIECES))

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        body = Seq2SeqNetwork(
            self.settings.model, input_size=inputs.size, vocab_size=len(self.targets), elmo_size=inputs.elmo_size
        )
        return TranslatingNetwork(inputs, body)

    def encode(
        self, examples: Sequence[TextToText], *, answers: bool = False, on_message: MessageCallback = lambda _: None
    ) -> EncodedPairs:
        """Encode pairs as arrays; with `answers`, pairs that are too long are left out."""
        sources = [self._split_source(example) for example in examples]
        if not answers:
            return EncodedPairs(self.features.encode(sources, on_message), None, self.targets.end)
        targets, max_length = [self._target_ids(example.targets[0]) for example in examples], self.settings.text.longest
        if max_length is not None:
            pairs = zip(sources, targets, strict=True)
            short = [(s, t) for s, t in pairs if max(len(s), len(t)) <= max_length]
            if num_long := len(sources) - len(short):
                on_message(f"{num_long:,} of {len(sources):,} pairs have over {max_length} units and are left out")
            if not short:
                raise CorpusError(f"all training pairs are longer than {max_length} units; use a larger --longest")
            sources, targets = [source for source, _ in short], [target for _, target in short]
        return EncodedPairs(self.features.encode(sources, on_message), targets, self.targets.end)

    def _split_source(self, example: TextToText) -> list[str]:
        return self.source_units.split(example.source, tokenized=example.tokenized)

    def _target_ids(self, text: str) -> np.ndarray:
        ids = self.targets.ids(self.target_units.split(text))
        # a word that looks like the end of a text is an unknown one
        return np.where(ids == self.targets.end, self.targets.unknown, ids)

    def decode(self, output: EncodedSource, examples: Sequence[TextToText]) -> list[Rewritten]:
        """Search the candidates for a batch of sources; an empty source gives the empty text."""
        text, unknown = self.settings.text, self.targets.unknown
        # unknown words are written only to be replaced by the source word with the most attention
        are_words = text.source_unit == text.target_unit == "word"
        replaces_unknown = self.has_attention and self.search.replace_unknown and are_words
        beams = search_targets(
            self.network.body,  # type: ignore[arg-type]
            output,
            self.search,
            target_limits(output.mask.sum(dim=1), self.search, self.max_target),
            end=self.targets.end,
            banned=[] if replaces_unknown else [unknown],
        )
        for i, has_units in enumerate(output.mask.any(dim=1).tolist()):
            best = beams[i][: self.best] or [Beam([], 0.0, ended=False)]
            beams[i] = best if has_units else [Beam([], 0.0, ended=True)]
        weights: list[list[np.ndarray | None]] = [[None] * len(row) for row in beams]
        if self.has_attention and (self.attend or any(unknown in beam.ids for row in beams for beam in row)):
            weights = attention_weights(self.network.body, output, beams, self.targets.end)  # type: ignore[arg-type]
        predictions = []
        for example, row, row_weights in zip(examples, beams, weights, strict=True):
            source, candidates = self._split_source(example), []
            for beam, padded_attention in zip(row, row_weights, strict=True):
                units = [self.targets.symbols[i] for i in beam.ids]
                attention = None if padded_attention is None else padded_attention[:, : len(source)]
                if replaces_unknown and attention is not None and source:
                    best_positions = attention.argmax(axis=1).tolist()
                    for i, (unit_id, position) in enumerate(zip(beam.ids, best_positions, strict=False)):
                        units[i] = source[position] if unit_id == unknown else units[i]
                target = self.target_units.join(units)
                attention = attention if self.attend else None
                candidates.append(Candidate(target, units, beam.log_prob, beam.score, attention, beam.ids, beam.ended))
            predictions.append(Rewritten(candidates[0].text, source, candidates, example.source))
        return predictions

    def score(self, examples: Sequence[TextToText], predictions: Sequence[Rewritten]) -> TextReport:
        """Compute BLEU, chrF, ROUGE and exact match, in total and by source length."""
        return text_report(
            [prediction.text for prediction in predictions],
            [example.targets for example in examples],
            [len(prediction.source) for prediction in predictions],
            metric=self.settings.text.metric,
        )

    def make_example(self, inputs: str | Words, *, tokenized: bool = False) -> TextToText:
        if isinstance(inputs, str):
            return TextToText(inputs, [], tokenized)
        return TextToText(" ".join(self.split(inputs)), [], tokenized=True)

    def read_file(self, path: str, *, errors: Errors) -> list[TextToText] | None:
        """Read the sources of a table or of JSON lines, laid out as in training; None for other files."""
        if not (is_table(path) or is_jsonl(path)):
            return None
        pairs = read_parallel(path, columns=self.settings.text.column, errors=errors)
        return [self.make_example(pair.source) for pair in pairs]


class Units:
    """Conversion of the texts of one side to units and back."""

    def __init__(self, unit: UnitName, text: Seq2SeqTextSettings, pieces: Vocabulary | None):
        self.unit, self.tokenizer = unit, text.tokenizer
        self.subwords = Subwords(pieces, unit) if unit in SUBWORD_UNITS and isinstance(pieces, Pieces) else None  # type: ignore[arg-type]

    def split(self, text: str, *, tokenized: bool = False) -> list[str]:
        """Split a text into units; tokenized text at whitespace."""
        if self.subwords is not None:
            return self.subwords.split(text)
        if self.unit == "char":
            return list(text)
        return text.split() if tokenized else TOKENIZERS[self.tokenizer](text)

    def join(self, units: Sequence[str]) -> str:
        """Join units to a text."""
        if self.subwords is not None:
            return self.subwords.join(units)
        if self.unit == "char":
            return "".join(units)
        return join(units) if self.tokenizer == "words" else " ".join(units)


class OpenSources:
    """Sources whose targets are being searched, with the callbacks of a beam search."""

    def __init__(self, network: Seq2SeqNetwork, source: EncodedSource, coverage: float = 0.0):
        self.network, self.source, self.beta = network, source, coverage

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance each row by one unit."""
        return self.network.step(ids, state, self.source)

    def narrow(self, indices: Tensor) -> None:
        """Keep only the sources with these indices."""
        self.source = self.source.select(indices)

    def coverage(self, state: State) -> Tensor:
        """Return beta * sum_j log(min(1, sum_t a_tj)) of each row."""
        mask = self.source.mask.repeat_interleave(len(state[-1]) // len(self.source.mask), dim=0)
        covered = state[-1].clamp(min=1e-6, max=1.0).log()
        return self.beta * covered.masked_fill(~mask, 0.0).sum(dim=1)


def target_limits(lengths: Tensor, settings: SearchSettings, max_target: int | None = None) -> Tensor:
    """Return the maximum target length (B,) for sources of these lengths (B,)."""
    limits = torch.full_like(lengths, settings.limit) if settings.limit else LENGTH_FACTOR * lengths + LENGTH_MARGIN
    return limits if max_target is None else limits.clamp(max=max_target)


@torch.no_grad()
def search_targets(
    network: Seq2SeqNetwork,
    source: EncodedSource,
    settings: SearchSettings,
    limits: Tensor,
    *,
    end: int,
    banned: Sequence[int] = (),
) -> list[list[Beam]]:
    """Return the best targets of B encoded sources, best first. `limits` (B,) bounds their lengths."""
    sources = OpenSources(network, source, settings.coverage)
    return beam_search(
        sources.step,
        *sources.step(torch.full_like(limits, end), network.initial_state(source)),
        BeamOptions(settings.beams, end, banned, alpha=settings.length_penalty),
        limits=limits,
        bonus=sources.coverage if settings.coverage else None,
        narrow=sources.narrow,
    )


@torch.no_grad()
def attention_weights(
    network: Seq2SeqNetwork, source: EncodedSource, beams: list[list[Beam]], end: int
) -> list[list[np.ndarray | None]]:
    """Return the attention weights (T + 1, S) of each text of each source, by decoding it again."""
    rows = torch.tensor([i for i, row in enumerate(beams) for _ in row], device=source.mask.device)
    inputs = decoder_inputs([beam.ids for row in beams for beam in row], end).to(rows.device)
    weights = iter(network.decode(source.select(rows), inputs).weights.float().cpu().numpy())
    return [[next(weights)[: len(beam.ids) + 1] for beam in row] for row in beams]


def decoder_inputs(texts: Sequence[Sequence[int] | np.ndarray], end: int) -> Tensor:
    """Return the input of the decoder for texts of these ids, padded with the end; (N, T + 1)."""
    inputs = torch.full((len(texts), max(map(len, texts)) + 1), end)
    for row, ids in zip(inputs, texts, strict=True):
        row[1 : len(ids) + 1] = torch.as_tensor(ids, dtype=torch.int64)
    return inputs


class DecoderSteps(NamedTuple):
    """Decoder steps of one text: a row for each unit and the end.

    log_probs   (T + 1, V): log p(unit | source, previous units), including units that a search bans
    attention   (T + 1, S): weight of each source unit; None without attention
    """

    log_probs: np.ndarray
    attention: np.ndarray | None


@torch.no_grad()
def decoder_steps(model: Seq2Seq, source: TextToText, texts: Sequence[Sequence[int]]) -> Iterator[DecoderSteps]:
    """Yield the steps by which the model would write each of these texts, given as ids, for one source.

    All texts are decoded together; distributions are computed one text at a time, since they are large.
    """
    body = model.network.body
    batch = model.encode([source]).batch(np.zeros(1, dtype=np.int64))
    encoded = model.network(move_to_device(batch, model.device))
    rows = torch.zeros(len(texts), dtype=torch.int64, device=model.device)
    decoded = body.decode(encoded.select(rows), decoder_inputs(texts, model.targets.end).to(model.device))  # type: ignore[operator]
    for ids, readout, weights in zip(texts, *decoded, strict=True):
        steps = len(ids) + 1
        log_probs = body.output.log_probs(readout[:steps]).float().cpu().numpy()  # type: ignore[operator, union-attr]
        attention = weights[:steps].float().cpu().numpy() if model.has_attention else None
        yield DecoderSteps(log_probs, attention)

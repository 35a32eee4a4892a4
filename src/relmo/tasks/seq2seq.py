"""Sequence to sequence: a text is rewritten as another one, such as its translation."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from relmo.errors import CorpusError, SettingError
from relmo.models.generate import Beam, BeamOptions, beam_search
from relmo.models.saved import SavedFolder
from relmo.networks.inputs import TaskBatch
from relmo.networks.seq2seq import EncodedSource, Seq2SeqNetwork, TargetUnits
from relmo.nn.recurrence import State
from relmo.settings.fields import check_integer, check_sentences
from relmo.settings.tasks import SUBWORD_UNITS, SearchSettings, Seq2SeqSettings, Seq2SeqTextSettings, UnitName
from relmo.tasks.features import MessageCallback, Words
from relmo.tasks.results import END, Prediction, shorten
from relmo.tasks.scores import TextReport, check_metric, text_report
from relmo.tasks.task import EncodedExamples, Task, Workload
from relmo.text.corpus import Errors
from relmo.text.encode import TOKENIZERS
from relmo.text.readers.parallel import TextToText, read_parallel
from relmo.text.readers.tables import is_jsonl, is_table
from relmo.text.tokenize import join
from relmo.text.vocabulary import Pieces, Subwords, Vocabulary, learn_subwords
from relmo.training.batch import move_to_device

LENGTH_FACTOR, LENGTH_MARGIN = 2, 50  # a target has at most LENGTH_FACTOR * source + LENGTH_MARGIN units
TARGETS, PIECES = "target-vocabulary", "pieces-vocabulary"


@dataclass(frozen=True)
class Candidate:
    """Text that the model would write."""

    text: str
    units: list[str]  # its words, characters or subwords, without the end
    log_prob: float  # log p(text | source)
    score: float  # ranking score: log_prob with the penalties for length and coverage
    # (T + 1, S): weight of each source unit when each unit and the end was written; None if it was not requested
    attention: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)
    ids: list[int] = dataclasses.field(default_factory=list, repr=False)  # before unknown words are replaced
    ended: bool = True  # whether the end was written; otherwise the text was cut off at the limit


@dataclass(frozen=True, repr=False)
class Rewritten(Prediction):
    """Text that the model has written for a source: the best candidate's text, and all candidates, best first."""

    text: str
    source: list[str]  # units of the source
    candidates: list[Candidate]
    source_text: str = ""  # text of the source

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
        if best.attention is None:
            return f"<ol>{rows}</ol>"
        lines = ["".join(f"<th>{escape(unit)}</th>" for unit in ["", *self.source])]
        for unit, row in zip([*best.units, END], best.attention.tolist(), strict=True):  # darker cells: more weight
            cells = (f"<td title='{w:.3f}' style='background:rgba(31,119,180,{w:.2f})'></td>" for w in row)
            lines.append(f"<th style='text-align:right'>{escape(unit)}</th>{''.join(cells)}")
        return f"<ol>{rows}</ol><table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


class Seq2Seq(Task[TextToText, Rewritten]):
    """Network that rewrites texts, with its vocabularies and settings."""

    kind = "seq2seq"
    settings: Seq2SeqSettings
    best: int = 1  # number of candidates of a prediction
    attend: bool = False  # whether predictions include the attention weights
    max_target: int | None = None  # upper bound on the length of a prediction; None for that of the search

    def __init__(self, settings: Seq2SeqSettings, *more: Any, **options: Any):
        super().__init__(settings, *more, **options)
        text, pieces = settings.text, self.vocabularies.get(PIECES)
        # greedy during training, then as in the settings
        self.search = dataclasses.replace(settings.search, beams=1, length_penalty=0.0, coverage=0.0)
        self.prediction_unit = {"word": "words", "char": "characters"}.get(text.target_unit, "subwords")
        self.targets = self.vocabularies[TARGETS]
        self.source_units = Units(text.source_unit, text, pieces)
        self.target_units = Units(text.target_unit, text, pieces)
        self.has_attention = settings.model.attention != "none"

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
        length = len(self.texts(example)[0])
        return Workload(length, int(target_limits(torch.tensor([length]), self.search, self.max_target)[0]))

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> Self:
        model = super().restore(saved, device)
        if model.targets.symbols[:2] != list(Vocabulary.specials):
            raise saved.config_error(f"{TARGETS}.txt does not begin with {' and '.join(Vocabulary.specials)}")
        return model.copy(search=model.settings.search)

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

    def texts(self, example: TextToText) -> tuple[list[str]]:
        return (self.source_units.split(example.source, tokenized=example.tokenized),)

    @classmethod
    def make_vocabularies(cls, settings: Seq2SeqSettings, examples: Sequence[TextToText]) -> dict[str, Vocabulary]:
        """Learn subwords, if a side is in them, and count the units of the targets."""
        text = settings.text
        vocabularies: dict[str, Vocabulary] = {}
        if PIECES in cls.vocabulary_types(settings):
            texts = [example.source for example in examples] if text.source_unit in SUBWORD_UNITS else []
            texts += [example.targets[0] for example in examples] if text.target_unit in SUBWORD_UNITS else []
            kind = text.source_unit if text.source_unit in SUBWORD_UNITS else text.target_unit
            vocabularies[PIECES] = learn_subwords(texts, kind=kind, size=text.subwords)  # type: ignore[arg-type]
        target = Units(text.target_unit, text, vocabularies.get(PIECES))
        counts = Counter(unit for example in examples for unit in target.split(example.targets[0]))
        numbers = np.array(list(counts.values()), dtype=np.int64)
        vocabularies[TARGETS] = Vocabulary.from_counts(list(counts), numbers, min_count=text.target_min_count)
        return vocabularies

    @classmethod
    def vocabulary_types(cls, settings: Seq2SeqSettings) -> dict[str, type[Vocabulary]]:
        has_subwords = {settings.text.source_unit, settings.text.target_unit} & set(SUBWORD_UNITS)
        return {TARGETS: Vocabulary} | ({PIECES: Pieces} if has_subwords else {})

    def make_body(self, **sizes: int) -> nn.Module:
        return Seq2SeqNetwork(self.settings.model, vocab_size=len(self.targets), **sizes)

    def encode(
        self, examples: Sequence[TextToText], *, answers: bool = False, on_message: MessageCallback = lambda _: None
    ) -> EncodedExamples:
        """Encode pairs as arrays; with `answers`, pairs that are too long are left out."""
        if not answers:
            return super().encode(examples, on_message=on_message)
        sources = [self.texts(example)[0] for example in examples]
        end, max_length = self.targets.end, self.settings.text.longest
        all_ids = (self.targets.ids(self.target_units.split(example.targets[0])) for example in examples)
        # a word that looks like the end of a text is an unknown one
        targets = [np.where(ids == end, self.targets.unknown, ids) for ids in all_ids]
        if max_length is not None:
            pairs = zip(sources, targets, strict=True)
            short = [(s, t) for s, t in pairs if max(len(s), len(t)) <= max_length]
            if num_long := len(sources) - len(short):
                on_message(f"{num_long:,} of {len(sources):,} pairs have over {max_length} units and are left out")
            if not short:
                raise CorpusError(f"all training pairs are longer than {max_length} units; use a larger --longest")
            sources, targets = [source for source, _ in short], [target for _, target in short]
        encoded = self.features.encode(sources, on_message)
        target_lengths = np.array([len(target) + 1 for target in targets])

        def make_batch(indices: np.ndarray) -> TaskBatch:
            batch_targets = [targets[i] for i in indices.tolist()]
            inputs = decoder_inputs(batch_targets, end)
            positions = np.flatnonzero(np.arange(inputs.shape[1]) < target_lengths[indices, None])
            units = np.concatenate([np.append(target, end) for target in batch_targets])
            target_units = TargetUnits(inputs, torch.from_numpy(positions), torch.from_numpy(units))
            return TaskBatch([encoded.batch(indices)], target_units, len(units))

        return EncodedExamples(np.maximum(encoded.lengths, target_lengths), int(target_lengths.sum()), make_batch)

    def decode(self, output: EncodedSource, examples: Sequence[TextToText]) -> list[Rewritten]:
        """Search the candidates for a batch of sources; an empty source gives the empty text."""
        text, unknown = self.settings.text, self.targets.unknown
        # unknown words are written only to be replaced by the source word with the most attention
        are_words = text.source_unit == text.target_unit == "word"
        replaces_unknown = self.has_attention and self.search.replace_unknown and are_words
        beams = search_targets(
            self.network.body,
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
            # (T + 1, S) of each text of each source, by decoding it again
            rows = torch.tensor([i for i, row in enumerate(beams) for _ in row], device=output.mask.device)
            inputs = decoder_inputs([beam.ids for row in beams for beam in row], self.targets.end).to(rows.device)
            decoded = iter(self.network.body.decode(output.select(rows), inputs).weights.float().cpu().numpy())
            weights = [[next(decoded)[: len(beam.ids) + 1] for beam in row] for row in beams]
        predictions = []
        for example, row, row_weights in zip(examples, beams, weights, strict=True):
            (source,), candidates = self.texts(example), []
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

    def step(ids: Tensor, state: State) -> tuple[Tensor, State]:
        return network.step(ids, state, source)

    def narrow(indices: Tensor) -> None:
        nonlocal source
        source = source.select(indices)

    def score_coverage(state: State) -> Tensor:
        """Return beta * sum_j log(min(1, sum_t a_tj)) of each row."""
        mask = source.mask.repeat_interleave(len(state[-1]) // len(source.mask), dim=0)
        covered = state[-1].clamp(min=1e-6, max=1.0).log()
        return settings.coverage * covered.masked_fill(~mask, 0.0).sum(dim=1)

    return beam_search(
        step,
        *step(torch.full_like(limits, end), network.initial_state(source)),
        BeamOptions(settings.beams, end, banned, alpha=settings.length_penalty),
        limits=limits,
        bonus=score_coverage if settings.coverage else None,
        narrow=narrow,
    )


def decoder_inputs(texts: Sequence[Sequence[int] | np.ndarray], end: int) -> Tensor:
    """Return the input of the decoder for texts of these ids, padded with the end; (N, T + 1)."""
    inputs = torch.full((len(texts), max(map(len, texts)) + 1), end)
    for row, ids in zip(inputs, texts, strict=True):
        row[1 : len(ids) + 1] = torch.as_tensor(ids, dtype=torch.int64)
    return inputs


class DecoderSteps(NamedTuple):
    """Decoder steps of one text: a row for each unit and the end."""

    log_probs: np.ndarray  # (T + 1, V): log p(unit | source, previous units), including units that a search bans
    attention: np.ndarray | None  # (T + 1, S): weight of each source unit; None without attention


@torch.no_grad()
def decoder_steps(model: Seq2Seq, source: TextToText, texts: Sequence[Sequence[int]]) -> Iterator[DecoderSteps]:
    """Yield the steps by which the model would write each of these texts, given as ids, for one source."""
    body = model.network.body
    batch = model.encode([source]).batch(np.zeros(1, dtype=np.int64))
    encoded = model.network(move_to_device(batch, model.device))
    rows = torch.zeros(len(texts), dtype=torch.int64, device=model.device)
    decoded = body.decode(encoded.select(rows), decoder_inputs(texts, model.targets.end).to(model.device))
    for ids, readout, weights in zip(texts, *decoded, strict=True):  # one at a time: distributions are large
        steps = len(ids) + 1
        log_probs = body.output.log_probs(readout[:steps]).float().cpu().numpy()
        attention = weights[:steps].float().cpu().numpy() if model.has_attention else None
        yield DecoderSteps(log_probs, attention)

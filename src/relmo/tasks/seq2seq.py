"""Sequence to sequence as a user has it: a text in, another text out, with what was attended to.

translator = relmo.load("models/en-de")
translator.predict(["A man sleeps."])[0].text                                     # 'Ein Mann schläft.'
translator.predict(["A man sleeps."], beams=5, best=3)[0].candidates              # three of them, with their scores
translator.evaluate("val.en,val.de").values["bleu"]
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from relmo.errors import CorpusError, SettingError
from relmo.models.beam_search import Beam, BeamOptions, beam_search
from relmo.models.saved import About, SavedFolder
from relmo.networks.inputs import TaskNetwork, WordInputs
from relmo.networks.seq2seq import EncodedSource, Seq2SeqNetwork, TranslatingNetwork, TranslationBatch
from relmo.nn.cells import State
from relmo.settings.arguments import check_sentences, check_whole
from relmo.settings.seq2seq import (
    OF_SUBWORDS,
    SearchSettings,
    Seq2SeqSettings,
    Seq2SeqTextSettings,
    UnitName,
    check_search,
)
from relmo.tasks.attention_map import attention_html
from relmo.tasks.features import EncodedSentences, Say, Words
from relmo.tasks.results import shortened
from relmo.tasks.task import Task, Workload
from relmo.tasks.text_scores import TextReport, check_metric, text_report
from relmo.text.corpus import Errors
from relmo.text.encode import TOKENIZERS
from relmo.text.readers.parallel import TextToText, read_parallel
from relmo.text.readers.tables import is_jsonl, is_table
from relmo.text.subwords import Pieces, Subwords, learn_subwords
from relmo.text.tokenize import join
from relmo.text.vocabulary import Vocabulary

MORE, TIMES = 50, 2  # a target has at most so many times the units of its source, and so many more
TARGETS, PIECES = "target-vocabulary", "pieces-vocabulary"


@dataclass(frozen=True)
class Candidate:
    """A text that the model would write.

    units       its words, characters or subwords, the end left out
    log_prob    log p(text | source)
    score       what candidates are ranked by: that, with the penalties for length and coverage
    attention   the weight of each unit of the source (columns) when each of `units`, and at last the end, was written
                (rows); None where the network has no attention, or it was not asked for
    ids         the numbers of its units, as they were written: none is replaced
    ended       whether the end was written; a text that reaches the limit is cut off
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
    """A text and what the model makes of it: the best candidate's text, and all candidates, best first.

    source   the units that were read
    given    the text that they are from
    """

    text: str
    source: list[str]
    candidates: list[Candidate]
    given: str = ""

    def as_text(self) -> str:
        """The text; of several candidates each with its score before it, a line each."""
        if len(self.candidates) < 2:
            return self.text
        return "\n".join(f"{each.score:.4f}\t{each.text}" for each in self.candidates)

    def to_dict(self) -> dict[str, Any]:
        """The source and its units, the text, and all candidates with their attention."""
        candidates = [
            {
                "text": each.text,
                "units": each.units,
                "log_prob": each.log_prob,
                "score": each.score,
                "ended": each.ended,
                "attention": None if each.attention is None else each.attention.astype(float).round(4).tolist(),
            }
            for each in self.candidates
        ]
        return {"source": self.given, "text": self.text, "source_units": self.source, "candidates": candidates}

    def __repr__(self) -> str:
        """What became of what."""
        more = f", {len(self.candidates)} candidates" if len(self.candidates) > 1 else ""
        return f"Rewritten({shortened(self.given)!r} -> {shortened(self.text)!r}{more})"

    def _repr_html_(self) -> str:
        """For a notebook: the candidates, and what the best one attended to."""
        best = self.candidates[0]
        rows = "".join(f"<li>{escape(each.text)} ({each.score:.3f})</li>" for each in self.candidates)
        picture = "" if best.attention is None else attention_html(self.source, best.units, best.attention)
        return f"<ol>{rows}</ol>{picture}"


class EncodedPairs:
    """Pairs of texts as numbers: sources as every task has them, and in training the units of the targets."""

    def __init__(self, sources: EncodedSentences, targets: list[np.ndarray] | None, end: int):
        self.sources, self.targets, self.end = sources, targets, end

    @property
    def lengths(self) -> np.ndarray:
        """The longer of a source and its target."""
        if self.targets is None:
            return self.sources.lengths
        return np.maximum(self.sources.lengths, [len(target) + 1 for target in self.targets])

    @property
    def predictions(self) -> int:
        """Each unit of the targets, and their ends."""
        return sum(len(target) + 1 for target in self.targets or ())

    def batch(self, which: np.ndarray) -> TranslationBatch:
        """The pairs of these numbers."""
        source = self.sources.batch(which)
        if self.targets is None:
            return TranslationBatch(source)
        targets = [self.targets[i] for i in which.tolist()]
        inputs = np.full((len(targets), max(map(len, targets)) + 1), self.end, dtype=np.int64)
        inside = np.zeros(inputs.shape, dtype=bool)
        for row, known, target in zip(inputs, inside, targets, strict=True):
            row[1 : len(target) + 1] = target
            known[: len(target) + 1] = True
        following = np.concatenate([np.append(target, self.end) for target in targets])
        places = np.flatnonzero(inside)
        arrays = {"inputs": inputs, "places": places, "targets": following}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return TranslationBatch(source, **tensors, predictions=len(following))


class Seq2Seq(Task[TextToText, Rewritten]):
    """A network that turns one text into another, with its vocabularies and settings.

    search      how it looks for a text: greedily while it trains, and then as its settings say
    best        how many candidates a prediction has
    attend      whether predictions have the attention weights
    max_target  upper bound on the length of a prediction, in units; None for the bound of the search alone
    """

    kind = "seq2seq"
    settings: Seq2SeqSettings
    search: SearchSettings = SearchSettings()
    best: int = 1
    attend: bool = False
    max_target: int | None = None

    def predict(  # type: ignore[override]
        self, texts: Iterable[str | Words], *, best: int = 1, attention: bool = True, **search: Any
    ) -> list[Rewritten]:
        """What becomes of each text: strings, or lists of words. `search` is what `SearchSettings` has, such as
        beams=5; what is left out is as the model's settings have it."""
        model = self.searching(best=best, attention=attention, **search)
        return list(model.answer(map(model.ask, check_sentences(texts, "predict", "text"))))

    def splitting(self, tokenizer: Literal["words", "whitespace"] | None) -> Self:
        """The same model, which splits sources in another way; what it writes is put together as before."""
        if tokenizer is None:
            return self
        if self.settings.text.source_unit != "word":
            raise SettingError(f"tokenizer {tokenizer}: this model does not read words; leave the tokenizer out")
        text = super().splitting(tokenizer).settings.text
        return self.copy(source_units=Units("word", text, None))

    def searching(self, *, best: int = 1, attention: bool = True, **search: Any) -> Self:
        """The same model, looking for texts in another way."""
        unknown = set(search) - {field.name for field in dataclasses.fields(SearchSettings)}
        if unknown:
            raise SettingError(f"a search has no {min(unknown)}; it has beams, length_penalty, coverage, limit")
        chosen = dataclasses.replace(self.search, **search)
        check_search(chosen)
        check_whole("best", best)
        if best > chosen.beams:
            raise SettingError(f"best {best} is more than beams {chosen.beams}; ask for as many beams")
        if chosen.coverage and not self.has_attention:
            raise SettingError("coverage goes with attention, which this model does not have")
        return self.copy(search=chosen, best=best, attend=attention)

    def with_full_records(self) -> Self:
        return self.searching(best=self.best, attention=True)

    def workload(self, example: TextToText) -> Workload:
        """Count the units of the source, and the decoder steps that the search may take."""
        length = len(self._source(example))
        return Workload(length, int(target_limits(torch.tensor([length]), self.search, self.max_target)[0]))

    @property
    def counted(self) -> str:
        """The units of the targets."""
        return {"word": "words", "char": "characters"}.get(self.settings.text.target_unit, "subwords")

    @property
    def has_attention(self) -> bool:
        """Whether the decoder looks at the source."""
        return self.settings.model.attention != "none"

    @property
    def targets(self) -> Vocabulary:
        """The units that it writes."""
        return self.vocabularies[TARGETS]

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> Self:
        model = super().restore(saved, device)
        if model.targets.symbols[:2] != list(Vocabulary.specials):
            raise saved.damaged(f"{TARGETS}.txt does not begin with {' and '.join(Vocabulary.specials)}")
        _ = model.source_units, model.target_units  # pieces that are none are an error now
        return model.copy(search=model.settings.search)

    def about(self, name: str) -> About:
        model = self.settings.model
        between = f"{model.attention} attention" if self.has_attention else "one vector between them"
        facts = [
            f"- {model.layers} x {model.hidden} {model.cell}, {between}",
            f"- source: {len(self.features.vocabulary):,} units ({self.settings.text.source_unit})",
            f"- target: {len(self.targets):,} units ({self.settings.text.target_unit})",
            f"- parameters: {self.parameter_count():,}",
        ]
        facts += [f"- {what}: {reference.source}" for what, reference in self.features.references.items()]
        return About("A sequence-to-sequence model, made with relmo.", facts, super().about(name).example)

    @classmethod
    def complete(cls, settings: Seq2SeqSettings) -> tuple[Seq2SeqSettings, Any]:
        """As they are; what computes the score must be installed."""
        check_metric(settings.text.metric)
        return settings, None

    @classmethod
    def read(cls, path: str | Path, text: Seq2SeqTextSettings, *, training: bool = False) -> list[TextToText]:
        """Pairs of texts; in training, a pair for each of several targets."""
        pairs = read_parallel(path, columns=text.column, errors=text.errors)
        if not training:
            return list(pairs)
        return [TextToText(pair.source, [target]) for pair in pairs for target in pair.targets]

    @classmethod
    def prepare(
        cls, settings: Seq2SeqSettings, examples: Sequence[TextToText], device: torch.device, start: Any = None
    ) -> Self:
        """A new model: subwords, units of both sides, and what is known of the source's."""
        text = settings.text
        vocabularies: dict[str, Vocabulary] = {}
        if PIECES in cls.vocabulary_types(settings):
            vocabularies[PIECES] = _learn_pieces(text, examples)
        pieces = vocabularies.get(PIECES)
        target = Units(text.target_unit, text, pieces)
        counts = Counter(unit for example in examples for unit in target.split(example.targets[0]))
        numbers = np.array(list(counts.values()), dtype=np.int64)
        vocabularies[TARGETS] = Vocabulary.from_counts(list(counts), numbers, min_count=text.target_min_count)
        source = Units(text.source_unit, text, pieces)
        features = cls.make_features(settings, (source.split(example.source) for example in examples), device, start)
        made = cls(settings, features, vocabularies, device, start)
        return made.copy(search=dataclasses.replace(settings.search, beams=1, length_penalty=0.0, coverage=0.0))

    @classmethod
    def vocabulary_types(cls, settings: Seq2SeqSettings) -> dict[str, type[Vocabulary]]:
        """The units that it writes, and subwords where there are such."""
        subwords = {settings.text.source_unit, settings.text.target_unit} & set(OF_SUBWORDS)
        return {TARGETS: Vocabulary} | ({PIECES: Pieces} if subwords else {})

    @cached_property
    def source_units(self) -> "Units":
        """How sources are cut into units."""
        return Units(self.settings.text.source_unit, self.settings.text, self.vocabularies.get(PIECES))

    @cached_property
    def target_units(self) -> "Units":
        """How targets are cut into units, and put together."""
        return Units(self.settings.text.target_unit, self.settings.text, self.vocabularies.get(PIECES))

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        model = self.settings.model
        body = Seq2SeqNetwork(
            input_size=inputs.size,
            units=len(self.targets),
            again_size=inputs.again_size,
            hidden=model.hidden,
            cell=model.cell,
            layers=model.layers,
            bidirectional=model.directions == 2,
            attention=model.attention,
            every=model.context == "every",
            feeding=model.input_feeding,
            unit_size=model.target_dim,
            tied=model.tied,
            dropout=model.dropout,
            label_smoothing=model.label_smoothing,
            sampling=model.sampling,
            ramp=model.sampling_steps,
        )
        return TranslatingNetwork(inputs, body)

    def encode(
        self, examples: Sequence[TextToText], *, answers: bool = False, say: Say = lambda _: None
    ) -> EncodedPairs:
        """Pairs as numbers; those to learn from that are too long are left out."""
        sources = [self._source(example) for example in examples]
        if not answers:
            return EncodedPairs(self.features.encode(sources, say), None, self.targets.end)
        targets = [self._target_ids(example.targets[0]) for example in examples]
        longest = self.settings.text.longest
        if longest is not None:
            short = [max(len(s), len(t)) <= longest for s, t in zip(sources, targets, strict=True)]
            sources, targets = ([x for x, kept in zip(side, short, strict=True) if kept] for side in (sources, targets))  # type: ignore[assignment]
            if len(sources) < len(short):
                say(f"{len(short) - len(sources):,} of {len(short):,} pairs have over {longest} units and are left out")
            if not sources:
                raise CorpusError(f"all training pairs are longer than {longest} units; give a larger --longest")
        return EncodedPairs(self.features.encode(sources, say), targets, self.targets.end)

    def _source(self, example: TextToText) -> list[str]:
        return self.source_units.split(example.source, tokenized=example.tokenized)

    def _target_ids(self, text: str) -> np.ndarray:
        """Ids of a target's units; a word that looks like the end of a text is an unknown one."""
        ids = self.targets.ids(self.target_units.split(text))
        return np.where(ids == self.targets.end, self.targets.unknown, ids)

    def decode(self, output: EncodedSource, examples: Sequence[TextToText]) -> list[Rewritten]:
        """The candidates for a batch of sources; of a source that has no unit, the empty text."""
        banned = [] if self._replaces else [self.targets.unknown]
        limits = target_limits(output.mask.sum(dim=1), self.search, self.max_target)
        found = search(self.network.body, output, self.search, limits, end=self.targets.end, banned=banned)  # type: ignore[arg-type]
        found = [beams[: self.best] or [Beam([], 0.0, ended=False)] for beams in found]
        read = output.mask.any(dim=1).tolist()
        found = [beams if some else [Beam([], 0.0, ended=True)] for beams, some in zip(found, read, strict=True)]
        weights = self._attention(output, found)
        return [self._rewritten(*each) for each in zip(examples, found, weights, strict=True)]

    @property
    def _replaces(self) -> bool:
        """Whether unknown words are written, to be replaced by words of the source."""
        text = self.settings.text
        return self.has_attention and self.search.replace_unknown and text.source_unit == text.target_unit == "word"

    def _attention(self, output: EncodedSource, found: list[list[Beam]]) -> list[list[np.ndarray | None]]:
        """The weights of each beam, from reading it once more, where somebody wants them."""
        unknown = any(self.targets.unknown in beam.ids for beams in found for beam in beams)
        if not self.has_attention or not (self.attend or unknown):
            return [[None] * len(beams) for beams in found]
        return attention_weights(self.network.body, output, found, self.targets.end)  # type: ignore[arg-type]

    def _rewritten(self, example: TextToText, beams: list[Beam], weights: list[np.ndarray | None]) -> Rewritten:
        source, candidates = self._source(example), []
        for beam, attention in zip(beams, weights, strict=True):
            units = [self.targets.symbols[i] for i in beam.ids]
            attention = None if attention is None else attention[:, : len(source)]
            if self._replaces and attention is not None and source:
                best = attention.argmax(axis=1).tolist()
                unknown = self.targets.unknown
                units = [source[j] if i == unknown else u for i, u, j in zip(beam.ids, units, best, strict=False)]
            text = self.target_units.join(units)
            shown = attention if self.attend else None
            candidates.append(Candidate(text, units, beam.log_prob, beam.score, shown, beam.ids, beam.ended))
        return Rewritten(candidates[0].text, source, candidates, example.source)

    def score(self, examples: Sequence[TextToText], predictions: Sequence[Rewritten]) -> TextReport:
        """BLEU, chrF, ROUGE and exact match, all together and by the sources' lengths."""
        return text_report(
            [found.text for found in predictions],
            [example.targets for example in examples],
            [len(found.source) for found in predictions],
            metric=self.settings.text.metric,
        )

    def ask(self, given: str | Words, *, tokenized: bool = False) -> TextToText:
        """A text, or its words."""
        if isinstance(given, str):
            return TextToText(given, [], tokenized)
        return TextToText(" ".join(self.split(given)), [], tokenized=True)

    def read_whole(self, path: str, *, errors: Errors) -> list[TextToText] | None:
        """The sources of a file of pairs, which is laid out as in training."""
        if not (is_table(path) or is_jsonl(path)):
            return None
        pairs = read_parallel(path, columns=self.settings.text.column, errors=errors)
        return [self.ask(pair.source) for pair in pairs]


def _learn_pieces(text: Seq2SeqTextSettings, examples: Sequence[TextToText]) -> Pieces:
    """Subwords from the sides that are cut into such."""
    texts: list[str] = []
    if text.source_unit in OF_SUBWORDS:
        texts += [example.source for example in examples]
    if text.target_unit in OF_SUBWORDS:
        texts += [example.targets[0] for example in examples]
    kind = text.source_unit if text.source_unit in OF_SUBWORDS else text.target_unit
    return learn_subwords(texts, kind=kind, size=text.subwords)  # type: ignore[arg-type]


class Units:
    """A side's texts as units, and back."""

    def __init__(self, unit: UnitName, text: Seq2SeqTextSettings, pieces: Vocabulary | None):
        self.unit, self.tokenizer = unit, text.tokenizer
        self.subwords = Subwords(pieces, unit) if unit in OF_SUBWORDS and isinstance(pieces, Pieces) else None  # type: ignore[arg-type]

    def split(self, text: str, *, tokenized: bool = False) -> list[str]:
        """The units of a text, which may be split at white space already."""
        if self.subwords is not None:
            return self.subwords.split(text)
        if self.unit == "char":
            return list(text)
        return text.split() if tokenized else TOKENIZERS[self.tokenizer](text)

    def join(self, units: Sequence[str]) -> str:
        """The text of units."""
        if self.subwords is not None:
            return self.subwords.join(units)
        if self.unit == "char":
            return "".join(units)
        return join(units) if self.tokenizer == "words" else " ".join(units)


class OpenSources:
    """The sources whose targets are being looked for, as a beam search needs them."""

    def __init__(self, network: Seq2SeqNetwork, source: EncodedSource, coverage: float = 0.0):
        self.network, self.source, self.beta = network, source, coverage

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """A unit more of each row."""
        return self.network.step(ids, state, self.source)

    def narrow(self, which: Tensor) -> None:
        """Only these sources are left."""
        self.source = self.source.of(which)

    def coverage(self, state: State) -> Tensor:
        """beta * sum_j log(min(1, sum_t a_tj)) of each row."""
        mask = self.source.mask.repeat_interleave(len(state[-1]) // len(self.source.mask), dim=0)
        covered = state[-1].clamp(min=1e-6, max=1.0).log()
        return self.beta * covered.masked_fill(~mask, 0.0).sum(dim=1)


def target_limits(lengths: Tensor, settings: SearchSettings, max_target: int | None = None) -> Tensor:
    """Return the maximum target length (B,) for sources of these lengths (B,)."""
    limits = torch.full_like(lengths, settings.limit) if settings.limit else TIMES * lengths + MORE
    return limits if max_target is None else limits.clamp(max=max_target)


@torch.no_grad()
def search(
    network: Seq2SeqNetwork,
    source: EncodedSource,
    how: SearchSettings,
    limits: Tensor | None = None,
    *,
    end: int,
    banned: Sequence[int] = (),
) -> list[list[Beam]]:
    """The best targets of B sources that were read, best first. `limits` (B,) bounds their lengths."""
    lengths = source.mask.sum(dim=1)
    sources = OpenSources(network, source, how.coverage)
    return beam_search(
        sources.step,
        *sources.step(torch.full_like(lengths, end), network.first_state(source)),
        BeamOptions(how.beams, end, banned, alpha=how.length_penalty),
        limits=target_limits(lengths, how) if limits is None else limits,
        bonus=sources.coverage if how.coverage else None,
        narrow=sources.narrow,
    )


@torch.no_grad()
def attention_weights(
    network: Seq2SeqNetwork, source: EncodedSource, found: list[list[Beam]], end: int
) -> list[list[np.ndarray | None]]:
    """What each text of each source attends to (T + 1, S): it is read once more, all at once where that can be."""
    rows = [i for i, beams in enumerate(found) for _ in beams]
    texts = [beam.ids for beams in found for beam in beams]
    which = torch.tensor(rows, device=source.mask.device)
    inputs = decoder_inputs(texts, end).to(which.device)
    weights = iter(network.decode(source.of(which), inputs).weights.float().cpu().numpy())
    return [[next(weights)[: len(beam.ids) + 1] for beam in beams] for beams in found]


def decoder_inputs(texts: Sequence[Sequence[int]], end: int) -> Tensor:
    """What the decoder reads to write texts of these ids, side by side, padded with the end; (N, T + 1)."""
    inputs = torch.full((len(texts), max(map(len, texts)) + 1), end)
    for row, ids in zip(inputs, texts, strict=True):
        row[1 : len(ids) + 1] = torch.tensor(ids, dtype=torch.int64)
    return inputs

"""The whole report: timings with their ratios and floors.

On a CPU the peers compute in float32 and relmo in each of the precisions. On a GPU each precision has its own peers, in
that precision.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar

import torch
from msgspec import Meta

from benchmarks.clock import Case, Timing, measure
from benchmarks.embedding import EmbeddingBench, compare_vectors
from benchmarks.floor import embedding_work, step_flops
from benchmarks.lstms import LSTMBench, Shape
from benchmarks.machine import Calibration, describe, gemm_rates
from benchmarks.training import TrainingBench
from benchmarks.translation import NUM_UNITS, SIZE, TranslationBench
from relmo.config import build, read_preset
from relmo.errors import CorpusError, SettingError
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.quantize import Precision
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM
from relmo.settings.bilm import BiLMSettings, BiLMTextSettings
from relmo.settings.fields import MAX_THREADS, PathName
from relmo.store.folder import pick_device
from relmo.text.encode import TOKENIZERS, read_sentence_words

GEOMETRIES = ("tiny", "small", "medium", "original")
PRECISIONS: dict[str, tuple[Precision, ...]] = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("float32", "bfloat16")}
DEFAULT_PRECISIONS: dict[str, tuple[Precision, ...]] = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("bfloat16",)}
TOKENS = {"tiny": 20_000, "small": 3_000, "medium": 2_000, "original": 1_000}  # embedded on a CPU
QUICK_TOKENS = {"tiny": 5_000, "small": 1_000, "medium": 600, "original": 300}
GPU_TOKENS = 25_000
STEPS = {"tiny": Shape(128, 20), "small": Shape(128, 20), "medium": Shape(64, 20), "original": Shape(32, 20)}
QUICK_STEP = Shape(32, 20)
GPU_STEP, GPU_TEXTBOOK = Shape(512, 20), Shape(128, 20)  # the textbook step takes too much memory at the larger size
GPU_SHAPES = (Shape(64, 20), Shape(128, 20), Shape(512, 20))
VOCABULARY_SIZES = {"cpu": 30_000, "cuda": 100_000}
TRANSLATION_SENTENCES, QUICK_TRANSLATION_SENTENCES = 128, 32
BUNDLED_TEXT = "alice.txt"

T = TypeVar("T", bound=str)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of the benchmarks."""

    what: Literal["embed", "train", "translate", "explore", "all"] = "all"
    """Embedding, training, sequence to sequence, the explorer's responses, or all of them."""
    geometry: str | None = None
    """Comma-separated models: tiny, small, medium, original. The default is small,original, and small with --quick."""
    dtype: str | None = None
    """Comma-separated precisions: float32, bfloat16, int8 (embedding on a CPU). The default is all of them, and
    bfloat16 on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on; auto uses a GPU if there is one."""
    threads: Annotated[int, Meta(ge=1, le=MAX_THREADS)] | None = None
    """CPU threads. By default torch chooses."""
    text: PathName | None = None
    """Text to embed: one sentence per line (plain, .gz, .xz, .zst), or .conllu. The default is the bundled text."""
    tokens: int | None = None
    """Number of tokens to embed. By default the whole table takes some minutes."""
    rounds: int | None = None
    """Number of rounds: 3 by default, 2 with --quick."""
    quick: bool = False
    """The small model, a short text and two rounds."""


@dataclass
class BenchRow:
    """Row of the report. `ratio` is relative to the section's baseline; `operations` is the least work per token, if it
    is counted, and `of_floor` the share of the speed that it allows. The floor itself is a row without seconds."""

    name: str
    precision: str
    tokens_per_second: float
    seconds: list[float] = field(default_factory=list)
    ratio: float | None = None
    operations: float | None = None
    of_floor: float | None = None
    max_difference: float | None = None
    mean_cosine: float | None = None


@dataclass
class BenchSection:
    """Rows with a common baseline."""

    what: str
    geometry: str
    title: str
    baseline: str
    tokens: int
    rows: list[BenchRow]


@dataclass
class BenchReport:
    """All measurements."""

    machine: dict[str, Any]
    text: dict[str, Any]
    gemm: dict[str, dict[str, float]]
    sections: list[BenchSection] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """Return plain values: machine, versions, threads, date, text, gemm, warnings, and every row with its section's
        what, geometry and title."""
        about = {key: getattr(self, key) for key in ("text", "gemm", "warnings")}
        rows = [
            {key: entry for key, entry in vars(section).items() if key != "rows"} | asdict(row)
            for section in self.sections
            for row in section.rows
        ]
        return self.machine | about | {"rows": rows}


class Bench:
    """Runner of the benchmarks that the options select; `on_message` receives progress messages."""

    def __init__(self, options: BenchOptions, on_message: Callable[[str], object] = lambda _: None):
        self.options, self.on_message = options, on_message
        self.device = pick_device(options.device)
        self.kind = self.device.type
        self.rounds = options.rounds or (2 if options.quick else 3)
        geometry = options.geometry or ("small" if options.quick else "small,original")
        self.geometries = _select("--geometry", geometry, GEOMETRIES)
        self.precisions = _select(
            "--dtype", options.dtype or ",".join(DEFAULT_PRECISIONS[self.kind]), PRECISIONS[self.kind]
        )
        for name, count in (("tokens", options.tokens), ("rounds", options.rounds), ("threads", options.threads)):
            if count is not None and count < 1:
                raise SettingError(f"--{name} must be 1 or more, not {count}")
        if options.what == "train" and self.precisions == ["int8"]:
            raise SettingError("--dtype int8 is for embedding; train in float32 or bfloat16")
        self.sentences = read_text(options.text)
        tokens = sum(len(sentence) + 1 for sentence in self.sentences)
        min_tokens = max(self._step_shape(geometry).tokens for geometry in self.geometries)
        if options.what in ("train", "all") and tokens < min_tokens:
            raise CorpusError(
                f"{options.text}: {tokens:,} words and sentence ends are fewer than the {min_tokens:,} of a training "
                "step; use a longer text, or --what embed"
            )
        if options.threads is not None:
            torch.set_num_threads(options.threads)

    def run(self) -> BenchReport:
        """Run all benchmarks."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's about its LSTM; ours about truncated words
            return self._run()

    def _run(self) -> BenchReport:
        calibration = Calibration(self.device)
        self.on_message("matrix products")
        self.gemm: dict[str, dict[str, float]] = {}
        if self.options.what not in ("explore", "translate"):  # these have no floor
            for precision in PRECISIONS[self.kind]:
                if precision in self.precisions or (precision == "float32" and self.kind == "cpu"):
                    self.gemm[precision] = gemm_rates(precision, self.device)
        text = {"name": self.options.text or BUNDLED_TEXT, "tokens": sum(map(len, self.sentences))}
        report = BenchReport(describe(self.device), text, self.gemm)
        for geometry in self.geometries:
            settings = build(BiLMSettings, read_preset(geometry, "bilm"))
            if self.options.what in ("embed", "all"):
                report.sections += self._embedding_sections(geometry, settings, calibration)
            if self.options.what in ("train", "all") and self.precisions != ["int8"]:
                report.sections += self._training_sections(geometry, settings, calibration)
        if self.options.what in ("translate", "all"):
            report.sections += self._translation_sections(calibration)
        report.warnings = self._add_explorer(report, calibration) if self.options.what in ("explore", "all") else []
        for section in report.sections:
            self._set_floors(section)
        report.warnings += calibration.warnings()
        return report

    def _add_explorer(self, report: BenchReport, calibration: Calibration) -> list[str]:
        """Add the explorer's section. Missing packages are a warning, or an error if only the explorer is selected."""
        from benchmarks.explorer import MODEL, ExplorerBench

        try:
            explorer = ExplorerBench(self.device.type)
        except SettingError as error:
            if self.options.what == "explore":
                raise
            return [str(error).replace("--what explore", "the explorer was not timed: it")]
        with explorer:
            cases = explorer.cases()
            title = f"Explorer, {MODEL}: from request to response, a page of {cases[0].tokens:,} symbols"
            timings = self._measure(cases, calibration)
        report.sections.append(self._section("explore", MODEL, title, timings, {}))
        return []

    def _translation_sections(self, calibration: Calibration) -> Iterator[BenchSection]:
        bench = TranslationBench(
            self.sentences,
            device=self.device,
            count=QUICK_TRANSLATION_SENTENCES if self.options.quick else TRANSLATION_SENTENCES,
        )
        shape = f"LSTM {SIZE}, {NUM_UNITS:,} units, {len(bench.ids)} sentences, float32"
        timings = self._measure(bench.decoding_cases(), calibration)
        yield self._section("decode", "seq2seq", f"Sequence to sequence, decoding: {shape}", timings, {})
        timings = self._measure(bench.training_cases(), calibration)
        yield self._section("translate", "seq2seq", f"Sequence to sequence, training: {shape}", timings, {})

    def _peers(self, precisions: Sequence[Precision]) -> Iterator[tuple[Precision, list[Precision]]]:
        """Yield the precision of the peers, and those of relmo to compare with them."""
        if self.kind == "cpu":
            yield "float32", list(precisions)
        else:
            yield from ((precision, [precision]) for precision in precisions)

    def _embedding_sections(
        self, geometry: str, settings: BiLMSettings, calibration: Calibration
    ) -> Iterator[BenchSection]:
        budget = GPU_TOKENS if self.kind == "cuda" else (QUICK_TOKENS if self.options.quick else TOKENS)[geometry]
        sentences = take_tokens(self.sentences, self.options.tokens or budget)
        work = embedding_work(settings.model, sentences)
        for peer, precisions in self._peers(self.precisions):
            bench = EmbeddingBench(settings, sentences, device=self.device, peer=peer, precisions=precisions)
            name = f"Embedding, {self._geometry_title(geometry, peer)}"
            title = f"{name}: {len(sentences):,} sentences of {bench.tokens:,} tokens"
            timings = self._measure(bench.cases(), calibration)
            section = self._section("embed", geometry, title, timings, {"cold": work.cold, "warm": work.warm})
            expected = next(timing.output for timing in timings if timing.case.name.startswith("definition"))
            for row, timing in zip(section.rows, timings, strict=False):
                if row.name.startswith("relmo"):
                    row.max_difference, row.mean_cosine = compare_vectors(timing.output, expected)
            yield section
            timings = self._measure(bench.single_cases(), calibration)
            yield self._section("embed", geometry, f"{name}: one sentence per call", timings, {})
            if self.kind == "cuda":
                yield from self._lstm_sections(geometry, bench.network, peer, calibration, backward=False)

    def _training_sections(
        self, geometry: str, settings: BiLMSettings, calibration: Calibration
    ) -> Iterator[BenchSection]:
        precisions = [precision for precision in self.precisions if precision != "int8"]
        vocab_size = VOCABULARY_SIZES[self.kind]
        shape = self._step_shape(geometry)
        for peer, relmo_precisions in self._peers(precisions):
            bench = TrainingBench(
                settings.model,
                self.sentences,
                shape=shape,
                textbook=GPU_TEXTBOOK if self.kind == "cuda" else shape,
                vocab_size=vocab_size,
                device=self.device,
                peer=peer,
                precisions=relmo_precisions,
            )
            samples = min(settings.model.samples, vocab_size)
            title = (
                f"Training, {self._geometry_title(geometry, peer)}: a whole step of {shape.batch} x {shape.unroll} "
                f"tokens, softmax over {samples:,} of {vocab_size:,}"
            )
            timings = self._measure(bench.cases(), calibration)
            yield self._section("train", geometry, title, timings, {"train": bench.work()})
            yield from self._lstm_sections(geometry, bench.network, peer, calibration, backward=True)

    def _geometry_title(self, geometry: str, peer: Precision) -> str:
        return geometry if self.kind == "cpu" else f"{geometry}, {peer}"

    def _step_shape(self, geometry: str) -> Shape:
        if self.kind == "cuda":
            return GPU_STEP
        return QUICK_STEP if self.options.quick else STEPS[geometry]

    def _lstm_sections(
        self, geometry: str, network: BiLMNetwork, precision: Precision, calibration: Calibration, *, backward: bool
    ) -> Iterator[BenchSection]:
        settings = build(BiLMSettings, read_preset(geometry, "bilm")).model
        work = sum(step_flops(settings)) * (3 if backward else 1)
        name = f"{'Training' if backward else 'Embedding'}, {self._geometry_title(geometry, precision)}"
        for shape in GPU_SHAPES if self.kind == "cuda" else [self._step_shape(geometry)]:
            assert isinstance(network.lstm, ElmoLSTM)
            bench = LSTMBench(network.lstm, shape, device=self.device, precision=precision)
            cases = bench.cases(backward=backward, textbook=self.kind == "cuda" and shape == GPU_TEXTBOOK)
            title = f"{name}: the LSTMs alone, {shape.batch} x {shape.unroll}"
            title += ", forward and backward pass" if backward else ""
            timings = self._measure(cases, calibration)
            yield self._section("train" if backward else "embed", geometry, title, timings, {"lstm": work})

    def _measure(self, cases: Sequence[Case], calibration: Calibration) -> list[Timing]:
        timings = measure(
            cases, rounds=self.rounds, device=self.device, calibration=calibration, on_message=self.on_message
        )
        for precision, rates in self.gemm.items():  # measured again each time: the fastest one sets the floor
            for shape, rate in gemm_rates(precision, self.device).items():
                rates[shape] = max(rate, rates[shape])
        return timings

    def _section(
        self, what: str, geometry: str, title: str, timings: Sequence[Timing], work: dict[str, float]
    ) -> BenchSection:
        """Return rows with their ratios, then one row per floor. `work` has the operations per token by kind of
        floor."""
        baseline = next(timing for timing in timings if timing.case.facts.get("baseline"))
        suffixes = {"cold": ", cold cache", "warm": ", warm cache", "train": "", "lstm": ""}
        rows, floors = [], {}
        for timing in timings:
            precision, kind = timing.case.facts["precision"], timing.case.facts.get("floor")
            row = BenchRow(timing.case.name, precision, timing.rate, timing.seconds, timing.rate / baseline.rate)
            rows.append(row)
            if kind is not None:
                row.operations = work[kind]
                name = f"floor {precision}{suffixes[kind]}"
                floors[name] = BenchRow(name, precision, 0.0, operations=work[kind])
        return BenchSection(
            what, geometry, title, baseline.case.name, baseline.case.tokens, rows + list(floors.values())
        )

    def _set_floors(self, section: BenchSection) -> None:
        """Set the speed that the counted operations allow at the rate of the fastest matrix product."""
        baseline = next(row for row in section.rows if row.name == section.baseline)
        for row in section.rows:
            if row.operations is not None:
                floor = max(self.gemm[row.precision].values()) / row.operations
                if row.seconds:
                    row.of_floor = row.tokens_per_second / floor
                else:
                    row.tokens_per_second, row.ratio = floor, floor / baseline.tokens_per_second


def _select(flag: str, text: str, choices: Sequence[T]) -> list[T]:
    """Return comma-separated names in the order of `choices`."""
    names = {name.strip() for name in text.split(",")}
    if not names <= set(choices):
        raise SettingError(f"{flag} {text}: choose one or more, separated by commas, from {', '.join(choices)}")
    return [name for name in choices if name in names]


def read_text(file: str | None) -> list[list[str]]:
    """Return the words of each sentence of a file, or of the bundled text."""
    if file is not None:
        sentences = list(read_sentence_words(file, BiLMTextSettings()))
        if not sentences:
            raise CorpusError(f"{file}: no sentences found")
        return sentences
    text = (resources.files("relmo") / "data" / BUNDLED_TEXT).read_text(encoding="utf-8")
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    lines = [line for p in paragraphs for line in re.sub(r"([.!?]['\")]*) ", "\\1\n", p).split("\n")]
    return [words for line in lines if (words := TOKENIZERS["words"](line))]


def take_tokens(sentences: Sequence[list[str]], tokens: int) -> list[list[str]]:
    """Return the first sentences with at least `tokens` tokens together."""
    head, total = [], 0
    for sentence in sentences:
        if total >= tokens:
            break
        head.append(sentence)
        total += len(sentence)
    return head

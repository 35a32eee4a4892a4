"""The whole table: what was asked for, timed, with ratios and floors.

On a CPU the peers compute in float32 and relmo in each precision asked for. On a GPU each precision has its own peers,
in that precision.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any, TypeVar

import torch

from relmo.bench.clock import Case, Timed, measure
from relmo.bench.embedding import EmbeddingBench, agreement
from relmo.bench.floor import embedding_work, step_flops
from relmo.bench.lstms import LSTMBench, Shape
from relmo.bench.machine import Calibration, describe, gemm_rates
from relmo.bench.training import TrainingBench
from relmo.bench.translating import SIZE, UNITS, TranslationBench
from relmo.config import build, read_preset
from relmo.errors import CorpusError, SettingError
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.quantize import Precision
from relmo.settings.bench import BenchOptions
from relmo.settings.bilm import BiLMSettings, BiLMTextSettings
from relmo.store.folder import pick_device
from relmo.text.encode import TOKENIZERS
from relmo.text.sentences import read_sentence_words

GEOMETRIES = ("tiny", "small", "medium", "original")
PRECISIONS: dict[str, tuple[Precision, ...]] = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("float32", "bfloat16")}
DEFAULT: dict[str, tuple[Precision, ...]] = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("bfloat16",)}
TOKENS = {"tiny": 20_000, "small": 3_000, "medium": 2_000, "original": 1_000}  # embedded on a CPU
QUICK_TOKENS = {"tiny": 5_000, "small": 1_000, "medium": 600, "original": 300}
GPU_TOKENS = 25_000
STEPS = {"tiny": Shape(128, 20), "small": Shape(128, 20), "medium": Shape(64, 20), "original": Shape(32, 20)}
QUICK_STEP = Shape(32, 20)
GPU_STEP, GPU_TEXTBOOK = Shape(512, 20), Shape(128, 20)  # the textbook's step takes too much memory at the larger size
GPU_SHAPES = (Shape(64, 20), Shape(128, 20), Shape(512, 20))
VOCABULARY = {"cpu": 30_000, "cuda": 100_000}
TRANSLATED, QUICK_TRANSLATED = 128, 32  # sentences
BUNDLED = "alice.txt"

T = TypeVar("T", bound=str)


@dataclass
class BenchRow:
    """A line of the table. `ratio` is to the section's baseline. `operations`, where they are counted, are the least
    that a token needs, and `of_floor` is the share of the speed that they allow. The floor itself is a row without
    seconds."""

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
    """The rows that are set against one baseline."""

    what: str
    geometry: str
    title: str
    baseline: str
    tokens: int
    rows: list[BenchRow]


@dataclass
class BenchReport:
    """All that was measured."""

    machine: dict[str, Any]
    text: dict[str, Any]
    gemm: dict[str, dict[str, float]]
    sections: list[BenchSection] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """One object of plain values: machine, versions, threads, date, text, gemm, warnings, and every row with its
        section's what, geometry and title."""
        about = {key: getattr(self, key) for key in ("text", "gemm", "warnings")}
        rows = [
            {key: value for key, value in vars(section).items() if key != "rows"} | asdict(row)
            for section in self.sections
            for row in section.rows
        ]
        return self.machine | about | {"rows": rows}


class Bench:
    """Times what the options ask for. `watch` is told what goes on."""

    def __init__(self, options: BenchOptions, watch: Callable[[str], object] = lambda _: None):
        self.options, self.watch = options, watch
        self.device = pick_device(options.device)
        self.kind = self.device.type
        self.rounds = options.rounds or (2 if options.quick else 3)
        geometry = options.geometry or ("small" if options.quick else "small,original")
        self.geometries = _chosen("--geometry", geometry, GEOMETRIES)
        self.precisions = _chosen("--dtype", options.dtype or ",".join(DEFAULT[self.kind]), PRECISIONS[self.kind])
        for name, value in (("tokens", options.tokens), ("rounds", options.rounds), ("threads", options.threads)):
            if value is not None and value < 1:
                raise SettingError(f"--{name} must be 1 or more, not {value}")
        if options.what == "train" and self.precisions == ["int8"]:
            raise SettingError("--dtype int8 is for embedding; train in float32 or bfloat16")
        self.sentences = read_text(options.text)
        self._check_length()
        if options.threads is not None:
            torch.set_num_threads(options.threads)

    def _check_length(self) -> None:
        """A training step needs more text than embedding does."""
        tokens = sum(len(sentence) + 1 for sentence in self.sentences)
        needed = max(self._step(geometry).tokens for geometry in self.geometries)
        if self.options.what in ("train", "all") and tokens < needed:
            raise CorpusError(
                f"{self.options.text}: {tokens:,} words and sentence ends are fewer than the {needed:,} of a training "
                "step; give a longer text, or --what embed"
            )

    def run(self) -> BenchReport:
        """Everything, geometry by geometry."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's of its LSTM; ours of words that are cut
            return self._run()

    def _run(self) -> BenchReport:
        calibration = Calibration(self.device)
        self.watch("matrix products")
        self.gemm: dict[str, dict[str, float]] = {}
        for precision in self._all_precisions():
            self.gemm[precision] = gemm_rates(precision, self.device)
        text = {"name": self.options.text or BUNDLED, "tokens": sum(map(len, self.sentences))}
        report = BenchReport(describe(self.device), text, self.gemm)
        for geometry in self.geometries:
            settings = build(BiLMSettings, read_preset(geometry, "bilm"))
            if self.options.what in ("embed", "all"):
                report.sections += self._embedding(geometry, settings, calibration)
            if self.options.what in ("train", "all") and self.precisions != ["int8"]:
                report.sections += self._training(geometry, settings, calibration)
        if self.options.what in ("translate", "all"):
            report.sections += self._translating(calibration)
        report.warnings = self._add_exploring(report, calibration) if self.options.what in ("explore", "all") else []
        for section in report.sections:
            self._set_floors(section)
        report.warnings += calibration.warnings()
        return report

    def _add_exploring(self, report: BenchReport, calibration: Calibration) -> list[str]:
        """Adds the explorer's answers. If its packages are missing, that is a warning, or an error where only the
        explorer was asked for."""
        from relmo.bench.exploring import MODEL, ExplorerBench

        try:
            exploring = ExplorerBench(self.device.type)
        except SettingError as error:
            if self.options.what == "explore":
                raise
            return [str(error).replace("--what explore", "the explorer was not timed: it")]
        with exploring:
            cases = exploring.cases()
            title = f"Explorer, {MODEL}: from a request to its answer, a page of {cases[0].tokens:,} symbols"
            timed = self._measure(cases, calibration)
        report.sections.append(self._section("explore", MODEL, title, timed, {}))
        return []

    def _translating(self, calibration: Calibration) -> Iterator[BenchSection]:
        bench = TranslationBench(
            self.sentences, device=self.device, count=QUICK_TRANSLATED if self.options.quick else TRANSLATED
        )
        shape = f"LSTM {SIZE}, {UNITS:,} units, {len(bench.ids)} sentences, float32"
        timed = self._measure(bench.decoding(), calibration)
        yield self._section("decode", "seq2seq", f"Sequence to sequence, decoding: {shape}", timed, {})
        timed = self._measure(bench.training(), calibration)
        yield self._section("translate", "seq2seq", f"Sequence to sequence, training: {shape}", timed, {})

    def _all_precisions(self) -> list[Precision]:
        if self.options.what in ("explore", "translate"):
            return []  # no floor is asked for
        return [p for p in PRECISIONS[self.kind] if p in self.precisions or (p == "float32" and self.kind == "cpu")]

    def _peers(self, precisions: Sequence[Precision]) -> Iterator[tuple[Precision, list[Precision]]]:
        """What the peers compute in, and the precisions of relmo to set against them."""
        if self.kind == "cpu":
            yield "float32", list(precisions)
        else:
            yield from ((precision, [precision]) for precision in precisions)

    def _embedding(self, geometry: str, settings: BiLMSettings, calibration: Calibration) -> Iterator[BenchSection]:
        budget = GPU_TOKENS if self.kind == "cuda" else (QUICK_TOKENS if self.options.quick else TOKENS)[geometry]
        sentences = take(self.sentences, self.options.tokens or budget)
        work = embedding_work(settings.model, sentences)
        for peer, precisions in self._peers(self.precisions):
            bench = EmbeddingBench(settings, sentences, device=self.device, peer=peer, precisions=precisions)
            name = f"Embedding, {self._name(geometry, peer)}"
            title = f"{name}: {len(sentences):,} sentences of {bench.tokens:,} tokens"
            timed = self._measure(bench.cases(), calibration)
            section = self._section("embed", geometry, title, timed, {"cold": work.cold, "warm": work.warm})
            expected = next(entry.result for entry in timed if entry.case.name.startswith("definition"))
            for row, entry in zip(section.rows, timed, strict=False):
                if row.name.startswith("relmo"):
                    row.max_difference, row.mean_cosine = agreement(entry.result, expected)
            yield section
            timed = self._measure(bench.single_cases(), calibration)
            yield self._section("embed", geometry, f"{name}: one sentence a call", timed, {})
            if self.kind == "cuda":
                yield from self._lstms(geometry, bench.network, peer, calibration, backward=False)

    def _training(self, geometry: str, settings: BiLMSettings, calibration: Calibration) -> Iterator[BenchSection]:
        precisions = [precision for precision in self.precisions if precision != "int8"]
        vocabulary, on_gpu = VOCABULARY[self.kind], self.kind == "cuda"
        shape = self._step(geometry)
        for peer, ours in self._peers(precisions):
            about: dict[str, Any] = {"vocab_size": vocabulary, "device": self.device, "peer": peer, "precisions": ours}
            bench = TrainingBench(
                settings.model, self.sentences, shape=shape, textbook=GPU_TEXTBOOK if on_gpu else shape, **about
            )
            samples = min(settings.model.samples, vocabulary)
            title = (
                f"Training, {self._name(geometry, peer)}: a whole step of {shape.batch} x {shape.unroll} tokens, "
                f"softmax over {samples:,} of {vocabulary:,}"
            )
            timed = self._measure(bench.cases(), calibration)
            yield self._section("train", geometry, title, timed, {"train": bench.work()})
            yield from self._lstms(geometry, bench.network, peer, calibration, backward=True)

    def _name(self, geometry: str, peer: Precision) -> str:
        """What is timed; on a GPU with its precision, which is the peers' too."""
        return geometry if self.kind == "cpu" else f"{geometry}, {peer}"

    def _step(self, geometry: str) -> Shape:
        """The window of a training step."""
        if self.kind == "cuda":
            return GPU_STEP
        return QUICK_STEP if self.options.quick else STEPS[geometry]

    def _lstms(
        self, geometry: str, network: BiLMNetwork, precision: Precision, calibration: Calibration, *, backward: bool
    ) -> Iterator[BenchSection]:
        settings = build(BiLMSettings, read_preset(geometry, "bilm")).model
        work = sum(step_flops(settings)) * (3 if backward else 1)
        name = f"{'Training' if backward else 'Embedding'}, {self._name(geometry, precision)}"
        for shape in GPU_SHAPES if self.kind == "cuda" else [self._step(geometry)]:
            bench = LSTMBench(network.lstm, shape, device=self.device, precision=precision)
            cases = bench.cases(backward=backward, textbook=self.kind == "cuda" and shape == GPU_TEXTBOOK)
            title = f"{name}: the LSTMs alone, {shape.batch} x {shape.unroll}"
            title += ", forward and backward pass" if backward else ""
            timed = self._measure(cases, calibration)
            yield self._section("train" if backward else "embed", geometry, title, timed, {"lstm": work})

    def _measure(self, cases: Sequence[Case], calibration: Calibration) -> list[Timed]:
        timed = measure(cases, rounds=self.rounds, device=self.device, calibration=calibration, watch=self.watch)
        for precision, rates in self.gemm.items():  # measured again each time: the fastest ever sets the floor
            for shape, rate in gemm_rates(precision, self.device).items():
                rates[shape] = max(rate, rates[shape])
        return timed

    def _section(
        self, what: str, geometry: str, title: str, timed: Sequence[Timed], work: dict[str, float]
    ) -> BenchSection:
        """Rows with their ratios, then a row for each floor. `work` has the operations a token by the kind of floor
        that cases name."""
        baseline = next(entry for entry in timed if entry.case.facts.get("baseline"))
        names = {
            "cold": "floor {}, words new",
            "warm": "floor {}, words known",
            "train": "floor {}",
            "lstm": "floor {}",
        }
        rows, floors = [], {}
        for entry in timed:
            precision, kind = entry.case.facts["precision"], entry.case.facts.get("floor")
            row = BenchRow(entry.case.name, precision, entry.rate, entry.seconds, entry.rate / baseline.rate)
            rows.append(row)
            if kind is not None:
                row.operations = work[kind]
                name = names[kind].format(precision)
                floors[name] = BenchRow(name, precision, 0.0, operations=work[kind])
        return BenchSection(
            what, geometry, title, baseline.case.name, baseline.case.tokens, rows + list(floors.values())
        )

    def _set_floors(self, section: BenchSection) -> None:
        """What the counted operations allow at the rate of the fastest matrix product."""
        baseline = next(row for row in section.rows if row.name == section.baseline)
        for row in section.rows:
            if row.operations is not None:
                floor = max(self.gemm[row.precision].values()) / row.operations
                if row.seconds:
                    row.of_floor = row.tokens_per_second / floor
                else:
                    row.tokens_per_second, row.ratio = floor, floor / baseline.tokens_per_second


def _chosen(flag: str, text: str, known: Sequence[T]) -> list[T]:
    """Names with commas between them, each of them known."""
    names = {name.strip() for name in text.split(",")}
    if not names <= set(known):
        raise SettingError(f"{flag} {text}: it can be {', '.join(known)}, or several with commas between them")
    return [name for name in known if name in names]


def read_text(file: str | None) -> list[list[str]]:
    """The words of each sentence of a file, or of the bundled text."""
    if file is not None:
        sentences = list(read_sentence_words(file, BiLMTextSettings()))
        if not sentences:
            raise CorpusError(f"{file}: there is no sentence in it; give a file with text in it")
        return sentences
    text = (resources.files("relmo") / "data" / BUNDLED).read_text(encoding="utf-8")
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    lines = [line for p in paragraphs for line in re.sub(r"([.!?]['\")]*) ", "\\1\n", p).split("\n")]
    return [words for line in lines if (words := TOKENIZERS["words"](line))]


def take(sentences: Sequence[list[str]], tokens: int) -> list[list[str]]:
    """The first sentences, with as many tokens or a few more."""
    taken, held = [], 0
    for sentence in sentences:
        if held >= tokens:
            break
        taken.append(sentence)
        held += len(sentence)
    return taken

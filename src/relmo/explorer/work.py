"""Long computations: search for cells, ablation, gradients, truncation, counting, and minimal pairs.

Each runs on a copy of the model, so that interventions are not visible to the session's readers.
"""

import copy
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from relmo.analysis.core import causal
from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.features import Document, Mark, column_tracks, mark_tracks, tracks
from relmo.analysis.core.show import split_progress, to_plain, with_progress
from relmo.analysis.core.trace import trace
from relmo.analysis.meaning.occurrences import OccurrenceIndex
from relmo.analysis.memory.counting import counting
from relmo.analysis.memory.gradients import Fresh, fresh_flows, gradient_flow
from relmo.analysis.memory.truncation import LENGTHS, truncation
from relmo.analysis.syntax.agreement import agreement, group_by_condition, sample_pairs, sweep
from relmo.analysis.syntax.gate_traces import gate_traces
from relmo.analysis.units.cell_report import CellReport
from relmo.analysis.units.cells import find_cells
from relmo.disk.files import replace_nonfinite
from relmo.errors import SettingError
from relmo.explorer import comparison, words
from relmo.explorer.matching import find_matches
from relmo.explorer.params import Body, colour_scale, format_unit, parse_unit
from relmo.explorer.reader import PagedReader
from relmo.explorer.session import Session, cut_window, find_busiest
from relmo.models.sequence_model import SequenceModel
from relmo.registry import BASIC_CELLS
from relmo.settings.fields import Progress
from relmo.settings.options import CountingOptions
from relmo.text.minimal_pairs import MinimalPair

NUM_UNITS = 40  # best units of a feature that are sent
PREVIEW_SYMBOLS = 200
MAX_SAMPLE_SYMBOLS = 600
ABLATION_SYMBOLS = 6000  # over which units are set to zero, one by one
ABLATION_COST = 3e11  # weights x symbols x units of such a test: half a minute to some minutes of one core
UNTRAINED_CHARACTERS = 60_000  # that untrained networks read
MAX_CONDITIONS = 6  # whose gates are drawn
NUM_SWEPT_UNITS = 24  # units of a sweep that are sent
NOUNS = (("boy", "boys"), ("woman", "women"), ("farmer", "farmers"), ("lawyer", "lawyers"), ("girl", "girls"))
VERBS = (("knows", "know"), ("likes", "like"), ("sees", "see"), ("wants", "want"))
PLACES = (("near the car", "near the cars"), ("behind the table", "behind the tables"))
KEYS, CABINETS = ("key", "keys"), ("to the cabinet", "to the cabinets")
FORMS = (("is", "are"), ("was", "were"))


class Worker:
    """A session with a copy of its model, used by the one thread that runs jobs."""

    def __init__(self, session: Session, open_session: Callable[[str], Session] | None = None):
        self.session, self.open_session = session, open_session
        self.indexes: OrderedDict[Any, OccurrenceIndex] = OrderedDict()  # of texts, in a temporary folder
        self.scratch: tempfile.TemporaryDirectory[str] | None = None
        self.training: dict[str, tuple[np.ndarray, str]] = {}  # ids and title of the last training text, by name
        self._model: SequenceModel | None = None

    @property
    def model(self) -> SequenceModel:
        """Copy of the model, made on the first use."""
        if self._model is None:
            with self.session.lock:
                self._model = copy.deepcopy(self.session.model)
        return self._model

    def other(self, name: str) -> SequenceModel:
        """Return a companion model, or a copy of another model that the server offers."""
        if name in self.session.extras.models:
            return self.session.extras.model(name)
        if self.open_session is None:
            raise SettingError(f"Unknown model {name[:80]!r}; no other model is open.")
        session = self.open_session(name)
        with session.lock:
            return copy.deepcopy(session.model)

    def document(self, text: str, max_symbols: int) -> Document:
        """Return the beginning of a text."""
        with self.session.lock:
            return self.session.reader(text).document.head(max_symbols)

    def run(self, kind: str, body: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        """Run a job of this kind."""
        return replace_nonfinite(JOBS[kind](self, Body(body), progress))

    def close(self) -> None:
        """Remove temporary files."""
        self.indexes.clear()
        if self.scratch is not None:
            self.scratch.cleanup()
            self.scratch = None


def find(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Score every unit against features of the text: built-in ones, patterns, marked spans and CoNLL-U columns."""
    text = body.string("text")
    document = worker.document(text, body.integer("symbols", 30_000, 100, 400_000))
    features: dict[str, np.ndarray] = tracks(document, [str(name) for name in body.elements("features")])
    for entry in map(Body, body.elements("patterns", dict)):
        pattern = entry.string("pattern")[:1000]
        name = entry.string("name")[:80] or pattern[:80]
        features |= mark_tracks(document, [Mark(a, b, name) for a, b in find_matches(pattern, document.text)])
        if name not in features:
            raise SettingError(f"The regular expression {pattern[:80]!r} matches nothing in this text.")
    for column in body.elements("columns"):
        features |= column_tracks(document, str(column))
    marks = []
    for row in body.elements("marks", list):
        match row:
            case [int(start), int(end), str(name)]:
                end = min(end, len(document))
                if 0 <= start < end:
                    marks.append(Mark(int(document.spans[start, 0]), int(document.spans[end - 1, 1]), name[:80]))
            case _:
                raise SettingError("A mark must be a list of its first symbol, its end and a name.")
    features |= mark_tracks(document, marks)
    constant = [name for name, track in features.items() if np.ptp(track) == 0]
    features = {name: track for name, track in features.items() if name not in constant}
    if not features:
        raise SettingError("None of the features changes in this text; choose other features or another text.")
    mode = None if body.get("ablate") is None else body.string("ablate", "zero", "mean", "hold")
    size, num_units = ABLATION_SYMBOLS, None
    if worker.model.input_table is not None:  # fewer symbols and units where the model is large
        budget = ABLATION_COST / worker.model.parameter_count()
        num_units = 512
        if budget < size * num_units:
            size = ABLATION_SYMBOLS // 2
            num_units = max(24, int(budget / size))
    options: dict[str, Any] = {"ablate": mode, "ablate_symbols": size, "among": num_units}
    report = find_cells(worker.model, document, features, progress=progress, **options)
    with worker.session.lock:
        return _describe_report(worker.session.reader(text), document, features, report) | {"skipped": constant}


def _describe_report(
    reader: PagedReader, document: Document, features: Mapping[str, np.ndarray], report: CellReport
) -> dict[str, Any]:
    """Return the best units' scores; of each feature's best unit a preview, and `broken`, its losses if ablated."""
    units = list(dict.fromkeys(unit for name in report.features for unit, _ in report.top(name, NUM_UNITS)))
    rows = [report.units.index(unit) for unit in units]
    cards, size = [], min(PREVIEW_SYMBOLS, len(document))
    for best in report.best_units:
        track, values, broken = features[best.feature], reader.text_values(best.unit), []
        if (ablated := report.ablated(best.unit)) is not None:
            ablation, unit = ablated
            for name, base in zip(ablation.classes, ablation.base, strict=True):
                delta, rank = round(ablation.delta(unit, name), 4), ablation.rank(unit, name)
                bits, count = round(float(base), 3), len(ablation.units)
                broken.append({"class": name, "bits": bits, "delta": delta, "rank": rank, "of": count})
        begin, mean = find_busiest(track, size), float(values.mean(dtype=np.float64))
        spans = document.spans[begin : begin + size]
        gaps = [document.text[a:b] for a, b in zip([int(spans[0, 0]), *spans[:-1, 1]], spans[:, 0], strict=True)]
        preview = cut_window(document, values, track, begin, size)
        preview |= {"mean": round(mean, 4), "scale": colour_scale(values - mean)}
        preview |= {"gaps": gaps} if any(gaps) else {}
        card = best.as_dict() | {"causal": report.causal(best), "unit": format_unit(best.unit)}
        cards.append(card | {"broken": broken, "preview": preview})
    scores = {name: to_plain(np.round(array[rows].astype(float), 3)) for name, array in vars(report.scores).items()}
    return {
        "symbols": report.symbols,
        "units": len(report.units),
        "order": report.order,
        "features": report.features,
        "found": cards,
        "rows": [format_unit(unit) for unit in units],
        "scores": scores,
    }


def change(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Set one unit to zero or its mean, hold it or scale it: return the loss by kind of symbol, and two samples."""
    model: Any = worker.model
    unit, text = parse_unit(body.string("unit")), body.string("text")
    mode, value = body.string("how", "zero", "mean", "hold", "scale"), None
    size = 500 if model.reads_sentences else 6000
    document = worker.document(text, body.integer("symbols", size, 50, 20_000))
    if mode != "zero":
        with worker.session.lock:
            values = worker.session.reader(text).text_values(unit)
        default = {"mean": values.mean(), "hold": np.quantile(values, 0.95), "scale": 2.0}[mode]
        value = body.real("value", float(default))
    samples: list[str] = []

    def sample(begin: float, size: float) -> None:
        """Continue the prompt, if the model can write."""
        if not model.can_generate:
            return
        limit, seed = body.integer("length", 300, 1, MAX_SAMPLE_SYMBOLS), body.integer("seed", 0, 0, 1 << 31)
        prompt, temperature = body.string("prompt")[:2000], body.real("temperature", 0.7)
        samples.append("")
        for index, texts in enumerate(model.stream(prompt, limit=limit, seed=seed, temperature=temperature)):
            progress(begin + size * (index / limit))
            samples[-1] = texts[0].text

    compute_losses = partial(model.symbol_losses, document.texts, unit.direction)
    base = compute_losses()
    progress(0.2)
    sample(0.2, 0.2)
    with intervene(model, unit.layer, unit.number, mode, value, state=unit.state, direction=unit.direction):
        changed = compute_losses()
        progress(0.6)
        sample(0.6, 0.4)
    ablation = causal.summarise(mode, [unit], causal.classify_symbols(document.symbols), base, changed[None])
    rows = zip(ablation.classes, ablation.counts, ablation.base, ablation.deltas[0], strict=True)
    return {
        "unit": format_unit(unit),
        "how": mode,
        "value": value,
        "symbols": len(document),
        "classes": [
            {"name": name, "count": count, "bits": round(float(bits), 4), "delta": round(float(delta), 4)}
            for name, count, bits, delta in rows
        ],
        "samples": samples,
        "prompt": body.string("prompt")[:2000],
    }


def rank(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Set every unit of a layer to zero, one by one, and return the rank of one of them by the increase of the loss."""
    model, unit = worker.model, parse_unit(body.string("unit"))._replace(state="h")
    size = 200
    if model.input_table is not None:
        size = int(min(ABLATION_SYMBOLS, max(400, ABLATION_COST / model.parameter_count() / 512)))
    document = worker.document(body.string("text"), body.integer("symbols", size, 50, 20_000))
    short = trace(model, document.head(50).texts, keep=("h",))
    units = [u for u in causal.list_units(short, ("h",)) if (u.layer, u.direction) == (unit.layer, unit.direction)]
    if unit not in units:
        raise SettingError(f"Unknown unit {unit}; h of layer {unit.layer} does not have it.")
    held = causal.compute_hold_values(short, units, "zero")
    ablation = causal.ablate_units(model, document, {}, units, values=held, progress=progress)
    return {
        "unit": format_unit(unit),
        "of": len(units),
        "symbols": len(document),
        "classes": [
            {
                "name": name,
                "count": count,
                "delta": round(ablation.delta(unit, name), 4),
                "rank": ablation.rank(unit, name),
                "median": round(float(np.median(deltas)), 4),
                "first": format_unit(units[int(deltas.argmax())]),
            }
            for name, count, deltas in zip(ablation.classes, ablation.counts, ablation.deltas.T, strict=True)
        ],
    }


def memory(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Return the gradient of the loss by lag, for the model and its companions or for untrained networks."""
    text = body.string("text")
    document = worker.document(text, 50_000)
    options: dict[str, Any] = {
        "lags": min(body.integer("lags", 100, 5, 400), max(1, len(document) // 2)),
        "warm_up": min(100, len(document) // 4),
        "positions": body.integer("positions", 32, 2, 256),
        "jacobian_positions": body.integer("jacobians", 0, 0, 32),
    }
    networks = []
    for entry in map(Body, body.elements("networks", dict)):
        radius = None if entry.get("spectral_radius") is None else entry.real("spectral_radius", 1.0)
        cell, hidden = entry.string("cell") or "lstm", entry.integer("hidden", 64, 1, 256)
        bias = entry.real("forget_bias", 0.0)
        networks.append(Fresh(cell=cell, hidden=hidden, forget_bias=bias, spectral_radius=radius))
    if networks:
        with worker.session.lock:
            characters = worker.session.texts.get_passage(text).text[:UNTRAINED_CHARACTERS]
        flows = fresh_flows(characters, networks, progress=progress, **options)
        return {"networks": [flow.as_dict() for flow in flows]}
    models = {worker.session.name: worker.model}
    if body.get("beside") is True:
        companions = {name: worker.other(name) for name in worker.session.extras.models}
        models |= {name: model for name, model in companions.items() if model.kind == worker.model.kind}
    reports = split_progress(progress, [1.0] * len(models))
    flows = [
        gradient_flow(model, document.texts, name=name, progress=report, **options)
        for (name, model), report in zip(models.items(), reports, strict=True)
    ]
    return {"networks": [flow.as_dict() for flow in flows]}


def past(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Return the loss when only the last k symbols are given."""
    document, max_length = worker.document(body.string("text"), 100_000), body.integer("longest", 128, 2, 1024)
    lengths = [length for length in LENGTHS if length <= max_length]
    options: dict[str, Any] = {"lengths": lengths, "positions": body.integer("positions", 400, 10, 5000)}
    name = worker.session.name
    return truncation(worker.model, document.texts, name=name, progress=progress, **options).as_dict()


def count(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Train small networks to count, and test them on longer words."""
    cells = body.elements("cells") or list(BASIC_CELLS)
    options = CountingOptions(
        limit=body.integer("limit", CountingOptions.limit, 5, 100),
        steps=body.integer("steps", CountingOptions.steps, 50, 10_000),
        seeds=body.integer("seeds", 1, 1, 5),
        hidden=body.integer("hidden", CountingOptions.hidden, 1, 64),
    )
    language, networks = body.string("language") or "anbn", []
    for cell, report in zip(cells, split_progress(progress, [1.0] * len(cells)), strict=True):
        networks.append(counting(language, cell, options, progress=report).as_dict())
    return {"networks": networks, "limit": options.limit, "tested": options.largest}


def agree(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Return the accuracy on minimal pairs by condition; with `sweep`, its drop without each unit."""
    pairs, title = _get_pairs(worker, body)
    should_sweep = body.get("sweep") is True
    reading, sweeping = split_progress(progress, [0.2, 0.8 if should_sweep else 0.0])
    answer: dict[str, Any] = {"title": title, **agreement(worker.model, pairs, progress=reading).as_dict()}
    if should_sweep:
        per_condition = body.integer("per_condition", 20, 2, 500)
        report = sweep(worker.model, pairs, per_condition=per_condition, progress=sweeping)
        worst = np.argsort(-report.drops.max(axis=1), kind="stable")[:NUM_SWEPT_UNITS]
        answer["sweep"] = {
            "conditions": report.as_dict()["conditions"],
            "of": len(report.units),
            "units": [format_unit(report.units[u]) for u in worst],
            "drops": np.round(report.drops[worst], 1).tolist(),
        }
    return answer


def gates(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Return the mean course of a unit's states and gates over the words before the compared forms, by condition."""
    pairs, title = _get_pairs(worker, body)
    unit, conditions = parse_unit(body.string("unit")), body.elements("conditions")
    if unit.direction == "backward":
        raise SettingError("Pairs are read forwards; choose a forward unit.")
    pairs_by_condition = {name: [pairs[i] for i in indices] for name, indices in group_by_condition(pairs).items()}
    if unknown := [name for name in conditions if name not in pairs_by_condition]:
        raise SettingError(f"Unknown condition {unknown[0][:80]!r}.")
    names = (conditions or list(pairs_by_condition))[:MAX_CONDITIONS]
    rows: list[dict[str, Any]] = []
    for name in with_progress(names, progress):
        rows += gate_traces(worker.model, pairs_by_condition[name], unit, per_condition=100).as_dict()["conditions"]
    return {"unit": format_unit(unit), "title": title, "conditions": rows, "all": list(pairs_by_condition)}


def _get_pairs(worker: Worker, body: Body) -> tuple[list[MinimalPair], str]:
    """Return the requested pairs and their title: the user's, a sample of a data set, or else `subject_verb_pairs`."""
    user_pairs = []
    for row in body.elements("pairs", list, max_length=2000):
        match row:
            case [str(condition), str(good), str(bad)] if good.strip() and bad.strip():
                user_pairs.append(MinimalPair(condition[:80] or "mine", good[:2000], bad[:2000]))
            case _:
                raise SettingError("A pair must be a list of a condition, a correct text and an incorrect text.")
    if user_pairs:
        return user_pairs, "your pairs"
    if not (name := body.string("pack")):
        return list(subject_verb_pairs()), "subjects and verbs"
    packs = worker.session.extras.packs
    if name not in packs:
        raise SettingError(f"Unknown pairs {name[:80]!r}; start with relmo explore MODEL --data DIR.")
    max_pairs = body.integer("most", 100, 2, 100_000)
    return sample_pairs(packs[name].pairs(), max_pairs, 0), packs[name].title


def subject_verb_pairs() -> Iterator[MinimalPair]:
    """Yield pairs with singular (S) and plural (P) subjects, alone and with an attractor, after Lakretz et al. 2019."""
    for number, noun, verb in product((0, 1), NOUNS, VERBS):
        prefix = f"The {noun[number]}"
        yield MinimalPair(f"simple {'SP'[number]}", f"{prefix} {verb[number]}", f"{prefix} {verb[1 - number]}")
    phrases = [*product(NOUNS, VERBS, PLACES), *product((KEYS,), FORMS, (CABINETS,))]
    for number, attractor, (noun, verb, place) in product((0, 1), (0, 1), phrases):
        prefix, condition = f"The {noun[number]} {place[attractor]}", f"nounpp {'SP'[number]}{'SP'[attractor]}"
        yield MinimalPair(condition, f"{prefix} {verb[number]}", f"{prefix} {verb[1 - number]}")


JOBS: dict[str, Callable[[Worker, Body, Progress], dict[str, Any]]] = {
    "find": find,
    "change": change,
    "rank": rank,
    "memory": memory,
    "past": past,
    "count": count,
    "agree": agree,
    "gates": gates,
    "compare": comparison.compare,
    "emerge": comparison.emerge,
    "mean": words.mean,
    "tags": words.tag_layers,
}
"""Kinds of jobs by name."""

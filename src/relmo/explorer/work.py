"""Long computations: search for cells, ablation, gradients, truncation.

Each runs on a copy of the model, so that interventions are not visible to the session's readers.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.causal import (
    Unit,
    ablate_units,
    classify_symbols,
    compute_hold_values,
    list_units,
    make_sentence_loss,
    summarise,
)
from relmo.analysis.core.features import Document, Mark, column_tracks, mark_tracks, tracks
from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.reading import LMReading
from relmo.analysis.core.show import to_plain
from relmo.analysis.core.trace import trace
from relmo.analysis.memory.fresh import Fresh, fresh_flows
from relmo.analysis.memory.gradients import gradient_flow
from relmo.analysis.memory.truncation import truncation
from relmo.analysis.units.cell_report import CellReport
from relmo.analysis.units.cells import find_cells
from relmo.disk.files import replace_nonfinite
from relmo.errors import SettingError
from relmo.explorer import comparison, experiments, words
from relmo.explorer.features import cut_window, find_busiest
from relmo.explorer.matching import find_matches
from relmo.explorer.params import (
    Body,
    colour_scale,
    format_unit,
    get_choice,
    get_float,
    get_int,
    get_list,
    get_string,
    parse_unit,
)
from relmo.explorer.reader import PagedReader
from relmo.explorer.session import Session
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.settings.arguments import Progress

NUM_UNITS = 40  # best units of a feature that are sent
PREVIEW_SYMBOLS = 200
MAX_SAMPLE_SYMBOLS = 600
ABLATION_SYMBOLS = 6000  # over which units are set to zero, one by one
ABLATION_COST = 3e11  # weights x symbols x units of such a test: half a minute to some minutes of one core
UNTRAINED_CHARACTERS = 60_000  # that untrained networks read
TRUNCATION_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Worker:
    """A session with a copy of its model, used by the one thread that runs jobs."""

    def __init__(self, session: Session, open_session: Callable[[str], Session] | None = None):
        self.session, self.open_session = session, open_session
        self.indexes = words.IndexCache()
        self._model: LanguageModel | BiLM | None = None
        self._training: dict[str, tuple[np.ndarray, str]] = {}

    @property
    def model(self) -> LanguageModel | BiLM:
        """Copy of the model, made on the first use."""
        if self._model is None:
            with self.session.lock:
                self._model = copy.deepcopy(self.session.model)
        return self._model

    def other(self, name: str) -> LanguageModel | BiLM:
        """Return a companion model, or a copy of another model that the server offers."""
        if name in self.session.extras.models:
            return self.session.extras.model(name)
        if self.open_session is None:
            raise SettingError(f"Unknown model {name[:80]!r}; no other model is open.")
        session = self.open_session(name)
        with session.lock:
            return copy.deepcopy(session.model)

    def close(self) -> None:
        """Remove temporary files."""
        self.indexes.close()

    def training_ids(self, name: str, progress: Progress) -> tuple[np.ndarray, str]:
        """Return the ids of a training text, and its title; the last one is cached."""
        if name not in self._training:
            self._training = {name: comparison.load_training_ids(self, name, progress)}
        return self._training[name]

    def document(self, text: str, max_symbols: int) -> Document:
        """Return the beginning of a text."""
        with self.session.lock:
            return self.session.reader(text).document.head(max_symbols)

    def run(self, kind: str, body: Body, progress: Progress) -> dict[str, Any]:
        """Run a job of this kind."""
        return replace_nonfinite(JOBS[kind](self, body, progress))


def find(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Score every unit against features of the text: built-in ones, patterns, marked spans and CoNLL-U columns."""
    text = get_string(body, "text")
    document = worker.document(text, get_int(body, "symbols", 30_000, 100, 400_000))
    features: dict[str, np.ndarray] = tracks(document, [str(name) for name in get_list(body, "features")])
    for entry in get_list(body, "patterns", dict):
        pattern = get_string(entry, "pattern")[:1000]
        name = get_string(entry, "name")[:80] or pattern[:80]
        features |= mark_tracks(document, [Mark(a, b, name) for a, b in find_matches(pattern, document.text)])
        if name not in features:
            raise SettingError(f"The regular expression {pattern[:80]!r} matches nothing in this text.")
    for column in get_list(body, "columns"):
        features |= column_tracks(document, str(column))
    features |= mark_tracks(document, _get_marks(document, body))
    constant = [name for name, track in features.items() if np.ptp(track) == 0]
    features = {name: track for name, track in features.items() if name not in constant}
    if not features:
        raise SettingError("None of the features changes in this text; choose other features or another text.")
    mode = None if body.get("ablate") is None else get_choice(body, "ablate", "zero", "mean", "hold")
    size, num_units = ABLATION_SYMBOLS, None
    if isinstance(worker.model, LanguageModel):  # fewer symbols and units where the model is large
        budget = ABLATION_COST / worker.model.parameter_count()
        num_units = 512
        if budget < size * num_units:
            size = ABLATION_SYMBOLS // 2
            num_units = max(24, int(budget / size))
    options: dict[str, Any] = {"ablate": mode, "ablate_symbols": size, "among": num_units}
    report = find_cells(worker.model, document, features, progress=progress, **options)
    with worker.session.lock:
        return _describe_report(worker.session.reader(text), document, features, report) | {"skipped": constant}


def _get_marks(document: Document, body: Body) -> list[Mark]:
    """Return the marks of a request, [first symbol, end, name], in character offsets."""
    marks, length = [], len(document)
    for row in get_list(body, "marks", list):
        match row:
            case [int(start), int(end), str(name)]:
                if 0 <= start < min(end, length):
                    begin, stop = document.spans[start, 0], document.spans[min(end, length) - 1, 1]
                    marks.append(Mark(int(begin), int(stop), name[:80]))
            case _:
                raise SettingError("A mark must be a list of its first symbol, its end and a name.")
    return marks


def _describe_report(
    reader: PagedReader, document: Document, features: Mapping[str, np.ndarray], report: CellReport
) -> dict[str, Any]:
    units = list(dict.fromkeys(unit for name in report.features for unit, _ in report.top(name, NUM_UNITS)))
    rows = [report.units.index(unit) for unit in units]
    cards = []
    for best in report.best_units:
        card = best.as_dict() | {"causal": report.causal(best), "unit": format_unit(best.unit)}
        card |= {"broken": _describe_ablation(report, best.unit)}
        cards.append(card | {"preview": _make_preview(reader, document, features[best.feature], best.unit)})
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


def _describe_ablation(report: CellReport, unit: Unit) -> list[dict[str, Any]]:
    """Return the increase of the loss without a unit by kind of symbol, and its rank among all units."""
    if (ablated := report.ablated(unit)) is None:
        return []
    ablation, unit = ablated
    return [
        {
            "class": name,
            "bits": round(float(base), 3),
            "delta": round(ablation.delta(unit, name), 4),
            "rank": ablation.rank(unit, name),
            "of": len(ablation.units),
        }
        for name, base in zip(ablation.classes, ablation.base, strict=True)
    ]


def _make_preview(reader: PagedReader, document: Document, track: np.ndarray, unit: Unit) -> dict[str, Any]:
    """Return the window of the text in which a feature changes most, with the unit's values and the truth."""
    size = min(PREVIEW_SYMBOLS, len(document))
    begin = find_busiest(track, size)
    values = reader.text_values(unit)
    mean = float(values.mean(dtype=np.float64))
    spans = document.spans[begin : begin + size]
    gaps = [document.text[a:b] for a, b in zip([int(spans[0, 0]), *spans[:-1, 1]], spans[:, 0], strict=True)]
    answer = cut_window(document, values, track, begin, size)
    answer |= {"mean": round(mean, 4), "scale": colour_scale(values - mean)}
    return answer | ({"gaps": gaps} if any(gaps) else {})


def change(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Set one unit to zero or its mean, hold it or scale it: return the loss by kind of symbol, and two samples."""
    model, unit, text = worker.model, parse_unit(get_string(body, "unit")), get_string(body, "text")
    mode, value = get_choice(body, "how", "zero", "mean", "hold", "scale"), None
    size = 6000 if isinstance(model, LanguageModel) else 500
    document = worker.document(text, get_int(body, "symbols", size, 50, 20_000))
    if mode != "zero":
        with worker.session.lock:
            values = worker.session.reader(text).text_values(unit)
        default = {"mean": values.mean(), "hold": np.quantile(values, 0.95), "scale": 2.0}[mode]
        value = get_float(body, "value", float(default))
    compute_losses = make_loss(model, document, backward=unit.direction == "backward")
    base = compute_losses()
    progress(0.2)
    samples = [_sample(model, body, lambda share: progress(0.2 + 0.2 * share))]
    with intervene(model, unit.layer, unit.number, mode, value, state=unit.state, direction=unit.direction):
        changed = compute_losses()
        progress(0.6)
        samples.append(_sample(model, body, lambda share: progress(0.6 + 0.4 * share)))
    ablation = summarise(mode, [unit], classify_symbols(document.symbols), base, changed[None])
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
        "samples": samples if isinstance(model, LanguageModel) else [],
        "prompt": get_string(body, "prompt")[:2000],
    }


def make_loss(model: LanguageModel | BiLM, document: Document, *, backward: bool) -> Callable[[], np.ndarray]:
    """Return a function that computes the loss of every symbol in nats; (T,)."""
    if isinstance(model, BiLM):
        return make_sentence_loss(model, document.texts, backwards=backward)
    reading = LMReading(model, document.texts)
    return lambda: reading.full_context_nll(np.arange(len(document))).astype(np.float64)


def _sample(model: LanguageModel | BiLM, body: Body, progress: Progress) -> str:
    """Continue the prompt; empty for a bidirectional model."""
    if isinstance(model, BiLM):
        return ""
    limit, seed = get_int(body, "length", 300, 1, MAX_SAMPLE_SYMBOLS), get_int(body, "seed", 0, 0, 1 << 31)
    text, temperature = "", get_float(body, "temperature", 0.7)
    stream = model.stream(get_string(body, "prompt")[:2000], limit=limit, seed=seed, temperature=temperature)
    for index, texts in enumerate(stream):
        progress(index / limit)
        text = texts[0].text
    return text


def rank(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Set every unit of a layer to zero, one by one, and return the rank of one of them by the increase of the loss."""
    model, unit = worker.model, parse_unit(get_string(body, "unit"))._replace(state="h")
    size = 200
    if isinstance(model, LanguageModel):
        size = int(min(ABLATION_SYMBOLS, max(400, ABLATION_COST / model.parameter_count() / 512)))
    document = worker.document(get_string(body, "text"), get_int(body, "symbols", size, 50, 20_000))
    short = trace(model, document.head(50).texts, keep=("h",))
    units = [u for u in list_units(short, ("h",)) if (u.layer, u.direction) == (unit.layer, unit.direction)]
    if unit not in units:
        raise SettingError(f"Unknown unit {unit}; h of layer {unit.layer} does not have it.")
    held = compute_hold_values(short, units, "zero")
    ablation = ablate_units(model, document, {}, units, values=held, progress=progress)
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
    text = get_string(body, "text")
    document = worker.document(text, 50_000)
    options: dict[str, Any] = {
        "lags": min(get_int(body, "lags", 100, 5, 400), max(1, len(document) // 2)),
        "warm_up": min(100, len(document) // 4),
        "positions": get_int(body, "positions", 32, 2, 256),
        "jacobian_positions": get_int(body, "jacobians", 0, 0, 32),
    }
    networks = []
    for entry in get_list(body, "networks", dict):
        radius = None if entry.get("spectral_radius") is None else get_float(entry, "spectral_radius", 1.0)
        cell, hidden = get_string(entry, "cell") or "lstm", get_int(entry, "hidden", 64, 1, 256)
        bias = get_float(entry, "forget_bias", 0.0)
        networks.append(Fresh(cell=cell, hidden=hidden, forget_bias=bias, spectral_radius=radius))
    if networks:
        with worker.session.lock:
            characters = worker.session.texts.get_passage(text).text[:UNTRAINED_CHARACTERS]
        flows = fresh_flows(characters, networks, progress=progress, **options)
        return {"networks": [flow.as_dict() for flow in flows]}
    models = {worker.session.name: worker.model}
    if body.get("beside") is True:
        companions = {name: worker.other(name) for name in worker.session.extras.models}
        models |= {name: model for name, model in companions.items() if type(model) is type(worker.model)}
    reports = split_progress(progress, [1.0] * len(models))
    flows = [
        gradient_flow(model, document.texts, name=name, progress=report, **options)
        for (name, model), report in zip(models.items(), reports, strict=True)
    ]
    return {"networks": [flow.as_dict() for flow in flows]}


def past(worker: Worker, body: Body, progress: Progress) -> dict[str, Any]:
    """Return the loss when only the last k symbols are given."""
    document, max_length = worker.document(get_string(body, "text"), 100_000), get_int(body, "longest", 128, 2, 1024)
    lengths = [length for length in TRUNCATION_LENGTHS if length <= max_length]
    options: dict[str, Any] = {"lengths": lengths, "positions": get_int(body, "positions", 400, 10, 5000)}
    name = worker.session.name
    return truncation(worker.model, document.texts, name=name, progress=progress, **options).as_dict()


JOBS: dict[str, Callable[[Worker, Body, Progress], dict[str, Any]]] = {
    "find": find,
    "change": change,
    "rank": rank,
    "memory": memory,
    "past": past,
    "count": experiments.count,
    "agree": experiments.agree,
    "gates": experiments.gates,
    "compare": comparison.compare,
    "emerge": comparison.emerge,
    "mean": words.mean,
    "tags": words.tag_layers,
}
"""Kinds of jobs by name."""

"""What the explorer does for longer: finding cells, changing them, gradients, counting; each on its own copy of the
model, so that nothing that is done to units there is seen by those who read."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.causal import (
    ablate_units,
    held_values,
    sentence_losses,
    summarise,
    symbol_classes,
    units_of,
)
from relmo.analysis.core.features import Document, Mark, column_tracks, mark_tracks, tracks
from relmo.analysis.core.reading import LMReading
from relmo.analysis.core.show import plain
from relmo.analysis.core.trace import trace
from relmo.analysis.memory.fresh import Fresh, fresh_flows
from relmo.analysis.memory.gradients import gradient_flow
from relmo.analysis.memory.truncation import truncation
from relmo.analysis.units.cell_report import CellReport, found_dict
from relmo.analysis.units.cells import find_cells
from relmo.disk.files import finite
from relmo.errors import SettingError
from relmo.explorer import beside, trials, words
from relmo.explorer.asked import unit_of
from relmo.explorer.given import Given, choice, listed, number, plain_unit, real, string
from relmo.explorer.matching import stretches
from relmo.explorer.reader import PagedReader
from relmo.explorer.session import Session
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.settings.arguments import Progress

ROWS = 40  # units of a feature that are sent
PREVIEW = 200  # symbols
LONGEST_SAMPLE = 600  # symbols
ABLATED = 6000  # symbols over which units are set to zero, one by one
MULTIPLIED = 3e11  # weights x symbols x units of such a test: half a minute to some minutes of one core
FRESH_TEXT = 60_000  # characters that fresh networks read


class Worker:
    """A session and a copy of its model, used by the one thread that works."""

    def __init__(self, session: Session, others: Callable[[str], Session] | None = None):
        self.session, self.others = session, others
        self.indexes = words.Indexes()
        self._model: LanguageModel | BiLM | None = None
        self._training: dict[str, tuple[np.ndarray, str]] = {}

    @property
    def model(self) -> LanguageModel | BiLM:
        """The copy, made when it is first needed."""
        if self._model is None:
            with self.session.lock:
                self._model = copy.deepcopy(self.session.model)
        return self._model

    def other(self, name: str) -> LanguageModel | BiLM:
        """One of the models beside this one, or a copy of another that is offered."""
        if name in self.session.extras.models:
            return self.session.extras.model(name)
        if self.others is None:
            raise SettingError("there is no other model here")
        session = self.others(name)
        with session.lock:
            return copy.deepcopy(session.model)

    def close(self) -> None:
        """Leaves nothing on the disk."""
        self.indexes.close()

    def training(self, name: str, progress: Progress) -> tuple[np.ndarray, str]:
        """The ids of a training text, read once, and its title."""
        if name not in self._training:
            self._training = {name: beside.training_ids(self, name, progress)}
        return self._training[name]

    def document(self, text: str, symbols: int) -> Document:
        """The beginning of a text as its reader has it."""
        with self.session.lock:
            return self.session.reader(text).document.head(symbols)

    def do(self, what: str, given: Given, progress: Progress) -> dict[str, Any]:
        """The work of a name."""
        return finite(WORK[what](self, given, progress))


def find(worker: Worker, given: Given, progress: Progress) -> dict[str, Any]:
    """Scores every unit against features of the text: named ones, patterns, stretches that were marked, columns."""
    document = worker.document(string(given, "text"), number(given, "symbols", 30_000, 100, 400_000))
    found: dict[str, np.ndarray] = tracks(document, [str(name) for name in listed(given, "features")])
    for each in listed(given, "patterns", dict):
        pattern = string(each, "pattern")[:1000]
        name = string(each, "name")[:80] or pattern[:80]
        found |= mark_tracks(document, [Mark(a, b, name) for a, b in stretches(pattern, document.text)])
        if name not in found:
            raise SettingError(f"the regular expression {pattern[:80]!r} matches nothing in this text")
    for column in listed(given, "columns"):
        found |= column_tracks(document, str(column))
    marks = [_mark_of(each) for each in listed(given, "marks", list)]
    found |= mark_tracks(document, _at_characters(document, marks))
    skipped = [name for name, track in found.items() if np.ptp(track) == 0]
    found = {name: track for name, track in found.items() if name not in skipped}
    if not found:
        raise SettingError("none of the features changes in this text; choose others, or another text")
    how = None if given.get("ablate") is None else choice(given, "ablate", "zero", "mean", "hold")
    size, among = ablation_size(worker.model)
    report = find_cells(worker.model, document, found, ablate=how, ablate_symbols=size, among=among, progress=progress)
    return _report_answer(worker, string(given, "text"), document, found, report, skipped)


def ablation_size(model: LanguageModel | BiLM) -> tuple[int | None, int | None]:
    """Over how many symbols, and among how many units, the best ones are set to zero: fewer where a model is large."""
    if isinstance(model, BiLM):
        return ABLATED, None
    units = MULTIPLIED / model.parameter_count()
    return (ABLATED, 512) if units >= ABLATED * 512 else (ABLATED // 2, max(24, int(units / (ABLATED // 2))))


def _mark_of(given: list[Any]) -> Mark:
    """A stretch of symbols, from JSON: first, the one after the last, name."""
    match given:
        case [int(first), int(last), str(name)]:
            return Mark(first, last, name[:80])
    raise SettingError("a mark is a list of its first symbol, the one after its last, and a name")


def _at_characters(document: Document, marks: list[Mark]) -> list[Mark]:
    """Marks of symbols as marks of characters."""
    last = len(document)
    kept = [mark for mark in marks if 0 <= mark.start < min(mark.end, last)]
    return [
        Mark(int(document.spans[mark.start, 0]), int(document.spans[min(mark.end, last) - 1, 1]), mark.name)
        for mark in kept
    ]


def _report_answer(
    worker: Worker,
    text: str,
    document: Document,
    found: Mapping[str, np.ndarray],
    report: CellReport,
    skipped: list[str],
) -> dict[str, Any]:
    """A report as the page draws it: the best units of each feature, a stretch of text to each."""
    chosen = list(dict.fromkeys(unit for name in report.features for unit, _ in report.top(name, ROWS)))
    rows = [report.units.index(unit) for unit in chosen]
    cards = []
    with worker.session.lock:
        reader = worker.session.reader(text)
        for each in report.found:
            card = found_dict(each) | {"causal": report.causal(each)}
            card |= {"unit": plain_unit(each.unit), "broken": broken(report, each)}
            cards.append(card | {"preview": preview(reader, document, found[each.feature], each.unit)})
    return {
        "symbols": report.symbols,
        "units": len(report.units),
        "order": report.order,
        "features": report.features,
        "skipped": skipped,
        "found": cards,
        "rows": [plain_unit(unit) for unit in chosen],
        "scores": {name: plain(np.round(array[rows].astype(float), 3)) for name, array in vars(report.scores).items()},
    }


def broken(report: CellReport, found: Any) -> list[dict[str, Any]]:
    """What breaks without the unit: more bits by kind of symbol, and its rank."""
    if (done := report.ablated(found.unit)) is None:
        return []
    ablation, unit = done
    return [
        {
            "class": name,
            "bits": round(float(ablation.base[ablation.classes.index(name)]), 3),
            "delta": round(ablation.delta(unit, name), 4),
            "rank": ablation.rank(unit, name),
            "of": len(ablation.units),
        }
        for name in ablation.classes
    ]


def preview(reader: PagedReader, document: Document, track: np.ndarray, unit: Any) -> dict[str, Any]:
    """A stretch of the text in which the feature changes much, with the unit's values, and what is true."""
    size = min(PREVIEW, len(document))
    begin = beside.busiest(track, size)
    whole = reader.whole(unit)
    mean = float(whole.mean(dtype=np.float64))
    piece = slice(begin, begin + size)
    spans = document.spans[piece]
    gaps = [document.text[a:b] for a, b in zip([int(spans[0, 0]), *spans[:-1, 1]], spans[:, 0], strict=True)]
    low, wide = float(track.min()), float(np.ptp(track)) or 1.0
    answer = {
        "first": begin,
        "symbols": document.symbols[piece],
        "values": np.round(whole[piece].astype(float), 3).tolist(),
        "mean": round(mean, 4),
        "scale": round(float(np.quantile(np.abs(whole - mean), 0.99)), 4) or 1.0,
        "truth": np.round((track[piece] - low) / wide, 3).tolist(),
    }
    return answer | ({"gaps": gaps} if any(gaps) else {})


def change(worker: Worker, given: Given, progress: Progress) -> dict[str, Any]:
    """One unit set to zero or its mean, held, or scaled: the loss by kind of symbol, and two samples."""
    model, unit, text = worker.model, unit_of({"unit": string(given, "unit")}), string(given, "text")
    how = choice(given, "how", "zero", "mean", "hold", "scale")
    size = 6000 if isinstance(model, LanguageModel) else 500
    document = worker.document(text, number(given, "symbols", size, 50, 20_000))
    value = None
    if how != "zero":
        with worker.session.lock:
            values = worker.session.reader(text).whole(unit)
        usual = {"mean": values.mean(), "hold": np.quantile(values, 0.95), "scale": 2.0}[how]
        value = real(given, "value", float(usual))
    losses = losses_of(model, document, backwards=unit.direction == "backward")
    base = losses()
    progress(0.2)
    settings: dict[str, Any] = {"state": unit.state, "direction": unit.direction}
    samples = [sample(model, given, lambda share: progress(0.2 + 0.2 * share))]
    with intervene(model, unit.layer, unit.number, how, value, **settings):
        changed = losses()
        progress(0.6)
        samples.append(sample(model, given, lambda share: progress(0.6 + 0.4 * share)))
    found = summarise(how, [unit], symbol_classes(document.symbols), base, changed[None])
    return {
        "unit": plain_unit(unit),
        "how": how,
        "value": value,
        "symbols": len(document),
        "classes": [
            {"name": name, "count": count, "bits": round(float(bits), 4), "delta": round(float(delta), 4)}
            for name, count, bits, delta in zip(found.classes, found.counts, found.base, found.deltas[0], strict=True)
        ],
        "samples": samples if isinstance(model, LanguageModel) else [],
        "prompt": string(given, "prompt")[:2000],
    }


def losses_of(model: LanguageModel | BiLM, document: Document, *, backwards: bool) -> Callable[[], np.ndarray]:
    """A function that gives the loss of every symbol in nats; (T,)."""
    if isinstance(model, BiLM):
        return sentence_losses(model, document.texts, backwards=backwards)
    reading = LMReading(model, document.texts)
    return lambda: reading.whole_nll(np.arange(len(document))).astype(np.float64)


def sample(model: LanguageModel | BiLM, given: Given, progress: Progress) -> str:
    """A text that goes on from the prompt; none of a bidirectional model."""
    if isinstance(model, BiLM):
        return ""
    limit = number(given, "length", 300, 1, LONGEST_SAMPLE)
    temperature = real(given, "temperature", 0.7)
    prompt, text = string(given, "prompt")[:2000], ""
    stream = model.stream(prompt, limit=limit, seed=number(given, "seed", 0, 0, 1 << 31), temperature=temperature)
    for count, texts in enumerate(stream):
        progress(count / limit)
        text = texts[0].text
    return text


def rank(worker: Worker, given: Given, progress: Progress) -> dict[str, Any]:
    """Every unit of the layer set to zero, one by one: the place of one of them by what its loss costs."""
    model, unit = worker.model, unit_of({"unit": string(given, "unit")})
    size = 200
    if isinstance(model, LanguageModel):
        size = int(min(ABLATED, max(400, MULTIPLIED / model.parameter_count() / 512)))
    document = worker.document(string(given, "text"), number(given, "symbols", size, 50, 20_000))
    short = trace(model, document.head(50).texts, keep=("h",))
    same = unit._replace(state="h")
    units = [u for u in units_of(short, ("h",)) if (u.layer, u.direction) == (unit.layer, unit.direction)]
    if same not in units:
        raise SettingError(f"{unit}: h of layer {unit.layer} has no unit of this number")
    found = ablate_units(model, document, {}, units, values=held_values(short, units, "zero"), progress=progress)
    return {
        "unit": plain_unit(same),
        "of": len(units),
        "symbols": len(document),
        "classes": [
            {
                "name": name,
                "count": count,
                "delta": round(found.delta(same, name), 4),
                "rank": found.rank(same, name),
                "median": round(float(np.median(found.deltas[:, place])), 4),
                "first": plain_unit(units[int(found.deltas[:, place].argmax())]),
            }
            for place, (name, count) in enumerate(zip(found.classes, found.counts, strict=True))
        ],
    }


def memory(worker: Worker, given: Given, progress: Progress) -> dict[str, Any]:
    """How far back a loss reaches: of the model, or of fresh networks over the same text."""
    text = string(given, "text")
    document = worker.document(text, 50_000)
    lags = min(number(given, "lags", 100, 5, 400), max(1, len(document) // 2))  # of a short text what there is
    options: dict[str, Any] = {"lags": lags, "warm_up": min(100, len(document) // 4)}
    options["positions"] = number(given, "positions", 32, 2, 256)
    options["jacobian_positions"] = number(given, "jacobians", 0, 0, 32)
    networks = [fresh(each) for each in listed(given, "networks", dict)]
    if not networks:
        names = [name for name in worker.session.extras.models if given.get("beside") is True]
        models = {worker.session.name: worker.model} | {name: worker.other(name) for name in names}
        models = {name: model for name, model in models.items() if type(model) is type(worker.model)}
        found = []
        for place, (name, model) in enumerate(models.items()):
            told = lambda share, place=place: progress((place + share) / len(models))  # noqa: E731
            flow = gradient_flow(model, document.texts, name=name, progress=told, **options)
            found.append(flow.as_dict())
        return {"networks": found}
    with worker.session.lock:
        plain_text = worker.session.passage(text).text[:FRESH_TEXT]
    flows = fresh_flows(plain_text, networks, progress=progress, **options)
    return {"networks": [flow.as_dict() for flow in flows]}


def fresh(given: Given) -> Fresh:
    """A network before training, of what was asked for."""
    radius = given.get("spectral_radius")
    return Fresh(
        cell=string(given, "cell") or "lstm",
        hidden=number(given, "hidden", 64, 1, 256),
        forget_bias=real(given, "forget_bias", 0.0),
        spectral_radius=None if radius is None else real(given, "spectral_radius", 1.0),
    )


def past(worker: Worker, given: Given, progress: Progress) -> dict[str, Any]:
    """The loss when only the last k symbols are given."""
    document = worker.document(string(given, "text"), 100_000)
    longest = number(given, "longest", 128, 2, 1024)
    lengths = [length for length in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256) if length <= longest]
    positions = number(given, "positions", 400, 10, 5000)
    found = truncation(
        worker.model,
        document.texts,
        lengths=lengths,
        positions=positions,
        name=worker.session.name,
        progress=progress,
    )
    return found.as_dict()


WORK: dict[str, Callable[[Worker, Given, Progress], dict[str, Any]]] = {
    "find": find,
    "change": change,
    "rank": rank,
    "memory": memory,
    "past": past,
    "count": trials.count,
    "agree": trials.agree,
    "gates": trials.gates,
    "compare": beside.compare,
    "emerge": beside.emerge,
    "mean": words.mean,
    "tags": words.tag_layers,
}
"""What can be asked for as a job, by name."""

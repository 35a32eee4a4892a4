"""Compares models: what symbols cost them, what they write, how much of that stands in their training text, and when a
unit came to be what it is."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relmo.analysis.core.causal import Unit, units_of
from relmo.analysis.core.features import Document, read, tracks
from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.trace import trace
from relmo.analysis.core.untrained import untrained
from relmo.analysis.units.compare import (
    COPIED,
    Losses,
    check_alike,
    compare_losses_of,
    copies_begin,
    emergence,
    samples,
)
from relmo.errors import ModelError, SettingError
from relmo.explorer.asked import unit_of
from relmo.explorer.given import Given, number, plain_unit, real, string
from relmo.models.lm import LanguageModel
from relmo.networks.ngram import NGramLM
from relmo.settings.arguments import Progress
from relmo.settings.lm import LanguageModelSettings, LMSettings
from relmo.text.encode import encode_file

SHOWN = 2000  # symbols of a comparison that are coloured
MARKED = 1  # which of these is marked in samples
SEEDS, LONG = 3, 400  # samples that copies are looked for in, and their symbols
TRAIN = "train"  # the name of the training text that was given
STRIP = 160  # symbols of a film strip
LARGEST_TRAIN = 1 << 30  # bytes


def compare(worker: Any, given: Given, progress: Progress) -> dict[str, Any]:
    """Compares two models on one text: the loss of each symbol, by kind and by distance to the bracket; a sample of
    each; and, where a training text is named, how much of what they write stands in it."""
    mine, text = _one_way(worker.model, worker.session.name), string(given, "text")
    document = worker.document(text, number(given, "symbols", 20_000, 100, 200_000))
    symbols, other = document.symbols, string(given, "other")
    if other == "n-gram":
        half = len(symbols) // 2
        second, symbols = counted(mine, symbols[:half], number(given, "order", 6, 1, 20)), symbols[half:]
        named = f"a {given.get('order', 6)}-gram"
    elif other == "untrained":
        second, named = untrained(mine), "the same untrained"
    else:
        second, named = _one_way(worker.other(other), other), other
    models = {worker.session.name: mine, named: second}
    peers = _peers(worker, other)
    train = string(given, "train")
    comparing, copying = split_progress(progress, [0.4, 0.6] if train else [0.6, 0.4])
    losses = compare_losses_of(models | peers, symbols, progress=comparing)
    options: dict[str, Any] = {"prompt": string(given, "prompt")[:500], "temperature": real(given, "temperature", 0.7)}
    seed = number(given, "seed", 0, 0, 1 << 31)
    made = samples(models, limit=200, seed=seed, **options)
    rows = []
    for name, where in losses.classes.items():
        gap = losses.difference(worker.session.name, named, name)
        means = [round(losses.mean(model, name), 3) for model in models]
        interval = [round(float(value), 3) for value in gap]
        rows.append({"class": name, "count": int(where.sum()), "bits": means, "difference": interval})
    answer = {
        "models": list(models),
        "symbols": symbols[:SHOWN],
        "words": mine.settings.text.unit == "word",
        "bits": np.round(losses.bits[:2, :SHOWN], 2).tolist(),
        "total": len(symbols),
        "classes": rows,
        "ranking": ranking(losses),
        "counted_on": "the first half of this text" if other == "n-gram" else "",
        "samples": [{"model": each.model, "text": each.text} for each in made],
    }
    if train:
        answer |= _copies(worker, models, answer, train, (seed, options), copying)
    return answer


def _peers(worker: Any, other: str) -> dict[str, LanguageModel]:
    """Return the remaining examples trained on the same text, if `other` is one of them."""
    names = [peer["model"] for peer in worker.session.alike() if "model" in peer]
    if other not in names:
        return {}
    return {name: _one_way(worker.other(name), name) for name in names if name != other}


def ranking(losses: Losses) -> list[dict[str, Any]]:
    """Rank models by mean loss, with the paired difference to the best model and its 95% interval."""
    order = sorted(losses.models, key=losses.mean)
    rows = []
    for name in order:
        difference = [round(float(value), 3) for value in losses.difference(name, order[0])]
        rows.append({"model": name, "bits": round(losses.mean(name), 3), "difference": difference})
    return rows


def _one_way(model: Any, name: str) -> LanguageModel:
    """Returns the model where it is a language model that reads one way; else raises."""
    if not isinstance(model, LanguageModel):
        raise SettingError(f"{name} reads both ways; language models that read one way can be compared")
    return model


def counted(model: LanguageModel, symbols: list[str], order: int) -> LanguageModel:
    """An n-gram model of a model's own vocabulary, counted on symbols."""
    network = NGramLM.fit(model.vocabulary.ids(symbols), vocab_size=len(model.vocabulary), order=order)
    settings = LMSettings(text=model.settings.text, model=LanguageModelSettings(cell="ngram", order=order))
    return LanguageModel(network, model.vocabulary, settings)


def _copies(
    worker: Any,
    models: Mapping[str, LanguageModel],
    answer: Mapping[str, Any],
    train: str,
    sampling: tuple[int, dict[str, Any]],
    progress: Progress,
) -> dict[str, Any]:
    """How much of each model's long samples, and of the text they are asked about, stands in the training text, by the
    length of stretches; and which parts of the samples that are shown do."""
    first = next(iter(models.values()))
    reading, writing, searching = split_progress(progress, [0.2, 0.2, 0.6])
    training, title = worker.training(train, reading)
    reading(1.0)
    symbols = len(training)
    written: dict[str, list[np.ndarray]] = {name: [] for name in models}
    seed, options = sampling
    for n in range(SEEDS):
        for each in samples(models, limit=LONG, seed=seed + 1 + n, **options):
            written[each.model].append(first.encode(each.text))
        writing((n + 1) / SEEDS)
    lengths = COPIED[first.settings.text.unit]
    sources = {f"what {name} writes": np.concatenate(some) for name, some in written.items()}
    sources["the text they are asked about"] = first.vocabulary.ids(answer["symbols"])
    documents = [read(first, sample["text"]) if sample["text"].strip() else None for sample in answer["samples"]]
    texts = [*sources.values(), *(first.vocabulary.ids(each.symbols if each else []) for each in documents)]
    rows: list[dict[str, Any]] = [{"name": name, "shares": [], "symbols": len(ids)} for name, ids in sources.items()]
    marked = []
    for place, (length, tell) in enumerate(zip(lengths, split_progress(searching, lengths), strict=True)):
        there = copies_begin(texts, training, length, tell)
        for row, found in zip(rows, there, strict=False):
            row["shares"].append(100 * float(found.mean()) if len(found) else None)
        if place == MARKED:
            inside = [covered(found, length) for found in there[len(rows) :]]
            marked = [
                sample | {"parts": parts_of(document, sample["text"], each)}
                for sample, document, each in zip(answer["samples"], documents, inside, strict=True)
            ]
        if not any(found.any() for found in there):
            training = training[:0]  # longer stretches are not there either
    about = {"of": title, "symbols": symbols, "lengths": lengths, "marked": lengths[MARKED], "rows": rows}
    return {"copies": about, "samples": marked}


def training_ids(worker: Any, name: str, progress: Progress) -> tuple[np.ndarray, str]:
    """The ids and the title of a training text, which is the file that was given, or one of the page's texts."""
    model = worker.model
    if name != TRAIN:
        return model.vocabulary.ids(worker.document(name, 1 << 30).symbols), worker.session.passage(name).title
    path: Path | None = worker.session.extras.train
    if path is None:
        raise SettingError("no training text was given; start with relmo explore MODEL --train FILE")
    size = max(path.stat().st_size, 1)
    if size > LARGEST_TRAIN:
        raise SettingError(f"{path.name}: has {size >> 20:,} MB; give at most {LARGEST_TRAIN >> 20:,}")
    with tempfile.TemporaryDirectory() as scratch:
        stream = encode_file(
            str(path),
            model.settings.text,
            model.vocabulary,
            Path(scratch),
            lambda count: progress(min(count / size, 1.0)),
        )
        return np.array(stream.ids), path.name


def covered(there: np.ndarray, length: int) -> np.ndarray:
    """Which symbols are in one of the stretches that begin where `there` says so; (T,) of bool."""
    inside = np.zeros(len(there) + length - 1, dtype=bool)
    for place in np.flatnonzero(there):
        inside[place : place + length] = True
    return inside


def parts_of(document: Document | None, text: str, inside: np.ndarray) -> list[list[Any]]:
    """A text in pieces, each with whether its symbols are inside."""
    if document is None:
        return [[text, False]]
    parts: list[list[Any]] = []
    before = 0
    for place, (_, end) in enumerate(document.spans.tolist()):
        here = place < len(inside) and bool(inside[place])
        if parts and parts[-1][1] == here:
            parts[-1][0] += document.text[before:end]
        else:
            parts.append([document.text[before:end], here])
        before = end
    return [*parts, [document.text[before:], False]] if before < len(document.text) else parts


def emerge(worker: Any, given: Given, progress: Progress) -> dict[str, Any]:
    """When a unit came to follow a feature: its correlation in the same network untrained, in each model beside that
    has the same shape, and in this model; and its values over one stretch of the text in each of them."""
    mine, text = _one_way(worker.model, worker.session.name), string(given, "text")
    document = worker.document(text, number(given, "symbols", 10_000, 100, 50_000))
    feature = string(given, "feature")
    track = tracks(document, [feature])[feature]
    if np.ptp(track) == 0:
        raise SettingError(f"{feature} does not change in this text; choose another feature, or another text")
    frames, left_out = _checkpoints(worker, mine, document)
    named = string(given, "unit")
    unit = unit_of({"unit": named}) if named else None
    correlating, tracing = split_progress(progress, [0.8, 0.2])
    found = emergence(frames, document, track, unit=unit, progress=correlating)
    begin = busiest(track, STRIP)
    strips = []
    for place, model in enumerate(frames.values()):
        values, scale = _values_of(model, document, found.unit)
        strips.append({"values": np.round(values[begin : begin + STRIP].astype(float), 3).tolist(), "scale": scale})
        tracing((place + 1) / len(frames))
    rows = found.as_dict()["models"]
    best = [plain_unit(found.units[int(np.abs(r).argmax())]) for r in found.r]
    return {
        "unit": plain_unit(found.unit),
        "feature": feature,
        "symbols": len(document),
        "frames": [row | strip | {"best_unit": b} for row, strip, b in zip(rows, strips, best, strict=True)],
        "stretch": document.symbols[begin : begin + STRIP],
        "track": np.round(track[begin : begin + STRIP].astype(float), 3).tolist(),
        "words": mine.settings.text.unit == "word",
        "left_out": left_out,
    }


def _checkpoints(worker: Any, mine: LanguageModel, document: Document) -> tuple[dict[str, LanguageModel], list[str]]:
    """The network untrained, the models beside that have the same units, in their order, and this model; and the names
    of the models that are left out."""
    short = document.head(20).texts

    def units(model: Any) -> list[Unit] | None:
        try:
            check_alike({"this": mine, "that": model})
            return units_of(trace(model, short, keep=("h",)), ("h",))
        except (AttributeError, ModelError, SettingError):  # both ways, an n-gram model, other symbols
            return None

    own, left_out = units(mine), []
    frames = {"untrained": untrained(mine)}
    for name in worker.session.extras.models:
        model = worker.other(name)
        if units(model) == own and model.settings.model.cell == mine.settings.model.cell:
            frames[name] = model
        else:
            left_out.append(name)
    return frames | {worker.session.name: mine}, left_out


def busiest(track: np.ndarray, size: int) -> int:
    """Where the stretch begins in which a feature changes most."""
    if len(track) <= size:
        return 0
    changes = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(track)) > 0)])
    moves = changes[size - 1 :] - changes[: len(changes) - size + 1]
    level = np.convolve(track, np.ones(size), "valid") / size
    middle = (track.min() + track.max()) / 2
    far = np.abs(level - middle) / (np.ptp(track) or 1.0)  # from as much on as off
    return int(np.argmax(np.minimum(moves, 8) - 10 * far))


def _values_of(model: LanguageModel, document: Document, unit: Unit) -> tuple[np.ndarray, float]:
    """A unit's values over a text, less their mean, (T,); and the size that gets the full colour."""
    traced = trace(model, document.texts, layers=[unit.layer], keep=(unit.state,))
    values = traced.unit(unit.state, unit.layer, unit.number)
    values = values - values.mean()
    return values, round(float(np.quantile(np.abs(values), 0.99)), 4) or 1.0

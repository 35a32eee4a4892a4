"""Comparison of models: losses by symbol, samples, copies from the training text, and the emergence of a unit."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.analysis.core.causal import Unit, list_units
from relmo.analysis.core.features import Document, read, tracks
from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.trace import trace
from relmo.analysis.core.untrained import untrained
from relmo.analysis.units.compare import (
    COPY_LENGTHS,
    Losses,
    check_comparable,
    compare_losses_of,
    emergence,
    find_copies,
    samples,
)
from relmo.errors import ModelError, SettingError
from relmo.explorer.features import find_busiest
from relmo.explorer.params import Body, colour_scale, format_unit, get_float, get_int, get_string, parse_unit
from relmo.explorer.write import count_ngrams
from relmo.models.lm import LanguageModel
from relmo.settings.arguments import Progress
from relmo.text.encode import encode_file

if TYPE_CHECKING:
    from relmo.explorer.work import Worker

PREVIEW_SYMBOLS = 2000  # that are coloured
MARKED_LENGTH = 1  # index of the copy length that is marked in samples
NUM_SAMPLES, SAMPLE_SYMBOLS = 3, 400  # in which copies are searched
TRAIN = "train"  # name of the training text given on the command line
STRIP_SYMBOLS = 160
MAX_TRAIN_BYTES = 1 << 30


def compare(worker: "Worker", body: Body, progress: Progress) -> dict[str, Any]:
    """Compare two models on one text: loss by symbol and kind of symbol, samples, and copies from a training text."""
    model, name = _check_unidirectional(worker.model, worker.session.name), worker.session.name
    document = worker.document(get_string(body, "text"), get_int(body, "symbols", 20_000, 100, 200_000))
    symbols, other = document.symbols, get_string(body, "other")
    if other == "n-gram":
        half = len(symbols) // 2
        other_model = count_ngrams(model, symbols[:half], get_int(body, "order", 6, 1, 20))
        symbols, other_name = symbols[half:], f"a {body.get('order', 6)}-gram"
    elif other == "untrained":
        other_model, other_name = untrained(model), "the same untrained"
    else:
        other_model, other_name = _check_unidirectional(worker.other(other), other), other
    models = {name: model, other_name: other_model}
    peers: dict[str, LanguageModel] = {}
    peer_names = [peer["model"] for peer in worker.session.peers() if "model" in peer]
    if other in peer_names:  # rank all bundled models that were trained on the same text
        peers = {peer: _check_unidirectional(worker.other(peer), peer) for peer in peer_names if peer != other}
    train = get_string(body, "train")
    comparing, copying = split_progress(progress, [0.4, 0.6] if train else [0.6, 0.4])
    losses = compare_losses_of(models | peers, symbols, progress=comparing)
    seed, temperature = get_int(body, "seed", 0, 0, 1 << 31), get_float(body, "temperature", 0.7)
    options: dict[str, Any] = {"prompt": get_string(body, "prompt")[:500], "temperature": temperature}
    rows = []
    for symbol_class, mask in losses.classes.items():
        interval = [round(float(value), 3) for value in losses.difference(name, other_name, symbol_class)]
        means = [round(losses.mean(model_name, symbol_class), 3) for model_name in models]
        rows.append({"class": symbol_class, "count": int(mask.sum()), "bits": means, "difference": interval})
    written = samples(models, limit=200, seed=seed, **options)
    answer = {
        "models": list(models),
        "symbols": symbols[:PREVIEW_SYMBOLS],
        "words": model.settings.text.unit == "word",
        "bits": np.round(losses.bits[:2, :PREVIEW_SYMBOLS], 2).tolist(),
        "total": len(symbols),
        "classes": rows,
        "ranking": rank_models(losses),
        "counted_on": "the first half of this text" if other == "n-gram" else "",
        "samples": [{"model": sample.model, "text": sample.text} for sample in written],
    }
    if train:
        answer |= _find_copies(worker, models, answer, train, (seed, options), copying)
    return answer


def rank_models(losses: Losses) -> list[dict[str, Any]]:
    """Rank models by mean loss, with the paired difference to the best model and its 95% interval."""
    order = sorted(losses.models, key=losses.mean)
    rows = []
    for name in order:
        difference = [round(float(value), 3) for value in losses.difference(name, order[0])]
        rows.append({"model": name, "bits": round(losses.mean(name), 3), "difference": difference})
    return rows


def _check_unidirectional(model: Any, name: str) -> LanguageModel:
    if not isinstance(model, LanguageModel):
        raise SettingError(f"{name} is bidirectional; only unidirectional language models can be compared.")
    return model


def _find_copies(
    worker: "Worker",
    models: Mapping[str, LanguageModel],
    answer: Mapping[str, Any],
    train: str,
    sampling: tuple[int, dict[str, Any]],
    progress: Progress,
) -> dict[str, Any]:
    """Return the share of long samples and of the evaluated text that occurs in the training text, by length of the
    copies, and the samples with their copies marked."""
    model = next(iter(models.values()))
    reading, writing, searching = split_progress(progress, [0.2, 0.2, 0.6])
    training, title = worker.training_ids(train, reading)
    reading(1.0)
    num_symbols = len(training)
    ids_by_model: dict[str, list[np.ndarray]] = {name: [] for name in models}
    seed, options = sampling
    for n in range(NUM_SAMPLES):
        for sample in samples(models, limit=SAMPLE_SYMBOLS, seed=seed + 1 + n, **options):
            ids_by_model[sample.model].append(model.encode(sample.text))
        writing((n + 1) / NUM_SAMPLES)
    sources = {f"samples of {name}": np.concatenate(arrays) for name, arrays in ids_by_model.items()}
    sources["the evaluated text"] = model.vocabulary.ids(answer["symbols"])
    documents = [read(model, sample["text"]) if sample["text"].strip() else None for sample in answer["samples"]]
    texts = [*sources.values(), *(model.vocabulary.ids(doc.symbols if doc else []) for doc in documents)]
    rows: list[dict[str, Any]] = [{"name": name, "shares": [], "symbols": len(ids)} for name, ids in sources.items()]
    marked: list[dict[str, Any]] = []
    lengths = COPY_LENGTHS[model.settings.text.unit]
    for index, (length, report) in enumerate(zip(lengths, split_progress(searching, lengths), strict=True)):
        starts = find_copies(texts, training, length, report)
        for row, is_copied in zip(rows, starts, strict=False):
            row["shares"].append(100 * float(is_copied.mean()) if len(is_copied) else None)
        if index == MARKED_LENGTH:
            for sample, document, mask in zip(answer["samples"], documents, starts[len(rows) :], strict=True):
                parts = split_at_copies(document, sample["text"], cover_copies(mask, length))
                marked.append(sample | {"parts": parts})
        if not any(is_copied.any() for is_copied in starts):
            training = training[:0]  # there are no longer copies either
    copies = {"of": title, "symbols": num_symbols, "lengths": lengths, "marked": lengths[MARKED_LENGTH], "rows": rows}
    return {"copies": copies, "samples": marked}


def load_training_ids(worker: "Worker", name: str, progress: Progress) -> tuple[np.ndarray, str]:
    """Return the ids and the title of a training text: the file given on the command line, or a text of the page."""
    model, session = worker.model, worker.session
    assert isinstance(model, LanguageModel)
    if name != TRAIN:
        return model.vocabulary.ids(worker.document(name, 1 << 30).symbols), session.texts.get_passage(name).title
    path = session.extras.train
    if path is None:
        raise SettingError("There is no training text; start with relmo explore MODEL --train FILE.")
    size = max(path.stat().st_size, 1)
    if size > MAX_TRAIN_BYTES:
        raise SettingError(f"{path.name} has {size >> 20:,} MB; at most {MAX_TRAIN_BYTES >> 20:,} MB are supported.")
    with tempfile.TemporaryDirectory() as scratch:
        report = lambda num_bytes: progress(min(num_bytes / size, 1.0))  # noqa: E731
        stream = encode_file(str(path), model.settings.text, model.vocabulary, Path(scratch), report)
        return np.array(stream.ids), path.name


def cover_copies(starts: np.ndarray, length: int) -> np.ndarray:
    """Return which symbols are inside a copy of this length that begins at a marked position; (T,) of bool."""
    inside = np.zeros(len(starts) + length - 1, dtype=bool)
    for start in np.flatnonzero(starts):
        inside[start : start + length] = True
    return inside


def split_at_copies(document: Document | None, text: str, inside: np.ndarray) -> list[list[Any]]:
    """Split a text into parts [text, is a copy]."""
    if document is None:
        return [[text, False]]
    parts: list[list[Any]] = []
    begin = 0
    for position, (_, end) in enumerate(document.spans.tolist()):
        is_copy = position < len(inside) and bool(inside[position])
        if parts and parts[-1][1] == is_copy:
            parts[-1][0] += document.text[begin:end]
        else:
            parts.append([document.text[begin:end], is_copy])
        begin = end
    return [*parts, [document.text[begin:], False]] if begin < len(document.text) else parts


def emerge(worker: "Worker", body: Body, progress: Progress) -> dict[str, Any]:
    """Return a unit's correlation with a feature and its values over a window of the text, by checkpoint.

    The checkpoints are the untrained network, the companions with the same units, and this model.
    """
    model, feature = _check_unidirectional(worker.model, worker.session.name), get_string(body, "feature")
    document = worker.document(get_string(body, "text"), get_int(body, "symbols", 10_000, 100, 50_000))
    track = tracks(document, [feature])[feature]
    if np.ptp(track) == 0:
        raise SettingError(f"{feature} does not change in this text; choose another feature or another text.")
    checkpoints, excluded = _load_checkpoints(worker, model, document)
    address = get_string(body, "unit")
    correlating, tracing = split_progress(progress, [0.8, 0.2])
    unit = parse_unit(address) if address else None
    report = emergence(checkpoints, document, track, unit=unit, progress=correlating)
    unit, begin = report.unit, find_busiest(track, STRIP_SYMBOLS)
    window = slice(begin, begin + STRIP_SYMBOLS)
    frames = report.as_dict()["models"]
    for index, (frame, checkpoint, r) in enumerate(zip(frames, checkpoints.values(), report.r, strict=True)):
        values = trace(checkpoint, document.texts, layers=[unit.layer], keep=(unit.state,)).unit(*unit[:3])
        values = values - values.mean()
        frame["values"] = np.round(values[window].astype(float), 3).tolist()
        frame["scale"] = colour_scale(values)
        frame["best_unit"] = format_unit(report.units[int(np.abs(r).argmax())])
        tracing((index + 1) / len(checkpoints))
    return {
        "unit": format_unit(unit),
        "feature": feature,
        "symbols": len(document),
        "frames": frames,
        "stretch": document.symbols[window],
        "track": np.round(track[window].astype(float), 3).tolist(),
        "words": model.settings.text.unit == "word",
        "left_out": excluded,
    }


def _load_checkpoints(
    worker: "Worker", model: LanguageModel, document: Document
) -> tuple[dict[str, LanguageModel], list[str]]:
    """Return the checkpoints by name, and the names of the companions that have other units."""
    texts = document.head(20).texts

    def get_units(checkpoint: Any) -> list[Unit] | None:
        try:
            check_comparable({"model": model, "checkpoint": checkpoint})
            return list_units(trace(checkpoint, texts, keep=("h",)), ("h",))
        except (AttributeError, ModelError, SettingError):  # bidirectional, an n-gram model, another vocabulary
            return None

    units, excluded = get_units(model), []
    checkpoints = {"untrained": untrained(model)}
    for name in worker.session.extras.models:
        companion: Any = worker.other(name)
        if get_units(companion) == units and companion.settings.model.cell == model.settings.model.cell:
            checkpoints[name] = companion
        else:
            excluded.append(name)
    return checkpoints | {worker.session.name: model}, excluded

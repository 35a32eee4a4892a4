"""Comparison of models: losses by symbol, samples, copies from the training text, and the emergence of a unit."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.analysis.core.causal import list_units
from relmo.analysis.core.features import Document, read, tracks
from relmo.analysis.core.show import split_progress, with_progress
from relmo.analysis.core.trace import trace
from relmo.analysis.units.compare import (
    COPY_LENGTHS,
    check_comparable,
    compare_losses_of,
    emergence,
    find_copies,
    ngram_like,
    samples,
)
from relmo.errors import ModelError, SettingError
from relmo.explorer.params import Body, colour_scale, format_unit, parse_unit
from relmo.explorer.session import find_busiest
from relmo.explorer.write import check_generates
from relmo.models.lm import LanguageModel
from relmo.models.sequence_model import untrained
from relmo.settings.fields import Progress
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
    model, name = check_generates(worker.model, worker.session.name), worker.session.name
    document = worker.document(body.string("text"), body.integer("symbols", 20_000, 100, 200_000))
    symbols, other = document.symbols, body.string("other")
    if other == "n-gram":
        half = len(symbols) // 2
        ids, ngram_order = model.vocabulary.ids(symbols[:half]), body.integer("order", 6, 1, 20)
        other_model = ngram_like(model, ids, order=ngram_order, once_up_to=ngram_order)
        symbols, other_name = symbols[half:], f"a {ngram_order}-gram"
    elif other == "untrained":
        other_model, other_name = untrained(model), "the same untrained"
    else:
        other_model, other_name = check_generates(worker.other(other), other), other
    models = {name: model, other_name: other_model}
    peers: dict[str, LanguageModel] = {}
    peer_names = [peer["model"] for peer in worker.session.peers() if "model" in peer]
    if other in peer_names:  # rank all bundled models that were trained on the same text
        peers = {peer: check_generates(worker.other(peer), peer) for peer in peer_names if peer != other}
    train = body.string("train")
    comparing, copying = split_progress(progress, [0.4, 0.6] if train else [0.6, 0.4])
    losses = compare_losses_of(models | peers, symbols, progress=comparing)
    seed, temperature = body.integer("seed", 0, 0, 1 << 31), body.real("temperature", 0.7)
    options: dict[str, Any] = {"prompt": body.string("prompt")[:500], "temperature": temperature}
    rows, ranking = [], []
    for symbol_class, mask in losses.classes.items():
        interval = [round(float(value), 3) for value in losses.difference(name, other_name, symbol_class)]
        means = [round(losses.mean(model_name, symbol_class), 3) for model_name in models]
        rows.append({"class": symbol_class, "count": int(mask.sum()), "bits": means, "difference": interval})
    order = sorted(losses.models, key=losses.mean)
    for model_name in order:  # with the paired difference to the best model and its 95% interval
        interval = [round(float(value), 3) for value in losses.difference(model_name, order[0])]
        ranking.append({"model": model_name, "bits": round(losses.mean(model_name), 3), "difference": interval})
    written = samples(models, limit=200, seed=seed, **options)
    answer = {
        "models": list(models),
        "symbols": symbols[:PREVIEW_SYMBOLS],
        "words": model.settings.text.unit == "word",
        "bits": np.round(losses.bits[:2, :PREVIEW_SYMBOLS], 2).tolist(),
        "total": len(symbols),
        "classes": rows,
        "ranking": ranking,
        "counted_on": "the first half of this text" if other == "n-gram" else "",
        "samples": [{"model": sample.model, "text": sample.text} for sample in written],
    }
    if train:
        answer |= _find_copies(worker, models, answer, train, (seed, options), copying)
    return answer


def _find_copies(
    worker: "Worker",
    models: Mapping[str, LanguageModel],
    answer: Mapping[str, Any],
    train: str,
    sampling: tuple[int, dict[str, Any]],
    progress: Progress,
) -> dict[str, Any]:
    """Return the shares of long samples and of the text that are copies of the training text, and marked samples."""
    model = next(iter(models.values()))
    reading, writing, searching = split_progress(progress, [0.2, 0.2, 0.6])
    if train not in worker.training:  # the last training text is cached
        path = worker.session.extras.train
        if train != TRAIN:  # a text of the page
            ids = model.vocabulary.ids(worker.document(train, 1 << 30).symbols)
            worker.training = {train: (ids, worker.session.texts.get_passage(train).title)}
        elif path is None:
            raise SettingError("There is no training text; start with relmo explore MODEL --train FILE.")
        else:
            size = max(path.stat().st_size, 1)
            if size > MAX_TRAIN_BYTES:
                megabytes = f"{size >> 20:,} MB; at most {MAX_TRAIN_BYTES >> 20:,} MB are supported."
                raise SettingError(f"{path.name} has {megabytes}")
            with tempfile.TemporaryDirectory() as scratch:
                report_bytes = lambda num_bytes: reading(min(num_bytes / size, 1.0))  # noqa: E731
                stream = encode_file(str(path), model.settings.text, model.vocabulary, Path(scratch), report_bytes)
                worker.training = {train: (np.array(stream.ids), path.name)}
    training, title = worker.training[train]
    reading(1.0)
    num_symbols = len(training)
    ids_by_model: dict[str, list[np.ndarray]] = {name: [] for name in models}
    seed, options = sampling
    for n in with_progress(range(NUM_SAMPLES), writing):
        for sample in samples(models, limit=SAMPLE_SYMBOLS, seed=seed + 1 + n, **options):
            ids_by_model[sample.model].append(model.encode(sample.text))
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
                parts = split_at_copies(document, mask, length) if document else [[sample["text"], False]]
                marked.append(sample | {"parts": parts})
        if not any(is_copied.any() for is_copied in starts):
            training = training[:0]  # there are no longer copies either
    copies = {"of": title, "symbols": num_symbols, "lengths": lengths, "marked": lengths[MARKED_LENGTH], "rows": rows}
    return {"copies": copies, "samples": marked}


def split_at_copies(document: Document, starts: np.ndarray, length: int) -> list[list[Any]]:
    """Split a text into parts [text, is a copy], of the copies of this length that begin at the marked positions."""
    inside = np.zeros(len(document), dtype=bool)
    for start in np.flatnonzero(starts):
        inside[start : start + length] = True
    parts: list[list[Any]] = []
    begin = 0
    for is_copy, (_, end) in zip(inside.tolist(), document.spans.tolist(), strict=True):
        if parts and parts[-1][1] == is_copy:
            parts[-1][0] += document.text[begin:end]
        else:
            parts.append([document.text[begin:end], is_copy])
        begin = end
    return [*parts, [document.text[begin:], False]] if begin < len(document.text) else parts


def emerge(worker: "Worker", body: Body, progress: Progress) -> dict[str, Any]:
    """Return a unit's correlation with a feature and its values, untrained, in the companions, and in this model."""
    model, feature = check_generates(worker.model, worker.session.name), body.string("feature")
    document = worker.document(body.string("text"), body.integer("symbols", 10_000, 100, 50_000))
    track = tracks(document, [feature])[feature]
    if np.ptp(track) == 0:
        raise SettingError(f"{feature} does not change in this text; choose another feature or another text.")
    companions: dict[str, Any] = {name: worker.other(name) for name in worker.session.extras.models}
    units: list[Any] = []
    for candidate in (model, *companions.values()):
        try:
            check_comparable({"model": model, "checkpoint": candidate})
            units.append(list_units(trace(candidate, document.head(20).texts, keep=("h",)), ("h",)))
        except (AttributeError, ModelError, SettingError):  # bidirectional, an n-gram model, another vocabulary
            units.append(None)
    checkpoints, excluded = {"untrained": untrained(model)}, []
    for (name, companion), companion_units in zip(companions.items(), units[1:], strict=True):
        if companion_units == units[0] and companion.settings.model.cell == model.settings.model.cell:
            checkpoints[name] = companion
        else:  # it has other units
            excluded.append(name)
    checkpoints |= {worker.session.name: model}
    address = body.string("unit")
    correlating, tracing = split_progress(progress, [0.8, 0.2])
    unit = parse_unit(address) if address else None
    report = emergence(checkpoints, document, track, unit=unit, progress=correlating)
    unit, begin = report.unit, find_busiest(track, STRIP_SYMBOLS)
    window = slice(begin, begin + STRIP_SYMBOLS)
    frames = report.as_dict()["models"]
    rows = list(zip(frames, checkpoints.values(), report.r, strict=True))
    for frame, checkpoint, r in with_progress(rows, tracing):
        values = trace(checkpoint, document.texts, layers=[unit.layer], keep=(unit.state,)).unit(*unit[:3])
        values = values - values.mean()
        frame["values"] = np.round(values[window].astype(float), 3).tolist()
        frame["scale"] = colour_scale(values)
        frame["best_unit"] = format_unit(report.units[int(np.abs(r).argmax())])
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

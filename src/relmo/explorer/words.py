"""Words in context: their nearest occurrences, a projection of all occurrences, and tag probes by layer."""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.analysis.core.effects import wilson
from relmo.analysis.core.features import Document
from relmo.analysis.core.show import split_progress
from relmo.analysis.meaning.occurrences import build_index, meaning, normalize
from relmo.analysis.meaning.probe import linear_probe, most_frequent_labels
from relmo.errors import SettingError
from relmo.explorer.params import Body
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.sequence_model import untrained
from relmo.settings.fields import Progress

if TYPE_CHECKING:
    from relmo.explorer.work import Worker

MAX_INDEX_WORDS = 50_000
MAX_INDEXES = 4  # cached
MAX_POINTS = 300  # occurrences that are drawn
NUM_NEIGHBOURS = 8  # words on each side of an occurrence
MIN_VARIANCE = 1e-3  # below which vectors differ by rounding alone
MAX_TAGGED_WORDS = 8000  # for training and testing a probe
BATCH_SENTENCES = 64


def _check_bidirectional(worker: "Worker") -> BiLM:
    model: Any = worker.model
    if not model.can_embed:
        raise SettingError("Words in context need a bidirectional model, such as small.")
    return model


def mean(worker: "Worker", body: Body, progress: Progress) -> dict[str, Any]:
    """Return the nearest occurrences of a word by layer, its static neighbours, and a projection of its occurrences."""
    model, text = _check_bidirectional(worker), body.string("text")
    words = body.string("sentence")[:2000].split()  # as the page offers them
    position = body.integer("position", 0, 0, max(len(words) - 1, 0))
    if not words:
        raise SettingError("The sentence is empty.")
    document = worker.document(text, MAX_INDEX_WORDS)
    building, searching = split_progress(progress, [0.85, 0.15])
    indexes, key = worker.indexes, worker.session.texts.get_passage(text)  # the most recently used are cached
    if key not in indexes:
        if worker.scratch is None:
            worker.scratch = tempfile.TemporaryDirectory(prefix="relmo-explore-", ignore_cleanup_errors=True)
        folder, total = Path(tempfile.mkdtemp(dir=worker.scratch.name)) / "index", max(len(document), 1)
        report = lambda count: building(min(count / total, 1.0))  # noqa: E731
        indexes[key] = build_index(folder, model, document.texts, progress=report)
    indexes.move_to_end(key)
    while len(indexes) > MAX_INDEXES:
        shutil.rmtree(indexes.popitem(last=False)[1].folder, ignore_errors=True)
    index = indexes[key]
    building(1.0)
    vectors = load("words", kinds="skipgram", device="cpu")
    k, same_word = body.integer("k", 10, 1, 50), body.get("same_word") is True
    neighbours = meaning(model, index, words, position, k=k, same_word=same_word, vectors=vectors)
    searching(0.66)
    occurrences, tags = index.places_of(words[position]), get_tags(document)
    plane: dict[str, Any] = {"word": words[position], "count": len(occurrences), "points": [], "layers": []}
    if len(occurrences) > MAX_POINTS:
        occurrences = np.sort(np.random.default_rng(0).choice(occurrences, MAX_POINTS, replace=False))
    for occurrence in occurrences.tolist():
        sentence, i = index.sentence(occurrence)
        before, after = sentence[max(0, i - NUM_NEIGHBOURS) : i], sentence[i + 1 : i + 1 + NUM_NEIGHBOURS]
        point = {"before": " ".join(before), "word": sentence[i], "after": " ".join(after)}
        plane["points"].append(point | ({"tag": tags[occurrence]} if tags else {}))
    if len(occurrences):
        query = model.embed([words])[0][:, position]  # (layers, D)
        for layer in range(index.layers):
            plane["layers"].append(project(index.vectors(layer, occurrences), normalize(query[layer][None])))
    return {
        "words": words,
        "position": position,
        "layers": neighbours.as_dict()["layers"],
        "static": [[word, round(float(cosine), 3)] for word, cosine in neighbours.static or []],
        "symbols": len(document),
        "plane": plane,
    }


def get_tags(document: Document) -> list[str] | None:
    """Return the universal tag of every word of a text from a CoNLL-U file; None for other texts."""
    if document.words is None:
        return None
    tags = [word.upos for sentence in document.words for word in sentence]
    indices = np.searchsorted(document.word_spans[:, 0], document.spans[:, 0], side="right") - 1
    return [tags[index] for index in indices.tolist()]  # a word with a space in it is read as several


def project(vectors: np.ndarray, query: np.ndarray) -> dict[str, Any]:
    """Project unit vectors, the query (1, D) before the others (n, D), on two principal components; add cosines."""
    rows = normalize(np.concatenate([query, vectors]).astype(np.float64))  # eight bits leave a length of nearly 1
    centred = rows - rows.mean(axis=0)
    total = float(np.square(centred).sum())
    cosines = np.round((rows[1:] @ rows[0]).astype(float), 3).tolist()
    if total / len(rows) < MIN_VARIANCE:
        return {"x": [0.0] * len(rows), "y": [0.0] * len(rows), "shares": None, "cosines": cosines}
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.where(axes[:2].sum(axis=1) < 0, -1.0, 1.0)[:, None]  # signs that do not depend on the solver
    plane = np.zeros((len(rows), 2))
    plane[:, : len(axes)] = centred @ axes.T
    shares = np.square(sizes[:2]) / total
    x, y = np.round(plane, 4).T.tolist()
    return {"x": x, "y": y, "shares": np.round(shares, 3).tolist(), "cosines": cosines}


def tag_layers(worker: "Worker", body: Body, progress: Progress) -> dict[str, Any]:
    """Return the accuracy of a linear probe for tags by layer, of the untrained network and of most frequent tags."""
    model, document = _check_bidirectional(worker), worker.document(body.string("text"), MAX_TAGGED_WORDS)
    tags = get_tags(document)
    if tags is None:
        raise SettingError("This text has no tags; open a .conllu file: relmo explore small dev.conllu.")
    labels, symbols = np.array(tags), np.array(document.symbols)
    sentence_index = np.searchsorted(document.starts, np.arange(len(document)), side="right") - 1
    test, held_out = sentence_index % 5 == 4, sentence_index % 5 == 3
    if len({*labels[held_out]}) < 2 or not test.any() or len(document.starts) < 10:
        raise SettingError("The text is too short to train a probe; it needs ten sentences, better hundreds.")
    models, num_layers = {"": model, "the same untrained": untrained(model)}, model.network.layer_count
    reports = iter(split_progress(progress, [1.0] * len(models) * (num_layers + 1)))
    rows = []
    for name, bilm in models.items():
        arrays, report, sentences = [], next(reports), document.texts
        for begin in range(0, len(sentences), BATCH_SENTENCES):
            arrays += bilm.embed(sentences[begin : begin + BATCH_SENTENCES])
            report(min(1.0, (begin + BATCH_SENTENCES) / len(sentences)))
        vectors = np.concatenate(arrays, axis=1)  # (layers, N, D)
        for layer in range(num_layers):
            train_vectors, train_labels = vectors[layer][~test], labels[~test].tolist()
            probe = linear_probe(train_vectors, train_labels, held_out=held_out[~test], device=model.device)
            is_correct = probe.mark_correct(vectors[layer][test], labels[test].tolist())
            rows.append({"name": name, "layer": layer, **_accuracy(is_correct)})
            next(reports)(1.0)
    frequent = most_frequent_labels(symbols[~test].tolist(), labels[~test].tolist(), symbols[test].tolist())
    baseline = _accuracy(np.array(frequent) == labels[test])
    return {"rows": rows, "most_frequent": baseline, "words": int((~test).sum()), "asked": int(test.sum())}


def _accuracy(is_correct: np.ndarray) -> dict[str, float]:
    share = wilson(float(is_correct.sum()), len(is_correct))
    return {"value": 100 * share.value, "low": 100 * share.low, "high": 100 * share.high}

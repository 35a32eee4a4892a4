"""Words in context: their nearest occurrences, all their occurrences on a plane, and how well the vectors of each layer
tell their tags."""

import shutil
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from relmo.analysis.core.features import Document
from relmo.analysis.core.intervals import wilson
from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.untrained import untrained
from relmo.analysis.meaning.lookup import meaning
from relmo.analysis.meaning.neighbours import unit
from relmo.analysis.meaning.occurrences import OccurrenceIndex, build_index
from relmo.analysis.meaning.probe import linear_probe, usual_labels
from relmo.errors import SettingError
from relmo.explorer.given import Given, number, string
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.settings.arguments import Progress

WORDS = 50_000  # of a text that an index has
KEPT = 4  # indexes
POINTS = 300  # occurrences that are drawn
AROUND = 8  # words on each side
SAME = 1e-3  # mean square of distances below which vectors differ by rounding alone
TAGGED = 8000  # words that a classifier of tags is fitted to and asked about
SENTENCES = 64  # embedded together


class Indexes:
    """Indexes of texts: each is built once, and kept until the explorer ends or others have come."""

    def __init__(self) -> None:
        self.scratch: tempfile.TemporaryDirectory[str] | None = None
        self.kept: OrderedDict[Any, OccurrenceIndex] = OrderedDict()
        self.built = 0

    def of(self, key: Any, model: BiLM, document: Document, progress: Progress) -> OccurrenceIndex:
        """The index of a text, built where there is none yet."""
        if key not in self.kept:
            self.scratch = self.scratch or tempfile.TemporaryDirectory(
                prefix="relmo-explore-", ignore_cleanup_errors=True
            )
            folder, total = Path(self.scratch.name) / str(self.built), max(len(document), 1)
            self.built += 1
            self.kept[key] = build_index(folder, model, document.texts, progress=lambda count: progress(count / total))
        self.kept.move_to_end(key)
        while len(self.kept) > KEPT:
            shutil.rmtree(self.kept.popitem(last=False)[1].folder, ignore_errors=True)
        return self.kept[key]

    def close(self) -> None:
        """Removes them all."""
        self.kept.clear()
        if self.scratch is not None:
            self.scratch.cleanup()
            self.scratch = None


def _both_ways(worker: Any) -> BiLM:
    """Returns the model where it is bidirectional; else raises."""
    if not isinstance(worker.model, BiLM):
        raise SettingError("words in context are looked up with a model that reads both ways, such as small")
    return worker.model


def mean(worker: Any, given: Given, progress: Progress) -> dict[str, Any]:
    """The nearest occurrences in the text of a word of a sentence, layer by layer; its static neighbours; and all its
    occurrences on a plane."""
    model, sentence, text = _both_ways(worker), string(given, "sentence")[:2000], string(given, "text")
    words = sentence.split()  # as the page offers them to choose from
    place = number(given, "position", 0, 0, max(len(words) - 1, 0))
    if not words:
        raise SettingError("the sentence is empty; write one")
    document = worker.document(text, WORDS)
    building, looking = split_progress(progress, [0.85, 0.15])
    index = worker.indexes.of(worker.session.passage(text), model, document, lambda share: building(min(share, 1.0)))
    building(1.0)
    vectors = load("words", kinds="skipgram", device="cpu")
    same = given.get("same_word") is True
    found = meaning(model, index, words, place, k=number(given, "k", 10, 1, 50), same_word=same, vectors=vectors)
    looking(0.66)
    static = [[word, round(float(cosine), 3)] for word, cosine in found.static or []]
    answer = {"words": words, "position": place, "layers": found.as_dict()["layers"], "static": static}
    return answer | {"symbols": len(document), "plane": _plane(model, index, words, place, tags_of(document))}


def tags_of(document: Document) -> list[str] | None:
    """The universal tag of every word of a text from a CoNLL-U file; None of any other."""
    if document.words is None:
        return None
    tags = [word.upos for sentence in document.words for word in sentence]
    inside = np.searchsorted(document.word_spans[:, 0], document.spans[:, 0], side="right") - 1
    return [tags[word] for word in inside.tolist()]  # a word with a space in it is read as several


def _plane(model: BiLM, index: OccurrenceIndex, words: list[str], place: int, tags: list[str] | None) -> dict[str, Any]:
    """The occurrences of a word in each layer, on the two directions in which their vectors differ most (principal
    components), and the word that was asked about among them."""
    places = index.places_of(words[place])
    count = len(places)
    if count > POINTS:
        places = np.sort(np.random.default_rng(0).choice(places, POINTS, replace=False))
    points = []
    for at in places.tolist():
        sentence, here = index.sentence(at)
        before, after = sentence[max(0, here - AROUND) : here], sentence[here + 1 : here + 1 + AROUND]
        point = {"before": " ".join(before), "word": sentence[here], "after": " ".join(after)}
        points.append(point | ({"tag": tags[at]} if tags else {}))
    own = model.embed([words])[0][:, place]  # (layers, D)
    layers = [projected(index.vectors(k, places), unit(own[k][None])) for k in range(index.layers)] if count else []
    return {"word": words[place], "count": count, "points": points, "layers": layers}


def projected(vectors: np.ndarray, own: np.ndarray) -> dict[str, Any]:
    """Vectors (n, D) and one's own (1, D), all of length 1, on their first two principal components; the share of the
    variance that each component has, None where all vectors are the same; and the cosine of each to one's own."""
    rows = unit(np.concatenate([own, vectors]).astype(np.float64))  # eight bits leave a length of nearly 1
    centred = rows - rows.mean(axis=0)
    total = float(np.square(centred).sum())
    cosines = np.round((rows[1:] @ rows[0]).astype(float), 3).tolist()
    if total / len(rows) < SAME:
        return {"x": [0.0] * len(rows), "y": [0.0] * len(rows), "shares": None, "cosines": cosines}
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.where(axes[:2].sum(axis=1) < 0, -1.0, 1.0)[:, None]  # the same picture each time
    flat = np.zeros((len(rows), 2))
    flat[:, : len(axes)] = centred @ axes.T
    shares = np.square(sizes[:2]) / total
    x, y = np.round(flat, 4).T.tolist()
    return {"x": x, "y": y, "shares": np.round(shares, 3).tolist(), "cosines": cosines}


def tag_layers(worker: Any, given: Given, progress: Progress) -> dict[str, Any]:
    """How often a linear classifier of each layer's vectors finds a word's universal tag, on sentences that it has not
    seen. The same is asked of the network untrained, and of each word's most frequent tag."""
    model = _both_ways(worker)
    document = worker.document(string(given, "text"), TAGGED)
    tags = tags_of(document)
    if tags is None:
        raise SettingError("this text has no tags; open a .conllu file: relmo explore small dev.conllu")
    number_of = np.searchsorted(document.starts, np.arange(len(document)), side="right") - 1  # each word's sentence
    test, held = number_of % 5 == 4, number_of % 5 == 3
    if len({*np.array(tags)[held]}) < 2 or not test.any() or len(document.starts) < 10:
        raise SettingError("the text is too short to learn tags from; ten sentences are needed, and better hundreds")
    models = {"": model, "the same untrained": untrained(model)}
    layers = model.network.layer_count
    tell = iter(split_progress(progress, [1.0] * len(models) * (layers + 1)))
    labels, rows = np.array(tags), []
    for name, each in models.items():
        vectors = _embedded(each, document.texts, next(tell))
        for layer in range(layers):
            probe = linear_probe(
                vectors[layer][~test], labels[~test].tolist(), held_out=held[~test], device=model.device
            )
            right = probe.right(vectors[layer][test], labels[test].tolist())
            rows.append({"name": name, "layer": layer, **_share_of(right)})
            next(tell)(1.0)
    symbols = np.array(document.symbols)
    usual = np.array(usual_labels(symbols[~test].tolist(), labels[~test].tolist(), symbols[test].tolist()))
    floor = _share_of(usual == labels[test])
    return {"rows": rows, "most_frequent": floor, "words": int((~test).sum()), "asked": int(test.sum())}


def _embedded(model: BiLM, sentences: list[list[str]], progress: Progress) -> np.ndarray:
    """The vectors of all words, (layers, N, D), some sentences at a time."""
    found = []
    for begin in range(0, len(sentences), SENTENCES):
        found += model.embed(sentences[begin : begin + SENTENCES])
        progress(min(1.0, (begin + SENTENCES) / len(sentences)))
    return np.concatenate(found, axis=1)


def _share_of(right: np.ndarray) -> dict[str, float]:
    share = wilson(float(right.sum()), len(right))
    return {"value": 100 * share.value, "low": 100 * share.low, "high": 100 * share.high}

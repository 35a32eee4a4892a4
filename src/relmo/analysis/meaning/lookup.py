"""Word meaning in context: nearest occurrences in a corpus by layer, static neighbours, and learned layer weights.

    result = meaning(model, index, "He made a spectacular play .", "play")
    result.layers[2][0].text, result.layers[2][0].cosine
    mix_weights(relmo.load("models/tagger"))

Layer 0 has no context: all occurrences of a word have the same vector there. What the other layers add is what context
adds. The query sentence is excluded from the corpus.

    Peters et al. 2018, Deep contextualized word representations, Table 4 and Figure 2
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from relmo.analysis.core.show import Table, format_number
from relmo.analysis.meaning.occurrences import OccurrenceIndex
from relmo.errors import ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.nn.scalar_mix import ScalarMix
from relmo.store.references import bilm_digest
from relmo.tasks.task import Task

CONTEXT_WORDS = 8  # on each side of an occurrence


class Occurrence(NamedTuple):
    """A word in a corpus: its sentence, its position there, its index in the corpus, its cosine to the query."""

    words: list[str]
    position: int
    place: int
    cosine: float

    @property
    def text(self) -> str:
        """The word in brackets with its context."""
        return format_context(self.words, self.position, CONTEXT_WORDS)


def format_context(words: Sequence[str], position: int, num_words: int) -> str:
    """Return the word at `position` in brackets with up to `num_words` words on each side."""
    begin, end = max(0, position - num_words), position + num_words + 1
    context = [*words[begin:position], f"[{words[position]}]", *words[position + 1 : end]]
    return " ".join([*(["…"] if begin else []), *context, *(["…"] if end < len(words) else [])])


@dataclass(frozen=True)
class Meaning:
    """A word in its sentence, its nearest occurrences by layer, and the neighbours of its static vector."""

    words: list[str]
    position: int
    layers: list[list[Occurrence]]
    static: list[tuple[str, float]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as plain Python values."""
        return asdict(self) | {"layers": [[occurrence._asdict() for occurrence in layer] for layer in self.layers]}

    def tables(self) -> list[Table]:
        """Return one table per layer and one of the static neighbours, without tables that have no rows."""
        query, tables = format_context(self.words, self.position, CONTEXT_WORDS), []
        for number, layer in enumerate(self.layers):
            title = f"layer {number}{'' if number else ' (without context)'}: {query}"
            rows = [[occurrence.text, format_number(occurrence.cosine)] for occurrence in layer]
            if rows:
                tables.append(Table(["occurrence", "cosine"], rows, title))
        if self.static:
            rows = [[word, format_number(cosine)] for word, cosine in self.static]
            tables.append(Table(["word", "cosine"], rows, "neighbours of the word's static vector"))
        return tables

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())


def meaning(
    model: BiLM,
    index: OccurrenceIndex,
    sentence: str | Sequence[str],
    word: str | int,
    *,
    k: int = 10,
    same_word: bool = False,
    vectors: WordVectors | None = None,
) -> Meaning:
    """Return the k nearest occurrences of a word of a sentence in each layer.

    word         the word (its first occurrence is used) or its position from 0
    same_word    search only among other occurrences of the same word
    vectors      static vectors; their neighbours of the word are returned too
    """
    if index.metadata.get("model") != bilm_digest(model):
        other = "another model" if index.source is None else f"another model, {index.source}"
        raise ModelError(f"{index.folder}: was built with {other}; use that one, or build an index with this one")
    words = model.tokens(sentence) if isinstance(sentence, str) else list(sentence)
    if isinstance(word, str) and word not in words:
        raise SettingError(f"{word!r} is not among the words of the sentence: {' '.join(words)}")
    position = words.index(word) if isinstance(word, str) else word
    if not 0 <= position < len(words):
        raise SettingError(f"word {word}: the sentence has the words 0 to {len(words) - 1}")
    same = index.places_of(words[position])
    excluded = [place for place in same.tolist() if index.sentence(place)[0] == words]
    layers = []
    for layer, vector in enumerate(model.embed([words])[0][:, position]):  # (D,)
        nearest = index.nearest(vector, layer=layer, k=k, among=same if same_word else None, without=excluded)
        layers.append(
            [
                Occurrence(*index.sentence(int(place)), int(place), float(cosine))
                for place, cosine in zip(nearest.places, nearest.cosines, strict=True)
                if place >= 0 and np.isfinite(cosine)
            ]
        )
    static = None
    if vectors is not None:
        static = vectors.most_similar(words[position], topn=k) if words[position] in vectors else []
    return Meaning(words, position, layers, static)


class Mix(NamedTuple):
    """A scalar mix learned by a task: its module name, the layer weights (which sum to one), and gamma."""

    name: str
    shares: list[float]
    gamma: float


def mix_weights(task: Task[Any, Any]) -> list[Mix]:
    """Return every scalar mix of a trained task's network; an empty list if it uses no ELMo."""
    return [
        Mix(name, torch.softmax(module.weights.detach(), dim=0).tolist(), float(module.gamma.detach()))
        for name, module in task.network.named_modules()
        if isinstance(module, ScalarMix)
    ]


def mix_table(mixes: dict[str, list[Mix]]) -> Table:
    """Return a table with one row per mix of each task."""
    num_layers = max((len(mix.shares) for task_mixes in mixes.values() for mix in task_mixes), default=0)
    rows = []
    for task, task_mixes in mixes.items():
        for mix in task_mixes:
            shares = [format_number(share) for share in mix.shares] + [""] * (num_layers - len(mix.shares))
            rows.append([task, mix.name, *shares, format_number(mix.gamma)])
    columns = ["task", "mix", *(f"layer {layer}" for layer in range(num_layers)), "gamma"]
    return Table(columns, rows, "layer weights of tasks", ["weights sum to one; layer 0 is without context"])

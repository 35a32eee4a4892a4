"""What a word means where it stands: its nearest occurrences in a corpus, layer by layer, beside the neighbours of the
word's static vector; and which layers tasks have chosen.

    found = meaning(model, index, "He made a spectacular play .", "play")
    found.layers[2][0].text, found.layers[2][0].cosine
    mix_weights(relmo.load("models/tagger"))

The layer without context has one vector a word, so all occurrences of a word are equally near there. What the other
layers add is what context adds. The sentence that is asked about is left out of the corpus.

    Peters et al. 2018, Deep contextualized word representations, Table 4 and Figure 2
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from relmo.analysis.core.show import Table, figure
from relmo.analysis.meaning.occurrences import OccurrenceIndex
from relmo.errors import ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.nn.scalar_mix import ScalarMix
from relmo.store.references import bilm_digest
from relmo.tasks.task import Task

AROUND = 8  # words shown on each side


class Occurrence(NamedTuple):
    """A word of a corpus where it stands: its sentence, its position there, its place in the corpus, how near it is."""

    words: list[str]
    position: int
    place: int
    cosine: float

    @property
    def text(self) -> str:
        """Some words around it, itself in brackets."""
        return in_context(self.words, self.position, AROUND)


def in_context(words: Sequence[str], position: int, around: int) -> str:
    """A word in brackets, and so many words on each side."""
    begin, end = max(0, position - around), position + around + 1
    shown = [f"[{word}]" if place == position else word for place, word in enumerate(words)][begin:end]
    return " ".join([*(["…"] if begin else []), *shown, *(["…"] if end < len(words) else [])])


@dataclass(frozen=True)
class Meaning:
    """A word in its sentence, its nearest occurrences by layer, and the neighbours of its static vector."""

    words: list[str]
    position: int
    layers: list[list[Occurrence]]
    static: list[tuple[str, float]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, in plain numbers."""
        return asdict(self) | {"layers": [[each._asdict() for each in layer] for layer in self.layers]}

    def tables(self) -> list[Table]:
        """Return one table per layer and one of the static neighbours, without those that have no rows."""
        title = Occurrence(self.words, self.position, -1, 1.0).text
        found = [
            Table(
                ["occurrence", "cosine"],
                [[each.text, figure(each.cosine)] for each in layer],
                f"layer {number}{' (without context)' if not number else ''}: {title}",
            )
            for number, layer in enumerate(self.layers)
            if layer
        ]
        if self.static:
            rows = [[word, figure(cosine)] for word, cosine in self.static]
            found.append(Table(["word", "cosine"], rows, "neighbours of the word's static vector"))
        return found

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
    """The k nearest occurrences of a word of a sentence, in each layer.

    word         the word, whose first place is taken, or its place from 0
    same_word    look only among other occurrences of the same word
    vectors      static vectors, whose neighbours are shown beside
    """
    if index.about.get("model") != bilm_digest(model):
        other = "another model" if index.source is None else f"another model, {index.source}"
        raise ModelError(f"{index.folder}: was built with {other}; use that one, or build an index with this one")
    words = model.tokens(sentence) if isinstance(sentence, str) else list(sentence)
    position = _place_of(words, word)
    own = model.embed([words])[0][:, position]  # (layers, D)
    same = index.places_of(words[position])
    among = same if same_word else None
    without = [place for place in same.tolist() if index.sentence(place)[0] == words]
    layers = []
    for layer, vector in enumerate(own):
        found = index.nearest(vector, layer=layer, k=k, among=among, without=without)
        layers.append(
            [
                Occurrence(*index.sentence(int(place)), int(place), float(cosine))
                for place, cosine in zip(found.places, found.cosines, strict=True)
                if place >= 0 and np.isfinite(cosine)
            ]
        )
    static = None
    if vectors is not None:
        static = vectors.most_similar(words[position], topn=k) if words[position] in vectors else []
    return Meaning(words, position, layers, static)


def _place_of(words: Sequence[str], word: str | int) -> int:
    """The first place of a word, or the place itself after a check."""
    if isinstance(word, int):
        if not 0 <= word < len(words):
            raise SettingError(f"word {word}: the sentence has the words 0 to {len(words) - 1}")
        return word
    if word not in words:
        raise SettingError(f"{word!r} is not among the words of the sentence: {' '.join(words)}")
    return list(words).index(word)


class Mix(NamedTuple):
    """A scalar mix that a task has learned: which, the layers' shares, which sum to one, and gamma."""

    name: str
    shares: list[float]
    gamma: float


def mix_weights(task: Task[Any, Any]) -> list[Mix]:
    """Every scalar mix of a trained task's network; none where it reads no ELMo."""
    return [
        Mix(name, torch.softmax(module.weights.detach(), dim=0).tolist(), float(module.gamma.detach()))
        for name, module in task.network.named_modules()
        if isinstance(module, ScalarMix)
    ]


def mix_table(mixes: dict[str, list[Mix]]) -> Table:
    """A row for each mix of each task."""
    most = max((len(mix.shares) for each in mixes.values() for mix in each), default=0)
    rows = [
        [task, mix.name, *(figure(share) for share in mix.shares), *[""] * (most - len(mix.shares)), figure(mix.gamma)]
        for task, each in mixes.items()
        for mix in each
    ]
    columns = ["task", "mix", *(f"layer {layer}" for layer in range(most)), "gamma"]
    return Table(columns, rows, "which layers tasks have chosen", ["shares sum to one; layer 0 is without context"])

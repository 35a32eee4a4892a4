"""Scores of coreference clusters: MUC, B³, CEAF-φ4 and the mean of their F1, as in CoNLL-2012.

K are the gold clusters, R the predicted ones; a cluster is a set of mentions, and no mention is in two of them.

    MUC        recall = Σ_k (|k| - |p(k)|) / Σ_k (|k| - 1)          p(k): the parts into which R divides k
    B³         recall = Σ_k Σ_r |k ∩ r|² / |k|  /  Σ_k |k|
    CEAF-φ4    recall = Σ φ4(k, g(k)) / |K|                         g: the best alignment of clusters
               φ4(k, r) = 2 |k ∩ r| / (|k| + |r|)

Precision is recall with K and R exchanged. Over several documents, numerators and denominators are summed first.
Singletons count in B³ and CEAF, and not in MUC.

    Pradhan et al. 2014, Scoring coreference partitions of predicted mentions: a reference implementation
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from relmo.tasks.scores import LabelScore, TaskReport

Clusters = Sequence[Sequence[Hashable]]


class Fractions(NamedTuple):
    """Numerator and denominator of recall and of precision."""

    recalled: float
    gold: float
    correct: float
    predicted: float

    def __add__(self, fractions: "Fractions") -> "Fractions":  # type: ignore[override]
        return Fractions(*(a + b for a, b in zip(self, fractions, strict=True)))

    def divide(self) -> tuple[float, float, float]:
        """Return precision, recall and F1; 0 where a denominator is 0."""
        precision = self.correct / self.predicted if self.predicted else 0.0
        recall = self.recalled / self.gold if self.gold else 0.0
        return precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def muc(key: Clusters, response: Clusters) -> Fractions:
    """Return the fractions of links between mentions."""

    def count_links(key: Clusters, response: Clusters) -> tuple[float, float]:
        """Return Σ |k| - |p(k)| and Σ |k| - 1. A mention that is in no cluster of the response is a part of its own."""
        index = _index_mentions(response)
        links = sum(len(set(k)) - len({index.get(mention, ("alone", mention)) for mention in k}) for k in key)
        return links, sum(len(set(k)) - 1 for k in key)

    return Fractions(*count_links(key, response), *count_links(response, key))


def b_cubed(key: Clusters, response: Clusters) -> Fractions:
    """Return the fractions of each mention's cluster that key and response share."""

    def sum_overlaps(key: Clusters, response: Clusters) -> tuple[float, float]:
        """Return Σ |k ∩ r|² / |k| and Σ |k|."""
        index, total = _index_mentions(response), 0.0
        for k in key:
            overlaps = Counter(index[mention] for mention in k if mention in index)
            total += sum(count**2 for count in overlaps.values()) / len(k)
        return total, sum(map(len, key))

    return Fractions(*sum_overlaps(key, response), *sum_overlaps(response, key))


def ceaf(key: Clusters, response: Clusters) -> Fractions:
    """Return the sums of φ4 over the best alignment of clusters."""
    index = _index_mentions(response)
    phi = np.zeros((len(key), len(response)))
    for i, k in enumerate(key):
        for j, overlap in Counter(index[mention] for mention in k if mention in index).items():
            phi[i, j] = 2 * overlap / (len(k) + len(response[j]))
    best = float(sum(phi[i, j] for i, j in best_pairs(phi)))
    return Fractions(best, len(key), best, len(response))


def mentions(key: Clusters, response: Clusters) -> Fractions:
    """Return the fractions of mentions that are in any cluster."""
    gold, predicted = _index_mentions(key).keys(), _index_mentions(response).keys()
    num_shared = len(gold & predicted)
    return Fractions(num_shared, len(gold), num_shared, len(predicted))


def _index_mentions(clusters: Clusters) -> dict[Hashable, int]:
    return {mention: number for number, cluster in enumerate(clusters) for mention in cluster}


def best_pairs(values: np.ndarray) -> list[tuple[int, int]]:
    """Return the pairs (row, column), each row and column at most once, whose values (N, M) have the largest sum.

    The Hungarian algorithm, one row at a time: the shortest path from the new row through the pairs so far to a free
    column, under costs that a price u of each row and v of each column keeps non-negative (Jonker & Volgenant 1987).
    """
    if values.shape[0] > values.shape[1]:
        return [(i, j) for j, i in best_pairs(values.T)]
    count, columns = values.shape
    u, v = np.zeros(count), np.zeros(columns + 1)
    owner = np.full(columns + 1, -1)  # row of each column; the last column stands for the new row
    for row in range(count):
        owner[columns] = row
        column, visited = columns, np.zeros(columns + 1, dtype=bool)
        least, previous = np.full(columns, np.inf), np.zeros(columns, dtype=int)
        while owner[column] >= 0:
            visited[column] = True
            i = owner[column]
            costs = -values[i] - u[i] - v[:columns]
            nearer = (costs < least) & ~visited[:columns]
            least[nearer], previous[nearer] = costs[nearer], column
            column = int(np.where(visited[:columns], np.inf, least).argmin())
            step = least[column]
            u[owner[visited]] += step
            v[visited] -= step
            least[~visited[:columns]] -= step
        while column != columns:
            owner[column], column = owner[previous[column]], previous[column]
    return [(int(row), j) for j, row in enumerate(owner[:columns]) if row >= 0]


MEASURES: dict[str, Callable[[Clusters, Clusters], Fractions]] = {
    "muc": muc,
    "b3": b_cubed,
    "ceaf": ceaf,
    "mentions": mentions,
}
AVERAGED = ("muc", "b3", "ceaf")


def coref_report(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> TaskReport:
    """Score the clusters of documents: the mean F1 of the three measures, with and without singletons, and each F1.

    `labels` has the precision and recall of each measure and of the mentions.
    """
    scores = _sum_measures(gold, predicted)
    without_singletons = _sum_measures(
        *([[c for c in clusters if len(c) > 1] for clusters in documents] for documents in (gold, predicted))
    )
    average, average_without = (
        sum(fractions[name].divide()[2] for name in AVERAGED) / len(AVERAGED)
        for fractions in (scores, without_singletons)
    )
    labels = [LabelScore(name, *fractions.divide(), round(fractions.gold)) for name, fractions in scores.items()]
    values = {"average_f1": average}
    values |= {f"{name}_f1": fractions.divide()[2] for name, fractions in scores.items()}
    values["average_f1_no_singletons"] = average_without
    return TaskReport("average_f1", values, sum(len(cluster) for clusters in gold for cluster in clusters), labels)


def _sum_measures(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, Fractions]:
    pairs = list(zip(gold, predicted, strict=True))
    return {
        name: sum((measure(key, response) for key, response in pairs), start=Fractions(0, 0, 0, 0))
        for name, measure in MEASURES.items()
    }

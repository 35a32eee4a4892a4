"""How well mentions were put into clusters: MUC, B³, CEAF-φ4 and the mean of their F1, as CoNLL-2012 scores them.

K are the clusters of the gold standard, R those that were predicted; a cluster is a set of mentions, and no mention is
in two of them.

    MUC        recall = Σ_k (|k| - |p(k)|) / Σ_k (|k| - 1)          p(k): the parts into which R cuts k
    B³         recall = Σ_k Σ_r |k ∩ r|² / |k|  /  Σ_k |k|
    CEAF-φ4    recall = Σ φ4(k, g(k)) / |K|                         g: the best pairing of clusters
               φ4(k, r) = 2 |k ∩ r| / (|k| + |r|)

Precision is recall with K and R in each other's place. Over several documents, what stands above and below the fraction
is summed first. Singletons count in B³ and CEAF and are nothing to MUC.

    Pradhan et al. 2014, Scoring coreference partitions of predicted mentions: a reference implementation
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from relmo.tasks.scores import LabelScore, TaskReport

Clusters = Sequence[Sequence[Hashable]]


class Fractions(NamedTuple):
    """Recall and precision before they are divided: what is right, of how much."""

    found: float
    wanted: float
    right: float
    given: float

    def __add__(self, other: "Fractions") -> "Fractions":  # type: ignore[override]
        return Fractions(*(a + b for a, b in zip(self, other, strict=True)))

    def figures(self) -> tuple[float, float, float]:
        """Precision, recall and F1; 0 where there is nothing to divide by."""
        precision, recall = (a / b if b else 0.0 for a, b in ((self.right, self.given), (self.found, self.wanted)))
        return precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def muc(key: Clusters, response: Clusters) -> Fractions:
    """Links that are kept, of those that hold clusters together."""
    return Fractions(*_links(key, response), *_links(response, key))


def _links(key: Clusters, response: Clusters) -> tuple[float, float]:
    """Σ |k| - |p(k)| and Σ |k| - 1. A mention that is in no cluster of the response is a part by itself."""
    place = _places(response)
    kept = sum(len(set(k)) - len({place.get(mention, ("alone", mention)) for mention in k}) for k in key)
    return kept, sum(len(set(k)) - 1 for k in key)


def b_cubed(key: Clusters, response: Clusters) -> Fractions:
    """Of each mention's cluster, the share that it is with in both."""
    return Fractions(*_shares(key, response), *_shares(response, key))


def _shares(key: Clusters, response: Clusters) -> tuple[float, float]:
    """Σ |k ∩ r|² / |k| and Σ |k|."""
    place = _places(response)
    total = 0.0
    for k in key:
        shared = Counter(place[mention] for mention in k if mention in place)
        total += sum(count**2 for count in shared.values()) / len(k)
    return total, sum(map(len, key))


def ceaf(key: Clusters, response: Clusters) -> Fractions:
    """φ4 of clusters that are paired as well as they can be."""
    place = _places(response)
    phi = np.zeros((len(key), len(response)))
    for i, k in enumerate(key):
        for j, shared in Counter(place[mention] for mention in k if mention in place).items():
            phi[i, j] = 2 * shared / (len(k) + len(response[j]))
    best = float(sum(phi[i, j] for i, j in best_pairs(phi)))
    return Fractions(best, len(key), best, len(response))


def mentions(key: Clusters, response: Clusters) -> Fractions:
    """Mentions that are in some cluster of both."""
    wanted, given = ({mention for cluster in side for mention in cluster} for side in (key, response))
    return Fractions(len(wanted & given), len(wanted), len(wanted & given), len(given))


def _places(clusters: Clusters) -> dict[Hashable, int]:
    return {mention: number for number, cluster in enumerate(clusters) for mention in cluster}


def best_pairs(values: np.ndarray) -> list[tuple[int, int]]:
    """The pairs (row, column), no row or column in two of them, whose values (N, M) have the largest sum.

    The Hungarian algorithm, a row at a time: the shortest way from the new row through the pairs so far to a free
    column, under costs that a price u of each row and v of each column keeps non-negative (Jonker & Volgenant 1987).
    """
    if values.shape[0] > values.shape[1]:
        return [(i, j) for j, i in best_pairs(values.T)]
    count, columns = values.shape
    u, v = np.zeros(count), np.zeros(columns + 1)
    owner = np.full(columns + 1, -1)  # the row of each column; the last column stands for the row that is new
    for row in range(count):
        owner[columns] = row
        column, seen = columns, np.zeros(columns + 1, dtype=bool)
        least, before = np.full(columns, np.inf), np.zeros(columns, dtype=int)
        while owner[column] >= 0:
            seen[column] = True
            i = owner[column]
            costs = -values[i] - u[i] - v[:columns]
            nearer = (costs < least) & ~seen[:columns]
            least[nearer], before[nearer] = costs[nearer], column
            column = int(np.where(seen[:columns], np.inf, least).argmin())
            step = least[column]
            u[owner[seen]] += step
            v[seen] -= step
            least[~seen[:columns]] -= step
        while column != columns:
            owner[column], column = owner[before[column]], before[column]
    return [(int(row), j) for j, row in enumerate(owner[:columns]) if row >= 0]


MEASURES: dict[str, Callable[[Clusters, Clusters], Fractions]] = {
    "muc": muc,
    "b3": b_cubed,
    "ceaf": ceaf,
    "mentions": mentions,
}
AVERAGED = ("muc", "b3", "ceaf")


def coref_report(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> TaskReport:
    """Of documents: the F1 of the three measures and their mean; the mean where clusters of one mention are left out on
    both sides; and in `labels` each measure, and the finding of mentions, with precision and recall."""
    summed = {name: _summed(measure, gold, predicted) for name, measure in MEASURES.items()}
    labels = [LabelScore(name, *each.figures(), round(each.wanted)) for name, each in summed.items()]
    values = {"average_f1": _average(gold, predicted)}
    values |= {f"{name}_f1": summed[name].figures()[2] for name in summed}
    values["average_f1_no_singletons"] = _average(*map(_without_singletons, (gold, predicted)))
    return TaskReport("average_f1", values, sum(len(cluster) for clusters in gold for cluster in clusters), labels)


def _without_singletons(documents: Sequence[Clusters]) -> list[Clusters]:
    """Of each document the clusters of two mentions or more."""
    return [[cluster for cluster in clusters if len(cluster) > 1] for clusters in documents]


def _average(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> float:
    return sum(_summed(MEASURES[name], gold, predicted).figures()[2] for name in AVERAGED) / len(AVERAGED)


def _summed(
    measure: Callable[[Clusters, Clusters], Fractions], gold: Sequence[Clusters], predicted: Sequence[Clusters]
) -> Fractions:
    """Over all documents."""
    pairs = zip(gold, predicted, strict=True)
    return sum((measure(key, response) for key, response in pairs), start=Fractions(0, 0, 0, 0))

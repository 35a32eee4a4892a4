"""How well labels, tags, spans and numbers were predicted, as plain data: the field's own measures.

    accuracy, per-label precision, recall and F1, confusion matrix, Matthews correlation        as scikit-learn has them
    F1 of spans, exact in place and type, over all sentences together                          as seqeval and conlleval
    Pearson's and Spearman's correlation                                                         as scipy has them

Shares are from 0 to 1.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from relmo.text.tags import Span, spans


class LabelScore(NamedTuple):
    """A label: how many of its predictions are right, how many of its occurrences were found, F1, occurrences."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Confusion:
    """counts[i][j]: how often labels[i] was predicted as labels[j]."""

    labels: list[str]
    counts: list[list[int]]


@dataclass(frozen=True)
class TaskReport:
    """What there is to say of predictions: the score that matters by its name, others, and the details.

    metric     the name of the one to choose models by, the larger the better
    values     all figures by name
    labels     each label by itself; of spans, each type
    confusion  which labels were taken for which
    count      how many predictions were made
    """

    metric: str
    values: dict[str, float]
    count: int
    labels: list[LabelScore] = field(default_factory=list)
    confusion: Confusion | None = None

    @property
    def score(self) -> float:
        """The figure that matters."""
        return self.values[self.metric]

    def summary(self) -> dict[str, Any]:
        """All of it, for JSON."""
        confusion = None if self.confusion is None else asdict(self.confusion)
        labels = [label._asdict() for label in self.labels]
        return {"metric": self.metric, **self.values, "count": self.count, "labels": labels, "confusion": confusion}


def f1_score(right: int, predicted: int, actual: int) -> tuple[float, float, float]:
    """Precision, recall and their harmonic mean; 0 where there is nothing to divide by."""
    precision, recall = right / max(predicted, 1), right / max(actual, 1)
    return precision, recall, 2 * right / max(predicted + actual, 1)


def _per_label(gold: Sequence[Any], predicted: Sequence[Any]) -> list[LabelScore]:
    """Each label of either, in alphabetical order."""
    right = Counter(g for g, p in zip(gold, predicted, strict=True) if g == p)
    wanted, given = Counter(gold), Counter(predicted)
    return [
        LabelScore(label, *f1_score(right[label], given[label], wanted[label]), wanted[label])
        for label in sorted(wanted | given)
    ]


def accuracy(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """The share that is right."""
    return sum(g == p for g, p in zip(gold, predicted, strict=True)) / max(len(gold), 1)


def confusion_matrix(gold: Sequence[str], predicted: Sequence[str]) -> Confusion:
    """How often each label was predicted as each; labels in alphabetical order."""
    counts = Counter(zip(gold, predicted, strict=True))
    labels = sorted({label for pair in counts for label in pair})
    return Confusion(labels, [[counts[g, p] for p in labels] for g in labels])


def class_report(gold: Sequence[str], predicted: Sequence[str], *, metric: str = "accuracy") -> TaskReport:
    """Of one label for each example or word: accuracy, macro F1, Matthews correlation, and each label by itself."""
    labels = _per_label(gold, predicted)
    confusion = confusion_matrix(gold, predicted)
    values = {
        "accuracy": accuracy(gold, predicted),
        "macro_f1": sum(label.f1 for label in labels) / max(len(labels), 1),
        "matthews": matthews(np.array(confusion.counts)),
    }
    return TaskReport(metric, values, len(gold), labels, confusion)


def span_report(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> TaskReport:
    """Of tagged spans, each sentence a list of tags in any of the encodings: F1 over all spans, each type by itself;
    the confusion matrix is of the tags."""
    wanted, given = _placed(gold), _placed(predicted)
    right = wanted & given
    precision, recall, f1 = f1_score(len(right), len(given), len(wanted))
    by_type = [Counter(span.label for _, span in found) for found in (right, given, wanted)]
    labels = [
        LabelScore(label, *f1_score(*(counts[label] for counts in by_type)), by_type[2][label])
        for label in sorted(by_type[1] | by_type[2])
    ]
    flat_gold, flat_predicted = ([tag for tags in sentences for tag in tags] for sentences in (gold, predicted))
    values = {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy(flat_gold, flat_predicted)}
    return TaskReport("f1", values, len(wanted), labels, confusion_matrix(flat_gold, flat_predicted))


def _placed(sentences: Iterable[Sequence[str]]) -> set[tuple[int, Span]]:
    """All spans of all sentences, with their sentence's number."""
    return {(i, span) for i, tags in enumerate(sentences) for span in spans(tags)}


def number_report(gold: Sequence[float], predicted: Sequence[float]) -> TaskReport:
    """Of numbers: Pearson's and Spearman's correlation, and the mean squared error."""
    x, y = np.asarray(gold, dtype=float), np.asarray(predicted, dtype=float)
    values = {
        "pearson": pearson(x, y),
        "spearman": pearson(ranks(x), ranks(y)),
        "squared_error": float(np.square(x - y).mean()) if len(x) else 0.0,
    }
    return TaskReport("pearson", values, len(x))


def matthews(counts: np.ndarray) -> float:
    """Matthews correlation of a confusion matrix (K, K), for any number of labels (Gorodkin 2004); 0 where either side
    has one label only."""
    n, right = counts.sum(), np.trace(counts)
    wanted, given = counts.sum(axis=1).astype(float), counts.sum(axis=0).astype(float)
    spread = float((n**2 - wanted @ wanted) * (n**2 - given @ given))
    return float(right * n - wanted @ given) / spread**0.5 if spread > 0 else 0.0


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """The linear correlation; 0 where either is constant."""
    dx, dy = x - x.mean(), y - y.mean()
    spread = float(np.linalg.norm(dx) * np.linalg.norm(dy))
    return float(dx @ dy) / spread if spread > 0 else 0.0


def ranks(x: np.ndarray) -> np.ndarray:
    """The place of each number in order; equal ones share their mean place."""
    _, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[which]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (of a sample, n - 1) of several runs' scores; no deviation of one."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5

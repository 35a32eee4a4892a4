"""Scores of predicted labels, tags, spans, numbers and answers.

    accuracy, per-label precision, recall and F1, confusion matrix, Matthews correlation        as in scikit-learn
    F1 of spans with exact boundaries and type, over all sentences                              as in seqeval, conlleval
    Pearson's and Spearman's correlation                                                        as in scipy
    exact match and F1 of answers (Rajpurkar et al. 2016)                                       as in SQuAD's script

All scores are fractions between 0 and 1.
"""

import re
import string
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from relmo.text.tags import spans

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class LabelScore(NamedTuple):
    """Scores of one label; `support` is its number of occurrences."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Confusion:
    """Confusion matrix: counts[i][j] is how often labels[i] was predicted as labels[j]."""

    labels: list[str]
    counts: list[list[int]]

    @classmethod
    def from_pairs(cls, counts: Counter[tuple[str, str]], *, last: str | None = None) -> "Confusion":
        """Build the matrix from counts of (gold, predicted); labels in alphabetical order, then `last` if given."""
        labels = sorted({label for pair in counts for label in pair} - {last})
        labels += [] if last is None else [last]
        return cls(labels, [[counts[gold, predicted] for predicted in labels] for gold in labels])


@dataclass(frozen=True)
class TaskReport:
    """Scores of the predictions of a task.

    metric     name of the score that models are selected by; larger is better
    values     all scores by name
    labels     scores of each label, or of each type of span
    confusion  confusion matrix of the labels
    count      number of predictions
    """

    metric: str
    values: dict[str, float]
    count: int
    labels: list[LabelScore] = field(default_factory=list)
    confusion: Confusion | None = None

    @property
    def score(self) -> float:
        """Value of the metric."""
        return self.values[self.metric]

    def summary(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        confusion = None if self.confusion is None else asdict(self.confusion)
        labels = [label._asdict() for label in self.labels]
        return {"metric": self.metric, **self.values, "count": self.count, "labels": labels, "confusion": confusion}


def f1_score(correct: int, predicted: int, gold: int) -> tuple[float, float, float]:
    """Return precision, recall and F1 of these counts; 0 where a denominator is 0."""
    precision, recall = correct / max(predicted, 1), correct / max(gold, 1)
    return precision, recall, 2 * correct / max(predicted + gold, 1)


def score_labels(correct: Counter[str], predicted: Counter[str], gold: Counter[str]) -> list[LabelScore]:
    """Return the scores of each label by its counts, in alphabetical order."""
    return [
        LabelScore(label, *f1_score(correct[label], predicted[label], gold[label]), gold[label])
        for label in sorted(gold | predicted)
    ]


def accuracy(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """Return the fraction of correct predictions."""
    return sum(g == p for g, p in zip(gold, predicted, strict=True)) / max(len(gold), 1)


def class_report(gold: Sequence[str], predicted: Sequence[str], *, metric: str = "accuracy") -> TaskReport:
    """Score one label per example or word: accuracy, macro F1, Matthews correlation, and each label."""
    correct = Counter(g for g, p in zip(gold, predicted, strict=True) if g == p)
    labels = score_labels(correct, Counter(predicted), Counter(gold))
    confusion = Confusion.from_pairs(Counter(zip(gold, predicted, strict=True)))
    values = {
        "accuracy": accuracy(gold, predicted),
        "macro_f1": sum(label.f1 for label in labels) / max(len(labels), 1),
        "matthews": matthews(np.array(confusion.counts)),
    }
    return TaskReport(metric, values, len(gold), labels, confusion)


def span_report(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> TaskReport:
    """Score the spans of tagged sentences in any encoding: F1 over all spans, and each type.

    The confusion matrix is that of the tags.
    """
    gold_spans, predicted_spans = (
        {(i, span) for i, tags in enumerate(sentences) for span in spans(tags)} for sentences in (gold, predicted)
    )
    correct = gold_spans & predicted_spans
    precision, recall, f1 = f1_score(len(correct), len(predicted_spans), len(gold_spans))
    counts = [Counter(span.label for _, span in group) for group in (correct, predicted_spans, gold_spans)]
    gold_tags, predicted_tags = ([tag for tags in sentences for tag in tags] for sentences in (gold, predicted))
    values = {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy(gold_tags, predicted_tags)}
    confusion = Confusion.from_pairs(Counter(zip(gold_tags, predicted_tags, strict=True)))
    return TaskReport("f1", values, len(gold_spans), score_labels(*counts), confusion)


def number_report(gold: Sequence[float], predicted: Sequence[float]) -> TaskReport:
    """Score numbers: Pearson's and Spearman's correlation, and the mean squared error."""
    x, y = np.asarray(gold, dtype=float), np.asarray(predicted, dtype=float)
    values = {
        "pearson": pearson(x, y),
        "spearman": pearson(ranks(x), ranks(y)),
        "squared_error": float(np.square(x - y).mean()) if len(x) else 0.0,
    }
    return TaskReport("pearson", values, len(x))


def matthews(counts: np.ndarray) -> float:
    """Return the Matthews correlation of a confusion matrix (K, K) (Gorodkin 2004); 0 if either side is constant."""
    n, correct = counts.sum(), np.trace(counts)
    gold, predicted = counts.sum(axis=1).astype(float), counts.sum(axis=0).astype(float)
    variance = float((n**2 - gold @ gold) * (n**2 - predicted @ predicted))
    return float(correct * n - gold @ predicted) / variance**0.5 if variance > 0 else 0.0


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return the linear correlation; 0 if either side is constant."""
    dx, dy = x - x.mean(), y - y.mean()
    norm = float(np.linalg.norm(dx) * np.linalg.norm(dy))
    return float(dx @ dy) / norm if norm > 0 else 0.0


def ranks(x: np.ndarray) -> np.ndarray:
    """Return the rank of each number from 1; ties share their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation (n - 1) of the scores of several runs; 0 for a single run."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def normalize_answer(answer: str) -> list[str]:
    """Return the words of an answer in lower case, without punctuation and the articles a, an, the."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def answer_f1(answer: str, references: Sequence[str]) -> float:
    """Return the F1 of an answer's words against the closest reference; 0 if there is none."""
    words, best = normalize_answer(answer), 0.0
    for reference in map(normalize_answer, references):
        num_shared = (Counter(words) & Counter(reference)).total()
        best = max(best, f1_score(num_shared, len(words), len(reference))[2])
    return best


def answer_report(answers: Sequence[str], references: Sequence[Sequence[str]]) -> TaskReport:
    """Score answers by exact match and F1; also over answerable questions alone if some have no answer (SQuAD 2.0)."""
    pairs = list(zip(answers, references, strict=True))
    f1 = sum(answer_f1(answer, texts) for answer, texts in pairs)
    exact = sum(normalize_answer(answer) in map(normalize_answer, texts) for answer, texts in pairs)
    count, num_answerable = max(len(answers), 1), sum(map(bool, references))
    values = {"f1": f1 / count, "exact_match": exact / count}
    if 0 < num_answerable < len(references):
        values |= {"answerable_f1": f1 / num_answerable, "answerable_exact_match": exact / num_answerable}
    return TaskReport("f1", values, len(answers))

"""The scores, against seqeval, scikit-learn and scipy on random cases."""

import random

import numpy as np
import pytest

from relmo.tasks.scores import class_report, mean_and_deviation, number_report, pearson, span_report

TAGS = ["O", "O", "B-PER", "I-PER", "B-creative-work", "I-creative-work", "B-LOC", "I-LOC"]


def sentences(generator: random.Random, lengths: list[int]) -> list[list[str]]:
    return [[generator.choice(TAGS) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("seed", range(20))
def test_span_f1_is_seqevals_on_random_tags_legal_or_not(seed: int) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    generator = random.Random(seed)
    lengths = [generator.randint(1, 8) for _ in range(30)]
    gold, predicted = sentences(generator, lengths), sentences(generator, lengths)
    report = span_report(gold, predicted)
    assert report.score == pytest.approx(seqeval.f1_score(gold, predicted))
    assert report.values["precision"] == pytest.approx(seqeval.precision_score(gold, predicted))
    assert report.values["recall"] == pytest.approx(seqeval.recall_score(gold, predicted))
    assert report.values["accuracy"] == pytest.approx(seqeval.accuracy_score(gold, predicted))
    theirs = seqeval.classification_report(gold, predicted, output_dict=True, zero_division=0)
    for row in report.labels:
        assert row.f1 == pytest.approx(theirs[row.label]["f1-score"])
        assert row.support == theirs[row.label]["support"]


@pytest.mark.parametrize("labels", ["AB", "ABCD"])
def test_a_class_report_is_scikit_learns(labels: str) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = random.Random(len(labels))
    gold = [generator.choice(labels) for _ in range(200)]
    predicted = [g if generator.random() < 0.5 else generator.choice(labels[1:]) for g in gold]
    report = class_report(gold, predicted)
    assert report.score == pytest.approx(metrics.accuracy_score(gold, predicted))
    assert report.values["matthews"] == pytest.approx(metrics.matthews_corrcoef(gold, predicted))
    assert report.values["macro_f1"] == pytest.approx(metrics.f1_score(gold, predicted, average="macro"))
    assert report.confusion is not None
    assert report.confusion.counts == metrics.confusion_matrix(gold, predicted).tolist()
    theirs = metrics.precision_recall_fscore_support(gold, predicted, zero_division=0)
    for row, *figures in zip(report.labels, *theirs, strict=True):
        assert row[1:] == pytest.approx(figures)


def test_correlations_are_scipys_ties_included() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(1)
    x, y = generator.integers(0, 6, 100).astype(float), generator.normal(size=100)
    y += x
    report = number_report(x.tolist(), y.round(0).tolist())
    assert report.score == pytest.approx(stats.pearsonr(x, y.round(0)).statistic)
    assert report.values["spearman"] == pytest.approx(stats.spearmanr(x, y.round(0)).statistic)


def test_nothing_to_divide_by_is_zero_not_an_error() -> None:
    assert span_report([["O"]], [["O"]]).score == 0.0
    assert class_report(["a"] * 3, ["a"] * 3).values["matthews"] == 0.0
    assert pearson(np.ones(3), np.arange(3.0)) == 0.0
    assert span_report([], []).values["accuracy"] == 0.0


def test_a_confusion_matrix_has_what_it_is_in_rows() -> None:
    confusion = class_report(["a", "a", "b"], ["a", "c", "b"]).confusion
    assert confusion is not None
    assert confusion.labels == ["a", "b", "c"]
    assert confusion.counts == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]


def test_a_report_is_plain_data() -> None:
    import json

    summary = json.loads(json.dumps(class_report(["a", "b"], ["a", "a"]).summary()))
    assert summary["accuracy"] == 0.5
    assert summary["labels"][0] == {"label": "a", "precision": 0.5, "recall": 1.0, "f1": 2 / 3, "support": 1}


def test_spread_is_that_of_a_sample() -> None:
    assert mean_and_deviation([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_deviation([5.0]) == (5.0, 0.0)

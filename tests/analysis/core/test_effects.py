"""Scores of many units at once, against one at a time by scipy, scikit-learn and the definitions."""

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import f1_score as sklearn_f1
from sklearn.metrics import roc_auc_score

from relmo.analysis.core import effects
from relmo.analysis.core.effects import (
    Delay,
    PartialCorrelation,
    compute_auc,
    held_out_f1,
    measure_delay,
    pearson,
    predict_from_ngrams,
    predict_from_units,
    rank_values,
    standardize,
)
from relmo.analysis.units.cells import Scorer

T = 400


@pytest.fixture
def rows() -> np.ndarray:
    generator = np.random.default_rng(0)
    found = generator.normal(size=(5, T)).astype(np.float32)
    found[2] = np.round(found[2], 1)  # with ties
    return found


@pytest.fixture
def columns(rows: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(1).normal(size=(T, 3))
    return np.stack(
        [rows[0] + noise[:, 0], (rows[2] + noise[:, 1] > 0.5), rows[1] - rows[3] + noise[:, 2]], axis=1
    ).astype(np.float32)


def test_correlations_are_those_of_scipy(rows: np.ndarray, columns: np.ndarray) -> None:
    r = pearson(standardize(rows, 1), standardize(columns, 0))
    ranks = np.stack([rank_values(row).ranks for row in rows])
    of_columns = np.stack([rank_values(column).ranks for column in columns.T], axis=1)
    rho = pearson(standardize(ranks, 1), standardize(of_columns, 0))
    for u, row in enumerate(rows):
        for j, column in enumerate(columns.T):
            assert r[u, j] == pytest.approx(stats.pearsonr(row, column)[0], abs=1e-5)
            assert rho[u, j] == pytest.approx(stats.spearmanr(row, column)[0], abs=1e-5)


def test_ranks_of_equal_values_are_their_mean() -> None:
    values = np.array([3.0, 1.0, 3.0, 2.0, 3.0], dtype=np.float32)
    assert rank_values(values).ranks.tolist() == [4, 1, 4, 2, 4]
    np.testing.assert_array_equal(rank_values(values).ranks, stats.rankdata(values))


def test_what_never_varies_goes_with_nothing() -> None:
    constant = np.full((1, T), 0.1, dtype=np.float32)
    assert not standardize(constant, 1).any()


def test_areas_are_those_of_scikit_learn(rows: np.ndarray, columns: np.ndarray) -> None:
    binary = np.stack([columns[:, 1], columns[:, 0] > 1, np.ones(T)], axis=1).astype(np.float32)
    found = compute_auc(np.stack([rank_values(row).ranks for row in rows]), binary)
    for u, row in enumerate(rows):
        for j in range(2):
            assert found[u, j] == pytest.approx(roc_auc_score(binary[:, j], row), abs=1e-6)
    assert np.isnan(found[:, 2]).all()


@pytest.mark.parametrize("high", [True, False])
def test_a_threshold_is_the_best_there_is_on_the_first_half_and_judged_on_the_second(
    rows: np.ndarray, columns: np.ndarray, high: bool
) -> None:
    values, truth = (rows[2] if high else -rows[2]), columns[:, 1].astype(bool)
    half = T // 2

    def score(part: slice, threshold: float) -> float:
        return sklearn_f1(truth[part], values[part] >= threshold if high else values[part] <= threshold)

    threshold, f1 = held_out_f1(values, rank_values(values).order, truth, high=high)
    best = max(score(slice(half), value) for value in np.unique(values[:half]))
    assert score(slice(half), threshold) == pytest.approx(best)
    assert f1 == pytest.approx(score(slice(half, None), threshold))


def test_without_anything_to_find_there_is_no_threshold() -> None:
    values = np.arange(8, dtype=np.float32)
    truth = np.arange(8) >= 4  # nothing of it in the first half
    assert np.isnan(held_out_f1(values, np.arange(8), truth, high=True)).all()


def test_delays_are_counted_from_each_change() -> None:
    truth = np.array([0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0])
    on = np.array([0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0], dtype=bool)
    # on: after 1, after 0, never; off: after 1, not before it is on again, after 0
    assert measure_delay(on, truth) == Delay(on=0.5, off=0.5, missed=pytest.approx(1 / 3))
    assert np.isnan(measure_delay(on, np.zeros(13))).all()
    last = measure_delay(np.array([0, 0, 1, 1], dtype=bool), np.array([0, 1, 1, 1]))
    assert (last.on, last.missed) == (1.0, 0.0)
    assert np.isnan(last.off), "it is on to the end"
    early = measure_delay(np.array([0, 1, 0], dtype=bool), np.array([0, 1, 1]))
    assert np.isnan(early.off), "the text ends before the feature does"


def test_a_unit_that_stays_on_into_the_next_time_does_not_count_as_having_gone_off() -> None:
    truth = np.array([1, 0, 1, 0, 0])
    on = np.array([1, 1, 1, 0, 0], dtype=bool)
    assert measure_delay(on, truth).off == 0.0


def test_partial_correlations_are_those_of_residuals(rows: np.ndarray, columns: np.ndarray) -> None:
    ids = np.random.default_rng(3).integers(0, 4, size=T)
    rows = rows + ids * np.array([[1.0], [0], [2], [0], [-1]], dtype=np.float32)
    columns = columns + ids[:, None].astype(np.float32)
    found = PartialCorrelation(standardize(columns, 0), ids).compute(standardize(rows, 1))
    dummies = np.eye(4)[ids]
    for u, row in enumerate(rows):
        for j in range(3):
            given = np.concatenate([np.delete(columns, j, axis=1), dummies], axis=1)
            left = [y - LinearRegression().fit(given, y).predict(given) for y in (row, columns[:, j])]
            assert found[u, j] == pytest.approx(stats.pearsonr(*left)[0], abs=1e-4)


def test_a_feature_that_others_or_the_symbol_determine_has_no_partial_correlation(rows: np.ndarray) -> None:
    ids = np.random.default_rng(3).integers(0, 4, size=T)
    free = np.random.default_rng(4).normal(size=T)
    features = standardize(np.stack([free, ids == 2, 2 * free, rows[0]], axis=1), 0)
    found = PartialCorrelation(features, ids).compute(standardize(rows, 1))
    assert np.isnan(found).all(axis=0).tolist() == [True, True, True, False]
    assert found[0, 3] == pytest.approx(1.0, abs=1e-3)


def test_shifts_turn_the_text_against_itself(rows: np.ndarray, columns: np.ndarray) -> None:
    scorer = Scorer({str(j): column for j, column in enumerate(columns.T)}, np.zeros(T, dtype=np.int64), seed=0)
    scorer.score(rows, lambda _: None)
    found = scorer.null
    for place, shift in enumerate(scorer.shifts[:24]):
        for j in range(3):
            turned = np.roll(columns[:, j], shift)
            assert found[place, j] == pytest.approx(max(abs(stats.pearsonr(row, turned)[0]) for row in rows), abs=1e-5)


def test_an_ngram_knows_what_the_last_symbols_determine_and_no_more() -> None:
    ids = np.random.default_rng(0).integers(0, 3, size=6000)
    previous = np.concatenate([[-1, -1], ids[:-2]])
    features = np.stack([ids == 1, previous == 2, np.random.default_rng(1).normal(size=6000)], axis=1).astype(
        np.float32
    )
    for order, known in ((1, [True, False, False]), (3, [True, True, False])):
        guesses = predict_from_ngrams(ids, features, order)
        r = [abs(stats.pearsonr(guesses[:, j], features[:, j])[0]) for j in range(3)]
        assert [value > 0.99 for value in r] == known
        assert [value < 0.1 for value in r] == [not each for each in known]


def test_an_ngrams_guess_is_its_mean_in_the_other_half_drawn_towards_the_shorter_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(effects, "NGRAM_PRIOR", 1.0)
    ids = np.array([0, 1, 0, 1, 1, 0])
    feature = np.array([0.0, 4.0, 2.0, 1.0, 3.0, 5.0], dtype=np.float32)[:, None]
    found = predict_from_ngrams(ids, feature, 1)[:, 0]
    assert found[3] == pytest.approx((4.0 + 2.0) / 2)  # in the first half symbol 1 has 4, and the mean is 2
    assert found[5] == pytest.approx((0.0 + 2.0 + 2.0) / 3)
    assert found[0] == pytest.approx((5.0 + 3.0) / 2)


def test_the_probe_is_ridge_regression_learnt_on_the_other_half(rows: np.ndarray, columns: np.ndarray) -> None:
    x = standardize(rows, 1)
    found = predict_from_units(x, columns)
    half = T // 2
    for seen, other in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
        fitted = Ridge(alpha=effects.RIDGE * half).fit(x[:, seen].T, columns[seen])
        np.testing.assert_allclose(found[other], fitted.predict(x[:, other].T), atol=1e-4)

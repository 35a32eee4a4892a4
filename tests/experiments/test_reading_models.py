"""Smooth and mixed regressions against dense linear algebra and invented data whose effects are known."""

import numpy as np
import pytest

from experiments import reading_models
from experiments.reading_models import (
    Intercepts,
    NaturalSpline,
    log_density,
    mixed_log_likelihoods,
    smooth_log_likelihood,
    word_form,
)
from experiments.reading_times import held_out_log_likelihood


def test_splines_are_natural_and_their_penalty_is_the_integral_of_the_squared_second_derivative() -> None:
    values = np.random.default_rng(0).gamma(2.0, 3.0, size=400)
    spline = NaturalSpline(values)
    step = 1e-3
    grid = np.arange(spline.knots[0] - 1, spline.knots[-1] + 1, step)
    curves = spline.curves(spline.mean + spline.scale * grid)
    assert curves.shape == (len(grid), reading_models.KNOTS - 2)
    second = np.diff(curves, n=2, axis=0) / step**2
    outside = (grid[1:-1] < spline.knots[0] - step) | (grid[1:-1] > spline.knots[-1] + step)
    assert np.abs(second[outside]).max() < 1e-4, "linear beyond the outer knots"
    assert spline.penalty() == pytest.approx(second.T @ second * step, rel=1e-2)


def test_equal_values_have_no_curve() -> None:
    spline = NaturalSpline(np.repeat([1.0, 2.0], 50))
    assert spline.curves(np.ones(4)).shape == (4, 0)
    assert spline.penalty().shape == (0, 0)


def test_an_infinite_penalty_is_the_linear_model(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    controls = np.column_stack([np.ones(300), random.normal(size=300)])
    surprisal = random.gamma(2.0, 3.0, size=(300, 2))
    folds = np.arange(300) % 5
    times = surprisal @ [0.5, 0.2] + np.sin(surprisal[:, 0]) + random.normal(size=300)
    linear = held_out_log_likelihood(np.column_stack([controls, surprisal]), times, folds)
    monkeypatch.setattr(reading_models, "PENALTIES", reading_models.PENALTIES[-1:])
    assert smooth_log_likelihood(controls, surprisal, times, folds) == pytest.approx(linear, abs=1e-4)


def test_a_curved_effect_is_found_and_a_straight_one_is_not_bent() -> None:
    random = np.random.default_rng(2)
    controls, surprisal = np.ones((600, 1)), random.gamma(2.0, 3.0, size=(600, 1))
    folds = np.arange(600) % 10
    noise = random.normal(scale=0.3, size=600)
    gains = []
    for effect in (np.sqrt(surprisal[:, 0]) * 2, 0.2 * surprisal[:, 0]):
        linear = held_out_log_likelihood(np.column_stack([controls, surprisal]), effect + noise, folds)
        gains.append(float((smooth_log_likelihood(controls, surprisal, effect + noise, folds) - linear).mean()))
    assert gains[0] > 0.1
    assert abs(gains[1]) < 0.01


def test_random_intercepts_are_those_of_the_dense_variance_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    count = 60
    sentence, form = np.repeat(np.arange(12), 5), random.integers(9, size=count)
    x = np.column_stack([np.ones(count), random.normal(size=count)])
    times = x @ [3.0, 1.0] + random.normal(size=9)[form] + random.normal(scale=0.5, size=count)
    folds = sentence % 3
    a, b = 0.1, 0.6
    monkeypatch.setattr(reading_models, "SENTENCE_VARIANCES", (a,))
    monkeypatch.setattr(reading_models, "FORM_VARIANCES", (b,))
    (result,) = mixed_log_likelihoods([x], times, folds, Intercepts(sentence, form))

    def covariance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        same = [levels[first][:, None] == levels[second][None] for levels in (sentence, form)]
        return a * same[0] + b * same[1]

    for fold in range(3):
        fit, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        inverse = np.linalg.inv(np.eye(len(fit)) + covariance(fit, fit))
        beta = np.linalg.solve(x[fit].T @ inverse @ x[fit], x[fit].T @ inverse @ times[fit])
        residuals = times[fit] - x[fit] @ beta
        variance = residuals @ inverse @ residuals / (len(fit) - 2)
        mean = x[test] @ beta + covariance(test, fit) @ inverse @ residuals
        # The intercept of the form is known in part; that of the sentence, which is new, not at all.
        forms = b * (form[test][:, None] == form[fit][None])
        spread = 1 + a + np.array([b - row @ _solve_marginal(form, sentence, fit, row, a, b) for row in forms])
        assert result[test] == pytest.approx(log_density(times[test] - mean, variance * spread))


def _solve_marginal(form: np.ndarray, sentence: np.ndarray, fit: np.ndarray, row: np.ndarray, a: float, b: float):
    same = [levels[fit][:, None] == levels[fit][None] for levels in (sentence, form)]
    return np.linalg.solve(np.eye(len(fit)) + a * same[0] + b * same[1], row)


def test_the_variances_maximise_the_likelihood() -> None:
    random = np.random.default_rng(4)
    sentence, form = np.repeat(np.arange(40), 10), random.integers(20, size=400)
    x = np.ones((400, 1))
    noise = random.normal(size=400)
    related = noise + 1.5 * random.normal(size=20)[form]
    (mixed,) = mixed_log_likelihoods([x], related, sentence % 5, Intercepts(sentence, form))
    linear = held_out_log_likelihood(x, related, sentence % 5)
    assert mixed.mean() > linear.mean() + 0.3, "the form tells a part of the time"
    independent = mixed_log_likelihoods([x], noise, sentence % 5, Intercepts(sentence, form))[0]
    linear = held_out_log_likelihood(x, noise, sentence % 5)
    assert independent.mean() == pytest.approx(linear.mean(), abs=0.02)


def test_forms_have_no_punctuation() -> None:
    assert [word_form(word) for word in ("Dog,", "'tis", "--", "don't")] == ["dog", "tis", "--", "dont"]

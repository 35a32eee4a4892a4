"""Intervals: known values, and that they cover what they should."""

import math

import numpy as np
import pytest

from relmo.analysis.core.effects import bootstrap_difference, wilson


@pytest.mark.parametrize(
    ("points", "count", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (500, 1000, 0.4691, 0.5309)],
)
def test_wilsons_interval_has_its_tabulated_values(points: float, count: int, low: float, high: float) -> None:
    found = wilson(points, count)
    assert found.value == points / count
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)


def test_the_share_of_nothing_is_no_number_and_may_be_anything() -> None:
    assert math.isnan(wilson(0, 0).value)
    assert wilson(0, 0)[1:] == (0.0, 1.0)


def test_a_difference_of_equals_is_zero_without_doubt() -> None:
    same = np.array([True, False, True])
    assert bootstrap_difference(same, same, np.arange(3)) == (0.0, 0.0, 0.0)


def test_the_bootstrap_agrees_with_the_normal_interval_of_independent_items() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random(2000) < 0.7, rng.random(2000) < 0.6
    gaps = first.astype(float) - second
    found = bootstrap_difference(first, second, np.arange(2000))
    half = 1.96 * gaps.std() / math.sqrt(2000)
    assert found.value == pytest.approx(gaps.mean())
    assert found.low == pytest.approx(gaps.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(gaps.mean() + half, abs=0.1 * half)
    assert bootstrap_difference(first, second, np.arange(2000)) == found, "the same seed gives the same interval"


def test_items_that_go_together_make_the_interval_wider() -> None:
    rng = np.random.default_rng(0)
    first, second = np.repeat(rng.random(100) < 0.7, 20), np.repeat(rng.random(100) < 0.5, 20)
    alone = bootstrap_difference(first, second, np.arange(2000))
    grouped = bootstrap_difference(first, second, np.repeat(np.arange(100), 20))
    assert alone.value == pytest.approx(grouped.value)
    assert grouped.high - grouped.low == pytest.approx(math.sqrt(20) * (alone.high - alone.low), rel=0.15)


def test_groups_count_by_their_items() -> None:
    first, second = np.array([1, 0, 0, 0]), np.array([0, 0, 0, 0])
    found = bootstrap_difference(first, second, np.array(["a", "b", "b", "b"]))
    assert found.value == 0.25
    assert (found.low, found.high) == (0.0, 1.0)

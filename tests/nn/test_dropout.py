"""Dropout from few random bits: as often, as large and as free of pattern as torch's own."""

import pytest
import torch

from relmo.nn.dropout import drop


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_each_element_is_dropped_with_probability_p_and_the_rest_make_up_for_it(p: float) -> None:
    torch.manual_seed(0)
    y = drop(torch.ones(999, 1001), p, True)
    assert (y == 0).double().mean() == pytest.approx(p, abs=0.002)
    assert y.max().item() == pytest.approx(1 / (1 - p), rel=1e-3)
    assert y.mean() == pytest.approx(1, abs=0.01)


def test_neighbours_and_calls_are_independent() -> None:
    torch.manual_seed(0)
    first, second = (drop(torch.ones(1 << 18), 0.5, True) == 0 for _ in range(2))
    assert (first & second).double().mean() == pytest.approx(0.25, abs=0.005)
    for lag in (1, 2, 3, 4, 8):
        assert (first[lag:] & first[:-lag]).double().mean() == pytest.approx(0.25, abs=0.005)


def test_the_seed_decides_and_the_gradient_is_the_mask() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    torch.manual_seed(1)
    y = drop(x, 0.4, True)
    torch.manual_seed(1)
    assert torch.equal(y, drop(x, 0.4, True))
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)  # type: ignore[operator]


def test_nothing_is_dropped_in_evaluation_or_with_probability_zero() -> None:
    x = torch.randn(4, 4)
    assert drop(x, 0.5, False) is x
    assert drop(x, 0.0, True) is x

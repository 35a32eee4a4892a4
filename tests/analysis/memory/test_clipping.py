"""The cliff: its loss and gradient, and that clipping, as the training loop does it, makes the difference."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from relmo.analysis.memory.clipping import clipping, descend, draw_clipping, loss_and_gradient
from relmo.errors import SettingError


def by_hand(w: float, b: float) -> float:
    x = 0.5
    for _ in range(50):
        x = w / (1 + math.exp(-x)) + b
    return (1 / (1 + math.exp(-x)) - 0.7) ** 2


def test_the_loss_is_that_of_fifty_steps_and_the_gradient_its_slope() -> None:
    for w, b in ((5.5, -2.5), (2.0, 0.3), (4.6, -2.2)):
        loss, gradient = loss_and_gradient(*torch.tensor([w, b], dtype=torch.float64))
        assert float(loss) == pytest.approx(by_hand(w, b), rel=1e-10)
        step = 1e-6
        slopes = [
            (by_hand(w + step, b) - by_hand(w - step, b)) / (2 * step),
            (by_hand(w, b + step) - by_hand(w, b - step)) / (2 * step),
        ]
        assert gradient.tolist() == pytest.approx(slopes, rel=1e-4, abs=1e-8)


def test_plain_descent_is_thrown_off_the_cliff_and_clipped_descent_comes_down() -> None:
    cliff = clipping()
    plain, clipped = cliff.descents
    assert plain.loss[-1] > 0.4 > 1e-3 > clipped.loss[-1]
    assert plain.longest_step > 3
    assert clipped.longest_step == pytest.approx(0.3 * 0.5, rel=1e-5)
    assert clipped.clipped > 0 == plain.clipped
    assert cliff.steepest > 10
    first = next(i for i, norm in enumerate(plain.norm) if norm > 0.5)  # up to there nothing was clipped
    assert plain.w[: first + 1] == clipped.w[: first + 1]
    assert plain.w[first + 1] != clipped.w[first + 1]


def test_a_limit_that_is_never_reached_changes_nothing() -> None:
    one, other = (descend(5.5, -2.5, lr=0.3, clip=limit, steps=40) for limit in (None, 1e9))
    assert one.w == other.w
    assert other.clipped == 0


def test_a_step_goes_down_the_gradient() -> None:
    way = descend(5.0, -1.0, lr=0.2, clip=None, steps=2)
    _, gradient = loss_and_gradient(torch.tensor(5.0).double(), torch.tensor(-1.0).double())
    np.testing.assert_allclose([way.w[1], way.b[1]], [5.0, -1.0] - 0.2 * gradient.numpy())
    assert way.norm[0] == pytest.approx(float(gradient.norm()))


def test_results_are_plain_numbers_a_table_and_a_picture(tmp_path: Path) -> None:
    cliff = clipping(points=21, steps=50, w_range=(4.0, 6.0), b_range=(-3.0, -2.0))
    assert np.shape(cliff.loss) == (21, 21)
    assert cliff.loss[3][5] == pytest.approx(by_hand(cliff.w[3], cliff.b[5]), rel=1e-9)
    assert json.loads(json.dumps(cliff.as_dict()))["steepest"] == cliff.steepest
    assert [row[0] for row in cliff.table().rows] == ["plain", "clipped at 0.5"]
    assert "<table" in cliff._repr_html_()
    draw_clipping(cliff, tmp_path / "cliff.png")
    assert (tmp_path / "cliff.png").stat().st_size > 1000


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingError, match="above 0"):
        clipping(clip=0)
    with pytest.raises(SettingError, match="two numbers"):
        clipping(start=(math.nan, 0.0))

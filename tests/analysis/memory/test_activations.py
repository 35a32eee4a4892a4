"""Activations: the values of torch's functions, the derivatives of autograd, and what follows from them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from relmo.analysis.memory.activations import FORMULAS, activation_table, activations, draw_activations
from relmo.errors import SettingError

TORCH = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "hard_sigmoid": functional.hardsigmoid,
    "softplus": functional.softplus,
    "gelu": functional.gelu,
    "identity": lambda x: x * 1.0,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_values_are_torchs_and_slopes_are_autograds(name: str) -> None:
    (found,) = activations([name], low=-7.0, high=8.0, points=64)
    x = torch.tensor(found.x, dtype=torch.float64, requires_grad=True)
    y = TORCH[name](x)
    np.testing.assert_allclose(found.y, y.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(found.slope, torch.autograd.grad(y.sum(), x)[0].numpy(), atol=1e-12)
    assert np.all(np.isfinite(FORMULAS[name].function(np.array([-1e4, 1e4]))))
    assert np.all(np.isfinite(FORMULAS[name].derivative(np.array([-1e4, 1e4]))))


def test_a_gradient_keeps_less_than_a_millionth_through_ten_sigmoids() -> None:
    sigmoid, tanh, relu = activations()
    assert [each.name for each in (sigmoid, tanh, relu)] == ["sigmoid", "tanh", "relu"]
    assert sigmoid.largest_slope == 0.25
    assert sigmoid.after_ten_steps == pytest.approx(0.25**10)
    assert tanh.largest_slope == 1.0
    assert relu.flat == pytest.approx(121 / 241)  # all that is not above 0


def test_results_are_plain_numbers_a_table_and_a_picture(tmp_path: Path) -> None:
    found = activations(["tanh", "gelu"], points=31)
    assert json.loads(json.dumps([each.as_dict() for each in found]))[1]["name"] == "gelu"
    assert [row[0] for row in activation_table(found).rows] == ["tanh", "gelu"]
    assert "<table" in found[0]._repr_html_()
    draw_activations(found, tmp_path / "functions.svg")
    assert "<svg" in (tmp_path / "functions.svg").read_text()


def test_unknown_names_and_empty_ranges_are_refused() -> None:
    with pytest.raises(SettingError, match="there are sigmoid, tanh"):
        activations(["step"])
    with pytest.raises(SettingError, match="low < high"):
        activations(low=1.0, high=1.0)

"""Jacobians: against torch's own, iteration against whole matrices, and spectral radii that are known."""

import math

import pytest
import torch
from torch import Tensor, nn

from relmo.analysis.core.stack import initial_states, unroll_layers
from relmo.analysis.memory import jacobian
from relmo.analysis.memory.jacobian import jacobian_curves, spectral_radius
from support.small_models import bilm

torch.manual_seed(1)
MODULES = {
    "elman": nn.RNN(3, 5, 2, batch_first=True),
    "gru": nn.GRU(3, 5, 2, batch_first=True),
    "lstm": nn.LSTM(3, 5, 2, batch_first=True),
    "projected": nn.LSTM(3, 5, 2, proj_size=3, batch_first=True),
}


def drawn(*shape: int) -> Tensor:
    return 2 * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODULES)
def test_the_largest_singular_value_is_that_of_the_jacobian_of_torchs_module(name: str) -> None:
    module = MODULES[name].double()
    layers, x = unroll_layers(module), drawn(1, 11, 3)
    curves = jacobian_curves(layers, x, initial_states(layers, 1))
    first = type(module)(3, 5, batch_first=True, **({"proj_size": 3} if name == "projected" else {})).double()
    first.load_state_dict({key: value for key, value in module.state_dict().items() if key.endswith("l0")})
    long = "lstm" in name or name == "projected"
    sizes = [3 if name == "projected" else 5, 5][: 2 if long else 1]
    parts = {"h": slice(0, sizes[0]), "c": slice(sizes[0], None), "state": slice(None)} if long else {"h": slice(None)}
    assert [(curve.layer, curve.part) for curve in curves] == [(d, part) for d in (0, 1) for part in parts]
    for curve in curves[: len(parts)]:
        assert curve.lags == [1, 2, 3, 5, 7, 10]
        assert curve.exact
        for lag, value in zip(curve.lags, curve.median, strict=True):

            def rest(s: Tensor, lag: int = lag) -> Tensor:
                states = tuple(part[None, None] for part in s.split(sizes))
                after = first(x[:, 11 - lag :], states if long else states[0])[1]
                return torch.cat([t.flatten() for t in (after if long else (after,))])

            with torch.no_grad():
                before = first(x[:, : 11 - lag])[1]
            start = torch.cat([t.flatten() for t in (before if long else (before,))])
            whole = torch.autograd.functional.jacobian(rest, start)
            at = parts[curve.part]
            assert value == pytest.approx(float(torch.linalg.svdvals(whole[at, at])[0]), rel=1e-8)


@pytest.mark.parametrize("name", MODULES)
def test_iteration_finds_what_whole_matrices_have(name: str) -> None:
    layers, x = unroll_layers(MODULES[name].double()), drawn(4, 16, 3)
    states = initial_states(layers, 4)
    exact, iterated = (jacobian_curves(layers, x, states, exact=form) for form in (True, False))
    for one, other in zip(exact, iterated, strict=True):
        assert (one.part, one.exact, other.exact) == (other.part, True, False)
        for quartile in ("median", "lower", "upper"):
            assert getattr(one, quartile) == pytest.approx(getattr(other, quartile), rel=1e-4)


def test_large_states_are_not_formed_and_clipped_cells_have_a_jacobian_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, x = unroll_layers(bilm().network), drawn(2, 8, 4)
    states = initial_states(layers, 2)
    assert all(curve.exact for curve in jacobian_curves(layers, x, states))
    monkeypatch.setattr(jacobian, "MAX_EXACT_SIZE", 12)  # the state has 13 numbers
    assert not any(curve.exact for curve in jacobian_curves(layers, x, states))


def test_the_spectral_radius_is_the_largest_absolute_eigenvalue() -> None:
    angle = 0.7
    rotation = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    assert spectral_radius(3 * rotation) == pytest.approx(3.0, rel=1e-6)
    assert spectral_radius(torch.tensor([[0.5, 100.0], [0.0, -2.0]])) == pytest.approx(2.0)

"""Gradients by lag: against torch's own modules cut in two, against what can be worked out by hand, and their fits."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from relmo.analysis.memory import gradients
from relmo.analysis.memory.gradients import (
    draw_flows,
    flow_tables,
    gradient_flow,
    step_factor,
    torch_gradient_flow,
)
from relmo.errors import CorpusError, ModelError, SettingError
from support.small_models import SENTENCES, TEXT, bilm, language_model

MODULES = {"elman": nn.RNN(3, 6, batch_first=True), "gru": nn.GRU(3, 6, batch_first=True)}
LSTM = nn.LSTM(3, 6, batch_first=True).double()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def squares(y: Tensor) -> Tensor:
    return (y**2).sum(dim=1)


@pytest.mark.parametrize("name", MODULES)
def test_gradients_by_h_are_those_of_torchs_module_cut_in_two_at_each_lag(name: str) -> None:
    module, x = MODULES[name].double(), drawn(5, 12, 3)
    flow = torch_gradient_flow(module, x, loss=squares, lags=9)
    curve = flow.curve("h")
    norms = []
    for lag in range(10):
        with torch.no_grad():
            _, h = module(x[:, : 12 - lag])
        h.requires_grad_()
        y = module(x[:, 12 - lag :], h)[0][:, -1] if lag else h[0]
        norms.append(torch.autograd.grad(squares(y).sum(), h)[0].norm(dim=2)[0])
    ratios = torch.stack(norms) / norms[0]  # (lags, B)
    torch.testing.assert_close(torch.tensor(curve.median, dtype=torch.float64), ratios.quantile(0.5, dim=1))
    torch.testing.assert_close(torch.tensor(curve.lower, dtype=torch.float64), ratios.quantile(0.25, dim=1))
    torch.testing.assert_close(torch.tensor(curve.upper, dtype=torch.float64), ratios.quantile(0.75, dim=1))
    means = torch.stack(norms).mean(dim=1)
    torch.testing.assert_close(torch.tensor(curve.mean, dtype=torch.float64), means / means[0])
    assert flow.positions == 5
    assert flow.cell == name


def test_an_lstms_gradients_by_c_are_whole_those_through_h_of_the_same_step_included() -> None:
    x = drawn(5, 12, 3)
    flow = torch_gradient_flow(LSTM, x, loss=squares, lags=9)
    by_h, by_c = [], []
    for lag in range(10):
        with torch.no_grad():
            _, (h, c) = LSTM(x[:, : 12 - lag])
        h.requires_grad_()
        c.requires_grad_()
        y = LSTM(x[:, 12 - lag :], (h, c))[0][:, -1] if lag else h[0] + 0 * c[0]
        d_h, d_c = torch.autograd.grad(squares(y).sum(), (h, c))
        o = (h / c.tanh()).detach()  # as h = o * tanh(c)
        by_h.append(d_h.norm(dim=2)[0])
        by_c.append((d_c + d_h * o * (1 - c.tanh() ** 2)).detach().norm(dim=2)[0])
    for of, norms in (("h", by_h), ("c", by_c)):
        ratios = torch.stack(norms) / norms[0]
        torch.testing.assert_close(
            torch.tensor(flow.curve(of).median, dtype=torch.float64), ratios.quantile(0.5, dim=1), rtol=1e-6, atol=1e-9
        )


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_path_is_the_first_gradient_times_the_product_of_the_gates_that_keep(cell: str) -> None:
    module = LSTM if cell == "lstm" else MODULES["gru"].double()
    x, readout = drawn(4, 8, 3), drawn(6)
    flow = torch_gradient_flow(module, x, loss=lambda y: y @ readout, lags=6)
    rows: slice = slice(6, 12)  # f is the second gate of an LSTM, z that of a GRU
    h = c = torch.zeros(4, 6, dtype=torch.float64)
    kept = []
    for t in range(8):
        z = x[:, t] @ module.weight_ih_l0[rows].T + module.bias_ih_l0[rows]  # type: ignore[index, union-attr]
        z = z + h @ module.weight_hh_l0[rows].T + module.bias_hh_l0[rows]  # type: ignore[index, union-attr]
        kept.append(torch.sigmoid(z).detach())
        state = (h[None], c[None]) if cell == "lstm" else h[None]
        after = module(x[:, t : t + 1], state)[1]
        h, c = (after[0][0].detach(), after[1][0].detach()) if cell == "lstm" else (after[0].detach(), c)
    first = readout * (h / c.tanh()) * (1 - c.tanh() ** 2) if cell == "lstm" else readout.expand(4, 6)
    product, ratios = torch.ones(4, 6, dtype=torch.float64), [torch.ones(4, dtype=torch.float64)]
    for lag in range(6):
        product = product * kept[7 - lag]
        ratios.append((first * product).norm(dim=1) / first.norm(dim=1))
    expected = torch.stack(ratios).quantile(0.5, dim=1)
    torch.testing.assert_close(torch.tensor(flow.curve("path").median, dtype=torch.float64), expected)
    mean = torch.stack(kept[1:]).mean()  # of the last seven steps
    assert flow.gate_mean[0]["f" if cell == "lstm" else "z"] == pytest.approx(float(mean))


def orthogonal_elman(radius: float) -> nn.RNN:
    """Without inputs its states are zero, where tanh has the slope 1: W_hh alone makes the gradients."""
    module = nn.RNN(2, 5, bias=False)
    with torch.no_grad():
        nn.init.orthogonal_(module.weight_hh_l0)
        module.weight_hh_l0.mul_(radius)
    return module


@pytest.mark.parametrize("radius", [0.5, 1.0, 1.5])
def test_a_linear_networks_factor_is_the_size_of_its_recurrent_weights(radius: float) -> None:
    flow = torch_gradient_flow(orthogonal_elman(radius), torch.zeros(3, 60, 2), jacobian_positions=2)
    curve = flow.curve("h")
    np.testing.assert_allclose(curve.median, radius ** np.arange(60.0), rtol=1e-4)
    assert curve.factor == pytest.approx(radius, rel=1e-5)
    assert curve.memory == (7 if radius == 0.5 else None)  # 0.5^7 < 0.01 < 0.5^6
    assert flow.spectral_radius == [{"h": pytest.approx(radius, rel=1e-5)}]
    np.testing.assert_allclose(flow.jacobians[0].median, [radius**lag for lag in flow.jacobians[0].lags], rtol=1e-4)


def test_a_language_models_gradients_are_of_the_loss_of_the_next_symbol() -> None:
    model = language_model("gru", layers=2)
    flow = gradient_flow(model, TEXT, lags=4, positions=3, warm_up=10, seed=1)
    ends = np.sort(14 + np.random.default_rng(1).choice(len(TEXT) + 1 - 14, size=3, replace=False))
    ids = np.concatenate([[model.vocabulary.end], model.encode(TEXT), [model.vocabulary.end]])
    norms = np.zeros((3, 5))
    for row, end in enumerate(ends.tolist()):
        for lag in range(5):
            with torch.no_grad():
                past = torch.from_numpy(ids[end - 14 : end - lag + 1])[None]
                state = model.network.features(past, model.network.initial_state(1))[1]  # type: ignore[union-attr]
            x = (state[0], state[1].clone().requires_grad_())  # the top layer's
            if lag:
                rest = torch.from_numpy(ids[end - lag + 1 : end + 1])[None]
                y = model.network.features(rest, x)[0][:, -1]  # type: ignore[union-attr]
            else:
                y = x[1]
            loss = model.network.softmax.nll(y, torch.from_numpy(ids[end + 1 : end + 2]))  # type: ignore[union-attr]
            norms[row, lag] = torch.autograd.grad(loss.sum(), x[1])[0].norm()
    np.testing.assert_allclose(flow.curve("h").median, np.median(norms / norms[:, :1], axis=0), rtol=2e-4)
    assert len(flow.spectral_radius) == 2
    assert flow.curve("h", layer=0).layer == 0


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_bidirectional_models_direction_is_measured_in_its_own_reading_order(direction: str) -> None:
    model = bilm(cell_clip=0.0, projection_clip=0.0)
    flow = gradient_flow(model, SENTENCES, lags=6, positions=8, warm_up=6, direction=direction)  # type: ignore[arg-type]
    assert {curve.of for curve in flow.curves} == {"h", "c", "path"}
    assert flow.curve("c").median[0] == 1.0
    other = gradient_flow(model, SENTENCES, lags=6, positions=8, warm_up=6)
    assert (flow.curve("c").median == other.curve("c").median) == (direction == "forward")


def test_a_text_without_room_to_warm_up_is_read_from_no_state() -> None:
    flow = gradient_flow(bilm(), SENTENCES, lags=4, positions=3, warm_up=0)
    assert len(flow.curve("h").median) == 5


def test_memory_is_bounded_by_pieces_that_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model("lstm")
    whole = gradient_flow(model, TEXT, lags=8, positions=7, warm_up=4, name="x")
    told: list[float] = []
    monkeypatch.setattr(gradients, "MAX_GRAPH_NUMBERS", 2000)
    pieces = gradient_flow(model, TEXT, lags=8, positions=7, warm_up=4, name="x", progress=told.append)
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] == 1.0
    for one, other in zip(whole.curves, pieces.curves, strict=True):
        np.testing.assert_allclose(one.median, other.median, rtol=1e-5)


def test_a_progress_that_raises_stops_the_work() -> None:
    def stop(_: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        gradient_flow(language_model(), TEXT, lags=3, positions=2, warm_up=0, progress=stop)


def test_the_factor_is_fitted_between_lags_5_and_40_and_over_what_there_is_of_shorter_curves() -> None:
    curve = np.concatenate([[1.0, 5.0, 0.1, 9.0, 2.0], 0.9 ** np.arange(5, 41), np.full(30, 7.0)])
    assert step_factor(curve) == pytest.approx(0.9)
    assert step_factor(0.7 ** np.arange(12.0)) == pytest.approx(0.7)
    assert step_factor(0.7 ** np.arange(4.0)) == pytest.approx(0.7)
    assert step_factor(np.array([1.0, 0.0, 0.0, 0.0])) is None
    assert step_factor(np.array([1.0, 0.5])) is None


def test_a_place_without_gradient_is_left_out_and_a_mean_is_of_norms_not_of_ratios() -> None:
    torch.manual_seed(0)
    module, inputs, scale = nn.RNN(2, 3), torch.randn(3, 5, 2), torch.tensor([0.0, 1.0, 9.0])
    rows = [torch_gradient_flow(module, row[None], loss=lambda y: y.sum(dim=1)).curve("h") for row in inputs[1:]]
    first, second = (np.array(row.median) for row in rows)
    curve = torch_gradient_flow(module, inputs, loss=lambda y: y.sum(dim=1) * scale.to(y)).curve("h")
    assert curve.median == pytest.approx((first + second) / 2)
    assert curve.mean == pytest.approx((first + 9 * second) / 10)  # at lag 0 all norms are the same up to the scale
    with pytest.raises(ModelError, match="depend"):
        torch_gradient_flow(module, inputs, loss=lambda y: 0 * y.sum(dim=1))


def test_results_are_plain_numbers_tables_html_and_a_picture(tmp_path: Path) -> None:
    flow = gradient_flow(language_model("lstm", layers=2), TEXT, lags=12, positions=5, jacobian_positions=2, name="<b>")
    assert json.loads(json.dumps(flow.as_dict()))["curves"][0]["median"][0] == 1.0
    table, radii, jacobians = flow_tables([flow])
    assert [row[0] for row in table.rows[:3]] == [
        "<b>, layer 0: dh",
        "<b>, layer 0: dc",
        "<b>, layer 0: through f alone",
    ]
    assert table.columns == ["gradient", "k = 1", "k = 5", "k = 10", "factor", "(mean)", "memory"]
    assert len(jacobians.rows) == 6
    assert len(radii.rows) == 2
    assert "<b>, layer" not in flow._repr_html_()
    draw_flows([flow, gradient_flow(language_model("elman"), TEXT, lags=12, positions=5)], tmp_path / "flow.svg")
    assert "<svg" in (tmp_path / "flow.svg").read_text()
    with pytest.raises(SettingError, match="curve"):
        flow.curve("z")


def test_what_cannot_be_measured_is_said() -> None:
    model = language_model()
    with pytest.raises(CorpusError, match="201"):
        gradient_flow(model, "the cat")
    with pytest.raises(SettingError, match="lags"):
        gradient_flow(model, TEXT, lags=0)
    with pytest.raises(SettingError, match="lags"):
        torch_gradient_flow(LSTM, drawn(2, 4, 3), lags=4)
    with pytest.raises(SettingError, match="batch"):
        torch_gradient_flow(LSTM, drawn(4, 3))
    with pytest.raises(ModelError, match="recurrent"):
        gradient_flow(language_model("feedforward", order=3), TEXT)


def test_without_a_loss_torchs_output_is_read_in_a_random_direction_of_length_one() -> None:
    x = drawn(6, 5, 3)
    one, again = (torch_gradient_flow(LSTM, x, seed=4) for _ in range(2))
    assert one == again
    assert one != torch_gradient_flow(LSTM, x, seed=5)
    assert one.lags == 4
    assert math.isclose(one.curve("h").median[0], 1.0)

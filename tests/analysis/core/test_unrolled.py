"""Unrolled networks: outputs, states and gradients equal to torch's fused recurrences and to relmo's own fast paths."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from relmo.analysis.core.stack import initial_states, unroll, unroll_layers
from relmo.errors import ModelError
from support.small_models import SENTENCES, TEXT, bilm, language_model

MODULES = {
    "elman": nn.RNN(3, 6, 2, batch_first=True),
    "rectified": nn.RNN(3, 6, 2, nonlinearity="relu", batch_first=True),
    "gru": nn.GRU(3, 6, 2, batch_first=True),
    "lstm": nn.LSTM(3, 6, 2, batch_first=True),
    "no biases": nn.LSTM(3, 6, 2, bias=False, batch_first=True),
    "projected": nn.LSTM(3, 6, 2, proj_size=4, batch_first=True),
}
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def stacked(states: list[tuple[Tensor, ...]]) -> Tensor | tuple[Tensor, ...]:
    """As torch has its state: (layers, B, size) each."""
    tensors = tuple(torch.stack(each) for each in zip(*states, strict=True))
    return tensors[0] if len(tensors) == 1 else tensors


@pytest.mark.parametrize("name", MODULES)
def test_outputs_states_and_all_gradients_are_those_of_torchs_module(name: str) -> None:
    module = MODULES[name].double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 9, 3, dtype=torch.float64, generator=generator).requires_grad_()
    layers = unroll_layers(module)
    start = [
        tuple(torch.randn(t.shape, dtype=t.dtype, generator=generator).requires_grad_() for t in state)
        for state in initial_states(layers, 4)
    ]
    run = unroll(layers, x, start)
    expected, final = module(x, stacked(start))
    torch.testing.assert_close(torch.stack(run.output, dim=1), expected, **EXACT)
    for ours, theirs in zip(stacked([path[-1] for path in run.path]), final, strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(ours, theirs, **EXACT)
    weight = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    by = [x, *(tensor for state in start for tensor in state)]
    ours = torch.autograd.grad((torch.stack(run.output, dim=1) * weight).sum(), by)
    theirs = torch.autograd.grad((expected * weight).sum(), by)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, **EXACT)
    assert [layer.cell.name for layer in layers] == [{"rectified": "elman"}.get(name, name.split()[0])] * 2 or name in (
        "no biases",
        "projected",
    )


@pytest.mark.parametrize(
    ("cell", "options"),
    [("elman", {}), ("gru", {"layers": 2}), ("lstm", {"layers": 2, "residual": True, "embedding": 7})],
)
def test_a_language_models_outputs_are_those_of_its_own_fast_path(cell: str, options: dict[str, int]) -> None:
    model = language_model(cell, **options)
    reading = model.make_reading(TEXT)
    vectors, _ = reading.get_inputs(np.arange(60)[None])
    layers = unroll_layers(model.network)
    run = unroll(layers, vectors, initial_states(layers, 1))
    with torch.no_grad():
        expected = model.encoder(torch.from_numpy(reading.ids[:60])[None]).output  # type: ignore[attr-defined]
    torch.testing.assert_close(torch.stack(run.output, dim=1).float(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("skip", [True, False])
def test_a_bidirectional_models_outputs_are_those_of_its_own_fast_path(direction: int, skip: bool) -> None:
    model = bilm(layers=3, skip_connections=skip)
    reading = model.make_reading(SENTENCES, model.directions[direction])
    places = np.stack([np.arange(40), np.arange(7, 47)])
    layers = unroll_layers(model.network, direction=direction)
    run = unroll(layers, reading.get_inputs(places)[0], initial_states(layers, 2))
    window = reading.text.window(np.concatenate([places, places[:, -1:] + 1], axis=1))  # type: ignore[attr-defined]
    with torch.no_grad():
        expected = model.network.read(window, None).layers[-1][direction]  # (T, B, P)
    torch.testing.assert_close(torch.stack(run.output).float(), expected, rtol=1e-4, atol=1e-5)
    assert max(float(step["c"].detach().abs().max()) for step in run.quantities[0]) == pytest.approx(
        0.3
    )  # the clip holds


def test_layers_that_read_both_directions_of_those_below_are_refused() -> None:
    with pytest.raises(ModelError, match="directions"):
        unroll_layers(nn.LSTM(3, 4, 2, bidirectional=True))


def test_recurrent_matrices_have_the_eigenvalues_of_what_a_gate_does_with_h() -> None:
    module = nn.LSTM(3, 6, proj_size=4).double()
    (layer,) = unroll_layers(module)
    for gate, matrix in zip("ifgo", module.weight_hh_l0.detach().split(6), strict=True):  # type: ignore[operator]
        whole = matrix @ module.weight_hr_l0.detach()  # (6, 6), of rank 4 at most
        values = torch.linalg.eigvals(layer.recurrent_matrices()[gate]).abs().sort().values
        torch.testing.assert_close(values, torch.linalg.eigvals(whole).abs().sort().values[2:], rtol=1e-8, atol=1e-10)

"""Highway layers against their equations."""

import numpy as np
import pytest
import torch

from relmo.nn.char_cnn import Highway


def test_it_is_its_equations() -> None:
    torch.manual_seed(0)
    layer = Highway(5).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    x = torch.randn(4, 5, dtype=torch.float64)
    weights = {name: p.detach().numpy() for name, p in layer.named_parameters()}
    gate = 1 / (1 + np.exp(-(x.numpy() @ weights["carry.weight"].T + weights["carry.bias"])))
    made = np.maximum(x.numpy() @ weights["transform.weight"].T + weights["transform.bias"], 0)
    np.testing.assert_allclose(layer(x).detach().numpy(), gate * made + (1 - gate) * x.numpy(), atol=1e-12)


def test_it_starts_as_almost_the_identity() -> None:
    torch.manual_seed(0)
    layer = Highway(64)
    assert (layer.carry.bias == -2).all()
    assert (layer.transform.bias == 0).all()
    x = 0.1 * torch.randn(10, 64)
    assert (layer(x) - x).abs().mean() < 0.3 * x.abs().mean()


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_those_of_its_equations(device: str) -> None:
    torch.manual_seed(0)
    exact, fast = Highway(70, fast=False).double().to(device), Highway(70).to(device)
    fast.load_state_dict(exact.state_dict())
    x = torch.randn(33, 70, device=device, requires_grad=True)
    y, found = exact(x.double()), fast(x)
    torch.testing.assert_close(found, y.float(), rtol=0, atol=1e-5)
    weight = torch.randn_like(found)
    wanted = torch.autograd.grad(y, [x, *exact.parameters()], weight.double())
    for a, b in zip(wanted, torch.autograd.grad(found, [x, *fast.parameters()], weight), strict=True):
        assert (a - b).norm() < 1e-5 * a.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_it_trains_in_mixed_precision(device: str) -> None:
    torch.manual_seed(0)
    layer = Highway(70).to(device)
    x = torch.randn(33, 70, device=device, requires_grad=True)
    exact = torch.autograd.grad(layer(x).sum(), [x, *layer.parameters()])
    with torch.autocast(device, dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.float32
    for a, b in zip(exact, torch.autograd.grad(y.sum(), [x, *layer.parameters()]), strict=True):
        assert a.dtype == b.dtype
        assert (a - b).norm() < 0.02 * a.norm()

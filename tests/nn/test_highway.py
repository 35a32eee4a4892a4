"""Highway layers against their equations."""

import numpy as np
import torch

from relmo.nn.highway import Highway


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

"""Feedforward layers against their formulas."""

import torch

from relmo.nn.dropout import MLP, Maxout


def test_layers_of_rectifiers_are_their_formula() -> None:
    network = MLP(3, [4, 2]).eval()
    x = torch.randn(5, 3)
    one, two = network.layers
    torch.testing.assert_close(network(x), two(one(x).clamp(min=0)).clamp(min=0))
    assert network.output_size == 2
    assert MLP(3, []).output_size == 3
    assert torch.equal(MLP(3, [])(x), x)


def test_the_activation_and_the_dropout_are_those_asked_for() -> None:
    network = MLP(3, [400], activation="tanh", dropout=0.5)
    x = torch.randn(3)
    full = network.eval()(x)
    torch.testing.assert_close(full, torch.tanh(network.layers[0](x)))
    dropped = network.train()(x)
    kept = dropped != 0
    assert 0.35 < kept.float().mean() < 0.65
    torch.testing.assert_close(dropped[kept], 2 * full[kept])


def test_maxout_is_the_largest_of_its_pieces_in_each_layer() -> None:
    torch.manual_seed(0)
    network = Maxout(3, [4, 2], pieces=3, dropouts=[0.0, 0.0])
    x = torch.randn(6, 3)
    z = network.layers[0](x)
    z = torch.stack([z[:, 3 * unit : 3 * unit + 3].max(dim=1).values for unit in range(4)], dim=1)
    z = network.layers[1](z)
    expected = torch.stack([z[:, :3].max(dim=1).values, z[:, 3:].max(dim=1).values], dim=1)
    torch.testing.assert_close(network(x), expected)

"""The mixture of layers against its equation, its two layer norms, and the weights of old files."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from relmo.nn.pooling import ScalarMix


def layers(seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(3, 2, 5, 4, dtype=torch.float64) * torch.tensor([1.0, 2.0, 5.0]).view(3, 1, 1, 1) + 1


def some_mix(**options: object) -> ScalarMix:
    mix = ScalarMix(3, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.3, -1.0, 2.0]))
        mix.gamma.fill_(1.7)
    return mix


def test_it_is_gamma_times_the_softmax_weighted_sum() -> None:
    h = layers()
    shares = np.exp([0.3, -1.0, 2.0]) / np.exp([0.3, -1.0, 2.0]).sum()
    expected = 1.7 * sum(share * layer for share, layer in zip(shares, h.numpy(), strict=True))
    np.testing.assert_allclose(some_mix()(h).detach().numpy(), expected, atol=1e-12)


def test_it_starts_as_the_average() -> None:
    torch.testing.assert_close(ScalarMix(3).double()(layers()), layers().mean(dim=0))


def test_the_layer_norm_takes_one_mean_and_variance_a_layer_over_real_tokens_alone() -> None:
    h, mask = layers(), torch.tensor([[True] * 5, [True, True, False, False, False]])
    shares = np.exp([0.3, -1.0, 2.0]) / np.exp([0.3, -1.0, 2.0]).sum()
    expected = 0
    for share, layer in zip(shares, h.numpy(), strict=True):
        real = layer[mask.numpy()]
        expected = expected + share * (layer - real.mean()) / np.sqrt(real.var() + 1e-12)
    np.testing.assert_allclose(some_mix(layer_norm=True)(h, mask).detach().numpy(), 1.7 * expected, atol=1e-12)


def test_what_is_masked_does_not_touch_the_statistics() -> None:
    h, mask = layers(), torch.tensor([[True] * 5, [True, True, False, False, False]])
    mix = some_mix(layer_norm=True)
    before = mix(h, mask)
    h[:, 1, 2:] = 1e6
    torch.testing.assert_close(mix(h, mask)[mask], before[mask])


def test_l2_is_the_sum_of_the_squared_weights() -> None:
    assert some_mix().l2().item() == pytest.approx(0.09 + 1 + 4)


def test_gradients_are_right() -> None:
    mix, h = some_mix(layer_norm=True), layers().requires_grad_()

    def run(h: torch.Tensor, weights: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(mix, {"weights": weights, "gamma": gamma}, (h,))

    assert torch.autograd.gradcheck(run, (h, mix.weights, mix.gamma))


def test_fixed_weights_are_used_and_not_trained() -> None:
    mix = ScalarMix(3, fixed=[-1e9, 0.0, -1e9])
    h = layers().float()
    torch.testing.assert_close(mix(h), h[1])
    assert not any(p.requires_grad for p in mix.parameters())
    with pytest.raises(ValueError, match="2 fixed weights for 3 layers"):
        ScalarMix(3, fixed=[1.0, 2.0])


def test_weights_saved_one_by_one_are_read() -> None:
    old = {f"mix.scalar_parameters.{k}": torch.tensor([float(k)]) for k in range(3)} | {
        "mix.gamma": torch.tensor([2.0])
    }
    around = nn.ModuleDict({"mix": ScalarMix(3)})
    around.load_state_dict(old)
    assert around["mix"].weights.tolist() == [0, 1, 2]
    assert around["mix"].gamma.item() == 2
    again = nn.ModuleDict({"mix": ScalarMix(3)})
    again.load_state_dict(around.state_dict())
    assert again["mix"].weights.tolist() == [0, 1, 2]


def test_a_copy_and_a_replica_keep_the_weights() -> None:
    mix = some_mix()
    assert copy.deepcopy(mix)(layers()).equal(mix(layers()))
    replica = mix._replicate_for_data_parallel()  # as DataParallel makes them: parameters become plain tensors
    for name, parameter in mix.named_parameters():
        setattr(replica, name, parameter.clone())
    replica(layers()).sum().backward()
    assert mix.weights.grad is not None
    assert mix.weights.grad.abs().sum() > 0
    assert replica(layers()).equal(mix(layers()))

"""One step of the optimiser: torch's own, whether in one pass over memory or in many."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from relmo.nn.kernels import elementwise_triton
from relmo.settings.sections import TrainSettings
from relmo.training.optimizer import OnePassAdagrad, clip_factor, gradient_norm, make_optimizer, update

SHAPES = [(7, 9), (5,), (3, 4, 2), (5000,)]
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def made(kind: type[torch.optim.Adagrad], device: str) -> tuple[list[nn.Parameter], torch.optim.Adagrad]:
    """Parameters in two groups, one with weight decay."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape).to(device)) for shape in SHAPES]
    groups = [{"params": parameters[:2], "weight_decay": 0.1}, {"params": parameters[2:], "weight_decay": 0.0}]
    return parameters, kind(groups, lr=0.3, initial_accumulator_value=0.5, foreach=True)


def in_torch(p: Tensor, g: Tensor, squares: Tensor, average: Tensor | None, **numbers: Any) -> None:
    """The equations of `elementwise_triton.step_adagrad`; as with Triton, torch does not see what is written."""
    p = p.data
    g = numbers["factor"] * g + numbers["weight_decay"] * p
    squares += g * g
    p -= numbers["lr"] * g / (squares.sqrt() + numbers["eps"])
    if average is not None:
        average += numbers["weight"] * (p - average)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("averaged", [True, False])
def test_one_pass_does_what_torch_does_in_many(averaged: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":
        monkeypatch.setattr(elementwise_triton, "step_adagrad", in_torch)
    elif elementwise_triton.triton is None:
        pytest.skip("no Triton here")
    (slow, plain), (fast, one_pass) = made(torch.optim.Adagrad, device), made(OnePassAdagrad, device)
    averages = [{p: p.detach().clone() for p in parameters} if averaged else {} for parameters in (slow, fast)]
    for number in range(5):
        for one, other in zip(slow, fast, strict=True):
            one.grad = 2 * torch.randn_like(one)
            other.grad = one.grad.clone()
        if number == 2:  # frozen
            slow[1].grad = fast[1].grad = None
        factor = None if number == 3 else clip_factor(gradient_norm(slow), 1.0)
        versions = [p._version for p in fast]
        for optimizer, average in zip((plain, one_pass), averages, strict=True):
            update(optimizer, average, factor=factor, weight=0.3)
        changed = [p._version > before for p, before in zip(fast, versions, strict=True)]
        assert changed == [True, number != 2, True, True], "torch is told of what changed"
        torch.testing.assert_close([p.detach() for p in slow], [p.detach() for p in fast], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(*(list(average.values()) for average in averages), rtol=1e-5, atol=1e-6)
    expected, found = plain.state_dict(), one_pass.state_dict()
    assert expected["param_groups"] == found["param_groups"]
    torch.testing.assert_close(expected["state"], found["state"])


def test_the_factor_scales_a_gradient_down_to_the_limit_and_never_up() -> None:
    assert float(clip_factor(torch.tensor(4.0), 1.0)) == pytest.approx(0.25)
    assert float(clip_factor(torch.tensor(0.5), 1.0)) == 1.0
    assert float(clip_factor(torch.tensor(0.0), 1.0)) == 1.0


def test_the_norm_is_that_of_all_dense_gradients_there_are() -> None:
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(4)]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    parameters[2].grad = torch.ones(2).to_sparse()
    assert float(gradient_norm(parameters)) == pytest.approx(math.hypot(3, 4))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_adagrad_takes_one_pass_on_a_gpu_alone_and_never_with_sparse_gradients(device: str) -> None:
    settings = TrainSettings(optimizer="adagrad")
    wanted = device == "cuda" and elementwise_triton.triton is not None
    assert isinstance(make_optimizer(nn.Linear(2, 3).to(device), settings), OnePassAdagrad) == wanted
    sparse = nn.Embedding(2, 3, sparse=True).to(device)
    assert not isinstance(make_optimizer(sparse, settings), OnePassAdagrad)

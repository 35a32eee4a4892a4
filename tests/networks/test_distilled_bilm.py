"""A network taught by another: what it learns from, what stays as it is."""

import dataclasses

import numpy as np
import pytest
import torch

from relmo.networks.bilm import BiLMNetwork, BiWindow, DistilledBiLM
from relmo.settings.bilm import BiLMModelSettings

SETTINGS = BiLMModelSettings(
    input="word", hidden=12, projection=6, dropout=0.0, state_dropout=0.0, softmax="full", samples=8192
)
LARGER = BiLMModelSettings(input="word", hidden=16, projection=8, dropout=0.3, layers=3)
WORDS = 30


@pytest.fixture
def window() -> BiWindow:
    draw = np.random.default_rng(1)
    inputs, targets = (torch.from_numpy(draw.integers(0, WORDS, (2, 5, 4))) for _ in range(2))
    return BiWindow(torch.arange(WORDS), inputs, targets)


def taught(*, share: float, layers: float = 0.0) -> DistilledBiLM:
    torch.manual_seed(1)
    student = BiLMNetwork(SETTINGS, vocab_size=WORDS)
    return DistilledBiLM(student, BiLMNetwork(LARGER, vocab_size=WORDS), share=share, layers=layers)


def test_without_a_share_it_is_the_plain_loss(window: BiWindow) -> None:
    network = taught(share=0.0)
    plain = network.student.loss(window, None)
    loss = network.loss(window, None)
    torch.testing.assert_close(loss.mean, plain.mean)
    after = network.loss(window, loss.carry).mean
    torch.testing.assert_close(after, network.student.loss(window, plain.carry).mean)


def test_the_whole_loss_is_least_where_the_teacher_is_met(window: BiWindow) -> None:
    """With a student of the teacher's own weights nothing is left to learn from its predictions."""
    torch.manual_seed(1)
    student, teacher = (BiLMNetwork(SETTINGS, vocab_size=WORDS) for _ in range(2))
    student.load_state_dict(teacher.state_dict())
    DistilledBiLM(student, teacher, share=1.0).loss(window, None).mean.backward()
    gradients = torch.cat([p.grad.flatten() for p in student.parameters() if p.grad is not None])
    assert float(gradients.abs().max()) < 1e-6


@pytest.mark.parametrize("narrow", ["student", "teacher"])
def test_either_may_have_a_bottleneck(window: BiWindow, narrow: str) -> None:
    """Its matrix and the output layer multiplied out give the same loss."""
    losses = []
    for multiplied in (False, True):
        torch.manual_seed(1)
        both = [BiLMNetwork(dataclasses.replace(SETTINGS, softmax_dim=3), vocab_size=WORDS) for _ in range(2)]
        for network in both if multiplied else both[narrow == "student" :][:1]:
            assert network.softmax is not None
            whole = network.softmax.vectors(torch.arange(WORDS)).detach().clone()
            network.softmax.weight, network.softmax.bottleneck = torch.nn.Parameter(whole), None
        losses.append(DistilledBiLM(*both, share=0.5).loss(window, None).mean)
    torch.testing.assert_close(*losses)


def test_the_teacher_stays_as_it_is(window: BiWindow) -> None:
    network = taught(share=0.5, layers=1.0)
    (teacher,) = network.teachers
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        loss = network.loss(window, None).mean
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
    assert not any(name.startswith("others") for name in network.state_dict())


def test_equal_for_the_same_window(window: BiWindow) -> None:
    """The teacher's dropout is off."""
    network = taught(share=0.5)
    assert network.loss(window, None).mean == network.loss(window, None).mean

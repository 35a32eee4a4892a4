"""Muon against what it is by definition: singular values by SVD, and Adam for all that is not a matrix."""

import copy

import pytest
import torch

from relmo.networks.bilm import BiLMNetwork, DistilledBiLM
from relmo.nn.recurrence import make_cell
from relmo.nn.recurrence.elmo_lstm import ElmoLayer
from relmo.nn.recurrence.stack import Recurrent
from relmo.registry import cell_names
from relmo.settings.bilm import BiLMModelSettings
from relmo.settings.sections import TrainSettings
from relmo.training.optimizer import MOMENTUM, Muon, make_optimizer, orthogonalize

TINY = {"char_dim": 4, "filters": ("1x4", "2x8"), "hidden": 6, "projection": 3}


@pytest.mark.parametrize("shape", [(3, 8, 20), (1, 12, 12)])
def test_orthogonal_keeps_the_directions_of_a_matrix_and_makes_them_alike(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    found = orthogonalize(matrices)
    assert found.shape == shape
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    turned = u.mT @ found @ v.mT  # the same singular vectors: a diagonal matrix
    assert torch.allclose(turned, torch.diag_embed(turned.diagonal(dim1=1, dim2=2)), atol=1e-4)
    kept = turned.diagonal(dim1=1, dim2=2)[s > 0.05 * s.max()]
    assert kept.min() > 0.5
    assert kept.max() < 1.3


def test_each_gate_and_direction_is_turned_by_itself_and_the_rest_is_adams() -> None:
    torch.manual_seed(0)
    layer = ElmoLayer(3, 5, 2)
    before, twin = copy.deepcopy(layer), copy.deepcopy(layer)
    optimizer = make_optimizer(layer, TrainSettings(optimizer="muon", lr=0.1))
    for parameter, other in zip(layer.parameters(), twin.parameters(), strict=True):
        parameter.grad = torch.randn_like(parameter)
        other.grad = parameter.grad.clone()
    optimizer.step()
    torch.optim.Adam([twin.bias], lr=0.1).step()
    assert torch.allclose(layer.bias, twin.bias, atol=1e-6)
    assert twin.weight_ih.grad is not None
    for direction in range(2):
        for gate in (slice(0, 5), slice(5, 10), slice(10, 15), slice(15, 20)):
            ahead = (1 + MOMENTUM) * twin.weight_ih.grad[direction, gate].mT
            wanted = before.weight_ih[direction, gate] - 0.1 * 0.2 * 5**0.5 * orthogonalize(ahead[None])[0].mT
            assert torch.allclose(layer.weight_ih[direction, gate], wanted, atol=1e-6)


def test_weight_decay_shrinks_the_matrices_alone_by_the_learning_rate() -> None:
    torch.manual_seed(0)
    layer = ElmoLayer(3, 5, 2)
    twin = copy.deepcopy(layer)
    gradients = [torch.randn_like(parameter) for parameter in layer.parameters()]
    for each, decay in ((layer, 0.5), (twin, 0.0)):
        optimizer = make_optimizer(each, TrainSettings(optimizer="muon", lr=0.1, weight_decay=decay))
        for parameter, gradient in zip(each.parameters(), gradients, strict=True):
            parameter.data.fill_(2.0)
            parameter.grad = gradient.clone()
        optimizer.step()
    assert torch.equal(layer.bias, twin.bias)
    for name in ("weight_ih", "weight_hh", "weight_hr"):
        assert torch.allclose(getattr(layer, name), getattr(twin, name) - 0.1 * 0.5 * 2.0, atol=1e-6)


def test_a_bilm_leaves_characters_and_the_output_layer_to_adam() -> None:
    network = BiLMNetwork(BiLMModelSettings(**TINY), vocab_size=9)  # type: ignore[arg-type]
    optimizer = make_optimizer(network, TrainSettings(optimizer="muon"))
    assert isinstance(optimizer, Muon)
    names = {id(p): name for name, p in network.named_parameters()}
    turned, others = ({names[id(p)].split(".")[-1] for p in group["params"]} for group in optimizer.param_groups)
    assert turned == {"weight", "weight_ih", "weight_hh", "weight_hr"}
    assert {"embedding", "bias"} <= others
    adams = {names[id(p)] for p in optimizer.param_groups[1]["params"]}
    assert {"softmax.weight", "encoder.cnn.weights.0"} <= adams
    assert not any(name.startswith(("encoder.highways.0.carry.weight", "lstm.layers.0.weight")) for name in adams)


def test_a_teacher_is_not_trained() -> None:
    student, teacher = (BiLMNetwork(BiLMModelSettings(**TINY), vocab_size=9) for _ in range(2))  # type: ignore[arg-type]
    taught = DistilledBiLM(student, teacher, share=0.5)
    groups = make_optimizer(taught, TrainSettings(optimizer="muon")).param_groups
    moved = {id(p) for group in groups for p in group["params"]}
    assert moved == {id(p) for p in student.parameters()}


@pytest.mark.parametrize("name", cell_names())
def test_every_cell_has_matrices_of_its_gates(name: str) -> None:
    stack = Recurrent(make_cell(name, 8), input_size=8)
    optimizer = make_optimizer(stack, TrainSettings(optimizer="muon", lr=0.1))
    assert isinstance(optimizer, Muon)
    before = {parameter: parameter.detach().clone() for parameter in optimizer.param_groups[0]["params"]}
    assert before
    stack(torch.randn(3, 5, 8)).output.square().sum().backward()
    has_gradient = {parameter for parameter in before if parameter.grad is not None and parameter.grad.any()}
    optimizer.step()
    assert has_gradient
    for parameter, rows in zip(before, optimizer.param_groups[0]["rows"], strict=True):
        steps = (parameter.detach() - before[parameter]).view(-1, rows, parameter.shape[-1])
        if parameter in has_gradient:  # all singular values of a step are about the same
            values = torch.linalg.svdvals(steps) / (0.1 * 0.2 * max(rows, parameter.shape[-1]) ** 0.5)
            assert values.max() < 1.3
            assert values.max(dim=1).values.min() > 0.5

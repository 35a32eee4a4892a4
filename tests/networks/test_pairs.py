"""Networks of two sentences: their definitions, what they do not depend on, symmetry, learning by heart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from relmo.networks.classifier import ESIM, CosineRegression, DecomposableAttention, PooledClassifier
from relmo.networks.inputs import Encoded
from relmo.nn.recurrence import Cell
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.settings.tasks import PairsModelSettings
from relmo.store.folder import load_weights, save_weights
from support.sentence_batches import (
    assert_each_sentence_stands_alone,
    assert_gradients_reach_everything,
    make_network,
    overfit,
    sentences,
)

FIRST, SECOND = [4, 1, 0, 6, 2, 3], [2, 5, 3, 1, 0, 3]


def encoders(**options: Any) -> Callable[..., PooledClassifier]:
    sizes = {"input_size": 6, "num_classes": 3, "hidden": 12, "mlp": [16], "pool": "final"}
    return lambda **more: make_network(PooledClassifier, PairsModelSettings, **(sizes | options | more))


def esim(**more: Any) -> ESIM:
    return make_network(ESIM, PairsModelSettings, **({"input_size": 6, "num_classes": 3, "hidden": 8} | more))


def decomposable(**more: Any) -> DecomposableAttention:
    sizes = {"input_size": 6, "num_classes": 3, "hidden": 24}
    return make_network(DecomposableAttention, PairsModelSettings, **(sizes | more))


def cosine(**more: Any) -> CosineRegression:
    return make_network(
        CosineRegression, PairsModelSettings, **({"input_size": 6, "hidden": 16, "low": 0.0, "pool": "mean"} | more)
    )


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "lstm": encoders(directions=1),
    "bilstm": encoders(),
    "bilstm of two layers, max": encoders(pool="max", layers=2),
    "bigru, attention": encoders(pool="attention", cell="gru"),
    "esim": esim,
    "decomposable attention": decomposable,
    "cosine": cosine,
}


@pytest.fixture(params=NETWORKS)
def make(request: pytest.FixtureRequest) -> Callable[..., nn.Module]:
    torch.manual_seed(0)
    return NETWORKS[request.param]


def pair(elmo: int = 0, padding: int = 0) -> tuple[Encoded, Encoded]:
    options = {"elmo": elmo, "padding": padding}
    return sentences(FIRST, seed=1, **options), sentences(SECOND, seed=2, **options)


def targets(network: nn.Module, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    if isinstance(network, CosineRegression):
        return 5 * torch.rand(count, generator=generator)
    return torch.randint(3, (count,), generator=generator)


@pytest.mark.parametrize("elmo", [0, 4])
def test_a_pair_s_output_depends_on_nothing_but_the_pair(make: Callable[..., nn.Module], elmo: int) -> None:
    network = make(elmo_size=elmo)
    for padding in (0, 3):
        first, second = pair(elmo, padding)
        output = network(first, second)
        assert output.shape == ((6,) if isinstance(network, CosineRegression) else (6, 3))
        assert_each_sentence_stands_alone(network, network, first, second)


def test_gradients_reach_every_weight_and_are_finite_with_empty_sentences(make: Callable[..., nn.Module]) -> None:
    network = make(elmo_size=4)
    assert_gradients_reach_everything(network, network.loss(network(*pair(elmo=4)), targets(network, 6)))  # type: ignore[operator]


@pytest.mark.slow
def test_32_pairs_with_labels_at_random_are_learned_by_heart(make: Callable[..., nn.Module]) -> None:
    network = make(dropout=0.0)
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 7, (2, 32), generator=generator).tolist()
    first, second = (sentences(n, seed=seed) for seed, n in enumerate(lengths))
    wanted = targets(network, 32)
    overfit(network, lambda: network.loss(network(first, second), wanted))  # type: ignore[operator]
    found = network(first, second)
    if isinstance(network, CosineRegression):
        assert (found - wanted).abs().max() < 0.5
        assert (found - wanted).square().mean() < 0.01
    else:
        assert found.argmax(dim=1).tolist() == wanted.tolist()


def test_elmo_beside_the_output_makes_a_difference_on_either_side(make: Callable[..., nn.Module]) -> None:
    network = make(elmo_size=4).eval()
    first, second = sentences([3, 5], elmo=4, seed=1), sentences([4, 2], elmo=4, seed=2)
    assert first.elmo is not None
    assert second.elmo is not None
    before = network(first, second)
    for one, two in (
        (first._replace(elmo=first.elmo + 1), second),
        (first, second._replace(elmo=second.elmo + 1)),
    ):
        assert ((network(one, two) - before).reshape(2, -1).abs().amax(dim=1) > 1e-4).all()


def test_saved_and_loaded_it_gives_the_same_output(make: Callable[..., nn.Module], tmp_path: Path) -> None:
    network = make().eval()
    save_weights(tmp_path, network)
    assert torch.equal(load_weights(tmp_path, {}, make)(*pair()), network(*pair()))


def test_it_starts_with_orthogonal_recurrences_and_a_forget_gate_that_is_open(make: Callable[..., nn.Module]) -> None:
    network = make()
    for module in network.modules():
        if isinstance(module, Cell):
            W = module.weight_hh[: module.hidden_size]
            torch.testing.assert_close(W.T @ W, torch.eye(W.shape[1]), rtol=0, atol=1e-5)
            assert module.bias_ih.sum() == (module.hidden_size if isinstance(module, LSTMCell) else 0)
        if isinstance(module, nn.Linear) and module.bias is not None:
            assert (module.bias == 0).all()


@pytest.mark.gpu
def test_on_a_gpu_the_output_is_the_same(make: Callable[..., nn.Module]) -> None:
    network = make(elmo_size=4).eval()
    first, second = pair(elmo=4)
    expected = network(first, second)
    moved = [Encoded(*(tensor.cuda() for tensor in side if tensor is not None)) for side in (first, second)]
    torch.testing.assert_close(network.cuda()(*moved).cpu(), expected, rtol=1e-3, atol=1e-3)


def test_cosine_similarity_is_in_its_range_highest_for_a_sentence_and_itself_and_the_same_both_ways() -> None:
    network = cosine(low=1.0, high=4.0).eval()
    first, second = pair()
    found = network(first, second)
    assert ((found >= 1) & (found <= 4)).all()
    torch.testing.assert_close(found, network(second, first))
    expected = torch.where(first.lengths > 0, 4.0, 2.5)  # nothing is known of an empty sentence
    torch.testing.assert_close(network(first, first), expected)
    u, v = (network.sentences(*side)[0] for side in (first, second))
    by_hand = 1 + 3 * (1 + u @ v / (u.norm() * v.norm())) / 2
    torch.testing.assert_close(found[0], by_hand)


def test_cosine_loss_is_the_mean_squared_error() -> None:
    assert cosine().loss(torch.tensor([1.0, 2.0]), torch.tensor([0, 4])).item() == 2.5


def test_an_encoder_pair_is_its_formula_with_one_encoder_for_both() -> None:
    network = encoders(mlp=[7], pool="max")().eval()
    first, second = pair()
    u, v = network.sentences(*first), network.sentences(*second)
    features = torch.cat([u, v, (u - v).abs(), u * v], dim=1)
    torch.testing.assert_close(network(first, second), network.output(torch.relu(network.mlp.layers[0](features))))


def swap(weight: Tensor, parts: int) -> Tensor:
    """The columns of a weight with its first and second `parts`-th exchanged, the rest as they are."""
    one, two, *rest = weight.chunk(parts, dim=1)
    return torch.cat([two, one, *rest], dim=1)


@pytest.mark.parametrize(
    ("network", "layer", "parts"),
    [
        (encoders(), lambda n: n.mlp.layers[0], 4),
        (esim, lambda n: n.mlp.layers[0], 2),
        (decomposable, lambda n: n.aggregate.layers[0], 2),
    ],
    ids=["encoder pair", "esim", "decomposable attention"],
)
def test_sides_are_told_apart_only_where_they_are_put_side_by_side(
    network: Callable[[], nn.Module], layer: Callable[[Any], nn.Linear], parts: int
) -> None:
    made = network().eval()
    first, second = pair()
    expected = made(first, second)
    assert not torch.allclose(made(second, first), expected)
    with torch.no_grad():
        layer(made).weight.copy_(swap(layer(made).weight, parts))
    torch.testing.assert_close(made(second, first), expected)


def test_esim_is_its_equations_written_as_loops_on_one_pair() -> None:
    torch.manual_seed(0)
    network = esim(elmo_size=4).eval()
    first, second = sentences([3], elmo=4, seed=1), sentences([5], elmo=4, seed=2)
    a, b = network.encoder(*first)[0], network.encoder(*second)[0]  # (S, D), (T, D)
    e = torch.stack([torch.stack([(a[i] * b[j]).sum() for j in range(5)]) for i in range(3)])

    def beside(word: Tensor, others: Tensor, scores: Tensor) -> Tensor:
        weights = scores.exp() / scores.exp().sum()
        aligned = sum((w * other for w, other in zip(weights, others, strict=True)), torch.zeros_like(word))
        m = torch.cat([word, aligned, word - aligned, word * aligned])
        return torch.relu(network.projection.layers[0](m))

    m_a = torch.stack([beside(a[i], b, e[i]) for i in range(3)])
    m_b = torch.stack([beside(b[j], a, e[:, j]) for j in range(5)])
    v_a, v_b = (network.composition.recurrent(m.unsqueeze(0)).output[0] for m in (m_a, m_b))
    pooled = torch.cat([v_a.mean(dim=0), v_a.max(dim=0).values, v_b.mean(dim=0), v_b.max(dim=0).values])
    expected = network.output(torch.tanh(network.mlp.layers[0](pooled)))
    torch.testing.assert_close(network(first, second)[0], expected)


def test_esim_has_the_published_sizes() -> None:
    with torch.device("meta"):
        network = esim(input_size=300, hidden=300)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.named_parameters()}
    assert shapes["projection.layers.0.weight"] == (300, 2400)
    assert shapes["composition.recurrent.layers.0.0.weight_ih"] == (1200, 300)
    assert shapes["mlp.layers.0.weight"] == (300, 2400)
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(4.3e6, rel=0.03)  # "4.3M" in the paper


def test_decomposable_attention_is_its_equations_on_one_pair() -> None:
    torch.manual_seed(0)
    network = decomposable().eval()
    first, second = sentences([3], seed=1), sentences([5], seed=2)
    a, b = network.words(first.x[0]), network.words(second.x[0])
    e = network.attend(a) @ network.attend(b).T
    beta, alpha = torch.softmax(e, dim=1) @ b, torch.softmax(e, dim=0).T @ a
    v_1 = sum(network.compare(torch.cat([a[i], beta[i]])) for i in range(3))
    v_2 = sum(network.compare(torch.cat([b[j], alpha[j]])) for j in range(5))
    assert isinstance(v_1, Tensor)
    assert isinstance(v_2, Tensor)
    expected = network.output(network.aggregate(torch.cat([v_1, v_2])))
    torch.testing.assert_close(network(first, second)[0], expected)


def test_decomposable_attention_does_not_see_the_order_of_words_and_the_others_do() -> None:
    first, second = sentences([5, 5], seed=1), sentences([5, 5], seed=2)
    turned = first._replace(x=first.x.flip(1))
    bag, ordered = decomposable().eval(), esim().eval()
    torch.testing.assert_close(bag(turned, second), bag(first, second))
    assert not torch.allclose(ordered(turned, second), ordered(first, second))


@pytest.mark.slow
@pytest.mark.parametrize("make", [esim, decomposable], ids=["esim", "decomposable attention"])
def test_words_that_look_at_words_learn_whether_two_sentences_share_one(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    words = torch.randn(20, 6)

    def draw(count: int) -> tuple[Encoded, Encoded, Tensor]:
        ids = torch.rand(count, 20).argsort(dim=1)[:, :6]
        first, second, labels = ids[:, :3], ids[:, 3:].clone(), torch.randint(2, (count,))
        shared = labels == 1
        second[shared, torch.randint(3, (count,))[shared]] = first[shared, torch.randint(3, (count,))[shared]]
        lengths = torch.full((count,), 3)
        return Encoded(words[first], lengths), Encoded(words[second], lengths), labels

    network = make(num_classes=2, dropout=0.0)

    def loss() -> Tensor:
        first, second, labels = draw(100)
        return network.loss(network(first, second), labels)  # type: ignore[operator]

    overfit(network, loss, steps=120)
    first, second, labels = draw(500)
    assert (network(first, second).argmax(dim=1) == labels).float().mean() > 0.9

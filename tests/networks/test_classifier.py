"""Classifiers of sentences: each stands alone in its batch, every weight learns, a small batch is learned by heart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from relmo.networks.classifier import BCN, PooledClassifier
from relmo.networks.inputs import Encoded
from relmo.nn.attention import biattention
from relmo.nn.recurrence import Cell
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.settings.tasks import ClassifierModelSettings
from relmo.store.folder import load_weights, save_weights
from support.sentence_batches import (
    assert_each_sentence_stands_alone,
    assert_gradients_reach_everything,
    make_network,
    overfit,
    sentences,
)

Classifier = PooledClassifier | BCN
LENGTHS = [4, 1, 0, 6, 2]


def pooled(**options: Any) -> Callable[..., PooledClassifier]:
    sizes = {"input_size": 6, "num_classes": 3, "hidden": 12, "pool": "final"}
    return lambda **more: make_network(PooledClassifier, ClassifierModelSettings, **(sizes | options | more))


def bcn(**more: Any) -> BCN:
    sizes = {"input_size": 6, "num_classes": 3, "hidden": 8}
    return make_network(BCN, ClassifierModelSettings, **(sizes | more))


def bcn_without_dropout() -> BCN:
    class Calm(BCN):
        hidden_dropout = pooled_dropout = 0.0
        maxout_dropouts = (0.0, 0.0, 0.0)

    return make_network(Calm, ClassifierModelSettings, input_size=6, num_classes=3, hidden=8, dropout=0.0)


NETWORKS: dict[str, Callable[..., Classifier]] = {
    "elman, final": pooled(cell="elman", directions=1),
    "gru, final": pooled(cell="gru", directions=1),
    "lstm, final": pooled(directions=1),
    "bilstm, final": pooled(),
    "bilstm of two layers, mean": pooled(layers=2, pool="mean"),
    "bigru, max, mlp": pooled(cell="gru", pool="max", mlp=[10, 7]),
    "bilstm, attention": pooled(pool="attention", mlp=[10]),
    "bielman, attention": pooled(pool="attention", cell="elman"),
    "projected lstm": pooled(projection=5, layers=2),
    "bcn": bcn,
}


@pytest.fixture(params=NETWORKS)
def make(request: pytest.FixtureRequest) -> Callable[..., Classifier]:
    torch.manual_seed(0)
    return NETWORKS[request.param]


@pytest.mark.parametrize("elmo", [0, 4])
def test_a_sentence_s_logits_depend_on_nothing_but_the_sentence(make: Callable[..., Classifier], elmo: int) -> None:
    network = make(elmo_size=elmo)
    for padding in (0, 3):
        batch = sentences(LENGTHS, elmo=elmo, padding=padding)
        assert network(batch).shape == (5, 3)
        assert_each_sentence_stands_alone(network, network, batch)


def test_gradients_reach_every_weight_and_are_finite_with_an_empty_sentence(make: Callable[..., Classifier]) -> None:
    network = make(elmo_size=4)
    batch = sentences(LENGTHS, elmo=4)
    labels = torch.tensor([0, 1, 2, 0, 1])
    assert_gradients_reach_everything(network, network.loss(network(batch), labels))


def test_elmo_beside_the_output_and_each_word_make_a_difference(make: Callable[..., Classifier]) -> None:
    network = make(elmo_size=4).eval()
    batch = sentences([3, 5], elmo=4)
    assert batch.elmo is not None
    before = network(batch)
    other = batch._replace(elmo=batch.elmo.index_fill(1, torch.tensor([0]), 3.0))
    assert ((network(other) - before).abs().amax(dim=1) > 1e-4).all()
    other = batch._replace(x=batch.x.index_fill(1, torch.tensor([1]), 3.0))
    assert ((network(other) - before).abs().amax(dim=1) > 1e-4).all()


@pytest.mark.slow
def test_32_sentences_with_labels_at_random_are_learned_by_heart(make: Callable[..., Classifier]) -> None:
    network = bcn_without_dropout() if make is bcn else make(dropout=0.0)
    generator = torch.Generator().manual_seed(3)
    batch = sentences(torch.randint(1, 8, (32,), generator=generator).tolist())
    labels = torch.randint(3, (32,), generator=generator)
    overfit(network, lambda: network.loss(network(batch), labels))
    assert network(batch).argmax(dim=1).tolist() == labels.tolist()


def test_loss_is_minus_the_log_probability_of_the_label(make: Callable[..., Classifier]) -> None:
    network = make()
    logits, labels = torch.randn(4, 3), torch.tensor([2, 0, 1, 1])
    expected = -log_softmax(logits, dim=1)[torch.arange(4), labels].mean()
    torch.testing.assert_close(network.loss(logits, labels), expected)


def test_a_batch_of_one_sentence_and_of_empty_ones_alone_can_be_trained_on(make: Callable[..., Classifier]) -> None:
    network = make()
    for lengths in ([3], [0], [0, 0]):
        logits = network(sentences(lengths))
        assert logits.isfinite().all()
        network.loss(logits, torch.zeros(len(lengths), dtype=torch.long)).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


def test_saved_and_loaded_it_gives_the_same_logits(make: Callable[..., Classifier], tmp_path: Path) -> None:
    network = make()
    batch = sentences(LENGTHS)
    save_weights(tmp_path, network)
    loaded = load_weights(tmp_path, {}, make)
    assert torch.equal(loaded(batch), network.eval()(batch))


def test_it_starts_with_orthogonal_recurrences_and_a_forget_gate_that_is_open(make: Callable[..., Classifier]) -> None:
    network = make()
    for module in network.modules():
        if isinstance(module, Cell):
            W = module.weight_hh[: module.hidden_size]
            torch.testing.assert_close(W.T @ W, torch.eye(W.shape[1]), rtol=0, atol=1e-5)
            assert module.bias_ih.sum() == (module.hidden_size if isinstance(module, LSTMCell) else 0)
        if isinstance(module, nn.Linear) and module.bias is not None:
            assert (module.bias == 0).all()


@pytest.mark.gpu
def test_on_a_gpu_logits_are_the_same(make: Callable[..., Classifier]) -> None:
    network = make(elmo_size=4).eval()
    batch = sentences(LENGTHS, elmo=4)
    assert batch.elmo is not None
    expected = network(batch)
    found = network.cuda()(Encoded(batch.x.cuda(), batch.lengths.cuda(), batch.elmo.cuda()))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_the_published_bcn_has_the_published_sizes() -> None:
    with torch.device("meta"):
        network = BCN(ClassifierModelSettings(hidden=300), input_size=300 + 1024, num_classes=5)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.named_parameters()}
    assert shapes["words.layers.0.weight"] == (300, 1324)
    assert shapes["encoder.recurrent.layers.0.0.weight_ih"] == (1200, 300)
    assert shapes["integrator.layers.0.0.weight_ih"] == (1200, 1800)
    assert [shapes[f"output.layers.{k}.weight"] for k in range(3)] == [(4800, 2400), (2400, 1200), (20, 600)]


def test_the_bcn_is_its_equations_on_one_sentence() -> None:
    torch.manual_seed(0)
    network = bcn(elmo_size=4).eval()
    (x, lengths, elmo) = sentences([5], elmo=4)
    assert elmo is not None
    X = torch.relu(network.words.layers[0](x))
    X = torch.cat([network.encoder.recurrent(X).output, elmo], dim=2)
    weights = torch.softmax(X[0] @ X[0].T, dim=1)
    C = weights @ X[0]
    joined = torch.cat([X[0], X[0] - C, X[0] * C], dim=1)
    torch.testing.assert_close(biattention(X, X, lengths, lengths)[0][0], joined)
    Z = network.integrator(joined.unsqueeze(0)).output[0]  # (T, 2H)
    shares = torch.softmax(Z @ network.attention.score.weight[0], dim=0)
    p = torch.cat([Z.max(dim=0).values, Z.mean(dim=0), Z.min(dim=0).values, shares @ Z])
    torch.testing.assert_close(network(Encoded(x, lengths, elmo)), network.output(p.unsqueeze(0)))


def test_attention_finds_the_one_word_that_decides() -> None:
    """The label is the sign of the one word that carries a mark; its weight grows, and new sentences are right."""
    torch.manual_seed(0)

    def draw(count: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(count, 9, 6)
        place = torch.randint(9, (count,))
        x[:, :, 0] = 0.0
        x[torch.arange(count), place, 0] = 3.0
        return x, (x[torch.arange(count), place, 1] > 0).long(), place

    network = pooled(num_classes=2, pool="attention", dropout=0.0)()

    def loss() -> Tensor:
        x, labels, _ = draw(100)
        return network.loss(network(Encoded(x, torch.full((100,), 9))), labels)

    overfit(network, loss, steps=80)
    lengths = torch.full((300,), 9)
    x, labels, place = draw(300)
    assert (network(Encoded(x, lengths)).argmax(dim=1) == labels).float().mean() > 0.9
    attention = network.sentences.attention
    assert attention is not None
    weights = attention(network.sentences.encoder(x, lengths), lengths)[1]
    assert weights[torch.arange(300), place].mean() > 0.9  # of nine words


def test_what_bcn_says_of_a_sentence_while_training_depends_on_no_other_sentence() -> None:
    network = bcn_without_dropout()
    x, lengths, *_ = sentences([6, 2])
    together = network.train()(Encoded(x, lengths))
    torch.testing.assert_close(together[1:], network(Encoded(x[1:, :2], lengths[1:])))
    torch.testing.assert_close(together, network.eval()(Encoded(x, lengths)))

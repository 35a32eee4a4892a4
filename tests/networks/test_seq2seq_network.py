"""The network from one text to another: both ways of decoding agree, padding and batch mates change nothing."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from relmo.networks.inputs import Encoded
from relmo.networks.seq2seq import Seq2SeqNetwork, TargetUnits
from relmo.settings.tasks import Seq2SeqModelSettings
from support.sentence_batches import make_network

UNITS = 7
SHAPES: dict[str, dict[str, Any]] = {
    "additive": {},
    "dot, both ways": {"attention": "dot", "layers": 2},
    "general, tied, gru": {"attention": "general", "tied": True, "cell": "gru"},
    "concat, one way, elman": {"attention": "concat", "directions": 1, "cell": "elman"},
    "fed": {"input_feeding": True, "layers": 2},
    "fed, tied, one way": {"input_feeding": True, "tied": True, "directions": 1},
    "Sutskever": {"attention": "none", "directions": 1, "layers": 2},
    "Cho": {"attention": "none", "context": "every", "cell": "gru"},
    "Sutskever, tied, both ways": {"attention": "none", "tied": True},
    "elmo at the output": {"elmo_size": 4},
}


def make(shape: str, **more: Any) -> Seq2SeqNetwork:
    torch.manual_seed(0)
    sizes = {"input_size": 5, "vocab_size": UNITS, "hidden": 6, "target_dim": 4, "dropout": 0.0}
    return make_network(Seq2SeqNetwork, Seq2SeqModelSettings, **(sizes | SHAPES[shape] | more)).eval()


def sources(network: Seq2SeqNetwork, lengths: list[int]) -> Encoded:
    torch.manual_seed(1)
    x = torch.randn(len(lengths), max(lengths), 5)
    elmo = torch.randn(len(lengths), max(lengths), network.elmo_size) if network.elmo_size else None
    return Encoded(x, torch.tensor(lengths), elmo)


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_decoding_at_once_is_decoding_step_by_step(shape: str) -> None:
    network = make(shape)
    source = network(sources(network, [4, 2, 3]))
    inputs = torch.randint(UNITS, (3, 5))
    steps = network.decode_steps(source, inputs)
    torch.testing.assert_close(network.decode(source, inputs), steps)
    state = network.initial_state(source)
    for t in range(5):
        log_probs, state = network.step(inputs[:, t], state, source)
        torch.testing.assert_close(log_probs, log_softmax(network.output.logits(steps.readout[:, t]), dim=1))
    if network.attention is not None:
        torch.testing.assert_close(state[-1], steps.weights.sum(dim=1))
        torch.testing.assert_close(steps.weights.sum(dim=2), torch.ones(3, 5))
        assert not steps.weights[1, :, 2:].any()


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_a_source_is_read_alike_alone_and_beside_longer_ones(shape: str) -> None:
    network = make(shape)
    batch = sources(network, [4, 1, 3])
    inputs = torch.randint(UNITS, (3, 4))
    together = network.decode(network(batch), inputs)
    for row, length in enumerate([4, 1, 3]):
        elmo = None if batch.elmo is None else batch.elmo[row : row + 1, :length]
        alone = Encoded(batch.x[row : row + 1, :length], torch.tensor([length]), elmo)
        own = network.decode(network(alone), inputs[row : row + 1])
        torch.testing.assert_close(own.readout[0], together.readout[row])
        torch.testing.assert_close(own.weights[0], together.weights[row][:, : length if own.weights.shape[2] else 0])


@torch.no_grad()
def test_beams_of_a_source_are_read_as_copies_of_it() -> None:
    network = make("fed")
    source = network(sources(network, [4, 2]))
    ids = torch.randint(UNITS, (6,))
    log_probs, state = network.step(ids, network.initial_state(source, beams=3), source)
    for row, (b, k) in enumerate(product(range(2), range(3))):
        one = network(Encoded(*(None if p is None else p[b : b + 1] for p in sources(network, [4, 2]))))  # type: ignore[arg-type]
        own, _ = network.step(ids[3 * b + k :][:1], network.initial_state(one), one)
        torch.testing.assert_close(log_probs[row], own[0])
    assert all(len(tensor) == 6 for tensor in state)


def loss(network: Seq2SeqNetwork, inputs: Tensor, targets: Tensor, lengths: list[int]) -> Tensor:
    places = torch.cat([row * inputs.shape[1] + torch.arange(n) for row, n in enumerate(lengths)])
    source = network(sources(network, [3, 2]))
    return network.loss(source, TargetUnits(inputs, places, targets.flatten()[places]))


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_the_loss_is_that_of_the_units_inside_smoothed(eps: float) -> None:
    network = make("additive", label_smoothing=eps)
    inputs, targets = torch.randint(UNITS, (2, 3)), torch.randint(UNITS, (2, 3))
    found = loss(network, inputs, targets, [3, 2])
    decoded = network.decode(network(sources(network, [3, 2])), inputs)
    log_p = log_softmax(network.output.logits(decoded.readout), dim=2)
    terms = [
        -(1 - eps) * log_p[b, t, targets[b, t]] - eps * log_p[b, t].mean()
        for b, n in enumerate([3, 2])
        for t in range(n)
    ]
    torch.testing.assert_close(found, torch.stack(terms).mean())
    found.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_scheduled_sampling_reads_its_own_guesses_more_and_more() -> None:
    network = make("additive", sampling=0.999999, sampling_steps=4).train()
    inputs, targets = torch.randint(UNITS, (2, 3)), torch.randint(UNITS, (2, 3))
    first = loss(network, inputs, targets, [3, 3])
    torch.testing.assert_close(first, loss(make("additive"), inputs, targets, [3, 3]))  # none as yet
    for _ in range(4):
        loss(network, inputs, targets, [3, 3])
    other = inputs.clone()
    other[:, 1:] = (other[:, 1:] + 1) % UNITS  # what follows the first unit is no longer read
    torch.testing.assert_close(loss(network, inputs, targets, [3, 3]), loss(network, other, targets, [3, 3]))
    assert network.steps.item() == 7
    assert not torch.allclose(loss(network.eval(), inputs, targets, [3, 3]), loss(network, other, targets, [3, 3]))

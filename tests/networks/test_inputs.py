"""What a network reads of words, against each part by itself."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from relmo.networks.bilm import BiLMNetwork
from relmo.networks.elmo import Elmo, sentence_ids
from relmo.networks.inputs import LayerSpread, TaskBatch, TaskNetwork, WordBatch, WordInputs
from relmo.settings.bilm import BiLMModelSettings
from relmo.settings.sections import InputSettings
from relmo.text.characters import character_ids

LENGTHS = torch.tensor([3, 2])


def batch(layers: Tensor | None = None) -> WordBatch:
    words, rows = torch.tensor([[1, 2, 3], [2, 4, 0]]), torch.tensor([[1, 0, 2], [0, 3, 0]])
    spelled = torch.tensor([[0, 1, 2], [1, 0, 0]])
    return WordBatch(LENGTHS, words, rows, torch.from_numpy(character_ids(["a", "bcd", "ef"], 12)), spelled, layers)


def inputs(elmo_shape: tuple[int, int] | None = None, spread: LayerSpread | None = None, **options: Any) -> WordInputs:
    torch.manual_seed(0)
    sizes = {
        "word_dim": 4,
        "filters": ("2x6",),
        "char_dim": 5,
        "max_characters": 12,
        "elmo_dropout": 0.5,
        "elmo_l2": 0.0,
    }
    made = WordInputs(
        InputSettings(**(sizes | options)),
        num_words=5,
        static_shape=(4, 3),
        elmo_shape=elmo_shape,
        spread=spread,
    )
    made.static = torch.cat([torch.zeros(1, 3), torch.randn(3, 3)])
    return made.eval()


def test_x_is_the_parts_side_by_side() -> None:
    made, given = inputs((2, 7)), batch(torch.randn(2, 3, 2, 7).half())
    x, lengths, elmo = made(given)
    assert made.words is not None
    assert made.characters is not None
    assert given.words is not None
    assert given.rows is not None
    assert given.spelled is not None
    assert given.layers is not None
    expected = [
        made.words.weight[given.words],
        made.static[given.rows],
        made.characters(given.spellings)[given.spelled],
        given.layers.float().mean(dim=2),  # an even mix, at its beginning
    ]
    assert torch.allclose(x, torch.cat(expected, dim=2))
    assert made.size == x.shape[2] == 4 + 3 + 6 + 7
    assert torch.equal(lengths, LENGTHS)
    assert elmo is None


@pytest.mark.parametrize("kept", [2, 1])
def test_layers_are_centred_and_scaled_by_their_spread_and_the_spread_is_saved(kept: int) -> None:
    spread = LayerSpread(torch.randn(2, 7), torch.tensor([0.5, 4.0]))
    made = inputs((kept, 7), spread, elmo_norm=True)
    layers = torch.randn(2, 3, kept, 7).half()
    expected = ((layers.float() - spread.means[-kept:]) / spread.deviations[-kept:, None]).mean(dim=2)
    expected[1, 2] = 0.0  # past the end
    assert torch.allclose(made(batch(layers)).x[..., -7:], expected, atol=1e-6)
    other = inputs((kept, 7), elmo_norm=True)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(batch(layers)).x, made(batch(layers)).x)


def test_each_place_of_elmo_has_a_mix_of_its_own() -> None:
    layers = torch.randn(2, 3, 2, 7).half()
    made = inputs((2, 7), elmo_at="both", elmo_l2=1.0)
    with torch.no_grad():
        made.mixes[0].weights.copy_(torch.tensor([100.0, 0.0]))
        made.mixes[1].weights.copy_(torch.tensor([0.0, 100.0]))
    x, _, elmo = made(batch(layers))
    assert torch.allclose(x[..., -7:], layers[:, :, 0].float())
    assert elmo is not None
    assert torch.allclose(elmo, layers[:, :, 1].float())
    assert TaskNetwork(made, Body()).loss(TaskBatch([batch(layers)], torch.zeros(1))).mean.item() == 20_000
    only_output = inputs((2, 7), elmo_at="output")
    assert only_output.size == 13
    assert only_output.elmo_size == 7


def test_what_the_mixes_have_learned_is_told_by_place_as_shares_and_gamma() -> None:
    made = inputs((2, 7), elmo_at="both")
    with torch.no_grad():
        made.mixes[0].weights.copy_(torch.tensor([0.0, math.log(3)]))
        made.mixes[1].gamma.fill_(2.5)
    told = made.mix_weights()
    assert told["input"]["weights"] == pytest.approx([0.25, 0.75])
    assert told["output"]["weights"] == pytest.approx([0.5, 0.5])
    assert (told["input"]["gamma"], told["output"]["gamma"]) == (1.0, 2.5)
    assert list(inputs((2, 7), elmo_at="output").mix_weights()) == ["output"]
    assert inputs().mix_weights() == {}


def test_tuned_vectors_begin_as_the_files_and_change_for_known_words_alone() -> None:
    given, made = batch(), inputs(vectors="x", vectors_tune=True)
    assert given.rows is not None
    x = made(given).x
    assert torch.equal(x[..., 4:7], made.static[given.rows])
    x.sum().backward()
    assert made.difference is not None
    assert made.difference.weight.grad is not None
    assert made.difference.weight.grad.any(dim=1).tolist() == [False, True, True, True, True]  # 0 is the unknown word
    assert "static" not in made.state_dict()


def test_dropped_words_are_the_unknown_word_without_a_static_vector_and_keep_their_characters() -> None:
    made = inputs(word_dropout=0.999)
    given = batch()
    x = made.train()(given).x
    assert made.words is not None
    kept = made.eval()(given).x
    assert torch.equal(x[..., :4], made.words.weight[0].expand(2, 3, 4))
    assert torch.equal(x[..., 4:7], torch.zeros(2, 3, 3))
    assert torch.equal(x[..., 7:], kept[..., 7:])


def test_a_trained_bilm_gives_what_its_frozen_layers_do_and_gets_gradients() -> None:
    settings = BiLMModelSettings(char_dim=4, filters=("1x4", "2x4"), max_characters=12, hidden=6, projection=3)
    network = BiLMNetwork(settings, vocab_size=None).eval()
    sentences = [["a", "bc", "d"], ["bc", "a"]]
    ids = sentence_ids(sentences, 12)
    elmo = Elmo(network, mixes=0, trainable=True)
    none = InputSettings(word_dim=0, char_dim=0, elmo="x", elmo_dropout=0.0)
    for kept in (3, 1):
        made = WordInputs(none, num_words=0, elmo_shape=(kept, 6), bilm=elmo).eval()
        x = made(WordBatch(LENGTHS, elmo_ids=ids)).x
        mask = (ids > 0).any(dim=2)
        layers = elmo.read(*elmo.encode(ids, mask), mask)[0][-kept:, :, 1:-1]
        assert torch.allclose(x, layers.mean(dim=0), atol=1e-6)
        x.sum().backward()
        assert all(p.grad is not None for p in network.lstm.parameters())


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, *arguments: object) -> Tensor:
        self.calls.append(len(arguments))
        return torch.zeros(())

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return output + targets.sum()


def test_a_task_network_adds_the_penalty_and_hands_over_one_or_two_sentences() -> None:
    made = inputs((2, 7), elmo_l2=0.1)
    with torch.no_grad():
        made.mixes[0].weights.copy_(torch.tensor([3.0, 4.0]))
    network = TaskNetwork(made, Body())
    given = batch(torch.randn(2, 3, 2, 7).half())
    loss = network.loss(TaskBatch([given], torch.tensor([1.0]), 5))
    assert loss.mean.item() == 1 + 0.1 * 25
    assert loss.predictions == 5
    network(TaskBatch([given, given], extra=("more",)))
    assert network.body.calls == [1, 3]

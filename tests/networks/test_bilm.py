"""ELMo's network against an independent implementation in float64, and its two directions against each other."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork, BiWindow
from relmo.settings.bilm import BiLMModelSettings
from relmo.text.characters import character_ids
from support import original_elmo

GEOMETRIES: dict[str, dict[str, Any]] = {
    "the usual": {},
    "no skip connections": {"use_skip_connections": False},
    "one layer": {"n_layers": 1},
    "three layers": {"n_layers": 3},
    "no highway layer": {"n_highway": None},
    "two highway layers": {"n_highway": 2},
    "tanh": {"activation": "tanh"},
    "no projection of the convolutions": {"projection_dim": 8, "filters": [[1, 3], [2, 5]]},
    "no projection in the LSTM": {"projection_dim": 10},
    "no clips": {"cell_clip": None, "proj_clip": None},
    "tight clips": {"cell_clip": 0.5, "proj_clip": 0.25},
    "many characters": {"max_characters_per_token": 30},
    "the filters as wide as a word": {"max_characters_per_token": 5, "filters": [[5, 4], [1, 2]]},
}
SENTENCES = [
    ["The", "bank", "of", "the", "Danube", "."],
    [],
    ["a-word-with-more-bytes-than-there-is-room-for"],
    ["Straße", "日本語の単語", "<S>", "<UNK>"],
]


def make(tmp_path: Path, *, seed: int = 0, **changes: Any) -> tuple[BiLM, dict, original_elmo.Weights]:
    """A model of random weights, from files; with its options and weights."""
    options = original_elmo.options_of(**changes)
    weights = original_elmo.random_weights(options, seed)
    (tmp_path / "options.json").write_text(json.dumps(options))
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        for name, array in weights.items():
            file[name] = array
    return load(tmp_path, device="cpu"), options, weights


def run(network: BiLMNetwork, sentences: list[list[str]], room: int, state: Any = None) -> Any:
    """Sentences in one batch, with their boundaries."""
    rows = [["<S>", *sentence, "</S>"] for sentence in sentences]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.full((len(rows), int(lengths.max()), network.size // 2), 7.0, dtype=torch.get_default_dtype())
    tokens = tokens.to(next(network.parameters()).dtype)  # what is past the end must not matter
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = network.encoder(torch.from_numpy(character_ids(row, room)))
    return network(tokens, lengths, state)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "by definition"])
@pytest.mark.parametrize("changes", GEOMETRIES.values(), ids=GEOMETRIES.keys())
@torch.no_grad()
def test_every_layer_equals_the_float64_implementation_and_states_are_carried(
    changes: dict[str, Any], fast: bool, tmp_path: Path
) -> None:
    model, options, weights = make(tmp_path, **changes)
    network = model.network.double()
    network.lstm.fast = fast
    states: list[original_elmo.State] = [{} for _ in SENTENCES]
    state = None
    for batch in (SENTENCES, SENTENCES[::-1]):
        output = run(network, batch, options["char_cnn"]["max_characters_per_token"], state)
        state = output.state
        for row, sentence in enumerate(batch):
            expected = original_elmo.with_boundaries(sentence, options, weights, states[row])
            ours = output.layers[:, row].numpy()
            assert np.abs(ours[:, : len(sentence) + 2] - expected).max() < 1e-10
            assert not ours[:, len(sentence) + 2 :].any()


@torch.no_grad()
def test_clips_are_reached_in_these_tests(tmp_path: Path) -> None:
    model, options, _ = make(tmp_path, cell_clip=0.5, proj_clip=0.25, use_skip_connections=False)
    output = run(model.network, SENTENCES, options["char_cnn"]["max_characters_per_token"])
    assert (output.layers[1].abs() == 0.25).sum() > 50
    assert (output.state[1].abs() == 0.5).sum() > 10


@torch.no_grad()
def test_a_sentence_does_not_depend_on_its_batch_mates(tmp_path: Path) -> None:
    model, options, _ = make(tmp_path)
    network, room = model.network.double(), options["char_cnn"]["max_characters_per_token"]
    together = run(network, SENTENCES, room).layers
    for row, sentence in enumerate(SENTENCES):
        alone = run(network, [sentence], room).layers
        torch.testing.assert_close(together[:, row, : len(sentence) + 2], alone[:, 0], atol=1e-12, rtol=0)


def small(**changes: Any) -> BiLMNetwork:
    torch.manual_seed(0)
    values = {
        "char_dim": 3,
        "filters": ("1x4", "2x4"),
        "max_characters": 10,
        "hidden": 7,
        "projection": 5,
        "dropout": 0,
    }
    return BiLMNetwork(BiLMModelSettings(**(values | {"softmax": "full"} | changes)), vocab_size=9).double()


def window() -> BiWindow:
    """A sentence of four words in two rows, the second row with other words."""
    forward = torch.tensor([[0, 3, 4, 5], [0, 6, 7, 8]]).T  # (T, B)
    backward = torch.tensor([[1, 5, 4, 3], [1, 8, 7, 6]]).T
    targets = torch.stack([torch.tensor([[3, 4, 5, 1], [6, 7, 8, 1]]).T, torch.tensor([[5, 4, 3, 0], [8, 7, 6, 0]]).T])
    words = ["<S>", "</S>", "<UNK>", "a", "bc", "def", "g", "hi", "jkl"]
    return BiWindow(torch.from_numpy(character_ids(words, 10)), torch.stack([forward, backward]), targets)


@torch.no_grad()
def test_the_likelihoods_are_those_of_the_layers_that_embedding_gives() -> None:
    network, text = small(), window()
    nll, _ = network.nll(text, None)
    rows = torch.tensor([[0, 3, 4, 5, 1], [0, 6, 7, 8, 1]])
    top = network(network.encoder(text.words)[rows], torch.tensor([5, 5])).layers[-1]  # (B, 5, 2P)
    forward, backward = top.chunk(2, dim=-1)
    assert network.softmax is not None
    weight, bias = network.softmax.weight, network.softmax.bias
    for d, (vectors, targets) in enumerate(
        ((forward[:, :-1], rows[:, 1:]), (backward[:, 1:].flip(1), rows.flip(1)[:, 1:]))
    ):
        log_p = torch.log_softmax(vectors @ weight.T + bias, dim=-1)
        expected = -log_p.gather(2, targets.unsqueeze(2)).squeeze(2)
        torch.testing.assert_close(nll[d].T.double(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(network.loss(text, None).mean.double(), nll.mean().double(), atol=1e-5, rtol=0)


def test_the_loss_has_the_gradients_of_the_definition() -> None:
    gradients = []
    for fast in (True, False):
        network = small()
        network.lstm.fast = fast
        network.loss(window(), None).mean.backward()
        gradients.append({name: p.grad for name, p in network.named_parameters()})
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients[1].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], msg=name)


def test_word_input_gives_the_same_network_over_one_vector_a_word() -> None:
    network = small(input="word", char_dim=16, filters=BiLMModelSettings().filters, max_characters=50, tied=True)
    assert network.softmax is not None
    assert network.softmax.weight is network.encoder.embedding.weight  # type: ignore[union-attr]
    text = window()._replace(words=torch.arange(9))
    network.loss(text, None).mean.backward()
    assert network.encoder.embedding.weight.grad.abs().sum(dim=1).gt(0).all()  # type: ignore[union-attr]


def test_the_published_geometries_have_the_published_numbers_of_parameters() -> None:
    sizes: dict[str, dict[str, Any]] = {
        "13.6": {},
        "28.0": {"hidden": 2048, "projection": 256},
        "93.6": {"hidden": 4096, "projection": 512, "highway": 2},
    }
    for millions, changes in sizes.items():
        with torch.device("meta"):
            network = BiLMNetwork(BiLMModelSettings(**changes), vocab_size=None)
        assert f"{sum(p.numel() for p in network.parameters()) / 1e6:.1f}" == millions

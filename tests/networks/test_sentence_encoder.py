"""The sentence encoder: its parts put together by hand, ELMo beside its output, and starting from a language model."""

from typing import Any

import pytest
import torch

from relmo.errors import ModelError
from relmo.networks import make_language_model
from relmo.networks.classifier import PooledClassifier
from relmo.networks.inputs import LinearEncoder, PooledEncoder, SentenceEncoder
from relmo.networks.language_model import RecurrentLM
from relmo.settings.lm import LanguageModelSettings
from relmo.settings.sections import SentenceModelSettings
from relmo.settings.tasks import ClassifierModelSettings
from support.sentence_batches import assert_each_sentence_stands_alone, make_network, sentences

LENGTHS = [4, 1, 0, 6]


def test_it_is_its_recurrent_layers_with_elmo_beside_them() -> None:
    encoder = SentenceEncoder(input_size=6, hidden=5, layers=2, elmo_size=4).eval()
    batch = sentences(LENGTHS, elmo=4)
    y = encoder(*batch)
    assert y.shape == (4, 6, encoder.output_size)
    assert encoder.output_size == 14
    for index, length in enumerate(LENGTHS):
        if length:
            alone = encoder.recurrent(batch.x[index : index + 1, :length]).output[0]
            torch.testing.assert_close(y[index, :length, :10], alone)
            assert batch.elmo is not None
            assert torch.equal(y[index, :length, 10:], batch.elmo[index, :length])
        assert (y[index, length:] == 0).all()


def test_without_recurrent_layers_a_word_knows_nothing_of_its_sentence() -> None:
    settings = SentenceModelSettings(hidden=5, layers=0, dropout=0.0, cell="gru")
    encoder = PooledEncoder(settings, input_size=6, elmo_size=4).eval().encoder
    assert isinstance(encoder, LinearEncoder)
    batch = sentences(LENGTHS, elmo=4, padding=2)
    y = encoder(*batch)
    assert y.shape[2] == encoder.output_size == 9
    assert batch.elmo is not None
    for index, length in enumerate(LENGTHS):
        for t in range(length):
            torch.testing.assert_close(y[index, t, :5], encoder.linear.weight @ batch.x[index, t] + encoder.linear.bias)
        torch.testing.assert_close(y[index, :length, 5:], batch.elmo[index, :length])
        assert (y[index, length:] == 0).all()
    with pytest.raises(ValueError, match="recurrent"):
        PooledEncoder(SentenceModelSettings(hidden=5, layers=0, dropout=0.0, pool="final"), input_size=6)


def test_elmo_beside_the_output_must_be_of_the_size_the_network_was_made_for() -> None:
    batch = sentences([2], elmo=4)
    with pytest.raises(ValueError, match=r"of size 0 .* got size 4"):
        SentenceEncoder(input_size=6, hidden=5)(*batch)
    with pytest.raises(ValueError, match=r"of size 8 .* got size 0"):
        SentenceEncoder(input_size=6, hidden=5, elmo_size=8)(batch.x, batch.lengths)


def test_the_final_pool_takes_each_direction_where_it_ended_in_elmo_too() -> None:
    settings = SentenceModelSettings(hidden=5, layers=1, directions=2, dropout=0.0, pool="final")
    pooled = PooledEncoder(settings, input_size=6, elmo_size=4).eval()
    batch = sentences(LENGTHS, elmo=4)
    y = pooled.encoder(*batch)
    found = pooled(*batch)
    for index, n in enumerate(LENGTHS):
        last, first = (y[index, n - 1], y[index, 0]) if n else (torch.zeros(14), torch.zeros(14))
        expected = torch.cat([last[:5], first[5:10], last[10:12], first[12:]])
        torch.testing.assert_close(found[index], expected)


def test_dropout_before_the_layers_is_one_mask_for_all_words_of_a_sentence() -> None:
    """With x constant over words and weights that pass it on, a unit is dropped everywhere or nowhere."""
    encoder = SentenceEncoder(input_size=6, hidden=6, cell="elman", bidirectional=False, dropout=0.5)
    cell = encoder.recurrent.cells[0][0]
    torch.nn.init.eye_(cell.weight_ih)
    for weight in (cell.weight_hh, cell.bias_ih, cell.bias_hh):
        torch.nn.init.zeros_(weight)
    y = encoder(torch.ones(20, 5, 6), torch.full((20,), 5))
    assert (y == y[:, :1]).all()
    assert 0.2 < (y == 0).float().mean() < 0.8


@pytest.mark.parametrize(
    ("layers", "pool"),
    [(2, "final"), (2, "mean"), (2, "max"), (2, "attention"), (0, "mean"), (0, "max"), (0, "attention")],
)
def test_a_sentence_s_vector_does_not_depend_on_its_batch_mates(layers: int, pool: Any) -> None:
    settings = SentenceModelSettings(hidden=5, layers=layers, dropout=0.0, pool=pool)
    network = PooledEncoder(settings, input_size=6, elmo_size=4)
    assert_each_sentence_stands_alone(network, lambda one: network(*one), sentences(LENGTHS, elmo=4, padding=2))


def language_model(**changes: object) -> RecurrentLM:
    settings = LanguageModelSettings(cell="lstm", hidden=5, embedding=6, layers=2, dropout=0.0)
    for name, value in changes.items():
        object.__setattr__(settings, name, value)
    network = make_language_model(settings, vocab_size=9)
    assert isinstance(network, RecurrentLM)
    return network


@pytest.mark.parametrize(
    ("lm", "own"),
    [
        ({}, {}),
        ({"cell": "gru"}, {"cell": "gru"}),
        ({"cell": "elman"}, {"cell": "elman"}),
        ({"hidden": 8, "projection": 6, "residual": True}, {"hidden": 8, "projection": 6, "residual": True}),
    ],
    ids=["lstm", "gru", "elman", "projected and residual"],
)
def test_started_from_a_language_model_it_reads_as_the_language_model_does(lm: dict, own: dict) -> None:
    trained = language_model(**lm).eval()
    options = {"input_size": 6, "num_classes": 2, "hidden": 5, "layers": 2, "directions": 1} | own
    network = make_network(PooledClassifier, ClassifierModelSettings, **options).eval()
    network.sentences.encoder.start_from(trained.encoder.recurrent)
    ids = torch.randint(9, (3, 4))
    x = trained.encoder.embedding(ids)
    found = network.sentences.encoder(x, torch.full((3,), 4))
    torch.testing.assert_close(found, trained.encoder(ids).output)
    with torch.no_grad():
        trained.encoder.recurrent.cells[0][0].weight_ih.add_(1)  # a copy: the language model's own stay its own
    torch.testing.assert_close(network.sentences.encoder(x, torch.full((3,), 4)), found)


@pytest.mark.parametrize(
    ("lm", "own", "message"),
    [
        ({}, {"cell": "gru"}, "its cell is lstm, .* gru;"),
        ({"cell": "elman", "nonlinearity": "relu"}, {"cell": "elman"}, "is elman with relu, .* elman with tanh"),
        ({}, {"layers": 1}, "its number of layers is 2, .* 1;"),
        ({}, {"directions": 2}, "its number of directions is 1, .* 2;"),
        ({"embedding": 7}, {}, "its input size is 7, .* 6;"),
        ({"hidden": 8}, {}, "its hidden size is 8, .* 5;"),
        ({"projection": 3}, {}, "its output size is 3, .* 5;"),
        ({}, {"residual": True}, "its residual connection is off, .* on;"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_language_model_that_does_not_fit_is_an_error_that_says_what_does_not(
    lm: dict, own: dict, message: str
) -> None:
    options = {"input_size": 6, "num_classes": 2, "hidden": 5, "layers": 2, "directions": 1} | own
    network = make_network(PooledClassifier, ClassifierModelSettings, **options)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(ModelError, match=message):
        network.sentences.encoder.start_from(language_model(**lm).encoder.recurrent)
    torch.testing.assert_close(dict(network.state_dict()), before)

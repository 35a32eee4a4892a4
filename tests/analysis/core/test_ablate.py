"""Interventions, against networks whose weights say the same: a unit that is shut off or held where it is made, or at
everything that reads it."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from relmo.analysis.core.ablate import ACTIVE_EDITS, intervene
from relmo.analysis.core.trace import trace, trace_torch
from relmo.errors import ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.recurrence.gru import GRUCell
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.nn.recurrence.stack import Recurrent
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary

TEXT = "the cat (a cat) sat\non the mat. " * 4
SENTENCES = ["the cat sat", "on the mat the cat sat on the mat", "cat"]
CLOSE = {"rtol": 2e-5, "atol": 5e-6}


def language_model(cell: str = "lstm", **options: object) -> LanguageModel:
    torch.manual_seed(3)
    settings = LMSettings(model=LanguageModelSettings(cell=cell, hidden=7, embedding=5, **options))  # type: ignore[arg-type]
    vocabulary = Vocabulary([*Vocabulary.specials, *sorted(set(TEXT))])
    network = make_language_model(settings.model, len(vocabulary))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    return LanguageModel(network, vocabulary, settings)


def bilm(**options: object) -> BiLM:
    torch.manual_seed(5)
    given = {"filters": ("1x4", "2x4"), "char_dim": 3, "hidden": 9, "projection": 4} | options
    settings = BiLMModelSettings(**given)  # type: ignore[arg-type]
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, *sorted(set(" ".join(SENTENCES).split()))])
    network = BiLMNetwork(settings, vocab_size=len(vocabulary))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    return BiLM(network, BiLMSettings(model=settings), vocabulary)


def features(model: LanguageModel) -> np.ndarray:
    ids = torch.tensor([[model.vocabulary.end, *model.encode(TEXT)]])
    with torch.no_grad():
        x, _ = model.network.features(ids, model.network.initial_state(1))  # type: ignore[union-attr]
        return model.network.softmax.log_probs(x[0]).numpy()  # type: ignore[union-attr]


def shut(model: LanguageModel, layer: int, unit: int) -> LanguageModel:
    """The same model with a unit whose output gate is closed by its own weights: h is 0 wherever it goes."""
    other = copy.deepcopy(model)
    cell = other.encoder.recurrent.cells[layer][0]
    row = 3 * cell.hidden_size + unit
    with torch.no_grad():
        cell.weight_ih[row], cell.weight_hh[row], cell.bias_hh[row], cell.bias_ih[row] = 0, 0, 0, -1e4
    return other


def read_as(model: LanguageModel, layer: int, unit: int, value: float) -> LanguageModel:
    """The same model with weights by which everything that reads a unit reads a constant in its place."""
    other = copy.deepcopy(model)
    cells = [cell for (cell,) in other.encoder.recurrent.cells]
    readers = [(cells[layer].weight_hh, cells[layer].bias_hh)]
    if layer + 1 < len(cells):
        readers.append((cells[layer + 1].weight_ih, cells[layer + 1].bias_ih))
    else:
        readers.append((other.network.softmax.weight, other.network.softmax.bias))  # type: ignore[union-attr]
    with torch.no_grad():
        for weight, bias in readers:
            bias += weight[:, unit] * value
            weight[:, unit] = 0
    return other


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("residual", [False, True])
def test_a_unit_at_zero_is_one_whose_output_gate_is_closed(layer: int, residual: bool) -> None:
    model = language_model(layers=2, residual=residual)
    plain, expected = features(model), features(shut(model, layer, 4))
    with intervene(model, layer, 4):
        found = features(model)
        stepped = trace(model, TEXT)
    np.testing.assert_allclose(found, expected, **CLOSE)
    assert np.abs(found - plain).max() > 1e-3
    assert not stepped.states["h"][layer, :, 4].any()
    np.testing.assert_array_equal(features(model), plain)


@pytest.mark.parametrize("cell", ["lstm", "gru", "elman"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_unit_that_is_held_is_read_as_a_constant_by_everything(cell: str, layer: int) -> None:
    model = language_model(cell, layers=2)
    for how, value in (("hold", 0.9), ("mean", trace(model, TEXT).mean("h", layer)[2])):
        with intervene(model, layer, 2, how, value):  # type: ignore[arg-type]
            found = features(model)
        np.testing.assert_allclose(found, features(read_as(model, layer, 2, float(value))), **CLOSE)


def test_generation_perplexity_and_single_steps_are_changed_too() -> None:
    model, other = language_model(layers=2), shut(language_model(layers=2), 0, 1)
    with intervene(model, 0, 1):
        assert model.perplexity(TEXT) == pytest.approx(other.perplexity(TEXT), rel=1e-5)
        assert model.generate("the", limit=20, seed=4) == other.generate("the", limit=20, seed=4)
        log_p, _ = model.step(torch.tensor([5]))
    np.testing.assert_allclose(log_p, other.step(torch.tensor([5]))[0], **CLOSE)
    assert model.perplexity(TEXT) != pytest.approx(other.perplexity(TEXT), rel=1e-5)


def test_a_cell_that_is_held_is_what_its_next_step_and_its_output_read() -> None:
    model = language_model()
    with intervene(model, 0, 3, "hold", 1.7, state="c"):
        found = trace(model, TEXT).states
    assert (found["c"][0, :, 3] == np.float32(1.7)).all()
    np.testing.assert_allclose(found["h"][0, :, 3], found["o"][0, :, 3] * np.tanh(1.7), **CLOSE)
    others = [0, 1, 2, 4, 5, 6]
    np.testing.assert_allclose(
        found["c"][0, 1:, others],
        (found["f"][0, 1:] * found["c"][0, :-1] + found["i"][0, 1:] * found["g"][0, 1:])[:, others].T,
        **CLOSE,
    )


def test_a_cell_at_zero_is_an_output_at_zero() -> None:
    model = language_model(layers=2)
    with intervene(model, 0, [1, 5], state="c"):
        found = features(model)
    with intervene(model, 0, [1, 5]):
        np.testing.assert_allclose(found, features(model), **CLOSE)


def test_a_scaled_unit_is_read_scaled() -> None:
    model = language_model("elman")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.encoder.recurrent.cells[0][0].weight_hh[:, 2] *= 0.5
        other.network.softmax.weight[:, 2] *= 0.5  # type: ignore[union-attr]
    with intervene(model, 0, 2, "scale", 0.5):
        np.testing.assert_allclose(features(model), features(other), **CLOSE)


def test_each_unit_has_its_own_value() -> None:
    model = language_model()
    with intervene(model, 0, [1, 4], "mean", [0.25, -0.5]):
        found = trace(model, TEXT).states["h"][0]
    assert (found[:, 1] == 0.25).all()
    assert (found[:, 4] == -0.5).all()
    assert found[:, 2].std() > 0


def test_blocks_may_stand_within_one_another_and_end_with_an_error() -> None:
    model = language_model(layers=2)
    plain = features(model)
    with intervene(model, 0, 1):
        alone = features(model)
        with intervene(model, 1, 2, "hold", 0.5), intervene(model, 0, 3):
            both = trace(model, TEXT).states["h"]
            assert (both[1, :, 2] == 0.5).all()
            assert not both[0, :, [1, 3]].any()
        np.testing.assert_array_equal(features(model), alone)
    with pytest.raises(RuntimeError, match="mine"), intervene(model, 0, 1):
        raise RuntimeError("mine")
    np.testing.assert_array_equal(features(model), plain)
    assert len(ACTIVE_EDITS) == 0
    assert "forward" not in vars(model.encoder.recurrent)


def test_a_later_block_has_the_last_word_on_a_unit() -> None:
    model = language_model()
    with intervene(model, 0, 1, "hold", 0.5), intervene(model, 0, 1, "scale", 3.0):
        assert (trace(model, TEXT).states["h"][0, :, 1] == 1.5).all()
    with intervene(model, 0, 1, "scale", 3.0), intervene(model, 0, 1, "hold", 0.5):
        assert (trace(model, TEXT).states["h"][0, :, 1] == 0.5).all()


def test_the_state_at_the_beginning_is_changed_too() -> None:
    model = language_model("gru")
    with intervene(model, 0, 2, "hold", 0.7), torch.no_grad():
        x = torch.randn(1, 1, 5)
        found = model.encoder.recurrent(x, (torch.zeros(1, 7),)).output
        held = torch.zeros(1, 7)
        held[0, 2] = 0.7
        np.testing.assert_array_equal(found, model.encoder.recurrent(x, (held,)).output)
    with torch.no_grad():
        expected = model.encoder.recurrent(x, (held,)).output[0, 0]
    np.testing.assert_allclose(found[0, 0, [0, 1, 3, 4, 5, 6]], expected[[0, 1, 3, 4, 5, 6]], **CLOSE)


def unprojected(model: BiLM, layer: int, direction: int, unit: int) -> BiLM:
    """The same model with a unit of h that the projection leaves at zero."""
    other = BiLM(copy.deepcopy(model.network), model.settings, model.vocabulary)
    weight = other.network.lstm.stack[layer].weight_hr
    assert weight is not None
    with torch.no_grad():
        weight[direction, unit] = 0
    return other


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(("direction", "d"), [("forward", 0), ("backward", 1)])
def test_a_unit_of_a_bidirectional_model_is_off_in_vectors_probabilities_and_traces(
    layer: int, direction: str, d: int
) -> None:
    model = bilm()
    plain = model.embed(SENTENCES)
    other = unprojected(model, layer, d, 2)
    with intervene(model, layer, 2, direction=direction):  # type: ignore[arg-type]
        vectors, log_p = model.embed(SENTENCES), model.log_probs(SENTENCES)
        h = trace(model, SENTENCES).states["h"]
    for found, expected in zip([*vectors, *log_p], [*other.embed(SENTENCES), *other.log_probs(SENTENCES)], strict=True):
        np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_allclose(h, trace(other, SENTENCES).states["h"], **CLOSE)
    assert not h[layer, :, 4 * d + 2].any()
    assert h[layer, :, 4 * (1 - d) + 2].all()
    for found, expected in zip(model.embed(SENTENCES), plain, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_bidirectional_models_loss_is_changed_and_has_gradients() -> None:
    model = bilm(dropout=0.0)
    other = unprojected(model, 0, 0, 1)
    x = torch.randn(2, 6, 3, 4)
    for sizes in (None, [3, 3, 2, 2, 1, 1]):
        with intervene(model, 0, 1):
            found = model.network.lstm(x, None, sizes)
        expected = other.network.lstm(x, None, sizes)
        for a, b in zip([*found.layers, *found.state], [*expected.layers, *expected.state], strict=True):
            np.testing.assert_allclose(a.numpy(force=True), b.numpy(force=True), **CLOSE)
    found.layers[-1].sum().backward()
    grad = model.network.lstm.stack[1].weight_ih.grad
    assert grad is not None
    assert grad.abs().sum() > 0


MODULES: list[Callable[[], nn.RNNBase]] = [
    lambda: nn.LSTM(3, 5, num_layers=2, batch_first=True),
    lambda: nn.LSTM(3, 5, num_layers=2, bidirectional=True, proj_size=2),
    lambda: nn.GRU(3, 5, num_layers=2, bidirectional=True, bias=False),
    lambda: nn.RNN(3, 5, batch_first=True, nonlinearity="relu"),
]


@pytest.mark.parametrize("make", MODULES)
def test_torchs_modules_keep_their_shapes_and_numbers_where_nothing_is_changed(make: Callable[[], nn.RNNBase]) -> None:
    torch.manual_seed(0)
    module = make()
    x = torch.randn(4, 6, 3)
    lone, packed = torch.randn(6, 3), pack_sequence([torch.randn(n, 3) for n in (2, 5, 3)], enforce_sorted=False)
    descending = pack_sequence([torch.randn(n, 3) for n in (5, 3, 3)])

    def outputs(state: object) -> list[Tensor]:
        found = []
        for given in (x, lone, packed, descending):
            y, final = module(given, state if given is x else None)
            found += [getattr(y, "data", y), *(final if module.mode == "LSTM" else [final])]
        return found

    with torch.no_grad():
        for state in (None, module(x)[1]):
            expected = outputs(state)
            with intervene(module, 0, 1, "scale", 1.0):
                found = outputs(state)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), **CLOSE)


def test_a_module_with_a_recurrent_part_in_it_can_be_given() -> None:
    torch.manual_seed(0)
    network = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "rnn": nn.LSTM(3, 5), "out": nn.Linear(5, 4)})
    with intervene(network, 0, 2), torch.no_grad():
        y, _ = network["rnn"](torch.randn(6, 3))
        assert not trace_torch(network, torch.randn(6, 3)).states["h"][0, :, 2].any()
    assert not y[:, 2].any()
    assert y[:, 1].all()


@pytest.mark.parametrize("make", [lambda size: LSTMCell(size, 4, projection=3), lambda size: GRUCell(size, 3)])
def test_layers_both_ways_with_padding_are_as_they_were_but_for_the_change(make: Callable[[int], nn.Module]) -> None:
    torch.manual_seed(0)
    layers = Recurrent(make, input_size=6, layers=2, bidirectional=True, residual=True)  # type: ignore[arg-type]
    x, lengths = torch.randn(3, 5, 6), torch.tensor([2, 5, 1])
    with torch.no_grad():
        expected = layers(x, None, lengths, every_layer=True)
        with intervene(layers, 1, 0, "scale", 1.0, direction="backward"):
            found = layers(x, None, lengths, every_layer=True)
        with intervene(layers, 0, 1, direction="backward"):
            changed = layers(x, None, lengths, every_layer=True).layers[0] - x
    for a, b in zip([*found.layers, *found.state], [*expected.layers, *expected.state], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), **CLOSE)
    inside = torch.arange(5) < lengths[:, None]
    assert not changed[inside][:, 4].any()
    assert changed[inside][:, 1].all()


def test_mistakes_are_told() -> None:
    model = language_model()
    for given, message in [
        ({"layer": 1, "units": 0}, "layers 0 to 0"),
        ({"layer": 0, "units": [2, 7]}, r"h0\.7.* 0 to 6"),
        ({"layer": 0, "units": 1, "how": "off"}, "'zero', 'mean'"),
        ({"layer": 0, "units": 1, "how": "mean"}, "value"),
        ({"layer": 0, "units": [1, 2], "how": "hold", "value": [1, 2, 3]}, "3 values for 2 units"),
        ({"layer": 0, "units": 1, "value": 2.0}, "no value"),
        ({"layer": 0, "units": 1, "direction": "backward"}, "backward"),
    ]:
        with pytest.raises(SettingError, match=message), intervene(model, **given):  # type: ignore[arg-type]
            pass
    with pytest.raises(SettingError, match="'c'"), intervene(language_model("gru"), 0, 1, state="c"):
        pass
    with pytest.raises(ModelError, match="no recurrent layers"), intervene(nn.Linear(2, 2), 0, 1):
        pass
    with pytest.raises(SettingError, match="str"), intervene("small", 0, 1):
        pass
    low = bilm()
    low.precision = "int8"
    with pytest.raises(SettingError, match="float32"), intervene(low, 0, 1):
        low.embed(SENTENCES)
    training = language_model(layers=2, dropout=0.5)
    training.network.train()
    with pytest.raises(SettingError, match="eval"), intervene(training, 0, 1):
        features(training)

"""Traces: equal to the fast paths, to torch's modules, and to the cells' own equations, however they are cut."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.stack import build_stack
from relmo.analysis.core.trace import Trace, iter_trace, trace, trace_torch, write_trace
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.recurrence.elman import ElmanCell
from relmo.nn.recurrence.gru import GRUCell
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.nn.recurrence.stack import Recurrent
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary
from support.cells import record_gates

TEXT = "the cat (a cat) sat\non the mat. " * 5
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def language_model(cell: str = "lstm", unit: str = "char", **options: object) -> LanguageModel:
    torch.manual_seed(3)
    settings = LMSettings(
        model=LanguageModelSettings(cell=cell, hidden=7, embedding=5, **options),  # type: ignore[arg-type]
        text=TextSettings(unit=unit),  # type: ignore[arg-type]
    )
    symbols = sorted(set(TEXT)) if unit == "char" else sorted({*TEXT.split(), "\n"})
    vocabulary = Vocabulary([*Vocabulary.specials, *symbols])
    network = make_language_model(settings.model, len(vocabulary))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)  # so that gates move
    return LanguageModel(network, vocabulary, settings)


def bilm(**options: object) -> BiLM:
    torch.manual_seed(5)
    given = {"filters": ("1x4", "2x4"), "char_dim": 3, "hidden": 9, "projection": 4, "cell_clip": 0.3} | options
    settings = BiLMModelSettings(**given)  # type: ignore[arg-type]
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, *sorted(set(TEXT.split()))])
    network = BiLMNetwork(settings, vocab_size=len(vocabulary))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    return BiLM(network, BiLMSettings(model=settings), vocabulary)


def by_hand(model: LanguageModel, text: str) -> dict[str, np.ndarray]:
    """The cells' own equations, one symbol after the other, through all layers."""
    recurrent = model.encoder.recurrent
    states = [cell.initial_state(1) for (cell,) in recurrent.cells]
    found: dict[str, list[list[Tensor]]] = {}
    for place, number in enumerate([model.vocabulary.end, *model.encode(text)]):
        x = model.encoder.embedding(torch.tensor([number]))
        for depth, (cell,) in enumerate(recurrent.cells):
            gates = record_gates(cell, x, states[depth])
            states[depth] = (gates.h, gates.c) if isinstance(cell, LSTMCell) else (gates.h,)
            x = x + gates.h if recurrent.residual and x.shape == gates.h.shape else gates.h
            for name, value in vars(gates).items():
                if place:
                    found.setdefault(name, [[] for _ in recurrent.cells])[depth].append(value[0])
    return {
        name: torch.stack([torch.stack(each) for each in layers]).numpy(force=True) for name, layers in found.items()
    }


SHAPES = [
    ("lstm", {}),
    ("lstm", {"layers": 2, "projection": 4}),
    ("lstm", {"layers": 3, "residual": True}),
    ("gru", {"layers": 2}),
    ("elman", {"layers": 2}),
    ("elman", {"nonlinearity": "relu"}),
]


@pytest.mark.parametrize(("cell", "options"), SHAPES)
def test_a_trace_has_what_the_cells_equations_give_in_windows_of_any_size(
    cell: str, options: dict[str, object]
) -> None:
    model = language_model(cell, **options)
    with torch.no_grad():
        expected = by_hand(model, TEXT)
    for window in (4096, 11):
        pieces = list(iter_trace(model, TEXT, window=window))
        assert "".join(symbol for piece in pieces for symbol in piece.symbols) == TEXT
        for name, array in expected.items():
            found = np.concatenate([piece.states[name] for piece in pieces], axis=1)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, array, **CLOSE)
    assert {*pieces[0].states} == {*expected}
    assert max(len(piece) for piece in pieces) == 11


@pytest.mark.parametrize(("cell", "options"), SHAPES)
def test_with_a_change_in_place_the_stepped_layers_give_the_same(cell: str, options: dict[str, object]) -> None:
    model = language_model(cell, **options)
    plain = trace(model, TEXT)
    with intervene(model, 0, 2, "scale", 1.0):
        stepped = trace(model, TEXT)
    for name, array in plain.states.items():
        np.testing.assert_allclose(stepped.states[name], array, **CLOSE)


@pytest.mark.parametrize(("cell", "options"), SHAPES)
def test_a_trace_is_the_state_of_the_fast_path(cell: str, options: dict[str, object]) -> None:
    model = language_model(cell, **options)
    ids = torch.tensor([[model.vocabulary.end, *model.encode(TEXT)]])
    with torch.no_grad():
        _, state = model.network.features(ids, model.network.initial_state(1))  # type: ignore[union-attr]
    found = trace(model, TEXT)
    per = 2 if cell == "lstm" else 1
    for place, tensor in enumerate(state):
        array = found.states["hc"[place % per]][place // per, -1]
        np.testing.assert_allclose(array, tensor[0].numpy(), **CLOSE)


def test_several_texts_are_each_read_from_the_beginning() -> None:
    model = language_model("lstm", layers=2)
    texts = ["the cat", "sat on the mat.", "a"]
    together = trace(model, texts)
    assert together.starts.tolist() == [0, 7, 22]
    for start, text in zip(together.starts, texts, strict=True):
        alone = trace(model, text)
        for name, array in alone.states.items():
            np.testing.assert_allclose(together.states[name][:, start : start + len(text)], array, **CLOSE)


def test_a_model_of_words_is_traced_by_words_and_line_ends() -> None:
    model = language_model(unit="word")
    found = trace(model, "the cat\nsat")
    assert found.symbols == ["the", "cat", "\n", "sat"]
    assert trace(model, [["the", "cat"]]).symbols == ["the", "cat"]


@pytest.mark.parametrize(
    "options", [{}, {"skip_connections": False, "projection": 9}, {"layers": 1, "projection_clip": 0.05}]
)
def test_a_bidirectional_trace_is_what_embed_gives(options: dict[str, object]) -> None:
    model = bilm(**options)
    sentences = ["the cat sat .", "on the mat", "a", "the mat the cat sat on , the mat"]
    found = trace(model, "\n".join(sentences))
    vectors = np.concatenate(model.embed(sentences), axis=1)  # (layers, words, 2P)
    assert found.symbols == " ".join(sentences).split()
    assert found.directions == 2
    expected = vectors[1:].copy()
    if model.network.lstm.skip_connections:
        expected[1:] -= vectors[1:-1]
    np.testing.assert_allclose(found.states["h"], expected, **CLOSE)
    size = model.network.lstm.output_size
    np.testing.assert_array_equal(found.forward.states["h"], found.states["h"][:, :, :size])
    np.testing.assert_array_equal(found.backward.states["h"], found.states["h"][:, :, size:])
    assert found.backward.states["c"].shape == (len(expected), len(found), 9)
    assert found.starts.tolist() == [0, 4, 7, 8]


def test_the_model_that_ships_is_traced_as_it_embeds() -> None:
    model = load("small", device="cpu")
    assert isinstance(model, BiLM)
    sentences = ['He said ( quietly ) : " Go . "', "The bank of the river .", "Yes"]
    found, vectors = trace(model, sentences), np.concatenate(model.embed(sentences), axis=1)
    np.testing.assert_allclose(found.states["h"][0], vectors[1], atol=2e-5)
    np.testing.assert_allclose(found.states["h"][1], vectors[2] - vectors[1], atol=2e-5)
    assert found.forward.states["c"].shape == (2, len(found), model.settings.model.hidden)


def test_a_bidirectional_models_cells_are_those_of_its_definition() -> None:
    model, words = bilm(), ["the", "mat", "sat"]
    found = trace(model, [words])
    x = torch.from_numpy(model.embed([["<S>", *words, "</S>"]], layers=0)[0][:, :4])
    slow = BiLMNetwork(model.settings.model, vocab_size=len(model.vocabulary or ()), fast=False)
    slow.load_state_dict(model.network.state_dict())
    slow.eval()
    for steps in (1, 2, 3):
        both = torch.stack([x[: steps + 1], x.flip(0)[: steps + 1]]).unsqueeze(2)
        with torch.no_grad():
            state = slow.lstm(both).state
        for layer in range(2):
            c = state[2 * layer + 1][0].numpy()  # (2, H)
            np.testing.assert_allclose(found.forward.states["c"][layer, steps - 1], c[0], **CLOSE)
            np.testing.assert_allclose(found.backward.states["c"][layer, 3 - steps], c[1], **CLOSE)
    assert np.abs(found.states["c"]).max() == np.float32(0.3), "the cells are clipped, and these reach it"


MODULES: list[Callable[[], nn.RNNBase]] = [
    lambda: nn.LSTM(3, 5, num_layers=2, batch_first=True),
    lambda: nn.LSTM(3, 5, num_layers=2, bidirectional=True, proj_size=2),
    lambda: nn.GRU(3, 5, num_layers=2, bidirectional=True, bias=False, batch_first=True),
    lambda: nn.RNN(3, 5, nonlinearity="relu", num_layers=2),
]


@pytest.mark.parametrize("make", MODULES)
def test_a_trace_of_torchs_modules_is_their_output(make: Callable[[], nn.RNNBase]) -> None:
    torch.manual_seed(0)
    module = make()
    x, lengths = torch.randn(3, 6, 3), [6, 2, 4]
    found = trace_torch(module, x, lengths=lengths)
    for row, (start, length) in enumerate(zip(found.starts, lengths, strict=True)):
        alone = x[row : row + 1, :length]
        with torch.no_grad():
            y, state = module(alone if module.batch_first else alone.transpose(0, 1))
        y = y[0] if module.batch_first else y[:, 0]
        np.testing.assert_allclose(found.states["h"][-1, start : start + length], y.numpy(), **CLOSE)
        if module.mode == "LSTM":
            c = state[1].view(2, found.directions, -1)
            np.testing.assert_allclose(found.forward.states["c"][:, start + length - 1], c[:, 0].numpy(), **CLOSE)
            if found.directions == 2:
                np.testing.assert_allclose(found.backward.states["c"][:, start], c[:, 1].numpy(), **CLOSE)
    assert found.symbols[:7] == ["0", "1", "2", "3", "4", "5", "0"]
    np.testing.assert_allclose(trace_torch(module, x[0]).states["h"], found.states["h"][:, :6], **CLOSE)


def test_gates_of_torchs_modules_give_their_states_by_the_equations() -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 3)
    s = trace_torch(nn.LSTM(3, 5), x).states
    before = np.concatenate([np.zeros((1, 1, 5), np.float32), s["c"][:, :-1]], axis=1)
    np.testing.assert_allclose(s["c"], s["f"] * before + s["i"] * s["g"], **CLOSE)
    np.testing.assert_allclose(s["h"], s["o"] * np.tanh(s["c"]), **CLOSE)
    s = trace_torch(nn.GRU(3, 5), x).states
    before = np.concatenate([np.zeros((1, 1, 5), np.float32), s["h"][:, :-1]], axis=1)
    np.testing.assert_allclose(s["h"], (1 - s["z"]) * s["n"] + s["z"] * before, **CLOSE)


@pytest.mark.parametrize("cell", [LSTMCell, GRUCell, ElmanCell])
def test_a_stack_runs_as_the_layers_do_both_ways_residual_and_padded(cell: type) -> None:
    torch.manual_seed(0)
    layers = Recurrent(lambda size: cell(size, 4), input_size=8, layers=3, bidirectional=True, residual=True)
    x, lengths = torch.randn(3, 5, 8), torch.tensor([5, 1, 3])
    expected = layers(x, lengths=lengths, every_layer=True)
    with torch.no_grad():
        read = torch.stack([x, x]).transpose(1, 2)
        for row, length in enumerate(lengths.tolist()):
            read[1, :length, row] = x[row, :length].flip(0)
        run = build_stack(layers).run(read, None, lengths)
    for output, layer in zip(run.outputs, expected.layers, strict=True):
        np.testing.assert_allclose(output[0].transpose(0, 1).numpy(), layer.numpy(force=True), **CLOSE)


def test_what_is_kept_can_be_chosen() -> None:
    model = language_model(layers=2)
    whole, part = trace(model, TEXT), trace(model, TEXT, layers=[1], keep=["c"])
    assert {*part.states} == {"c"}
    assert part.layers == (1,)
    np.testing.assert_array_equal(part.states["c"][0], whole.states["c"][1])
    np.testing.assert_array_equal(part.unit("c", 1, 3), whole.states["c"][1, :, 3])
    np.testing.assert_allclose(part.mean("c", 1), whole.states["c"][1].mean(axis=0), **CLOSE)


def test_a_stretch_of_a_trace_keeps_its_texts() -> None:
    found = trace(language_model(), ["the cat", "sat", "on"])
    part = found[5:11]
    assert "".join(part.symbols) == "atsato"
    assert part.starts.tolist() == [0, 2, 5]
    np.testing.assert_array_equal(part.states["h"], found.states["h"][:, 5:11])


def test_saturation_is_the_share_of_time_below_and_above() -> None:
    gate = np.array([[[0.05, 0.5], [0.95, 0.5], [0.96, 0.01], [0.5, 0.5]]], dtype=np.float32)
    found = Trace(list("abcd"), {"f": gate}, np.array([0]), (0,)).saturation("f")
    assert found.tolist() == [[[0.25, 0.25]], [[0.5, 0.0]]]


def test_progress_ends_at_one_and_can_stop_the_work() -> None:
    seen: list[float] = []
    trace(language_model(), TEXT * 60, progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert seen[-1] == 1.0

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace(language_model(), TEXT, progress=stop)


def test_mistakes_are_told() -> None:
    model = language_model()
    with pytest.raises(SettingError, match="layers 0 to 0"):
        trace(model, TEXT, layers=[1])
    with pytest.raises(SettingError, match="'z'"):
        trace(model, TEXT, keep=["h", "z"])
    with pytest.raises(CorpusError, match="empty"):
        trace(model, "")
    with pytest.raises(ModelError, match="no recurrent layers"):
        trace(language_model("feedforward"), TEXT)
    with pytest.raises(SettingError, match="backward"):
        _ = trace(model, TEXT).backward
    with pytest.raises(SettingError, match="lengths"):
        trace_torch(nn.LSTM(3, 4), torch.zeros(2, 5, 3), lengths=[6, 1])
    with pytest.raises(ModelError, match="2 recurrent"):
        trace_torch(nn.ModuleList([nn.LSTM(3, 4), nn.LSTM(3, 4)]), torch.zeros(5, 3))


def test_memories_by_numpy_are_those_of_the_definition() -> None:
    stack, x = build_stack(nn.LSTM(4, 5)), torch.randn(1, 9, 3, 4)
    with torch.no_grad():
        by_numpy, first = (stack.run(x[:, :n], keep=("h", "c")).quantities[0]["c"] for n in (9, 1))
    torch.testing.assert_close(by_numpy, stack.run(x, keep=("h", "c")).quantities[0]["c"])
    torch.testing.assert_close(first, by_numpy[:, :1])


@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_arrays_of_numbers_and_strings_come_back(tmp_path: Path, kind: str) -> None:
    path, traced = tmp_path / f"a.{kind}", Trace(["é", "\n"], {"x": np.ones((1, 2, 3))}, np.array([0]), (0,))
    write_trace(traced, path)
    if kind == "npz":
        with np.load(path, allow_pickle=False) as file:
            x, names = file["x"], file["symbols"].tolist()
    else:
        with h5py.File(path) as file:
            x, names = file["x"][:], [name.decode() for name in file["symbols"][:]]
    assert x.tolist() == [[[1, 1, 1], [1, 1, 1]]]
    assert names == ["é", "\n"]
    with pytest.raises(SettingError, match="npz"):
        write_trace(traced, tmp_path / "a.csv")

"""Bidirectional language models of any recurrent cell: every registered one, a variant of the LSTM, and a matrix memory
that does not carry its output."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import relmo
from relmo import registry
from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.stack import build_stack
from relmo.analysis.core.trace import trace
from relmo.errors import ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.saved import pack
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.recurrence.bidirectional import BidirectionalStacks
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM
from relmo.runs.train_bilm import train_bilm
from relmo.runs.train_task import train_task
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTextSettings, BiLMTrainSettings
from relmo.store.original import write_original
from relmo.store.references import bilm_digest
from relmo.tasks.tagger import Tagger
from support.cells import MatrixCell
from support.small_models import SENTENCES, bilm
from support.tagging import StopAfter, conllu
from support.tagging import settings as tagger_settings

PEEPHOLE = {"cell": "lstm", "cell_options": ("peephole=true",)}
CASES: dict[str, dict[str, Any]] = {name: {"cell": name} for name in registry.cell_names()}
CASES |= {"peephole": PEEPHOLE, "matrix": {"cell": "matrix"}, "odd": {"cell": "gru", "hidden": 17, "projection": 13}}
TRAINED = ("gru", "elman", "peephole", "matrix")
SIZES: dict[str, Any] = {"hidden": 16, "projection": 12, "cell_clip": 3.0}
TEXTS = [["the", "cat"], ["a", "mat", "sat", ",", "the", "large", "cat", "sat"], ["cat"], [], ["the", "mat"] * 9] * 9


@pytest.fixture(autouse=True)
def _matrix_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CELLS, "matrix", registry.CellEntry(MatrixCell, {}))


@pytest.fixture(params=CASES)
def model(request: pytest.FixtureRequest) -> BiLM:
    return bilm(**SIZES | CASES[request.param])


def read_all(model: BiLM, texts: list[list[str]], state: Any = None) -> tuple[list[np.ndarray], Any]:
    """Vectors by the network alone, which reads sentences between their boundaries, and the final states."""
    with torch.no_grad():
        bounded = [["<S>", *words, "</S>"] for words in texts]
        lengths = torch.tensor([len(words) for words in bounded])
        rows = [
            torch.from_numpy(v) for v in model.embedder.stream(bounded, relmo.settings.options.EmbedOptions(layers=0))
        ]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)[..., : model.network.size // 2]
        run = model.network(tokens, lengths, state)
    return [layers[:, 1 : n - 1].numpy() for layers, n in zip(run.layers.unbind(1), lengths, strict=True)], run.state


def test_embed_computes_the_layers_of_the_network(model: BiLM) -> None:
    vectors, _ = read_all(model, TEXTS[:5])
    for actual, expected in zip(model.embed(TEXTS[:5]), vectors, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_vectors_depend_neither_on_batch_mates_nor_on_the_pieces_of_a_long_sentence(model: BiLM) -> None:
    together = model.embed(TEXTS)
    for words, vectors in zip(TEXTS[:5], together, strict=False):
        np.testing.assert_array_equal(model.embed([words])[0], vectors)
    model.embedder.eager_tokens = model.embedder.chunk_tokens = 40  # a step or two at a time
    for pieces, vectors in zip(model.embed(TEXTS), together, strict=True):
        np.testing.assert_array_equal(pieces, vectors)


def test_carried_states_are_those_of_the_network(model: BiLM) -> None:
    batches = [TEXTS[:2], TEXTS[1:4], TEXTS[2:4]]
    vectors = model.embed([words for batch in batches for words in batch], state="carry", batch_size=3)
    model.reset_states()
    first, second = [vectors[:3], vectors[3:6]]
    expected, state = read_all(model, [*TEXTS[:2], TEXTS[1]])
    continued, _ = read_all(model, [*TEXTS[2:4], TEXTS[2]], state)
    for actual, array in zip([*first, *second], [*expected, *continued], strict=True):
        np.testing.assert_allclose(actual, array, rtol=1e-4, atol=1e-5)
    # a row that joins later starts from the initial state
    model.embed(TEXTS[:1], state="carry", batch_size=1)
    joined = model.embed(TEXTS[:2], state="carry", batch_size=2)[1]
    np.testing.assert_allclose(joined, read_all(model, TEXTS[:2])[0][1], rtol=1e-4, atol=1e-5)


def test_a_trace_has_the_layers_of_embed(model: BiLM) -> None:
    texts = [words for words in TEXTS[:5] if words]
    stack, traced = build_stack(model.network), trace(model, texts)
    embedded = np.concatenate(model.embed(texts), axis=1)  # (layers, T, 2P)
    size = model.network.size // 2
    assert traced.states["h"].shape[2] == 2 * stack.layers[0].cell.sizes["h"]
    below = embedded[0]
    for depth, layer in enumerate(stack.layers):
        sides = np.split(traced.states["h"][depth], 2, axis=1)
        if layer.projections:
            sides = [h @ matrix.detach().numpy().T for h, matrix in zip(sides, layer.projections, strict=True)]
        output = np.concatenate(sides, axis=1) + (below if layer.adds_input else 0.0)
        np.testing.assert_allclose(output, embedded[depth + 1], rtol=1e-4, atol=1e-5)
        below = embedded[depth + 1]
    assert below.shape[1] == 2 * size


def test_probabilities_agree_in_all_commands(model: BiLM, tmp_path: Path) -> None:
    texts = [line.split() for line in SENTENCES.splitlines()[:3]]
    log_p = model.log_probs(texts)
    table = model.surprisal(texts, context="sentence", ends=True)
    bits = -np.concatenate([rows[0] for rows in log_p]) / np.log(2)
    np.testing.assert_allclose([row.surprisal for row in table.rows], bits, rtol=1e-4, atol=1e-4)
    (tmp_path / "one.txt").write_text(" ".join(texts[0]) + "\n")
    score = model.evaluate(tmp_path / "one.txt")
    np.testing.assert_allclose([score.forward_nll, score.backward_nll], -log_p[0].sum(axis=1), rtol=1e-4)


def test_an_intervention_reaches_vectors_and_traces(model: BiLM) -> None:
    before = model.embed(TEXTS[:2])
    with intervene(model, 0, [1, 2], "hold", 2.5, direction="both"):
        assert (trace(model, TEXTS[:2]).unit("h", 0, 1) == 2.5).all()
        changed = model.embed(TEXTS[:2])
        expected, _ = read_all(model, TEXTS[:2])
    for one, other, original in zip(changed, expected, before, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert not np.array_equal(one, original)
    np.testing.assert_array_equal(model.embed(TEXTS[:2])[0], before[0])


@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_has_the_same_vectors_and_names_its_cell(name: str, tmp_path: Path) -> None:
    model = bilm(**SIZES | CASES[name])
    model.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["settings"]["model"]["cell"] == CASES[name]["cell"]
    loaded = relmo.load(tmp_path / "model", kinds="bilm", device="cpu")
    np.testing.assert_array_equal(loaded.embed(TEXTS[1:2])[0], model.embed(TEXTS[1:2])[0])
    assert bilm_digest(loaded) == bilm_digest(model)
    pack(tmp_path / "model", tmp_path / "packed", precision="int8")
    rounded = relmo.load(tmp_path / "packed", kinds="bilm", device="cpu").embed(TEXTS[1:2])[0]
    np.testing.assert_allclose(rounded, model.embed(TEXTS[1:2])[0], atol=0.2)
    card = (tmp_path / "model" / "README.md").read_text()
    if isinstance(model.network.lstm, ElmoLSTM):
        assert "bidirectional LSTM language model" in card
        return
    assert f"bidirectional {model.cell} language model" in card
    assert model.cell in model.geometry()
    with pytest.raises(SettingError, match="precision"):
        model.precision = "bfloat16"
    with pytest.raises(SettingError, match="precision"):
        relmo.load(tmp_path / "model", kinds="bilm", device="cpu", dtype="int8")
    with pytest.raises(ModelError, match="original format"):
        write_original(model, tmp_path / "original")


def test_only_the_plain_lstm_is_elmos() -> None:
    assert isinstance(bilm(cell="lstm").network.lstm, ElmoLSTM)
    stacks = bilm(**SIZES | PEEPHOLE).network.lstm
    assert isinstance(stacks, BidirectionalStacks)
    cell = stacks.stack[0].cells[0]
    assert (cell.output_size, cell.cell_clip) == (12, 3.0)  # the projection is the cell's, and carried
    assert stacks.stack[0].weight_hr is None
    unclipped = bilm(**SIZES | PEEPHOLE | {"cell_clip": 0.0}).network.lstm.stack[0]
    assert unclipped.cells[0].cell_clip is None  # type: ignore[union-attr]


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(SettingError, match="cell_clip"):
        BiLMModelSettings(cell="gru", cell_clip=2.0).check()
    with pytest.raises(SettingError, match="projection"):
        BiLMModelSettings(cell_options=("projection=7",)).check()
    with pytest.raises(SettingError, match="peephole"):
        BiLMModelSettings(cell="gru", cell_options=("peephole=true",)).check()


def test_digests_tell_options_apart_that_have_no_weights() -> None:
    model = bilm(cell="elman")
    relu = BiLM(
        model.network,
        dataclasses.replace(
            model.settings,
            model=dataclasses.replace(model.settings.model, cell_options=("nonlinearity=relu",)),
        ),
        model.vocabulary,
    )
    assert bilm_digest(model) != bilm_digest(relu)


@pytest.mark.parametrize("name", [name for name in CASES if name != "lstm"])
def test_fast_stacks_equal_their_steps_with_gradients(name: str) -> None:
    runs = []
    for fast in (True, False):
        stacks = bilm(**SIZES | CASES[name]).network.lstm.double()
        stacks.fast = fast
        torch.manual_seed(0)
        x = torch.randn(2, 6, 4, stacks.input_size, dtype=torch.float64, requires_grad=True)
        state = tuple(tensor + 0.1 * torch.rand_like(tensor) for tensor in stacks.initial_state(4))
        run = stacks(x, state, [4, 4, 3, 1, 1, 1])
        total = sum(layer.cos().sum() for layer in run.layers) + sum(tensor.sin().sum() for tensor in run.state)
        assert isinstance(total, Tensor)
        runs.append(
            [*run.layers, *run.state, *torch.autograd.grad(total, [x, *stacks.parameters()], allow_unused=True)]
        )
    for one, other in zip(*runs, strict=True):
        if one is not None or other is not None:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_state_dropout_returns_to_the_initial_state() -> None:
    network = bilm(cell="matrix", state_dropout=0.5).network.train()
    carry = tuple(tensor + 5 for tensor in network.initial_state(40))
    dropped = network.drop_states(carry)
    assert dropped is not None
    rows = (dropped[0] == carry[0]).flatten(1).all(dim=1)
    assert 5 < rows.sum() < 35
    for tensor, before, initial in zip(dropped, carry, network.initial_state(40), strict=True):
        torch.testing.assert_close(tensor[rows], before[rows])
        torch.testing.assert_close(tensor[~rows], initial[~rows])


def run_settings(name: str, **train: Any) -> BiLMSettings:
    sizes: dict[str, Any] = {"filters": ("1x4", "2x4"), "char_dim": 4, "max_characters": 12, "samples": 16}
    sizes |= SIZES | {"state_dropout": 0.2} | CASES[name]
    options: dict[str, Any] = {"batch": 4, "unroll": 6, "epochs": 1.0, "threads": 1, "device": "cpu", "lr": 0.1}
    return BiLMSettings(
        text=BiLMTextSettings(valid_fraction=0.1),
        model=BiLMModelSettings(**sizes),
        train=BiLMTrainSettings(**options | train),
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(SENTENCES * 4)
    return path


@pytest.mark.parametrize("name", TRAINED)
def test_a_resumed_run_ends_with_the_same_weights_and_a_model_learns(name: str, text: Path, tmp_path: Path) -> None:
    chosen = run_settings(name, checkpoint_every=0.0)
    results = train_bilm([str(text)], chosen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_bilm([str(text)], chosen, tmp_path / "broken", reporter=StopAfter(7))
    train_bilm([str(text)], chosen, tmp_path / "broken", resume=True)
    whole, resumed = (tmp_path / folder / "model.safetensors" for folder in ("whole", "broken"))
    assert whole.read_bytes() == resumed.read_bytes()
    model = BiLM.from_pretrained(tmp_path / "whole", device="cpu")
    assert model.evaluate(str(text)).perplexity < 0.9 * results["vocabulary"]
    assert results["valid_perplexity"] < 0.9 * results["vocabulary"]


def test_another_run_starts_from_a_model_or_is_taught_by_it(text: Path, tmp_path: Path) -> None:
    train_bilm([str(text)], run_settings("gru"), tmp_path / "first")
    init = BiLMSettings(train=dataclasses.replace(run_settings("gru").train, init=str(tmp_path / "first")))
    train_bilm([str(text)], init, tmp_path / "second")
    assert BiLM.from_pretrained(tmp_path / "second").settings.model.cell == "gru"
    taught = run_settings("matrix", teacher=str(tmp_path / "first"), teacher_layers=0.1)
    taught = dataclasses.replace(
        taught, text=BiLMTextSettings(vocabulary=str(tmp_path / "first" / "vocabulary.txt"), valid_fraction=0.1)
    )
    train_bilm([str(text)], taught, tmp_path / "student")
    assert BiLM.from_pretrained(tmp_path / "student").settings.model.cell == "matrix"


@pytest.mark.parametrize("tune", [False, True])
def test_a_tagger_reads_the_vectors(tune: bool, tmp_path: Path) -> None:
    train = conllu(tmp_path / "train.conllu", 40)
    bilm(**SIZES | {"cell": "matrix" if tune else "gru"}).save_pretrained(tmp_path / "bilm")
    inputs = {"elmo": str(tmp_path / "bilm"), "word_dim": 0, "char_dim": 0, "filters": ("3x128",), "cache": "none"}
    if tune:
        inputs = {k: v for k, v in inputs.items() if k != "cache"} | {"elmo_tune": True}
    chosen = tagger_settings(input=inputs, train={"epochs": 2})
    train_task(Tagger, [str(train)], chosen, tmp_path / "tagger")
    tagger = relmo.load(tmp_path / "tagger", kinds="tagger", device="cpu")
    assert len(tagger.predict([["The", "dog", "sees", "."]])[0].tags) == 4


def test_networks_have_no_state_of_other_sentences() -> None:
    """A batch in training mode reads ragged sentences as each by itself."""
    network = BiLMNetwork(
        BiLMModelSettings(cell="matrix", input="word", hidden=16, projection=12, dropout=0.0), vocab_size=9
    )
    tokens, lengths = torch.randn(3, 7, 12), torch.tensor([4, 7, 2])
    run = network(tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = network(tokens[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(run.layers[:, row, :length], alone.layers[:, 0], rtol=1e-4, atol=1e-5)
        assert not run.layers[:, row, length:].any()
        for together, single in zip(run.state, alone.state, strict=True):
            torch.testing.assert_close(together[row], single[0], rtol=1e-4, atol=1e-5)

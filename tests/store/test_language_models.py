"""Language models of other tools give the numbers of their own code, which no file can make relmo run."""

import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

import relmo
from relmo.errors import ModelError
from relmo.models.lm import LanguageModel

WORDS = ["<unk>", "the", "cat", "sat", "<eos>", "mat"]
SENTENCE, TARGETS = [4, 1, 2, 3], [1, 2, 3, 4]  # of "the cat sat"


class RNNModel(nn.Module):
    """The module of PyTorch's example."""

    def __init__(self, rnn_type: str, size: int, hidden: int, layers: int, *, tied: bool):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(len(WORDS), size)
        if rnn_type in ("LSTM", "GRU"):
            self.rnn = getattr(nn, rnn_type)(size, hidden, layers)
        else:
            self.rnn = nn.RNN(size, hidden, layers, nonlinearity=rnn_type.removeprefix("RNN_").lower())
        self.decoder = nn.Linear(hidden, len(WORDS))
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, ids: Tensor) -> Tensor:
        return log_softmax(self.decoder(self.rnn(self.encoder(ids[:, None]))[0][:, 0]), dim=-1)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[RNNModel]]:
    """Return the class in a module named as in the example, which is gone when its files are read."""
    place = ModuleType("model")
    monkeypatch.setattr(RNNModel, "__module__", "model")
    place.RNNModel = RNNModel  # type: ignore[attr-defined]
    sys.modules["model"] = place
    torch.manual_seed(5)
    warnings.filterwarnings("ignore", "Couldn't retrieve source code", UserWarning)
    yield RNNModel
    sys.modules.pop("model", None)


def log_probs(model: LanguageModel, ids: list[int]) -> Tensor:
    """Return the log-probabilities after each symbol of a text."""
    network: Any = model.network
    features, _ = network.features(torch.tensor([ids]), network.initial_state(1))
    return network.log_probs(features[0])


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Compare, and print the largest difference: `pytest -rP` shows it."""
    print(f"largest difference: {(ours - theirs).abs().max().item():.1e}")
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN_TANH", "RNN_RELU"])
def test_modules_of_the_example_of_pytorch(kind: str, is_new: bool, module: type[RNNModel], tmp_path: Path) -> None:
    network = module(kind, 6, 6 if is_new else 8, 2, tied=is_new).eval()
    torch.save(network, tmp_path / "model.pt", _use_new_zipfile_serialization=is_new)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    del sys.modules["model"]
    model = relmo.load(tmp_path / "model.pt", kinds="lm")
    with torch.no_grad():
        expected = network(torch.tensor(SENTENCE))
        assert_same(log_probs(model, SENTENCE), expected)
    table = model.surprisal("the cat sat").to_dict()
    bits = -expected[range(4), TARGETS] / np.log(2)
    np.testing.assert_allclose(table["surprisal"], bits[:3], rtol=1e-5)
    assert model.settings.model.tied == is_new


def test_a_converted_model_is_a_model_of_relmo(module: type[RNNModel], tmp_path: Path) -> None:
    torch.save([module("LSTM", 4, 5, 1, tied=False), None, None], tmp_path / "model.pt")  # as AWD-LSTM saves
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    original = relmo.load(tmp_path / "model.pt", kinds="lm")
    original.save_pretrained(tmp_path / "converted")
    converted = relmo.load(tmp_path / "converted", kinds="lm")
    torch.testing.assert_close(log_probs(converted, SENTENCE), log_probs(original, SENTENCE), rtol=0, atol=0)


def make_awd_state(prefix: str, suffix: str) -> tuple[dict[str, Tensor], list[nn.LSTM]]:
    """Return the tensors of three layers, of which the last has the size of the embeddings, and the layers."""
    torch.manual_seed(7)
    embedding = torch.randn(len(WORDS), 4)
    layers = [nn.LSTM(4, 7), nn.LSTM(7, 7), nn.LSTM(7, 4)]
    state = {f"{prefix}encoder.weight": embedding, f"{suffix}decoder.weight": embedding}
    state[f"{suffix}decoder.bias"] = torch.randn(len(WORDS))
    for i, layer in enumerate(layers):
        for name, weight in layer.state_dict().items():
            state[f"{prefix}rnns.{i}.module.{name}"] = weight
        state[f"{prefix}rnns.{i}.weight_hh_l0_raw"] = state[f"{prefix}rnns.{i}.module.weight_hh_l0"]
        state[f"{prefix}rnns.{i}.module.weight_hh_l0"] = torch.zeros_like(layer.weight_hh_l0)  # with dropout
    return state, layers


def run_awd(state: dict[str, Tensor], layers: list[nn.LSTM], prefix: str, suffix: str) -> Tensor:
    x = state[f"{prefix}encoder.weight"][SENTENCE]
    for layer in layers:
        x = layer(x)[0]
    return log_softmax(x @ state[f"{suffix}decoder.weight"].T + state[f"{suffix}decoder.bias"], dim=-1).detach()


@pytest.mark.parametrize("wrapped", [False, True])
def test_tensors_of_awd_lstm_and_fastai(wrapped: bool, tmp_path: Path) -> None:
    state, layers = make_awd_state("0.", "1.")
    torch.save({"model": state, "opt": {"state": []}} if wrapped else state, tmp_path / "lm.pth")
    symbols = ["xxunk", "the", "cat", "sat", "xxbos", "xxfake"]
    (tmp_path / "itos_wt103.pkl").write_bytes(pickle.dumps(symbols))
    model = relmo.load(tmp_path / "lm.pth", kinds="lm")
    assert (model.settings.model.hidden, model.settings.model.last_hidden, model.settings.model.tied) == (7, 4, True)
    assert_same(log_probs(model, SENTENCE), run_awd(state, layers, "0.", "1."))


def test_symbols_that_are_missing_or_do_not_fit_are_one_clear_error(module: type[RNNModel], tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(module("LSTM", 4, 5, 1, tied=False), path)
    with pytest.raises(ModelError, match="vocabulary next to it"):
        relmo.load(path)
    for words, message in ((WORDS[:4], "4 symbols; the model of model.pt has 6"), (list("abcdef"), "<unk>")):
        (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
        with pytest.raises(ModelError, match=message):
            relmo.load(path)


def test_a_file_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path(tmp_path / "created").touch, ()

    torch.save({"state_dict": {"encoder.weight": torch.zeros(2, 2)}, "dictionary": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ModelError):
        relmo.load(tmp_path / "evil.pt")
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("value", [[], {"state_dict": 3}, 7, {"encoder.weight": torch.zeros(2)}, {"a": {"b": []}}])
def test_other_files_are_no_language_models(value: Any, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "other.pt")
    with pytest.raises(ModelError):
        relmo.load(tmp_path / "other.pt")


def test_modules_that_contain_themselves_end(tmp_path: Path) -> None:
    network = nn.Module()
    network._modules["first"] = network._modules["second"] = network
    torch.save(network, tmp_path / "loop.pt")
    with pytest.raises(ModelError, match="modules"):
        relmo.load(tmp_path / "loop.pt")


@pytest.mark.parametrize("nout", [None, 5])
def test_character_models_of_flair(nout: int | None, tmp_path: Path) -> None:
    flair_models = pytest.importorskip("flair.models.language_model")
    from flair.data import Dictionary

    torch.manual_seed(3)
    dictionary = Dictionary()
    for character in "\nabc d":
        dictionary.add_item(character)
    original = flair_models.LanguageModel(dictionary, True, 9, 1, embedding_size=6, nout=nout).eval()
    original.save(tmp_path / "flair.pt")
    ids = [dictionary.get_idx_for_item(character) for character in "\nab cab"]
    with torch.no_grad():
        logits, *_ = original(torch.tensor(ids)[:, None], original.init_hidden(1))
    model = relmo.load(tmp_path / "flair.pt", kinds="lm")
    assert_same(log_probs(model, ids), log_softmax(logits[:, 0], dim=-1))
    assert model.settings.text.unit == "char"
    table = model.surprisal("ab cab").to_dict()
    assert table["word"] == ["ab", "cab"]


@pytest.mark.parametrize("rec_dropout", [0.0, 0.1])
def test_character_models_of_stanza(rec_dropout: float, tmp_path: Path) -> None:
    char_model = pytest.importorskip("stanza.models.common.char_model")
    torch.manual_seed(4)
    (tmp_path / "text.txt").write_text("abc cab\n" * 5)
    vocab = char_model.build_charlm_vocab(str(tmp_path / "text.txt"))
    args = {"char_emb_dim": 4, "char_hidden_dim": 6, "char_num_layers": 1, "char_dropout": 0.1, "dropout": 0.1}
    args |= {"char_rec_dropout": rec_dropout, "char_unit_dropout": 0}
    original = char_model.CharacterLanguageModel(args, {"char": vocab})
    original.eval()  # returns None
    nn.init.normal_(original.charlstm_h_init)
    nn.init.normal_(original.charlstm_c_init)
    original.save(str(tmp_path / "charlm.pt"))
    ids = vocab.map(list("\nab cab"))
    with torch.no_grad():
        *_, logits = original(torch.tensor([ids]), [len(ids)])
    model = relmo.load(tmp_path / "charlm.pt", kinds="lm")
    assert_same(log_probs(model, ids), log_softmax(logits[0], dim=-1))
    original.is_forward_lm = False
    original.save(str(tmp_path / "backward.pt"))
    with pytest.raises(ModelError, match="backwards"):
        relmo.load(tmp_path / "backward.pt")


def test_models_of_fastai(tmp_path: Path) -> None:
    awdlstm = pytest.importorskip("fastai.text.models.awdlstm")
    core = pytest.importorskip("fastai.text.models.core")
    torch.manual_seed(6)
    config = awdlstm.awd_lstm_lm_config | {"emb_sz": 4, "n_hid": 7, "n_layers": 3}
    original = core.get_language_model(awdlstm.AWD_LSTM, len(WORDS), config).eval()
    torch.save({"model": original.state_dict()}, tmp_path / "lm.pth")
    symbols = ["xxunk", "xxpad", "xxbos", "the", "cat", "sat"]
    (tmp_path / "itos.pkl").write_bytes(pickle.dumps(symbols))
    with torch.no_grad():
        logits, *_ = original(torch.tensor([[2, 3, 4, 5]]))
    model = relmo.load(tmp_path / "lm.pth", kinds="lm")
    assert_same(log_probs(model, [2, 3, 4, 5]), log_softmax(logits[0], dim=-1))

"""What scripts for AllenNLP reach for inside its ELMo: halves of the biLM, states, other modules, any character ids,
state dicts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import relmo
from relmo.compat.allennlp import (
    Elmo,
    ElmoEmbedder,
    ElmoTokenEmbedder,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    batch_to_ids,
    remove_sentence_boundaries,
)
from relmo.errors import SettingError
from relmo.store.original import write_hdf5
from support import original_elmo
from support import saved_allennlp as saved

OPTIONS = saved.OPTIONS
WEIGHTS = original_elmo.random_weights(OPTIONS, scale=0.5)
SENTENCES = [["First", "sentence", "."], ["Another", "."]]
IDS = batch_to_ids(SENTENCES)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """An original model's two files, with the numbers of WEIGHTS."""
    folder = tmp_path_factory.mktemp("elmo")
    (folder / "best.th").write_bytes(saved.th(saved.tagger()))
    write_hdf5(folder / "weights.hdf5", relmo.load(folder / "best.th", device="cpu", kinds="bilm").network)
    (folder / "options.json").write_text(json.dumps(OPTIONS))
    return str(folder / "options.json"), str(folder / "weights.hdf5")


def first(output: dict[str, Any]) -> Tensor:
    return output["elmo_representations"][0].detach()


class TestStates:
    """`elmo._elmo_lstm._elmo_lstm`."""

    def test_they_are_reset_by_the_inner_name(self, files: tuple[str, str]) -> None:
        elmo = Elmo(*files, 1, dropout=0)
        before = first(elmo(IDS))
        assert not first(elmo(IDS)).allclose(before, atol=1e-4)
        elmo._elmo_lstm._elmo_lstm.reset_states()
        assert first(elmo(IDS)).equal(before)
        elmo._elmo_lstm._elmo_lstm._states = None
        assert first(elmo(IDS)).equal(before)

    def test_stateful_can_be_turned_off(self, files: tuple[str, str]) -> None:
        elmo = Elmo(*files, 1, dropout=0)
        assert elmo._elmo_lstm._elmo_lstm.stateful
        elmo._elmo_lstm._elmo_lstm.stateful = False
        assert first(elmo(IDS)).equal(first(elmo(IDS)))
        assert not elmo._elmo_lstm._elmo_lstm.stateful

    def test_some_rows_are_reset(self, files: tuple[str, str]) -> None:
        elmo = Elmo(*files, 1, dropout=0)
        fresh = first(elmo(IDS))
        kept = elmo._elmo_lstm._elmo_lstm._states
        second = first(elmo(IDS))
        elmo._elmo_lstm._elmo_lstm._states = kept
        elmo._elmo_lstm._elmo_lstm.reset_states(torch.tensor([True, False]))
        found = first(elmo(IDS))
        torch.testing.assert_close(found[0], fresh[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(found[1], second[1], atol=1e-6, rtol=0)

    def test_an_embedder_has_them_too(self, files: tuple[str, str]) -> None:
        embedder = ElmoEmbedder(*files)
        embedder.elmo_bilm._elmo_lstm.stateful = False
        one, other = (embedder.embed_sentence(SENTENCES[0]) for _ in range(2))
        np.testing.assert_array_equal(one, other)


class Constant(nn.Module):
    """A module that is no biLM, with what `Elmo` asks of one."""

    num_layers = 2

    def get_output_dim(self) -> int:
        return 3

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        mask = torch.ones(len(inputs), inputs.shape[1] + 2, dtype=torch.bool)
        return {"activations": [torch.full((*mask.shape, 3), float(k)) for k in range(2)], "mask": mask}


class TestModules:
    """`module=` and the halves of a biLM."""

    def test_a_bilm_is_shared(self, files: tuple[str, str]) -> None:
        bilm = _ElmoBiLm(*files)
        elmo = Elmo(None, None, 2, dropout=0, module=bilm)
        expected = first(Elmo(*files, 1, dropout=0)(IDS))
        assert elmo._elmo_lstm is bilm
        assert first(elmo(IDS)).equal(expected)
        bilm.reset_states()
        assert first(elmo(IDS)).equal(expected)

    def test_any_module_with_layers_will_do(self) -> None:
        elmo = Elmo(None, None, 1, dropout=0, module=Constant())
        assert elmo.get_output_dim() == 3
        assert first(elmo(IDS)).equal(torch.full((2, 3, 3), 0.5))
        assert elmo(IDS.view(1, 2, 3, 50))["mask"].shape == (1, 2, 3)

    def test_a_bilm_gives_every_layer_with_the_boundaries(self, files: tuple[str, str]) -> None:
        bilm = _ElmoBiLm(*files)
        output = bilm(IDS)
        assert (bilm.num_layers, len(output["activations"])) == (3, 3)
        for row, words in enumerate(SENTENCES):
            expected = original_elmo.with_boundaries(words, OPTIONS, WEIGHTS)
            for layer, vectors in zip(output["activations"], expected, strict=True):
                np.testing.assert_allclose(layer[row, : len(words) + 2], vectors, atol=4e-6)
                assert not layer[row, len(words) + 2 :].any()
        assert output["mask"].sum(dim=1).tolist() == [5, 4]

    def test_the_token_embedder_spells_the_boundaries(self, files: tuple[str, str]) -> None:
        encoder = _ElmoCharacterEncoder(*files)
        output = encoder(batch_to_ids([["<S>", "</S>", "word"]]))
        vectors = output["token_embedding"][0]
        torch.testing.assert_close(vectors[[0, 4]], vectors[[1, 2]])
        expected = original_elmo.token(original_elmo.spell("word", 50), OPTIONS, WEIGHTS)
        np.testing.assert_allclose(vectors[3], expected, atol=2e-6)
        assert (encoder.get_output_dim(), output["mask"].sum().item()) == (6, 5)
        inner = Elmo(*files, 1)._elmo_lstm._token_embedder(IDS)["token_embedding"]
        assert inner.equal(encoder(IDS)["token_embedding"])

    def test_half_of_a_bilm_is_frozen(self, files: tuple[str, str]) -> None:
        elmo = Elmo(*files, 1, requires_grad=True)
        for parameter in elmo._elmo_lstm._token_embedder.parameters():
            parameter.requires_grad = False
        first_loss = elmo(IDS)["elmo_representations"][0].sum()
        first_loss.backward()
        assert all(parameter.grad is None for parameter in elmo._elmo_lstm.network.encoder.parameters())
        assert all(parameter.grad.any() for parameter in elmo._elmo_lstm._elmo_lstm.parameters())

    def test_a_frozen_bilm_learns_once_it_is_let(self, files: tuple[str, str]) -> None:
        elmo = Elmo(*files, 1)
        named = [parameter for name, parameter in elmo.named_parameters() if "_elmo_lstm" in name]
        assert len(named) > 10
        for parameter in named:
            parameter.requires_grad = True
        elmo(IDS)["elmo_representations"][0].sum().backward()
        assert all(parameter.grad is not None for parameter in named)

    def test_boundaries_are_removed(self) -> None:
        tensor, mask = torch.arange(1.0, 11).view(2, 5, 1), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
        for given in (mask, mask.bool()):
            found, left = remove_sentence_boundaries(tensor, given)
            assert found.squeeze(2).tolist() == [[2, 3, 4], [7, 0, 0]]
            assert left.equal(torch.tensor([[1, 1, 1], [1, 0, 0]]).to(given.dtype))


class TestAnyIds:
    """Rows of ids that no word is spelled with."""

    def rows(self) -> np.ndarray:
        return np.random.default_rng(0).integers(0, 262, (3, 4, 50))

    def test_they_are_read_as_they_stand_and_0_has_no_vector(self, files: tuple[str, str]) -> None:
        rows = self.rows()
        rows[0, 1, 7:] = 0
        rows[1, 2, 3], rows[1, 2, 4:] = 260, 70  # characters behind the end of a word
        rows[2, 3] = [*[70] * 9, *[261] * 41]  # a word without an end
        padded = WEIGHTS | {"char_embed": np.pad(WEIGHTS["char_embed"], ((0, 1), (0, 0)))}
        for ids in (rows, rows[:, :, :20]):
            filled = np.pad(ids, ((0, 0), (0, 0), (0, 50 - ids.shape[2])), constant_values=261)
            found = _ElmoCharacterEncoder(*files)(torch.from_numpy(ids))["token_embedding"][:, 1:-1]
            for place in np.ndindex(3, 4):
                expected = original_elmo.token([i - 1 for i in filled[place]], OPTIONS, padded)
                np.testing.assert_allclose(found[place], expected, atol=4e-6)

    def test_gradients_reach_every_weight(self, files: tuple[str, str]) -> None:
        embedder = ElmoTokenEmbedder(*files, requires_grad=True, dropout=0)
        embedder(torch.from_numpy(self.rows())).sum().backward()
        assert all(parameter.grad is not None for parameter in embedder.parameters())
        assert all(parameter.grad.any() for parameter in embedder._elmo._elmo_lstm.parameters())

    def test_what_is_no_id_is_an_error(self, files: tuple[str, str]) -> None:
        rows = torch.from_numpy(self.rows())
        rows[0, 0, 0] = 262
        with pytest.raises(SettingError, match="262"):
            Elmo(*files, 1)(rows)
        with pytest.raises(SettingError, match=r"\(3, 4\)"):
            Elmo(*files, 1)(rows[:, :, 0])


class TestTokenEmbedder:
    """One mix, and a projection."""

    def test_it_is_the_first_mix(self, files: tuple[str, str]) -> None:
        embedder = ElmoTokenEmbedder(*files, dropout=0)
        assert embedder(IDS).equal(Elmo(*files, 1, dropout=0)(IDS)["elmo_representations"][0])
        assert embedder.get_output_dim() == 12

    def test_it_projects(self, files: tuple[str, str]) -> None:
        embedder = ElmoTokenEmbedder(*files, dropout=0, projection_dim=5)
        assert embedder(IDS.view(1, 2, 3, 50)).shape == (1, 2, 3, 5)
        assert embedder.get_output_dim() == 5

    def test_without_files_it_is_the_model_that_ships(self) -> None:
        bundled = relmo.load(device="cpu", kinds="bilm")
        embedder = ElmoTokenEmbedder(dropout=0, scalar_mix_parameters=[-9e10, -9e10, 1])
        expected = bundled.embed(SENTENCES, layers="top")
        np.testing.assert_allclose(embedder(IDS)[0], expected[0], atol=1e-5)
        np.testing.assert_allclose(ElmoEmbedder().embed_sentence(SENTENCES[0])[2], expected[0], atol=1e-5)


class Network(nn.Module):
    """A user's own, with ELMo in it."""

    def __init__(self, elmo: nn.Module):
        super().__init__()
        self.elmo = elmo


class TestStateDicts:
    """Tensors by AllenNLP's names."""

    def state(self) -> dict[str, Tensor]:
        begin = f"{saved.NAME}."
        return {f"elmo.{k.removeprefix(begin)}": t for k, t in saved.tagger().items() if k.startswith(begin)}

    def other(self, tmp_path: Path, seed: int = 3) -> Elmo:
        (tmp_path / "other.th").write_bytes(saved.th(saved.tagger(seed=seed)))
        return Elmo(None, None, 1, module=relmo.load(tmp_path / "other.th", device="cpu", kinds="bilm"))

    def test_a_network_loads_them_whole(self, tmp_path: Path) -> None:
        network, state = Network(self.other(tmp_path)), self.state()
        names = list(state)
        assert str(network.load_state_dict(state, strict=True)) == "<All keys matched successfully>"
        assert list(state) == names
        vectors = first(network.eval().elmo(IDS))
        for row, words in enumerate(SENTENCES):
            np.testing.assert_allclose(vectors[row, : len(words)], saved.mixed(words), atol=4e-6)

    def test_its_own_names_load_as_ever(self, tmp_path: Path) -> None:
        one, other = Network(self.other(tmp_path)), Network(self.other(tmp_path, seed=4))
        other.load_state_dict(one.state_dict())
        assert first(one.eval().elmo(IDS)).equal(first(other.eval().elmo(IDS)))

    def test_a_cached_vocabulary_is_computed_anew(self, files: tuple[str, str]) -> None:
        words = ["@@PADDING@@", "First", "sentence", "."]
        network = Network(Elmo(*files, 1, dropout=0, vocab_to_cache=words))
        places = torch.tensor([[1, 2, 3]])
        before = first(network.elmo(IDS[:1], places))
        state = self.state() | {"elmo._elmo_lstm._word_embedding.weight": torch.randn(4, 6)}
        network.load_state_dict(state)
        network.elmo.reset_states()
        found = first(network.elmo(IDS[:1], places))
        np.testing.assert_allclose(found[0], saved.mixed(SENTENCES[0]), atol=4e-6)
        assert not found.allclose(before, atol=1e-3)

    def test_what_is_missing_or_of_another_size_is_said(self, tmp_path: Path) -> None:
        network, state = Network(self.other(tmp_path)), self.state()
        name = "elmo._elmo_lstm._elmo_lstm.backward_layer_1.state_linearity.bias"
        bias = state.pop(name)
        with pytest.raises(RuntimeError, match=f'Missing key.*"{name}"'):
            network.load_state_dict(state)
        assert network.load_state_dict(state, strict=False).missing_keys == [name]
        with pytest.raises(RuntimeError, match=r"\(3,\).*\(40,\)"):
            network.load_state_dict(state | {name: bias[:3]})

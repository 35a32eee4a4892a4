"""ELMo as a module: against the float64 implementation, its state, its gradients, its layer norms, its copies."""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

import relmo
from relmo.errors import SettingError
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.elmo import Elmo, sentence_ids
from relmo.settings.bilm import BiLMModelSettings
from support import original_elmo

OPTIONS = original_elmo.options_of()
WEIGHTS = original_elmo.random_weights(OPTIONS, scale=0.5)
SENTENCES = [["The", "cat", "sat", "."], ["cat"], [], ["The", "The", "Straße"]]
SIZE = 2 * OPTIONS["lstm"]["projection_dim"]


@pytest.fixture
def network(tmp_path: Path) -> BiLMNetwork:
    (tmp_path / "o.json").write_text(json.dumps(OPTIONS))
    with h5py.File(tmp_path / "w.hdf5", "w") as file:
        for name, array in WEIGHTS.items():
            file[name] = array
    return relmo.load(tmp_path, device="cpu").network  # type: ignore[union-attr, return-value]


def expected(sentence: list[str], state: Any = None) -> np.ndarray:
    """The even mix."""
    return original_elmo.layers(sentence, OPTIONS, WEIGHTS, state).mean(axis=0)


def test_the_even_mix_is_the_average_of_the_layers_and_zero_past_the_end(network: BiLMNetwork) -> None:
    elmo = relmo.Elmo(network).eval()
    (vectors,), mask = elmo(elmo.ids(SENTENCES))
    assert vectors.shape == (4, 4, SIZE)
    assert mask.dtype == torch.bool
    for row, sentence in enumerate(SENTENCES):
        assert mask[row].tolist() == [True] * len(sentence) + [False] * (4 - len(sentence))
        np.testing.assert_allclose(
            vectors[row, : len(sentence)].detach(), expected(sentence).reshape(-1, SIZE), atol=2e-6
        )
        assert not vectors[row, len(sentence) :].any()


def test_each_place_has_its_own_mix(network: BiLMNetwork) -> None:
    elmo = Elmo(network, mixes=2).eval()
    with torch.no_grad():
        elmo.scalar_mixes[1].weights.copy_(torch.tensor([-50.0, -50.0, 50.0]))
        elmo.scalar_mixes[1].gamma.fill_(2)
    first, second = elmo(elmo.ids([SENTENCES[0]])).representations
    layers = original_elmo.layers(SENTENCES[0], OPTIONS, WEIGHTS)
    np.testing.assert_allclose(first[0].detach(), layers.mean(axis=0), atol=2e-6)
    np.testing.assert_allclose(second[0].detach(), 2 * layers[2], atol=4e-6)
    assert elmo.l2().item() == pytest.approx(7500)


def test_with_boundaries_their_vectors_are_there(network: BiLMNetwork) -> None:
    elmo = Elmo(network, keep_boundaries=True).eval()
    (vectors,), mask = elmo(elmo.ids(SENTENCES))
    assert vectors.shape == (4, 6, SIZE)
    for row, sentence in enumerate(SENTENCES):
        full = original_elmo.with_boundaries(sentence, OPTIONS, WEIGHTS).mean(axis=0)
        assert mask[row].sum() == len(full)
        np.testing.assert_allclose(vectors[row, : len(full)].detach(), full, atol=2e-6)
        assert not vectors[row, len(full) :].any()


def test_documents_of_sentences_keep_their_shape(network: BiLMNetwork) -> None:
    elmo = Elmo(network).eval()
    ids = elmo.ids(SENTENCES)
    (flat,), mask = elmo(ids)
    (deep,), deep_mask = elmo(ids.view(2, 2, *ids.shape[1:]))
    assert deep.equal(flat.view(2, 2, 4, SIZE))
    assert deep_mask.equal(mask.view(2, 2, 4))


def test_no_words_at_all(network: BiLMNetwork) -> None:
    elmo = Elmo(network).eval()
    (vectors,), mask = elmo(elmo.ids([[], []]))
    assert vectors.shape == (2, 0, SIZE)
    assert mask.shape == (2, 0)
    assert elmo.ids([]).shape == (0, 0, 12)


def test_distinct_words_are_encoded_once(network: BiLMNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    elmo, seen = Elmo(network).eval(), []
    forward = elmo.network.encoder.forward
    monkeypatch.setattr(elmo.network.encoder, "forward", lambda ids: (seen.append(ids.shape), forward(ids))[1])
    elmo(elmo.ids([["a", "b", "a"], ["b", "b"]]))
    ((rows, columns),) = seen
    assert rows == 4  # a, b, <S>, </S>
    assert columns == 3 + 3  # a letter and its two marks, and as many columns of padding as the widest filter sees


class TestState:
    """What a sentence starts from."""

    def test_reset_gives_the_same_every_time(self, network: BiLMNetwork) -> None:
        elmo = Elmo(network).eval()
        ids = elmo.ids(SENTENCES)
        assert elmo(ids).representations[0].equal(elmo(ids).representations[0])

    def test_carry_goes_on_row_by_row_through_smaller_and_larger_batches(self, network: BiLMNetwork) -> None:
        elmo = Elmo(network, state="carry").eval()
        batches = [SENTENCES[:2], SENTENCES[:1], SENTENCES, SENTENCES[1:3], SENTENCES]
        for _ in range(2):
            states: list[dict] = [{} for _ in range(4)]
            for batch in batches:
                (vectors,), _ = elmo(elmo.ids(batch))
                for row, sentence in enumerate(batch):
                    wanted = expected(sentence, states[row]).reshape(-1, SIZE)
                    np.testing.assert_allclose(vectors[row, : len(sentence)].detach(), wanted, atol=4e-6)
            elmo.reset_states()


class TestLayerNorm:
    """The original's statistics leave <S> and </S> out, AllenNLP's take them in."""

    @pytest.mark.parametrize("boundaries", [False, True])
    def test_both_kinds_of_statistics(self, network: BiLMNetwork, boundaries: bool) -> None:
        elmo = Elmo(network, layer_norm=True, norm_boundaries=boundaries).eval()
        (vectors,), _ = elmo(elmo.ids(SENTENCES))
        full = [original_elmo.with_boundaries(sentence, OPTIONS, WEIGHTS) for sentence in SENTENCES]
        counted = np.concatenate(full if boundaries else [layers[:, 1:-1] for layers in full], axis=1)
        mean, variance = counted.mean(axis=(1, 2)), counted.var(axis=(1, 2))
        for row, layers in enumerate(full):
            normal = (layers - mean[:, None, None]) / np.sqrt(variance + 1e-12)[:, None, None]
            words = normal.mean(axis=0)[1:-1]
            np.testing.assert_allclose(vectors[row, : len(words)].detach(), words, atol=1e-5)
            assert not vectors[row, len(words) :].any()

    def test_they_differ(self, network: BiLMNetwork) -> None:
        one, other = (Elmo(network, layer_norm=True, norm_boundaries=both).eval() for both in (False, True))
        ids = one.ids(SENTENCES)
        assert (one(ids).representations[0] - other(ids).representations[0]).abs().max() > 1e-3


class TestLearning:
    """What is trained, and how."""

    def test_a_frozen_model_trains_its_mix_alone(self, network: BiLMNetwork) -> None:
        elmo = Elmo(network).train()
        assert not elmo.network.training
        elmo(elmo.ids(SENTENCES)).representations[0].sum().backward()
        names = {name for name, p in elmo.named_parameters() if p.requires_grad}
        assert names == {"scalar_mix_0.weights", "scalar_mix_0.gamma"}
        assert all(p.grad is None for p in elmo.network.parameters())
        assert elmo.scalar_mix_0.weights.grad.abs().sum() > 0

    @pytest.mark.parametrize("trainable", [False, True])
    def test_the_model_keeps_nothing_for_gradients_that_no_one_wants(
        self, network: BiLMNetwork, trainable: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elmo, seen = Elmo(network, trainable=trainable), []
        forward = elmo.network.lstm.forward
        monkeypatch.setattr(
            elmo.network.lstm, "forward", lambda *given: (seen.append(torch.is_grad_enabled()), forward(*given))[1]
        )
        ids = elmo.ids(SENTENCES)
        elmo(ids)
        with torch.no_grad():
            elmo(ids)
        assert seen == [trainable, False]

    def test_dropout_falls_on_the_mix_while_training(self, network: BiLMNetwork) -> None:
        torch.manual_seed(0)
        elmo = Elmo(network, dropout=0.5)
        ids = elmo.ids([SENTENCES[0]])
        kept = elmo.eval()(ids).representations[0]
        dropped = elmo.train()(ids).representations[0]
        zero = dropped == 0
        assert 0.2 < zero.float().mean() < 0.8
        torch.testing.assert_close(dropped[~zero], 2 * kept[~zero])

    def test_a_trainable_model_uses_its_own_dropout_while_training(self, network: BiLMNetwork) -> None:
        elmo = Elmo(network, dropout=0, trainable=True)
        ids = elmo.ids([SENTENCES[0]])
        assert elmo.eval()(ids).representations[0].equal(elmo(ids).representations[0])
        assert not elmo.train()(ids).representations[0].equal(elmo(ids).representations[0])

    @pytest.mark.parametrize("state", ["reset", "carry"])
    def test_gradients_reach_every_weight_and_are_those_of_the_definition(
        self, network: BiLMNetwork, state: Any
    ) -> None:
        found = []
        for fast in (True, False):
            elmo = Elmo(copy.deepcopy(network).double(), trainable=True, state=state).double().eval()
            elmo.network.lstm.fast = fast
            ids = elmo.ids(SENTENCES)
            elmo(ids)
            torch.manual_seed(1)
            (vectors,), _ = elmo(ids)
            (vectors * torch.randn_like(vectors)).sum().backward()
            found.append({name: p.grad for name, p in elmo.named_parameters()})
        assert all(gradient is not None and gradient.any() for gradient in found[0].values())
        for name, gradient in found[0].items():
            torch.testing.assert_close(gradient, found[1][name], msg=name)

    def test_gradients_are_right_by_finite_differences(self, network: BiLMNetwork) -> None:
        elmo = Elmo(network.double(), trainable=True).double().eval()
        ids = elmo.ids([["a", "cat"], ["b"]])
        weight = elmo.network.lstm.stack[0].weight_hh
        elmo(ids).representations[0].square().sum().backward()
        assert weight.grad is not None
        with torch.no_grad():
            for place in ((0, 3, 2), (1, 20, 5)):
                sums = []
                for step in (1e-6, -2e-6):
                    weight[place] += step
                    sums.append(elmo(ids).representations[0].square().sum().item())
                weight[place] += 1e-6
                assert (sums[0] - sums[1]) / 2e-6 == pytest.approx(weight.grad[place].item(), rel=1e-5)

    def test_it_learns_inside_another_network(self, network: BiLMNetwork) -> None:
        torch.manual_seed(0)
        elmo = Elmo(network, dropout=0, trainable=True).train()
        head = nn.Linear(elmo.size, 2)
        optimizer = torch.optim.Adam([*elmo.parameters(), *head.parameters()], lr=0.01)
        ids, labels = elmo.ids([["cat", "a"], ["cat", "b"]]), torch.tensor([[0, 0], [1, 1]])
        for _ in range(60):
            loss = nn.functional.cross_entropy(head(elmo(ids).representations[0]).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.1

    def test_fixed_weights_stay(self, network: BiLMNetwork) -> None:
        elmo = Elmo(network, fixed=[-1e9, 0.0, -1e9]).eval()
        assert not any(p.requires_grad for p in elmo.parameters())
        (vectors,), _ = elmo(elmo.ids([SENTENCES[0]]))
        np.testing.assert_allclose(vectors[0], original_elmo.layers(SENTENCES[0], OPTIONS, WEIGHTS)[1], atol=2e-6)
        with pytest.raises(SettingError, match="fixed"):
            Elmo(network, fixed=[1, 2])


class TestCopies:
    """State dicts, copies and replicas."""

    def test_a_state_dict_round_trip(self, network: BiLMNetwork) -> None:
        elmo = Elmo(network, mixes=2).eval()
        with torch.no_grad():
            elmo.scalar_mix_1.weights.normal_()
        saved = save(elmo.state_dict())
        fresh = Elmo(BiLMNetwork(settings(), vocab_size=None), mixes=2).eval()
        fresh.load_state_dict(load(saved))
        ids = elmo.ids(SENTENCES)
        for one, other in zip(elmo(ids).representations, fresh(ids).representations, strict=True):
            assert one.equal(other)

    def test_the_mix_of_an_old_state_dict_is_loaded(self, network: BiLMNetwork) -> None:
        old = {f"scalar_mix_{m}.scalar_parameters.{k}": torch.tensor([m + k / 10]) for m in range(2) for k in range(3)}
        old |= {f"scalar_mix_{m}.gamma": torch.tensor([m + 5.0]) for m in range(2)} | {"_elmo_lstm.x": torch.zeros(1)}
        elmo = Elmo(network, mixes=2)
        result = elmo.load_state_dict(old, strict=False)
        assert result.unexpected_keys == ["_elmo_lstm.x"]
        assert all(name.startswith("network.") for name in result.missing_keys)
        torch.testing.assert_close(elmo.scalar_mix_1.weights.detach(), torch.tensor([1.0, 1.1, 1.2]))
        assert elmo.scalar_mix_1.gamma.item() == 6

    def test_a_deep_copy_computes_the_same_and_is_independent(self, network: BiLMNetwork) -> None:
        elmo = Elmo(network, state="carry", trainable=True).eval()
        ids = elmo.ids(SENTENCES)
        elmo(ids)
        twin = copy.deepcopy(elmo)
        assert twin(ids).representations[0].equal(elmo(ids).representations[0])
        with torch.no_grad():
            twin.network.lstm.stack[0].bias += 1
        elmo.reset_states(), twin.reset_states()
        assert not twin(ids).representations[0].equal(elmo(ids).representations[0])

    @pytest.mark.parametrize("trainable", [False, True])
    def test_replicas_as_data_parallel_makes_them(
        self, network: BiLMNetwork, trainable: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broadcast(tensors: list[Tensor], devices: list[int], detach: bool = False) -> list[list[Tensor]]:
            return [[tensor.detach() if detach else tensor * 1 for tensor in tensors] for _ in devices]

        replicate = sys.modules["torch.nn.parallel.replicate"]
        monkeypatch.setattr(replicate, "_broadcast_coalesced_reshape", broadcast)
        elmo = Elmo(network, mixes=2, trainable=trainable, layer_norm=False).eval()
        ids = elmo.ids(SENTENCES)
        replicas = replicate.replicate(elmo, [0, 0])
        halves = [replica(part) for replica, part in zip(replicas, ids.chunk(2), strict=True)]
        whole = elmo(ids)
        for k in range(2):
            joined = torch.cat([half.representations[k] for half in halves])
            torch.testing.assert_close(joined, whole.representations[k])
        sum(half.representations[0].sum() for half in halves).backward()
        assert elmo.scalar_mix_0.weights.grad.abs().sum() > 0
        reached = [p.grad is not None for p in elmo.network.parameters()]
        assert all(reached) if trainable else not any(reached)

    def test_the_output_layer_stays_outside(self) -> None:
        network = BiLMNetwork(settings(), vocab_size=9)
        elmo = Elmo(network, trainable=True)
        assert network.softmax is not None
        assert not any("softmax" in name for name in elmo.state_dict())
        elmo(elmo.ids(SENTENCES)).representations[0].sum().backward()
        assert all(p.grad is not None for p in elmo.parameters())  # as DistributedDataParallel insists on


def settings(**changes: Any) -> BiLMModelSettings:
    values: dict[str, Any] = {
        "char_dim": 4,
        "filters": ("1x3", "2x4", "3x5"),
        "max_characters": 12,
        "hidden": 10,
        "projection": 6,
    }
    return BiLMModelSettings(**(values | changes))


class TestIds:
    """What is given in."""

    @pytest.mark.parametrize("columns", [50, 13, 12, 11, 6])
    def test_ids_spelled_for_another_number_of_columns_are_laid_anew(self, network: BiLMNetwork, columns: int) -> None:
        words = ["a", "eightbyt", "ninebytes", "tenletters", "elevenbytes", "a-word-of-many-bytes", "日本語の単語"]
        elmo = Elmo(network).eval()
        cut = [word.encode()[: columns - 2].decode("utf-8", "surrogateescape") for word in words]
        cut = [word.encode("utf-8", "surrogateescape")[: columns - 2] for word in cut]  # bytes that are left
        given = sentence_ids([words], columns)
        wanted = torch.tensor([[258, *word[:10], 259] + [260] * (10 - len(word[:10])) for word in cut]) + 1
        assert elmo(given).representations[0].equal(elmo(wanted.unsqueeze(0)).representations[0])

    def test_words_by_number_have_boundaries_of_their_own(self) -> None:
        torch.manual_seed(0)
        words = BiLMModelSettings(input="word", hidden=8, projection=4)
        network = BiLMNetwork(words, vocab_size=9)
        elmo = Elmo(network, boundaries=(4, 7), keep_boundaries=True).eval()
        (vectors,), mask = elmo(torch.tensor([[3, 9, 1], [5, 0, 0]]))
        assert mask.sum(dim=1).tolist() == [5, 3]
        tokens = network.encoder(torch.tensor([[4, 2, 8, 0, 7]]))
        alone = network(tokens, torch.tensor([5])).layers.mean(dim=0)
        torch.testing.assert_close(vectors[0], alone[0].detach(), atol=1e-6, rtol=0)
        (deep,), _ = elmo(torch.tensor([[[3, 9, 1], [5, 0, 0]]]))
        assert deep.equal(vectors.unsqueeze(0))
        held = SimpleNamespace(network=network, vocabulary=SimpleNamespace(index={"<S>": 4, "</S>": 7}))
        same = Elmo(held, keep_boundaries=True).eval()(torch.tensor([[3, 9, 1], [5, 0, 0]])).representations[0]
        assert same.equal(vectors)
        with pytest.raises(SettingError, match=r"vocabulary.ids\(words\) \+ 1"):
            elmo.ids([["a"]])
        with pytest.raises(SettingError, match=r"word ids \+ 1 .* 1 to 9"):
            elmo(torch.tensor([[10]]))

    def test_ids_that_cannot_be(self, network: BiLMNetwork) -> None:
        elmo = Elmo(network).eval()
        ids = elmo.ids(SENTENCES)
        wrong: dict[str, Callable[[Tensor], Tensor]] = {
            r"from 1 to 261, .* to 262": lambda ids: ids + 1 * (ids > 0),
            r"from 0 to": lambda ids: ids * (torch.arange(12) < 5),
            r"padding": lambda ids: ids.flip(1),
            r"\(4, 4\)": lambda ids: ids[:, :, 0],
        }
        for line, change in wrong.items():
            with pytest.raises(SettingError, match=line):
                elmo(change(ids))

    def test_options_that_cannot_be(self, network: BiLMNetwork) -> None:
        with pytest.raises(SettingError, match="warm"):
            Elmo(network, state="warm")  # type: ignore[arg-type]
        with pytest.raises(SettingError, match="norm_boundaries"):
            Elmo(network, norm_boundaries=True)


def test_a_model_as_load_gives_it_is_taken(tmp_path: Path, network: BiLMNetwork) -> None:
    model = relmo.load(tmp_path, device="cpu")
    elmo = relmo.Elmo(model).eval()
    ids = elmo.ids(SENTENCES)
    assert elmo(ids).representations[0].equal(Elmo(network).eval()(ids).representations[0])


def test_a_model_embeds_without_dropout_while_a_module_over_it_trains(tmp_path: Path, network: BiLMNetwork) -> None:
    model = relmo.load(tmp_path, device="cpu")
    assert isinstance(model, relmo.BiLM)
    before = model.embed(SENTENCES)
    Elmo(model, trainable=True).train()
    for one, other in zip(before, model.embed(SENTENCES), strict=True):
        assert (one == other).all()

"""Old scripts with one import changed, and AllenNLP's numbers."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import relmo
from relmo.compat.allennlp import Elmo, ElmoEmbedder, ScalarMix, batch_to_ids
from relmo.errors import CorpusError, ModelError, SettingError
from support import original_elmo

Data = Callable[[str], Path]
SENTENCES = [["First", "sentence", "."], ["Another", "."], [], ["Straße", "First", "."]]


class Model:
    """Original files with what is in them."""

    def __init__(self, folder: Path, **changes: Any):
        self.options_file, self.weight_file = str(folder / "options.json"), str(folder / "weights.hdf5")
        self.options = original_elmo.options_of(**changes)
        self.weights = original_elmo.random_weights(self.options, scale=0.5)
        (folder / "options.json").write_text(json.dumps(self.options))
        with h5py.File(folder / "weights.hdf5", "w") as file:
            for name, array in self.weights.items():
                file[name] = array

    @property
    def files(self) -> tuple[str, str]:
        return self.options_file, self.weight_file

    def layers(self, words: list[str], state: Any = None) -> np.ndarray:
        return original_elmo.layers(words, self.options, self.weights, state)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path, max_characters_per_token=50)


SCRIPT = """
from relmo.compat.allennlp import Elmo, batch_to_ids

options_file = OPTIONS
weight_file = WEIGHTS

# Compute two different representations for each token.
elmo = Elmo(options_file, weight_file, 2, dropout=0)

sentences = [['First', 'sentence', '.'], ['Another', '.']]
character_ids = batch_to_ids(sentences)

embeddings = elmo(character_ids)
"""

INTERACTIVE = """
from relmo.compat.allennlp import ElmoEmbedder
elmo = ElmoEmbedder(options_file=OPTIONS, weight_file=WEIGHTS)
tokens = ["I", "ate", "an", "apple", "for", "breakfast"]
vectors = elmo.embed_sentence(tokens)
assert len(vectors) == 3  # one for each layer
assert len(vectors[0]) == len(tokens)
vectors2 = elmo.embed_sentence(["I", "ate", "a", "carrot", "for", "breakfast"])
"""


def run(script: str, model: Model) -> dict[str, Any]:
    names: dict[str, Any] = {"OPTIONS": model.options_file, "WEIGHTS": model.weight_file}
    exec(script, names)  # noqa: S102
    return names


def test_the_script_everyone_began_with(model: Model) -> None:
    names = run(SCRIPT, model)
    assert names["character_ids"].shape == (2, 3, 50)
    embeddings = names["embeddings"]
    assert len(embeddings["elmo_representations"]) == 2
    assert embeddings["mask"].tolist() == [[True, True, True], [True, True, False]]
    for row, sentence in enumerate(names["sentences"]):
        for vectors in embeddings["elmo_representations"]:
            expected = model.layers(sentence).mean(axis=0)
            np.testing.assert_allclose(vectors[row, : len(sentence)].detach(), expected, atol=2e-6)
            assert not vectors[row, len(sentence) :].any()


def test_the_interactive_script(model: Model) -> None:
    names, state = run(INTERACTIVE, model), {}
    np.testing.assert_allclose(names["vectors"], model.layers(names["tokens"], state), atol=2e-6)
    carrot = ["I", "ate", "a", "carrot", "for", "breakfast"]
    np.testing.assert_allclose(names["vectors2"], model.layers(carrot, state), atol=2e-6)
    names["elmo"].reset_states()
    np.testing.assert_allclose(names["elmo"].embed_sentence(carrot), model.layers(carrot), atol=2e-6)


def test_the_published_vectors(data: Data) -> None:
    folder = data("parity/options.json").parent
    files = folder / "options.json", folder / "lm_weights.hdf5"
    rows = [[line.split() for line in row] for row in json.loads((folder / "lm_embeddings_sentences.json").read_text())]
    embedder, elmo = ElmoEmbedder(*files), Elmo(*files, 1, dropout=0)
    with h5py.File(folder / "all_layers_tf.hdf5") as file:
        for i in range(10):
            batch = [rows[k][i] for k in range(3)]
            mixed = elmo(batch_to_ids(batch))["elmo_representations"][0]
            for k, vectors in enumerate(embedder.embed_batch(batch)):
                expected = file[f"{i}/{k}"][()]
                assert np.abs(vectors - expected).max() < 2e-6
                assert np.abs(mixed[k, : len(batch[k])].detach().numpy() - expected.mean(axis=0)).max() < 2e-6


def test_batch_to_ids_spells_words_in_50_columns() -> None:
    ids = batch_to_ids(SENTENCES)
    assert ids.dtype == torch.int64
    assert ids.shape == (4, 3, 50)
    for row, sentence in enumerate(SENTENCES):
        spelled = [[i + 1 for i in original_elmo.spell(word, 50)] for word in sentence]
        assert ids[row].tolist() == spelled + [[0] * 50] * (3 - len(sentence))


class TestModelsThatWereRefused:
    """What AllenNLP could not load, or loaded and failed on."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"use_skip_connections": False},
            {"n_characters": 261},
            {"max_characters_per_token": 12},
            {"max_characters_per_token": 70},
            {"n_highway": None},
            {"cell_clip": None, "proj_clip": None},
            {"filters": [[1, 2], [2, 4]]},
        ],
        ids=str,
    )
    def test_they_are_read(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        model = Model(tmp_path, **{"max_characters_per_token": 50} | changes)
        elmo = Elmo(*model.files, 1, dropout=0)
        sentence = ["a", "word-of-more-than-ten-bytes", "."]
        vectors = elmo(batch_to_ids([sentence]))["elmo_representations"][0][0]
        np.testing.assert_allclose(vectors.detach(), model.layers(sentence).mean(axis=0), atol=4e-6)

    def test_a_path_that_is_not_there(self, model: Model) -> None:
        with pytest.raises(ModelError, match="download"):
            Elmo("https://example.org/options.json", model.weight_file, 1)
        with pytest.raises(SettingError, match="options_file"):
            ElmoEmbedder(model.options_file)
        with pytest.raises(SettingError, match="options_file"):
            Elmo(None, None, 1)


class TestElmo:
    """The module."""

    def test_states_go_on_from_batch_to_batch(self, model: Model) -> None:
        elmo, states = Elmo(*model.files, 1, dropout=0), [{} for _ in SENTENCES]
        for batch in (SENTENCES, SENTENCES[:2], SENTENCES):
            vectors = elmo(batch_to_ids(batch))["elmo_representations"][0].detach()
            for row, sentence in enumerate(batch):
                expected = model.layers(sentence, states[row]).mean(axis=0)
                np.testing.assert_allclose(vectors[row, : len(sentence)], expected.reshape(-1, 12), atol=4e-6)

    def test_the_layer_norm_counts_the_boundaries_in(self, model: Model) -> None:
        elmo = Elmo(*model.files, 1, do_layer_norm=True, dropout=0)
        vectors = elmo(batch_to_ids(SENTENCES))["elmo_representations"][0].detach()
        full = [original_elmo.with_boundaries(sentence, model.options, model.weights) for sentence in SENTENCES]
        counted = np.concatenate(full, axis=1)
        mean, deviation = counted.mean(axis=(1, 2)), counted.std(axis=(1, 2))
        for row, layers in enumerate(full):
            expected = ((layers - mean[:, None, None]) / deviation[:, None, None]).mean(axis=0)[1:-1]
            np.testing.assert_allclose(vectors[row, : len(expected)], expected, atol=1e-5)

    def test_boundaries_can_be_kept(self, model: Model) -> None:
        elmo = Elmo(*model.files, 1, dropout=0, keep_sentence_boundaries=True)
        output = elmo(batch_to_ids(SENTENCES))
        assert output["mask"].sum(dim=1).tolist() == [5, 4, 2, 5]
        full = original_elmo.with_boundaries(SENTENCES[0], model.options, model.weights).mean(axis=0)
        np.testing.assert_allclose(output["elmo_representations"][0][0].detach(), full, atol=2e-6)

    def test_fixed_mix_weights(self, model: Model) -> None:
        elmo = Elmo(*model.files, 1, dropout=0, scalar_mix_parameters=[-9e9, -9e9, 1.0])
        assert not any(p.requires_grad for p in elmo.parameters())
        vectors = elmo(batch_to_ids(SENTENCES))["elmo_representations"][0]
        np.testing.assert_allclose(vectors[0], model.layers(SENTENCES[0])[2], atol=2e-6)

    def test_documents(self, model: Model) -> None:
        elmo = Elmo(*model.files, 1, dropout=0)
        ids = batch_to_ids(SENTENCES)
        flat = elmo(ids)["elmo_representations"][0]
        elmo.reset_states()
        deep = elmo(ids.view(2, 2, 3, 50))
        assert deep["elmo_representations"][0].equal(flat.view(2, 2, 3, 12))
        assert deep["mask"].shape == (2, 2, 3)

    def test_a_loaded_model_in_place_of_files(self, model: Model) -> None:
        loaded = relmo.load(model.files, device="cpu")
        elmo = Elmo(None, None, 1, dropout=0, module=loaded)  # type: ignore[arg-type]
        other = Elmo(*model.files, 1, dropout=0)
        ids = batch_to_ids(SENTENCES)
        assert elmo(ids)["elmo_representations"][0].equal(other(ids)["elmo_representations"][0])
        assert elmo.get_output_dim() == 12
        with pytest.raises(SettingError, match="module"):
            Elmo(*model.files, 1, module=loaded)  # type: ignore[arg-type]

    def test_requires_grad(self, model: Model) -> None:
        for requires_grad in (False, True):
            elmo = Elmo(*model.files, 1, requires_grad=requires_grad)
            elmo(batch_to_ids(SENTENCES))["elmo_representations"][0].sum().backward()
            reached = [p.grad is not None and bool(p.grad.any()) for p in elmo._elmo_lstm.network.parameters()]
            assert all(reached) if requires_grad else not any(reached)
            assert elmo.scalar_mix_0.gamma.grad is not None

    def test_an_old_state_dict_of_the_mixes(self, model: Model) -> None:
        elmo = Elmo(*model.files, 2)
        old = {f"scalar_mix_1.scalar_parameters.{k}": torch.tensor([k / 10]) for k in range(3)}
        old["scalar_mix_1.gamma"] = torch.tensor([3.0])
        assert elmo.load_state_dict(old, strict=False).unexpected_keys == []
        assert [round(p.item(), 4) for p in elmo.scalar_mix_1.scalar_parameters] == [0, 0.1, 0.2]
        assert elmo.scalar_mix_1.gamma.item() == 3


class TestCachedVocabulary:
    """`vocab_to_cache` and `word_inputs`."""

    VOCABULARY = ("@@PADDING@@", "@@UNKNOWN@@", ".", "First", "sentence", "Another", "Straße")

    def places(self, batch: list[list[str]]) -> torch.Tensor:
        return torch.tensor([[*map(self.VOCABULARY.index, row), *[0] * (3 - len(row))] for row in batch])

    @pytest.mark.parametrize("requires_grad", [False, True])
    def test_it_gives_what_the_characters_give(self, model: Model, requires_grad: bool) -> None:
        options: dict[str, Any] = {"dropout": 0, "requires_grad": requires_grad}
        plain, cached = (
            Elmo(*model.files, 1, **options),
            Elmo(*model.files, 1, vocab_to_cache=self.VOCABULARY, **options),
        )
        ids, places = batch_to_ids(SENTENCES), self.places(SENTENCES)
        unused = torch.zeros_like(ids)
        for _ in range(2):
            one, other = plain(ids), cached(unused, places)
            torch.testing.assert_close(
                one["elmo_representations"][0], other["elmo_representations"][0], atol=1e-6, rtol=0
            )
            assert one["mask"].equal(other["mask"])
        deep = cached(unused, places.view(2, 2, 3))["elmo_representations"][0]
        assert deep.shape == (2, 2, 3, 12)

    def test_words_are_encoded_once_for_all(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        elmo = Elmo(*model.files, 1, vocab_to_cache=self.VOCABULARY)
        elmo(batch_to_ids(SENTENCES), self.places(SENTENCES))
        monkeypatch.setattr(elmo._elmo_lstm.network.encoder, "forward", lambda _: pytest.fail("was encoded again"))
        elmo(batch_to_ids(SENTENCES), self.places(SENTENCES))

    def test_a_word_it_does_not_have_goes_through_the_characters(self, model: Model) -> None:
        elmo, plain = (Elmo(*model.files, 1, dropout=0, vocab_to_cache=v) for v in (self.VOCABULARY, None))
        ids, places = batch_to_ids(SENTENCES), self.places(SENTENCES)
        places[0, 0] = len(self.VOCABULARY)
        assert elmo(ids, places)["elmo_representations"][0].equal(plain(ids, places)["elmo_representations"][0])

    def test_gradients_with_it_are_those_without(self, model: Model) -> None:
        found = []
        for vocabulary in (None, self.VOCABULARY):
            elmo = Elmo(*model.files, 1, requires_grad=True, dropout=0, vocab_to_cache=vocabulary)
            optimizer = torch.optim.SGD(elmo.parameters(), lr=0.01)
            for _ in range(2):  # the vectors of the second step are those of the changed weights
                optimizer.zero_grad()
                output = elmo(batch_to_ids(SENTENCES), self.places(SENTENCES))
                output["elmo_representations"][0].square().mean().backward()
                optimizer.step()
            found.append({name: p.grad for name, p in elmo.named_parameters()})
        assert all(gradient is not None and gradient.any() for gradient in found[1].values())
        for name, gradient in found[1].items():
            torch.testing.assert_close(gradient, found[0][name], msg=name, atol=1e-6, rtol=1e-4)

    def test_it_follows_weights_that_are_loaded_later_and_stays_out_of_state_dicts(self, model: Model) -> None:
        elmo = Elmo(*model.files, 1, dropout=0, vocab_to_cache=self.VOCABULARY)
        ids, places = batch_to_ids(SENTENCES), self.places(SENTENCES)
        elmo(ids, places)
        changed = {name: tensor * 0.5 for name, tensor in copy.deepcopy(elmo).state_dict().items()}
        assert not any("cached" in name for name in changed)
        plain = Elmo(*model.files, 1, dropout=0)
        for module in (elmo, plain):
            module.load_state_dict(changed)
            module.reset_states()
        torch.testing.assert_close(
            elmo(ids, places)["elmo_representations"][0], plain(ids)["elmo_representations"][0], atol=1e-6, rtol=0
        )


class TestScalarMix:
    """The mixture under its old name."""

    def test_it_mixes_a_list(self) -> None:
        torch.manual_seed(0)
        tensors = [torch.randn(2, 3, 4) for _ in range(3)]
        mix = ScalarMix(3, initial_scalar_parameters=[1.0, 2.0, 3.0])
        shares = torch.softmax(torch.tensor([1.0, 2.0, 3.0]), 0)
        expected = sum(share * tensor for share, tensor in zip(shares, tensors, strict=True))
        torch.testing.assert_close(mix(tensors), expected)
        assert all(p.requires_grad for p in mix.parameters())
        assert not any(p.requires_grad for p in ScalarMix(3, trainable=False).parameters())

    def test_its_layer_norm_takes_a_mask_of_numbers(self) -> None:
        torch.manual_seed(0)
        tensors, mask = [torch.randn(2, 3, 4) for _ in range(2)], torch.tensor([[1, 1, 1], [1, 0, 0]])
        real = [tensor[mask == 1] for tensor in tensors]
        expected = sum((t - r.mean()) / r.std(correction=0) for t, r in zip(tensors, real, strict=True)) / 2
        torch.testing.assert_close(ScalarMix(2, do_layer_norm=True)(tensors, mask), expected)
        with pytest.raises(SettingError, match="mask"):
            ScalarMix(2, do_layer_norm=True)(tensors)

    def test_what_does_not_fit(self) -> None:
        with pytest.raises(SettingError, match="2 tensors"):
            ScalarMix(3)([torch.zeros(1)] * 2)
        with pytest.raises(SettingError, match="initial_scalar_parameters"):
            ScalarMix(3, initial_scalar_parameters=[1.0])


class TestEmbedder:
    """Sentences to arrays and files."""

    def test_batches_in_order_with_states_carried(self, model: Model) -> None:
        sentences = [*SENTENCES, ["a"], ["b", "c"], []]
        embedder, states = ElmoEmbedder(*model.files), [{} for _ in range(3)]
        found = list(embedder.embed_sentences(iter(sentences), batch_size=3))
        assert len(found) == len(sentences)
        for i, (vectors, sentence) in enumerate(zip(found, sentences, strict=True)):
            assert vectors.shape == (3, len(sentence), 12)
            assert vectors.dtype == np.float32
            np.testing.assert_allclose(vectors, model.layers(sentence, states[i % 3]), atol=4e-6)
        tensor, mask = embedder.batch_to_embeddings(SENTENCES)
        assert tensor.shape == (4, 3, 3, 12)
        assert mask.shape == (4, 3)
        assert embedder.embed_batch([]) == []

    LINES = ("First sentence .", "", "Another one", "First sentence .", "either / or")

    @pytest.mark.parametrize("kind", ["all", "top", "average"])
    def test_a_file_in_the_old_layout(self, model: Model, tmp_path: Path, kind: str) -> None:
        text = tmp_path / "in.txt"
        text.write_text("\n".join(self.LINES) + "\n", encoding="utf-8")
        with text.open(encoding="utf-8") as file:
            ElmoEmbedder(*model.files).embed_file(file, tmp_path / "out.h5", kind, batch_size=2)
        expected = list(ElmoEmbedder(*model.files).embed_sentences([line.split() for line in self.LINES], 2))
        with h5py.File(tmp_path / "out.h5") as out:
            assert set(out) == {"0", "1", "2", "3", "4", "sentence_to_index"}
            index = json.loads(out["sentence_to_index"][0])
            assert index == {"First sentence .": "3", "": "1", "Another one": "2", "either / or": "4"}
            for i, vectors in enumerate(expected):
                wanted = {"all": vectors, "top": vectors[-1], "average": vectors.mean(axis=0)}[kind]
                assert out[str(i)].dtype == np.float32
                assert (out[str(i)][()] == wanted).all()
                assert out[str(i)].shape == wanted.shape

    def test_sentences_as_keys(self, model: Model, tmp_path: Path) -> None:
        (tmp_path / "in.txt").write_text("\n".join(self.LINES), encoding="utf-8")
        with (tmp_path / "in.txt").open() as file:
            ElmoEmbedder(*model.files).embed_file(
                file, str(tmp_path / "out.h5"), use_sentence_keys=True, forget_sentences=True
            )
        with h5py.File(tmp_path / "out.h5") as out:
            assert out["First sentence ."].shape == (3, 3, 12)
            assert out["either / or"].shape == (3, 3, 12)
            assert "sentence_to_index" not in out

    @pytest.mark.parametrize("lines", [["a/b", "a"], ["a", "a/b"], ["sentence_to_index"]], ids=str)
    def test_keys_that_cannot_be_are_one_line_and_leave_no_file(
        self, model: Model, tmp_path: Path, lines: list[str]
    ) -> None:
        with pytest.raises(CorpusError, match=r"line:\d: .*use_sentence_keys"):
            ElmoEmbedder(*model.files).embed_file(iter(lines), tmp_path / "out.h5", use_sentence_keys=True)  # type: ignore[arg-type]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["options.json", "weights.hdf5"]

    def test_options_that_cannot_be(self, model: Model, tmp_path: Path) -> None:
        embedder = ElmoEmbedder(*model.files)
        with pytest.raises(SettingError, match="output_format"):
            embedder.embed_file(iter([]), tmp_path / "o", "mean")  # type: ignore[arg-type]
        with pytest.raises(SettingError, match="batch_size"):
            list(embedder.embed_sentences([["a"]], batch_size=0))

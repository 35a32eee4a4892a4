"""A model comes back from its folder as it was; a damaged folder says so in one line, before memory is taken."""

import json
import os
import resource
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relmo
from relmo.disk.files import sha256
from relmo.disk.outputs import atomic
from relmo.errors import ModelError, RelmoError, StorageError, VocabularyError
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.ngram import NGramLM
from relmo.settings.lm import LanguageModelSettings, LMSettings
from relmo.store.folder import (
    read_config,
    read_tensors,
    text_digests,
    write_json,
    write_tensors,
)
from relmo.store.installed import bundled_models
from relmo.store.references import find_installed
from relmo.text.vocabulary import SPECIALS, Vocabulary

LETTERS = Vocabulary([*SPECIALS, "\n", " ", *"abcdefghijklmnopqrstuvwxyz"])
TEXT = "the quick brown fox jumps over the lazy dog\nand the dog sleeps"

MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"cell": "lstm", "layers": 2, "hidden": 12, "embedding": 8},
    "projected": {"cell": "lstm", "hidden": 12, "projection": 5},
    "gru": {"cell": "gru", "hidden": 12, "layers": 2, "residual": True},
    "elman": {"cell": "elman", "hidden": 12, "nonlinearity": "relu"},
    "feedforward": {"cell": "feedforward", "hidden": 12, "embedding": 8, "order": 4},
    "ngram": {"cell": "ngram", "order": 3},
    "tied": {"cell": "lstm", "hidden": 12, "tied": True},
    "tied, of another size": {"cell": "gru", "hidden": 12, "embedding": 8, "tied": True},
    "sampled": {"cell": "lstm", "hidden": 12, "softmax": "sampled", "samples": 5},
    "tied and sampled": {"cell": "lstm", "hidden": 12, "tied": True, "softmax": "sampled", "samples": 5},
    "adaptive": {"cell": "lstm", "hidden": 16, "softmax": "adaptive", "cutoffs": (5, 10)},
    "adaptive, its own cutoffs": {"cell": "gru", "hidden": 16, "softmax": "adaptive"},
    "dropouts": {"cell": "lstm", "hidden": 12, "dropout": 0.5, "weight_drop": 0.5, "word_dropout": 0.5},
}


def make(name: str = "lstm") -> LanguageModel:
    torch.manual_seed(3)
    chosen = LanguageModelSettings(**MODELS[name])
    network = make_language_model(chosen, len(LETTERS))
    if isinstance(network, NGramLM):
        network = NGramLM.fit(LETTERS.ids(TEXT), vocab_size=len(LETTERS), order=chosen.order)
    return LanguageModel(network, LETTERS, LMSettings(model=chosen))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edits config.json."""
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))


def one_line(folder: Path, kind: type[RelmoError] = ModelError) -> str:
    """The message of the error that loading the folder gives."""
    with pytest.raises(kind) as caught:
        relmo.load(folder, device="cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_gives_the_same_numbers_after_loading(name: str, tmp_path: Path) -> None:
    model = make(name)
    model.save_pretrained(tmp_path / "model", results={"valid_perplexity": 3.5})
    loaded = relmo.load(tmp_path / "model", device="cpu")
    assert isinstance(loaded, LanguageModel)
    assert loaded.settings == model.settings
    assert loaded.vocabulary.symbols == model.vocabulary.symbols
    assert not loaded.network.training
    assert loaded.perplexity(TEXT) == model.perplexity(TEXT)
    assert loaded.generate("the ", limit=30, seed=1) == model.generate("the ", limit=30, seed=1)
    own, back = model.network.state_dict(), loaded.network.state_dict()
    assert own.keys() == back.keys()
    assert all(torch.equal(own[key], back[key]) and own[key].dtype == back[key].dtype for key in own)


def test_a_tied_weight_is_one_tensor_in_the_file_and_one_after_loading(tmp_path: Path) -> None:
    make("tied").save_pretrained(tmp_path / "model")
    tensors, _ = read_tensors(tmp_path / "model" / "model.safetensors")
    assert sum(tensor.shape == (len(LETTERS), 12) for tensor in tensors.values()) == 1
    network = LanguageModel.from_pretrained(tmp_path / "model", device="cpu").network
    assert network.softmax.weight is network.encoder.embedding.weight  # type: ignore[union-attr]


def test_a_folder_holds_what_it_says_it_holds(tmp_path: Path) -> None:
    make().save_pretrained(tmp_path / "model", results={"valid_perplexity": 3.5})
    names = {"README.md", "config.json", "model.safetensors", "settings.toml", "vocabulary.txt"}
    assert {path.name for path in (tmp_path / "model").iterdir()} == names
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["format_version"], config["kind"], config["vocab_size"]) == (1, "lm", len(LETTERS))
    assert config["settings"]["model"]["hidden"] == 12
    assert config["results"] == {"valid_perplexity": 3.5}
    assert "3.5" in (tmp_path / "model" / "README.md").read_text()


def test_whoever_may_read_the_config_may_read_the_weights(folder: Path) -> None:
    assert len({stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}) == 1


def test_saving_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    make().save_pretrained(tmp_path / "again" / "model")
    for path in folder.iterdir():
        assert sha256(path) == sha256(tmp_path / "again" / "model" / path.name), path.name


def test_truncated_weights_are_refused_wherever_they_end(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    for end in (0, 7, 8, 100, 600, len(data) // 2, len(data) - 1):
        (folder / "model.safetensors").write_bytes(data[:end])
        assert "damaged" in one_line(folder)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_flipped_bit_of_the_weights_is_an_error_or_changes_nothing(folder: Path, data: st.DataObject) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) * 8 - 1))
    changed = bytearray(whole)
    changed[place // 8] ^= 1 << place % 8
    path.write_bytes(changed)
    with suppress(ModelError):  # anything else, a crash too, fails the test
        perplexity = LanguageModel.from_pretrained(folder, device="cpu").perplexity(TEXT)
        assert perplexity == make().perplexity(TEXT)  # it was in a part of the header that nobody reads
    path.write_bytes(whole)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocabulary.txt"])
def test_a_missing_file_is_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    assert name in one_line(folder, RelmoError)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    assert "does not exist" in one_line(tmp_path / "nothing")
    assert "is not a model folder" in one_line(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"null", b"\xff\xfe", b'"kind"', b"[" * 100_000, b'{"kind": "lm"}']
)
def test_a_config_that_is_no_config(content: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(content)
    assert "config.json" in one_line(folder)


def test_a_config_of_another_format_or_an_unknown_kind_is_refused(folder: Path) -> None:
    change(folder, lambda config: config.update(format_version=2))
    assert "format version 2" in one_line(folder)
    change(folder, lambda config: config.update(format_version=1, kind="oracle"))
    assert "'oracle'" in one_line(folder)


def test_a_config_too_large_is_not_even_read(folder: Path) -> None:
    with (folder / "config.json").open("rb+") as file:
        file.truncate(1 << 40)
    assert "too large" in one_line(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden": 13},
        {"layers": 3},
        {"layers": 1},
        {"hidden": 10**7},
        {"hidden": 10**7, "layers": 1000},
        {"embedding": 10**7},
        {"cell": "gru"},
        {"cell": "feedforward", "layers": 1, "order": 16, "hidden": 10**7},
        {"cell": "ngram", "layers": 1, "hidden": 512, "embedding": None},
        {"projection": 4},
        {"tied": True},
        {"softmax": "adaptive", "cutoffs": [3]},
        {"softmax": "adaptive", "cutoffs": [3000]},
    ],
    ids=str,
)
def test_a_config_of_another_network_is_refused_before_memory_is_taken(changes: dict[str, Any], folder: Path) -> None:
    change(folder, lambda config: config["settings"]["model"].update(changes))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    one_line(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes


@pytest.mark.parametrize(
    "changes",
    [{"hidden": -1}, {"hidden": 10**30}, {"hidden": "many"}, {"hidden": None}, {"layers": 10**6}, {"hiden": 3}],
    ids=str,
)
def test_a_config_with_settings_that_are_none_is_refused(changes: dict[str, Any], folder: Path) -> None:
    change(folder, lambda config: config["settings"]["model"].update(changes))
    assert "config.json is damaged" in one_line(folder)


@pytest.mark.parametrize("value", [None, 3, "lstm", [], {"model": 3}, {"model": []}], ids=str)
def test_a_config_whose_settings_are_no_settings_is_refused(value: Any, folder: Path) -> None:
    change(folder, lambda config: config.update(settings=value))
    one_line(folder)


@pytest.mark.parametrize(
    "sizes", [None, 3, [1, 2], [1, 2, 3], [-1, 2, 3], [10**12] * 3, [10**30] * 3, ["a"] * 3], ids=str
)
def test_an_ngram_model_whose_tables_are_of_other_sizes_is_refused(sizes: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    make("ngram").save_pretrained(folder)
    change(folder, lambda config: config.update(sizes=sizes))
    one_line(folder)


def older(folder: Path) -> None:
    """The folder as relmo once saved it, without digests of its text files."""
    change(folder, lambda config: config.pop("digests"))


def test_a_folder_without_digests_of_its_text_files_is_loaded(folder: Path) -> None:
    older(folder)
    assert relmo.load(folder, device="cpu").perplexity(TEXT) == make().perplexity(TEXT)  # type: ignore[union-attr]


@pytest.mark.parametrize(("old", "new"), [("a\nb\n", "b\na\n"), ("z\n", "Z\n"), ("z\n", ""), ("z\n", "z\r\n")])
def test_a_vocabulary_that_was_changed_is_refused(old: str, new: str, folder: Path) -> None:
    path = folder / "vocabulary.txt"
    path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))
    assert "vocabulary.txt: is damaged" in one_line(folder)


@pytest.mark.parametrize(
    "digests",
    [None, 3, [], {}, {"vocabulary.txt": None}, {"vocabulary.txt": {}}, {"vocabulary.txt": {"bytes": 68, "sha256": 3}}],
    ids=str,
)
def test_digests_that_are_none_are_refused(digests: Any, folder: Path) -> None:
    change(folder, lambda config: config.update(digests=digests))
    one_line(folder)


@pytest.mark.parametrize("has_digests", [True, False])
def test_a_pipe_in_place_of_a_vocabulary_is_not_waited_for(has_digests: bool, folder: Path) -> None:
    if not has_digests:
        older(folder)
    (folder / "vocabulary.txt").unlink()
    os.mkfifo(folder / "vocabulary.txt")
    assert "vocabulary.txt: is not a regular file" in one_line(folder)


@pytest.mark.parametrize("name", bundled_models())
def test_models_that_ship_have_digests_of_their_text_files(name: str) -> None:
    folder = find_installed(name)
    assert folder is not None
    assert read_config(folder)["digests"] == text_digests(folder)


def test_a_vocabulary_of_another_length_is_refused(folder: Path) -> None:
    older(folder)
    path = folder / "vocabulary.txt"
    whole = path.read_text()
    path.write_text(whole + "ß\n")
    assert f"has {len(LETTERS) + 1} symbols" in one_line(folder)
    path.write_text(whole.replace("z\n", ""))
    assert f"has {len(LETTERS) - 1} symbols" in one_line(folder)
    change(folder, lambda config: config.update(vocab_size=len(LETTERS) - 1))
    assert "does not match config.json" in one_line(folder)


def test_a_vocabulary_with_duplicates_names_both_lines(folder: Path) -> None:
    older(folder)
    path = folder / "vocabulary.txt"
    path.write_text(path.read_text().replace("z\n", "a\n"))
    assert ":30: 'a' is already on line 5" in one_line(folder, VocabularyError)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(number: float, folder: Path) -> None:
    tensors, _ = read_tensors(folder / "model.safetensors")
    tensors["softmax.bias"][1] = number
    write_tensors(folder / "model.safetensors", tensors)
    assert "'softmax.bias' has numbers that are not finite" in one_line(folder)


def test_tensors_and_values_come_back_from_a_file(tmp_path: Path) -> None:
    tensors = {
        "float": torch.randn(3, 4),
        "transposed": torch.randn(3, 4).T,
        "bfloat16": torch.randn(5).to(torch.bfloat16),
        "bytes": torch.arange(9, dtype=torch.uint8),
        "long": torch.tensor(7),
        "empty": torch.zeros(0, 3),
    }
    write_tensors(tmp_path / "t", tensors, {"best": float("inf"), "step": 3})
    found, values = read_tensors(tmp_path / "t")
    assert values == {"best": float("inf"), "step": 3}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_values_that_were_changed_in_the_header_are_noticed(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t", {"x": torch.zeros(3)}, {"step": 3})
    data = (tmp_path / "t").read_bytes()
    for old, new in ((b"3", b"4"), (b"}", b"]"), (b"step", b"stop")):
        assert data.count(b'step\\": 3}') == 1
        (tmp_path / "t").write_bytes(data.replace(b'step\\": 3}', b'step\\": 3}'.replace(old, new)))
        with pytest.raises(ModelError, match="damaged"):
            read_tensors(tmp_path / "t")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    with atomic(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
        assert temporary.parent.parent == path.parent
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("old", [None, "old"])
def test_a_failure_while_writing_leaves_what_was_there_and_nothing_more(old: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    if old:
        path.write_text(old)

    def interrupted() -> None:
        with atomic(path) as temporary:
            temporary.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [p.read_text() for p in tmp_path.iterdir()] == ([old] if old else [])


def test_a_value_that_is_no_json_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "config.json", {"a": np.zeros(1)})
    assert json.loads((tmp_path / "config.json").read_text()) == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be written"):
        write_json(tmp_path / "file" / "config.json", {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        write_json(tmp_path / "folder", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]

"""`relmo.load`: one function for every kind of model."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import relmo
from relmo.disk.files import sha256
from relmo.errors import ModelError, SettingError, WrongKindError
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import SkipgramSettings
from relmo.store.original import write_original
from relmo.text.vocabulary import Vocabulary


def saved(folder: Path) -> Path:
    model = BiLMModelSettings(hidden=8, projection=4, filters=("1x3", "2x3"), char_dim=3)
    BiLM(BiLMNetwork(model, vocab_size=None), BiLMSettings(model=model)).save_pretrained(folder)
    return folder


def test_a_bidirectional_model_without_a_vocabulary_is_loaded_as_what_it_is(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    for source in (folder, str(folder)):
        model = relmo.load(source, device="cpu")
        assert isinstance(model, relmo.BiLM)
        assert model.vocabulary is None
        assert model.network.softmax is None
    assert relmo.load(folder, kinds="bilm").settings.model.hidden == 8


def test_a_bidirectional_model_embeds_in_the_precision_asked_for(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    names = {None: "float32", "float32": "float32", torch.float32: "float32", "bfloat16": "bfloat16"}
    for dtype, precision in (names | {torch.bfloat16: "bfloat16", "int8": "int8", torch.int8: "int8"}).items():
        assert relmo.load(folder, device="cpu", dtype=dtype, kinds="bilm").precision == precision
    with pytest.raises(SettingError, match="dtype float16"):
        relmo.load(folder, dtype="float16")


def test_other_kinds_of_model_know_float32_alone(tmp_path: Path) -> None:
    vocabulary = Vocabulary([*Vocabulary.specials, "a", "b"])
    vectors = np.eye(len(vocabulary), dtype=np.float32)
    WordVectors(vocabulary, vectors, SkipgramSettings()).save_pretrained(tmp_path / "v")
    assert isinstance(relmo.load(tmp_path / "v", dtype="float32"), WordVectors)
    with pytest.raises(SettingError, match=r"dtype int8.*bilm"):
        relmo.load(tmp_path / "v", dtype="int8")


def test_what_is_not_there_is_one_line_that_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    for source, line in {
        tmp_path / "nothing": r"nothing: does not exist; .* original ELMo files",
        "smal": r"smal: .*did you mean small\?",
        "no-such-model": r"no-such-model: does not exist; .*\(small, words, .*, hello, .*, prose, ",
        "./small": r"small: does not exist",
        "./words": r"words: does not exist",
        tmp_path / "file.txt": r"file.txt: is not a model folder .* original ELMo",
        tmp_path / "folder": r"folder: is not a model folder",
        "https://example.org/options.json": r"relmo does not download",
    }.items():
        with pytest.raises(ModelError, match=line):
            relmo.load(source)


def test_models_that_ship_are_loaded_by_their_names_and_one_of_them_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for source in (None, "small", Path("small")):
        model = relmo.load(source, device="cpu")
        assert isinstance(model, BiLM)
        assert model.vocabulary is not None
        assert model.network.layer_count == 3
    words = relmo.load("words")
    assert isinstance(words, WordVectors)
    assert words.matrix.dtype == np.float32
    assert "water" in words
    for name in ("small", "words"):
        (card,) = (Path(relmo.__file__).parent / "data" / name).glob("README.md")
        for path in card.parent.glob("*.safetensors"):
            assert sha256(path) in card.read_text()


def test_the_model_that_ships_is_loaded_in_less_than_a_second_of_computing() -> None:
    relmo.load(device="cpu")
    before = time.process_time()
    relmo.load(device="cpu")
    assert time.process_time() - before < 1


def test_a_model_on_disk_goes_before_one_that_ships_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vectors.h5").write_text("x")  # no model, and not half of one
    (tmp_path / "small").write_text("x")
    assert isinstance(relmo.load("words"), WordVectors)
    assert relmo.load("small", device="cpu", kinds="bilm").settings.model.hidden > 8
    (tmp_path / "small").unlink()
    saved(tmp_path / "small")
    for name in ("small", "./small"):
        assert relmo.load(name, device="cpu", kinds="bilm").settings.model.hidden == 8
    assert relmo.load(device="cpu", kinds="bilm").settings.model.hidden > 8
    write_original(relmo.load("./small", kinds="bilm"), tmp_path / "original")
    shutil.rmtree(tmp_path / "small")
    (tmp_path / "original").rename(tmp_path / "small")
    assert relmo.load("small", device="cpu", kinds="bilm").settings.model.hidden == 8


def test_a_kind_from_a_later_version_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"kind": "oracle"}))
    with pytest.raises(ModelError, match=r"kind 'oracle'.*lm, bilm, skipgram"):
        relmo.load(folder)
    (folder / "config.json").write_text(json.dumps(config | {"kind": "lm"}))
    with pytest.raises(ModelError, match="m"):
        relmo.load(folder)


def test_a_model_of_another_kind_is_named_with_what_is_needed() -> None:
    with pytest.raises(WrongKindError, match=r"^words: is word vectors .* \(bilm\)$"):
        relmo.load("words", kinds="bilm")
    with pytest.raises(WrongKindError, match=r"a language model \(lm\) or a tagger \(tagger\)$"):
        relmo.load(kinds=("lm", "tagger"))


@pytest.mark.slow
def test_importing_relmo_does_not_import_torch_and_every_public_name_is_there() -> None:
    code = "import sys, relmo; assert 'torch' not in sys.modules; [getattr(relmo, name) for name in relmo.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("source", ["https://example.org/model", Path("https://example.org/model")])
def test_the_url_of_a_model_keeps_its_slashes_in_the_message(source: str | Path) -> None:
    with pytest.raises(ModelError, match=r"^https://example.org/model: .*does not download"):
        relmo.load(source)

"""Folders of ELMoForManyLangs: the numbers of the published equations, and what is wrong with a folder in one line."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.cli import main
from relmo.disk.state_dict import read_state_dict
from relmo.errors import ModelError, SettingError
from relmo.networks import bilm as networks
from relmo.runs.train_bilm import train_bilm
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTrainSettings
from support import many_langs

SENTENCES = [["bad", "cab"], ["水", "銀行", "?", "bad"], ["хлоп"], ["deadbeads", "deadbea"], []]


def run(arguments: list[str]) -> None:
    """A command that ends well."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    many_langs.write(tmp_path / "xx.model")
    return tmp_path / "xx.model"


@pytest.fixture(params=[True, False], ids=["with its kernels", "with torch's convolutions"])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many characters the lookup kernel is not taken."""
    if not request.param:
        monkeypatch.setattr(networks, "MAX_TABLE_BYTES", 0)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("words", [5, 0])
@pytest.mark.filterwarnings("ignore:1 word was cut")
def test_vectors_are_those_of_the_published_equations(tmp_path: Path, *, old: bool, words: int) -> None:
    settings = copy.deepcopy(many_langs.SETTINGS)
    settings["token_embedder"]["word_dim"] = words
    many_langs.write(tmp_path / "m", settings, old=old)
    model = relmo.load(tmp_path / "m", kinds="bilm")
    for sentence, own in zip(SENTENCES, model.embed(SENTENCES), strict=True):
        assert own.shape == (3, len(sentence), 12)
        if sentence:
            expected = many_langs.vectors(sentence, settings)
            np.testing.assert_allclose(own, expected, atol=1e-5)
            np.testing.assert_array_equal(model.embed([sentence])[0], own)  # whatever stands beside it


def test_the_marks_stand_the_wrong_way_round_as_published(folder: Path) -> None:
    """With the marks exchanged in the dictionary the vectors are others: the order is not without effect."""
    before = relmo.load(folder, kinds="bilm").embed([["bad"]])[0]
    text = (folder / "char.dic").read_text()
    swapped = text.replace("<bow>\t2", "<x>\t2").replace("<eow>\t3", "<bow>\t3").replace("<x>\t2", "<eow>\t2")
    (folder / "char.dic").write_text(swapped)
    assert np.abs(relmo.load(folder, kinds="bilm").embed([["bad"]])[0] - before).max() > 1e-3


def test_a_word_that_is_cut_is_reported_in_characters(folder: Path) -> None:
    model = relmo.load(folder, kinds="bilm")
    with pytest.warns(UserWarning, match="1 word was cut to the 7 characters"):
        cut, own = model.embed([["deadbeads"], ["deadbea"]])
    np.testing.assert_array_equal(cut, own)
    model.embed([["水銀行水銀行水"]])  # 21 bytes, but 7 characters


@pytest.mark.parametrize("gone", ["sample.json", "config.json"])
def test_settings_are_found_by_what_they_hold(folder: Path, gone: str) -> None:
    before = relmo.load(folder, kinds="bilm").embed([["bad"]])[0]
    if gone == "sample.json":
        (folder / gone).rename(folder / "cnn_50.json")
    else:
        (folder / gone).unlink()
    np.testing.assert_array_equal(relmo.load(folder, kinds="bilm").embed([["bad"]])[0], before)


def test_without_settings_the_published_ones_are_expected(folder: Path) -> None:
    (folder / "sample.json").unlink()
    with pytest.raises(ModelError, match=r"published ones.* 18 x 50"):
        relmo.load(folder)


def test_it_is_converted_to_a_folder_of_our_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = folder.parent / "own"
    run(["convert", str(folder), str(own)])
    assert "no output layer" in capsys.readouterr().out
    before, after = relmo.load(folder, kinds="bilm"), relmo.load(own, kinds="bilm")
    np.testing.assert_array_equal(after.embed(SENTENCES[:3])[1], before.embed(SENTENCES[:3])[1])
    for place in (folder, own):
        run(["info", str(place), "--json"])
        facts = json.loads(capsys.readouterr().out)
        assert facts["kind"] == "bilm"
        assert facts["settings"]["input"] == "dictionary"
    assert "numbers and their characters" in (own / "README.md").read_text()


def test_a_file_is_embedded_from_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.parent / "text.txt").write_text("bad cab\nхлоп\n")
    run(["embed", str(folder.parent / "text.txt"), "--model", str(folder), "--out", str(folder.parent / "v.npz")])
    with np.load(folder.parent / "v.npz") as found:
        np.testing.assert_allclose(found["0"], many_langs.vectors(["bad", "cab"]), atol=1e-5)


def test_a_tagger_learns_on_its_vectors_and_finds_it_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    rows = "bad\tO\ncab\tB-X\n\nхлоп\tO\n水\tB-X\n\n" * 5
    Path("t.iob2").write_text(rows)
    flags = "--valid t.iob2 --elmo xx.model --hidden 4 --epochs 1 --threads 1 --out m --quiet"
    run(["train", "tagger", "t.iob2", *flags.split()])
    assert len(relmo.load("m").predict([["bad", "cab"]])[0].tags) == 2  # type: ignore[union-attr]


def test_what_it_cannot_do_is_one_clear_line(folder: Path, tmp_path: Path) -> None:
    model = relmo.load(folder, kinds="bilm")
    with pytest.raises(ModelError, match="ELMoForManyLangs stores none"):
        model.log_probs([["bad"]])
    with pytest.raises(SettingError, match="cannot be part of a network"):
        relmo.Elmo(model)
    (tmp_path / "t.txt").write_text("a b\n" * 200)
    begun = BiLMSettings(train=BiLMTrainSettings(init=str(folder)))
    with pytest.raises(SettingError, match="cannot be trained further"):
        train_bilm([str(tmp_path / "t.txt")], begun, tmp_path / "m")
    with pytest.raises(SettingError, match="train with char or word"):
        train_bilm([], BiLMSettings(model=BiLMModelSettings(input="dictionary")), tmp_path / "m")


def change_settings(folder: Path, section: str, **values: Any) -> None:
    settings = copy.deepcopy(many_langs.SETTINGS)
    settings[section] |= values
    (folder / "sample.json").write_text(json.dumps(settings))


def save_other(folder: Path, tensors: Any) -> None:
    torch.save(tensors, folder / "encoder.pkl", _use_new_zipfile_serialization=False)


class Evil:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "an LSTM over characters": (lambda f: change_settings(f, "token_embedder", name="lstm"), "'cnn'"),
    "another size": (lambda f: change_settings(f, "encoder", dim=11), r"is 40 x 6; by .* it is 44 x 6"),
    "no projection": (lambda f: change_settings(f, "encoder", dim=6), "projection_dim"),
    "no words": (lambda f: (f / "word.dic").unlink(), "word.dic: is missing"),
    "a number twice": (lambda f: (f / "char.dic").write_text("a\t0\nb\t0\n"), r"char.dic:2: number 0"),
    "a gap": (lambda f: (f / "char.dic").write_text("a\t0\nb\t2\n"), "not numbered from 0"),
    "no number": (lambda f: (f / "char.dic").write_text("a\tx\n"), r"char.dic:1: expected a symbol, a tab"),
    "no marks": (lambda f: (f / "char.dic").write_text("a\t0\n<oov>\t1\n"), "has no <eow>, <bow>, <pad>"),
    "cut short": (lambda f: (f / "encoder.pkl").write_bytes((f / "encoder.pkl").read_bytes()[:-9]), "truncated"),
    "no pickle": (lambda f: (f / "encoder.pkl").write_bytes(b"\x80\x02hello"), "is not a file of tensors"),
    "no tensors": (lambda f: save_other(f, {"a": [1, 2]}), "'a' is not a tensor"),
    "not finite": (lambda f: spoil(f), "not finite"),
    "a program": (lambda f: save_other(f, {"a": Evil()}), "tensors do not need"),
}


def spoil(folder: Path) -> None:
    tensors = many_langs.state_dicts(many_langs.SETTINGS)[1]
    tensors["forward_layer_0.state_linearity.bias"][3] = float("nan")
    save_other(folder, tensors)


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_folder_is_one_clear_line(folder: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    change, said = BROKEN[what]
    change(folder)
    with pytest.raises(ModelError, match=said):
        relmo.load(folder)
    assert not Path("ran").exists()


@pytest.mark.parametrize("new", [True, False])
def test_tensors_are_read_as_torch_wrote_them(tmp_path: Path, *, new: bool) -> None:
    whole = torch.arange(24.0).view(4, 6)
    tensors = {"a": whole, "t": whole.T, "part": whole[1:3, 2:], "half": whole.half(), "none": whole[:0]}
    tensors |= {"numbers": torch.arange(3), "single": torch.tensor(2.5, dtype=torch.float64)}
    torch.save(tensors, tmp_path / "x", _use_new_zipfile_serialization=new)
    found = read_state_dict(tmp_path / "x")
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name].read(), tensor.numpy())


@pytest.mark.parametrize("new", [True, False])
def test_no_damage_to_a_file_of_tensors_is_more_than_an_error(tmp_path: Path, *, new: bool) -> None:
    torch.save({"a": torch.arange(5.0), "b": torch.ones(2, 2)}, tmp_path / "x", _use_new_zipfile_serialization=new)
    sound = (tmp_path / "x").read_bytes()
    random = np.random.default_rng(3)
    for _ in range(200):
        data = bytearray(sound)
        for place in random.integers(0, min(len(data), 900), size=random.integers(1, 4)):
            data[place] = random.integers(256)
        (tmp_path / "x").write_bytes(data[: random.integers(1, len(data) + 1)] if random.random() < 0.2 else data)
        try:
            for tensor in read_state_dict(tmp_path / "x").values():
                tensor.read()
        except ModelError:
            pass

"""The ELMo inside models that AllenNLP saved: the same vectors, by an independent computation, and hostile files."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.cli import main
from relmo.compat.allennlp import Elmo, ElmoTokenEmbedder, batch_to_ids
from relmo.errors import ModelError
from support import original_elmo
from support import saved_allennlp as saved

SENTENCES = [["First", "sentence", "."], ["Another", "."], ["Straße", "disambiguate", "."]]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    files = {"config.json": json.dumps(saved.config()).encode(), "weights.th": saved.th(saved.tagger())}
    return saved.archive(tmp_path / "model.tar.gz", files | {"vocabulary/tokens.txt": b"a\n", "meta.json": b"{}"})


def same_layers(source: Path, options: dict[str, Any] = saved.OPTIONS) -> None:
    found = relmo.load(source, device="cpu", kinds="bilm").embed(SENTENCES)
    for vectors, words in zip(found, SENTENCES, strict=True):
        np.testing.assert_allclose(vectors, saved.layers(words, options), atol=4e-6)


@pytest.mark.parametrize("old", [False, True], ids=["torch's layout", "its layout before 1.6"])
def test_a_saved_model_gives_its_layers(tmp_path: Path, *, old: bool) -> None:
    (tmp_path / "weights.th").write_bytes(saved.th(saved.tagger(), old=old))
    same_layers(tmp_path / "weights.th")
    same_layers(saved.archive(tmp_path / "m.tar.gz", {"./weights.th": (tmp_path / "weights.th").read_bytes()}))
    same_layers(tmp_path)


def test_the_options_of_an_archive_count_before_the_published_ones(tmp_path: Path) -> None:
    options = original_elmo.options_of(max_characters_per_token=20, activation="tanh", cell_clip=0.3, proj_clip=0.2)
    tensors = saved.th(saved.tagger(options))
    with_options = {"weights.th": tensors, "fta/model.elmo.options_file": json.dumps(options).encode()}
    same_layers(saved.archive(tmp_path / "with.tar.gz", with_options), options)
    without = saved.archive(tmp_path / "without.tar.gz", {"weights.th": tensors})
    (tmp_path / "options.json").write_text(json.dumps(options))
    words = SENTENCES[0]
    given = Elmo.from_archive(without, options_file=tmp_path / "options.json")
    vectors = given(batch_to_ids([words]))["elmo_representations"][0][0].detach()
    np.testing.assert_allclose(vectors, saved.mixed(words, options), atol=4e-6)
    assert np.abs(relmo.load(without, device="cpu").embed([words])[0] - saved.layers(words, options)).max() > 0.01  # type: ignore[union-attr]


def test_the_mix_comes_along(archive: Path) -> None:
    elmo = Elmo.from_archive(archive)
    assert not elmo.training
    for words in SENTENCES:
        elmo.reset_states()
        vectors = elmo(batch_to_ids([words]))["elmo_representations"][0][0].detach()
        np.testing.assert_allclose(vectors, saved.mixed(words), atol=4e-6)


def test_the_configuration_and_the_projection_come_along(tmp_path: Path) -> None:
    tensors = saved.tagger(projection=True)
    config = saved.config(do_layer_norm=True, dropout=0.25, requires_grad=True)
    files = {"config.json": json.dumps(config).encode(), "weights.th": saved.th(tensors)}
    embedder = ElmoTokenEmbedder.from_archive(saved.archive(tmp_path / "m.tgz", files))
    elmo = embedder._elmo
    assert elmo.scalar_mix_0.layer_norm
    assert elmo._dropout.p == 0.25
    assert all(parameter.requires_grad for parameter in embedder.parameters())
    ids = batch_to_ids(SENTENCES)
    own = elmo(ids)["elmo_representations"][0]
    elmo.reset_states()
    begin = "text_field_embedder.token_embedder_elmo._projection."
    expected = own @ tensors[f"{begin}weight"].T + tensors[f"{begin}bias"]
    torch.testing.assert_close(embedder(ids), expected)
    assert embedder.get_output_dim() == 4


def test_one_of_several_is_taken_by_its_name(tmp_path: Path) -> None:
    tensors = saved.tagger(seed=5)
    other = {name.replace("token_embedder_elmo._elmo", "second"): t for name, t in saved.tagger().items()}
    path = tmp_path / "best.th"
    path.write_bytes(saved.th(tensors | other))
    with pytest.raises(ModelError, match=r"several ELMos.*'text_field_embedder.second'"):
        relmo.load(path)
    elmo = Elmo.from_archive(path, name="text_field_embedder.second")
    vectors = elmo(batch_to_ids(SENTENCES[:1]))["elmo_representations"][0][0].detach()
    np.testing.assert_allclose(vectors, saved.mixed(SENTENCES[0]), atol=4e-6)
    with pytest.raises(ModelError, match="no ELMo 'third'"):
        Elmo.from_archive(path, name="third")


def test_it_is_converted_and_described(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["convert", str(archive), str(archive.parent / "own")], ["info", str(archive), "--json"]):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 0
    said = capsys.readouterr().out
    assert "no output layer" in said
    facts = json.loads(said[said.index("{") :])
    assert (facts["format"], facts["name"]) == ("AllenNLP", saved.NAME)
    same_layers(archive.parent / "own")


def replaced(name: str, tensor: Any) -> dict[str, Any]:
    return saved.tagger() | {f"{saved.NAME}.{name}": tensor}


def linked(path: Path) -> Path:
    """An archive whose weights are a link to a file of this machine."""
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("weights.th")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    return path


def long_name(path: Path) -> Path:
    """An archive with a name of two megabytes."""
    return saved.archive(path, {"a" * (1 << 21): b""})


def no_archive(path: Path) -> Path:
    path.write_bytes(b"hello")
    return path


class Evil:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def packed(tensors: dict[str, Any], **files: bytes) -> Callable[[Path], Path]:
    return lambda path: saved.archive(path, {"weights.th": saved.th(tensors)} | files)


LSTM = "_elmo_lstm._elmo_lstm"
BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no weights": (lambda path: saved.archive(path, {"config.json": b"{}"}), "has no weights.th"),
    "a link": (linked, "has no weights.th"),
    "a long name": (long_name, "a header that is too long"),
    "no ELMo": (packed({"a": torch.ones(2)}), "holds no ELMo"),
    "a program": (packed({"a": Evil()}), "tensors do not need"),
    "another shape": (
        packed(replaced(f"{LSTM}.backward_layer_1.state_linearity.bias", torch.ones(3))),
        "bias' is 3.* it is 40",
    ),
    "no convolutions": (
        packed({k: t for k, t in saved.tagger().items() if "char_conv" not in k}),
        "cannot be built",
    ),
    "not finite": (
        packed(replaced(f"{LSTM}.forward_layer_0.state_linearity.bias", torch.full((40,), torch.nan))),
        "not finite",
    ),
    "a number for a matrix": (
        packed(replaced(f"{LSTM}.forward_layer_0.state_projection.weight", torch.tensor(1.0))),
        "0 dimensions",
    ),
    "no archive": (no_archive, "cannot be read as a .tar.gz"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_archive_is_one_clear_line(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, said = BROKEN[what]
    with pytest.raises(ModelError, match=said) as error:
        relmo.load(make(tmp_path / "model.tar.gz"))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith((str(tmp_path), "its tensors"))
    assert not Path("ran").exists()


def test_an_archive_that_is_cut_short_or_grows_too_far_is_refused(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"cannot be read as a \.tar\.gz"):
        relmo.load(archive)
    bomb = saved.archive(tmp_path / "bomb.tar.gz", {"vocabulary/x": bytes(70 << 20), "weights.th": b""})
    with pytest.raises(ModelError, match="more than a model can have"):
        relmo.load(bomb)


def test_names_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    files = {"../weights.th": b"x", "/tmp/weights.th": b"x", "fta/../../options_file": b"{}"}
    files |= {"weights.th": saved.th(saved.tagger())}
    with pytest.raises(ModelError, match="'lstm' is missing"):  # the last of them is read as options, and is none
        relmo.load(saved.archive(tmp_path / "m.tar.gz", files))
    assert [path.name for path in tmp_path.rglob("*")] == ["m.tar.gz"]


def test_a_configuration_that_is_none_is_refused(tmp_path: Path) -> None:
    for config, said in (
        (b"[", "not valid JSON"),
        (json.dumps(saved.config(dropout="a")).encode(), "config.json: elmo.dropout is a string"),
    ):
        path = packed(saved.tagger(), **{"config.json": config})(tmp_path / "model.tar.gz")
        with pytest.raises(ModelError, match=said):
            relmo.load(path)

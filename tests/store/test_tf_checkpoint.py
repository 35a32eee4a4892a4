"""Checkpoints of bilm-tf. The files of these tests have the layout of those that TensorFlow 2.21 wrote."""

import random
from pathlib import Path

import numpy as np
import pytest

import relmo
from relmo.errors import ModelError, RelmoError
from relmo.store.original import write_original
from support import small_models
from support.tf_checkpoint import write_checkpoint

WORDS = ["</S>", "<S>", "<UNK>", "the", "cat", "sat"]
SENTENCES = [["the", "cat", "sat"], ["unknown", "!"]]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    write_original(small_models.bilm(), tmp_path / "original")
    return tmp_path / "original"


def test_a_checkpoint_has_the_vectors_of_the_exported_weights_and_an_output_layer(
    original: Path, tmp_path: Path
) -> None:
    softmax = write_checkpoint(original, tmp_path / "tf", words=WORDS)
    write_checkpoint(original, tmp_path / "tf", words=WORDS, step=9)  # `checkpoint` names this one
    model, exported = relmo.load(tmp_path / "tf", kinds="bilm"), relmo.load(original, kinds="bilm")
    for ours, theirs in zip(model.embed(SENTENCES), exported.embed(SENTENCES), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert model.vocabulary is not None
    assert model.vocabulary.symbols == WORDS
    assert model.network.softmax is not None
    np.testing.assert_array_equal(model.network.softmax.weight.detach(), softmax["W"])
    np.testing.assert_array_equal(model.network.softmax.bias.detach(), softmax["b"])
    assert len(model.surprisal(SENTENCES).to_dict()["surprisal"]) == 5


def test_without_a_vocabulary_it_embeds(original: Path, tmp_path: Path) -> None:
    write_checkpoint(original, tmp_path / "tf", words=WORDS)
    (tmp_path / "tf" / "vocab.txt").unlink()
    (tmp_path / "tf" / "checkpoint").unlink()
    model = relmo.load(tmp_path / "tf", kinds="bilm")
    assert model.network.softmax is None
    assert model.embed(SENTENCES)[0].shape[1] == 3


@pytest.mark.parametrize("name", ["model.ckpt-12.index", "model.ckpt-12.data-00000-of-00001"])
def test_damaged_files_are_one_clear_error(name: str, original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tf"
    write_checkpoint(original, folder, words=WORDS)
    path = folder / name
    contents = path.read_bytes()
    draw = random.Random(4)
    for _ in range(100):
        damaged = bytearray(contents)
        if draw.random() < 0.3:
            del damaged[draw.randrange(len(damaged)) :]
        else:
            for _ in range(3):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            relmo.load(folder)
        except RelmoError as error:
            assert str(folder) in str(error)  # noqa: PT017
    path.unlink()
    with pytest.raises(ModelError):
        relmo.load(folder)


def test_an_unreadable_name_of_the_latest_checkpoint_is_ignored_and_a_missing_one_an_error(
    original: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tf"
    write_checkpoint(original, folder, words=WORDS)
    (folder / "checkpoint").write_bytes(b"\xff\xfe\x00")
    assert relmo.load(folder).embed(SENTENCES)
    for name in (b"gone", b"\x00", b"../\xff"):
        (folder / "checkpoint").write_bytes(b'model_checkpoint_path: "' + name + b'"\n')
        with pytest.raises(ModelError, match="is not the index of a checkpoint"):
            relmo.load(folder)


def test_a_vocabulary_of_another_size_is_refused(original: Path, tmp_path: Path) -> None:
    write_checkpoint(original, tmp_path / "tf", words=WORDS)
    (tmp_path / "tf" / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS[:-1]))
    with pytest.raises(ModelError, match=r"softmax/W is \(6, 4\), by the options \(5, 4\)"):
        relmo.load(tmp_path / "tf")

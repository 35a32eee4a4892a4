"""Copies of a model at epochs of its training: the weights of a run that ends there, complete folders, and mistakes."""

from pathlib import Path
from typing import Any

import pytest
import torch

import relmo
from relmo.cli import main
from relmo.errors import SettingError, StorageError
from relmo.runs.train_lm import train_lm
from relmo.store.folder import read_config, read_tensors
from support.tagging import StopAfter, conllu, tiny_bilm

LINES = ("The dog sees a cat .", "A bird runs .", "The cat sees the tree .")
SIZES: dict[str, dict[str, Any]] = {
    "lm": {"unit": "word", "hidden": 6, "unroll": 6},
    "bilm": {"filters": "1x4", "char_dim": 2, "hidden": 6, "projection": 3, "samples": 4, "unroll": 4},
    "skipgram": {"dimensions": 4, "min_count": 1},
    "tagger": {"word_dim": 4, "char_dim": 0, "hidden": 4, "patience": None},
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES * 20) + "\n", encoding="utf-8")
    return path


def train(kind: str, text: Path, out: Path, **settings: Any) -> Any:
    if kind == "tagger":
        text = conllu(text.with_name("train.conllu"), 40)
    fixed = {"batch": 4, "decay": "constant", "warmup": 0, "threads": 1, "device": "cpu", "progress": False}
    return relmo.train(kind, text, out=out, **(SIZES[kind] | fixed | settings))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "model.safetensors")[0]


def same_weights(folder: Path, other: Path) -> bool:
    tensors, others = weights(folder), weights(other)
    return tensors.keys() == others.keys() and all(torch.equal(tensors[name], others[name]) for name in others)


@pytest.mark.parametrize("kind", [*SIZES])
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_snapshot_has_the_weights_of_a_run_that_ends_there(
    kind: str, average: float, text: Path, tmp_path: Path
) -> None:
    settings = {"average": average} | ({} if kind == "tagger" else {"valid_fraction": 0.0})  # saves the last weights
    train(kind, text, tmp_path / "long", epochs=3, snapshots=[0.5, 2], **settings)
    for epochs in (0.5, 2):
        train(kind, text, tmp_path / f"{epochs}", epochs=epochs, **settings)
        end = tmp_path / f"{epochs}" / ("last" if kind == "tagger" else "")
        copy = tmp_path / "long" / "snapshots" / f"{epochs}"
        assert same_weights(copy, end)
        assert not same_weights(copy, tmp_path / "long")
        assert relmo.load(copy, device="cpu").settings.train.snapshots == (0.5, 2)
    assert not (tmp_path / "2" / "snapshots").exists()


def test_a_snapshot_of_a_task_has_copies_of_its_own(text: Path, tmp_path: Path) -> None:
    tiny_bilm().save_pretrained(tmp_path / "bilm")
    out = tmp_path / "model"
    train("tagger", text, out, epochs=1, snapshots=0.5, seeds=2, elmo=tmp_path / "bilm", copy=True, cache="none")
    assert not (out / "snapshots").exists()
    for seed in (1, 2):
        (copy,) = (out / f"seed-{seed}" / "snapshots").iterdir()
        moved = copy.rename(tmp_path / f"moved-{seed}")
        assert relmo.load(moved, device="cpu").predict([["A", "dog"]])
        assert read_config(moved)["elmo"]["source"] == "./bilm"


def test_a_run_that_breaks_while_it_writes_one_leaves_none_and_resumes(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, settings = tmp_path / "out" / "model", {"epochs": 2, "snapshots": [0.3, 1.2], "checkpoint_every": 0.0}
    train("lm", text, tmp_path / "whole" / "model", **settings)

    save = relmo.LanguageModel.save_description

    def fail(model: relmo.LanguageModel, folder: Path, results: dict[str, Any]) -> None:
        if folder.name == "1.2":
            raise StorageError("the disk is full")
        save(model, folder, results)

    with monkeypatch.context() as patch:
        patch.setattr(relmo.LanguageModel, "save_description", fail)
        with pytest.raises(StorageError, match="disk is full"):
            train("lm", text, out, **settings)
    assert [path.name for path in (out / "snapshots").iterdir()] == ["0.3"]
    before = (out / "snapshots" / "0.3" / "config.json").stat().st_mtime_ns
    relmo.train("lm", out=out, resume=True, progress=False)
    assert (out / "snapshots" / "0.3" / "config.json").stat().st_mtime_ns == before
    assert sorted(path.name for path in (out / "snapshots").iterdir()) == ["0.3", "1.2"]
    for epoch in ("0.3", "1.2"):
        assert same_weights(out / "snapshots" / epoch, tmp_path / "whole" / "model" / "snapshots" / epoch)


def test_steps_that_are_taken_again_write_their_snapshot_again(text: Path, tmp_path: Path) -> None:
    out, settings = tmp_path / "model", {"epochs": 2, "snapshots": [0.3, 1.2], "checkpoint_every": 1000.0}
    fixed = train("lm", text, tmp_path / "whole", **settings).settings
    with pytest.raises(KeyboardInterrupt):
        train_lm([str(text)], fixed, out, reporter=StopAfter(9))
    assert not (out / "run" / "checkpoint.safetensors").exists()
    (copy,) = (out / "snapshots").iterdir()
    (copy / "model.safetensors").write_bytes(b"of another step")
    train_lm([str(text)], fixed, out, resume=True)
    for epoch in ("0.3", "1.2"):
        assert same_weights(out / "snapshots" / epoch, tmp_path / "whole" / "snapshots" / epoch)


def test_overwriting_removes_the_snapshots(text: Path, tmp_path: Path) -> None:
    train("lm", text, tmp_path / "model", epochs=1, snapshots=[0.5, 1])
    train("lm", text, tmp_path / "model", epochs=1, overwrite=True)
    assert not (tmp_path / "model" / "snapshots").exists()


def test_a_snapshot_that_a_run_of_minutes_does_not_reach_is_not_written(text: Path, tmp_path: Path) -> None:
    train("lm", text, tmp_path / "model", minutes=0.001, snapshots=[1e-6, 1e6])
    assert [path.name for path in (tmp_path / "model" / "snapshots").iterdir()] == ["1e-06"]


def test_epochs_are_separated_by_commas_on_the_command_line(text: Path, tmp_path: Path) -> None:
    arguments = "--hidden 4 --batch 4 --unroll 6 --epochs 2 --quiet --snapshots 0.5,1 --snapshots 2"
    with pytest.raises(SystemExit, match="0"):
        main(["train", "lm", str(text), "--out", str(tmp_path / "m"), *arguments.split()])
    assert sorted(path.name for path in (tmp_path / "m" / "snapshots").iterdir()) == ["0.5", "1", "2"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"snapshots": 0}, "above 0"),
        ({"snapshots": [1, -1]}, "above 0"),
        ({"snapshots": "1"}, "a number"),
        ({"snapshots": [1, 2.5], "epochs": 2}, "at most epochs, 2, not 2.5"),
        ({"snapshots": [0.5, 0.5]}, "differ"),
        ({"snapshots": [0.5, 0.50000001]}, "differ"),
        ({"snapshots": 1, "cell": "ngram"}, "no effect with cell ngram"),
    ],
)
def test_impossible_snapshots_are_one_line(settings: dict[str, Any], message: str, text: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=message):
        relmo.train("lm", text, out=tmp_path / "model", progress=False, **settings)
    assert not (tmp_path / "model").exists()

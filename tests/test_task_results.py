"""The recipe of tasks' results: its commands are accepted, its data is as it says, its tables show what was found."""

import dataclasses
import importlib.util
import json
import shlex
from pathlib import Path
from string import Template
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from relmo.cli import app
from relmo.settings.kinds import check_settings, settings_class
from relmo.text.readers.labelled import read_labelled
from relmo.text.readers.tagged import read_tagged
from tagging import conllu, iob2

RECIPE = Path(__file__).parents[1] / "recipes" / "task_results.py"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    """recipes/task_results.py"""
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("task_results", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def results(folder: Path, score: float, **more: Any) -> None:
    """A folder as a finished run leaves it, config.json alone."""
    folder.mkdir(parents=True)
    found = {
        "train_examples": 9000,
        "valid": "dev.tsv",
        "valid_examples": 1500,
        "metric": "accuracy",
        "valid_accuracy": score,
    } | more
    (folder / "config.json").write_text(json.dumps({"results": found}))


def test_every_experiment_has_a_name_of_its_own_and_a_command_that_is_accepted(recipe: ModuleType) -> None:
    found = list(recipe.experiments())
    names = {experiment.name for experiment in found}
    assert len(names) == len(found)
    places = dict.fromkeys(("T", "D", "O", "small", "large"), "x")
    for experiment in found:
        arguments = shlex.split(Template(experiment.arguments).substitute(places))
        command = ["train", experiment.kind, *arguments, "--out", "y"]
        _, bound, _ = app.parse_args(command, exit_on_error=False, print_error=False)
        cls = settings_class(experiment.kind)
        sections = {field.name for field in dataclasses.fields(cls)}
        given = {name: value for name, value in bound.arguments.items() if name in sections}
        check_settings(experiment.kind, cls(**given))
    assert set(recipe.SAME.values()) <= names
    for name in recipe.ABLATED:
        assert {f"{name}-{what}" for what in (*recipe.LAYERS, *recipe.PLACES)} <= names | recipe.SAME.keys()


def test_tables_show_mean_deviation_and_seeds_of_what_is_finished(recipe: ModuleType, tmp_path: Path) -> None:
    several = {"seeds": [0.9, 0.8, 0.7], "valid_accuracy_mean": 0.8, "valid_accuracy_deviation": 0.1}
    results(tmp_path / "pos-plain", 0.9, **several)
    results(tmp_path / "pos-small", 0.95)
    results(tmp_path / "pos-0.01-small", 0.5)
    results(tmp_path / "stsb-large", 0.0, metric="pearson", valid_pearson=0.75, valid_spearman=0.5)
    results(tmp_path / "snli-esim-small", 0.625)
    (tmp_path / "uner-plain").mkdir()
    (tmp_path / "uner-plain" / "config.json").write_text('{"results": {}}')  # not finished
    text = "\n".join(recipe.tables(tmp_path))
    assert "| POS, EWT | 9,000 | dev.tsv, 1,500 | accuracy | 80.00 ± 10.00 (3) | 95.00 |  |" in text
    assert "| STS-B | 9,000 | dev.tsv, 1,500 | Pearson |  |  | 75.00 |" in text
    assert "| STS-B | 9,000 | dev.tsv, 1,500 | Spearman |  |  | 50.00 |" in text
    assert "| SNLI, ESIM | 9,000 | dev.tsv, 1,500 | accuracy |  |  | 62.50 |" in text.split("where ELMo is")[1]
    assert "| POS, EWT, 1% | 9,000 | dev.tsv, 1,500 | accuracy |  | 50.00 |  |" in text
    assert "UNER" not in text


def test_figures_are_drawn_of_what_there_is(recipe: ModuleType, tmp_path: Path) -> None:
    mix = {"weights": [0.2, 0.5, 0.3], "gamma": 1.5}
    results(tmp_path / "out" / "pos-small", 0.9, elmo_mix={"input": mix})
    results(tmp_path / "out" / "pos-0.1-small", 0.8)
    results(tmp_path / "out" / "sst5-small", 0.5, elmo_mix={"input": mix, "output": mix})
    recipe.draw_mixes(tmp_path / "out", tmp_path / "mixes.png")
    recipe.draw_efficiency(tmp_path / "out", tmp_path / "shares.png")
    for name in ("mixes.png", "shares.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    recipe.draw_mixes(tmp_path, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder of tasks with what `write_data` reads."""
    folder = tmp_path / "tasks"
    for name in ("pos_ud/en_ewt", "ner_uner_en", "imdb"):
        (folder / name).mkdir(parents=True)
    conllu(folder / "pos_ud/en_ewt/en_ewt-ud-train.conllu", 2000)
    iob2(folder / "ner_uner_en/en_ewt-ud-train.iob2", 2000)
    rows = "".join(
        f"{'neg' if i % 2 else 'pos'}\t{i}\tIt was number{i}.<br /><br />So\x85 it was.\n" for i in range(40)
    )
    (folder / "imdb/train.tsv").write_text(f"label\tid\ttext\n{rows}")
    return folder


def test_shares_hold_one_another_and_no_review_is_on_both_sides(
    recipe: ModuleType, tasks: Path, tmp_path: Path
) -> None:
    recipe.write_data(tasks, tmp_path / "data")
    for name, whole in recipe.WHOLE.items():
        every = [list(read_tagged(tmp_path / "data" / recipe.share_file(name, share))) for share in recipe.SHARES]
        every.append(list(read_tagged(Template(whole).substitute(T=tasks))))
        assert [len(examples) for examples in every] == [2, 20, 200, 2000]
        assert every[0] == every[1][:2]
        assert every[1] == every[2][:20]
        assert every[2] != every[3][:200]
        assert all(example in every[3] for example in every[1])
    train, dev = (
        list(read_labelled(tmp_path / "data" / f"imdb-{part}.tsv", split=str.split)) for part in ("train", "dev")
    )
    assert (len(train), len(dev)) == (36, 4)
    text = (tmp_path / "data" / "imdb.txt").read_text().split("\n")[:-1]
    assert sorted(line.split() for line in text) == sorted(example.words for example in train)
    assert not {tuple(example.words) for example in train} & {tuple(example.words) for example in dev}


def test_a_run_that_is_finished_stays_and_one_that_was_killed_goes_on(
    recipe: ModuleType, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = "$T/pos_ud/en_ewt/en_ewt-ud-train.conllu --hidden 4 --epochs 0.01 --word-dim 4 --char-dim 0 --device cpu"
    made = [recipe.Experiment(f"quick-{k}", "tagger", quick) for k in (1, 2)]
    made.append(recipe.Experiment("quick-large", "tagger", f"{quick} --elmo $large"))
    monkeypatch.setattr(recipe, "experiments", lambda: made)
    out = tmp_path / "out"
    out.mkdir()
    results(out / "quick-1", 0.5)
    assert recipe.run(tasks, out, ["quick"], parallel=2, elmo={}) == 0
    said = capsys.readouterr().out
    assert said.count("relmo train") == 1
    assert f"--epochs 0.01 --word-dim 4 --char-dim 0 --device cpu --out {out / 'quick-2'}" in said
    assert 0 < recipe.results(out, "quick-2")["valid_accuracy"] < 1
    made[:] = [recipe.Experiment("quick-3", "tagger", f"{quick} --nonsense 3")]
    assert recipe.run(tasks, out, [], parallel=1, elmo={}) == 1
    assert "--nonsense" in (out / "quick-3.log").read_text()
    calls: list[list[str]] = []
    results(out / "quick-4", 0.5)  # of the best model so far
    (out / "quick-4" / "run").mkdir()
    monkeypatch.setattr(
        recipe.subprocess, "run", lambda command, **_: calls.append(command) or SimpleNamespace(returncode=0)
    )
    made[:] = [recipe.Experiment("quick-4", "tagger", quick, seeds=3), recipe.Experiment("quick-5", "tagger", quick, 3)]
    assert recipe.run(tasks, out, [], parallel=1, elmo={}) == 0
    assert calls[0][3:] == ["train", "tagger", "--resume", "--out", str(out / "quick-4")]
    assert calls[1][-4:] == ["--seeds", "3", "--out", str(out / "quick-5")]

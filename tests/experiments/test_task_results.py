"""The recipe of further tasks: its commands are accepted, its data is as it says, its tables show what was found."""

import dataclasses
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from experiments import trainings
from experiments.elmo_table.tables import to_markdown
from experiments.trainings import TrainingRun
from relmo.cli import app
from relmo.disk.files import seal
from relmo.settings.kinds import settings_class
from relmo.store.folder import write_json
from relmo.text.readers.labelled import read_labelled
from relmo.text.readers.tagged import read_tagged
from support.tagging import conllu, iob2


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    """experiments/task_results.py"""
    pytest.importorskip("matplotlib")
    from experiments import task_results

    return task_results


def record(out: Path, training: TrainingRun, score: float, **more: Any) -> None:
    """A training's record as it is when that is finished."""
    found = {
        "train_examples": 9000,
        "valid": "dev.tsv",
        "valid_examples": 1500,
        "metric": "accuracy",
        "valid_accuracy": score,
    } | more
    write_json(out / f"{training.name}.json", seal({"asked": training.text, "results": found}))


def test_every_experiment_has_a_name_of_its_own_and_a_command_that_is_accepted(recipe: ModuleType) -> None:
    found = list(recipe.list_experiments())
    assert len({experiment.name for experiment in found}) == len(found)
    places = dict.fromkeys(("data", "own", "out", "small", "large"), trainings.Location("x"))
    for experiment in found:
        command = experiment.trainings()[0].command(places, Path("y"))
        assert "{" not in shlex.join(command)
        _, bound, _ = app.parse_args(command, exit_on_error=False, print_error=False)
        cls = settings_class(experiment.kind)
        sections = {field.name for field in dataclasses.fields(cls)}
        given = {name: value for name, value in bound.arguments.items() if name in sections}
        cls(**given).check()
    assert [training.name for training in recipe.list_trainings("uner-small")][:1] == [
        "ner-small-input-lambda-0.001-seed-1"
    ]


def test_tables_show_mean_deviation_and_seeds_of_what_is_finished(recipe: ModuleType, tmp_path: Path) -> None:
    for training, score in zip(recipe.list_trainings("pos-plain"), (0.9, 0.8, 0.7), strict=False):
        record(tmp_path, training, score)
    record(tmp_path, recipe.list_trainings("pos-small")[0], 0.95)
    record(tmp_path, recipe.list_trainings("pos-0.01-small")[0], 0.5)
    both = {"metric": "pearson", "valid_pearson": 0.75, "valid_spearman": 0.5}
    record(tmp_path, recipe.list_trainings("stsb-large")[0], 0.0, **both)
    record(tmp_path, recipe.list_trainings("uner-plain")[0], 0.0, metric="f1", valid_f1=0.625)
    text = to_markdown(recipe.make_tables(tmp_path))
    assert "| POS, EWT | 9,000 | dev.tsv, 1,500 | accuracy | 80.00 ± 10.00 (3) | 95.00 |  |" in text
    assert "| STS-B | 9,000 | dev.tsv, 1,500 | Pearson |  |  | 75.00 |" in text
    assert "| STS-B | 9,000 | dev.tsv, 1,500 | Spearman |  |  | 50.00 |" in text
    assert "| POS, EWT, 1% | 9,000 | dev.tsv, 1,500 | accuracy |  | 50.00 |" in text
    assert "| NER, UNER EWT, 100% | 9,000 | dev.tsv, 1,500 | F1 | 62.50 |  |" in text
    assert "CoLA" not in text


def test_figures_are_drawn_of_what_there_is(recipe: ModuleType, tmp_path: Path) -> None:
    mix = {"weights": [0.2, 0.5, 0.3], "gamma": 1.5}
    record(tmp_path, recipe.list_trainings("pos-small")[0], 0.9, elmo_mix={"input": mix})
    record(tmp_path, recipe.list_trainings("pos-0.1-small")[0], 0.8)
    record(tmp_path, recipe.list_trainings("sst5-bcn-small")[0], 0.5, elmo_mix={"input": mix, "output": mix})
    recipe.draw_task_mixes(tmp_path, tmp_path / "mixes.png")
    recipe.draw_efficiency(recipe.collect_efficiency(tmp_path), tmp_path / "shares.png")
    for name in ("mixes.png", "shares.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    recipe.draw_task_mixes(tmp_path / "empty", tmp_path / "none.png")
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
    recipe.write_data(tasks.parent, tmp_path / "data")
    for name, whole in recipe.FULL_DATA.items():
        every = [list(read_tagged(tmp_path / "data" / recipe.share_file(name, share))) for share in recipe.SHARES]
        every.append(list(read_tagged(tasks.parent / whole)))
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


def test_the_language_model_that_others_start_from_is_trained_first(
    recipe: ModuleType, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def run(
        some: list[TrainingRun], places: dict[str, trainings.Location], out: Path, **options: Any
    ) -> trainings.Outcome:
        ran.append([training.name for training in some])
        assert places["own"].path == str(out / "own")
        return trainings.Outcome(failed=dict.fromkeys(ran[-1][:1], "why"))

    monkeypatch.setattr(recipe, "run_trainings", run)
    assert recipe.run(tasks.parent, tmp_path / "out", ["reviews", "imdb-", "uner-plain"], jobs=1, elmo={}) == 2
    assert ran[0] == ["reviews-lm-seed-1"]
    assert ran[1][:2] == ["imdb-random-seed-1", "imdb-init-seed-1"]
    assert ran[1][2] == "ner-plain-seed-1"
    assert "need --elmo large=FOLDER" in capsys.readouterr().out
    recipe.run(tasks.parent, tmp_path / "out", ["cola"], jobs=1, elmo={"large": "small"})
    assert sum("large" in name for name in ran[-1]) == 5

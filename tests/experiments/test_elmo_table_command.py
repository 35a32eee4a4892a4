"""`python -m experiments elmo-table`: the whole command on small files, with real trainings."""

import json
import shlex
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments import trainings
from experiments.elmo_table import fine_tuning, plan
from experiments.elmo_table.rows import ROWS
from experiments.elmo_table.slices import write_slices
from relmo.cli import app, main
from relmo.cli.terminal import print_message
from relmo.disk.files import read_json
from relmo.errors import RelmoError
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.runs.progress import TrainingReporter
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.text.vocabulary import Vocabulary
from support.small_models import bilm
from support.tagging import iob2

Run = Callable[..., tuple[int, str, str]]
COMMAND = "elmo-table"
pytestmark = pytest.mark.slow  # it trains networks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A biLM in bilm/, word vectors in words/, and in data/ the files of two rows."""
    torch.manual_seed(0)
    network = BiLMModelSettings(hidden=12, projection=6, filters=("1x4", "3x6"), char_dim=3, max_characters=12)
    BiLM(BiLMNetwork(network, vocab_size=None), BiLMSettings(model=network), None).save_pretrained(tmp_path / "bilm")
    words = Vocabulary(["<unk>", "</s>", "works"])
    WordVectors(words, np.eye(3, dtype=np.float32)).save_pretrained(tmp_path / "words")
    monkeypatch.setattr(plan, "REDUCED", f"{plan.REDUCED} --vectors {tmp_path / 'words'}")
    files = [tmp_path / "data" / file for row in ("ner", "sst5") for file in (ROWS[row].train, ROWS[row].valid)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    for file in files[:2]:
        iob2(file, 60)
    for file in files[2:]:
        file.write_text("(3 (2 It) (4 works))\n(1 (2 It) (0 fails))\n" * 30)
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    return tmp_path


class AtOnce:
    """In the place of a process: `relmo` in this one, which has imported torch already, to its end."""

    def __init__(self, command: list[str], log: str):
        function, bound, _ = app.parse_args(command, exit_on_error=False, print_error=False)
        self.returncode = 0
        with Path(log).open("a") as said, redirect_stdout(said), redirect_stderr(said):
            try:
                function(*bound.args, **bound.kwargs)
            except RelmoError as error:
                print_message(f"error: {error}")
                self.returncode = 2

    def poll(self) -> int:
        """How it ended."""
        return self.returncode


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Trainings start quickly. -> their commands"""
    commands: list[list[str]] = []

    def start(command: list[str], log: Any, environment: dict[str, str]) -> AtOnce:
        commands.append(command)
        return AtOnce(command, log.name)

    monkeypatch.setattr(trainings, "start_process", start)
    monkeypatch.setattr(trainings, "POLL_SECONDS", 0.0)
    return commands


def options(folder: Path, rows: str = "ner,sst5") -> list[object]:
    chosen = ["--data", folder / "data", "--model", f"tiny={folder / 'bilm'}", "--out", folder / "out"]
    return [*chosen, "--device", "cpu", "--reduced", "--rows", rows]


def test_the_whole_command_trains_prints_and_draws_and_reads_it_all_the_second_time(
    run: Run, folder: Path, here: list[list[str]]
) -> None:
    pytest.importorskip("matplotlib")
    status, output, errors = run(*options(folder))
    assert status == 0, errors
    assert len(here) == 6  # plain, ELMo at the input, ELMo at both places
    header, ner, sst5 = output.splitlines()[1:4]
    assert "tiny: increase" in header
    assert ner.startswith("NER    F1")
    assert "UNER EWT" in ner
    assert sst5.startswith("SST-5  accuracy")
    assert "Figure 2: " in output
    out = folder / "out"
    assert (out / "elmo-table.md").read_text().count("\n## ") == 3
    assert {path.name for path in out.glob("*.png")} == {"elmo-table.png", "elmo-weights.png"}
    here.clear()
    status, again, errors = run(*options(folder), "--quiet")
    assert (status, again, errors, here) == (0, output, "", [])


def test_json_has_what_the_models_themselves_say(run: Run, folder: Path, here: list[list[str]]) -> None:
    status, output, errors = run(*options(folder, "ner"), "--tables", "1", "--seeds", "2", "--json", "--quiet")
    assert (status, errors) == (0, "")
    told = json.loads(output)
    assert told["failed"] == {}
    assert told["unfinished"] == []
    scores = {
        variant: [
            100 * read_json(folder / "out" / f"ner-{variant}-seed-{seed}" / "config.json", "")["results"]["valid_f1"]
            for seed in (1, 2)
        ]
        for variant in ("plain", "tiny-input-lambda-0.001")
    }
    plain, tiny = (sum(found) / 2 for found in scores.values())
    ner = told["rows"]["ner"]
    assert ner["plain"]["mean"] == pytest.approx(plain)
    assert ner["elmo"]["tiny"]["absolute"] == pytest.approx(tiny - plain)
    assert ner["elmo"]["tiny"]["relative"] == pytest.approx(100 * (tiny - plain) / (100 - plain))


class KilledAfterAStep(TrainingReporter):
    """Breaks a run off after its first step, as a kill would."""

    def on_step(self, step: Any, total: int) -> None:
        raise KeyboardInterrupt


def test_a_half_finished_table_goes_on_where_it_was(
    run: Run, folder: Path, here: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "REDUCED", f"{plan.REDUCED} --epochs 3 --batch 8 --checkpoint-every 0")
    chosen = [*options(folder, "ner"), "--tables", "1", "--json", "--quiet"]
    status, output, errors = run(*chosen)
    assert status == 0, errors
    expected = json.loads(output)["rows"]
    out = folder / "out"
    shutil.rmtree(out / "ner-plain-seed-1")  # its record is enough
    name = "ner-tiny-input-lambda-0.001-seed-1"
    shutil.rmtree(out / name)
    (out / f"{name}.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(import_module("relmo.cli.train"), "TrainingReporter", KilledAfterAStep)
        here[:], command = [], here[-1]
        with pytest.raises(SystemExit):
            main(command)
    assert (out / name / "run" / "checkpoint.safetensors").exists()
    found = json.loads(run(*chosen)[1])
    assert here == [["train", "tagger", "--resume", "--out", str(out / name)]]
    assert found["rows"] == expected
    assert not (out / name / "run").exists()


@pytest.fixture
def tuned(folder: Path) -> list[object]:
    """Options that fine-tune a biLM with an output layer for one row."""
    bilm().save_pretrained(folder / "lm")
    chosen = ["--data", folder / "data", "--model", f"lm={folder / 'lm'}", "--out", folder / "out", "--device", "cpu"]
    return [*chosen, "--reduced", "--rows", "ner", "--tables", "1", "--seeds", "2", "--fine-tune", "--json"]


def test_a_bilm_is_fine_tuned_on_the_training_text_before_its_networks_are_trained(
    run: Run, folder: Path, tuned: list[object], here: list[list[str]]
) -> None:
    status, output, errors = run(*tuned)
    assert status == 0, errors
    out = folder / "out"
    assert [command[1] for command in here] == ["bilm", *["tagger"] * 6]
    assert sum(str(out / "ner-lm-tuned") in command for command in here[1:]) == 2
    told = json.loads(output)
    scores = {
        name: load(source, kinds="bilm").with_tokenizer("whitespace").evaluate(out / "texts" / "ner-valid.txt")
        for name, source in {"before": str(folder / "lm"), "after": str(out / "ner-lm-tuned")}.items()
    }
    ner = told["rows"]["ner"]
    perplexities = ner["fine_tuning"]["lm"]
    assert perplexities["before"] == pytest.approx(scores["before"].perplexity, rel=1e-5)
    assert perplexities["after"] == pytest.approx(scores["after"].perplexity, rel=1e-5)
    assert perplexities["before"] != pytest.approx(perplexities["after"])
    lines = (out / "texts" / "ner-train.txt").read_text().splitlines()
    assert perplexities["tokens"] == sum(len(line.split()) + 1 for line in lines)  # with the ends
    assert ner["elmo"]["lm-tuned"]["seeds"] == 2
    here.clear()
    shutil.rmtree(out / "texts")  # the records are enough
    shutil.rmtree(out / "ner-lm-tuned")
    status, again, errors = run(*tuned, "--quiet")
    assert (status, json.loads(again), errors, here) == (0, told, "", [])


def test_networks_wait_for_a_bilm_that_could_not_be_fine_tuned(
    run: Run, folder: Path, tuned: list[object], here: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fine_tuning, "write_texts", lambda row, data, texts: None)
        status, output, _ = run(*tuned)
    assert status == 2
    told = json.loads(output)
    assert list(told["failed"]) == ["ner-lm-tuned"]
    assert told["unfinished"] == [f"ner-lm-tuned-input-lambda-0.001-seed-{seed}" for seed in (1, 2)]
    assert told["rows"]["ner"]["elmo"]["lm"]["seeds"] == 2
    here.clear()
    status, output, errors = run(*tuned)
    assert status == 0, errors
    assert [command[1] for command in here] == ["bilm", "tagger", "tagger"]
    with monkeypatch.context() as patch:
        patch.setattr(plan, "REDUCED_TUNING", "--epochs 2 --threads 1")
        status, _, errors = run(*tuned)  # with other settings
    assert status == 2
    assert "ner-lm-tuned.json: has other settings" in errors


def test_a_killed_fine_tuning_goes_on_to_the_same_results(
    run: Run, folder: Path, tuned: list[object], here: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "REDUCED_TUNING", "--epochs 3 --threads 1 --batch 1 --checkpoint-every 0")
    status, output, errors = run(*tuned)
    assert status == 0, errors
    expected = json.loads(output)["rows"]
    out = folder / "out"
    command = here[0]
    for path in out.glob("ner-lm-tuned*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(import_module("relmo.cli.train"), "TrainingReporter", KilledAfterAStep)
        with pytest.raises(SystemExit):
            main(command)
    assert (out / "ner-lm-tuned" / "run" / "checkpoint.safetensors").exists()
    here.clear()
    status, output, errors = run(*tuned)
    assert status == 0, errors
    assert here[0] == ["train", "bilm", "--resume", "--out", str(out / "ner-lm-tuned")]
    assert len(here) == 3
    assert json.loads(output)["rows"] == expected


def test_trainings_are_processes_of_their_own_and_one_that_was_run_by_hand_counts(run: Run, folder: Path) -> None:
    chosen = [*options(folder, "ner"), "--tables", "1"]
    write_slices(folder / "data", ["ner"], folder / "out" / "data")
    by_hand, other = run(*chosen, "--dry-run")[1].splitlines()
    AtOnce(shlex.split(by_hand)[1:], str(folder / "said"))
    status, _, errors = run(*chosen, "--jobs", "2")
    assert status == 0, errors
    assert [line for line in errors.splitlines() if line.startswith("relmo train")] == [other]
    assert "(2 of 2)" in errors
    assert "saved to" in (folder / "out" / "ner-tiny-input-lambda-0.001-seed-1.log").read_text()


def test_one_that_fails_is_told_in_a_line_after_the_table(run: Run, folder: Path, here: list[list[str]]) -> None:
    (folder / "data" / ROWS["sst5"].train).write_text("(3 (2 It)\n")
    status, output, errors = run(*options(folder), "--tables", "1", "--quiet")
    assert status == 2
    assert errors.count("\n") == 1
    assert "2 trainings failed, such as sst5-plain-seed-1: error: " in errors
    assert "train.txt" in errors
    assert "\nNER" in output


def test_data_that_is_not_there_is_one_line_that_names_the_file(run: Run, folder: Path, here: list[list[str]]) -> None:
    status, output, errors = run("--data", folder / "data", "--out", folder / "out", "--rows", "ner,snli")
    assert (status, output) == (2, "")
    assert errors.count("\n") == 1
    assert f"SNLI: {folder / 'data' / ROWS['snli'].train}" in errors
    assert not (folder / "out").exists()
    assert here == []


def test_a_dry_run_prints_commands_and_writes_nothing(run: Run, folder: Path) -> None:
    chosen = ["--rows", "srl", "--tables", "2", "--model", "small", "--model", "big=b/original", "--dry-run"]
    status, output, errors = run("--data", folder / "nowhere", "--out", folder / "out", *chosen)
    assert (status, errors) == (0, "")
    lines = output.splitlines()
    assert len(lines) == 1 + 3 + 3
    assert all(line.startswith(f"relmo train srl {folder / 'nowhere' / ROWS['srl'].train} --valid ") for line in lines)
    assert sum("--elmo b/original" in line for line in lines) == 3
    assert not (folder / "out").exists()


def test_what_is_finished_is_shown_without_training(run: Run, folder: Path, here: list[list[str]]) -> None:
    status, output, errors = run(*options(folder), "--jobs", "0")
    assert status == 0
    assert here == []
    assert "6 trainings are not finished" in errors
    assert "90.15" in output


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--rows", "sst2"], "--rows sst2: choose from squad, snli"),
        (["--tables", "3"], "--tables 3: choose from 1, 2, placement, weights"),
        (["--model", "words"], "--model words"),
        (["--jobs", "-1"], "--jobs"),
        (["--seeds", "0"], "--seeds"),
    ],
)
def test_what_makes_no_sense_is_one_line(run: Run, tmp_path: Path, wrong: list[str], said: str) -> None:
    status, output, errors = run("--out", tmp_path / "out", *wrong)
    assert (status, output) == (2, "")
    assert said in errors
    assert errors.count("\n") == 1

"""A damaged run folder: going on ends in one clear line, or in the weights of a run that was never damaged.

A run of each kind is broken off once; its folder is copied, damaged in one place and resumed.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.cli import main
from relmo.disk.files import seal
from relmo.errors import RelmoError
from relmo.runs.folder import CHECKPOINT
from relmo.runs.progress import Reporter
from relmo.runs.run import read_metrics
from relmo.runs.train_bilm import train_bilm
from relmo.runs.train_lm import train_lm
from relmo.runs.train_skipgram import train_skipgram
from relmo.runs.train_task import train_task
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTextSettings, BiLMTrainSettings
from relmo.settings.lm import (
    LanguageModelSettings,
    LMSettings,
    SkipgramModelSettings,
    SkipgramSettings,
    SkipgramTextSettings,
    SkipgramTrainSettings,
)
from relmo.settings.sections import TrainSettings
from relmo.store.folder import read_tensors, write_tensors
from relmo.tasks.tagger import Tagger
from support.tagging import conllu, settings

ALICE = Path(relmo.__file__).parent / "data" / "alice.txt"
TRAIN: dict[str, Any] = {"checkpoint_every": 0.0, "validate_every": 2, "log_every": 1, "threads": 1, "device": "cpu"}
LM = LMSettings(
    model=LanguageModelSettings(hidden=8, embedding=4, dropout=0.1),
    train=TrainSettings(batch=8, unroll=16, epochs=0.05, average=0.9, **TRAIN),
)
BILM = BiLMSettings(
    text=BiLMTextSettings(valid_fraction=0.1),
    model=BiLMModelSettings(filters=("1x4",), char_dim=4, hidden=8, projection=4, samples=16, max_characters=12),
    train=BiLMTrainSettings(batch=4, unroll=8, epochs=0.3, **TRAIN),
)
SKIPGRAM = SkipgramSettings(
    text=SkipgramTextSettings(min_count=1, valid_fraction=0.1),
    model=SkipgramModelSettings(dimensions=4, subsample=1.0),
    train=SkipgramTrainSettings(batch=64, epochs=0.2, **TRAIN),
)


class Broken(Reporter):
    """Breaks a run off after its third step, as a kill would."""

    def on_step(self, step: Any, total: int) -> None:
        if step.number == 3:
            raise InterruptedError


class Heard(Reporter):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)


@dataclass
class Run:
    """A run that was broken off after its third step, and how it goes on."""

    folder: Path
    go_on: Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    place = tmp_path_factory.mktemp("runs")
    text = place / "text.txt"
    text.write_text(ALICE.read_text(encoding="utf-8")[2_000:12_000], encoding="utf-8")
    train, dev = conllu(place / "train.conllu", 40), conllu(place / "dev.conllu", 10, seed=1)
    tagging = settings(text={"valid": str(dev)}, input={"filters": ("2x4",)}, train={"epochs": 1, **TRAIN})
    functions = {
        "lm": partial(train_lm, [str(text)], LM),
        "bilm": partial(train_bilm, [str(text)], BILM),
        "skipgram": partial(train_skipgram, [str(text)], SKIPGRAM),
        "tagger": partial(train_task, Tagger, [str(train)], tagging),
    }
    made = {}
    for kind, function in functions.items():
        with pytest.raises(InterruptedError):
            function(place / kind, reporter=Broken())
        assert (place / kind / CHECKPOINT).exists()
        made[kind] = Run(place / kind, function)
    return made


@contextmanager
def copied(run: Run, tmp_path: Path) -> Iterator[Path]:
    """A copy of a run's folder, which goes afterwards."""
    yield Path(shutil.copytree(run.folder, tmp_path / "copy"))
    shutil.rmtree(tmp_path / "copy")


def one_line(run: Run, folder: Path) -> str:
    """The message of the error that going on gives."""
    with pytest.raises(RelmoError) as caught:
        run.go_on(folder, resume=True)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message


Change = Callable[[Path], object]


def flip(name: str, place: float) -> Change:
    """Changes a bit of a file, at this share of its length."""

    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[int(place * (len(data) - 1))] ^= 4
        (folder / name).write_bytes(data)

    return change


def content(name: str, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data)


def edit(name: str, change: Callable[[dict[str, Any]], Any]) -> Change:
    """Edits a JSON file, as a user might."""

    def edited(folder: Path) -> None:
        values = json.loads((folder / name).read_text(encoding="utf-8"))
        change(values)
        (folder / name).write_text(json.dumps(values), encoding="utf-8")

    return edited


def piped(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def linked(name: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return change


def out_of_range(name: str) -> Change:
    def change(folder: Path) -> None:
        ids = np.fromfile(folder / name, dtype=np.uint16 if name.endswith("ids") else np.int32)
        ids[len(ids) // 2] = 60_000
        ids.tofile(folder / name)

    return change


def swap_lines(name: str) -> Change:
    def change(folder: Path) -> None:
        first, *lines, last = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / name).write_text("".join([last, *lines, first]), encoding="utf-8")

    return change


RUN, ENCODED = "run/run.json", "run/encoded.json"
EVERY: dict[str, Change] = {
    **{
        f"{name} {what}": change
        for name in (RUN, ENCODED)
        for what, change in {
            "empty": content(name, b""),
            "no UTF-8": content(name, b"\xff"),
            "a list": content(name, b"[]"),
            "a number": content(name, b"3"),
            "no keys": content(name, b"{}"),
            "null": content(name, b"null"),
            "nested": content(name, b"[" * 100_000),
            "a huge number": content(name, b"9" * 10_000),
            "a changed bit": flip(name, 0.3),
            "a seal that is none": edit(name, lambda values: values.update(digest=[])),
            "a pipe": piped(name),
            "a device": linked(name, "/dev/zero"),
            "too large": lambda folder, name=name: os.truncate(folder / name, 1 << 40),
        }.items()
    },
    "other settings": edit(RUN, lambda run: run["settings"]["train"].update(lr=0.5)),
    "no files": edit(RUN, lambda run: run.update(files=None)),
    "no settings": edit(RUN, lambda run: run.update(settings=[])),
    "checkpoint empty": content(CHECKPOINT, b""),
    "checkpoint a changed bit": flip(CHECKPOINT, 0.9),
    "checkpoint a pipe": piped(CHECKPOINT),
    "checkpoint a device": linked(CHECKPOINT, "/dev/zero"),
    "checkpoint too large": lambda folder: os.truncate(folder / CHECKPOINT, 1 << 40),
    "metrics a pipe": piped("metrics.jsonl"),
    "metrics without end": linked("metrics.jsonl", "/dev/zero"),
    "metrics too large": lambda folder: os.truncate(folder / "metrics.jsonl", 1 << 40),
}
OWN: dict[str, dict[str, Change]] = {
    "lm": {
        "an id": flip("run/train.ids", 0.5),
        "an id to validate on": flip("run/valid.ids", 0.9),
        "an id too large": out_of_range("run/train.ids"),
        "ids cut short": lambda folder: os.truncate(folder / "run/train.ids", 100),
        "no ids": content("run/train.ids", b""),
        "ids gone": lambda folder: (folder / "run/train.ids").unlink(),
        "ids a pipe": piped("run/train.ids"),
        "ids a device": linked("run/train.ids", "/dev/zero"),
        "words": swap_lines("run/lexicon.txt"),
        "words a pipe": piped("run/lexicon.txt"),
        "figures": edit(ENCODED, lambda note: note["parts"]["valid"].reverse()),
        "a vocabulary of the model": swap_lines("vocabulary.txt"),
    },
    "bilm": {
        "a word": flip("run/train.ids", 0.5),
        "a word too large": out_of_range("run/valid.ids"),
        "no words": content("run/train.ids", b""),
        "words a pipe": piped("run/valid.ids"),
        "the lexicon": swap_lines("run/lexicon.txt"),
        "the size": edit(ENCODED, lambda note: note.update(vocab_size=-1)),
        "its settings": edit(ENCODED, lambda note: note.update(settings=None)),
    },
    "skipgram": {"an id": flip("run/train.ids", 0.5), "words": swap_lines("run/lexicon.txt")},
    "tagger": {
        "another checksum": edit(ENCODED, lambda note: note.update(examples=3)),
        "labels": swap_lines("labels.txt"),
    },
}
DAMAGES = [(kind, name) for kind in OWN for name in (*(EVERY if kind in ("lm", "tagger") else ()), *OWN[kind])]


@pytest.mark.parametrize(("kind", "name"), DAMAGES, ids=lambda value: value.replace("/", "-"))
def test_going_on_with_a_damaged_folder_is_one_line(kind: str, name: str, runs: dict[str, Run], tmp_path: Path) -> None:
    with copied(runs[kind], tmp_path) as folder:
        (EVERY | OWN[kind])[name](folder)
        one_line(runs[kind], folder)


def signed(change: Callable[[dict[str, torch.Tensor], Any], Any]) -> Change:
    """A checkpoint with another content and the right digest of it."""

    def changed(folder: Path) -> None:
        tensors, values = read_tensors(folder / CHECKPOINT)
        given = change(tensors, values)
        write_tensors(folder / CHECKPOINT, tensors, values if given is None else given)

    return changed


def without(name: str) -> Change:
    return signed(lambda tensors, values: tensors.__delitem__(name))


def renamed(old: str, new: str) -> Change:
    def change(tensors: dict[str, torch.Tensor], values: Any) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return signed(change)


def of_value(**values: Any) -> Change:
    return signed(lambda tensors, old: old | values)


def of_tensor(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return signed(lambda tensors, values: tensors.update({name: make(tensors[name])}))


CHECKPOINTS: dict[str, Change] = {
    "no tensors": signed(lambda tensors, values: tensors.clear()),
    "no weight": without("model.0"),
    "a weight of another shape": of_tensor("model.0", lambda t: t[:-1]),
    "a weight of one number": of_tensor("model.0", lambda t: t.flatten()[:1]),
    "a weight of another type": of_tensor("model.0", lambda t: t.double()),
    "no average": without("average.1"),
    "a tensor too many": signed(lambda tensors, values: tensors.update({"model.99": torch.zeros(3)})),
    "half an optimizer's state": without("optimizer.0.exp_avg"),
    "an optimizer's state of another shape": of_tensor("optimizer.0.exp_avg_sq", lambda t: t[:1]),
    "an optimizer's step": of_tensor("optimizer.0.step", lambda t: t.expand(3).clone()),
    "another optimizer's state": renamed("exp_avg", "sum"),
    "a state of no parameter": renamed("optimizer.0", "optimizer.99"),
    "a state of no number": renamed("optimizer.0", "optimizer.x"),
    "a state of deeper names": renamed("optimizer.0", "optimizer.0.0"),
    "no carry": without("carry.0"),
    "a carry of another batch": of_tensor("carry.0", lambda t: t[:3]),
    "a carry of another type": of_tensor("carry.1", lambda t: t.long()),
    "no random state": without("random.cpu"),
    "a short random state": of_tensor("random.cpu", lambda t: t[:100]),
    "a random state that is none": of_tensor("random.cpu", lambda t: torch.full_like(t, 255)),
    "clipped steps": of_tensor("clipped", lambda t: t.expand(2).clone()),
    "no values": signed(lambda tensors, values: []),
    "no step": signed(lambda tensors, values: {"best": 1.0, "since_best": 0}),
    "step -1": of_value(step=-1),
    "step 0": of_value(step=0),
    "a step beyond the last": of_value(step=10**6),
    "a step of a huge number": of_value(step=10**400),
    "half a step": of_value(step=1.5),
    "a true step": of_value(step=True),
    "a step of letters": of_value(step="3" * 100_000),
    "no best": of_value(best=None),
    "a best that is none": of_value(best=float("nan")),
    "a best of letters": of_value(best="x"),
    "since the best": of_value(since_best=-1),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_of_another_run_is_one_line_whatever_its_digest(
    name: str, runs: dict[str, Run], tmp_path: Path
) -> None:
    with copied(runs["lm"], tmp_path) as folder:
        CHECKPOINTS[name](folder)
        assert "does not belong to this run" in one_line(runs["lm"], folder)


@pytest.mark.parametrize("kind", ["bilm", "skipgram", "tagger"])
def test_a_checkpoint_of_another_kind_of_run_is_one_line(kind: str, runs: dict[str, Run], tmp_path: Path) -> None:
    with copied(runs["lm"], tmp_path) as folder:
        shutil.copyfile(runs[kind].folder / CHECKPOINT, folder / CHECKPOINT)
        assert "does not belong to this run" in one_line(runs["lm"], folder)
    with copied(runs[kind], tmp_path) as folder:
        shutil.copyfile(runs["lm"].folder / CHECKPOINT, folder / CHECKPOINT)
        assert "does not belong to this run" in one_line(runs[kind], folder)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "model.safetensors")[0]


METRICS: dict[str, bytes] = {
    "no UTF-8": b"\xff\xfe\n",
    "no JSON": b"{\n",
    "a list": b"[]\n",
    "a number": b"3\n",
    "no step": b'{"epoch": 1.0, "loss": 2.0}\n',
    "a step of letters": b'{"step": "1", "epoch": 1.0, "loss": 2.0}\n',
    "no loss": b'{"step": 1, "epoch": 1.0}\n',
    "a list of scores": b'{"step": 1, "epoch": 1.0, "loss": 2.0, "valid": []}\n',
    "nested": b"[" * 100_000 + b"\n",
    "a huge number": b'{"step": ' + b"9" * 4000 + b"}\n",
    "zeros": b"\0" * 200_000 + b"\n",
}


@pytest.mark.parametrize("kind", ["lm", "tagger"])
def test_damaged_lines_of_metrics_cost_nothing_but_themselves(kind: str, runs: dict[str, Run], tmp_path: Path) -> None:
    with copied(runs[kind], tmp_path) as folder:
        runs[kind].go_on(folder, resume=True)
        expected, steps = weights(folder), [record["step"] for record in read_metrics(folder / "metrics.jsonl")]
    with copied(runs[kind], tmp_path) as folder:
        first, *rest = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_bytes(b"".join([first, *METRICS.values(), *rest, b'{"cut sh']))
        heard = Heard()
        runs[kind].go_on(folder, resume=True, reporter=heard)
        assert [record["step"] for record in read_metrics(folder / "metrics.jsonl")] == steps
        assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(folder).items())
    (lost,) = [message for message in heard.messages if "metrics.jsonl" in message]
    assert int(lost.split(": ")[1].split()[0]) >= len(METRICS)


def test_a_task_whose_metrics_are_lost_still_ends(runs: dict[str, Run], tmp_path: Path) -> None:
    class Losing(Reporter):
        def on_step(self, step: Any, total: int) -> None:
            if step.number == total:
                (tmp_path / "copy" / "metrics.jsonl").write_bytes(b"\xff\n")

    with copied(runs["tagger"], tmp_path) as folder:
        results = runs["tagger"].go_on(folder, resume=True, reporter=Losing())
        assert "best_epoch" not in results
        assert (
            results["valid_accuracy"]
            == Tagger.from_pretrained(folder, device="cpu")
            .evaluate(str(runs["tagger"].folder.parent / "dev.conllu"))
            .score
        )


@pytest.mark.parametrize("name", [RUN, ENCODED, CHECKPOINT])
def test_the_command_says_it_in_one_line(
    name: str, runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with copied(runs["lm"], tmp_path) as folder:
        content(name, b"[]")(folder)
        with pytest.raises(SystemExit) as caught:
            main(["train", "lm", "--out", str(folder), "--resume", "--quiet"])
        errors = capsys.readouterr().err
    assert caught.value.code == 2
    assert Path(name).name in errors.replace("\n", "")
    assert "Traceback" not in errors


@pytest.fixture
def seeds(tmp_path: Path) -> Run:
    """A tagger whose first seed is done, broken off in the second."""
    train, dev = conllu(tmp_path / "train.conllu", 10), conllu(tmp_path / "dev.conllu", 4, seed=1)
    made = settings(text={"valid": str(dev)}, input={"filters": ("2x4",)}, train={"epochs": 1, "seeds": 2} | TRAIN)
    function = partial(train_task, Tagger, [str(train)], made)

    class Second(Reporter):
        def on_message(self, message: str) -> None:
            if message.startswith("seed 2"):
                raise InterruptedError

    with pytest.raises(InterruptedError):
        function(tmp_path / "out", reporter=Second())
    return Run(tmp_path / "out", function)


def test_results_of_a_finished_seed_that_were_damaged_are_one_line_and_a_way_on(seeds: Run, tmp_path: Path) -> None:
    note = seeds.folder / "run" / "seed-1.json"
    with copied(seeds, tmp_path) as folder:
        expected = seeds.go_on(folder, resume=True)["seeds"]
    whole = json.loads(note.read_text())
    for damaged in ("[]", json.dumps(whole | {"results": 3}), json.dumps(seal({}) | {"results": {}})):
        note.write_text(damaged)
        message = one_line(seeds, seeds.folder)
    assert f"remove {note} and {seeds.folder / 'seed-1'}" in message
    note.unlink()
    shutil.rmtree(seeds.folder / "seed-1")
    assert seeds.go_on(seeds.folder, resume=True)["seeds"] == expected


@pytest.mark.parametrize("name", ["report.json", "labels.txt", "vocabulary.txt", "model.safetensors", "config.json"])
def test_a_finished_seed_whose_files_were_damaged_is_one_line(name: str, seeds: Run) -> None:
    note = seeds.folder / "run" / "seed-1.json"
    values = {key: value for key, value in json.loads(note.read_text()).items() if key != "digest"}
    values["results"]["valid_accuracy"] = 1.5  # so that the first seed is the best
    note.write_text(json.dumps(seal(values)))
    (seeds.folder / "seed-1" / name).write_bytes(b"[]\n")
    assert name in one_line(seeds, seeds.folder)

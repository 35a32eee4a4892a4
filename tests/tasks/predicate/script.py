"""What a user does with the new task, one after another, in one process that has it in its package."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from relmo.cli import main


def run(*arguments: str, code: int = 0) -> None:
    """A command, which must end so."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == code, arguments


def sentences(count: int) -> str:
    """`Anna sees Bob`: who does what to whom depends on which verb is marked, and the sense on the verb."""
    lines = []
    for number in range(count):
        one, two, three = ("Anna", "Bob", "Carl")[number % 3 :] + ("Anna", "Bob", "Carl")[: number % 3]
        first, second = ("sees", "hears") if number % 2 else ("hears", "sees")
        words = [one, first, two, "who", second, three]
        at = 1 if number % 4 < 2 else 4
        roles = ["A0", "V", "A1", "O", "O", "O"] if at == 1 else ["O", "O", "A0", "O", "V", "A1"]
        lines.append({"words": words, "predicate": at, "sense": f"{words[at]}.01", "roles": roles})
    return "".join(json.dumps(line) + "\n" for line in lines)


run("train", "predicate", "--help")
assert "torch" not in sys.modules
Path("train.jsonl").write_text(sentences(48))
Path("dev.jsonl").write_text(sentences(12))
SMALL = ["--word-dim", "8", "--char-dim", "0", "--hidden", "8", "--mark-dim", "3", "--batch", "8", "--lr", "0.05"]
HOW = ["--epochs", "8", "--device", "cpu", "--quiet"]
TRAIN = ["train", "predicate", "train.jsonl", "--valid", "dev.jsonl", *SMALL, *HOW]
run(*TRAIN, "--out", "model")

import relmo  # noqa: E402
from relmo.runs.progress import Reporter  # noqa: E402
from relmo.runs.train_task import train_task  # noqa: E402
from relmo.settings.kinds import settings_class  # noqa: E402

model = relmo.load("model", device="cpu")
assert type(model) is relmo.PredicateTagger
assert model.evaluate("dev.jsonl").score == 1.0
assert sorted(path.name for path in Path("model").glob("*.txt")) == [
    "role-labels.txt",
    "sense-labels.txt",
    "vocabulary.txt",
]
first, second = model.predict([("Anna sees Bob who hears Carl", at) for at in (1, 4)])
assert (first.predicate, first.sense, first.roles) == ("sees", "sees.01", ["A0", "V", "A1", "O", "O", "O"])
assert (second.sense, second.roles[2:]) == ("hears.01", ["A0", "O", "V", "A1"])
print(first.as_text())

Path("lines.txt").write_text("4\tAnna sees Bob who hears Carl\n")
run("predict", "model", "lines.txt", "--json")
run("predict", "model", "lines.txt")
run("evaluate", "model", "dev.jsonl", "--quiet")
run("convert", "model", "half", "--precision", "float16", "--quiet")
run("evaluate", "half", "dev.jsonl", "--quiet")
run("info", "model", "--quiet")
run(*TRAIN, "--out", "model", code=2)


class StopAfter(Reporter):
    """Breaks a run off after some steps, as a kill would."""

    steps = 9

    def on_step(self, step: object, total: int) -> None:
        """After each step."""
        self.steps -= 1
        if not self.steps:
            raise KeyboardInterrupt


def tensors(folder: str) -> bytes:
    """The weights."""
    return Path(folder, "model.safetensors").read_bytes()


settings = model.settings
assert type(settings) is settings_class("predicate")
once = dataclasses.replace(settings, train=dataclasses.replace(settings.train, checkpoint_every=0.0))
with pytest.raises(KeyboardInterrupt):
    train_task(relmo.PredicateTagger, ["train.jsonl"], once, Path("broken"), reporter=StopAfter())
run("train", "predicate", "--out", "broken", "--resume", "--quiet")
assert tensors("broken") == tensors("model")
run(*TRAIN, "--seeds", "2", "--out", "broken", "--overwrite")
assert relmo.load("broken", device="cpu").evaluate("dev.jsonl").score > 0.5

"""The frame that tasks share, tried on a task of two sentences that is nowhere but here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from relmo.errors import RelmoError
from relmo.networks.pairs import EncoderPair
from relmo.runs.reporter import Reporter
from relmo.runs.train_task import train_task
from relmo.settings.task import InputSettings, TaskTextSettings, TaskTrainSettings
from relmo.tasks.scores import Report, class_report
from relmo.tasks.task import Labels, Task
from relmo.text.readers import Pair, read_pairs


@dataclass(frozen=True, kw_only=True)
class NoModel:
    """A section without settings."""


@dataclass(frozen=True, kw_only=True)
class SameSettings:
    """Settings of the task."""

    text: TaskTextSettings = field(default_factory=TaskTextSettings)
    input: InputSettings = field(default_factory=lambda: InputSettings(word_dim=8, char_dim=0))
    model: NoModel = field(default_factory=NoModel)
    train: TaskTrainSettings = field(default_factory=TaskTrainSettings)


class Same(Task[Pair, str]):
    """Whether two sentences are the same word."""

    kind = "same"
    settings_type = SameSettings

    @staticmethod
    def check(settings: Any) -> None:
        pass

    @classmethod
    def read(cls, path: str | Path, text: Any, *, training: bool = False) -> list[Pair]:
        pairs = list(read_pairs(path, split=str.split))
        return [*pairs, *(Pair(pair.second, pair.first, pair.label) for pair in pairs)] if training else pairs

    @classmethod
    def answers(cls, example: Pair, settings: Any) -> list[str]:
        return [str(example.label)]

    @classmethod
    def make_body(cls, settings: Any, labels: Labels, *, input_size: int, again_size: int) -> nn.Module:
        return EncoderPair(input_size=input_size, classes=len(labels), hidden=16, again_size=again_size, dropout=0.0)

    @staticmethod
    def sides(example: Pair) -> Sequence[Sequence[str]]:
        return example.first, example.second

    def target(self, example: Pair) -> np.ndarray:
        return self.labels.ids([str(example.label)])[0]

    def decode(self, output: Tensor) -> list[str]:
        return [self.labels.symbols[i] for i in output.argmax(dim=1).tolist()]

    def score(self, examples: Sequence[Pair], predictions: Sequence[str]) -> Report:
        return class_report([str(example.label) for example in examples], predictions)


@pytest.fixture
def file(tmp_path: Path) -> str:
    def lines() -> Iterator[str]:
        yield "label\tsentence1\tsentence2\n"
        for i in range(60):
            first, second = "abcd"[i % 4], "abcd"[(i // 4) % 4]
            yield f"{'yes' if first == second else 'no'}\t{first}\t{second}{' x' * (i % 3)}\n"

    path = tmp_path / "pairs.tsv"
    path.write_text("".join(lines()))
    return str(path)


def test_a_task_of_two_sentences_needs_nothing_but_its_own(file: str, tmp_path: Path) -> None:
    settings = SameSettings(
        text=TaskTextSettings(valid=file), train=TaskTrainSettings(epochs=15, batch=16, lr=0.02, device="cpu")
    )
    results = train_task(Same, [file], settings, tmp_path / "out")
    assert results["train_examples"] == 120  # each pair both ways round
    assert results["valid_examples"] == 60
    assert results["valid_accuracy"] == 1.0
    model = Same.from_pretrained(tmp_path / "out", device="cpu")
    assert model.evaluate(file).score == 1.0
    assert list(model.predict_words([(["a"], ["a"]), (["b"], ["c", "x"])])) == ["yes", "no"]


def test_seeds_that_are_finished_are_kept_when_a_later_one_fails(file: str, tmp_path: Path) -> None:
    class Failing(Reporter):
        def said(self, message: str) -> None:
            if message.startswith("seed 2"):
                raise RelmoError("the loss is nan")

    train = TaskTrainSettings(epochs=1, batch=16, device="cpu", seeds=2)
    settings = SameSettings(text=TaskTextSettings(valid=file), train=train)
    with pytest.raises(RelmoError, match="nan"):
        train_task(Same, [file], settings, tmp_path / "out", reporter=Failing())
    assert Same.from_pretrained(tmp_path / "out" / "seed-1", device="cpu").evaluate(file).count == 60
    assert len(train_task(Same, [file], settings, tmp_path / "out", resume=True)["seeds"]) == 2

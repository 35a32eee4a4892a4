"""How long a run takes beside how long its plan said: language model, biLM, skip-gram, tagger, each in its usual form.

    python recipes/plan_times.py [FILE.iob2]

Prints a row for each: the plan's seconds, the seconds of the training steps (validation, reading and saving aside), and
their ratio, which should lie between 2/3 and 3/2 on a machine with nothing else to do. The tagger needs a file of
names; the one that ships is used where none is given.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import relmo
from relmo.config import build, read_preset
from relmo.runs.reporter import Reporter
from relmo.runs.train_bilm import train_bilm
from relmo.runs.train_lm import train_lm
from relmo.runs.train_skipgram import train_skipgram
from relmo.runs.train_task import train_task
from relmo.settings.bilm import BiLMSettings
from relmo.settings.lm import LMSettings
from relmo.settings.skipgram import SkipgramSettings
from relmo.settings.tagger import TaggerSettings
from relmo.tasks.tagger import Tagger
from relmo.training.loop import Step
from relmo.training.plan import Plan

DATA = Path(relmo.__file__).parent / "data"


class Clock(Reporter):
    """Keeps the plan, and adds up the time from step to step."""

    def __init__(self) -> None:
        self.planned = self.taken = self.last = 0.0

    def plan(self, plan: Plan) -> None:
        """The plan is made; what comes next is the run."""
        self.planned, self.last = plan.seconds, time.perf_counter()

    def stepped(self, step: Step, total: int) -> None:
        """A step more."""
        now = time.perf_counter()
        self.taken += now - self.last - step.validating
        self.last = now


def measure(name: str, train: Callable[..., Any], *arguments: Any) -> None:
    """Trains, and prints the row."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        train(*arguments, Path(folder) / "model", reporter=clock)
    print(f"{name:<28}{clock.planned:>8.1f} s said{clock.taken:>8.1f} s taken{clock.planned / clock.taken:>8.2f}")


def main() -> None:
    """All rows."""
    alice, names = [str(DATA / "alice.txt")], sys.argv[1:] or [str(DATA / "names.iob2")]
    lm: dict[str, Any] = {"train": {"device": "cpu", "epochs": 2.0}}
    measure("lm, characters", train_lm, alice, build(LMSettings, lm, {"model": {"hidden": 128}}))
    words = {"text": {"unit": "word"}, "model": {"hidden": 128, "softmax": "sampled", "samples": 256}}
    measure("lm, words, sampled softmax", train_lm, alice, build(LMSettings, lm, words))
    for preset, epochs in (("tiny", 4.0), ("small", 0.5)):
        settings = build(BiLMSettings, read_preset(preset, "bilm"), {"train": {"device": "cpu", "epochs": epochs}})
        measure(f"bilm, {preset}", train_bilm, alice, settings)
    measure("skipgram", train_skipgram, alice, build(SkipgramSettings, {"train": {"device": "cpu", "epochs": 4}}))
    brief = {"train": {"device": "cpu", "epochs": 4, "patience": None}}
    for title, elmo in (("tagger", {}), ("tagger with ELMo", {"input": {"elmo": "small"}})):
        settings = build(TaggerSettings, read_preset("ner", "tagger"), brief, elmo)
        measure(title, train_task, Tagger, names, settings)


if __name__ == "__main__":
    main()

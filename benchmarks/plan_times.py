"""Planned and measured training times: language model, biLM, skip-gram, tagger, each in its usual form.

    python -m benchmarks.plan_times [FILE.iob2]

Print one row each: the plan's seconds, the seconds of the training steps (without validation, reading and saving), and
their ratio, which should lie between 2/3 and 3/2 on an idle machine. The default FILE of the tagger is the bundled one.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import relmo
from relmo.config import build, read_preset
from relmo.runs.progress import Reporter
from relmo.runs.train_bilm import train_bilm
from relmo.runs.train_lm import train_lm
from relmo.runs.train_skipgram import train_skipgram
from relmo.runs.train_task import train_task
from relmo.settings.bilm import BiLMSettings
from relmo.settings.lm import LMSettings, SkipgramSettings
from relmo.settings.tasks import TaggerSettings
from relmo.tasks.tagger import Tagger
from relmo.training.loop import Plan, Step

DATA = Path(relmo.__file__).parent / "data"


class PlanTimer(Reporter):
    """Reporter that stores the planned seconds and adds up the time of the steps."""

    def __init__(self) -> None:
        self.planned = self.measured = self.last_time = 0.0

    def on_plan(self, plan: Plan) -> None:
        self.planned, self.last_time = plan.seconds, time.perf_counter()

    def on_step(self, step: Step, total: int) -> None:
        now = time.perf_counter()
        self.measured += now - self.last_time - step.validation_seconds
        self.last_time = now


def measure(name: str, train: Callable[..., Any], *arguments: Any) -> None:
    """Train and print the row."""
    timer = PlanTimer()
    with tempfile.TemporaryDirectory() as folder:
        train(*arguments, Path(folder) / "model", reporter=timer)
    ratio = timer.planned / timer.measured
    print(f"{name:<28}{timer.planned:>8.1f} s planned{timer.measured:>8.1f} s measured{ratio:>8.2f}")


def main() -> None:
    """Print all rows."""
    alice, names = [str(DATA / "alice.txt")], sys.argv[1:] or [str(DATA / "names.iob2")]
    lm: dict[str, Any] = {"train": {"device": "cpu", "epochs": 2.0}}
    measure("lm, characters", train_lm, alice, build(LMSettings, lm, {"model": {"hidden": 128}}))
    words = {"text": {"unit": "word"}, "model": {"hidden": 128, "softmax": "sampled", "samples": 256}}
    measure("lm, words, sampled softmax", train_lm, alice, build(LMSettings, lm, words))
    for preset, epochs in (("tiny", 4.0), ("small", 0.5)):
        settings = build(BiLMSettings, read_preset(preset, "bilm"), {"train": {"device": "cpu", "epochs": epochs}})
        measure(f"bilm, {preset}", train_bilm, alice, settings)
    measure("skipgram", train_skipgram, alice, build(SkipgramSettings, {"train": {"device": "cpu", "epochs": 4}}))
    short = {"train": {"device": "cpu", "epochs": 4, "patience": None}}
    for title, elmo in (("tagger", {}), ("tagger with ELMo", {"input": {"elmo": "small"}})):
        tagger = build(TaggerSettings, read_preset("ner", "tagger"), short, elmo)
        measure(title, train_task, Tagger, names, tagger)


if __name__ == "__main__":
    main()

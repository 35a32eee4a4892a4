"""Small passages with questions, and a small reader, for the tests of readers."""

import json
import random
from pathlib import Path
from typing import Any

from relmo.settings.sections import InputSettings, TaskTrainSettings
from relmo.settings.tasks import ReaderModelSettings, ReaderSettings, ReaderTextSettings

NAMES, TOWNS = ["Anna", "Bob Lee", "Carl"], ["Oslo", "New York", "Rome"]
FILLERS = ["Then,", "it was dark,", "one day", "some say"]


def questions(path: Path, passages: int, *, seed: int = 0, impossible: int = 0) -> Path:
    """SQuAD's format: passages such as `Then, it was dark, Bob Lee went to Rome!`, who and where to being asked, and
    `impossible` questions that have no answer."""
    generator = random.Random(seed)
    paragraphs = []
    for number in range(passages):
        name, town = generator.choice(NAMES), generator.choice(TOWNS)
        before = " ".join(generator.choice(FILLERS) for _ in range(generator.randint(0, 3)))
        passage = f"{before} {name} went to {town}!  {generator.choice(FILLERS)}"
        asked: list[dict[str, Any]] = [
            {
                "id": f"{number}-{question}",
                "question": question,
                "answers": [{"text": answer, "answer_start": passage.index(answer)}],
            }
            for question, answer in (("Who went?", name), ("Where to?", town))
        ]
        for more in range(impossible):
            asked.append({"id": f"{number}-{more}", "question": "Why?", "answers": [], "is_impossible": True})
        paragraphs.append({"context": passage, "qas": asked})
    path.write_text(json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


def reader_settings(**sections: dict[str, Any]) -> ReaderSettings:
    """Those of a small and quick reader."""
    return ReaderSettings(
        text=ReaderTextSettings(**sections.get("text", {})),
        input=InputSettings(**{"word_dim": 12, "char_dim": 0} | sections.get("input", {})),
        model=ReaderModelSettings(**{"hidden": 12, "dropout": 0.0} | sections.get("model", {})),
        train=TaskTrainSettings(
            **{"epochs": 2, "batch": 16, "lr": 0.02, "device": "cpu"} | sections.get("train", {})  # type: ignore[arg-type]
        ),
    )

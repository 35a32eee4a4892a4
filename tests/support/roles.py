"""Small texts with semantic roles, and settings, for the tests of their labellers."""

import json
import random
from pathlib import Path
from typing import Any

from relmo.settings.sections import InputSettings, TaskTrainSettings
from relmo.settings.tasks import SRLModelSettings, SRLSettings, SRLTextSettings

NAMES, VERBS, TIMES = ["Anna", "Bob", "Carl"], ["sees", "hears"], ["today", "now"]


def roles(path: Path, sentences: int, seed: int = 0) -> Path:
    """Sentences such as `Anna sees Bob today who hears Carl .`: who sees whom depends on which verb is asked about."""
    generator = random.Random(seed)
    lines = []
    for number in range(sentences):
        one, two, three = generator.sample(NAMES, 3)
        words = [one, generator.choice(VERBS), two, generator.choice(TIMES), "."]
        frames = [{"verb_index": 1, "tags": ["B-ARG0", "B-V", "B-ARG1", "B-ARGM-TMP", "O"]}]
        pos = ["NNP", "VBZ", "NNP", "RB", "."]
        if number % 3:
            words[4:] = ["who", generator.choice(VERBS), three, "."]
            pos[4:] = ["WP", "VBZ", "NNP", "."]
            frames[0]["tags"] = ["B-ARG0", "B-V", "B-ARG1", "B-ARGM-TMP", "O", "O", "O", "O"]
            frames.append({"verb_index": 5, "tags": ["O", "O", "B-ARG0", "O", "B-R-ARG0", "B-V", "B-ARG1", "O"]})
        if number % 7 == 6:
            words, pos, frames = ["Hello", "."], ["UH", "."], []
        lines.append(json.dumps({"words": words, "pos": pos, "frames": frames}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def settings(
    *,
    text: dict[str, Any] | None = None,
    input: dict[str, Any] | None = None,  # noqa: A002
    model: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
) -> SRLSettings:
    """Those of a small and quick labeller."""
    small = {"layers": 2, "hidden": 16, "mark_dim": 4, "detector": 6}
    return SRLSettings(
        text=SRLTextSettings(**(text or {})),
        input=InputSettings(**({"word_dim": 8, "char_dim": 0} | (input or {}))),
        model=SRLModelSettings(**(small | (model or {}))),
        train=TaskTrainSettings(**({"epochs": 3, "batch": 8, "lr": 0.03, "device": "cpu"} | (train or {}))),
    )

"""Small tagged texts and models for the tests of taggers, and a kill for the tests of all tasks."""

import random
from pathlib import Path
from typing import Any

import torch

from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.runs.progress import Reporter
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.sections import InputSettings, TaskTrainSettings
from relmo.settings.tasks import TaggerModelSettings, TaggerSettings, TaggerTextSettings
from relmo.text.vocabulary import SentenceVocabulary

NOUNS, VERBS, NAMES = ["dog", "cat", "bird", "tree"], ["sees", "barks", "runs"], ["Anna", "New York", "Bob Lee"]


class StopAfter(Reporter):
    """Breaks a run off after some steps, as a kill would."""

    def __init__(self, steps: int):
        self.steps = steps

    def on_step(self, step: Any, total: int) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise KeyboardInterrupt


def conllu(path: Path, sentences: int, seed: int = 0) -> Path:
    """Sentences such as `The dog sees .`, with universal tags."""
    generator = random.Random(seed)
    lines = []
    for _ in range(sentences):
        words = [("The", "DET"), (generator.choice(NOUNS), "NOUN"), (generator.choice(VERBS), "VERB"), (".", "PUNCT")]
        words = words[generator.randint(0, 1) :] * generator.randint(1, 3)
        lines += [f"{i}\t{w}\t_\t{t}\t_\t_\t0\t_\t_\t_" for i, (w, t) in enumerate(words, start=1)]
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def iob2(path: Path, sentences: int, seed: int = 0) -> Path:
    """Sentences such as `Bob Lee sees New York`, names as spans."""
    generator = random.Random(seed)
    lines = []
    for _ in range(sentences):
        for name, after in ((generator.choice(NAMES), "sees"), (generator.choice(NAMES), "and"), ("Anna", ".")):
            label = "LOC" if name == "New York" else "PER"
            first, *rest = name.split()
            lines += [f"{first}\tB-{label}", *(f"{word}\tI-{label}" for word in rest), f"{after}\tO"]
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def settings(
    *,
    text: dict[str, Any] | None = None,
    input: dict[str, Any] | None = None,  # noqa: A002
    model: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
) -> TaggerSettings:
    """Those of a small and quick tagger."""
    return TaggerSettings(
        text=TaggerTextSettings(**(text or {})),
        input=InputSettings(**({"word_dim": 8, "filters": ("2x6",), "char_dim": 4} | (input or {}))),
        model=TaggerModelSettings(**({"hidden": 8, "dropout": 0.1} | (model or {}))),
        train=TaskTrainSettings(**({"epochs": 3, "batch": 8, "lr": 0.02, "device": "cpu"} | (train or {}))),
    )


def tiny_bilm(seed: int = 0, *, lowercase: bool = False) -> BiLM:
    """A bidirectional language model that has learned nothing."""
    torch.manual_seed(seed)
    model = BiLMModelSettings(char_dim=4, filters=("1x4", "2x4"), max_characters=12, hidden=6, projection=3)
    made = BiLMSettings(model=model)
    text = type(made.text)(lowercase=lowercase)
    return BiLM(BiLMNetwork(model, vocab_size=None), BiLMSettings(text=text, model=model))


def word_bilm() -> BiLM:
    """One that reads words by their number."""
    torch.manual_seed(0)
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, "The", ".", *NOUNS, *VERBS])
    model = BiLMModelSettings(input="word", hidden=6, projection=3)
    return BiLM(BiLMNetwork(model, vocab_size=len(vocabulary)), BiLMSettings(model=model), vocabulary)

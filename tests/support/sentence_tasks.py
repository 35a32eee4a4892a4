"""Small labelled texts, pairs and language models for the tests of classifiers and pairs."""

import random
from pathlib import Path
from typing import Any

import torch

from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.settings.sections import InputSettings, TaskTrainSettings
from relmo.settings.tasks import (
    ClassifierModelSettings,
    ClassifierSettings,
    ClassifierTextSettings,
    ClassifierTrainSettings,
    PairsModelSettings,
    PairsSettings,
    PairsTextSettings,
)
from relmo.text.vocabulary import Vocabulary

FILLERS, MOODS = ["film", "plot", "scene", "actor"], {"good": "pos", "lovely": "pos", "bad": "neg", "dull": "neg"}
TREES = """\
(4 (2 A) (4 (4 lovely) (2 film)))
(0 (2 A) (0 (0 dull) (2 plot)))
(4 (4 Good) (2 scene))
(0 (0 Bad) (2 actor))
"""
INPUT = {"word_dim": 8, "char_dim": 0}
TRAIN = {"epochs": 3, "batch": 16, "lr": 0.02, "device": "cpu"}


def reviews(path: Path, texts: int, seed: int = 0) -> Path:
    """A table of texts such as `A dull film.`, with the label of the one word that has a mood; a third is positive."""
    generator = random.Random(seed)
    lines = ["label\ttext"]
    for _ in range(texts):
        mood = generator.choice([*MOODS, "bad", "dull"])
        words = [generator.choice(FILLERS) for _ in range(generator.randint(1, 6))]
        words.insert(generator.randint(0, len(words)), mood)
        lines.append(f"{MOODS[mood]}\tA {' '.join(words)}.")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def same_words(path: Path, pairs: int, seed: int = 0) -> Path:
    """A table of pairs: `same` where both sentences name the same thing."""
    generator = random.Random(seed)
    lines = ["gold_label\tsentence1\tsentence2"]
    for number in range(pairs):
        first, other = generator.sample(FILLERS, 2)
        second = first if number % 2 else other
        lines.append(f"{'same' if first == second else 'different'}\tThe {first}\tSome {second}.")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def similar(path: Path, pairs: int, seed: int = 0) -> Path:
    """Pairs as STS-B has them: 5 where both name the same thing, 1 otherwise."""
    generator = random.Random(seed)
    lines = []
    for number in range(pairs):
        first, other = generator.sample(FILLERS, 2)
        second, score = (first, "5.000") if number % 2 else (other, "1.000")
        lines.append(f"genre\tfile\t2012\t{number:04d}\t{score}\tThe {first}\tThe {second}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def classifier_settings(**sections: dict[str, Any]) -> ClassifierSettings:
    """Those of a small and quick classifier."""
    return ClassifierSettings(
        text=ClassifierTextSettings(**sections.get("text", {})),
        input=InputSettings(**INPUT | sections.get("input", {})),
        model=ClassifierModelSettings(**{"hidden": 8, "dropout": 0.1} | sections.get("model", {})),
        train=ClassifierTrainSettings(**TRAIN | sections.get("train", {})),
    )


def pairs_settings(**sections: dict[str, Any]) -> PairsSettings:
    """Those of a small and quick model of pairs."""
    return PairsSettings(
        text=PairsTextSettings(**sections.get("text", {})),
        input=InputSettings(**INPUT | sections.get("input", {})),
        model=PairsModelSettings(**{"hidden": 16, "dropout": 0.0} | sections.get("model", {})),
        train=TaskTrainSettings(**TRAIN | sections.get("train", {})),
    )


def language_model(
    folder: Path, *, text: dict[str, Any] | None = None, symbols: list[str] | None = None, **model: Any
) -> LanguageModel:
    """A language model of words that has learned nothing, saved."""
    torch.manual_seed(7)
    settings = LMSettings(
        text=TextSettings(**{"unit": "word"} | (text or {})), model=LanguageModelSettings(**{"hidden": 8} | model)
    )
    vocabulary = Vocabulary(symbols or ["<unk>", "</s>", *FILLERS, *MOODS])
    made = LanguageModel(make_language_model(settings.model, len(vocabulary)), vocabulary, settings)
    made.save_pretrained(folder)
    return made

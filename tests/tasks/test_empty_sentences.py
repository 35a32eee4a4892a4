"""Sentences without words, alone and among others, in every task and with everything that is known of words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relmo.models.vectors import WordVectors
from relmo.settings.sections import InputSettings
from relmo.tasks.classifier import ChosenLabel, Classifier, SentencePairs
from relmo.tasks.features import WordFeatures
from relmo.tasks.tagger import TaggedText, Tagger
from relmo.tasks.task import Labels, Task
from relmo.text.vocabulary import Vocabulary
from support.sentence_tasks import classifier_settings, pairs_settings
from support.tagging import settings as tagger_settings
from support.tagging import tiny_bilm, word_bilm

WORDS = [["The", "dog", "sees"], ["a", "cat"]]
ALONE, AMONG, LATE = [[]], [[], ["The", "dog"], []], [*[[]] * 300, ["The", "dog"]]
FILTERS = InputSettings().filters
INPUTS: dict[str, dict[str, Any]] = {
    "words": {"word_dim": 4, "char_dim": 0, "filters": FILTERS},
    "characters": {"word_dim": 0, "char_dim": 4, "filters": ("2x6",)},
    "vectors": {"word_dim": 0, "char_dim": 0, "filters": FILTERS, "vectors": "vectors"},
    "tuned vectors": {"word_dim": 4, "char_dim": 0, "filters": FILTERS, "vectors": "vectors", "vectors_tune": True},
    "elmo": {"word_dim": 4, "char_dim": 0, "filters": FILTERS, "elmo": "bilm", "elmo_at": "both"},
    "tuned elmo": {"word_dim": 4, "char_dim": 4, "filters": ("2x6",), "elmo": "bilm", "elmo_tune": True},
    "tuned elmo of words": {
        "word_dim": 0,
        "char_dim": 0,
        "filters": FILTERS,
        "elmo": "words",
        "elmo_tune": True,
        "elmo_at": "both",
    },
    "elmo of words": {"word_dim": 0, "char_dim": 0, "filters": FILTERS, "elmo": "words", "elmo_norm": True},
}
BODIES: dict[str, tuple[type[Task[Any, Any]], dict[str, Any]]] = {
    "tagger": (Tagger, {"decoder": "softmax"}),
    "crf": (Tagger, {"decoder": "crf"}),
    **{f"pool {pool}": (Classifier, {"pool": pool}) for pool in ("final", "mean", "max", "attention")},
    "no layers": (Classifier, {"layers": 0, "pool": "mean"}),
    "bcn": (Classifier, {"network": "bcn"}),
    **{network: (SentencePairs, {"network": network}) for network in ("esim", "decomposable", "encoder", "cosine")},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bidirectional models, of characters and of words, and static vectors."""
    folder = tmp_path_factory.mktemp("models")
    tiny_bilm().save_pretrained(folder / "bilm")
    word_bilm().save_pretrained(folder / "words")
    vocabulary = Vocabulary([*Vocabulary.specials, "dog", "cat"])
    WordVectors(vocabulary, np.eye(4, 3, dtype=np.float32)).save_pretrained(folder / "vectors")
    return folder


def make(models: Path, inputs: str, body: str) -> Task[Any, Any]:
    """A model that has learned nothing."""
    torch.manual_seed(0)
    kind, model = BODIES[body]
    makers: dict[Any, Any] = {
        Tagger: tagger_settings,
        Classifier: classifier_settings,
        SentencePairs: pairs_settings,
    }
    given = {key: str(models / v) if key in ("elmo", "vectors") else v for key, v in INPUTS[inputs].items()}
    text = {"task": "score"} if body == "cosine" else {}
    settings = makers[kind](text=text, input=given, model=model)
    settings.check()
    own = {} if body == "cosine" else {"labels": Labels(["A", "B"])}
    return kind(settings, WordFeatures.build(settings.input, WORDS, torch.device("cpu")), own).initialize()


def probabilities(answers: list[Any]) -> np.ndarray:
    """The numbers of answers that are no tags."""
    return np.array([list(a.probabilities.values()) if isinstance(a, ChosenLabel) else [a.score] for a in answers])


@pytest.mark.parametrize(
    ("inputs", "body"),
    [(i, b) for i in INPUTS for b in BODIES if i == "characters" or b in ("tagger", "bcn", "esim")],
)
def test_an_empty_sentence_is_answered_alone_and_among_others_alike(models: Path, inputs: str, body: str) -> None:
    model: Any = make(models, inputs, body)
    sides = (
        [lambda words: words]
        if not isinstance(model, SentencePairs)
        else [
            lambda words: (words, words),
            lambda words: (words, WORDS[0]),
            lambda words: (WORDS[0], words),
        ]
    )
    for side in sides:
        alone, among, late = (model.predict([side(words) for words in each]) for each in (ALONE, AMONG, LATE))
        assert len(late) == 301
        assert model.predict([]) == []
        if isinstance(model, Tagger):
            nothing = TaggedText("", [], [], [], [])
            assert alone == [nothing]
            assert [each.tags for each in among] == [[], late[-1].tags, []]
            assert len(late[-1].tags) == 2
            continue
        empty = probabilities(alone * 300)
        assert np.isfinite(empty).all()
        assert np.allclose(probabilities(late[:-1]), empty, atol=1e-6)
        assert np.allclose(probabilities(among), probabilities([alone[0], late[-1], alone[0]]), atol=1e-6)

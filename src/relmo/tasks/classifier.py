"""Classifiers as a user has them: a label for a text, such as its sentiment, or whether a sentence is well formed.

classifier = relmo.load("models/sentiment")
classifier.predict(["A quiet, lovely film."])[0].label                  # 'pos'
classifier.evaluate("dev.tsv").values["macro_f1"]

With `init` a classifier starts from a language model: Dai & Le 2015, Semi-supervised sequence learning.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.lm import LanguageModel
from relmo.networks.classifier import BCN, PooledClassifier
from relmo.settings.arguments import check_sentences
from relmo.settings.cells import CELLS
from relmo.settings.classifier import ClassifierSettings, ClassifierTextSettings, check_classifier
from relmo.tasks.features import WordFeatures, Words, WordVocabulary
from relmo.tasks.scores import Report, class_report
from relmo.tasks.task import Labels, Task
from relmo.text.encode import TOKENIZERS
from relmo.text.readers import Labelled, labelled_format, read_labelled
from relmo.text.tokenize import Token

METRICS = {"accuracy": "accuracy", "mcc": "matthews", "f1": "macro_f1"}  # settings' names to those of reports


class Choice(NamedTuple):
    """The most probable label, and the probability of each."""

    label: str
    probabilities: dict[str, float]

    def as_text(self) -> str:
        """The label and its probability, with a tab between them."""
        return f"{self.label}\t{self.probabilities[self.label]:.4f}"


def choices(logits: Tensor, labels: Labels) -> list[Choice]:
    """What logits (B, C) say."""
    rows = torch.softmax(logits.float(), dim=1).cpu()
    best = rows.argmax(dim=1).tolist()
    names = labels.symbols
    return [Choice(names[i], dict(zip(names, row, strict=True))) for i, row in zip(best, rows.tolist(), strict=True)]


class Classifier(Task[Labelled, Choice]):
    """A network that puts texts into classes, with its vocabulary, labels and settings."""

    kind = "classifier"
    settings_type = ClassifierSettings

    def predict(self, texts: Iterable[str | Words]) -> list[Choice]:
        """The label of each text: strings, split as `tokens` splits them, or lists of words."""
        return list(self.predict_words([self.words(text)] for text in check_sentences(texts, "predict", "text")))

    @classmethod
    def complete(cls, settings: ClassifierSettings) -> ClassifierSettings:
        """With `init`, the geometry of that language model. What the settings say of it must be so; a default counts as
        nothing said."""
        source = settings.train.init
        if source is None:
            return settings
        start = _open_start(source)
        model, text = start.settings.model, start.settings.text
        taken: dict[str, dict[str, Any]] = {
            "text": {"tokenizer": text.tokenizer},
            "input": {"word_dim": model.embedding or model.hidden, "lowercase": text.lowercase, "char_dim": 0},
            "model": {name: getattr(model, name) for name in ("cell", "layers", "hidden", "projection", "residual")}
            | {"directions": 1},
        }
        sections: dict[str, Any] = {}
        for section, values in taken.items():
            given = getattr(settings, section)
            for name, own in values.items():
                value = getattr(given, name)
                if value not in (own, getattr(type(given)(), name)):
                    raise SettingError(f"{name} is {value}, but {own} with --init {source}; leave it out, or say {own}")
            sections[section] = dataclasses.replace(given, **values)
        return dataclasses.replace(settings, **sections)

    @classmethod
    def begin(cls, settings: ClassifierSettings, features: WordFeatures, labels: Labels, device: torch.device) -> Self:
        """A model at its beginning, which with `init` is a language model's end."""
        made = super().begin(settings, features, labels, device)
        if settings.train.init is not None:
            start = _open_start(settings.train.init)
            words, body = made.network.inputs.words, made.network.body
            assert words is not None
            assert isinstance(body, PooledClassifier)
            with torch.no_grad():
                words.weight.copy_(start.encoder.embedding.weight[_unknown_first(start)])
            body.start_from(start.encoder.recurrent)
        return made

    @staticmethod
    def check(settings: ClassifierSettings) -> None:
        """As every kind's."""
        check_classifier(settings)

    @classmethod
    def read(cls, path: str | Path, text: ClassifierTextSettings, *, training: bool = False) -> list[Labelled]:
        """The texts of a file; of trees, to learn from, every phrase."""
        layout = labelled_format(path, text.errors) if text.format == "auto" else text.format
        subtrees = layout == "trees" and text.subtrees and training
        if subtrees and text.valid is None:
            raise CorpusError(
                f"{path}: phrases of one sentence would be on both sides of a part that is held out; give a file to "
                "validate on with --valid, or learn from whole sentences with --no-subtrees"
            )
        split = TOKENIZERS[text.tokenizer]
        return list(
            read_labelled(path, split=split, layout=layout, subtrees=subtrees, column=text.column, errors=text.errors)
        )

    @classmethod
    def make_features(
        cls, settings: ClassifierSettings, sentences: Iterable[Words], device: torch.device
    ) -> WordFeatures:
        """What a new model knows of words; with `init`, the words of that language model."""
        if settings.train.init is None:
            return super().make_features(settings, sentences, device)
        features = WordFeatures.begin(settings.input, (), device)
        start = _open_start(settings.train.init)
        features.vocabulary = WordVocabulary(start.vocabulary.symbols[i] for i in _unknown_first(start))
        return features

    @classmethod
    def answers(cls, example: Labelled, settings: ClassifierSettings) -> list[str]:
        """The label."""
        return [example.label]

    @classmethod
    def make_body(cls, settings: ClassifierSettings, labels: Labels, *, input_size: int, again_size: int) -> nn.Module:
        """Recurrent layers and a pool, or the biattentive classification network."""
        model = settings.model
        sizes: dict[str, Any] = {"input_size": input_size, "again_size": again_size, "classes": len(labels)}
        sizes["hidden"] = model.hidden
        if model.network == "bcn":
            return BCN(**sizes, input_dropout=model.dropout)
        return PooledClassifier(
            **sizes,
            cell=model.cell,
            layers=model.layers,
            bidirectional=model.directions == 2,
            projection=model.projection,
            residual=model.residual,
            pool=model.pool,
            mlp=model.mlp,
            dropout=model.dropout,
        )

    @staticmethod
    def sides(example: Labelled) -> Sequence[Words]:
        """The text."""
        return (example.words,)

    def target(self, example: Labelled) -> np.ndarray:
        """The label's number."""
        return self.labels.ids([example.label])[0]

    def decode(self, output: Tensor) -> list[Choice]:
        """The labels with their probabilities."""
        return choices(output, self.labels)

    def score(self, examples: Sequence[Labelled], predictions: Sequence[Choice]) -> Report:
        """Accuracy, macro F1 and Matthews correlation; the one that matters as the settings say."""
        gold, given = [example.label for example in examples], [choice.label for choice in predictions]
        return class_report(gold, given, metric=METRICS[self.settings.train.metric])

    def as_text(self, sides: Sequence[Sequence[Token]], prediction: Choice) -> str:
        """The label and its probability."""
        return prediction.as_text()

    def as_record(self, line: str, sides: Sequence[Sequence[Token]], prediction: Choice) -> dict[str, Any]:
        """The text, its label and the probability of each."""
        return {"text": line, **prediction._asdict()}


def _open_start(source: str) -> LanguageModel:
    """A language model of words, to start from."""
    model = LanguageModel.from_pretrained(source, device="cpu")
    if model.settings.text.unit != "word":
        raise ModelError(
            f"--init {source}: reads characters; give a language model of words (relmo train lm --unit word)"
        )
    if model.settings.model.cell not in CELLS:
        raise ModelError(f"--init {source}: has no recurrent layers; give one with a recurrent cell, such as lstm")
    return model


def _unknown_first(model: LanguageModel) -> list[int]:
    """A language model's symbols in order, but the unknown word, which a classifier has at 0, first."""
    unknown = model.vocabulary.unknown
    return [unknown, *(i for i in range(len(model.vocabulary)) if i != unknown)]

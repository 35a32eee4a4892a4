"""Classifiers as a user has them: a label for a text, such as its sentiment, or whether a sentence is well formed.

classifier = relmo.load("models/sentiment")
classifier.predict(["A quiet, lovely film."])[0].label                  # 'pos'
classifier.evaluate("dev.tsv").values["macro_f1"]

With `init` a classifier starts from a language model: Dai & Le 2015, Semi-supervised sequence learning.
"""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from relmo.errors import CorpusError, ModelError, SettingError
from relmo.loading import load
from relmo.models.lm import LanguageModel
from relmo.networks.classifier import BCN, PooledClassifier
from relmo.networks.inputs import TaskNetwork, WordInputs
from relmo.settings.arguments import check_sentences
from relmo.settings.cells import CELLS
from relmo.settings.classifier import ClassifierSettings, ClassifierTextSettings
from relmo.tasks.features import WordFeatures, Words, WordVocabulary
from relmo.tasks.results import shortened
from relmo.tasks.scores import TaskReport, class_report
from relmo.tasks.task import Task, Tokenized, count_labels
from relmo.text.encode import TOKENIZERS
from relmo.text.readers.labelled import Labelled, labelled_format, read_labelled
from relmo.text.vocabulary import Vocabulary

METRICS = {"accuracy": "accuracy", "mcc": "matthews", "f1": "macro_f1"}  # settings' names to those of reports


@dataclass(frozen=True, repr=False)
class ChosenLabel:
    """What was asked (`asked`: a text, or two sentences, by their names), the most probable label, and the probability
    of each."""

    asked: dict[str, str]
    label: str
    probabilities: dict[str, float]

    @property
    def probability(self) -> float:
        """That of the label."""
        return self.probabilities[self.label]

    def as_text(self) -> str:
        """The label and its probability, with a tab between them."""
        return f"{self.label}\t{self.probability:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """What was asked, the label and the probability of each."""
        return {**self.asked, "label": self.label, "probability": self.probability, "probabilities": self.probabilities}

    def __repr__(self) -> str:
        """The label, its probability and what was asked."""
        asked = ", ".join(repr(shortened(text, 60)) for text in self.asked.values())
        return f"ChosenLabel({self.label!r} {self.probability:.2f}, {asked})"

    def _repr_html_(self) -> str:
        """For a notebook: what was asked, and the labels, the most probable first."""
        asked = "".join(f"<p>{escape(text)}</p>" for text in self.asked.values())
        ranked = sorted(self.probabilities.items(), key=lambda each: -each[1])
        rows = "".join(f"<tr><th>{escape(label)}</th><td>{share:.4f}</td></tr>" for label, share in ranked)
        return f"{asked}<table>{rows}</table>"


def chosen_labels(logits: Tensor, labels: Vocabulary, asked: Sequence[dict[str, str]]) -> list[ChosenLabel]:
    """What logits (B, C) say of what was asked."""
    rows = torch.softmax(logits.float(), dim=1).cpu()
    best, names = rows.argmax(dim=1).tolist(), labels.symbols
    return [
        ChosenLabel(given, names[i], dict(zip(names, row, strict=True)))
        for given, i, row in zip(asked, best, rows.tolist(), strict=True)
    ]


class Classifier(Task[Labelled, ChosenLabel]):
    """A network that puts texts into classes, with its vocabulary, labels and settings."""

    kind = "classifier"
    settings: ClassifierSettings

    def predict(self, texts: Iterable[str | Words]) -> list[ChosenLabel]:
        """The label of each text: strings, split as `tokens` splits them, or lists of words."""
        return list(self.answer(map(self.ask, check_sentences(texts, "predict", "text"))))

    @property
    def counted(self) -> str:
        """A label for each text."""
        return "texts"

    @classmethod
    def complete(cls, settings: ClassifierSettings) -> tuple[ClassifierSettings, LanguageModel | None]:
        """With `init`, that language model, and its geometry. What the settings say of it must be so; a default counts
        as nothing said."""
        source = settings.train.init
        if source is None:
            return settings, None
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
        return dataclasses.replace(settings, **sections), start

    def begin(self) -> Self:
        """As every task's; with `init`, a language model's end is its beginning."""
        made = super().begin()
        if self.start is not None:
            words, body = made.network.inputs.words, made.network.body
            assert words is not None
            assert isinstance(body, PooledClassifier)
            with torch.no_grad():
                words.weight.copy_(self.start.encoder.embedding.weight[_unknown_first(self.start)])
            body.start_from(self.start.encoder.recurrent)
        return made

    @classmethod
    def read(cls, path: str | Path, text: ClassifierTextSettings, *, training: bool = False) -> list[Labelled]:
        """The texts of a file; of trees, to learn from, every phrase."""
        layout = labelled_format(path, text.errors) if text.format == "auto" else text.format
        subtrees = layout == "trees" and text.subtrees and training
        if subtrees and text.valid is None:
            raise CorpusError(
                f"{path}: phrases of one sentence would be on both sides of the held-out part; give a file to "
                "validate on with --valid, or learn from whole sentences with --no-subtrees"
            )
        columns = {"column": text.column, "text_column": text.text_column}
        split = TOKENIZERS[text.tokenizer]
        return list(read_labelled(path, split=split, layout=layout, subtrees=subtrees, errors=text.errors, **columns))

    @property
    def text_columns(self) -> tuple[tuple[str, ...], ...]:
        """One, as in training."""
        named = self.settings.text.text_column
        return super().text_columns if named is None else ((named,),)

    @staticmethod
    def texts(example: Labelled) -> Sequence[Words]:
        return (example.words,)

    @staticmethod
    def classes(example: Labelled) -> Collection[str]:
        return (example.label,)

    @classmethod
    def make_features(
        cls,
        settings: ClassifierSettings,
        sentences: Iterable[Words],
        device: torch.device,
        start: LanguageModel | None = None,
    ) -> WordFeatures:
        """What a new model knows of words; with `init`, the words of that language model."""
        features = super().make_features(settings, sentences, device)
        if start is not None:
            features.vocabulary = WordVocabulary(start.vocabulary.symbols[i] for i in _unknown_first(start))
        return features

    @classmethod
    def make_vocabularies(cls, settings: ClassifierSettings, examples: Sequence[Labelled]) -> dict[str, Vocabulary]:
        return {"labels": count_labels([example.label] for example in examples)}

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        """Recurrent layers and a pool, or the biattentive classification network."""
        model = self.settings.model
        sizes: dict[str, Any] = {"input_size": inputs.size, "again_size": inputs.again_size}
        sizes |= {"classes": len(self.labels), "hidden": model.hidden}
        if model.network == "bcn":
            return TaskNetwork(inputs, BCN(**sizes, input_dropout=model.dropout))
        body = PooledClassifier(
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
        return TaskNetwork(inputs, body)

    def target(self, example: Labelled) -> np.ndarray:
        return self.labels.ids([example.label])[0]

    def decode(self, output: Tensor, examples: Sequence[Labelled]) -> list[ChosenLabel]:
        return chosen_labels(output, self.labels, [{"text": Tokenized.of(each.words).text} for each in examples])

    def score(self, examples: Sequence[Labelled], predictions: Sequence[ChosenLabel]) -> TaskReport:
        """Accuracy, macro F1 and Matthews correlation; the one that matters as the settings say."""
        gold, found = ([each.label for each in side] for side in (examples, predictions))
        return class_report(gold, found, metric=METRICS[self.settings.train.metric])

    def ask(self, given: str | Words, *, tokenized: bool = False) -> Labelled:
        return Labelled(self.split(given, tokenized=tokenized), "")


def _open_start(source: str) -> LanguageModel:
    """A language model of words, to start from."""
    model = load(source, kinds="lm", device="cpu")
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

"""Classifiers: a label for a text, such as its sentiment, or whether a sentence is grammatical.

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
from relmo.tasks.results import shorten
from relmo.tasks.scores import TaskReport, class_report
from relmo.tasks.task import Task, Tokenized, count_labels
from relmo.text.encode import TOKENIZERS
from relmo.text.readers.labelled import Labelled, labelled_format, read_labelled
from relmo.text.vocabulary import Vocabulary

METRICS = {"accuracy": "accuracy", "mcc": "matthews", "f1": "macro_f1"}  # names in settings and in reports


@dataclass(frozen=True, repr=False)
class ChosenLabel:
    """Most probable label.

    inputs          the text, or the two sentences of a pair, by name
    probabilities   probability of each label
    """

    inputs: dict[str, str]
    label: str
    probabilities: dict[str, float]

    @property
    def probability(self) -> float:
        """Probability of the label."""
        return self.probabilities[self.label]

    def as_text(self) -> str:
        """Return the label, a tab and its probability."""
        return f"{self.label}\t{self.probability:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """Return the input, the label and the probability of each label."""
        scores = {"label": self.label, "probability": self.probability, "probabilities": self.probabilities}
        return self.inputs | scores

    def __repr__(self) -> str:
        texts = ", ".join(repr(shorten(text, 60)) for text in self.inputs.values())
        return f"ChosenLabel({self.label!r} {self.probability:.2f}, {texts})"

    def _repr_html_(self) -> str:
        texts = "".join(f"<p>{escape(text)}</p>" for text in self.inputs.values())
        ranking = sorted(self.probabilities.items(), key=lambda pair: -pair[1])
        rows = "".join(f"<tr><th>{escape(label)}</th><td>{p:.4f}</td></tr>" for label, p in ranking)
        return f"{texts}<table>{rows}</table>"


def choose_labels(logits: Tensor, labels: Vocabulary, inputs: Sequence[dict[str, str]]) -> list[ChosenLabel]:
    """Convert logits (B, C) to the most probable labels of these inputs."""
    rows = torch.softmax(logits.float(), dim=1).cpu()
    best, names = rows.argmax(dim=1).tolist(), labels.symbols
    return [
        ChosenLabel(texts, names[i], dict(zip(names, row, strict=True)))
        for texts, i, row in zip(inputs, best, rows.tolist(), strict=True)
    ]


class Classifier(Task[Labelled, ChosenLabel]):
    """Network that classifies texts, with its vocabulary, labels and settings."""

    kind = "classifier"
    prediction_unit = "texts"
    settings: ClassifierSettings

    def predict(self, texts: Iterable[str | Words]) -> list[ChosenLabel]:
        """Label texts: strings, split as by `tokens`, or lists of words."""
        return super().predict(check_sentences(texts, "predict", "text"))

    @classmethod
    def resolve_settings(cls, settings: ClassifierSettings) -> tuple[ClassifierSettings, LanguageModel | None]:
        """Return the settings with the geometry of the language model `init`, and this model.

        Settings that differ from the model's and from the default are an error.
        """
        source = settings.train.init
        if source is None:
            return settings, None
        start = _load_language_model(source)
        model, text = start.settings.model, start.settings.text
        geometry = {name: getattr(model, name) for name in ("cell", "layers", "hidden", "projection", "residual")}
        inherited: dict[str, dict[str, Any]] = {
            "text": {"tokenizer": text.tokenizer},
            "input": {"word_dim": model.embedding or model.hidden, "lowercase": text.lowercase, "char_dim": 0},
            "model": geometry | {"directions": 1},
        }
        sections: dict[str, Any] = {}
        for section_name, values in inherited.items():
            section = getattr(settings, section_name)
            for name, required in values.items():
                value = getattr(section, name)
                if value not in (required, getattr(type(section)(), name)):
                    raise SettingError(f"{name} is {value}, but must be {required} with --init {source}; omit it")
            sections[section_name] = dataclasses.replace(section, **values)
        return dataclasses.replace(settings, **sections), start

    def initialize(self) -> Self:
        """Return a copy with a new network; with `init`, it starts from the weights of the language model."""
        model = super().initialize()
        if self.start is not None:
            words, body = model.network.inputs.words, model.network.body
            assert words is not None
            assert isinstance(body, PooledClassifier)
            with torch.no_grad():
                words.weight.copy_(self.start.encoder.embedding.weight[_symbol_order(self.start)])
            body.start_from(self.start.encoder.recurrent)
        return model

    @classmethod
    def read(cls, path: str | Path, text: ClassifierTextSettings, *, training: bool = False) -> list[Labelled]:
        """Read the texts of a file; every phrase of trees in training."""
        layout = labelled_format(path, text.errors) if text.format == "auto" else text.format
        subtrees = layout == "trees" and text.subtrees and training
        if subtrees and text.valid is None:
            raise CorpusError(
                f"{path}: phrases of one sentence would be in both the training and the held-out part; give a "
                "validation file with --valid, or train on sentences alone with --no-subtrees"
            )
        columns = {"column": text.column, "text_column": text.text_column}
        split = TOKENIZERS[text.tokenizer]
        return list(read_labelled(path, split=split, layout=layout, subtrees=subtrees, errors=text.errors, **columns))

    @property
    def text_columns(self) -> tuple[tuple[str, ...], ...]:
        name = self.settings.text.text_column
        return super().text_columns if name is None else ((name,),)

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
        """Build the features of words of a new model; with `init`, its words are those of the language model."""
        features = super().make_features(settings, sentences, device)
        if start is not None:
            features.vocabulary = WordVocabulary(start.vocabulary.symbols[i] for i in _symbol_order(start))
        return features

    @classmethod
    def make_vocabularies(cls, settings: ClassifierSettings, examples: Sequence[Labelled]) -> dict[str, Vocabulary]:
        return {"labels": count_labels([example.label] for example in examples)}

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        """Create recurrent layers with pooling, or the biattentive classification network."""
        network = BCN if self.settings.model.network == "bcn" else PooledClassifier
        sizes = {"input_size": inputs.size, "num_classes": len(self.labels), "elmo_size": inputs.elmo_size}
        return TaskNetwork(inputs, network(self.settings.model, **sizes))

    def target(self, example: Labelled) -> np.ndarray:
        return self.labels.ids([example.label])[0]

    def decode(self, output: Tensor, examples: Sequence[Labelled]) -> list[ChosenLabel]:
        inputs = [{"text": Tokenized.from_words(example.words).text} for example in examples]
        return choose_labels(output, self.labels, inputs)

    def score(self, examples: Sequence[Labelled], predictions: Sequence[ChosenLabel]) -> TaskReport:
        """Compute accuracy, macro F1 and Matthews correlation; the settings select the metric."""
        gold, predicted = [example.label for example in examples], [prediction.label for prediction in predictions]
        return class_report(gold, predicted, metric=METRICS[self.settings.train.metric])

    def make_example(self, inputs: str | Words, *, tokenized: bool = False) -> Labelled:
        return Labelled(self.split(inputs, tokenized=tokenized), "")


def _load_language_model(source: str) -> LanguageModel:
    model = load(source, kinds="lm", device="cpu")
    if model.settings.text.unit != "word":
        raise ModelError(f"--init {source}: reads characters; give a word model (relmo train lm --unit word)")
    if model.settings.model.cell not in CELLS:
        raise ModelError(f"--init {source}: has no recurrent layers; give a model with a recurrent cell, such as lstm")
    return model


def _symbol_order(model: LanguageModel) -> list[int]:
    """Return the ids of a language model's symbols with the unknown word, id 0 of a classifier, first."""
    unknown = model.vocabulary.unknown
    return [unknown, *(i for i in range(len(model.vocabulary)) if i != unknown)]

"""Classifiers: a label for a text, such as its sentiment, or for two sentences, such as entailment; or a similarity."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from relmo.errors import CorpusError, ModelError
from relmo.loading import load
from relmo.models.lm import LanguageModel
from relmo.models.saved import SavedFolder
from relmo.networks.classifier import BCN, ESIM, CosineRegression, DecomposableAttention, PooledClassifier
from relmo.networks.inputs import SentenceEncoder
from relmo.registry import cell_names
from relmo.settings.fields import check_sentences, inherit
from relmo.settings.tasks import ClassifierSettings, ClassifierTextSettings, PairsSettings, PairsTextSettings
from relmo.tasks.features import Words, WordVocabulary
from relmo.tasks.results import Prediction, shorten
from relmo.tasks.scores import TaskReport, class_report, number_report
from relmo.tasks.task import Labels, PairTask, Task, Tokenized
from relmo.text.encode import TOKENIZERS
from relmo.text.readers.labelled import FIRST, SECOND, Labelled, TextPair, labelled_format, read_labelled, read_pairs
from relmo.text.vocabulary import Vocabulary

METRICS = {"accuracy": "accuracy", "mcc": "matthews", "f1": "macro_f1"}  # names in settings and in reports


@dataclass(frozen=True, repr=False)
class ChosenLabel(Prediction):
    """Most probable label."""

    inputs: dict[str, str]  # the text, or the two sentences of a pair, by name
    label: str
    probabilities: dict[str, float]  # probability of each label

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


@dataclass(frozen=True)
class PairScore(Prediction):
    """Two sentences and their predicted score."""

    first: str
    second: str
    score: float

    def as_text(self) -> str:
        """Return the score."""
        return f"{self.score:.4f}"


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
    example_type, no_answer = Labelled, ("",)
    label_field = "label"
    prediction_unit = "texts"
    settings: ClassifierSettings

    def predict(self, texts: Iterable[str | Words]) -> list[ChosenLabel]:
        """Label texts: strings, split as by `tokens`, or lists of words."""
        return super().predict(check_sentences(texts, "predict", "text"))

    @classmethod
    def resolve_settings(cls, settings: ClassifierSettings) -> tuple[ClassifierSettings, LanguageModel | None]:
        """Return the settings with the geometry of the language model `init`, unless they disagree, and this model."""
        source = settings.train.init
        if source is None:
            return settings, None
        start = load(source, kinds="lm", device="cpu")
        if start.settings.text.unit != "word":
            raise ModelError(f"--init {source}: reads characters; give a word model (relmo train lm --unit word)")
        if start.settings.model.cell not in cell_names():
            raise ModelError(
                f"--init {source}: has no recurrent layers; give a model with a recurrent cell, such as lstm"
            )
        model, text = start.settings.model, start.settings.text
        geometry = {
            name: getattr(model, name)
            for name in ("cell", "cell_options", "layers", "hidden", "projection", "residual")
        }
        inherited: dict[str, dict[str, Any]] = {
            "text": {"tokenizer": text.tokenizer},
            "input": {"word_dim": model.embedding or model.hidden, "lowercase": text.lowercase, "char_dim": 0},
            "model": geometry | {"directions": 1},
        }
        sections = {name: inherit(getattr(settings, name), values, source) for name, values in inherited.items()}
        return dataclasses.replace(settings, **sections), start

    @classmethod
    def prepare(
        cls,
        settings: ClassifierSettings,
        examples: Sequence[Labelled],
        device: torch.device,
        start: LanguageModel | None = None,
    ) -> Self:
        """Create a model without a network; with `init`, its words are those of the language model."""
        model = super().prepare(settings, examples, device, start)
        if start is not None:
            symbols = start.vocabulary.symbols
            model.features.vocabulary = WordVocabulary(symbols[i] for i in _symbol_order(start))
        return model

    def initialize(self, saved: SavedFolder | None = None) -> Self:
        """Return a copy with a network; with `init`, a new one starts from the weights of the language model."""
        model = super().initialize(saved)
        if self.start is not None:
            words, body = model.network.inputs.words, model.network.body
            assert words is not None
            assert isinstance(body, PooledClassifier)
            assert isinstance(body.sentences.encoder, SentenceEncoder)  # the language model has recurrent layers
            with torch.no_grad():
                words.weight.copy_(self.start.encoder.embedding.weight[_symbol_order(self.start)])
            body.sentences.encoder.start_from(self.start.encoder.recurrent)
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

    def make_body(self, **sizes: int) -> nn.Module:
        """Create recurrent layers with pooling, or the biattentive classification network."""
        network = BCN if self.settings.model.network == "bcn" else PooledClassifier
        return network(self.settings.model, num_classes=len(self.labels), **sizes)

    def decode(self, output: Tensor, examples: Sequence[Labelled]) -> list[ChosenLabel]:
        inputs = [{"text": Tokenized.from_words(example.words).text} for example in examples]
        return choose_labels(output, self.labels, inputs)

    def score(self, examples: Sequence[Labelled], predictions: Sequence[ChosenLabel]) -> TaskReport:
        """Compute accuracy, macro F1 and Matthews correlation; the settings select the metric."""
        gold, predicted = [example.label for example in examples], [prediction.label for prediction in predictions]
        return class_report(gold, predicted, metric=METRICS[self.settings.train.metric])


def _symbol_order(model: LanguageModel) -> list[int]:
    """Return the ids of a language model's symbols with the unknown word, id 0 of a classifier, first."""
    unknown = model.vocabulary.unknown
    return [unknown, *(i for i in range(len(model.vocabulary)) if i != unknown)]


class SentencePairs(PairTask[TextPair, ChosenLabel | PairScore]):
    """Network that compares two sentences, with its vocabulary, settings and, unless it predicts numbers, labels."""

    kind = "pairs"
    example_type, no_answer = TextPair, ("",)
    text_fields = ("first", "second")
    label_field = "label"
    column_names = (FIRST, SECOND)
    prediction_unit = "pairs"
    settings: PairsSettings

    @classmethod
    def read(cls, path: str | Path, text: PairsTextSettings, *, training: bool = False) -> list[TextPair]:
        pairs = read_pairs(
            path,
            split=TOKENIZERS[text.tokenizer],
            layout=text.format,
            column=text.column,
            text_columns=text.text_columns,
            numbers=text.task == "score",
            errors=text.errors,
        )
        return list(pairs)

    @classmethod
    def prepare(
        cls, settings: PairsSettings, examples: Sequence[TextPair], device: torch.device, start: Any = None
    ) -> Self:
        """Create a model without a network; scores outside the range of the settings are an error."""
        low, high = settings.model.low, settings.model.high
        for number, pair in enumerate(examples if settings.text.task == "score" else (), start=1):
            if not low <= float(pair.label) <= high:
                raise CorpusError(
                    f"pair {number}: score {pair.label} is not between {low:g} and {high:g}; set --low and --high"
                )
        return super().prepare(settings, examples, device, start)

    @classmethod
    def vocabulary_types(cls, settings: PairsSettings) -> dict[str, type[Vocabulary]]:
        return {} if settings.text.task == "score" else {"labels": Labels}

    def make_body(self, **sizes: int) -> nn.Module:
        model = self.settings.model
        if model.network == "cosine":
            return CosineRegression(model, **sizes)
        networks = {"encoder": PooledClassifier, "esim": ESIM, "decomposable": DecomposableAttention}
        return networks[model.network](model, num_classes=len(self.labels), **sizes)

    def target(self, example: TextPair) -> np.ndarray:
        if self.settings.text.task == "score":
            return np.array(example.label, dtype=np.float32)
        return super().target(example)

    def decode(self, output: Tensor, examples: Sequence[TextPair]) -> list[ChosenLabel | PairScore]:
        inputs = [
            {"first": Tokenized.from_words(pair.first).text, "second": Tokenized.from_words(pair.second).text}
            for pair in examples
        ]
        if self.settings.text.task != "score":
            return [*choose_labels(output, self.labels, inputs)]
        return [PairScore(**texts, score=score) for texts, score in zip(inputs, output.tolist(), strict=True)]

    def score(self, examples: Sequence[TextPair], predictions: Sequence[ChosenLabel | PairScore]) -> TaskReport:
        """Compute the accuracy of labels, or the correlation of numbers."""
        gold = [pair.label for pair in examples]
        if self.settings.text.task == "score":
            return number_report([*map(float, gold)], [prediction.score for prediction in predictions])  # type: ignore[union-attr]
        return class_report([*map(str, gold)], [prediction.label for prediction in predictions])  # type: ignore[union-attr]

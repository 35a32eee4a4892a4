"""Comparison of two sentences: a label, such as entailment, or a number, such as similarity.

pairs = relmo.load("models/inference")
pairs.predict([("A man sleeps.", "A person is awake.")])[0].label                # 'contradiction'
similarity = relmo.load("models/similarity")
similarity.predict([("A man sleeps.", "Someone is asleep.")])[0].score           # 4.1
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from relmo.errors import CorpusError
from relmo.networks.inputs import TaskNetwork, WordInputs
from relmo.networks.pairs import ESIM, CosineRegression, DecomposableAttention, EncoderPair
from relmo.settings.pairs import PairsSettings, PairsTextSettings
from relmo.tasks.classifier import ChosenLabel, choose_labels
from relmo.tasks.features import Words
from relmo.tasks.scores import TaskReport, class_report, number_report
from relmo.tasks.task import Labels, PairTask, Tokenized, count_labels
from relmo.text.encode import TOKENIZERS
from relmo.text.readers.pairs import FIRST, SECOND, TextPair, read_pairs
from relmo.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class PairScore:
    """Two sentences and their predicted score."""

    first: str
    second: str
    score: float

    def as_text(self) -> str:
        """Return the score."""
        return f"{self.score:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """Return both sentences and the score."""
        return asdict(self)


class SentencePairs(PairTask[TextPair, ChosenLabel | PairScore]):
    """Network that compares two sentences, with its vocabulary, settings and, unless it predicts numbers, labels."""

    kind = "pairs"
    prediction_unit = "pairs"
    settings: PairsSettings

    def predict(self, pairs: Iterable[tuple[str | Words, str | Words]]) -> list[ChosenLabel | PairScore]:
        """Compare the sentences of each pair: strings, split as by `tokens`, or lists of words."""
        return super().predict(pairs)

    @property
    def predicts_numbers(self) -> bool:
        """Whether predictions are numbers instead of labels."""
        return self.settings.text.task == "score"

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

    @staticmethod
    def texts(example: TextPair) -> Sequence[Words]:
        return example.first, example.second

    @staticmethod
    def classes(example: TextPair) -> Collection[str]:
        return () if isinstance(example.label, float) else (example.label,)

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

    @classmethod
    def make_vocabularies(cls, settings: PairsSettings, examples: Sequence[TextPair]) -> dict[str, Vocabulary]:
        if settings.text.task == "score":
            return {}
        return {"labels": count_labels([str(example.label)] for example in examples)}

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        model = self.settings.model
        sizes = {"input_size": inputs.size, "elmo_size": inputs.elmo_size}
        if model.network == "cosine":
            return TaskNetwork(inputs, CosineRegression(model, **sizes))
        networks = {"encoder": EncoderPair, "esim": ESIM, "decomposable": DecomposableAttention}
        return TaskNetwork(inputs, networks[model.network](model, num_classes=len(self.labels), **sizes))

    def target(self, example: TextPair) -> np.ndarray:
        if self.predicts_numbers:
            return np.array(example.label, dtype=np.float32)
        return self.labels.ids([str(example.label)])[0]

    def decode(self, output: Tensor, examples: Sequence[TextPair]) -> list[ChosenLabel | PairScore]:
        inputs = [
            {"first": Tokenized.from_words(pair.first).text, "second": Tokenized.from_words(pair.second).text}
            for pair in examples
        ]
        if not self.predicts_numbers:
            return [*choose_labels(output, self.labels, inputs)]
        return [PairScore(**texts, score=score) for texts, score in zip(inputs, output.tolist(), strict=True)]

    def score(self, examples: Sequence[TextPair], predictions: Sequence[ChosenLabel | PairScore]) -> TaskReport:
        """Compute the accuracy of labels, or the correlation of numbers."""
        gold = [pair.label for pair in examples]
        if self.predicts_numbers:
            return number_report([*map(float, gold)], [prediction.score for prediction in predictions])  # type: ignore[union-attr]
        return class_report([*map(str, gold)], [prediction.label for prediction in predictions])  # type: ignore[union-attr]

    def make_example(self, inputs: tuple[str | Words, str | Words], *, tokenized: bool = False) -> TextPair:
        return TextPair(*self.split_pair(inputs, tokenized=tokenized), "")

    @property
    def text_columns(self) -> tuple[tuple[str, ...], ...]:
        names = self.settings.text.text_columns
        return tuple((name,) for name in names) if names else (FIRST, SECOND)

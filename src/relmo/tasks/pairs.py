"""Pairs of sentences as a user compares them: what holds between the two, as a label or as a number.

pairs = relmo.load("models/inference")
pairs.predict([("A man sleeps.", "A person is awake.")])[0].label          # 'contradiction'
similarity = relmo.load("models/similarity")
similarity.predict([("A man sleeps.", "Someone is asleep.")])              # [4.1]
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from relmo.errors import CorpusError, SettingError
from relmo.networks.pairs import ESIM, CosineRegression, DecomposableAttention, EncoderPair
from relmo.settings.arguments import typed
from relmo.settings.pairs import PairsSettings, PairsTextSettings, check_pairs
from relmo.tasks.classifier import Choice, choices
from relmo.tasks.features import Words
from relmo.tasks.scores import Report, class_report, number_report
from relmo.tasks.task import Labels, Task
from relmo.text.encode import TOKENIZERS
from relmo.text.readers.pairs import Pair, read_pairs
from relmo.text.tokenize import Token

NUMBER = "score"  # what stands among the labels of a model that gives numbers


class SentencePairs(Task[Pair, Choice | float]):
    """A network that compares two sentences, with its vocabulary, labels and settings."""

    kind = "pairs"
    settings_type = PairsSettings

    def predict(self, pairs: Iterable[tuple[str | Words, str | Words]]) -> list[Choice | float]:
        """What holds between the two of each pair: strings, split as `tokens` splits them, or lists of words."""
        if not isinstance(pairs, Iterable):
            raise SettingError(f"predict takes a list of pairs, not {typed(pairs)}")
        return list(self.predict_words([self.words(first), self.words(second)] for first, second in map(two, pairs)))

    @property
    def gives_numbers(self) -> bool:
        """Whether predictions are numbers, not labels."""
        return self.settings.text.task == "score"

    @staticmethod
    def check(settings: PairsSettings) -> None:
        """As every kind's."""
        check_pairs(settings)

    @classmethod
    def read(cls, path: str | Path, text: PairsTextSettings, *, training: bool = False) -> list[Pair]:
        """The pairs of a file."""
        split, numbers = TOKENIZERS[text.tokenizer], text.task == "score"
        return list(
            read_pairs(path, split=split, layout=text.format, column=text.column, numbers=numbers, errors=text.errors)
        )

    @classmethod
    def make_labels(cls, examples: Sequence[Pair], settings: PairsSettings) -> Labels:
        """The labels of the training pairs; numbers must be in their range."""
        if settings.text.task == "label":
            return super().make_labels(examples, settings)
        low, high = settings.model.low, settings.model.high
        for number, pair in enumerate(examples, start=1):
            if not low <= float(pair.label) <= high:
                raise CorpusError(
                    f"pair {number}: its score {pair.label} is not from {low:g} to {high:g}; say --low and --high"
                )
        return Labels([NUMBER])

    @classmethod
    def answers(cls, example: Pair, settings: PairsSettings) -> list[str]:
        """The label."""
        return [str(example.label)]

    @classmethod
    def make_body(cls, settings: PairsSettings, labels: Labels, *, input_size: int, again_size: int) -> nn.Module:
        """The network of the settings."""
        model = settings.model
        sizes = {"input_size": input_size, "again_size": again_size, "hidden": model.hidden}
        if model.network == "esim":
            return ESIM(**sizes, classes=len(labels), dropout=model.dropout)
        if model.network == "decomposable":
            return DecomposableAttention(**sizes, classes=len(labels), dropout=model.dropout)
        encoder: dict[str, Any] = sizes | {name: getattr(model, name) for name in ("cell", "layers", "pool", "dropout")}
        encoder["bidirectional"] = model.directions == 2
        if model.network == "cosine":
            return CosineRegression(**encoder, low=model.low, high=model.high)
        return EncoderPair(**encoder, classes=len(labels), mlp=model.mlp)

    @staticmethod
    def sides(example: Pair) -> Sequence[Words]:
        """Both sentences."""
        return example.first, example.second

    def target(self, example: Pair) -> np.ndarray:
        """The label's number, or the score."""
        if self.gives_numbers:
            return np.array(example.label, dtype=np.float32)
        return self.labels.ids([str(example.label)])[0]

    def decode(self, output: Tensor) -> list[Choice | float]:
        """Labels with their probabilities, or numbers."""
        return output.tolist() if self.gives_numbers else list(choices(output, self.labels))

    def score(self, examples: Sequence[Pair], predictions: Sequence[Choice | float]) -> Report:
        """Accuracy of labels, or the correlations of numbers."""
        if self.gives_numbers:
            return number_report([float(pair.label) for pair in examples], predictions)  # type: ignore[arg-type]
        return class_report([str(pair.label) for pair in examples], [choice.label for choice in predictions])  # type: ignore[union-attr]

    def read_line(self, line: str, *, tokenized: bool = False) -> list[list[Token]]:
        """Two sentences, with a tab between them."""
        return [self.tokens(text, tokenized=tokenized) for text in _two_texts(line)]

    def as_text(self, sides: Sequence[Sequence[Token]], prediction: Choice | float) -> str:
        """The label and its probability, or the number."""
        return prediction.as_text() if isinstance(prediction, Choice) else f"{prediction:.4f}"

    def as_record(self, line: str, sides: Sequence[Sequence[Token]], prediction: Choice | float) -> dict[str, Any]:
        """Both sentences, and the label with the probability of each, or the number."""
        first, second = _two_texts(line)
        found = prediction._asdict() if isinstance(prediction, Choice) else {NUMBER: prediction}
        return {"first": first, "second": second, **found}


def two(pair: Any) -> Any:
    """A pair that is to be compared, which two words or letters of one text are not."""
    if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
        raise SettingError("predict takes several pairs: put a single one into a list, predict([(first, second)])")
    return pair


def _two_texts(line: str) -> tuple[str, str]:
    """The two columns of a line; of a blank one, two empty texts."""
    texts = line.split("\t") if line.strip() else ["", ""]
    if len(texts) != 2:
        raise CorpusError(f"expected two texts with a tab between them, found {len(texts)}: '{line[:60]}'")
    return texts[0], texts[1]

"""Pairs of sentences as a user compares them: what holds between the two, as a label or as a number.

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
from torch import Tensor, nn

from relmo.errors import CorpusError, SettingError
from relmo.networks.inputs import TaskNetwork, WordInputs
from relmo.networks.pairs import ESIM, CosineRegression, DecomposableAttention, EncoderPair
from relmo.settings.arguments import typed
from relmo.settings.pairs import PairsModelSettings, PairsSettings, PairsTextSettings
from relmo.tasks.classifier import ChosenLabel, chosen_labels
from relmo.tasks.features import Words
from relmo.tasks.scores import TaskReport, class_report, number_report
from relmo.tasks.task import Labels, Task, Tokenized, count_labels
from relmo.text.encode import TOKENIZERS
from relmo.text.readers.pairs import FIRST, SECOND, TextPair, read_pairs
from relmo.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class PairScore:
    """Two sentences, and how alike they are, or whatever number was learned."""

    first: str
    second: str
    score: float

    def as_text(self) -> str:
        """The number."""
        return f"{self.score:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """Both sentences and the number."""
        return asdict(self)


class SentencePairs(Task[TextPair, ChosenLabel | PairScore]):
    """A network that compares two sentences, with its vocabulary, settings and, unless it gives numbers, labels."""

    kind = "pairs"
    input_type = tuple[str | list[str], str | list[str]]
    line_pattern = r"^\s*$|^[^\t]*\t[^\t]*$"
    settings: PairsSettings

    def predict(self, pairs: Iterable[tuple[str | Words, str | Words]]) -> list[ChosenLabel | PairScore]:
        """What holds between the two of each pair: strings, split as `tokens` splits them, or lists of words."""
        if not isinstance(pairs, Iterable):
            raise SettingError(f"predict takes a list of pairs, not {typed(pairs)}")
        return list(self.answer(map(self.ask, pairs)))

    @property
    def counted(self) -> str:
        """One for each pair."""
        return "pairs"

    @property
    def gives_numbers(self) -> bool:
        """Whether predictions are numbers, not labels."""
        return self.settings.text.task == "score"

    @classmethod
    def read(cls, path: str | Path, text: PairsTextSettings, *, training: bool = False) -> list[TextPair]:
        found = read_pairs(
            path,
            split=TOKENIZERS[text.tokenizer],
            layout=text.format,
            column=text.column,
            text_columns=text.text_columns,
            numbers=text.task == "score",
            errors=text.errors,
        )
        return list(found)

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
        """As every task's; numbers must be in their range."""
        if settings.text.task == "score":
            _check_range(examples, settings.model)
        return super().prepare(settings, examples, device, start)

    @classmethod
    def vocabulary_types(cls, settings: PairsSettings) -> dict[str, type[Vocabulary]]:
        """Labels, unless it gives numbers."""
        return {} if settings.text.task == "score" else {"labels": Labels}

    @classmethod
    def make_vocabularies(cls, settings: PairsSettings, examples: Sequence[TextPair]) -> dict[str, Vocabulary]:
        if settings.text.task == "score":
            return {}
        return {"labels": count_labels([str(example.label)] for example in examples)}

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        return TaskNetwork(inputs, self._make_body(inputs))

    def _make_body(self, inputs: WordInputs) -> nn.Module:
        model = self.settings.model
        sizes = {"input_size": inputs.size, "again_size": inputs.again_size, "hidden": model.hidden}
        encoder: dict[str, Any] = sizes | {name: getattr(model, name) for name in ("cell", "layers", "pool", "dropout")}
        encoder["bidirectional"] = model.directions == 2
        if model.network == "cosine":
            return CosineRegression(**encoder, low=model.low, high=model.high)
        classes = len(self.labels)
        if model.network == "esim":
            return ESIM(**sizes, classes=classes, dropout=model.dropout)
        if model.network == "decomposable":
            return DecomposableAttention(**sizes, classes=classes, dropout=model.dropout)
        return EncoderPair(**encoder, classes=classes, mlp=model.mlp)

    def target(self, example: TextPair) -> np.ndarray:
        if self.gives_numbers:
            return np.array(example.label, dtype=np.float32)
        return self.labels.ids([str(example.label)])[0]

    def decode(self, output: Tensor, examples: Sequence[TextPair]) -> list[ChosenLabel | PairScore]:
        asked = [
            {"first": Tokenized.of(each.first).text, "second": Tokenized.of(each.second).text} for each in examples
        ]
        if not self.gives_numbers:
            return [*chosen_labels(output, self.labels, asked)]
        return [PairScore(**given, score=number) for given, number in zip(asked, output.tolist(), strict=True)]

    def score(self, examples: Sequence[TextPair], predictions: Sequence[ChosenLabel | PairScore]) -> TaskReport:
        """Accuracy of labels, or the correlations of numbers."""
        gold = [pair.label for pair in examples]
        if self.gives_numbers:
            return number_report([*map(float, gold)], [found.score for found in predictions])  # type: ignore[union-attr]
        return class_report([*map(str, gold)], [found.label for found in predictions])  # type: ignore[union-attr]

    def ask(self, given: tuple[str | Words, str | Words], *, tokenized: bool = False) -> TextPair:
        """Two sentences, which two words or letters of one text are not."""
        if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != 2:
            raise SettingError("predict takes several pairs: put a single one into a list, predict([(first, second)])")
        first, second = given
        return TextPair(self.split(first, tokenized=tokenized), self.split(second, tokenized=tokenized), "")

    @property
    def text_columns(self) -> tuple[tuple[str, ...], ...]:
        """Two columns."""
        named = self.settings.text.text_columns
        return tuple((name,) for name in named) if named else (FIRST, SECOND)

    def read_line(self, line: str, *, tokenized: bool = False) -> TextPair:
        """Two sentences, with a tab between them; of a blank line, two empty ones."""
        texts = line.split("\t") if line.strip() else ["", ""]
        if len(texts) != 2:
            raise CorpusError(f"expected two texts with a tab between them, found {len(texts)}: '{line[:60]}'")
        return self.ask((texts[0], texts[1]), tokenized=tokenized)


def _check_range(examples: Sequence[TextPair], model: PairsModelSettings) -> None:
    """Scores beyond those that the network can give are an error."""
    for number, pair in enumerate(examples, start=1):
        if not model.low <= float(pair.label) <= model.high:
            raise CorpusError(
                f"pair {number}: its score {pair.label} is not from {model.low:g} to {model.high:g}; "
                "say --low and --high"
            )

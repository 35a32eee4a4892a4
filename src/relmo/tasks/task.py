"""A model for a task as a user has it: a network, what it knows of words, its labels and its settings.

`Task` is what all tasks share: saving, loading, predicting, scoring. A task is a subclass that says how its files are
read, which network it has, what that learns from an example and how its output is read; `tagger.py` is the first.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from relmo.config import to_toml
from relmo.disk.outputs import atomic
from relmo.errors import CorpusError, ModelError
from relmo.networks.inputs import TaskNetwork, WordBatch
from relmo.settings.arguments import check_sentence, check_text
from relmo.store.folder import (
    CARD,
    LABELS,
    SETTINGS,
    known_text,
    pick_device,
    read_config,
    read_settings,
    save_config,
)
from relmo.store.weights import load_weights, save_weights
from relmo.tasks.features import Say, Sentences, WordFeatures, Words
from relmo.tasks.scores import Report
from relmo.text.tokenize import Token, split_whitespace, tokenize
from relmo.text.vocabulary import Vocabulary
from relmo.training.batch import on_device

TOKENS_PER_BATCH, MOST = 4096, 256  # words and examples that are predicted side by side; they change the speed only
AHEAD = 2048  # examples that are read ahead to be sorted by length

Example = TypeVar("Example")
Prediction = TypeVar("Prediction")


class Labels(Vocabulary):
    """What a model can answer, the most frequent first."""

    specials = ()

    def ids(self, symbols: Iterable[str]) -> np.ndarray:
        """The ids of labels, which are all known."""
        return np.array([self.index[symbol] for symbol in symbols], dtype=np.int64)


class EncodedExamples(NamedTuple):
    """Examples as numbers: the first sentence of each, the second of each, …"""

    sides: list[Sentences]

    @property
    def lengths(self) -> np.ndarray:
        """The longest sentence of each example."""
        return np.maximum.reduce([side.lengths for side in self.sides])

    def batch(self, which: np.ndarray) -> list[WordBatch]:
        """The examples of these numbers."""
        return [side.batch(which) for side in self.sides]


class Task(Generic[Example, Prediction]):
    """A model for a task; a subclass fills in what is below `# what a task says for itself`."""

    kind: ClassVar[str]
    settings_type: ClassVar[type]

    def __init__(
        self,
        network: TaskNetwork,
        features: WordFeatures,
        labels: Labels,
        settings: Any,
        device: torch.device | str = "cpu",
    ):
        self.device = torch.device(device)
        features.finish(network.inputs)
        self.network = network.to(self.device).eval()
        self.features = features
        self.labels = labels
        self.settings = settings

    @classmethod
    def begin(cls, settings: Any, features: WordFeatures, labels: Labels, device: torch.device) -> Self:
        """A model at its beginning."""
        return cls(cls.make_network(settings, features, labels), features, labels, settings, device)

    @classmethod
    def make_network(cls, settings: Any, features: WordFeatures, labels: Labels) -> TaskNetwork:
        """The network that the settings describe."""
        inputs = features.make_inputs()
        body = cls.make_body(settings, labels, input_size=inputs.size, again_size=inputs.again_size)
        return TaskNetwork(inputs, body, mix_l2=settings.input.elmo_l2)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> Self:
        """A model from the folder that `save_pretrained` or `relmo train` wrote. The biLM and the static vectors it was
        trained with must still be there, or copies of them in the folder."""
        folder = Path(folder)
        config = read_config(folder)
        if config["kind"] != cls.kind:
            raise ModelError(f"{folder}: is a {config['kind']} model, not a {cls.kind}")
        settings = read_settings(folder, config, cls.settings_type, cls.check)
        labels = Labels.load(known_text(folder, config, LABELS))
        if len(labels) != config.get("labels"):
            raise ModelError(f"{folder}: {LABELS} has {len(labels)} labels, config.json says {config.get('labels')}")
        where = pick_device(device)
        features = WordFeatures.load(folder, config, settings.input, where.type)
        network = load_weights(folder, config, lambda: cls.make_network(settings, features, labels))
        return cls(network, features, labels, settings, where)

    def save_pretrained(self, folder: str | Path, *, results: dict[str, Any] | None = None) -> None:
        """Writes the model as a folder; `results` go into its config and its card."""
        folder = Path(folder)
        with atomic(folder / LABELS) as temporary:
            self.labels.save(temporary)
        self.features.save(folder)
        save_weights(folder, self.network)
        self.save_description(folder, results or {})

    def save_description(self, folder: Path, results: dict[str, Any]) -> None:
        """The card and the settings as commented TOML, for people; then config.json."""
        with atomic(folder / CARD) as temporary:
            temporary.write_text(self.card(folder.name, results), encoding="utf-8")
        with atomic(folder / SETTINGS) as temporary:
            temporary.write_text(to_toml(self.settings), encoding="utf-8")
        values = {"labels": len(self.labels), **self.features.config(), "settings": dataclasses.asdict(self.settings)}
        save_config(folder, self.kind, values | {"results": results})

    def card(self, name: str, results: dict[str, Any]) -> str:
        """A model card: what this is, how it was made, how well it does."""
        count = sum(p.numel() for p in self.network.parameters())
        lines = [f"# {name}", "", f"A {self.kind}, made with relmo.", ""]
        lines += [f"- {len(self.labels)} labels: {', '.join(self.labels.symbols[:40])}", f"- parameters: {count:,}"]
        lines += [f"- {name}: {reference.source}" for name, reference in self.features.references.items()]
        lines += [
            f"- {key}: {value:,.4f}" if isinstance(value, float) else f"- {key}: {value}"
            for key, value in results.items()
            if key not in ("parameters", "elmo_mix")
        ]
        lines += [
            f"- ELMo at the {place}: {', '.join(f'{share:.3f}' for share in mix['weights'])} of its layers, "
            f"times {mix['gamma']:.3f}"
            for place, mix in results.get("elmo_mix", {}).items()
        ]
        lines += ["", "```", f"relmo predict {name} text.txt", "```", ""]
        return "\n".join(lines)

    def tokens(self, text: str, *, tokenized: bool = False) -> list[Token]:
        """How raw text is split into words, or, where it is tokenised already, at white space."""
        check_text(text)
        at_spaces = tokenized or self.settings.text.tokenizer == "whitespace"
        return split_whitespace(text) if at_spaces else tokenize(text)

    def words(self, sentence: str | Words) -> Words:
        """The words of a sentence: a string is split, a list is kept as it is."""
        check_sentence(sentence, "a sentence")
        return [token.text for token in self.tokens(sentence)] if isinstance(sentence, str) else sentence

    def encode(self, examples: Sequence[Sequence[Words]], say: Say = lambda _: None) -> EncodedExamples:
        """Examples, each the words of its sentences, as numbers."""
        return EncodedExamples([self.features.encode(side, say) for side in zip(*examples, strict=True)])

    @torch.no_grad()
    def predict_encoded(self, encoded: EncodedExamples) -> list[Prediction]:
        """What the model says of each example, in their order. Examples of about one length are read together."""
        lengths = encoded.lengths
        results: list[Prediction | None] = [None] * len(lengths)
        training = self.network.training  # between two steps of training; a loaded model's never is
        try:
            self.network.eval()
            for which in by_length(lengths):
                output = self.network(on_device(encoded.batch(which), self.device))
                for i, prediction in zip(which.tolist(), self.decode(output), strict=True):
                    results[i] = prediction
        finally:
            self.network.train(training)
        return results  # type: ignore[return-value]

    def predict_words(self, examples: Iterable[Sequence[Words]]) -> Iterator[Prediction]:
        """What the model says of each of any number of examples, in bounded memory."""
        waiting: list[Sequence[Words]] = []
        for example in examples:
            waiting.append(example)
            if len(waiting) == AHEAD:
                yield from self.predict_encoded(self.encode(waiting))
                waiting = []
        if waiting:
            yield from self.predict_encoded(self.encode(waiting))

    def evaluate(self, files: str | Path | Sequence[str | Path]) -> Report:
        """The score on a file of examples, or on several together."""
        paths = [files] if isinstance(files, str | Path) else files
        examples = [example for path in paths for example in self.read(path, self.settings.text)]
        return self.score(examples, list(self.predict_words(map(self.sides, examples))))

    # what a task says for itself

    @classmethod
    def complete(cls, settings: Any) -> Any:
        """The settings of a new model, with what follows from them; as they are where a task does not say otherwise."""
        return settings

    @staticmethod
    def check(settings: Any) -> None:
        """Settings that make no sense, alone or together, are errors."""
        raise NotImplementedError

    @classmethod
    def read(cls, path: str | Path, text: Any, *, training: bool = False) -> list[Example]:
        """The examples of a file; some tasks learn from more of it than they are scored on."""
        raise NotImplementedError

    @classmethod
    def make_features(cls, settings: Any, sentences: Iterable[Words], device: torch.device) -> WordFeatures:
        """What a new model knows of words, from the sentences it learns from."""
        return WordFeatures.begin(settings.input, sentences, device)

    @classmethod
    def make_labels(cls, examples: Sequence[Example], settings: Any) -> Labels:
        """What a new model can answer: all that its examples teach."""
        return count_labels(cls.answers(example, settings) for example in examples)

    @classmethod
    def answers(cls, example: Example, settings: Any) -> list[str]:
        """The labels that an example teaches."""
        raise NotImplementedError

    @classmethod
    def make_body(cls, settings: Any, labels: Labels, *, input_size: int, again_size: int) -> nn.Module:
        """The task's own network, behind the inputs of these sizes."""
        raise NotImplementedError

    @staticmethod
    def sides(example: Example) -> Sequence[Words]:
        """The words of the example's sentences."""
        raise NotImplementedError

    def target(self, example: Example) -> np.ndarray:
        """What the network is to learn of an example: a number for each prediction that it makes."""
        raise NotImplementedError

    def stack(self, targets: Sequence[np.ndarray]) -> Tensor:
        """The targets of a batch, put together."""
        return torch.from_numpy(np.stack(targets))

    def decode(self, output: Any) -> list[Prediction]:
        """The network's output for a batch, as predictions."""
        raise NotImplementedError

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Report:
        """How good predictions are."""
        raise NotImplementedError

    def read_line(self, line: str, *, tokenized: bool = False) -> list[list[Token]]:
        """A line of text to predict, as the tokens of its sentences; just one where a task does not say otherwise."""
        return [self.tokens(line, tokenized=tokenized)]

    def as_text(self, sides: Sequence[Sequence[Token]], prediction: Prediction) -> str:
        """A prediction as lines of text."""
        raise NotImplementedError

    def as_record(self, line: str, sides: Sequence[Sequence[Token]], prediction: Prediction) -> dict[str, Any]:
        """A prediction as a JSON object."""
        raise NotImplementedError


def count_labels(answers: Iterable[Sequence[str]]) -> Labels:
    """All labels of the training examples."""
    counts = Counter(label for each in answers for label in each)
    if len(counts) < 2:
        raise CorpusError(f"the training examples have {len(counts)} label{'s' * (len(counts) != 1)}; two are needed")
    return Labels.from_counts(list(counts), np.array(list(counts.values())))


def by_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Numbers of examples in batches of about one length, the shortest first."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        end = start + 1
        while end < min(len(order), start + MOST) and (end + 1 - start) * lengths[order[end]] <= TOKENS_PER_BATCH:
            end += 1
        yield order[start:end]
        start = end

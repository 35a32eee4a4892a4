"""Base class of models for tasks: a network with the features of words, vocabularies and settings.

`Task` predicts, scores, saves and loads. A task is a subclass that defines how its files are read, its vocabularies and
its network, the input and targets of an example, and how the output of the network is decoded and scored:

    read, make_example -> examples -> encode -> batch -> network -> output -> decode -> predictions -> score, to_dict
"""

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from relmo.errors import CorpusError, SettingError, check_cancelled, quote
from relmo.models.saved import CardText, SavedFolder, SavedModel, describe_layers
from relmo.networks.inputs import IGNORED, TaskBatch, TaskNetwork, WordInputs
from relmo.settings.arguments import check_sentence, check_text, describe_value
from relmo.settings.kinds import KINDS
from relmo.store.folder import pick_device
from relmo.tasks.features import EncodedSentences, MessageCallback, WordFeatures, Words
from relmo.tasks.scores import TaskReport
from relmo.text.corpus import Errors
from relmo.text.readers.tables import TEXT
from relmo.text.tokenize import Token, place_tokens, split_whitespace, tokenize
from relmo.text.vocabulary import Vocabulary
from relmo.training.batch import move_to_device

MAX_BATCH_TOKENS, MAX_BATCH_SIZE = 4096, 256  # of prediction; they affect the speed alone
PREFETCH = 2048  # examples that are read ahead and sorted by length
MAX_RARE_LABELS = 20  # more labels are refused if they occur less than twice on average


class Prediction(Protocol):
    """Prediction for an example: a frozen dataclass of each task. If it also has `pieces()`, pairs of the text of
    `as_text` and the name of a colour, terminals show it in colour."""

    def as_text(self) -> str:
        """Return the prediction as text for a terminal."""

    def to_dict(self) -> dict[str, Any]:
        """Return the input and the prediction as values for JSON, as in `relmo predict --json` and `relmo serve`."""


class Workload(NamedTuple):
    """Number of units that a model reads and may write for an example, in its own units (words, subwords, …)."""

    read: int
    written: int = 0


class EncodedExamples(Protocol):
    """Examples as arrays.

    lengths       (N,): lengths of the examples; examples of similar length make a batch
    predictions   number of predictions of one training epoch
    """

    lengths: np.ndarray
    predictions: int

    def batch(self, indices: np.ndarray) -> Any:
        """Return the input of the network for the examples with these indices: a named tuple of tensors."""


E = TypeVar("E")
P = TypeVar("P", bound=Prediction)


class Labels(Vocabulary):
    """Labels that a model predicts, by falling frequency."""

    specials = ()

    def ids(self, symbols: Iterable[str]) -> np.ndarray:
        """Return the ids of labels, which must all be known."""
        return np.array([self.index[symbol] for symbol in symbols], dtype=np.int64)


class Tokenized(list[str]):
    """Words of a text, with the text and their offsets in it."""

    def __init__(self, text: str, tokens: Sequence[Token]):
        super().__init__(token.text for token in tokens)
        self.text, self.tokens = text, tokens

    @classmethod
    def from_words(cls, words: Words) -> "Tokenized":
        """Return words with their text; words without one are joined by spaces."""
        if isinstance(words, Tokenized):
            return words
        return cls(" ".join(words), place_tokens(words))

    def span(self, start: int, end: int) -> Token:
        """Return the words from `start` up to `end` as one piece of the text. Words with the same offsets, such as the
        de and le of a French du, are not divided."""
        start_offset, end_offset = self.tokens[start].start, self.tokens[end - 1].end
        return Token(self.text[start_offset:end_offset], start_offset, end_offset)


class EncodedTexts:
    """Examples of one or several texts, and in training their targets. `texts` has the first texts, the second, …"""

    def __init__(self, texts: list[EncodedSentences], targets: list[np.ndarray] | None = None):
        self.texts, self.targets = texts, targets
        self.lengths = np.maximum.reduce([text.lengths for text in texts])
        self.predictions = sum(target.size for target in targets or ())

    def batch(self, indices: np.ndarray) -> TaskBatch:
        """Return the batch of the examples with these indices."""
        texts = [text.batch(indices) for text in self.texts]
        if self.targets is None:
            return TaskBatch(texts)
        targets = [self.targets[i] for i in indices.tolist()]
        return TaskBatch(texts, pad_arrays(targets), sum(target.size for target in targets))


class Task(SavedModel, Generic[E, P]):
    """Model for a task; a subclass implements the methods below `# implemented by each task`.

    vocabularies   vocabularies of the task by name, such as its labels; those of words are in `features`
    start          model that a new one is initialized from, such as a language model; None otherwise
    """

    network: TaskNetwork
    input_type: ClassVar[Any] = list[str]
    """Type of an input in HTTP requests, apart from a line of text; passed to `make_example`."""
    line_pattern: ClassVar[str | None] = None
    """Regular expression for the lines that `read_line` accepts; None if it accepts every line."""
    prediction_unit: str = "words"
    """Plural noun for the predictions in training."""

    def __init__(
        self,
        settings: Any,
        features: WordFeatures,
        vocabularies: dict[str, Vocabulary],
        device: torch.device | str = "cpu",
        start: Any = None,
    ):
        self.settings = settings
        self.features = features
        self.vocabularies = vocabularies
        self.device = torch.device(device)
        self.start = start

    @classmethod
    def prepare(cls, settings: Any, examples: Sequence[E], device: torch.device, start: Any = None) -> Self:
        """Create a model without a network: the vocabularies and features of its training examples."""
        vocabularies = cls.make_vocabularies(settings, examples)
        words = (words for example in examples for words in cls.texts(example))
        return cls(settings, cls.make_features(settings, words, device, start), vocabularies, device, start)

    def initialize(self) -> Self:
        """Return a copy with a newly initialized network."""
        return self._with_network(self._build_network())

    def _build_network(self) -> TaskNetwork:
        return self.make_network(self.features.make_inputs())

    def _with_network(self, network: TaskNetwork) -> Self:
        self.features.set_static(network.inputs)
        return self.copy(network=network.to(self.device).eval())

    def copy(self, **attributes: Any) -> Self:
        """Return a shallow copy with other attributes, such as settings or features."""
        model = copy.copy(self)
        vars(model).update(attributes)
        return model

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> Self:
        settings, torch_device = saved.settings(cls.kind), pick_device(device)
        vocabularies: dict[str, Vocabulary] = {
            name: saved.vocabulary(vocabulary_type, f"{name}.txt", key=name, what=name)
            for name, vocabulary_type in cls.vocabulary_types(settings).items()
        }
        features = WordFeatures.restore(saved, settings.input, torch_device.type)
        model = cls(settings, features, vocabularies, torch_device)
        return model._with_network(saved.network(model._build_network))

    def config(self) -> dict[str, Any]:
        sizes = {name: len(vocabulary) for name, vocabulary in self.vocabularies.items()}
        return sizes | self.features.config() | {"settings": self._settings_values()}

    def vocabulary_files(self) -> dict[str, Vocabulary]:
        vocabularies = {f"{name}.txt": vocabulary for name, vocabulary in self.vocabularies.items()}
        return vocabularies | self.features.vocabulary_files()

    def save_extra_files(self, folder: Path) -> None:
        self.features.save_copies(folder)

    def geometry(self) -> str:
        model = self.settings.model
        cell, layers, units = (getattr(model, name, None) for name in ("cell", "layers", "hidden"))
        parts = [getattr(model, "network", None) or cell or "lstm"]
        if units:
            parts.append(describe_layers(layers, units) if layers else f"{units} units")
        parts += [f"{len(symbols):,} {name}" for name, symbols in self._list_symbols().items()]
        parts += [f"{name} {reference.source}" for name, reference in self.features.references.items()]
        return ", ".join(parts)

    def _list_symbols(self) -> dict[str, list[str]]:
        """Return the symbols of each vocabulary of the task that has any, without specials."""
        return {
            name.removesuffix("-vocabulary"): vocabulary.symbols[len(vocabulary.specials) :]
            for name, vocabulary in self.vocabularies.items()
            if len(vocabulary) > len(vocabulary.specials)
        }

    def card_text(self, name: str) -> CardText:
        facts = [f"- {len(s)} {what}: {', '.join(s[:40])}" for what, s in self._list_symbols().items()]
        facts.append(f"- parameters: {self.parameter_count():,}")
        facts += [f"- {what}: {reference.source}" for what, reference in self.features.references.items()]
        headline = f"A{KINDS[self.kind].called[1:]}, made with relmo."  # `called` is "a tagger", for example
        return CardText(headline, facts, ["```", f"relmo predict {name} text.txt", "```"])

    def card_results(self, results: dict[str, Any]) -> list[str]:
        """Return the training results and the weights of ELMo's layers."""
        lines = super().card_results({k: v for k, v in results.items() if k not in ("parameters", "elmo_mix")})
        for place, mix in results.get("elmo_mix", {}).items():
            weights = ", ".join(f"{weight:.3f}" for weight in mix["weights"])
            lines.append(f"- ELMo at the {place}: {weights} of its layers, times {mix['gamma']:.3f}")
        return lines

    @property
    def labels(self) -> Vocabulary:
        """Labels that the model predicts."""
        return self.vocabularies["labels"]

    def tokens(self, text: str, *, tokenized: bool = False) -> list[Token]:
        """Split raw text into words, or tokenized text at whitespace."""
        check_text(text)
        if tokenized or self.settings.text.tokenizer == "whitespace":
            return split_whitespace(text)
        return tokenize(text)

    def split(self, sentence: str | Words, *, tokenized: bool = False) -> Tokenized:
        """Return the words of a sentence: a string is split, a list is used as is."""
        if isinstance(sentence, str):
            return Tokenized(sentence, self.tokens(sentence, tokenized=tokenized))
        return Tokenized.from_words(check_sentence(sentence, "a sentence"))

    @torch.no_grad()
    def predict_encoded(self, examples: Sequence[E], encoded: EncodedExamples) -> list[P]:
        """Return the prediction for each example, in order. Examples of similar length are batched."""
        predictions: list[P | None] = [None] * len(examples)
        training = self.network.training  # true between two training steps
        try:
            self.network.eval()
            for batch_indices in batch_by_length(encoded.lengths):
                check_cancelled()
                output = self.network(move_to_device(encoded.batch(batch_indices), self.device))
                indices = batch_indices.tolist()
                for i, prediction in zip(indices, self.decode(output, [examples[i] for i in indices]), strict=True):
                    predictions[i] = prediction
        finally:
            self.network.train(training)
        return predictions  # type: ignore[return-value]

    def predict(self, inputs: Iterable[Any]) -> list[P]:
        """Return the prediction for each input; `make_example` defines the inputs of a task."""
        return list(self.predict_examples(map(self.make_example, inputs)))

    def predict_examples(self, examples: Iterable[E]) -> Iterator[P]:
        """Yield the prediction for each of any number of examples, in bounded memory. Their gold answers are not
        used."""
        iterator = iter(examples)
        while chunk := list(islice(iterator, PREFETCH)):
            yield from self.predict_encoded(chunk, self.encode(chunk))

    def evaluate(self, files: str | Path | Sequence[str | Path], **text: Any) -> TaskReport:
        """Return the score on one or several files of examples. Options of training that say how files are read, such
        as `column` and `text_column`, replace those of the model."""
        paths = [files] if isinstance(files, str | Path) else files
        settings = self.with_text(**text).settings.text
        examples = [example for path in paths for example in self.read(path, settings)]
        return self.score(examples, list(self.predict_examples(examples)))

    def encode(
        self, examples: Sequence[E], *, answers: bool = False, on_message: MessageCallback = lambda _: None
    ) -> EncodedExamples:
        """Encode examples as arrays; with `answers`, also their targets. Override this if the network reads more than
        the words of `texts` or learns more than the numbers of `target`."""
        texts = [self.features.encode(text, on_message) for text in zip(*map(self.texts, examples), strict=True)]
        return EncodedTexts(texts, [self.target(example) for example in examples] if answers else None)

    # implemented by each task

    @classmethod
    def resolve_settings(cls, settings: Any) -> tuple[Any, Any]:
        """Return the settings of a new model with those filled in that follow from others, and the model it starts
        from, or None."""
        return settings, None

    @classmethod
    def infer_settings(cls, settings: Any, files: Sequence[str], on_message: MessageCallback) -> Any:
        """Return the settings with those filled in that depend on the training files; the choice is reported."""
        return settings

    @classmethod
    def read(cls, path: str | Path, text: Any, *, training: bool = False) -> list[E]:
        """Read the examples of a file; some tasks read more of it for training than for scoring."""
        raise NotImplementedError

    @staticmethod
    def texts(example: E) -> Sequence[Words]:
        """Return the words of each text of an example."""
        raise NotImplementedError

    @staticmethod
    def classes(example: E) -> Collection[str]:
        """Return the labels of an example, by which the held-out part is stratified."""
        return ()

    @classmethod
    def make_features(
        cls, settings: Any, sentences: Iterable[Words], device: torch.device, start: Any = None
    ) -> WordFeatures:
        """Build the features of words of a new model from its training sentences."""
        return WordFeatures.build(settings.input, sentences, device)

    @classmethod
    def vocabulary_types(cls, settings: Any) -> dict[str, type[Vocabulary]]:
        """Return the types of the task's vocabularies by name: labels, or a name that ends in -labels or -vocabulary.
        The names are also those of their files."""
        return {"labels": Labels}

    @classmethod
    def make_vocabularies(cls, settings: Any, examples: Sequence[E]) -> dict[str, Vocabulary]:
        """Build the vocabularies of a new model from its training examples."""
        raise NotImplementedError

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        """Create the network on top of an input layer."""
        raise NotImplementedError

    def target(self, example: E) -> np.ndarray:
        """Return the target of each prediction for an example."""
        raise NotImplementedError

    def decode(self, output: Any, examples: Sequence[E]) -> list[P]:
        """Convert the output of the network for a batch of examples to predictions."""
        raise NotImplementedError

    def score(self, examples: Sequence[E], predictions: Sequence[P]) -> TaskReport:
        """Score predictions against the examples."""
        raise NotImplementedError

    def make_example(self, inputs: Any, *, tokenized: bool = False) -> E:
        """Convert an input of `predict` to an example without an answer; `split` splits strings into words."""
        raise NotImplementedError

    def check_raw_text(self, examples: Sequence[E], on_message: MessageCallback) -> dict[str, float]:
        """Compare the words of validation examples with those of their raw text. Return scores for the results, and
        report differences."""
        return {}

    def workload(self, example: E) -> Workload:
        """Return how much the model reads and may write for an example."""
        return Workload(sum(map(len, self.texts(example))))

    def with_full_records(self) -> Self:
        """Return the model with every field of `to_dict` computed, as `relmo predict --json` prints it."""
        return self

    @property
    def text_columns(self) -> tuple[tuple[str, ...], ...]:
        """Columns of a table that make up a line for `read_line`, joined by tabs: for each, its possible names."""
        return (TEXT,)

    def read_line(self, line: str, *, tokenized: bool = False) -> E:
        """Convert a line of text to an example without an answer."""
        return self.make_example(line, tokenized=tokenized)

    def read_file(self, path: str, *, errors: Errors) -> list[E] | None:
        """Read a file to predict that is not read line by line. Return None for files in which a line is an example."""
        return None


class PairTask(Task[E, P]):
    """Task whose inputs are pairs of texts, separated by a tab on a line.

    pair_names   names of the two texts in messages
    """

    input_type = tuple[str | list[str], str | list[str]]
    line_pattern = r"^\s*$|^[^\t]*\t[^\t]*$"
    pair_names: ClassVar[tuple[str, str]] = ("first", "second")

    def predict(self, inputs: Iterable[tuple[str | Words, str | Words]]) -> list[P]:
        """Return the prediction for each pair: strings, which are split into words, or lists of words."""
        if not isinstance(inputs, Iterable):
            names = ", ".join(self.pair_names)
            raise SettingError(f"predict takes a list of pairs ({names}), not {describe_value(inputs)}")
        return super().predict(inputs)

    def split_pair(
        self, pair: tuple[str | Words, str | Words], *, tokenized: bool = False
    ) -> tuple[Tokenized, Tokenized]:
        """Return the words of both texts of a pair."""
        # a string of two letters, or a list of them in place of a pair, is more likely a single text
        if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
            names = ", ".join(self.pair_names)
            raise SettingError(f"predict takes several pairs: put a single one into a list, predict([({names})])")
        return self.split(pair[0], tokenized=tokenized), self.split(pair[1], tokenized=tokenized)

    def read_line(self, line: str, *, tokenized: bool = False) -> E:
        texts = line.split("\t") if line.strip() else ["", ""]
        if len(texts) != 2:
            raise CorpusError(
                f"expected two texts ({', '.join(self.pair_names)}) with a tab between them, found {len(texts)}: "
                f"'{line[:60]}'"
            )
        return self.make_example((texts[0], texts[1]), tokenized=tokenized)


def count_labels(examples: Iterable[Sequence[str]]) -> Labels:
    """Return the labels of the training examples."""
    counts = Counter(label for labels in examples for label in labels)
    if not counts:
        raise CorpusError("the training examples have no labels; at least two are needed")
    label, total = next(iter(counts)), counts.total()
    if len(counts) == 1:
        raise CorpusError(f"the training examples have 1 label, {quote(label)}; at least two are needed")
    if len(counts) > max(MAX_RARE_LABELS, total // 2):
        raise CorpusError(
            f"the training examples have {len(counts):,} different labels among {total:,}, such as {quote(label)}; too "
            "many to be learned. Name the column with the labels with --column."
        )
    return Labels.from_counts(list(counts), np.array(list(counts.values())))


def pad_arrays(arrays: Sequence[np.ndarray], *, filler: int = IGNORED) -> Tensor:
    """Stack the arrays of a batch: scalars to (B,), vectors to (B, T) with a filler in the padding."""
    if arrays[0].ndim == 0:
        return torch.from_numpy(np.stack(arrays))
    rows = np.full((len(arrays), max(map(len, arrays))), filler, dtype=arrays[0].dtype)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(rows)


def batch_by_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the indices of examples in batches of similar length, the shortest first."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        end, limit = start + 1, min(len(order), start + MAX_BATCH_SIZE)
        while end < limit and (end + 1 - start) * lengths[order[end]] <= MAX_BATCH_TOKENS:
            end += 1
        yield order[start:end]
        start = end

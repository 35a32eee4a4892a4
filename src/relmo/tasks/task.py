"""Base class of models for tasks: a network with the features of words, vocabularies and settings.

`Task` predicts, scores, saves and loads. A task is a subclass that defines how its files are read, its vocabularies and
its network, the input and targets of an example, and how the output of the network is decoded and scored:

    read, make_example -> examples -> encode -> batch -> network -> output -> decode -> predictions -> score, to_dict
"""

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from relmo.errors import CorpusError, SettingError, check_cancelled, quote
from relmo.models.saved import CardText, SavedFolder, SavedModel, describe_layers
from relmo.networks.elmo import Elmo
from relmo.networks.inputs import IGNORED, TaskBatch, TaskNetwork, WordInputs
from relmo.settings.fields import check_sentence, check_text, describe_value
from relmo.store.folder import BILM_VOCABULARY, COPY_OF_BILM, COPY_OF_VECTORS, VOCABULARY, pick_device
from relmo.tasks.features import MessageCallback, WordFeatures, Words
from relmo.tasks.results import Prediction
from relmo.tasks.scores import TaskReport
from relmo.text.corpus import Errors
from relmo.text.readers.tables import TEXT
from relmo.text.tokenize import SPLITTERS, Token, place_tokens
from relmo.text.vocabulary import Vocabulary
from relmo.training.batch import move_to_device

MAX_BATCH_TOKENS, MAX_BATCH_SIZE = 4096, 256  # of prediction; they affect the speed alone
PREFETCH = 2048  # examples that are read ahead and sorted by length
MAX_RARE_LABELS = 20  # more labels are refused if they occur less than twice on average


class Workload(NamedTuple):
    """Number of units that a model reads and may write for an example, in its own units (words, subwords, …)."""

    read: int
    written: int = 0


class EncodedExamples(NamedTuple):
    """Examples as arrays."""

    lengths: np.ndarray  # (N,): lengths of the examples; examples of similar length make a batch
    predictions: int  # number of predictions of one training epoch
    batch: Callable[[np.ndarray], TaskBatch]  # returns the input of the network for the examples with these indices


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
        return words if isinstance(words, Tokenized) else cls(" ".join(words), place_tokens(words))

    def span(self, start: int, end: int) -> tuple[str, int, int, int, int]:
        """Return the fields of the `TextSpan` of the words from `start` up to `end`."""
        start_offset, end_offset = self.tokens[start].start, self.tokens[end - 1].end
        return self.text[start_offset:end_offset], start_offset, end_offset, start, end


class Task(SavedModel, Generic[E, P]):
    """Model for a task; a subclass implements the methods below `# implemented by each task`.

    vocabularies   vocabularies of the task by name, such as its labels; those of words are in `features`
    start          model that a new one is initialized from, such as a language model; None otherwise
    """

    network: TaskNetwork
    features: WordFeatures
    labels: Vocabulary  # labels that the model predicts, if it does
    example_type: ClassVar[Any]  # type of the examples
    no_answer: ClassVar[tuple[Any, ...]] = ()  # fields after the texts of an example that is to be predicted
    text_fields: ClassVar[tuple[str, ...]] = ("words",)  # fields of an example with the words of its texts
    label_field: ClassVar[str | None] = None  # field of an example with its label or labels, for stratification
    column_names: tuple[tuple[str, ...], ...] = (TEXT,)  # possible names of each column of a table with a text
    input_type: ClassVar[Any] = list[str]  # argument of `make_example` in HTTP requests, apart from a line
    line_pattern: ClassVar[str | None] = None  # regular expression for the lines of `read_line`; None for all
    prediction_unit: str = "words"  # plural noun for the predictions in training

    def __init__(
        self,
        settings: Any,
        features: WordFeatures | None,
        vocabularies: dict[str, Vocabulary],
        device: torch.device | str = "cpu",
        start: Any = None,
    ):
        self.settings, self.vocabularies, self.start = settings, vocabularies, start
        self.device = torch.device(device)
        if features is not None:  # `prepare` sets them later
            self.features = features
        if "labels" in vocabularies:
            self.labels = vocabularies["labels"]

    @classmethod
    def prepare(cls, settings: Any, examples: Sequence[E], device: torch.device, start: Any = None) -> Self:
        """Create a model without a network: the vocabularies and features of its training examples."""
        model = cls(settings, None, cls.make_vocabularies(settings, examples), device, start)
        words = (words for example in examples for words in model.texts(example))
        return model.copy(features=WordFeatures.build(settings.input, words, device))

    def initialize(self, saved: SavedFolder | None = None) -> Self:
        """Return a copy with a newly initialized network, or with the one of a model folder."""

        features, vectors = self.features, self.features.vectors

        def make_network() -> TaskNetwork:
            bilm = None
            if features.bilm is not None and features.settings.elmo_tune:
                bilm = Elmo(features.bilm, mixes=0, trainable=True)
            inputs = WordInputs(
                features.settings,
                num_words=len(features.vocabulary) if features.has_learned_words else 0,
                static_shape=(0, 0) if vectors is None else (len(vectors) + 1, vectors.matrix.shape[1]),
                elmo_shape=None if features.bilm is None else features.elmo_shape,
                bilm=bilm,
                spread=features.spread,
            )
            return TaskNetwork(inputs, self.make_body(input_size=inputs.size, elmo_size=inputs.elmo_size))

        network = make_network() if saved is None else saved.network(make_network)
        if vectors is not None:  # they are not saved with the weights
            network.inputs.static = torch.from_numpy(features.static)
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
        return cls(settings, features, vocabularies, torch_device).initialize(saved)

    def config(self) -> dict[str, Any]:
        features = self.features
        values: dict[str, Any] = {name: len(vocabulary) for name, vocabulary in self.vocabularies.items()}
        values |= {"vocab_size": len(features.vocabulary)}
        values |= {name: reference._asdict() for name, reference in features.references.items()}
        if features.has_tuned_bilm and features.bilm is not None:
            values["bilm"] = asdict(features.bilm.settings)
        return values | {"settings": asdict(self.settings)}

    def vocabulary_files(self) -> dict[str, Vocabulary]:
        """Return the vocabularies by file name; a fine-tuned biLM that reads word ids has one too."""
        vocabularies = {f"{name}.txt": vocabulary for name, vocabulary in self.vocabularies.items()}
        vocabularies[VOCABULARY] = self.features.vocabulary
        bilm = self.features.bilm
        if bilm is not None and self.features.has_tuned_bilm and bilm.settings.model.input == "word":
            assert bilm.vocabulary is not None
            vocabularies[BILM_VOCABULARY] = bilm.vocabulary
        return vocabularies

    def save_extra_files(self, folder: Path) -> None:
        """Save copies of the referenced models if the settings ask for them, unless they exist."""
        features = self.features
        bilm = None if features.has_tuned_bilm else features.bilm
        for name, model in ((COPY_OF_VECTORS, features.vectors), (COPY_OF_BILM, bilm)):
            if features.settings.copy and model is not None and not (folder / name / "config.json").exists():
                model.save_pretrained(folder / name)

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
        card = super().card_text(name)
        symbols = [f"- {len(s)} {what}: {', '.join(s[:40])}" for what, s in self._list_symbols().items()]
        return card._replace(facts=[*card.facts, *symbols])

    def card_results(self, results: dict[str, Any]) -> list[str]:
        """Return the training results and the weights of ELMo's layers."""
        lines = super().card_results({k: v for k, v in results.items() if k not in ("parameters", "elmo_mix")})
        for place, mix in results.get("elmo_mix", {}).items():
            weights = ", ".join(f"{weight:.3f}" for weight in mix["weights"])
            lines.append(f"- ELMo at the {place}: {weights} of its layers, times {mix['gamma']:.3f}")
        return lines

    def tokens(self, text: str, *, tokenized: bool = False) -> list[Token]:
        """Split raw text into words, or tokenized text at whitespace."""
        check_text(text)
        return SPLITTERS["whitespace" if tokenized else self.settings.text.tokenizer](text)

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
        """Yield the prediction for each of any number of examples, in bounded memory."""
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
        """Encode examples as arrays; with `answers`, also their targets. By default those of `texts` and `target`."""
        texts = [self.features.encode(text, on_message) for text in zip(*map(self.texts, examples), strict=True)]
        targets = [self.target(example) for example in examples] if answers else None

        def make_batch(indices: np.ndarray) -> TaskBatch:
            batch_texts = [text.batch(indices) for text in texts]
            if targets is None:
                return TaskBatch(batch_texts)
            batch_targets = [targets[i] for i in indices.tolist()]
            return TaskBatch(batch_texts, pad_arrays(batch_targets), sum(target.size for target in batch_targets))

        lengths = np.maximum.reduce([text.lengths for text in texts])
        return EncodedExamples(lengths, sum(target.size for target in targets or ()), make_batch)

    # implemented by each task

    @classmethod
    def resolve_settings(cls, settings: Any) -> tuple[Any, Any]:
        """Return the settings with those filled in that follow from others, and the model to start from, or None."""
        return settings, None

    @classmethod
    def infer_settings(cls, settings: Any, files: Sequence[str], on_message: MessageCallback) -> Any:
        """Return the settings with those filled in that depend on the training files; the choice is reported."""
        return settings

    @classmethod
    def read(cls, path: str | Path, text: Any, *, training: bool = False) -> list[E]:
        """Read the examples of a file; some tasks read more of it for training than for scoring."""
        raise NotImplementedError

    def texts(self, example: E) -> Sequence[Words]:
        """Return the words of each text of an example."""
        return tuple(getattr(example, name) for name in self.text_fields)

    @classmethod
    def classes(cls, example: E) -> Collection[str]:
        """Return the labels of an example; it has none if it is to be predicted as a number."""
        labels = () if cls.label_field is None else getattr(example, cls.label_field)
        if isinstance(labels, str):
            return (labels,)
        return () if isinstance(labels, float) else [label for label in labels if label]

    @classmethod
    def vocabulary_types(cls, settings: Any) -> dict[str, type[Vocabulary]]:
        """Return the types of the task's vocabularies by (file) name: labels, or ending in -labels or -vocabulary."""
        return {"labels": Labels}

    @classmethod
    def make_vocabularies(cls, settings: Any, examples: Sequence[E]) -> dict[str, Vocabulary]:
        """Build the vocabularies of a new model from its training examples; by default its labels."""
        has_labels = "labels" in cls.vocabulary_types(settings)
        return {"labels": count_labels(map(cls.classes, examples))} if has_labels else {}

    def make_body(self, **sizes: int) -> nn.Module:
        """Create the network on top of an input layer; `sizes` are its `input_size` and `elmo_size`."""
        raise NotImplementedError

    def target(self, example: E) -> np.ndarray:
        """Return the target of each prediction for an example; by default its label."""
        return self.labels.ids(self.classes(example))[0]

    def decode(self, output: Any, examples: Sequence[E]) -> list[P]:
        """Convert the output of the network for a batch of examples to predictions."""
        raise NotImplementedError

    def score(self, examples: Sequence[E], predictions: Sequence[P]) -> TaskReport:
        """Score predictions against the examples."""
        raise NotImplementedError

    def make_example(self, inputs: Any, *, tokenized: bool = False) -> E:
        """Convert an input of `predict` to an example without an answer; `split` splits strings into words."""
        return self.example_type(self.split(inputs, tokenized=tokenized), *self.no_answer)

    def check_raw_text(self, examples: Sequence[E], on_message: MessageCallback) -> dict[str, float]:
        """Compare the words of validation examples with those of their raw text; report it, and return scores."""
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
        text = self.settings.text
        name = getattr(text, "text_column", None)
        names = getattr(text, "text_columns", None) or ([] if name is None else [name])
        return tuple((name,) for name in names) or self.column_names

    def read_line(self, line: str, *, tokenized: bool = False) -> E:
        """Convert a line of text to an example without an answer."""
        return self.make_example(line, tokenized=tokenized)

    def read_file(self, path: str, *, errors: Errors) -> list[E] | None:
        """Read a file to predict that is not read line by line. Return None for files in which a line is an example."""
        return None


class PairTask(Task[E, P]):
    """Task whose inputs are pairs of texts, separated by a tab on a line."""

    input_type = tuple[str | list[str], str | list[str]]
    line_pattern = r"^\s*$|^[^\t]*\t[^\t]*$"
    pair_names: ClassVar[tuple[str, str]] = ("first", "second")  # of the two texts, in messages

    def predict(self, pairs: Iterable[tuple[str | Words, str | Words]]) -> list[P]:
        """Return the prediction for each pair: strings, split as by `tokens`, or lists of words."""
        if not isinstance(pairs, Iterable):
            names = ", ".join(self.pair_names)
            raise SettingError(f"predict takes a list of pairs ({names}), not {describe_value(pairs)}")
        return super().predict(pairs)

    def make_example(self, inputs: tuple[str | Words, str | Words], *, tokenized: bool = False) -> E:
        # a string of two letters, or a list of them in place of a pair, is more likely a single text
        if isinstance(inputs, str) or not hasattr(inputs, "__len__") or len(inputs) != 2:
            names = ", ".join(self.pair_names)
            raise SettingError(f"predict takes several pairs: put a single one into a list, predict([({names})])")
        return self.example_type(*(self.split(text, tokenized=tokenized) for text in inputs), *self.no_answer)

    def read_line(self, line: str, *, tokenized: bool = False) -> E:
        texts = line.split("\t") if line.strip() else ["", ""]
        if len(texts) != 2:
            raise CorpusError(
                f"expected two texts ({', '.join(self.pair_names)}) with a tab between them, found {len(texts)}: "
                f"'{line[:60]}'"
            )
        return self.make_example((texts[0], texts[1]), tokenized=tokenized)


def count_labels(examples: Iterable[Collection[str]]) -> Labels:
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


def pad_arrays(arrays: Sequence[np.ndarray]) -> Tensor:
    """Stack the arrays of a batch: scalars to (B,), vectors to (B, T) with IGNORED in the padding."""
    if arrays[0].ndim == 0:
        return torch.from_numpy(np.stack(arrays))
    rows = np.full((len(arrays), max(map(len, arrays))), IGNORED, dtype=arrays[0].dtype)
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

"""A model for a task as a user has it: a network, what it knows of words, its vocabularies and its settings.

`Task` is what all tasks share: predicting, scoring, being saved and loaded. A task is a subclass. It says how its files
are read, which vocabularies and which network it has, what the network reads of an example and learns from it, and how
the network's output is read, scored and shown. Files and text become numbers and answers in one way:

    read, ask -> examples -> encode -> batch -> network -> output -> decode -> predictions -> score, to_dict
"""

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from relmo.errors import CorpusError, check_cancelled, shown
from relmo.models.saved import About, SavedFolder, SavedModel, layers_of
from relmo.networks.inputs import IGNORED, TaskBatch, TaskNetwork, WordInputs
from relmo.settings.arguments import check_sentence, check_text
from relmo.settings.kinds import KINDS
from relmo.store.folder import pick_device
from relmo.tasks.features import EncodedSentences, Say, WordFeatures, Words
from relmo.tasks.scores import TaskReport
from relmo.text.corpus import Errors
from relmo.text.readers.tables import TEXT
from relmo.text.tokenize import Token, split_whitespace, tokenize
from relmo.text.vocabulary import Vocabulary
from relmo.training.batch import on_device

TOKENS_PER_BATCH, MOST = 4096, 256  # words and examples that are predicted side by side; they change the speed only
AHEAD = 2048  # examples that are read ahead to be sorted by length
FEW_LABELS = 20  # so few may be new with every example


class Prediction(Protocol):
    """What a model says of an example: a frozen dataclass, each task's own. One that has `pieces()` too, the text of
    `as_text` in pieces with the names of their colours, is shown in colours on a terminal."""

    def as_text(self) -> str:
        """As the terminal shows it."""

    def to_dict(self) -> dict[str, Any]:
        """What was asked and what is predicted, ready for JSON: what `relmo predict --json` and `relmo serve` give."""


class Workload(NamedTuple):
    """Number of units that a model reads and may write for an example, in its own units (words, subwords, …)."""

    read: int
    written: int = 0


class EncodedExamples(Protocol):
    """Examples as numbers."""

    @property
    def lengths(self) -> np.ndarray:
        """How long each example is, (N,): those of about one length make a batch."""

    @property
    def predictions(self) -> int:
        """How many predictions one pass over them makes in training."""

    def batch(self, which: np.ndarray) -> Any:
        """The examples of these numbers as the network reads them: a named tuple of tensors."""


E = TypeVar("E")
P = TypeVar("P", bound=Prediction)


class Labels(Vocabulary):
    """What a model can answer, the most frequent first."""

    specials = ()

    def ids(self, symbols: Iterable[str]) -> np.ndarray:
        """The ids of labels, which are all known."""
        return np.array([self.index[symbol] for symbol in symbols], dtype=np.int64)


class Tokenized(list[str]):
    """The words of a text, which know the text and where in it they stand."""

    def __init__(self, text: str, tokens: Sequence[Token]):
        super().__init__(token.text for token in tokens)
        self.text, self.tokens = text, tokens

    @classmethod
    def of(cls, words: Words) -> "Tokenized":
        """Words that may have a text; those that have none get one, with a space between them."""
        if isinstance(words, Tokenized):
            return words
        ends = np.cumsum([len(word) + 1 for word in words]).tolist()
        tokens = [Token(word, end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True)]
        return cls(" ".join(words), tokens)

    def stretch(self, start: int, end: int) -> Token:
        """The words from number `start` up to number `end`, as one piece of the text. Words that share their place in
        the text, as the de and le of a French du, have it as a whole."""
        first, last = self.tokens[start].start, self.tokens[end - 1].end
        return Token(self.text[first:last], first, last)


@dataclass
class EncodedTexts:
    """Examples of one text or several, and in training a target each: the first text of each, the second of each, …"""

    texts: list[EncodedSentences]
    targets: list[np.ndarray] | None = None

    @property
    def lengths(self) -> np.ndarray:
        """The longest text of each example."""
        return np.maximum.reduce([text.lengths for text in self.texts])

    @property
    def predictions(self) -> int:
        """A prediction for each number of the targets."""
        return sum(target.size for target in self.targets or ())

    def batch(self, which: np.ndarray) -> TaskBatch:
        """The examples of these numbers."""
        texts = [text.batch(which) for text in self.texts]
        if self.targets is None:
            return TaskBatch(texts)
        targets = [self.targets[i] for i in which.tolist()]
        return TaskBatch(texts, side_by_side(targets), sum(target.size for target in targets))


class Task(SavedModel, Generic[E, P]):
    """A model for a task; a subclass fills in what is below `# what a task says for itself`.

    vocabularies   the task's own, by name: its labels and such; what is known of words is in `features`
    start          a model that a new one begins from, such as a language model; None otherwise
    """

    network: TaskNetwork
    input_type: ClassVar[Any] = list[str]
    """What a request over HTTP may hold for one input, besides a line of text; passed to `ask`."""
    line_pattern: ClassVar[str | None] = None
    """Regular expression for the lines that `read_line` accepts; None if it accepts every line."""

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
        """A new model, with all that it takes from the examples it will learn from; without a network as yet."""
        vocabularies = cls.make_vocabularies(settings, examples)
        words = (words for example in examples for words in cls.texts(example))
        return cls(settings, cls.make_features(settings, words, device, start), vocabularies, device, start)

    def begin(self) -> Self:
        """A copy of this with a network at its beginning."""
        return self._with(self._make_network())

    def _make_network(self) -> TaskNetwork:
        return self.make_network(self.features.make_inputs())

    def _with(self, network: TaskNetwork) -> Self:
        self.features.finish(network.inputs)
        return self.copy(network=network.to(self.device).eval())

    def copy(self, **changed: Any) -> Self:
        """The same with other settings, or other features; the rest is shared."""
        made = copy.copy(self)
        vars(made).update(changed)
        return made

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> Self:
        settings, where = saved.settings(cls.kind), pick_device(device)
        vocabularies: dict[str, Vocabulary] = {
            name: saved.vocabulary(made, f"{name}.txt", key=name, what=name)
            for name, made in cls.vocabulary_types(settings).items()
        }
        model = cls(settings, WordFeatures.restore(saved, settings.input, where.type), vocabularies, where)
        return model._with(saved.network(model._make_network))

    def config(self) -> dict[str, Any]:
        sizes = {name: len(vocabulary) for name, vocabulary in self.vocabularies.items()}
        return sizes | self.features.config() | {"settings": self._settings_values()}

    def vocabulary_files(self) -> dict[str, Vocabulary]:
        """The task's own, and those of words."""
        own = {f"{name}.txt": vocabulary for name, vocabulary in self.vocabularies.items()}
        return own | self.features.vocabulary_files()

    def save_others(self, folder: Path) -> None:
        """Copies of the models it is built on, where the settings ask for them."""
        self.features.save_copies(folder)

    def geometry(self) -> str:
        """What the settings of all tasks' networks say: which network or cell, and how large."""
        model, own = self.settings.model, self.vocabularies.items()
        cell, layers, units = (getattr(model, name, None) for name in ("cell", "layers", "hidden"))
        network = [getattr(model, "network", None) or cell or "lstm"]
        network += [layers_of(layers, units) if layers else f"{units} units"] if units else []
        sizes = {what.removesuffix("-vocabulary"): len(found) - len(found.specials) for what, found in own}
        known = [f"{size:,} {what}" for what, size in sizes.items() if size]
        built_on = [f"{what} {reference.source}" for what, reference in self.features.references.items()]
        return ", ".join([*network, *known, *built_on])

    def about(self, name: str) -> About:
        own, built_on = self.vocabularies.items(), self.features.references.items()
        facts = []
        for what, found in own:
            if known := found.symbols[len(found.specials) :]:
                facts.append(f"- {len(known)} {what.removesuffix('-vocabulary')}: {', '.join(known[:40])}")
        facts.append(f"- parameters: {self.parameter_count():,}")
        facts += [f"- {what}: {reference.source}" for what, reference in built_on]
        what = f"A{KINDS[self.kind].called[1:]}, made with relmo."  # it is called a tagger, say
        return About(what, facts, ["```", f"relmo predict {name} text.txt", "```"])

    def card_results(self, results: dict[str, Any]) -> list[str]:
        """How it was trained, how well it does, and what it takes of ELMo's layers."""
        shown = {key: value for key, value in results.items() if key not in ("parameters", "elmo_mix")}
        return super().card_results(shown) + [
            f"- ELMo at the {place}: {', '.join(f'{share:.3f}' for share in mix['weights'])} of its layers, "
            f"times {mix['gamma']:.3f}"
            for place, mix in results.get("elmo_mix", {}).items()
        ]

    @property
    def counted(self) -> str:
        """What a prediction of training is for, in the plural: a word, where a task does not say otherwise."""
        return "words"

    @property
    def labels(self) -> Vocabulary:
        """What it can answer, where it answers with labels."""
        return self.vocabularies["labels"]

    def tokens(self, text: str, *, tokenized: bool = False) -> list[Token]:
        """How raw text is split into words, or, where it is tokenised already, at white space."""
        check_text(text)
        at_spaces = tokenized or self.settings.text.tokenizer == "whitespace"
        return split_whitespace(text) if at_spaces else tokenize(text)

    def split(self, sentence: str | Words, *, tokenized: bool = False) -> Tokenized:
        """The words of a sentence: a string is split, a list is kept as it is."""
        if isinstance(sentence, str):
            return Tokenized(sentence, self.tokens(sentence, tokenized=tokenized))
        return Tokenized.of(check_sentence(sentence, "a sentence"))

    @torch.no_grad()
    def predict_encoded(self, examples: Sequence[E], encoded: EncodedExamples) -> list[P]:
        """What the model says of each example, in their order. Examples of about one length are read together."""
        results: list[P | None] = [None] * len(examples)
        training = self.network.training  # between two steps of training; a loaded model's never is
        try:
            self.network.eval()
            for which in by_length(encoded.lengths):
                check_cancelled()
                output = self.network(on_device(encoded.batch(which), self.device))
                places = which.tolist()
                for i, prediction in zip(places, self.decode(output, [examples[i] for i in places]), strict=True):
                    results[i] = prediction
        finally:
            self.network.train(training)
        return results  # type: ignore[return-value]

    def predict(self, given: Iterable[Any]) -> list[P]:
        """What the model says of each of these; a task says what can be given (`ask`)."""
        return list(self.answer(map(self.ask, given)))

    def answer(self, examples: Iterable[E]) -> Iterator[P]:
        """What the model says of each of any number of examples, whose own answers it does not look at; in bounded
        memory."""
        left = iter(examples)
        while some := list(islice(left, AHEAD)):
            yield from self.predict_encoded(some, self.encode(some))

    def evaluate(self, files: str | Path | Sequence[str | Path], **text: Any) -> TaskReport:
        """Return the score on a file of examples, or on several together. Options of training that say how files are
        read, such as `column` and `text_column`, replace those of the model."""
        paths = [files] if isinstance(files, str | Path) else files
        settings = self.with_text(**text).settings.text
        examples = [example for path in paths for example in self.read(path, settings)]
        return self.score(examples, list(self.answer(examples)))

    def encode(self, examples: Sequence[E], *, answers: bool = False, say: Say = lambda _: None) -> EncodedExamples:
        """Examples as numbers; with `answers`, also what the network is to learn of them. This is for tasks whose
        network reads nothing but the words of `texts` and learns the numbers of `target`."""
        texts = [self.features.encode(text, say) for text in zip(*map(self.texts, examples), strict=True)]
        return EncodedTexts(texts, [self.target(example) for example in examples] if answers else None)

    # what a task says for itself

    @classmethod
    def complete(cls, settings: Any) -> tuple[Any, Any]:
        """The settings of a new model with what follows from them, and a model that it starts from; as they are and
        none where a task does not say otherwise."""
        return settings, None

    @classmethod
    def infer_settings(cls, settings: Any, files: Sequence[str], say: Say) -> Any:
        """Return the settings with those filled in that depend on the training files; `say` reports the choice."""
        return settings

    @classmethod
    def read(cls, path: str | Path, text: Any, *, training: bool = False) -> list[E]:
        """The examples of a file; some tasks learn from more of it than they are scored on."""
        raise NotImplementedError

    @staticmethod
    def texts(example: E) -> Sequence[Words]:
        """The words of each of the example's texts."""
        raise NotImplementedError

    @staticmethod
    def classes(example: E) -> Collection[str]:
        """The labels in an example's answer. Of each, some examples are held out and some are learned from. None where
        a task does not say otherwise."""
        return ()

    @classmethod
    def make_features(
        cls, settings: Any, sentences: Iterable[Words], device: torch.device, start: Any = None
    ) -> WordFeatures:
        """What a new model knows of words, from the sentences it learns from."""
        return WordFeatures.begin(settings.input, sentences, device)

    @classmethod
    def vocabulary_types(cls, settings: Any) -> dict[str, type[Vocabulary]]:
        """The task's own vocabularies by name, which their files have too: labels, or another name that ends with
        -labels or -vocabulary. Labels alone where a task does not say otherwise."""
        return {"labels": Labels}

    @classmethod
    def make_vocabularies(cls, settings: Any, examples: Sequence[E]) -> dict[str, Vocabulary]:
        """Those of a new model, from the examples that it learns from."""
        raise NotImplementedError

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        """The network behind these inputs."""
        raise NotImplementedError

    def target(self, example: E) -> np.ndarray:
        """What the network is to learn of an example: a number for each prediction that it makes."""
        raise NotImplementedError

    def decode(self, output: Any, examples: Sequence[E]) -> list[P]:
        """The network's output for a batch of examples, as predictions."""
        raise NotImplementedError

    def score(self, examples: Sequence[E], predictions: Sequence[P]) -> TaskReport:
        """How good predictions are."""
        raise NotImplementedError

    def ask(self, given: Any, *, tokenized: bool = False) -> E:
        """What a user gives to `predict`, as an example without its answer; `split` makes words of strings."""
        raise NotImplementedError

    def check_raw_text(self, examples: Sequence[E], say: Say) -> dict[str, float]:
        """What validation examples tell of raw text: figures, which go with the results, and what `say` is told.
        Nothing where a task does not say otherwise."""
        return {}

    def workload(self, example: E) -> Workload:
        """Return how much the model reads and may write for an example."""
        return Workload(sum(map(len, self.texts(example))))

    def with_full_records(self) -> Self:
        """Return the model with every field of `to_dict` computed, as `relmo predict --json` prints it."""
        return self

    @property
    def text_columns(self) -> tuple[tuple[str, ...], ...]:
        """The columns of a table that make a line to predict, with tabs between them: for each, names to look for."""
        return (TEXT,)

    def read_line(self, line: str, *, tokenized: bool = False) -> E:
        """A line of text to predict, as an example without its answer."""
        return self.ask(line, tokenized=tokenized)

    def read_whole(self, path: str, *, errors: Errors) -> list[E] | None:
        """The examples of a file to predict that is read as a whole. None where each of its lines is an example, as in
        every file unless a task says otherwise."""
        return None


def count_labels(answers: Iterable[Sequence[str]]) -> Labels:
    """All labels of the training examples."""
    counts = Counter(label for each in answers for label in each)
    if not counts:
        raise CorpusError("the training examples have no labels; two are needed")
    first, total = next(iter(counts)), counts.total()
    if len(counts) == 1:
        raise CorpusError(f"the training examples have 1 label, {shown(first)}; two are needed")
    if len(counts) > max(FEW_LABELS, total // 2):
        raise CorpusError(
            f"the training examples have {len(counts):,} different labels among {total:,}, such as {shown(first)}, so "
            "that none can be learned; say which column has the labels with --column"
        )
    return Labels.from_counts(list(counts), np.array(list(counts.values())))


def side_by_side(arrays: Sequence[np.ndarray], *, filler: int = IGNORED) -> Tensor:
    """The arrays of a batch put together: numbers to (B,), rows to (B, T) with a filler behind their ends."""
    if arrays[0].ndim == 0:
        return torch.from_numpy(np.stack(arrays))
    rows = np.full((len(arrays), max(map(len, arrays))), filler, dtype=arrays[0].dtype)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(rows)


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

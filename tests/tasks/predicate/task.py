"""Predicates as a user has them: a predicate's sense, and the roles that the other words play for it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from relmo.networks.predicate import Frames, FrameScores, MarkedNetwork, PredicateBatch, PredicateNetwork

from relmo.networks.inputs import WordInputs
from relmo.tasks.features import EncodedSentences, MessageCallback, Words
from relmo.tasks.scores import TaskReport, class_report
from relmo.tasks.task import Labels, Task, Tokenized, count_labels, pad_arrays
from relmo.text.readers.tables import json_rows
from relmo.text.vocabulary import Vocabulary


class Marked(NamedTuple):
    """A sentence with a predicate, its sense and the roles of all words."""

    words: list[str]
    predicate: int
    sense: str
    roles: list[str]


@dataclass(frozen=True)
class Frame:
    """A text, where its predicate begins, that, its sense, and the role of each word."""

    text: str
    start: int
    predicate: str
    sense: str
    roles: list[str]

    def as_text(self) -> str:
        """The sense and the roles."""
        return f"{self.sense}\t{' '.join(self.roles)}"

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


@dataclass
class EncodedFrames:
    """Sentences as numbers, where their predicates are, and in training their roles and senses."""

    words: EncodedSentences
    predicates: np.ndarray
    roles: list[np.ndarray]
    senses: np.ndarray | None

    @property
    def lengths(self) -> np.ndarray:
        """Those of the sentences."""
        return self.words.lengths

    @property
    def predictions(self) -> int:
        """One for each word."""
        return int(self.lengths.sum())

    def batch(self, which: np.ndarray) -> PredicateBatch:
        """The sentences of these numbers."""
        words, predicates = self.words.batch(which), torch.from_numpy(self.predicates[which])
        if self.senses is None:
            return PredicateBatch(words, predicates, None, 0)
        roles = [self.roles[i] for i in which.tolist()]
        frames = Frames(pad_arrays(roles), torch.from_numpy(self.senses[which]))
        return PredicateBatch(words, predicates, frames, sum(map(len, roles)))


class PredicateTagger(Task[Marked, Frame]):
    """Senses and roles, two vocabularies, for a word that is marked."""

    kind = "predicate"

    @classmethod
    def read(cls, path: str | Path, text: Any, *, training: bool = False) -> list[Marked]:
        """JSON lines."""
        return [Marked(**row.values) for row in json_rows(path, text.errors)]

    @staticmethod
    def texts(example: Marked) -> Sequence[Words]:
        """The sentence."""
        return (example.words,)

    @classmethod
    def vocabulary_types(cls, settings: Any) -> dict[str, type[Vocabulary]]:
        """Senses and roles."""
        return {"sense-labels": Labels, "role-labels": Labels}

    @classmethod
    def make_vocabularies(cls, settings: Any, examples: Sequence[Marked]) -> dict[str, Vocabulary]:
        """All that are in the examples."""
        roles = count_labels(example.roles for example in examples)
        return {"sense-labels": count_labels([example.sense] for example in examples), "role-labels": roles}

    def make_network(self, inputs: WordInputs) -> MarkedNetwork:
        """Recurrent layers over words and marks."""
        body = PredicateNetwork(
            input_size=inputs.size,
            elmo_size=inputs.elmo_size,
            hidden=self.settings.model.hidden,
            mark_dim=self.settings.model.mark_dim,
            roles=len(self.vocabularies["role-labels"]),
            senses=len(self.vocabularies["sense-labels"]),
        )
        return MarkedNetwork(inputs, body)

    def encode(
        self, examples: Sequence[Marked], *, answers: bool = False, on_message: MessageCallback = lambda _: None
    ) -> EncodedFrames:
        """Words, marks, and what is to be learned."""
        senses, roles = self.vocabularies.values()
        return EncodedFrames(
            self.features.encode([example.words for example in examples], on_message),
            np.array([example.predicate for example in examples]),
            [roles.ids(example.roles) for example in examples] if answers else [],
            senses.ids(example.sense for example in examples) if answers else None,
        )

    def decode(self, output: FrameScores, examples: Sequence[Marked]) -> list[Frame]:
        """The best sense and the best role of each word."""
        senses, roles = self.vocabularies.values()
        found = zip(examples, output.senses.argmax(dim=1).tolist(), output.roles.argmax(dim=2).tolist(), strict=True)
        frames = []
        for example, sense, row in found:
            words = Tokenized.from_words(example.words)
            own = [roles.symbols[i] for i in row[: len(words)]]
            at = example.predicate
            frames.append(Frame(words.text, words.tokens[at].start, words[at], senses.symbols[sense], own))
        return frames

    def score(self, examples: Sequence[Marked], predictions: Sequence[Frame]) -> TaskReport:
        """The accuracy of roles."""
        return class_report(*([role for each in side for role in each.roles] for side in (examples, predictions)))

    def make_example(self, given: tuple[str | Words, int], *, tokenized: bool = False) -> Marked:
        """A sentence and the place of its predicate."""
        sentence, predicate = given
        return Marked(self.split(sentence, tokenized=tokenized), predicate, "", [])

    def read_line(self, line: str, *, tokenized: bool = False) -> Marked:
        """The number of the predicate, then the sentence."""
        number, sentence = line.split("\t")
        return self.make_example((sentence, int(number)), tokenized=tokenized)

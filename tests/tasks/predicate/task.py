"""Predicates as a user has them: a predicate's sense, and the roles that the other words play for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from relmo.networks.predicate import Frames, FrameScores, PredicateNetwork

from relmo.networks.inputs import TaskBatch
from relmo.tasks.features import MessageCallback, Words
from relmo.tasks.results import Prediction
from relmo.tasks.scores import TaskReport, class_report
from relmo.tasks.task import EncodedExamples, Labels, Task, Tokenized, count_labels, pad_arrays
from relmo.text.readers.tables import json_rows
from relmo.text.vocabulary import Vocabulary


class Marked(NamedTuple):
    """A sentence with a predicate, its sense and the roles of all words."""

    words: list[str]
    predicate: int
    sense: str
    roles: list[str]


@dataclass(frozen=True)
class Frame(Prediction):
    """A text, where its predicate begins, that, its sense, and the role of each word."""

    text: str
    start: int
    predicate: str
    sense: str
    roles: list[str]

    def as_text(self) -> str:
        """The sense and the roles."""
        return f"{self.sense}\t{' '.join(self.roles)}"


class PredicateTagger(Task[Marked, Frame]):
    """Senses and roles, two vocabularies, for a word that is marked."""

    kind = "predicate"

    @classmethod
    def read(cls, path: str | Path, text: Any, *, training: bool = False) -> list[Marked]:
        """JSON lines."""
        return [Marked(**row.values) for row in json_rows(path, text.errors)]

    @classmethod
    def vocabulary_types(cls, settings: Any) -> dict[str, type[Vocabulary]]:
        """Senses and roles."""
        return {"sense-labels": Labels, "role-labels": Labels}

    @classmethod
    def make_vocabularies(cls, settings: Any, examples: Sequence[Marked]) -> dict[str, Vocabulary]:
        """All that are in the examples."""
        roles = count_labels(example.roles for example in examples)
        return {"sense-labels": count_labels([example.sense] for example in examples), "role-labels": roles}

    def make_body(self, **sizes: int) -> PredicateNetwork:
        """Recurrent layers over words and marks."""
        return PredicateNetwork(
            hidden=self.settings.model.hidden,
            mark_dim=self.settings.model.mark_dim,
            roles=len(self.vocabularies["role-labels"]),
            senses=len(self.vocabularies["sense-labels"]),
            **sizes,
        )

    def encode(
        self, examples: Sequence[Marked], *, answers: bool = False, on_message: MessageCallback = lambda _: None
    ) -> EncodedExamples:
        """Words, marks, and what is to be learned."""
        words = self.features.encode([example.words for example in examples], on_message)
        predicates = torch.tensor([example.predicate for example in examples])
        senses, roles = self.vocabularies.values()
        role_ids = [roles.ids(example.roles) for example in examples] if answers else []
        sense_ids = senses.ids(example.sense for example in examples) if answers else None

        def make_batch(which: np.ndarray) -> TaskBatch:
            extra = (predicates[torch.from_numpy(which)],)
            if sense_ids is None:
                return TaskBatch([words.batch(which)], extra=extra)
            own = [role_ids[i] for i in which.tolist()]
            frames = Frames(pad_arrays(own), torch.from_numpy(sense_ids[which]))
            return TaskBatch([words.batch(which)], frames, sum(map(len, own)), extra)

        return EncodedExamples(words.lengths, int(words.lengths.sum()), make_batch)

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

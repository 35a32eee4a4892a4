"""Semantic role labelling: the predicates of a sentence and the roles of words for each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from relmo.errors import CorpusError, ModelError, SettingError
from relmo.networks.inputs import IGNORED, TaskBatch
from relmo.networks.srl import Predicates, RoleScores, RoleTargets, SRLNetwork
from relmo.settings.fields import check_sentences, describe_value
from relmo.settings.tasks import SRLSettings, SRLTextSettings
from relmo.tasks.features import MessageCallback, Words
from relmo.tasks.results import LabelledSpan, TokenizedText, mark_labels, render_html, shorten
from relmo.tasks.scores import PredicateTags, TaskReport, role_report
from relmo.tasks.task import EncodedExamples, Task, Tokenized, count_labels
from relmo.text.corpus import Errors
from relmo.text.readers.roles import BEGIN_VERB, Proposition, RoleSentence, as_brackets, check_length, read_roles
from relmo.text.readers.tables import is_jsonl
from relmo.text.readers.tagged import OUTSIDE, legal_transitions, spans
from relmo.text.vocabulary import Vocabulary

COLOURS = {"V": "bold red", "ARG0": "blue", "ARG1": "green", "ARG2": "magenta", "ARGM": "cyan"}
DEFAULT_COLOUR = "yellow"


@dataclass(frozen=True)
class PredicateRoles:
    """Predicate: the index of its word, the word, and a BIO tag for each word of the sentence."""

    place: int
    word: str
    tags: list[str]
    roles: list[LabelledSpan]  # spans with a role, including V, the predicate
    probabilities: list[float]  # probability of each word's tag, by that word alone
    probability: float | None = None  # that the word is a predicate; None if the model does not detect predicates


@dataclass(frozen=True, repr=False)
class RoleText(TokenizedText):
    """Sentence with the roles of each of its predicates."""

    predicates: list[PredicateRoles]  # the given predicates; the detected ones if none were given
    detected: list[PredicateRoles] | None = None  # None if the model does not detect predicates

    def to_dict(self) -> dict[str, Any]:
        """Return the text, its tokens with offsets, and the roles of each predicate with their offsets."""
        return {
            "text": self.text,
            "tokens": [token._asdict() for token in self.tokens],
            "predicates": [
                {
                    "token": predicate.place,
                    **self.tokens[predicate.place]._asdict(),
                    "probability": predicate.probability,
                    "tags": predicate.tags,
                    "probabilities": predicate.probabilities,
                    "roles": [asdict(role) for role in predicate.roles],
                }
                for predicate in self.predicates
            ],
        }

    def __repr__(self) -> str:
        lines = []
        for predicate in self.predicates:
            roles = " ".join(f"[{role.label} {shorten(role.text, 40)}]" for role in predicate.roles)
            lines.append(f"{predicate.word}: {roles}")
        return f"RoleText({'; '.join(lines) or shorten(self.text)})"

    def _repr_html_(self) -> str:
        paragraphs = [render_html(self.text, mark_labels(predicate.roles)) for predicate in self.predicates]
        return "".join(paragraphs) or render_html(self.text, [])

    def pieces(self) -> Iterator[tuple[str, str]]:
        """Yield the pieces of `as_text`, each with the name of its colour or an empty string."""
        yield f"{' '.join(self.words)}\n", ""
        width = max((len(predicate.word) for predicate in self.predicates), default=0)
        for predicate in self.predicates:
            yield f"  {predicate.word:<{width}}", ""
            for role in predicate.roles:
                label = role.label.removeprefix("C-").removeprefix("R-").replace("AM-", "ARGM-")
                colour = COLOURS.get(label.partition("-")[0], DEFAULT_COLOUR)
                yield "  ", ""
                yield f"[{role.label} {' '.join(self.words[role.start_word : role.end_word])}]", colour
            yield "\n", ""

    def as_props(self) -> str:
        """Return the columns of CoNLL-2005 that srl-eval.pl reads: the predicates, then brackets for each."""
        marks = ["-"] * len(self.words)
        for predicate in self.predicates:
            marks[predicate.place] = predicate.word
        columns = [marks, *(as_brackets(predicate.tags) for predicate in self.predicates)]
        return "".join("\t".join(fields) + "\n" for fields in zip(*columns, strict=True))


class RoleLabeller(Task[RoleSentence, RoleText]):
    """Network that labels semantic roles, with its vocabulary, tags and settings."""

    kind = "srl"
    input_type = list[Any]  # words, or a sentence and the indices of its predicates
    prediction_unit = "tags"
    settings: SRLSettings

    def predict(self, sentences: Iterable[str | Words | tuple[str | Words, Sequence[int]]]) -> list[RoleText]:
        """Label the roles of sentences: strings or lists of words, or pairs of one and the indices of its predicates,
        from 0."""
        if isinstance(sentences, str) or not isinstance(sentences, Iterable):
            check_sentences(sentences, "predict")  # raises
        return super().predict(sentences)

    @classmethod
    def read(cls, path: str | Path, text: SRLTextSettings, *, training: bool = False) -> list[RoleSentence]:
        examples = list(read_roles(path, layout=text.format, errors=text.errors))
        if text.predicates == "all":
            return examples
        verbs = [
            RoleSentence(words, [proposition for proposition in propositions or () if proposition.verb])
            for words, propositions in examples
        ]
        if not any(example.propositions for example in verbs):
            raise CorpusError(f"{path}: no predicate has a part of speech that begins with V; use --predicates all")
        return verbs

    @classmethod
    def make_vocabularies(cls, settings: SRLSettings, examples: Sequence[RoleSentence]) -> dict[str, Vocabulary]:
        """Return the tags, always including O and B-V."""
        tags = [proposition.tags for example in examples for proposition in example.propositions or ()]
        if not tags:
            raise CorpusError("the training sentences have no predicate")
        return {"labels": count_labels([*tags, [OUTSIDE, BEGIN_VERB]])}

    def make_body(self, **sizes: int) -> nn.Module:
        index = self.labels.index
        if not {OUTSIDE, BEGIN_VERB} <= index.keys():
            raise ModelError(f"labels of semantic roles must include {OUTSIDE} and {BEGIN_VERB}")
        legal = torch.from_numpy(legal_transitions(self.labels.symbols))
        return SRLNetwork(self.settings.model, legal=legal, verb=index[BEGIN_VERB], **sizes)

    def encode(
        self, examples: Sequence[RoleSentence], *, answers: bool = False, on_message: MessageCallback = lambda _: None
    ) -> EncodedExamples:
        sentences = self.features.encode([example.words for example in examples], on_message)
        lengths = sentences.lengths
        propositions = [proposition for example in examples for proposition in example.propositions or ()]
        counts = np.array([len(example.propositions or ()) for example in examples], dtype=np.int64)
        starts = np.cumsum(counts) - counts  # of each sentence's predicates
        all_places = np.array([proposition.place for proposition in propositions], dtype=np.int64)
        tag_ids = [self.labels.ids(proposition.tags) for proposition in propositions] if answers else None

        def make_batch(indices: np.ndarray) -> TaskBatch:
            """Return the batch of the sentences with these indices, with all their predicates."""
            words, batch_counts = sentences.batch(indices), counts[indices]
            rows = np.repeat(np.arange(len(indices)), batch_counts)
            offsets = starts[indices] - (np.cumsum(batch_counts) - batch_counts)
            numbers = np.arange(batch_counts.sum()) + np.repeat(offsets, batch_counts)
            places = all_places[numbers]
            predicates = Predicates(torch.from_numpy(rows), torch.from_numpy(places))
            if tag_ids is None:
                return TaskBatch([words], extra=(predicates, True))
            steps = max(int(lengths[indices].max()), 1)
            tags = np.full((len(numbers), steps), IGNORED, dtype=np.int64)
            for row, number in zip(tags, numbers.tolist(), strict=True):
                row[: len(tag_ids[number])] = tag_ids[number]
            is_predicate = np.zeros((len(indices), steps), dtype=np.float32)
            is_predicate[rows, places] = 1.0
            targets = RoleTargets(torch.from_numpy(tags), torch.from_numpy(is_predicate))
            return TaskBatch([words], targets, int((tags != IGNORED).sum()), (predicates, False))

        return EncodedExamples(lengths, sum(map(len, tag_ids or ())), make_batch)

    def decode(self, output: RoleScores, examples: Sequence[RoleSentence]) -> list[RoleText]:
        odds = None if output.odds is None else output.odds.float().cpu()
        texts = [Tokenized.from_words(example.words) for example in examples]
        predicates: list[dict[int, PredicateRoles]] = [{} for _ in examples]  # of each sentence, by place
        tag_probabilities = torch.softmax(output.tags.float(), dim=2).cpu().numpy()
        rows, places = (indices.tolist() for indices in output.predicates)
        paths = self.network.body.decode(output)
        for row, place, matrix, path in zip(rows, places, tag_probabilities, paths, strict=True):
            words: Tokenized = texts[row]
            tags = [self.labels.symbols[i] for i in path]
            probabilities = matrix[np.arange(len(path)), path].tolist()
            roles = [
                LabelledSpan(*words.span(start, end), label, prod(probabilities[start:end]))
                for start, end, label in spans(tags)
            ]
            probability = None if odds is None else odds[row, place].sigmoid().item()
            predicates[row][place] = PredicateRoles(place, words[place], tags, roles, probabilities, probability)
        predictions = []
        for i, (words, example) in enumerate(zip(texts, examples, strict=True)):
            detected = None
            if odds is not None:
                detected = [predicates[i][place] for place in (odds[i] > 0).nonzero()[:, 0].tolist()]
            output_predicates = detected or []
            if example.propositions is not None:
                gold_places = dict.fromkeys(proposition.place for proposition in example.propositions)
                output_predicates = [predicates[i][place] for place in gold_places]
            predictions.append(RoleText(words.text, list(words.tokens), output_predicates, detected))
        return predictions

    def score(self, examples: Sequence[RoleSentence], predictions: Sequence[RoleText]) -> TaskReport:
        """Compute the F1 of roles, for the gold predicates and for the detected ones."""
        gold = [PredicateTags(i, *p) for i, example in enumerate(examples) for p in example.propositions or ()]
        predicted = [PredicateTags(i, p.place, p.tags) for i, text in enumerate(predictions) for p in text.predicates]
        detected = None
        if self.settings.model.detector > 0:
            detected = [
                PredicateTags(i, p.place, p.tags) for i, text in enumerate(predictions) for p in text.detected or ()
            ]
        return role_report(gold, predicted, detected)

    def make_example(
        self, inputs: str | Words | tuple[str | Words, Sequence[int]], *, tokenized: bool = False
    ) -> RoleSentence:
        """Convert a sentence, or a sentence and the indices of its predicates, to an example."""
        places: Sequence[int] | None = None
        if isinstance(inputs, tuple) and len(inputs) == 2 and not isinstance(inputs[1], str):
            inputs, places = inputs
        elif not self.settings.model.detector:
            raise SettingError(
                "this model does not detect predicates (detector 0); give them: predict([(words, [1, 4])])"
            )
        words = self.split(inputs, tokenized=tokenized)
        check_length(words)
        if places is None:
            return RoleSentence(words, None)
        if not isinstance(places, Iterable):
            raise SettingError(f"the predicates of a sentence must be a list of indices, not {describe_value(places)}")
        for place in places:
            if not (isinstance(place, int | np.integer) and 0 <= place < len(words)):
                raise SettingError(f"a predicate is an index from 0 to {len(words) - 1}, not {place!r:.40}")
        return RoleSentence(words, [Proposition(place, []) for place in dict.fromkeys(map(int, places))])

    def read_file(self, path: str, *, errors: Errors) -> list[RoleSentence] | None:
        """Read the sentences of JSON lines with their predicates; None for other files."""
        return list(read_roles(path, errors=errors)) if is_jsonl(path) else None

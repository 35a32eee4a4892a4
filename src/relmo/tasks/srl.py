"""Labellers of semantic roles as a user has them: the predicates of a sentence, and who or what plays which role.

labeller = relmo.load("models/srl")
found = labeller.predict(["Anna gave Bob the key."])[0]
found.predicates[0].word                                   # 'gave'
[(role.label, role.text) for role in found.predicates[0].roles]  # [('ARG0', 'Anna'), ('V', 'gave'), …]
labeller.predict([("Anna gave Bob the key .".split(), [1])])     # for the predicates that are given: word 1
labeller.evaluate("dev.jsonl").values["verb_f1"]
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relmo.errors import CorpusError, ModelError, SettingError
from relmo.networks.inputs import IGNORED, WordInputs
from relmo.networks.srl import Predicates, RoleBatch, RoleNetwork, RoleScores, RoleTargets, SRLNetwork
from relmo.settings.arguments import check_sentences, typed
from relmo.settings.srl import SRLSettings, SRLTextSettings
from relmo.tasks.features import EncodedSentences, Say, Words
from relmo.tasks.results import LabelledSpan, label_marks, marked_html, shortened
from relmo.tasks.role_scores import Marks, role_report
from relmo.tasks.scores import TaskReport
from relmo.tasks.task import Task, Tokenized, count_labels
from relmo.text.corpus import Errors
from relmo.text.readers.roles import BEGIN_VERB, Proposition, RoleSentence, as_brackets, check_length, read_roles
from relmo.text.readers.tables import is_jsonl
from relmo.text.tags import OUTSIDE, legal_transitions, spans
from relmo.text.tokenize import Token
from relmo.text.vocabulary import Vocabulary

COLOURS = {"V": "bold red", "ARG0": "blue", "ARG1": "green", "ARG2": "magenta", "ARGM": "cyan"}
OTHER_COLOUR = "yellow"


@dataclass(frozen=True)
class PredicateRoles:
    """A predicate: the number of its word, the word, and a tag in BIO for each word of the sentence.

    roles           the stretches of words that play a role, V, the predicate, among them
    probabilities   of each word's tag, as the network gives it to that word alone
    probability     that the word is a predicate; None where the model does not look for them
    """

    place: int
    word: str
    tags: list[str]
    roles: list[LabelledSpan]
    probabilities: list[float]
    probability: float | None = None


@dataclass(frozen=True, repr=False)
class RoleText:
    """A sentence and the roles for each of its predicates.

    text         what was given; where that was a list of words, these with a space between them
    tokens       the words, and where each stands in the text
    predicates   those that were given; where none were, those that the model found
    found        those that the model found; None where it does not look for them
    """

    text: str
    tokens: list[Token]
    predicates: list[PredicateRoles]
    found: list[PredicateRoles] | None = None

    @property
    def words(self) -> list[str]:
        """The words alone."""
        return [token.text for token in self.tokens]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each word begins and ends in the text, in characters."""
        return [(token.start, token.end) for token in self.tokens]

    def to_dict(self) -> dict[str, Any]:
        """The text, its tokens with offsets, and for each predicate its roles with their place in the text."""
        return {
            "text": self.text,
            "tokens": [token._asdict() for token in self.tokens],
            "predicates": [
                {
                    "token": each.place,
                    **self.tokens[each.place]._asdict(),
                    "probability": each.probability,
                    "tags": each.tags,
                    "probabilities": each.probabilities,
                    "roles": [asdict(role) for role in each.roles],
                }
                for each in self.predicates
            ],
        }

    def __repr__(self) -> str:
        """Each predicate with its roles."""
        found = (
            f"{each.word}: {' '.join(f'[{role.label} {shortened(role.text, 40)}]' for role in each.roles)}"
            for each in self.predicates
        )
        return f"RoleText({'; '.join(found) or shortened(self.text)})"

    def _repr_html_(self) -> str:
        """For a notebook: the text once for each predicate, with its roles in colours."""
        shown = [marked_html(self.text, label_marks(each.roles)) for each in self.predicates]
        return "".join(shown) or marked_html(self.text, [])

    def as_text(self) -> str:
        """The sentence, and a line for each predicate with its roles in brackets."""
        return "".join(text for text, _ in self.pieces())

    def pieces(self) -> Iterator[tuple[str, str]]:
        """The same in pieces, each with the name of its colour; none where it has no colour."""
        yield f"{' '.join(self.words)}\n", ""
        widest = max((len(predicate.word) for predicate in self.predicates), default=0)
        for predicate in self.predicates:
            yield f"  {predicate.word:<{widest}}", ""
            for role in predicate.roles:
                yield "  ", ""
                yield f"[{role.label} {' '.join(self.words[role.start_word : role.end_word])}]", _colour(role.label)
            yield "\n", ""

    def as_props(self) -> str:
        """Columns as CoNLL-2005 has them and srl-eval.pl reads them: the predicates, then brackets for each."""
        marks = ["-"] * len(self.words)
        for predicate in self.predicates:
            marks[predicate.place] = predicate.word
        columns = [marks, *(as_brackets(predicate.tags) for predicate in self.predicates)]
        return "".join("\t".join(fields) + "\n" for fields in zip(*columns, strict=True))


def _colour(label: str) -> str:
    """That of a role, whether it is referred to (R-) or goes on (C-)."""
    plain = label.removeprefix("C-").removeprefix("R-").replace("AM-", "ARGM-")
    return COLOURS.get(plain.partition("-")[0], OTHER_COLOUR)


@dataclass
class EncodedRoles:
    """Sentences as numbers, and their predicates, sentence after sentence.

    starts    where each sentence's predicates begin among all, (S + 1,)
    tags      in training, of each predicate, the numbers of its sentence's tags
    """

    words: EncodedSentences
    starts: np.ndarray
    places: np.ndarray
    tags: list[np.ndarray] | None

    @property
    def lengths(self) -> np.ndarray:
        """Those of the sentences."""
        return self.words.lengths

    @property
    def predictions(self) -> int:
        """A tag for each word and predicate."""
        return sum(map(len, self.tags or ()))

    def batch(self, which: np.ndarray) -> RoleBatch:
        """The sentences of these numbers, each once, with all their predicates."""
        words = self.words.batch(which)
        counts = self.starts[which + 1] - self.starts[which]
        rows = np.repeat(np.arange(len(which)), counts)
        numbers = np.arange(counts.sum()) + np.repeat(self.starts[which] - (np.cumsum(counts) - counts), counts)
        places = self.places[numbers]
        predicates = Predicates(torch.from_numpy(rows), torch.from_numpy(places))
        if self.tags is None:
            return RoleBatch(words, predicates)
        steps = max(int(self.lengths[which].max()), 1)
        tags = np.full((len(numbers), steps), IGNORED, dtype=np.int64)
        for row, number in zip(tags, numbers.tolist(), strict=True):
            row[: len(self.tags[number])] = self.tags[number]
        marked = np.zeros((len(which), steps), dtype=np.float32)
        marked[rows, places] = 1.0
        targets = RoleTargets(torch.from_numpy(tags), torch.from_numpy(marked))
        return RoleBatch(words, predicates, targets, int((tags != IGNORED).sum()))


class RoleLabeller(Task[RoleSentence, RoleText]):
    """A network that labels semantic roles, with its vocabulary, tags and settings."""

    kind = "srl"
    input_type = list[Any]  # words, or a sentence and the indices of its predicates
    settings: SRLSettings
    network: RoleNetwork

    def predict(self, given: Iterable[str | Words | tuple[str | Words, Sequence[int]]]) -> list[RoleText]:
        """The predicates of sentences with their roles. A sentence is a string or a list of words; with the numbers of
        its predicates, counted from 0, it is a pair of both."""
        if isinstance(given, str) or not isinstance(given, Iterable):
            check_sentences(given, "predict")  # which says what is wrong
        return super().predict(given)

    @property
    def counted(self) -> str:
        """A tag for each word and predicate."""
        return "tags"

    @classmethod
    def read(cls, path: str | Path, text: SRLTextSettings, *, training: bool = False) -> list[RoleSentence]:
        examples = list(read_roles(path, layout=text.format, errors=text.errors))
        if text.predicates == "all":
            return examples
        if not any(each.verb for example in examples for each in example.propositions or ()):
            raise CorpusError(f"{path}: no predicate has a part of speech that begins with V; take --predicates all")
        return [RoleSentence(words, [each for each in found or () if each.verb]) for words, found in examples]

    @staticmethod
    def texts(example: RoleSentence) -> Sequence[Words]:
        return (example.words,)

    @classmethod
    def make_vocabularies(cls, settings: SRLSettings, examples: Sequence[RoleSentence]) -> dict[str, Vocabulary]:
        """The tags; O and B-V are always among them."""
        tags = [each.tags for example in examples for each in example.propositions or ()]
        if not tags:
            raise CorpusError("the training sentences have no predicate; there is nothing to learn")
        return {"labels": count_labels([*tags, [OUTSIDE, BEGIN_VERB]])}

    def make_network(self, inputs: WordInputs) -> RoleNetwork:
        model, known = self.settings.model, self.labels.index
        if not {OUTSIDE, BEGIN_VERB} <= known.keys():
            raise ModelError(f"labels of semantic roles must have {OUTSIDE} and {BEGIN_VERB} among them")
        body = SRLNetwork(
            input_size=inputs.size,
            legal=torch.from_numpy(legal_transitions(self.labels.symbols)),
            verb=known[BEGIN_VERB],
            hidden=model.hidden,
            layers=model.layers,
            mark_dim=model.mark_dim,
            dropout=model.dropout,
            detector=model.detector,
            again_size=inputs.again_size,
        )
        return RoleNetwork(inputs, body)

    def encode(
        self, examples: Sequence[RoleSentence], *, answers: bool = False, say: Say = lambda _: None
    ) -> EncodedRoles:
        predicates = [example.propositions or [] for example in examples]
        starts = np.concatenate([[0], np.cumsum([len(each) for each in predicates])]).astype(np.int64)
        flat = [each for some in predicates for each in some]
        return EncodedRoles(
            self.features.encode([example.words for example in examples], say),
            starts,
            np.array([each.place for each in flat], dtype=np.int64),
            [self.labels.ids(each.tags) for each in flat] if answers else None,
        )

    def decode(self, output: RoleScores, examples: Sequence[RoleSentence]) -> list[RoleText]:
        odds = None if output.odds is None else output.odds.float().cpu()
        predicates: list[dict[int, PredicateRoles]] = [{} for _ in examples]  # of each sentence, by their places
        shares = torch.softmax(output.tags.float(), dim=2).cpu().numpy()
        texts = [Tokenized.of(example.words) for example in examples]
        rows, places = (each.tolist() for each in output.predicates)
        for row, place, share, path in zip(rows, places, shares, self.network.body.decode(output), strict=True):
            own = share[np.arange(len(path)), path].tolist()
            probability = None if odds is None else odds[row, place].sigmoid().item()
            tags = [self.labels.symbols[i] for i in path]
            predicates[row][place] = _predicate(texts[row], place, tags, own, probability)
        chosen = [None] * len(examples) if odds is None else [(each > 0).nonzero()[:, 0].tolist() for each in odds]
        return [_answer(*each) for each in zip(texts, examples, predicates, chosen, strict=True)]

    def score(self, examples: Sequence[RoleSentence], predictions: Sequence[RoleText]) -> TaskReport:
        """F1 of roles, for the predicates of the files and for those that the model finds."""
        gold = [Marks(i, *each) for i, example in enumerate(examples) for each in example.propositions or ()]
        given = _marks(prediction.predicates for prediction in predictions)
        looks = self.settings.model.detector > 0
        return role_report(gold, given, _marks(each.found or [] for each in predictions) if looks else None)

    def ask(self, given: str | Words | tuple[str | Words, Sequence[int]], *, tokenized: bool = False) -> RoleSentence:
        """A sentence, or a sentence and the numbers of its predicates."""
        places: Sequence[int] | None = None
        if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[1], str):
            given, places = given
        elif not self.settings.model.detector:
            raise SettingError(
                "this model does not look for predicates (detector 0); give them: predict([(words, [1, 4])])"
            )
        words = self.split(given, tokenized=tokenized)
        check_length(words)
        if places is None:
            return RoleSentence(words, None)
        if not isinstance(places, Iterable):
            raise SettingError(f"the predicates of a sentence are a list of numbers of words, not {typed(places)}")
        if wrong := [at for at in places if not (isinstance(at, int | np.integer) and 0 <= at < len(words))]:
            raise SettingError(f"a predicate is the number of a word, from 0 to {len(words) - 1}, not {wrong[0]!r:.40}")
        return RoleSentence(words, [Proposition(at, []) for at in dict.fromkeys(map(int, places))])

    def read_whole(self, path: str, *, errors: Errors) -> list[RoleSentence] | None:
        """The sentences of JSON lines, with the predicates that they have."""
        return list(read_roles(path, errors=errors)) if is_jsonl(path) else None


def _predicate(
    words: Tokenized, place: int, tags: list[str], shares: list[float], probability: float | None
) -> PredicateRoles:
    """A predicate with the tags of its sentence; the probability of a role is the product of those of its tags."""
    roles = [
        LabelledSpan(*words.stretch(start, end), start, end, label, prod(shares[start:end]))
        for start, end, label in spans(tags)
    ]
    return PredicateRoles(place, words[place], tags, roles, shares, probability)


def _answer(
    words: Tokenized, example: RoleSentence, predicates: dict[int, PredicateRoles], chosen: list[int] | None
) -> RoleText:
    """What is said of a sentence: `predicates` are all that were labelled, `chosen` are those that were found."""
    found = None if chosen is None else [predicates[place] for place in chosen]
    given = found or []
    if example.propositions is not None:
        given = [predicates[place] for place in dict.fromkeys(each.place for each in example.propositions)]
    return RoleText(words.text, list(words.tokens), given, found)


def _marks(sentences: Iterable[Sequence[PredicateRoles]]) -> list[Marks]:
    return [Marks(i, each.place, each.tags) for i, predicates in enumerate(sentences) for each in predicates]

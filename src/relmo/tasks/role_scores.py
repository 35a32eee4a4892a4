"""Scores of semantic roles, counted as by the CoNLL-2005 script srl-eval.pl.

- An argument is correct if its label and all its words are.
- The predicate itself, V, is not counted.
- C-X continues the last X before it: both are one argument. Without an X before it, C-X is an X. C-V is a part of V.
- R-X is a label of its own.

Stricter than the script, arguments of a wrongly detected predicate count as errors; the script ignores them.

    Carreras & Marquez 2005, Introduction to the CoNLL-2005 shared task: semantic role labeling
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from relmo.tasks.scores import Confusion, TaskReport, f1_score, score_labels
from relmo.text.readers.roles import VERB
from relmo.text.tags import spans

CONTINUATION = "C-"
NO_ROLE = "none"


class Argument(NamedTuple):
    """Label of a role and the spans of words that fill it."""

    label: str
    parts: tuple[tuple[int, int], ...]


class PredicateTags(NamedTuple):
    """Tags for the predicate at `place` in a sentence, and whether it is a verb."""

    sentence: int
    place: int
    tags: Sequence[str]
    verb: bool | None = None


_PlacedArgument = tuple[int, int, Argument]  # sentence, predicate, argument


def find_arguments(tags: Sequence[str]) -> list[Argument]:
    """Return the arguments that BIO tags mark, without V, in the order in which they begin."""
    arguments: list[Argument] = []
    index_by_label: dict[str, int] = {}
    for start, end, tag_label in spans(tags):
        label = tag_label.removeprefix(CONTINUATION)
        if label != tag_label and label in index_by_label:
            i = index_by_label[label]
            arguments[i] = Argument(label, (*arguments[i].parts, (start, end)))
        else:
            index_by_label[label] = len(arguments)
            arguments.append(Argument(label, ((start, end),)))
    return [argument for argument in arguments if argument.label != VERB]


def role_report(
    gold: Sequence[PredicateTags], predicted: Sequence[PredicateTags], detected: Sequence[PredicateTags] | None
) -> TaskReport:
    """Score the roles that were predicted for the gold predicates and, unless None, for the detected predicates.

    f1, precision, recall       roles of the gold predicates
    verb_f1, …                  roles of verbs alone, if the files tell which predicates are verbs
    found_f1                    roles of the detected predicates
    predicate_f1                the detected predicates themselves
    """
    gold_roles, roles = _place_arguments(gold), _place_arguments(predicted)
    values = _score_sets(gold_roles, roles)
    if any(predicate.verb is not None for predicate in gold):
        verbs = {(predicate.sentence, predicate.place) for predicate in gold if predicate.verb}
        gold_verbs, verb_roles = ({role for role in group if role[:2] in verbs} for group in (gold_roles, roles))
        values |= {f"verb_{name}": value for name, value in _score_sets(gold_verbs, verb_roles).items()}
    if detected is not None:
        values["found_f1"] = _score_sets(gold_roles, _place_arguments(detected))["f1"]
        gold_places, places = ({predicate[:2] for predicate in group} for group in (gold, detected))
        values["predicate_f1"] = _score_sets(gold_places, places)["f1"]
    groups = gold_roles & roles, roles, gold_roles
    labels = score_labels(*(Counter(argument.label for *_, argument in group) for group in groups))
    return TaskReport("f1", values, len(gold_roles), labels, _count_confusions(gold_roles, roles))


def _place_arguments(predicates: Iterable[PredicateTags]) -> set[_PlacedArgument]:
    return {(sentence, place, role) for sentence, place, tags, _ in predicates for role in find_arguments(tags)}


def _score_sets(gold: Set[object], predicted: Set[object]) -> dict[str, float]:
    precision, recall, f1 = f1_score(len(gold & predicted), len(predicted), len(gold))
    return {"f1": f1, "precision": precision, "recall": recall}


def _count_confusions(gold: set[_PlacedArgument], predicted: set[_PlacedArgument]) -> Confusion:
    """Count which role was predicted for which over the same words; missing and spurious arguments pair with none."""
    gold_labels, labels = (
        {(sentence, place, argument.parts): argument.label for sentence, place, argument in group}
        for group in (gold, predicted)
    )
    keys = gold_labels.keys() | labels.keys()
    counts = Counter((gold_labels.get(key, NO_ROLE), labels.get(key, NO_ROLE)) for key in keys)
    return Confusion.from_pairs(counts, last=NO_ROLE)

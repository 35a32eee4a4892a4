"""How well semantic roles were found, counted as the CoNLL-2005 script srl-eval.pl does.

- An argument is right where its label and all its words are: exact match.
- The predicate itself, V, is not counted.
- C-X goes on with the last X before it: both are one argument, which is right as a whole or not at all. Where there is
  no X before it, C-X is an X. C-V is a part of V.
- R-X is a label of its own.

In one point the counts are stricter: the arguments of a predicate that was found where there is none count as wrong,
which the script passes over.

    Carreras & Marquez 2005, Introduction to the CoNLL-2005 shared task: semantic role labeling
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relmo.tasks.scores import Confusion, LabelScore, TaskReport, f1_score
from relmo.text.readers.roles import VERB
from relmo.text.tags import spans

CONTINUES = "C-"
NOTHING = "none"


class Argument(NamedTuple):
    """A role and the stretches of words that fill it, each from its first word up to one that is not of it."""

    label: str
    parts: tuple[tuple[int, int], ...]


class Placed(NamedTuple):
    """An argument of the predicate at `place` in the sentence of this number."""

    sentence: int
    place: int
    argument: Argument


def arguments(tags: Sequence[str]) -> list[Argument]:
    """The arguments that tags in BIO mark, V left out, in the order in which they begin."""
    found: list[Argument] = []
    last: dict[str, int] = {}
    for start, end, label in spans(tags):
        goes_on = label.startswith(CONTINUES)
        label = label.removeprefix(CONTINUES)
        if goes_on and label in last:
            begun = found[last[label]]
            found[last[label]] = begun._replace(parts=(*begun.parts, (start, end)))
        else:
            last[label] = len(found)
            found.append(Argument(label, ((start, end),)))
    return [argument for argument in found if argument.label != VERB]


def _figures(gold: set[Placed], found: set[Placed], name: str = "") -> dict[str, float]:
    """F1, precision and recall by name."""
    precision, recall, f1 = f1_score(len(gold & found), len(found), len(gold))
    return {f"{name}f1": f1, f"{name}precision": precision, f"{name}recall": recall}


def _label_scores(gold: set[Placed], found: set[Placed]) -> list[LabelScore]:
    """Each role by itself."""
    right, given, wanted = (Counter(each.argument.label for each in side) for side in (gold & found, found, gold))
    return [
        LabelScore(label, *f1_score(right[label], given[label], wanted[label]), wanted[label])
        for label in sorted(wanted | given)
    ]


def _role_confusion(gold: set[Placed], found: set[Placed]) -> Confusion:
    """Which role was taken for which where the words are the same; arguments that were missed or made up are taken for,
    or instead of, `none`."""
    wanted, given = (
        {(sentence, place, argument.parts): argument.label for sentence, place, argument in side}
        for side in (gold, found)
    )
    counts = Counter((wanted.get(key, NOTHING), given.get(key, NOTHING)) for key in wanted.keys() | given.keys())
    labels = [*sorted({label for pair in counts for label in pair} - {NOTHING}), NOTHING]
    return Confusion(labels, [[counts[g, p] for p in labels] for g in labels])


class Marks(NamedTuple):
    """The tags for the predicate at `place` in the sentence of this number, and whether it is a verb."""

    sentence: int
    place: int
    tags: Sequence[str]
    verb: bool | None = None


def role_report(gold: Sequence[Marks], given: Sequence[Marks], found: Sequence[Marks] | None) -> TaskReport:
    """The scores of the roles for the predicates of the gold standard (`given`), and, where the model looks for
    predicates itself, of the roles for those that it found.

    f1, precision, recall       roles for the predicates of the gold standard
    verb_f1, …                  the same for verbs alone, where the files say which predicates are verbs
    found_f1                    roles for the predicates that the model found
    predicate_f1                those predicates themselves
    """
    wanted, answered = _placed(gold), _placed(given)
    values = _figures(wanted, answered)
    if any(each.verb is not None for each in gold):
        verbs = {(each.sentence, each.place) for each in gold if each.verb}
        of_verbs = [{one for one in side if one[:2] in verbs} for side in (wanted, answered)]
        values |= _figures(of_verbs[0], of_verbs[1], "verb_")
    if found is not None:
        values["found_f1"] = _figures(wanted, _placed(found))["f1"]
        places, there = ({each[:2] for each in side} for side in (found, gold))
        *_, values["predicate_f1"] = f1_score(len(places & there), len(places), len(there))
    return TaskReport("f1", values, len(wanted), _label_scores(wanted, answered), _role_confusion(wanted, answered))


def _placed(marks: Iterable[Marks]) -> set[Placed]:
    return {Placed(sentence, place, argument) for sentence, place, tags, _ in marks for argument in arguments(tags)}

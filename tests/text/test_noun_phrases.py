"""Sentences with a noun between subject and verb, made of common words."""

import pytest

from relmo.errors import CorpusError, SettingError
from relmo.text.minimal_pairs import ATTRACTORS, SUBJECTS, VERBS, noun_pp


def test_the_four_conditions_are_the_same_items_in_other_numbers() -> None:
    pairs = noun_pp(per_condition=30, seed=2)
    names = ["singular singular", "singular plural", "plural singular", "plural plural"]
    assert [pair.condition for pair in pairs[::30]] == [f"nounpp {name}" for name in names]
    for one, other in zip(pairs[:30], pairs[90:], strict=True):
        the, subject, preposition, article, attractor, verb = one.good
        assert other.good == [the, SUBJECTS[subject], preposition, article, ATTRACTORS[attractor], VERBS[verb]]
        assert other.bad == [*other.good[:-1], verb]
        assert one.bad == [*one.good[:-1], VERBS[verb]]
    assert len({tuple(pair.good) for pair in pairs}) == 120
    assert noun_pp(per_condition=30, seed=2) == pairs != noun_pp(per_condition=30, seed=3)


def test_words_that_a_model_does_not_know_are_left_out() -> None:
    known = {
        *list(SUBJECTS)[:5],
        *SUBJECTS.values(),
        *ATTRACTORS,
        *ATTRACTORS.values(),
        *VERBS,
        *VERBS.values(),
        "near",
    }
    pairs = noun_pp(known=known)
    assert {pair.good[1] for pair in pairs if pair.condition == "nounpp singular plural"} == set(list(SUBJECTS)[:5])
    assert {pair.good[2] for pair in pairs} == {"near"}
    with pytest.raises(CorpusError, match="too few of the common nouns"):
        noun_pp(known={"boy", "boys", "near"})
    with pytest.raises(SettingError, match="per_condition"):
        noun_pp(per_condition=0)

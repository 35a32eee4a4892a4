"""Roles are counted as srl-eval.pl counts them: cases made by hand, whose figures follow from the script's rules."""

import pytest

from relmo.tasks.scores import Argument, PredicateTags, find_arguments, role_report

GOLD = ["B-ARG0", "I-ARG0", "B-V", "B-ARG1", "I-ARG1", "O", "B-ARGM-TMP"]


def report(gold: str, found: str) -> dict[str, float]:
    """The figures of one predicate, at word 0 whatever its tags."""
    values = role_report([PredicateTags(0, 0, gold.split())], [PredicateTags(0, 0, found.split())], None).values
    return {name: round(value, 4) for name, value in values.items()}


def test_arguments_are_spans_without_the_predicate() -> None:
    assert find_arguments(GOLD) == [
        Argument("ARG0", ((0, 2),)),
        Argument("ARG1", ((3, 5),)),
        Argument("ARGM-TMP", ((6, 7),)),
    ]


def test_a_continuation_is_part_of_the_last_argument_of_its_role() -> None:
    tags = ["B-ARG1", "B-V", "B-C-ARG1", "I-C-ARG1", "O", "B-C-ARG1"]
    assert find_arguments(tags) == [Argument("ARG1", ((0, 1), (2, 4), (5, 6)))]
    two = ["B-ARG1", "B-V", "B-ARG1", "B-C-ARG1"]  # of two, the last one goes on
    assert find_arguments(two) == [Argument("ARG1", ((0, 1),)), Argument("ARG1", ((2, 3), (3, 4)))]


def test_a_continuation_of_nothing_is_an_argument_itself() -> None:
    assert find_arguments(["B-C-ARG1", "B-V", "B-C-ARG1"]) == [Argument("ARG1", ((0, 1), (2, 3)))]
    assert find_arguments(["B-V", "B-ARG0", "B-C-ARG1"])[1] == Argument("ARG1", ((2, 3),))


def test_a_continued_predicate_is_not_counted_and_a_reference_is_a_role_of_its_own() -> None:
    assert find_arguments(["B-V", "O", "B-C-V"]) == []
    assert find_arguments(["B-ARG0", "B-R-ARG0", "B-V"])[1].label == "R-ARG0"


def test_what_is_right_is_right_in_role_and_in_every_word() -> None:
    assert report(" ".join(GOLD), " ".join(GOLD)) == {"f1": 1, "precision": 1, "recall": 1}
    # ARG0 right, ARG1 one word short, ARGM-TMP with another role: 1 right of 3 found and 3 wanted
    found = "B-ARG0 I-ARG0 B-V B-ARG1 O O B-ARGM-LOC"
    assert report(" ".join(GOLD), found) == {"f1": 0.3333, "precision": 0.3333, "recall": 0.3333}
    # one right of 1 found and 3 wanted
    assert report(" ".join(GOLD), "B-ARG0 I-ARG0 B-V O O O O") == {"f1": 0.5, "precision": 1, "recall": 0.3333}
    assert report("B-V O", "B-V O") == {"f1": 0, "precision": 0, "recall": 0}


def test_a_discontinuous_argument_counts_once_and_is_right_as_a_whole() -> None:
    gold = "B-ARG1 B-V B-C-ARG1 B-ARG0"
    assert report(gold, gold) == {"f1": 1, "precision": 1, "recall": 1}
    # the head alone, and both pieces as arguments of their own, are wrong; ARG0 is right
    assert report(gold, "B-ARG1 B-V O B-ARG0") == {"f1": 0.5, "precision": 0.5, "recall": 0.5}
    assert report(gold, "B-ARG1 B-V B-ARG1 B-ARG0") == {"f1": 0.4, "precision": 0.3333, "recall": 0.5}
    # the same first and last word are not enough: the pieces must be the same
    assert report("B-ARG1 B-V B-C-ARG1 I-C-ARG1", "B-ARG1 B-V O B-C-ARG1")["f1"] == 0


def test_the_predicates_own_tag_changes_nothing() -> None:
    assert report("B-ARG0 B-V I-V", "B-ARG0 B-V O") == {"f1": 1, "precision": 1, "recall": 1}


def test_each_role_and_which_was_taken_for_which() -> None:
    gold, found = (
        PredicateTags(0, 2, GOLD),
        PredicateTags(0, 2, ["B-ARG0", "I-ARG0", "B-V", "B-ARG1", "O", "B-ARG2", "B-ARGM-LOC"]),
    )
    made = role_report([gold], [found], None)
    assert {label.label: (label.f1, label.support) for label in made.labels} == {
        "ARG0": (1, 1),
        "ARG1": (0, 1),
        "ARG2": (0, 0),
        "ARGM-LOC": (0, 0),
        "ARGM-TMP": (0, 1),
    }
    assert made.count == 3
    assert made.confusion is not None
    names, counts = made.confusion.labels, made.confusion.counts
    at = {name: number for number, name in enumerate(names)}
    assert names[-1] == "none"
    assert counts[at["ARG0"]][at["ARG0"]] == counts[at["ARGM-TMP"]][at["ARGM-LOC"]] == 1
    assert counts[at["ARG1"]][at["none"]] == 1
    assert [counts[at["none"]][at[name]] for name in ("ARG1", "ARG2")] == [1, 1]


def test_verbs_by_themselves_and_predicates_that_the_model_found() -> None:
    verb, noun = ["B-ARG0", "B-V", "O"], ["O", "B-ARG1", "B-V"]
    gold = [PredicateTags(0, 1, verb, True), PredicateTags(0, 2, noun, False), PredicateTags(1, 1, verb, True)]
    given = [PredicateTags(0, 1, verb), PredicateTags(0, 2, ["O", "O", "B-V"]), PredicateTags(1, 1, verb)]
    # found: the first, and one where there is none, whose argument counts as wrong; the other two are missed
    found = [PredicateTags(0, 1, verb), PredicateTags(1, 0, ["B-V", "B-ARG1", "O"])]
    values = role_report(gold, given, found).values
    assert values["f1"] == pytest.approx(2 * 2 / (2 + 3))
    assert values["verb_f1"] == 1
    assert values["found_f1"] == pytest.approx(2 * 1 / (2 + 3))
    assert values["predicate_f1"] == pytest.approx(2 * 1 / (2 + 3))
    assert "verb_f1" not in role_report([PredicateTags(0, 1, verb)], given[:1], None).values


def test_the_same_words_in_two_sentences_are_two_arguments() -> None:
    tags = ["B-ARG0", "B-V"]
    made = role_report([PredicateTags(0, 1, tags), PredicateTags(1, 1, tags)], [PredicateTags(0, 1, tags)], None)
    assert made.values["recall"] == 0.5

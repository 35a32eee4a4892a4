"""Exact match and F1 of answers, on cases whose scores are known."""

import pytest

from relmo.tasks.scores import answer_report, normalize_answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("The Eiffel Tower!", ["eiffel", "tower"]),
        ("a cat, an ant; theatre", ["cat", "ant", "theatre"]),
        ("U.S. dollars", ["us", "dollars"]),
        ("twenty-one", ["twentyone"]),
        ("A-Team", ["ateam"]),
        ("the  a\tan", []),
        ("“quoted”", ["“quoted”"]),  # only ASCII's punctuation goes, as in the script
        ("", []),
    ],
)
def test_case_punctuation_and_articles_do_not_count(answer: str, words: list[str]) -> None:
    assert normalize_answer(answer) == words


@pytest.mark.parametrize(
    ("answer", "right", "exact", "f1"),
    [
        ("Denver Broncos", ["Denver Broncos", "The Denver Broncos"], 1, 1),
        ("the denver broncos.", ["Denver Broncos"], 1, 1),
        ("Broncos", ["Denver Broncos"], 0, 2 / 3),
        ("Broncos Denver", ["Denver Broncos"], 0, 1),
        ("Denver Broncos team", ["Carolina", "Denver Broncos"], 0, 0.8),
        ("to be or not to be", ["to be to do"], 0, 0.6),  # to, be, to of 6 and 4 words
        ("Carolina", ["Denver Broncos"], 0, 0),
        ("the", ["a"], 1, 0),  # both are nothing: SQuAD 1.1's script says so
        ("", ["Denver"], 0, 0),
        ("Denver", [], 0, 0),
    ],
)
def test_scores_are_those_of_the_best_right_answer(answer: str, right: list[str], exact: float, f1: float) -> None:
    assert answer_report([answer], [right]).values == pytest.approx({"exact_match": exact, "f1": f1})


def test_a_report_has_the_means_and_of_squad_2_those_of_questions_that_have_an_answer() -> None:
    report = answer_report(["a b", "c", "d"], [["b"], ["c d"], ["d", "e"]])
    assert (report.metric, report.count) == ("f1", 3)
    assert report.values == pytest.approx({"f1": (1 + 2 / 3 + 1) / 3, "exact_match": 2 / 3})
    report = answer_report(["b", "c", "d", "e"], [["b"], ["c d"], [], []])
    assert report.values == pytest.approx(
        {"f1": 5 / 12, "exact_match": 1 / 4, "answerable_f1": 5 / 6, "answerable_exact_match": 1 / 2}
    )
    assert answer_report(["b"], [[]]).values == {"f1": 0.0, "exact_match": 0.0}
    assert answer_report([], []).score == 0.0

"""Formal languages: membership by brute force, words that are what they are said to be, and examples that do not give
the limit away."""

from itertools import product

import numpy as np
import pytest

from relmo.analysis.memory.counting import intervals
from relmo.analysis.memory.counting_training import Blocks, Dyck, get_language
from relmo.errors import SettingError

LANGUAGES = ["anbn", "anbncn", "dyck-1", "dyck-2", "dyck-4"]


def reduced(word: str) -> str:
    """Brackets that stand side by side taken out, until there are none."""
    for _ in word:
        for pair in ("()", "[]", "{}", "<>"):
            word = word.replace(pair, "")
    return word


def test_membership_is_right_for_all_short_words() -> None:
    for letters, length in (("ab", 8), ("abc", 7)):
        right = {"".join(letter * n for letter in letters) for n in range(1, 5)}
        for size in range(length):
            for word in map("".join, product(letters, repeat=size)):
                assert Blocks(letters).has(word) == (word in right)
    for size in range(7):
        for word in map("".join, product("()[]", repeat=size)):
            assert Dyck(2).has(word) == (bool(word) and reduced(word) == "")


@pytest.mark.parametrize("name", LANGUAGES)
def test_right_words_are_in_the_language_and_wrong_ones_are_not(name: str) -> None:
    language = get_language(name)
    assert language.name == name
    for n in (*range(1, 12), 60):
        for word in language.right(n):
            assert language.has(word)
            assert max(values.max() for _, values in language.counts(word).values()) == n
            assert set(word) <= set(language.symbols)
        wrong = language.wrong(n)
        assert len(wrong) >= 2
        assert not any(language.has(word) for word in wrong.values())
        assert all(abs(len(word) - len(language.right(n)[0])) <= 2 for word in wrong.values())


@pytest.mark.parametrize("name", LANGUAGES)
def test_random_words_are_of_both_kinds_never_empty_and_the_same_for_a_seed(name: str) -> None:
    language = get_language(name)
    words = language.strings(30, 300, seed=0)
    share = np.mean([language.has(word) for word in words])
    assert len(words) == 300
    assert "" not in words
    assert share == {"anbn": pytest.approx(0.2, abs=0.06), "anbncn": pytest.approx(0.04, abs=0.03)}.get(name, 0.5)
    assert language.strings(30, 300, seed=0) == words
    assert language.strings(30, 300, seed=1) != words


@pytest.mark.parametrize("name", LANGUAGES)
def test_examples_are_words_up_to_the_limit(name: str) -> None:
    language = get_language(name)
    sizes = set()
    for example in language.examples(9, seed=0):
        assert language.has(example.word)
        depth = max(values.max() for _, values in language.counts(example.word).values())
        assert depth <= 9
        sizes.add(int(depth))
    assert {1, 2, 5, 9} <= sizes


def test_nothing_but_a_limit_that_is_not_told_says_when_the_a_s_end() -> None:
    examples = Blocks("ab").examples(30, seed=0)
    weights = np.array([example.weight for example in examples])
    hazards = [weights[k] / weights[k:].sum() for k in range(29)]  # of b after k + 1 a's
    assert hazards == pytest.approx([hazards[0]] * 29)
    assert [example.ignored for example in examples] == [()] * 29 + [(30,)]
    assert examples[-1].word[30] == "b"


def test_what_follows_the_deepest_bracket_is_not_told() -> None:
    for example in Dyck(2).examples(4, seed=1)[:50]:
        depth = 0
        deepest = []
        for place, symbol in enumerate(example.word, start=1):
            depth += 1 if symbol in "([" else -1
            deepest += [place] if depth == 4 else []
        assert list(example.ignored) == deepest


def test_counters_show_what_is_still_to_come() -> None:
    counts = Blocks("abc").counts("aabbcc")
    assert counts["#a - #b"][0].tolist() == [0, 1, 2, 3]
    assert counts["#a - #b"][1].tolist() == [1, 2, 1, 0]
    assert counts["#b - #c"][0].tolist() == [2, 3, 4, 5]
    assert counts["#b - #c"][1].tolist() == [1, 2, 1, 0]
    assert Dyck(2).counts("([])")["depth"][1].tolist() == [1, 2, 1, 0]


def test_numbers_are_put_together_as_stretches() -> None:
    assert intervals([1, 2, 3, 5, 8, 9]) == [(1, 3), (5, 5), (8, 9)]
    assert intervals([]) == []


def test_languages_that_are_not_known_are_refused() -> None:
    assert isinstance(get_language("xnynzn"), Blocks)
    for name in ("an", "anan", "dyck-5", "dyck-0", "palindromes"):
        with pytest.raises(SettingError, match="language"):
            get_language(name)

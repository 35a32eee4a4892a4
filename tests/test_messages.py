"""Whatever a message quotes, it is one line that is not long and can be printed."""

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relmo.errors import MAX_MESSAGE_LENGTH, ModelError, RelmoError, one_line, quote

ROOT = Path(__file__).resolve().parent.parent


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.slow
@given(st.text() | st.text(st.characters(categories=["Cs", "Cc", "Zl", "Zs", "Ll"])))
def test_any_message_is_one_line_that_a_terminal_can_print(text: str) -> None:
    said = str(RelmoError(f"a: {text}; do b"))
    assert said.isprintable()
    said.encode("utf-8")
    assert len(said) <= MAX_MESSAGE_LENGTH


def test_of_a_long_message_the_beginning_and_the_end_are_kept() -> None:
    said = str(ModelError(f"model/config.json: is wrong: {'x' * 10_000}; restore it from a copy"))
    assert said.startswith("model/config.json: is wrong: xxx")
    assert said.endswith("xxx; restore it from a copy")
    assert len(said) <= MAX_MESSAGE_LENGTH


def test_lines_are_joined_and_what_is_not_printable_is_escaped() -> None:
    assert one_line("first\n  second\r\nthird  word\n") == "first second third  word"
    assert one_line("\ud800 \x1b[31m \t \u2028.") == "\\ud800 \\x1b[31m \\t \\u2028."


def test_an_error_can_be_copied_and_sent_to_another_process() -> None:
    error = ModelError("it\nis")
    assert str(copy.copy(error)) == "it is"
    assert str(pickle.loads(pickle.dumps(error))) == "it is"  # noqa: S301


@given(st.text(min_size=50, max_size=80))
def test_a_string_is_shown_between_two_quotes(text: str) -> None:
    assert quote(text)[0] == quote(text)[-1]
    assert quote(text)[0] in "'\""


@pytest.mark.parametrize("folder", ["src/relmo", "docs"])
def test_install_hints_quote_their_extras_as_zsh_needs_it(folder: str) -> None:
    paths = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".ipynb", ".js")]
    unquoted = [path.name for path in paths if re.search(r"pip install [^'\n]*relmo\[", path.read_text("utf-8"))]
    assert paths
    assert not unquoted


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("word", "'word'"),
        ("x" * 60, repr("x" * 60)),
        ("x" * 61, "'" + "x" * 59 + "…'"),
        (3, "3"),
        ([1, 2], "[1, 2]"),
        (float("inf"), "inf"),
        (16**5000, "a int that is too large to print"),
        (deep(100_000), "a list that is too large to print"),
    ],
    ids=["word", "long", "longer", "number", "list", "infinite", "digits", "deep"],
)
def test_a_value_is_shown_as_python_writes_it_but_not_all_of_it(value: Any, expected: str) -> None:
    assert quote(value) == expected

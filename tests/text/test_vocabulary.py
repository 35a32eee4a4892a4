"""A vocabulary file has one symbol a line whatever the symbol is; ids follow frequency; mistakes are named by line."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relmo.errors import CorpusError, VocabularyError
from relmo.text.vocabulary import SPECIALS, Vocabulary, escape, unescape

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SYMBOLS = st.lists(ANY_TEXT.filter(bool), unique=True, min_size=1)


@settings(deadline=None)
@given(ANY_TEXT)
def test_unescape_is_the_inverse_of_escape(symbol: str) -> None:
    assert unescape(escape(symbol), "here") == symbol


@settings(deadline=None)
@given(ANY_TEXT)
def test_an_escaped_symbol_is_one_printable_line(symbol: str) -> None:
    assert escape(symbol).isprintable()
    assert len(escape(symbol).splitlines()) <= 1


@pytest.mark.parametrize(
    ("symbol", "written"),
    [("\n", "\\n"), ("\t", "\\t"), ("\\", "\\\\"), (" ", " "), ("\u2028", "\\u2028"), ("é", "é"), ("😀", "😀")],
)
def test_only_what_cannot_be_seen_is_escaped(symbol: str, written: str) -> None:
    assert escape(symbol) == written


@pytest.mark.parametrize("text", ["\\", "\\x4", "a\\u12", "\\U00110000", "\\N{no such name}"])
def test_a_broken_escape_is_named_with_its_place(text: str) -> None:
    with pytest.raises(VocabularyError, match=r"^words.txt:3: .*escape"):
        unescape(text, "words.txt:3")


@settings(deadline=None)
@given(SYMBOLS)
def test_a_vocabulary_comes_back_from_its_file(tmp_path_factory: pytest.TempPathFactory, symbols: list[str]) -> None:
    path = tmp_path_factory.mktemp("v", numbered=True) / "vocabulary.txt"
    vocabulary = Vocabulary([*SPECIALS, *(symbol for symbol in symbols if symbol not in SPECIALS)])
    vocabulary.save(path)
    assert Vocabulary.load(path).symbols == vocabulary.symbols
    assert path.read_bytes().count(b"\n") == len(vocabulary)


def test_a_symbol_twice_in_a_file_names_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("a\nb\n\\n\nc\n\\x0a\n")
    with pytest.raises(VocabularyError, match=r"v.txt:5: .* line 3"):
        Vocabulary.load(path)


def test_a_symbol_twice_in_a_list_is_refused() -> None:
    with pytest.raises(VocabularyError, match="'b' more than once"):
        Vocabulary(["a", "b", "c", "b"])


def test_an_empty_line_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("a\n\nb\n")
    with pytest.raises(VocabularyError, match=r"v.txt:2: empty line"):
        Vocabulary.load(path)
    path.write_text("")
    with pytest.raises(VocabularyError, match=r"v.txt: the vocabulary is empty"):
        Vocabulary.load(path)
    with pytest.raises(CorpusError, match="no such file"):
        Vocabulary.load(tmp_path / "none.txt")


def test_specials_that_a_list_of_words_does_not_have_come_first(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("cat\ndog\n")
    assert Vocabulary.load(path).symbols == ["<unk>", "</s>", "cat", "dog"]
    path.write_text("cat\n</s>\ndog")
    loaded = Vocabulary.load(path)
    assert loaded.symbols == ["<unk>", "cat", "</s>", "dog"]
    assert (loaded.unknown, loaded.end) == (0, 2)


def test_ids_follow_falling_frequency_with_ties_in_order_of_the_symbols() -> None:
    vocabulary = Vocabulary.from_counts(["</s>", "d", "c", "b", "a"], np.array([9, 1, 5, 2, 2]))
    assert vocabulary.symbols == ["<unk>", "</s>", "c", "a", "b", "d"]


def test_rare_symbols_and_those_never_seen_are_left_out() -> None:
    symbols, counts = ["</s>", "a", "b", "c"], np.array([1, 3, 2, 0])
    assert Vocabulary.from_counts(symbols, counts).symbols == ["<unk>", "</s>", "a", "b"]
    assert Vocabulary.from_counts(symbols, counts, min_count=3).symbols == ["<unk>", "</s>", "a"]


def test_a_size_keeps_the_most_frequent_with_the_specials_counted() -> None:
    symbols, counts = ["</s>", "a", "b", "c"], np.array([1, 3, 2, 4])
    assert Vocabulary.from_counts(symbols, counts, size=3).symbols == ["<unk>", "</s>", "c"]
    assert Vocabulary.from_counts(symbols, counts, size=100).symbols == ["<unk>", "</s>", "c", "a", "b"]


def test_specials_in_the_text_are_the_specials() -> None:
    vocabulary = Vocabulary.from_counts(["</s>", "<unk>", "a"], np.array([1, 50, 3]))
    assert vocabulary.symbols == ["<unk>", "</s>", "a"]


def test_a_symbol_it_does_not_have_is_the_unknown_one() -> None:
    vocabulary = Vocabulary([*SPECIALS, "a", "b"])
    assert vocabulary.ids(["b", "z", "a", "</s>"]).tolist() == [3, 0, 2, 1]
    assert vocabulary.ids([]).dtype == np.int64

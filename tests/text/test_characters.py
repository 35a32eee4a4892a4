"""Words as character ids, against the published examples and an independent implementation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relmo.text.characters import BOS, CHARACTERS, EOS, Spellings, character_ids
from relmo.text.vocabulary import SentenceVocabulary
from support import original_elmo


@pytest.mark.parametrize(
    ("word", "row"),
    [("th", [258, 116, 104, 259, 260]), ("thhhhh", [258, 116, 104, 104, 259]), ("Āt", [258, 196, 128, 116, 259])],
)
def test_the_published_examples(word: str, row: list[int]) -> None:
    assert (character_ids([word], 5) - 1).tolist() == [row]


@given(st.lists(st.text(max_size=20) | st.sampled_from([BOS, EOS, "<UNK>", ""])), st.integers(3, 30))
def test_ids_are_those_of_the_description(words: list[str], room: int) -> None:
    ids = character_ids(words, room)
    assert ids.shape == (len(words), room)
    assert ids.dtype == np.int64
    for row, word in zip(ids.tolist(), words, strict=True):
        assert row == [i + 1 for i in original_elmo.spell(word, room)]


def test_ids_leave_0_for_no_word_and_go_up_to_261() -> None:
    ids = character_ids(["\x00", "ÿ", BOS, EOS], 8)
    assert ids.min() == 1
    assert ids.max() == CHARACTERS


def test_boundaries_are_spelled_by_marks_of_their_own_even_in_text() -> None:
    assert (character_ids([BOS, EOS], 5) - 1).tolist() == [[258, 256, 259, 260, 260], [258, 257, 259, 260, 260]]
    assert (character_ids(["<UNK>"], 7) - 1).tolist() == [[258, *b"<UNK>", 259]]


def test_a_long_word_is_cut_by_bytes_and_counted() -> None:
    spellings = Spellings(["short", "日本語", "eightbyt", "ninebytes"], 10)
    assert spellings.truncated == [1, 3]
    assert (spellings.ids()[1] - 1).tolist() == [258, *"日本語".encode()[:8], 259]


def test_lone_surrogates_are_left_out() -> None:
    assert character_ids(["a\ud800b"], 6).tolist() == character_ids(["ab"], 6).tolist()


@given(st.lists(st.text(max_size=12), min_size=1), st.integers(1, 7), st.data())
def test_with_a_margin_only_columns_of_padding_are_left_out(words: list[str], margin: int, data: st.DataObject) -> None:
    which = np.array(data.draw(st.lists(st.integers(0, len(words) - 1), min_size=1)))
    spellings = Spellings(words, 16)
    full, cut = spellings.ids(which), spellings.ids(which, margin=margin)
    assert cut.tolist() == full[:, : cut.shape[1]].tolist()
    assert (full[:, cut.shape[1] :] == CHARACTERS).all()
    assert cut.shape[1] == 16 or (cut[:, -margin:] == CHARACTERS).all()


def test_of_widths_the_next_one_is_taken() -> None:
    spellings = Spellings(["a", "seven77", "eleven11111", "a word of twenty byt"], 20)
    for which, columns in ((0, 8), (1, 12), (2, 16), (3, 20)):
        ids = spellings.ids(np.array([which]), margin=3, widths=(8, 12, 16))
        assert ids.shape == (1, columns)
        assert ids.tolist() == spellings.ids()[[which], :columns].tolist()


def test_no_words_have_no_rows() -> None:
    assert character_ids([], 9).shape == (0, 9)


def test_a_vocabulary_file_without_boundaries_gets_them_and_its_last_word_is_a_word(tmp_path: object) -> None:
    path = tmp_path / "vocab.txt"  # type: ignore[operator]
    path.write_text("the\ndog\ncat\n", encoding="utf-8")
    vocabulary = SentenceVocabulary.load(path)
    assert vocabulary.symbols == ["<S>", "</S>", "<UNK>", "the", "dog", "cat"]
    assert vocabulary.end == 1
    rows = character_ids(vocabulary.symbols, 8) - 1
    assert rows[-1].tolist() == [258, *b"cat", 259, 260, 260, 260]
    assert rows[vocabulary.end].tolist()[:3] == [258, 257, 259]

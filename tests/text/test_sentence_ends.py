"""Where sentences end, with and without the white space of the text."""

import pytest

from relmo.text.tokenize import MAX_SENTENCE_WORDS, split_tokens, split_words, tokenize, words

CASES = [
    ("He came. She went.", ["He came.", "She went."]),
    ('"Go!" he said. "Why?" Nobody knew.', ['"Go!" he said.', '"Why?"', "Nobody knew."]),
    ("Mr. Smith of the U.S. Army (see pp. 3) slept.", ["Mr. Smith of the U.S. Army (see pp. 3) slept."]),
    (
        "He paid 3.50 for it... and left. 20 came (at last.) They ate.",
        ["He paid 3.50 for it... and left.", "20 came (at last.)", "They ate."],
    ),
]


@pytest.mark.parametrize(("paragraph", "sentences"), CASES)
def test_sentences_end_where_a_reader_would_say(paragraph: str, sentences: list[str]) -> None:
    found = split_tokens(paragraph, tokenize(paragraph))
    assert [paragraph[each[0].start : each[-1].end] for each in found] == sentences
    assert split_words(words(paragraph)) == [words(sentence) for sentence in sentences]


def test_an_empty_line_ends_a_sentence_and_a_line_end_does_not() -> None:
    text = "A title\n\nIt goes\non here"
    assert [[token.text for token in each] for each in split_tokens(text, tokenize(text))] == [
        ["A", "title"],
        ["It", "goes", "on", "here"],
    ]


def test_what_never_ends_is_cut_and_nothing_is_lost() -> None:
    endless = ["word"] * (2 * MAX_SENTENCE_WORDS + 7)
    assert [len(each) for each in split_words(endless)] == [MAX_SENTENCE_WORDS, MAX_SENTENCE_WORDS, 7]
    assert split_words([]) == []
    assert split_tokens("", []) == []

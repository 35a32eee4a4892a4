"""Words as treebanks have them, against the words that raw text is split into."""

from collections.abc import Callable
from pathlib import Path

import pytest

from relmo.errors import VocabularyError
from relmo.text.readers.tagged import read_tagged
from relmo.text.tokenize import Token, tokenize
from relmo.text.treebank import PlacedText, SurfaceForm, WordSplits, compare_words, learn_splits, place_words


def form(text: str, *words: str, spaced: bool = True) -> SurfaceForm:
    return SurfaceForm(text, list(words) or [text], spaced)


def cut(placed: PlacedText) -> list[tuple[str, str]]:
    """Each word with what stands in its place."""
    return [(word, placed.text[start:end]) for word, start, end in placed.tokens]


def test_words_stand_where_the_text_has_them_and_share_the_place_of_a_form_that_they_do_not_spell() -> None:
    forms = [form("Ils"), form("viennent"), form("du", "de", "le"), form("port", spaced=False), form(".")]
    for text in ("Ils viennent  du port.", None, "another text"):
        found = place_words(forms, text)
        assert found.text == (text if text and text.startswith("Ils") else "Ils viennent du port.")
        assert cut(found)[2:] == [("de", "du"), ("le", "du"), ("port", "port"), (".", ".")]
    (can, no) = place_words([form("cannot", "can", "not")], "cannot").tokens
    assert (can, no) == (Token("can", 0, 3), Token("not", 3, 6))


def test_where_nothing_tells_the_text_there_is_none() -> None:
    assert place_words([form("a"), form("b")], None) == PlacedText()
    assert place_words([form("a"), form("b")], "a c b") == PlacedText()


def test_tokens_are_split_as_most_sentences_have_them() -> None:
    sentences = [
        place_words([form("du", "de", "le"), form("vin")], None),
        place_words([form("du", "de", "le"), form("thé")], None),
        place_words([form("du"), form("vin")], "du vin"),
        place_words([form("Du"), form("vin")], "Du vin"),
        place_words([form("peut", spaced=False), form("-on")], None),
    ]
    splits = learn_splits(sentences, tokenize)
    assert splits is not None
    assert splits.symbols == ["du de le", "Du Du", "peut-on peut -on"]
    text = "Du vin du port, DU thé, Peut-on?"
    assert [(word, text[start:end]) for word, start, end in splits.split(tokenize(text))] == [
        *[("Du", "Du"), ("vin", "vin"), ("de", "du"), ("le", "du"), ("port", "port"), (",", ",")],
        *[("DE", "DU"), ("LE", "DU"), ("thé", "thé"), (",", ","), ("Peut", "Peut"), ("-on", "-on"), ("?", "?")],
    ]
    assert learn_splits(sentences[2:4], tokenize) is None


def test_an_apostrophe_is_one_whether_it_is_straight_or_curly() -> None:
    for text in (
        "L'homme qu'il n'a pas vu aujourd'hui, c'est d'Artagnan.",
        "I don't think it's John's; we'd've, 'tis.",
    ):
        curly = text.replace("'", "’")
        assert [token[1:] for token in tokenize(curly)] == [token[1:] for token in tokenize(text)]
    splits = WordSplits(["d'abord d' abord", "qu'au que à le"])
    assert [token.text for token in splits.split(tokenize("d’abord"))] == ["d’", "abord"]
    tokens = [Token("d’abord", 0, 7), Token("qu’au", 8, 13), Token("McDonald", 14, 22), Token("Qu’au", 23, 28)]
    words = ["d’", "abord", "que", "à", "le", "McDonald", "Que", "à", "le"]
    assert [token.text for token in splits.split(tokens)] == words


def test_words_that_raw_text_does_not_give_are_counted_and_shown() -> None:
    sentences = [
        place_words([form("Il"), form("fait"), form("5"), form("°C"), form("au", "à", "le")], "Il fait 5 °C au")
    ]
    found = compare_words(sentences, tokenize)
    assert (found.words, found.differing.total()) == (6, 3)
    assert found.share == 0.5
    assert "50.00% of the 6 words" in found.message()
    assert "°C (° | C)" in found.message()
    assert "--tokenizer whitespace" in found.message()
    splits = learn_splits(sentences, tokenize)
    assert splits is not None
    assert compare_words(sentences, lambda text: splits.split(tokenize(text))).differing == {("°C", "° | C"): 1}
    assert "all 0 words" in compare_words([], tokenize).message()


@pytest.mark.parametrize("line", ["du", "du  le", "", " de le"])
def test_a_line_without_words_is_an_error(line: str) -> None:
    with pytest.raises(VocabularyError, match="is not a token and its words"):
        WordSplits([line])


def test_of_sequoia_most_contractions_are_words_again(data: Callable[[str], Path]) -> None:
    train, dev = (
        [each.raw for each in read_tagged(data(f"tasks/pos_ud/fr_sequoia/fr_sequoia-ud-{part}.conllu"))]
        for part in ("train", "dev")
    )
    splits = learn_splits(train, tokenize)
    assert splits is not None
    assert compare_words(dev, tokenize).share == pytest.approx(0.0635, abs=1e-4)
    assert compare_words(dev, lambda text: splits.split(tokenize(text))).share == pytest.approx(0.0118, abs=1e-4)

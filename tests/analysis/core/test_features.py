"""Feature tracks: what each says after each symbol, for models of characters and of words."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from relmo.analysis.core.features import (
    FEATURES,
    Document,
    Mark,
    column_tracks,
    document_of,
    function_track,
    mark_tracks,
    pattern_track,
    read,
    tracks,
)
from relmo.errors import CorpusError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTextSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.trees import ConlluWord
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary


def language_model(**text: object) -> LanguageModel:
    settings = LMSettings(model=LanguageModelSettings(hidden=3), text=TextSettings(**text))  # type: ignore[arg-type]
    vocabulary = Vocabulary([*Vocabulary.specials, "a", "\n"])
    return LanguageModel(make_language_model(settings.model, len(vocabulary)), vocabulary, settings)


def bilm(**text: object) -> BiLM:
    model = BiLMModelSettings(filters=("1x4",), char_dim=3, hidden=4, projection=2)
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, "a"])
    settings = BiLMSettings(model=model, text=BiLMTextSettings(**text))  # type: ignore[arg-type]
    return BiLM(BiLMNetwork(model, vocab_size=len(vocabulary)), settings, vocabulary)


def shown(text: str, track: np.ndarray) -> str:
    """A track under its text: digits, or + where it is more than one digit."""
    assert len(text) == len(track)
    return "".join(str(int(value)) if 0 <= value < 10 else "+" for value in track)


CASES = [
    ("column", "ab\nc\n\nd", "1201001"),
    ("to_line_end", "ab\nc\n\nd", "2121121"),
    ("indentation", "  a\n b \n\nc", "1220111000"),
    ("depth", "a(b[c])){d", "0112210011"),
    ("parentheses", "a(b[c(])d", "011111111"),
    ("square", "a[(b])c", "0111000"),
    ("quotes", 'a "b c" d', "001111000"),
    ("quotes", "it's 'a b' o'er", "000001111000000"),
    ("quotes", "a `b' `it's', c", "001100111110000"),
    ("quotes", "dogs' a 'b'", "00000000110"),
    ("quotes", "a `` b '' 's c", "00111110000000"),
    ("quotes", '`a "b"\' c `d`', "1111110000110"),
    ("quotes", "‘it’s a’ b", "1111111000"),
    ("quotes", "“a ‘b’ c” d", "11111111000"),
    ("quotes", "«a» „b“ »c«", "11001100110"),
    ("quotes", '"a b\n\nc', "1111000"),
    ("word_position", "ab, c12", "1200123"),
    ("sentence_position", 'Ab cd. "E f!" g', "111220001120001"),
    ("capitalised", "Ab cD EF", "11000011"),
    ("capitals", "Ab EF G", "0001100"),
    ("number", "a 1,024.5. b2 3", "001111111000001"),
    ("url", "see http://x.y, a", "00001111111111000"),
    ("tag", "a <b>c</b> < d", "00111011110000"),
    ("vowel", "abE", "101"),
]


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_a_feature_of_characters_says_how_things_stand_after_each(name: str, text: str, expected: str) -> None:
    assert shown(text, tracks(document_of(list(text)), [name])[name]) == expected


def test_code_has_features_of_its_own_and_its_brackets_do_not_count_in_strings() -> None:
    text = 'if a: f("(", 1)  # ('
    document = document_of(list(text), language="python")
    found = tracks(document, ["depth", "string", "comment", "prose", "if", "if_body"])
    assert shown(text, found["depth"]) == "00000001111111000000"
    assert shown(text, found["string"]) == "00000000110000000000"
    assert shown(text, found["comment"]) == "00000000000000000111"
    assert shown(text, found["prose"]) == "00000000110000000111"
    assert shown(text, found["if"]) == "01110000000000000000"
    assert shown(text, found["if_body"]) == "00001111111111111111"
    with pytest.raises(SettingError, match="language"):
        tracks(document_of(list(text)), ["string"])


def test_a_model_of_words_has_the_value_at_a_words_end() -> None:
    document = read(language_model(unit="word"), 'He said "go (now)".\nYes 12')
    assert document.symbols == ["He", "said", '"', "go", "(", "now", ")", '"', ".", "\n", "Yes", "12"]
    found = tracks(document, ["quotes", "depth", "column", "capitalised", "number", "sentence_position"])
    assert found["quotes"].tolist() == [0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert found["depth"].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert found["column"].tolist() == [2, 7, 9, 11, 13, 16, 17, 18, 19, 0, 3, 6]
    assert found["capitalised"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert found["number"].tolist() == [0] * 11 + [1]


def test_each_line_of_a_bidirectional_model_is_a_sentence_in_which_everything_ends() -> None:
    document = read(bilm(), 'a (b "c\n\nd e )\n')
    assert document.texts == [["a", "(", "b", '"', "c"], ["d", "e", ")"]]
    found = tracks(document, ["depth", "quotes", "sentence_position"])
    assert found["depth"].tolist() == [0, 1, 1, 1, 1, 0, 0, 0]
    assert found["quotes"].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert found["sentence_position"].tolist() == [1, 1, 2, 2, 3, 1, 2, 2]


@pytest.mark.parametrize(
    "model",
    [language_model(), language_model(lowercase=True), language_model(unit="word", tokenizer="whitespace"), bilm()],
    ids=["char", "lower", "word", "bilm"],
)
def test_the_symbols_of_a_document_are_those_that_the_model_reads(model: LanguageModel | BiLM) -> None:
    text = "The Cat isn't\n\nhere (now).  OK\n"
    document = read(model, text)
    assert document.texts == model.split_texts(text)
    for symbol, (begin, end) in zip(document.symbols, document.spans, strict=True):
        assert document.text[begin:end].lower() == symbol.lower()


def test_capitals_are_seen_where_the_model_reads_lower_case() -> None:
    document = read(language_model(lowercase=True), "The cat")
    assert "".join(document.symbols) == "the cat"
    assert tracks(document, ["capitalised"])["capitalised"].tolist() == [1, 1, 1, 0, 0, 0, 0]


def test_patterns_marks_and_functions_give_tracks() -> None:
    document = document_of(list("the then the"))
    assert shown(document.text, pattern_track(document, r"\bthe\b")) == "111000000111"
    assert shown(document.text, pattern_track(document, r"th(e)")) == "001000100001"
    marks = [Mark(0, 2), Mark(4, 8, "mine"), Mark(10, 99)]
    found = mark_tracks(document, marks)
    assert {name: shown(document.text, track) for name, track in found.items()} == {
        "marked": "110000000011",
        "mine": "000011110000",
    }
    lengths = function_track(document, lambda text: [len(text)] * len(text))
    assert lengths.tolist() == [12.0] * 12
    words = document_of(["the", "then"])
    assert function_track(words, lambda text: np.arange(len(text))).tolist() == [2, 7]
    assert function_track(words, lambda _: [5, 6]).tolist() == [5, 6]


SENTENCES = [
    [
        ConlluWord("Big", "big", "ADJ", "_", "_", 2, "amod", "_", "_"),
        ConlluWord("dogs", "dog", "NOUN", "_", "Number=Plur", 3, "nsubj", "_", "_"),
        ConlluWord("bark", "bark", "VERB", "_", "_", 0, "root", "_", "_"),
        ConlluWord("loudly", "loudly", "ADV", "_", "_", 3, "advmod", "_", "_"),
    ],
    [ConlluWord("Dog", "dog", "NOUN", "_", "Number=Sing", 0, "root", "_", "_")],
]


@pytest.mark.parametrize("model", [bilm(), language_model(unit="word")], ids=["bilm", "lm"])
def test_columns_and_trees_of_conllu_are_tracks_of_words(model: BiLM | LanguageModel) -> None:
    document = read(model, SENTENCES)
    words = [place for place, symbol in enumerate(document.symbols) if symbol != "\n"]
    assert [document.symbols[place] for place in words] == ["Big", "dogs", "bark", "loudly", "Dog"]
    assert column_tracks(document, "upos=NOUN")["upos=NOUN"][words].tolist() == [0, 1, 0, 0, 1]
    assert column_tracks(document, "feats.Number=Plur")["feats.Number=Plur"][words].tolist() == [0, 1, 0, 0, 0]
    assert [*column_tracks(document, "UPOS")] == ["upos=ADJ", "upos=ADV", "upos=NOUN", "upos=VERB"]
    found = tracks(document, ["tree_depth", "open-dependencies", "head_distance"])
    assert found["tree_depth"][words].tolist() == [2, 1, 0, 1, 0]
    assert found["open_dependencies"][words].tolist() == [1, 1, 1, 0, 0]
    assert found["head_distance"][words].tolist() == [1, 1, 0, -1, 0]


def test_a_model_of_characters_has_a_words_column_on_all_its_characters() -> None:
    document = read(language_model(), SENTENCES)
    assert document.text == "Big dogs bark loudly\nDog\n"
    found = column_tracks(document, "upos=NOUN")["upos=NOUN"]
    assert shown(document.text, found) == "0000111100000000000001110"


def test_a_tree_with_a_circle_or_a_missing_head_ends() -> None:
    words = [
        ConlluWord("a", "a", "X", "_", "_", 2, "dep", "_", "_"),
        ConlluWord("b", "b", "X", "_", "_", 1, "dep", "_", "_"),
        ConlluWord("c", "c", "X", "_", "_", 9, "dep", "_", "_"),
    ]
    found = tracks(read(bilm(), [words]), ["tree_depth", "open_dependencies"])
    assert np.isfinite(found["tree_depth"]).all()
    assert found["open_dependencies"].tolist() == [1, 0, 1]


def test_the_head_of_a_document_is_its_first_symbols() -> None:
    document = read(bilm(), "a b\nc d e\nf\n")
    part = document.head(4)
    assert part.texts == [["a", "b"], ["c", "d"]]
    assert part.text == "a b\nc d"
    assert document.head(100) is document
    columns = read(bilm(), SENTENCES)
    assert column_tracks(columns.head(2), "upos=NOUN")["upos=NOUN"].tolist() == [0, 1]
    assert tracks(columns.head(3), ["tree_depth"])["tree_depth"].tolist() == [2, 1, 0]


def test_every_feature_has_a_number_for_each_symbol() -> None:
    torch.manual_seed(0)
    document = Document(**vars(read(bilm(), SENTENCES)) | {"language": "python"})
    for name, track in tracks(document, FEATURES).items():
        assert track.shape == (5,), name
        assert track.dtype == np.float32


def wrong_length(_: str) -> list[int]:
    return [1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: tracks(d, ["nothing"]), "'nothing'.*quotes"),
        (lambda d: pattern_track(d, "(a"), "expression"),
        (lambda d: column_tracks(d, "upos=NOUN"), "CoNLL-U"),
        (lambda d: column_tracks(d, "pos=NOUN"), "'pos'"),
        (lambda d: mark_tracks(d, [Mark(3, 3)]), "mark"),
        (lambda d: function_track(d, wrong_length), "1 values"),
    ],
)
def test_mistakes_are_told(call: Callable[[Document], object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        call(document_of(list("abc")))


def test_an_empty_text_is_an_error() -> None:
    with pytest.raises(CorpusError, match="empty"):
        read(language_model(), " \n")

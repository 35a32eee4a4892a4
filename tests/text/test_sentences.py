"""Sentences become numbers in a lexicon that begins with the vocabulary, and come back from them as they were."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from relmo.errors import CorpusError, VocabularyError
from relmo.settings.bilm import BiLMTextSettings
from relmo.text import encode
from relmo.text.encode import (
    BOUNDARY,
    Corpus,
    Stream,
    encode_sentence_corpus,
    encode_sentence_file,
    map_numbers,
)
from relmo.text.vocabulary import SentenceVocabulary

TEXT = "the cat sat\n\nthe dog\n   \nthe cat ran and ran\nthe end\n"


def encoded(tmp_path: Path, text: str = TEXT, **settings: object) -> Corpus[SentenceVocabulary]:
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    chosen = BiLMTextSettings(**({"valid_fraction": 0.0} | settings))  # type: ignore[arg-type]
    return encode_sentence_corpus([str(tmp_path / "text.txt")], chosen, tmp_path)


def decoded(part: Stream | None, lexicon: list[str]) -> str:
    assert part is not None
    return " ".join("|" if number == BOUNDARY else lexicon[number] for number in part.ids)


def test_every_word_has_a_number_and_boundaries_stand_around_every_sentence(tmp_path: Path) -> None:
    corpus = encoded(tmp_path, min_count=2)
    assert decoded(corpus.train, corpus.lexicon) == "| the cat sat | the dog | the cat ran and ran | the end |"
    assert corpus.train.predictions == 12 + 4


def test_the_lexicon_is_the_vocabulary_by_falling_frequency_and_then_all_other_words(tmp_path: Path) -> None:
    corpus = encoded(tmp_path, min_count=2)
    assert corpus.vocabulary.symbols == ["<S>", "</S>", "<UNK>", "the", "cat", "ran"]
    assert corpus.lexicon == [*corpus.vocabulary.symbols, "sat", "dog", "and", "end"]
    assert corpus.train.unknown == 4


def test_the_vocabulary_is_as_large_as_asked_for(tmp_path: Path) -> None:
    assert encoded(tmp_path, vocabulary_size=4).vocabulary.symbols == ["<S>", "</S>", "<UNK>", "the"]


def test_a_vocabulary_file_keeps_its_own_order_wherever_its_marks_are(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("dog\n</S>\nthe\n<UNK>\n", encoding="utf-8")
    corpus = encoded(tmp_path, vocabulary=str(tmp_path / "words"))
    assert corpus.lexicon[:5] == ["<S>", "dog", "</S>", "the", "<UNK>"]
    assert decoded(corpus.train, corpus.lexicon) == "| the cat sat | the dog | the cat ran and ran | the end |"
    assert corpus.train.unknown == 7


def test_a_broken_vocabulary_file_is_told_before_the_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("dog\n\\\n", encoding="utf-8")
    settings = BiLMTextSettings(vocabulary=str(tmp_path / "words"))
    with pytest.raises(VocabularyError, match=r"words:2: .*escape"):
        encode_sentence_corpus([str(tmp_path / "nowhere.txt")], settings, tmp_path)


def test_words_that_look_like_marks_are_words(tmp_path: Path) -> None:
    text = "a <S> b </S>\n</s> <UNK> c\n"
    corpus = encoded(tmp_path, text, tokenizer="whitespace")
    assert decoded(corpus.train, corpus.lexicon) == "| a <S> b </S> | </s> <UNK> c |"
    assert corpus.train.unknown == 1


def test_the_last_sentences_are_held_out_whole(tmp_path: Path) -> None:
    corpus = encoded(tmp_path, valid_fraction=0.3)
    assert decoded(corpus.train, corpus.lexicon) == "| the cat sat | the dog |"
    assert decoded(corpus.valid, corpus.lexicon) == "| the cat ran and ran | the end |"
    assert "ran" not in corpus.vocabulary.index, "the vocabulary is that of the training part"


def test_at_least_one_sentence_is_held_out_but_never_the_only_one(tmp_path: Path) -> None:
    corpus = encoded(tmp_path, valid_fraction=0.001)
    assert decoded(corpus.valid, corpus.lexicon) == "| the end |"
    assert encoded(tmp_path, "only this\n", valid_fraction=0.5).valid is None


def test_a_validation_file_takes_the_place_of_the_held_out_part(tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text("a cat\n", encoding="utf-8")
    corpus = encoded(tmp_path, valid=str(tmp_path / "valid.txt"), valid_fraction=0.3)
    assert decoded(corpus.valid, corpus.lexicon) == "| a cat |"
    assert corpus.valid is not None
    assert corpus.valid.unknown == 1
    assert corpus.train.predictions == 16


def test_lower_case_and_the_tokenizer_are_as_asked_for(tmp_path: Path) -> None:
    corpus = encoded(tmp_path, "Don't stop.\n", lowercase=True)
    assert decoded(corpus.train, corpus.lexicon) == "| do n't stop . |"
    corpus = encoded(tmp_path, "Don't stop.\n", tokenizer="whitespace")
    assert decoded(corpus.train, corpus.lexicon) == "| Don't stop. |"


def test_conllu_and_compressed_files_are_read(tmp_path: Path) -> None:
    row = "\t_" * 8
    conllu = f"# text\n1\tNew York{row}\n2\tis{row}\n\n1\tHere{row}\n"
    (tmp_path / "a.conllu.gz").write_bytes(gzip.compress(conllu.encode()))
    chosen = BiLMTextSettings(valid_fraction=0.0, lowercase=True)
    corpus = encode_sentence_corpus([str(tmp_path / "a.conllu.gz")] * 2, chosen, tmp_path)
    assert decoded(corpus.train, corpus.lexicon) == "| new york is | here | new york is | here |"
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, "is"])
    _, sentences = encode_sentence_file(str(tmp_path / "a.conllu.gz"), chosen, vocabulary, tmp_path)
    assert sentences.unknown == 2


def test_a_text_without_words_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no sentence"):
        encoded(tmp_path, "\n \n\n")


def test_a_corpus_larger_than_what_is_held_at_a_time_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encoded(tmp_path, TEXT * 50, valid_fraction=0.1, min_count=2)
    train, valid = np.array(whole.train.ids), np.array(whole.valid and whole.valid.ids)
    monkeypatch.setattr(encode, "CHUNK", 7)
    pieces = encoded(tmp_path, TEXT * 50, valid_fraction=0.1, min_count=2)
    assert pieces.lexicon == whole.lexicon
    assert np.array_equal(pieces.train.ids, train)
    assert np.array_equal(pieces.valid and pieces.valid.ids, valid)
    assert pieces.train.unknown == whole.train.unknown


def test_a_file_is_encoded_in_a_given_vocabulary(tmp_path: Path) -> None:
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, "cat", "the"])
    (tmp_path / "file.txt").write_text(TEXT, encoding="utf-8")
    lexicon, sentences = encode_sentence_file(str(tmp_path / "file.txt"), BiLMTextSettings(), vocabulary, tmp_path)
    assert lexicon[:5] == vocabulary.symbols
    assert decoded(sentences, lexicon) == "| the cat sat | the dog | the cat ran and ran | the end |"
    assert sentences.unknown == 6


def test_no_scratch_file_stays_beside_the_numbers(tmp_path: Path) -> None:
    corpus = encoded(tmp_path, valid_fraction=0.3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text.txt", "train.ids", "valid.ids"]
    assert np.array_equal(map_numbers(tmp_path / "train.ids", np.int32), corpus.train.ids)

"""A corpus as ids: every symbol once, in order; parts that join to the whole; a vocabulary of one part alone."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import relmo
from relmo.errors import CorpusError, VocabularyError
from relmo.settings.lm import TextSettings
from relmo.text import encode
from relmo.text.encode import Corpus, Stream, encode_corpus, encode_file, encode_text, id_type, map_numbers
from relmo.text.tokenize import words
from relmo.text.vocabulary import Vocabulary

ALICE = Path(relmo.__file__).parent / "data" / "alice.txt"
END = "</s>"


@pytest.fixture
def alice(tmp_path: Path) -> Path:
    path = tmp_path / "alice.txt"
    path.write_text(ALICE.read_text(encoding="utf-8")[:5000], encoding="utf-8")
    return path


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


def make(files: list[str] | str, folder: Path, **chosen: Any) -> Corpus:
    (folder / "scratch").mkdir(exist_ok=True)
    files = [files] if isinstance(files, str) else files
    return encode_corpus(files, TextSettings(**chosen), folder / "scratch")


def symbols(stream: Stream | None, vocabulary: Vocabulary) -> list[str]:
    assert stream is not None
    return [vocabulary.symbols[i] for i in stream.ids]


def everything(files: list[str] | str, folder: Path, **chosen: Any) -> list[str]:
    """The symbols of the files, none held out."""
    corpus = make(files, folder, valid_fraction=0.0, **chosen)
    assert corpus.valid is None
    assert corpus.test is None
    return symbols(corpus.train, corpus.vocabulary)


def test_characters_stand_in_order_between_two_ends_of_text(tmp_path: Path) -> None:
    assert everything(write(tmp_path / "a.txt", "ab\ncé😀"), tmp_path) == [END, "a", "b", "\n", "c", "é", "😀", END]


def test_words_stand_in_order_with_line_ends_between_lines(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "The cat, sat.\n\nIt ran")
    found = everything(file, tmp_path, unit="word")
    assert found == [END, *words("The cat, sat."), "\n", "\n", *words("It ran"), END]
    found = everything(file, tmp_path, unit="word", tokenizer="whitespace", lowercase=True)
    assert found == [END, "the", "cat,", "sat.", "\n", "\n", "it", "ran", END]


@pytest.mark.parametrize("last", ["", "\n"], ids=["no line end at the end", "a line end at the end"])
def test_a_text_per_line_ends_at_every_line(last: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "ab\nc" + last)
    assert everything(file, tmp_path, text_per="line") == [END, "a", "b", END, "c", END]
    assert everything(file, tmp_path, text_per="file") == [END, "a", "b", "\n", "c", *last, END]


def test_several_files_follow_each_other_each_with_its_end(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.txt", "ab"), write(tmp_path / "b.txt", "c\n"), write(tmp_path / "c.txt", "d")]
    assert everything(files, tmp_path) == [END, "a", "b", END, "c", "\n", END, "d", END]
    assert everything(files, tmp_path, text_per="line") == [END, "a", "b", END, "c", END, "d", END]


def test_windows_line_ends_and_archives_change_nothing(alice: Path, tmp_path: Path) -> None:
    plain = everything(str(alice), tmp_path)
    windows = write(tmp_path / "windows.txt", alice.read_text(encoding="utf-8").replace("\n", "\r\n"))
    assert everything(windows, tmp_path) == plain
    (tmp_path / "alice.txt.gz").write_bytes(gzip.compress(alice.read_bytes()))
    assert everything(str(tmp_path / "alice.txt.gz"), tmp_path) == plain


def test_conllu_gives_its_own_words_and_a_line_a_sentence(tmp_path: Path) -> None:
    rows = ["1\tDon't\t_", "2\tgo\t_", "", "# comment", "1-2\tim\t_", "1\tin\t_", "2\tdem\t_", ""]
    lines = [row.replace("\t_", "\t_" * 8) for row in rows]
    file = write(tmp_path / "a.conllu", "\n".join(lines) + "\n")
    assert everything(file, tmp_path, unit="word") == [END, "Don't", "go", "\n", "in", "dem", "\n", END]
    per_line = everything(file, tmp_path, unit="word", text_per="line", lowercase=True)
    assert per_line == [END, "don't", "go", END, "in", "dem", END]
    assert "".join(everything(file, tmp_path)[1:-1]) == "Don't go\nin dem\n"


@pytest.mark.parametrize("unit", ["char", "word"])
def test_the_parts_join_to_the_whole(unit: str, alice: Path, tmp_path: Path) -> None:
    whole = everything(str(alice), tmp_path, unit=unit)
    corpus = make(str(alice), tmp_path, unit=unit, valid_fraction=0.2, test_fraction=0.1)
    train, valid, test = (symbols(p, corpus.vocabulary) for p in (corpus.train, corpus.valid, corpus.test))
    known = set(corpus.vocabulary.symbols)
    assert [*train, *valid[1:], *test[1:]] == [s if s in known else "<unk>" for s in whole]
    assert valid[0] == train[-1]  # a part is read from the last symbol of the part before it
    assert test[0] == valid[-1]
    assert len(train) == pytest.approx(0.7 * len(whole), abs=1.01)
    assert len(test) - 1 == pytest.approx(0.1 * len(whole), abs=1.01)


@pytest.mark.parametrize(("valid", "test"), [(0.0, 0.0), (0.05, 0.0), (0.0, 0.3), (0.5, 0.4), (0.001, 0.001)])
def test_every_symbol_is_predicted_in_exactly_one_part(valid: float, test: float, alice: Path, tmp_path: Path) -> None:
    corpus = make(str(alice), tmp_path, valid_fraction=valid, test_fraction=test)
    parts = [part for part in (corpus.train, corpus.valid, corpus.test) if part]
    assert sum(part.predictions for part in parts) == len(everything(str(alice), tmp_path)) - 1
    assert (corpus.valid is not None) == (valid > 0)
    assert (corpus.test is not None) == (test > 0)
    assert sum(part.characters for part in parts) == 5000


def test_the_vocabulary_is_of_the_training_part_alone_by_frequency(tmp_path: Path) -> None:
    corpus = make(write(tmp_path / "a.txt", "aab" * 20 + "zzz" * 20), tmp_path, valid_fraction=0.5)
    assert corpus.vocabulary.symbols == ["<unk>", END, "a", "b"]
    assert corpus.train.unknown == 0
    assert corpus.valid is not None
    assert corpus.valid.unknown == 60


def test_rare_symbols_become_unknown_and_are_counted(alice: Path, tmp_path: Path) -> None:
    counts = Counter(everything(str(alice), tmp_path, unit="word")[1:])
    corpus = make(str(alice), tmp_path, unit="word", min_count=3, valid_fraction=0.0)
    rare = sum(n for symbol, n in counts.items() if n < 3 and symbol != END)
    assert rare > 0
    assert corpus.train.unknown == rare
    assert int(np.count_nonzero(corpus.train.ids == corpus.vocabulary.unknown)) == rare
    assert len(make(str(alice), tmp_path, unit="word", vocabulary_size=20).vocabulary) == 20


def test_characters_count_a_space_after_each_word_and_none_for_ends(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "the cat\nran é")
    assert make(file, tmp_path, unit="word", valid_fraction=0.0).train.characters == len("the cat \nran é ")
    assert make(file, tmp_path, valid_fraction=0.0).train.characters == len("the cat\nran é")
    assert make(file, tmp_path, valid_fraction=0.0, text_per="line").train.characters == len("the catran é")


def test_a_vocabulary_file_is_used_as_it_is(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "abcabc")
    own = write(tmp_path / "v.txt", "c\nx\na\n")
    corpus = make(file, tmp_path, vocabulary=own, valid_fraction=0.0)
    assert corpus.vocabulary.symbols == ["<unk>", END, "c", "x", "a"]
    assert corpus.train.ids.tolist() == [1, 4, 0, 2, 4, 0, 2, 1]
    with pytest.raises(VocabularyError, match="already"):
        make(file, tmp_path, vocabulary=write(tmp_path / "v.txt", "c\nc\n"))
    with pytest.raises(VocabularyError, match="already"):  # before the text is read
        make(str(tmp_path / "nowhere.txt"), tmp_path, vocabulary=str(tmp_path / "v.txt"))


def test_a_validation_file_stands_by_itself_and_adds_nothing_to_the_vocabulary(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.txt", "abab")]
    corpus = make(files, tmp_path, valid=write(tmp_path / "b.txt", "bz"))
    assert symbols(corpus.train, corpus.vocabulary) == [END, "a", "b", "a", "b", END]
    assert symbols(corpus.valid, corpus.vocabulary) == [END, "b", "<unk>", END]
    assert corpus.valid is not None
    assert corpus.valid.unknown == 1


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_corpus_is_refused(text: str, tmp_path: Path) -> None:
    for chosen in ({}, {"unit": "word"}, {"text_per": "line"}):
        with pytest.raises(CorpusError, match="the corpus is empty"):
            make(write(tmp_path / "a.txt", text), tmp_path, **chosen)


def test_an_empty_validation_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"b.txt: the corpus is empty"):
        make(write(tmp_path / "a.txt", "abc"), tmp_path, valid=write(tmp_path / "b.txt", ""))


def test_a_corpus_of_one_symbol_leaves_nothing_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="held-out"):
        make(write(tmp_path / "a.txt", "a"), tmp_path, valid_fraction=0.4, test_fraction=0.4)


def test_only_the_ids_stay_in_the_folder(alice: Path, tmp_path: Path) -> None:
    make(str(alice), tmp_path, valid=str(alice))
    assert sorted(path.name for path in (tmp_path / "scratch").iterdir()) == ["train.ids", "valid.ids"]


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
@pytest.mark.parametrize("unit", ["char", "word"])
def test_the_size_of_a_chunk_does_not_matter(
    unit: str, chunk: int, alice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"unit": unit, "valid_fraction": 0.2, "min_count": 2}
    whole = make(str(alice), tmp_path, **chosen)
    expected = [whole.vocabulary.symbols, whole.train.ids.tolist(), whole.train.unknown, whole.train.characters]
    monkeypatch.setattr(encode, "CHUNK", chunk)
    (tmp_path / "other").mkdir()
    found = make(str(alice), tmp_path / "other", **chosen)
    assert [found.vocabulary.symbols, found.train.ids.tolist(), found.train.unknown, found.train.characters] == expected


def test_ids_take_two_bytes_while_they_can(tmp_path: Path) -> None:
    assert id_type(1 << 16) is np.uint16
    assert id_type((1 << 16) + 1) is np.int32
    many = " ".join(f"w{i}" for i in range(70_000))
    file = write(tmp_path / "a.txt", many)
    corpus = make(file, tmp_path, unit="word", tokenizer="whitespace", valid_fraction=0.0)
    assert corpus.train.ids.dtype == np.int32
    assert symbols(corpus.train, corpus.vocabulary)[1:-1] == many.split()
    few = make(file, tmp_path, unit="word", tokenizer="whitespace", valid_fraction=0.0, vocabulary_size=1 << 16)
    assert few.train.ids.dtype == np.uint16
    assert int(few.train.ids.max()) == (1 << 16) - 1
    assert few.train.unknown == 70_000 - (1 << 16) + 2


def test_a_file_in_the_ids_of_a_model_is_as_the_corpus_was(alice: Path, tmp_path: Path) -> None:
    for unit in ("char", "word"):
        corpus = make(str(alice), tmp_path, unit=unit, valid_fraction=0.0)
        stream = encode_file(str(alice), TextSettings(unit=unit), corpus.vocabulary, tmp_path)
        assert stream.ids.tolist() == corpus.train.ids.tolist()
        assert (stream.characters, stream.unknown) == (corpus.train.characters, 0)


def test_ids_on_disk_open_again_as_they_were(alice: Path, tmp_path: Path) -> None:
    corpus = make(str(alice), tmp_path)
    again = map_numbers(tmp_path / "scratch" / "train.ids", id_type(len(corpus.vocabulary)))
    assert np.array_equal(again, corpus.train.ids)


@pytest.mark.slow
@hypothesis_settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")).filter(str.strip),
    unit=st.sampled_from(["char", "word"]),
    tokenizer=st.sampled_from(["words", "whitespace"]),
    lowercase=st.booleans(),
)
def test_a_piece_of_text_has_the_symbols_that_its_file_has(
    text: str, unit: str, tokenizer: str, lowercase: bool, tmp_path: Path
) -> None:
    chosen: dict[str, Any] = {"unit": unit, "tokenizer": tokenizer, "lowercase": lowercase}
    text = text.removeprefix("\ufeff").replace("</s>", "")  # a mark that files drop, and the one name that is taken
    if not text.strip():
        return
    piece = encode_text(text, TextSettings(**chosen))
    assert everything(write(tmp_path / "a.txt", text), tmp_path, **chosen) == [END, *piece, END]
    if unit == "char" and not lowercase:
        assert "".join(piece) == text

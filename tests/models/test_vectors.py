"""Word vectors: near is near, folders and word2vec files give them back, broken files are told with their line."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relmo
from relmo.errors import ModelError, RelmoError, SettingError, VocabularyError
from relmo.models.vectors import WordVectors
from relmo.settings.lm import SkipgramSettings
from relmo.text.vocabulary import SPECIALS, Vocabulary

WORDS = {"man": (1, 0, 0.1), "woman": (0, 1, 0.1), "king": (1, 0, 2), "queen": (0, 1, 2), "apple": (-1, -1, 0)}


@pytest.fixture
def vectors() -> WordVectors:
    """Five words that have vectors, and four symbols that have none or that a file cannot hold."""
    symbols = [*SPECIALS, *WORDS, "\n", "New York"]
    rows = [(0, 0, 0), (0, 0, 0), *WORDS.values(), (0, 0, 0), (0.3, 0.2, 1 / 3)]
    return WordVectors(Vocabulary(symbols), np.array(rows), SkipgramSettings())


def test_nearest_is_the_order_of_cosines_without_the_word_itself(vectors: WordVectors) -> None:
    found = vectors.most_similar("king", topn=3)
    cosines = {
        w: np.dot(v, WORDS["king"]) / np.linalg.norm(v) / np.linalg.norm(WORDS["king"]) for w, v in WORDS.items()
    }
    assert [word for word, _ in found][1:] == ["queen", "man"]
    assert dict(found)["queen"] == pytest.approx(cosines["queen"])
    assert vectors.similarity("king", "queen") == pytest.approx(cosines["queen"])
    assert vectors.most_similar(np.array([1, 0, 2.0]), topn=1) == [("king", pytest.approx(1))]


def test_nearest_gives_every_word_but_none_without_a_vector(vectors: WordVectors) -> None:
    assert {word for word, _ in vectors.most_similar("king", topn=100)} == {*WORDS, "New York"} - {"king"}
    assert vectors.most_similar("king", topn=0) == []


def test_man_is_to_king_as_woman_is_to_queen(vectors: WordVectors) -> None:
    assert vectors.most_similar(positive=["king", "woman"], negative=["man"], topn=1)[0][0] == "queen"


def test_words_are_looked_up_as_the_text_was_read(vectors: WordVectors) -> None:
    assert np.array_equal(vectors["KING"], np.float32(WORDS["king"]))
    assert "King" in vectors
    assert "King" not in WordVectors(vectors.vocabulary, vectors.matrix)


@pytest.mark.parametrize("word", ["prince", "<unk>", "\n"])
def test_a_word_without_a_vector_is_an_error_that_names_it(vectors: WordVectors, word: str) -> None:
    with pytest.raises(VocabularyError, match=re.escape(f"{word!r} has no vector")):
        vectors.most_similar(word)


def test_words_are_looked_up_as_in_a_dictionary(vectors: WordVectors) -> None:
    assert [*vectors] == [*WORDS, "New York"]
    assert len(vectors) == len(WORDS) + 1
    assert np.array_equal(vectors[["king", "man"]], np.float32([WORDS["king"], WORDS["man"]]))
    assert 3 not in vectors
    with pytest.raises(SettingError, match="a key is a word or a list of words, not 3"):
        vectors[3]  # type: ignore[index]


def test_an_unknown_word_is_a_key_error_of_one_plain_line_that_knows_of_case(vectors: WordVectors) -> None:
    cased = WordVectors(vectors.vocabulary, vectors.matrix)
    with pytest.raises(KeyError) as error:
        cased["King"]
    assert str(error.value) == "'King' has no vector; 'king' has one"


def test_similar_words_are_those_of_the_formula_whatever_way_they_are_given(vectors: WordVectors) -> None:
    unit = {word: np.divide(vector, np.linalg.norm(vector)) for word, vector in WORDS.items()}
    wanted = unit["king"] + unit["woman"] - unit["man"]
    found = vectors.most_similar(["king", "woman"], "man")
    assert dict(found)["queen"] == pytest.approx(float(unit["queen"] @ wanted / np.linalg.norm(wanted)))
    assert not {"king", "woman", "man"} & dict(found).keys()
    by_vector = vectors.most_similar([vectors["king"], unit["woman"]], [WORDS["man"]])
    assert dict(by_vector)["queen"] == pytest.approx(dict(found)["queen"])
    assert {"king", "woman", "man"} <= dict(by_vector).keys()
    assert vectors.most_similar([1, 0, 2], topn=1) == [("king", pytest.approx(1))]


@pytest.mark.parametrize(
    ("given", "message"), [((), "most_similar needs a word"), ((3,), "expected words or vectors, not 3")]
)
def test_nothing_to_be_similar_to_is_an_error(vectors: WordVectors, given: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        vectors.most_similar(*given)


def test_a_vector_of_another_size_is_an_error(vectors: WordVectors) -> None:
    with pytest.raises(ModelError, match=r"\(3,\), not \(2,\)"):
        vectors.most_similar(np.ones(2))


def test_a_folder_gives_the_same_vectors_back(vectors: WordVectors, tmp_path: Path) -> None:
    vectors.save_pretrained(tmp_path / "m", results={"train_words": 7})
    found = relmo.load(tmp_path / "m")
    assert isinstance(found, WordVectors)
    assert np.array_equal(found.matrix, vectors.matrix)
    assert (found.vocabulary.symbols, found.settings) == (vectors.vocabulary.symbols, vectors.settings)
    assert "train_words: 7" in (tmp_path / "m/README.md").read_text()
    names = {"config.json", "model.safetensors", "vocabulary.txt", "vectors.txt", "README.md", "settings.toml"}
    assert {path.name for path in (tmp_path / "m").iterdir()} == names


@pytest.mark.parametrize("change", [{"dimensions": 4}, {"dimensions": "3"}, {"vocab_size": 8}, {"kind": "lm"}])
def test_a_folder_that_contradicts_itself_is_an_error(vectors: WordVectors, tmp_path: Path, change: dict) -> None:
    vectors.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError):
        WordVectors.from_pretrained(tmp_path)


def test_a_word2vec_file_gives_the_same_numbers_back_but_for_symbols_it_cannot_hold(tmp_path: Path) -> None:
    words = ["naïve", "水", "a\u00a0b", "x", "</s>"]
    matrix = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32) * np.float32(
        [[1e-20], [1], [1], [1], [1e20], [1]]
    )
    WordVectors(Vocabulary(["<unk>", *words]), matrix).write_word2vec(tmp_path / "v.txt")
    assert (tmp_path / "v.txt").read_text(encoding="utf-8").splitlines()[0] == "5 5"
    found = WordVectors.read_word2vec(tmp_path / "v.txt")
    assert found.vocabulary.symbols == ["<unk>", "naïve", "水", "x", "</s>"]
    assert np.array_equal(found.matrix, matrix[[0, 1, 2, 4, 5]])
    found.save_pretrained(tmp_path / "m")
    assert np.array_equal(WordVectors.from_pretrained(tmp_path / "m").matrix, found.matrix)


def test_files_as_word2vec_wrote_them_are_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "v.txt.gz", "wt") as file:
        file.write("2 2\nred 0.5 -1e-3 \nblue 1 0 \n")  # a space at the end of each line
    found = WordVectors.read_word2vec(tmp_path / "v.txt.gz")
    assert found.vocabulary.symbols == [*SPECIALS, "red", "blue"]
    assert found["red"].tolist() == np.float32([0.5, -0.001]).tolist()


def test_glove_files_are_read_without_a_first_line_and_with_spaces_in_words(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("the 0.5 1 -2\n. . 1 2 3\n")
    vectors = WordVectors.read_word2vec(tmp_path / "glove.txt")
    assert vectors["the"].tolist() == [0.5, 1, -2]
    assert vectors[". ."].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "count dimensions"),
        ("the 0.1\n", 1, "GloVe"),
        ("the 0.1 x\n", 1, "'x'"),
        ("the 0.1 0.2\na 0.1\n", 2, "2 numbers"),
        ("2 -1\n", 1, "count dimensions"),
        ("1 9999999\n", 1, "dimensions"),
        ("0 3\n", 1, "at least 1"),
        ("99999999999999999999 2\na 1 2\n", 1, "count dimensions"),
        ("999999999 2\na 1 2\n", 1, "says 999999999 words, the file has 1"),
        ("1 2\na 1 2\nb 1 2\n", 1, "the file has 2"),
        ("2 2\na 1 2\nb 1\n", 3, "2 numbers"),
        ("2 2\na 1 2\nb 1 2 3\n", 3, "2 numbers"),
        ("2 2\na 1 2\n\n", 3, "2 numbers"),
        ("2 2\na 1 2\na 1 2\n", 3, "line 2"),
        ("1 2\na 1 x\n", 2, "'x'"),
        ("1 2\na 1 nan\n", 2, "finite"),
        ("1 2\na 1 1e39\n", 2, "finite"),
    ],
)
def test_a_malformed_word2vec_file_is_an_error_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(VocabularyError, match=rf"v\.txt:{line}: .*{says}"):
        WordVectors.read_word2vec(tmp_path / "v.txt")


@pytest.mark.parametrize("content", [b"1 2\n\xff 1 2\n", b"\x1f\x8b\x00\x00 not text", b"1 1\na\x00b 1\n"])
def test_a_binary_file_is_an_error_not_a_traceback(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v.bin").write_bytes(content)
    with pytest.raises(RelmoError, match=r"v\.bin"):
        WordVectors.read_word2vec(tmp_path / "v.bin")

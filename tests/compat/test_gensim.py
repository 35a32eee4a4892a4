"""Word vectors in gensim's hands."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gensim", reason="gensim is not installed: pip install 'relmo[gensim]'")

from gensim.models import KeyedVectors

from relmo.cli import main
from relmo.compat.gensim import export_gensim, keyed_vectors
from relmo.errors import SettingError, StorageError, VocabularyError
from relmo.models.vectors import WordVectors
from relmo.text.vocabulary import Vocabulary
from support.small_models import bilm, language_model

WORDS = ["king", "queen", "river", "bank", "water", "Ōsaka"]


@pytest.fixture
def vectors() -> WordVectors:
    rows = np.random.default_rng(1).normal(size=(len(WORDS) + 2, 5)).astype(np.float32)
    rows[:2] = 0
    return WordVectors(Vocabulary([*Vocabulary.specials, *WORDS]), rows)


def test_gensim_finds_the_same_neighbours_and_analogies(vectors: WordVectors) -> None:
    found = keyed_vectors(vectors)
    assert found.index_to_key == WORDS  # symbols without a vector are left out
    np.testing.assert_array_equal(found["river"], vectors["river"])
    for word in WORDS:
        theirs, ours = found.most_similar(word, topn=3), vectors.most_similar(word, topn=3)
        assert [key for key, _ in theirs] == [key for key, _ in ours]
        np.testing.assert_allclose([x for _, x in theirs], [x for _, x in ours], rtol=1e-5)
    theirs = found.most_similar(positive=["queen", "bank"], negative=["king"], topn=1)
    assert theirs[0][0] == vectors.most_similar(positive=["queen", "bank"], negative=["king"], topn=1)[0][0]
    assert found.similarity("king", "queen") == pytest.approx(vectors.similarity("king", "queen"), rel=1e-5)


def test_a_file_is_loaded_as_gensim_says(vectors: WordVectors, tmp_path: Path) -> None:
    assert export_gensim(vectors, tmp_path / "v.kv") == len(WORDS)
    found = KeyedVectors.load(str(tmp_path / "v.kv"), mmap="r")
    np.testing.assert_array_equal(found.vectors, vectors.matrix[2:])
    assert [path.name for path in tmp_path.iterdir()] == ["v.kv"]
    with pytest.raises((StorageError, SettingError), match="overwrite"):
        export_gensim(vectors, tmp_path / "v.kv")
    found.save_word2vec_format(str(tmp_path / "v.txt"))
    assert WordVectors.read_word2vec(tmp_path / "v.txt").most_similar("king", topn=2) == [
        (word, pytest.approx(cosine, rel=1e-4)) for word, cosine in vectors.most_similar("king", topn=2)
    ]


def test_of_a_bidirectional_model_they_are_the_words_own(tmp_path: Path) -> None:
    model = bilm()
    found = keyed_vectors(model, ["cat", "Katze", "cat"])
    assert found.index_to_key == ["cat", "Katze"]
    np.testing.assert_array_equal(found["cat"], model.embed(["the cat sat"], layers=0)[0][1])
    model.save_pretrained(tmp_path / "m")
    with pytest.raises(SystemExit) as end:
        main(["convert", str(tmp_path / "m"), str(tmp_path / "m.kv"), "--to", "gensim"])
    assert end.value.code == 0
    assert KeyedVectors.load(str(tmp_path / "m.kv")).index_to_key == ["a", "cat", "mat", "sat", "the"]


def test_what_has_no_vector_is_one_clear_line(vectors: WordVectors) -> None:
    with pytest.raises(VocabularyError, match="boat"):
        keyed_vectors(vectors, ["boat"])
    with pytest.raises(SettingError, match="skipgram"):
        keyed_vectors(language_model())

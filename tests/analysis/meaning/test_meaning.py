"""A corpus with the vectors of its words: stored, searched exactly, and looked up word by word."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from relmo.analysis.meaning import occurrences
from relmo.analysis.meaning.occurrences import OccurrenceIndex, build_index, meaning, normalize, quantize
from relmo.errors import CorpusError, ModelError, SettingError, StorageError
from relmo.models.vectors import WordVectors
from relmo.settings.lm import SkipgramSettings
from relmo.text.vocabulary import Vocabulary
from support.small_models import bilm

CORPUS = [
    ["the", "cat", "sat"],
    ["the", "mat"],
    ["A", "Cat", "sat", "the", "cat"],
    [],
    ["the", "cat", "a", "mat", "sat"],
    ["a\tb", "cat"],
]
FLAT = [word for words in CORPUS for word in words]


def brute_force(vector: np.ndarray, layer: int) -> np.ndarray:
    vectors = np.concatenate([each[layer] for each in bilm().embed([words for words in CORPUS if words])])
    return normalize(vectors) @ normalize(vector[None])[0]


@pytest.mark.parametrize(("dtype", "near"), [("float16", 2e-3), ("int8", 2e-2)])
def test_a_search_is_the_largest_of_all_cosines(dtype, near: float, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(occurrences, "BATCH_ROWS", 4)
    index = build_index(tmp_path / "index", bilm(), CORPUS, dtype=dtype)
    assert len(index) == len(FLAT)
    generator = np.random.default_rng(0)
    for layer in range(index.layers):
        vector = generator.normal(size=8).astype(np.float32)
        cosines = brute_force(vector, layer)
        found = index.nearest(vector, layer=layer, k=4)
        assert np.allclose(found.cosines, np.sort(cosines)[::-1][:4], atol=near)
        assert np.allclose(cosines[found.places], found.cosines, atol=near)
        some = np.array([0, 3, 9, 12])
        found = index.nearest(vector, layer=layer, k=5, among=some, without=[9])
        assert set(found.places.tolist()) == {0, 3, 12}


def test_places_words_and_sentences_are_those_of_the_corpus(tmp_path: Path) -> None:
    build_index(tmp_path / "index", bilm(), [" ".join(words) for words in CORPUS[:3]])
    build_index(tmp_path / "again", bilm(), CORPUS)
    index = OccurrenceIndex.open(tmp_path / "again")
    assert [index.words[i] for i in index.tokens] == FLAT
    assert index.places_of("cat").tolist() == [i for i, word in enumerate(FLAT) if word.lower() == "cat"]
    assert index.sentence(5) == (CORPUS[2], 0)
    assert index.sentence(6) == (CORPUS[2], 1)
    assert index.sentence(len(FLAT) - 1) == (CORPUS[5], 1)
    assert not (tmp_path / "again.partial").exists()


def test_eight_bits_are_at_most_half_a_step_away() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    rows[7] = 0
    stored, scale = quantize(rows, "int8")
    assert (np.abs(stored * scale[:, None] - rows) <= scale[:, None] / 2 + 1e-6).all()


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken():
        yield ["the", "cat"]
        raise CorpusError("a bad line")

    with pytest.raises(CorpusError, match="a bad line"):
        build_index(tmp_path / "index", bilm(), broken())
    with pytest.raises(CorpusError, match="corpus"):
        build_index(tmp_path / "index", bilm(), [])
    assert list(tmp_path.iterdir()) == []


def test_a_word_is_looked_up_in_every_layer_and_its_own_sentence_left_out(tmp_path: Path) -> None:
    model = bilm()
    index = build_index(tmp_path / "index", model, CORPUS, dtype="float16")
    static = WordVectors(Vocabulary(["cat", "mat", "sat"]), np.eye(3, dtype=np.float32) + 0.1, SkipgramSettings())
    found = meaning(model, index, "the cat sat", "cat", k=4, vectors=static)
    assert len(found.layers) == 3
    assert all(each.words != CORPUS[0] or each.position != 1 for layer in found.layers for each in layer)
    assert {each.words[each.position].lower() for each in found.layers[0][:2]} == {"cat"}
    assert found.layers[0][0].cosine == pytest.approx(1, abs=2e-3)
    vector = model.embed([["the", "cat", "sat"]])[0][2, 1]
    cosines = brute_force(vector, 2)
    cosines[1] = -1
    assert found.layers[2][0].cosine == pytest.approx(cosines.max(), abs=2e-3)
    assert found.static is not None
    assert {word for word, _ in found.static} == {"mat", "sat"}
    alone = meaning(model, index, ["the", "cat", "sat"], 1, k=9, same_word=True)
    assert [len(layer) for layer in alone.layers] == [4, 4, 4]
    assert json.loads(json.dumps(found.as_dict()))["position"] == 1
    assert "[cat]" in found._repr_html_()


def test_mistakes_are_said(tmp_path: Path) -> None:
    model = bilm()
    index = build_index(tmp_path / "index", model, CORPUS)
    with pytest.raises(StorageError, match="overwrite"):
        build_index(tmp_path / "index", model, CORPUS)
    assert len(build_index(tmp_path / "index", model, CORPUS[:1], overwrite=True)) < len(index)
    index = build_index(tmp_path / "index", model, CORPUS, overwrite=True)
    (tmp_path / "index" / "mine.txt").write_text("notes")
    with pytest.raises(StorageError, match=r"mine\.txt"):
        build_index(tmp_path / "index", model, CORPUS, overwrite=True)
    with pytest.raises(SettingError, match="dog"):
        meaning(model, index, "the cat", "dog")
    with pytest.raises(SettingError, match="0 to 1"):
        meaning(model, index, "the cat", 2)
    with pytest.raises(ModelError, match="another model"):
        meaning(bilm(hidden=10), index, "the cat", "cat")
    with pytest.raises(ModelError, match="index"):
        OccurrenceIndex.open(tmp_path)
    with pytest.raises(SettingError, match="0 to 2"):
        index.nearest(np.ones(8, dtype=np.float32), layer=3)
    file = tmp_path / "index" / "layer-1.vectors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"layer-1\.vectors"):
        OccurrenceIndex.open(tmp_path / "index")


def look(folder: Path) -> list:
    """All that is read of an index."""
    index = OccurrenceIndex.open(folder)
    vector = bilm().embed([["the", "cat", "sat"]])[0][2, 1]
    found = [index.nearest(vector, layer=layer, k=4) for layer in range(index.layers)]
    some = index.nearest(vector, layer=1, k=2, among=np.array([3, 11])).places.tolist()
    return [*((each.places.tolist(), each.cosines.tolist()) for each in found), some, index.sentence(7)]


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_bit_that_changed_in_any_file_of_an_index_is_noticed(dtype, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(occurrences, "BLOCK_ROWS", 4)
    build_index(tmp_path / "index", bilm(), CORPUS, dtype=dtype)
    look(tmp_path / "index")
    for file in sorted((tmp_path / "index").iterdir()):
        whole = file.read_bytes()
        for place in {0, len(whole) // 2, len(whole) - 1} if whole else ():
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(ModelError, match="build the index"):
                look(tmp_path / "index")
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(ModelError, match=f"{file.name}.*build the index"):
            look(tmp_path / "index")
        file.unlink()
        file.write_bytes(whole)
    look(tmp_path / "index")


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000, b"9" * 10_000])
def test_an_index_whose_description_is_none_is_one_line(content: bytes, tmp_path: Path) -> None:
    build_index(tmp_path / "index", bilm(), CORPUS)
    (tmp_path / "index" / "index.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"index\.json"):
        OccurrenceIndex.open(tmp_path / "index")


def test_a_block_of_vectors_is_checked_once(tmp_path: Path, monkeypatch) -> None:
    index = build_index(tmp_path / "index", bilm(), CORPUS)
    expected = index.vectors(1, slice(0, 9))
    monkeypatch.setattr(occurrences, "crc32", None)
    assert np.array_equal(index.vectors(1, np.arange(9)), expected)


def test_a_damaged_inverted_file_is_noticed(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    build_index(tmp_path / "index", bilm(), CORPUS * 20, inverted_from=1)
    file = tmp_path / "index" / "layer-1.faiss"
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data)
    with pytest.raises(ModelError, match=r"layer-1\.faiss"):
        look(tmp_path / "index")


def test_an_inverted_file_finds_what_the_exact_search_finds(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    generator = np.random.default_rng(0)
    corpus = [list(generator.choice(FLAT, 12)) for _ in range(60)]
    model = bilm()
    exact = build_index(tmp_path / "exact", model, corpus)
    quick = build_index(tmp_path / "quick", model, corpus, inverted_from=1)
    assert (tmp_path / "quick" / "layer-2.faiss").exists()
    vector = model.embed([["the", "cat", "sat"]])[0][2, 1]
    best = exact.nearest(vector, layer=2, k=5)
    assert quick.nearest(vector, layer=2, k=5).cosines == pytest.approx(best.cosines)
    without = quick.nearest(vector, layer=2, k=5, without=best.places[:2].tolist())
    assert not set(without.places.tolist()) & set(best.places[:2].tolist())
    assert without.cosines == pytest.approx(
        exact.nearest(vector, layer=2, k=5, without=best.places[:2].tolist()).cosines
    )
    again = OccurrenceIndex.open(tmp_path / "quick")
    assert again.nearest(vector, layer=2, k=5, among=np.arange(40)).cosines == pytest.approx(
        exact.nearest(vector, layer=2, k=5, among=np.arange(40)).cosines
    )


def test_an_index_made_with_faiss_is_searched_exactly_without_it(tmp_path: Path, monkeypatch) -> None:
    index = build_index(tmp_path / "index", bilm(), CORPUS)
    vector = bilm().embed([["the", "cat", "sat"]])[0][2, 1]
    expected = index.nearest(vector, layer=2, k=4)
    (tmp_path / "index" / "layer-2.faiss").write_bytes(b"of a machine that has faiss")
    monkeypatch.setattr(occurrences, "import_faiss", lambda: None)
    found = OccurrenceIndex.open(tmp_path / "index").nearest(vector, layer=2, k=4)
    assert found.places.tolist() == expected.places.tolist()

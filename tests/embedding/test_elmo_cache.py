"""The cache of a biLM's layers: what is in it is what the biLM gives, whatever was killed, cut or done at once."""

import json
import multiprocessing
import os
import re
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from relmo.disk.outputs import folder_lock
from relmo.embedding.elmo_cache import (
    FORMAT,
    INDEX,
    NOTE,
    RECORD,
    VECTORS,
    ComputedVectors,
    ElmoCache,
    cache_folder,
    hash_words,
)
from relmo.embedding.engine import Embedder
from relmo.errors import StorageError
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings

SENTENCES = [["The", "bank", "lends"], ["a"], [], ["The", "bank", "lends"], ["bank", "of", "the", "river", "."]]


def tiny(seed: int = 0) -> BiLM:
    torch.manual_seed(seed)
    settings = BiLMModelSettings(char_dim=4, filters=("1x4", "2x4"), max_characters=12, hidden=6, projection=3)
    return BiLM(BiLMNetwork(settings, vocab_size=None), BiLMSettings(model=settings))


class Watched(Embedder):
    """Counts the sentences that are embedded; fails after some of them where it is told to."""

    embedded, fails_after = 0, -1

    def stream(self, sentences, options, cut=None):
        for number, array in enumerate(super().stream(sentences, options, cut)):
            if number == self.fails_after:
                raise KeyboardInterrupt
            self.embedded += 1
            yield array


def watched() -> tuple[BiLM, Watched]:
    model = tiny()
    embedder = Watched(model.network, max_characters=12)
    model.embedder = embedder
    return model, embedder


def check(vectors: object, model: BiLM, sentences: list[list[str]] = SENTENCES) -> None:
    found = vectors.batch(range(len(sentences)))  # type: ignore[attr-defined]
    for array, expected in zip(found, model.embed(sentences), strict=True):
        assert array.dtype == np.float16
        assert np.array_equal(array, expected.transpose(1, 0, 2).astype(np.float16))


def test_kept_and_computed_layers_are_the_bilms_in_half_precision(tmp_path: Path) -> None:
    model = tiny()
    check(ElmoCache(tmp_path, model).vectors(SENTENCES), model)
    check(ComputedVectors(model, SENTENCES), model)


def test_a_sentence_is_embedded_once_whoever_asks(tmp_path: Path) -> None:
    model, embedder = watched()
    cache = ElmoCache(tmp_path, model)
    cache.vectors(SENTENCES)
    assert embedder.embedded == 4  # of five, two are equal
    said: list[str] = []
    again = ElmoCache(tmp_path, model)
    check(again.vectors([*SENTENCES, ["new"]], said.append), tiny(), [*SENTENCES, ["new"]])
    assert embedder.embedded == 5
    assert len(said) == 1
    assert str(again.folder) in said[0]
    check(again.vectors(SENTENCES, said.append), tiny())
    assert len(said) == 1


def test_words_that_were_cut_are_told_once_with_their_count(tmp_path: Path) -> None:
    said: list[str] = []
    sentences = [["a" * 11, "b"], ["a" * 11]]
    ElmoCache(tmp_path, tiny()).vectors(sentences, said.append)
    assert said[1] == "ELMo: 2 words were cut to the 10 bytes that the model reads of a word, for example 'aaaaaaaaaaa'"
    model = tiny()
    cut = model.embedder.cut_words()
    ComputedVectors(model, sentences, cut).batch([0, 1])
    assert cut.count == 2


def test_another_bilm_has_a_folder_of_its_own(tmp_path: Path) -> None:
    one, other = ElmoCache(tmp_path, tiny(0)), ElmoCache(tmp_path, tiny(1))
    assert one.folder != other.folder
    check(one.vectors(SENTENCES), tiny(0))
    check(other.vectors(SENTENCES), tiny(1))


def test_a_cache_of_an_older_format_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("relmo.embedding.elmo_cache.FORMAT", FORMAT - 1)
        older = ElmoCache(tmp_path, tiny())
    older.vectors(SENTENCES)
    cache = ElmoCache(tmp_path, tiny())
    check(cache.vectors(SENTENCES), tiny())
    assert cache.folder != older.folder
    assert (older.folder / VECTORS).exists()


def test_what_a_kill_left_half_written_is_written_over(tmp_path: Path) -> None:
    cache = ElmoCache(tmp_path, tiny())
    cache.vectors(SENTENCES[:2])
    with (cache.folder / VECTORS).open("ab") as file:
        file.write(b"half of a vector")
    with (cache.folder / INDEX).open("ab") as file:
        file.write(b"half of a rec")
    check(cache.vectors(SENTENCES[:2]), tiny(), SENTENCES[:2])
    check(cache.vectors(SENTENCES), tiny())
    assert (cache.folder / VECTORS).stat().st_size == 9 * cache.token_bytes
    assert (cache.folder / INDEX).stat().st_size == 4 * RECORD.itemsize


def test_an_error_while_embedding_leaves_what_was_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relmo.embedding.elmo_cache.PUBLISH_BYTES", 1)
    model, embedder = watched()
    embedder.fails_after = 2
    cache = ElmoCache(tmp_path, model)
    with pytest.raises(KeyboardInterrupt):
        cache.vectors(SENTENCES)
    cache.model, seen = watched()
    check(cache.vectors(SENTENCES), tiny())
    assert seen.embedded == 2


def test_who_waits_for_another_that_appends_computes_nothing_twice(tmp_path: Path) -> None:
    one, (model, embedder) = ElmoCache(tmp_path, tiny()), watched()
    other = ElmoCache(tmp_path, model)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(other.vectors(SENTENCES)))
    with folder_lock(one.folder, wait=True):
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        one._append({hash_words(words): words for words in SENTENCES}, lambda _: None)
    thread.join()
    check(found[0], tiny())
    assert embedder.embedded == 0


def fill(root: Path, sentences: list[list[str]]) -> None:
    torch.set_num_threads(1)
    check(ElmoCache(root, tiny()).vectors(sentences), tiny(), sentences)


@pytest.mark.slow
def test_two_processes_at_once_keep_every_sentence_once(tmp_path: Path) -> None:
    sentences = [[f"w{i}", "x", f"y{i % 7}"] for i in range(300)]
    context = multiprocessing.get_context("spawn")
    parts = (sentences, sentences[::-1])
    processes = [context.Process(target=fill, args=(tmp_path, part)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    cache = ElmoCache(tmp_path, tiny())
    assert len(cache.read_index()) == 300
    assert (cache.folder / VECTORS).stat().st_size == 900 * cache.token_bytes


def test_damage_and_other_versions_are_one_clear_line(tmp_path: Path) -> None:
    cache = ElmoCache(tmp_path, tiny())
    cache.vectors(SENTENCES)
    whole = (cache.folder / VECTORS).read_bytes()
    (cache.folder / VECTORS).write_bytes(whole[:-1])
    with pytest.raises(StorageError, match=r"vectors\.bin"):
        cache.vectors(SENTENCES)
    note = json.loads((cache.folder / NOTE).read_text())
    for other, says in (
        (json.dumps(note | {"format": FORMAT - 1}), "version"),
        ("{", "note.json"),
        ("[]", "note.json"),
        ("\udcff", "note.json"),
    ):
        (cache.folder / NOTE).write_text(other, errors="surrogateescape")
        with pytest.raises(StorageError, match=re.escape(says)):
            ElmoCache(tmp_path, tiny())


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("place", [0, 20, -1])
def test_a_bit_of_the_vectors_that_changed_is_noticed_when_its_sentence_is_read(place: int, tmp_path: Path) -> None:
    cache = ElmoCache(tmp_path, tiny())
    cache.vectors(SENTENCES)
    flip(cache.folder / VECTORS, place)
    kept = cache.vectors(SENTENCES)
    with pytest.raises(StorageError, match=r"vectors.bin: .*remove"):
        kept.batch(range(len(SENTENCES)))
    shutil.rmtree(cache.folder)
    check(ElmoCache(tmp_path, tiny()).vectors(SENTENCES), tiny())


@pytest.mark.parametrize("place", range(0, 3 * RECORD.itemsize, 4))
def test_a_bit_of_the_index_that_changed_is_an_error_or_changes_nothing(place: int, tmp_path: Path) -> None:
    cache = ElmoCache(tmp_path, tiny())
    cache.vectors(SENTENCES)
    flip(cache.folder / INDEX, place)
    with suppress(StorageError):  # a key that nobody asks for is made again
        check(cache.vectors(SENTENCES), tiny())


def test_a_sentence_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ElmoCache(tmp_path, tiny()).vectors(SENTENCES)
    kept = ElmoCache(tmp_path, tiny()).vectors(SENTENCES)
    kept.batch([0, 1, 2])
    monkeypatch.setattr("relmo.embedding.elmo_cache.checksum", None)
    check(kept, tiny(), SENTENCES[:3])


@pytest.mark.parametrize("name", [INDEX, VECTORS, NOTE])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    cache = ElmoCache(tmp_path, tiny())
    cache.vectors(SENTENCES)
    (cache.folder / name).unlink()
    os.mkfifo(cache.folder / name)
    with pytest.raises(StorageError, match=f"{name}: .*remove"):
        ElmoCache(tmp_path, tiny()).vectors(SENTENCES)


def test_an_index_that_promises_too_much_is_not_read_into_memory(tmp_path: Path) -> None:
    cache = ElmoCache(tmp_path, tiny())
    cache.vectors(SENTENCES)
    os.truncate(cache.folder / INDEX, 1 << 40)
    with pytest.raises(StorageError, match=r"vectors\.bin"):
        cache.vectors(SENTENCES)


def test_a_disk_without_room_is_an_error_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, embedder = watched()
    cache = ElmoCache(tmp_path, model)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 0, 10))  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match=r"--cache none"):
        cache.vectors(SENTENCES)
    assert embedder.embedded == 0


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="written"):
        ElmoCache(tmp_path / "file", tiny())


def test_keys_tell_words_apart_where_joining_them_would_not() -> None:
    assert len({hash_words(words) for words in ([], [""], ["a", "b"], ["ab"], ["a b"], ["1:a"], ["a", ""])}) == 7


def test_the_folder_is_given_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELMO_CACHE", "/somewhere")
    assert cache_folder(None) == Path("/somewhere")
    assert cache_folder("here") == Path("here")
    monkeypatch.delenv("RELMO_CACHE")
    assert cache_folder(None) == Path.home() / ".cache" / "relmo"

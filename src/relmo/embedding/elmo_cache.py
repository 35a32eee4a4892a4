"""The layers of a frozen biLM for sentences, kept on disk: computed once, used in every epoch of every run.

    CACHE/elmo2-0123456789abcdef/    one folder for each biLM, named by the format and its digest
      note.json                      how many layers of what size, and the whole digest
      vectors.bin                    float16 (tokens, layers, size), sentence after sentence, only ever appended to
      index.bin                      a record for each sentence: a hash of its words, how many they are, a checksum

Choices:
- Vectors are appended first, and written through to the disk; then their records are, which publishes them. Whatever a
  kill leaves half-written has no record, and the next to append writes over it.
- Whoever appends holds a lock on the folder, and looks at what is there before computing anything; readers need no
  lock, as what is published never changes.
- A sentence's vectors depend on its words alone, so the hash of the words is the key.
- The checksum is of the key and the vectors. It is compared when a sentence is first read, not in every epoch.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol
from zlib import crc32

import numpy as np
import torch

from relmo.disk.digests import check_regular, read_json
from relmo.disk.outputs import locked, storage_errors
from relmo.embedding.engine import CutWords
from relmo.errors import StorageError
from relmo.settings.embedding import EmbedOptions
from relmo.store.folder import write_json
from relmo.store.references import bilm_digest

NOTE, VECTORS, INDEX = "note.json", "vectors.bin", "index.bin"
FORMAT = 2
KEY_BYTES = 16
RECORD = np.dtype([("key", f"V{KEY_BYTES}"), ("tokens", "<u4"), ("checksum", "<u4")])
PUBLISH_BYTES = 64 << 20  # a kill loses so much
SPARE_BYTES = 64 << 20  # what is left of a disk


if TYPE_CHECKING:
    from relmo.models.bilm import BiLM

Words = Sequence[str]


class ElmoVectors(Protocol):
    """The layers of a list of sentences."""

    def batch(self, which: Iterable[int]) -> list[np.ndarray]:
        """Of the sentences of these numbers: float16 (tokens, layers, size) each."""


class Computed:
    """Layers that are computed when they are asked for; rounded as those that are kept. `cut` takes count of words with
    more bytes than the biLM reads."""

    def __init__(self, model: "BiLM", sentences: Sequence[Words], cut: CutWords | None = None):
        self.model, self.sentences, self.cut = model, sentences, cut

    def batch(self, which: Iterable[int]) -> list[np.ndarray]:
        """As `ElmoVectors`."""
        sentences = [self.sentences[i] for i in which]
        return [_rounded(array) for array in self.model.embedder.stream(sentences, EmbedOptions(), self.cut)]


class CachedVectors:
    """Layers that are in a cache, whose folder messages name: the key of each sentence, where it begins, how many words
    it has, and its checksum."""

    def __init__(self, folder: Path, vectors: np.ndarray, keys: Sequence[bytes], places: np.ndarray):
        self.folder, self.vectors, self.keys = folder, vectors, keys
        self.starts, self.lengths, self.checksums = places.T
        self.checked = np.zeros(len(keys), dtype=bool)

    def batch(self, which: Iterable[int]) -> list[np.ndarray]:
        """As `ElmoVectors`."""
        return [self._sentence(i) for i in which]

    def _sentence(self, i: int) -> np.ndarray:
        found = self.vectors[self.starts[i] : self.starts[i] + self.lengths[i]]
        if not self.checked[i]:
            if checksum(self.keys[i], found) != self.checksums[i]:
                raise StorageError(
                    f"{self.folder / VECTORS}: is damaged (the checksum of a sentence does not match); "
                    f"{_make_again(self.folder)}"
                )
            self.checked[i] = True
        return found


def checksum(key: bytes, vectors: np.ndarray) -> int:
    """Of a sentence's key and its layers, as they are kept."""
    return crc32(np.ascontiguousarray(vectors).view(np.uint8).data, crc32(key))


def _make_again(folder: Path) -> str:
    """What to do with a cache that is damaged."""
    return f"remove {folder}, it is made again"


def _rounded(vectors: np.ndarray) -> np.ndarray:
    """A sentence's layers (K, T, E) as they are kept: float16 (T, K, E). torch rounds as NumPy does, and faster."""
    by_word = torch.from_numpy(vectors).transpose(0, 1)
    return by_word.to(torch.float16, memory_format=torch.contiguous_format).numpy()


def cache_folder(given: str | None) -> Path:
    """Where caches are: as given, or $RELMO_CACHE, or ~/.cache/relmo."""
    return Path(given or os.environ.get("RELMO_CACHE") or Path.home() / ".cache" / "relmo")


def key_of(words: Words) -> bytes:
    """A hash of a sentence's words."""
    text = "".join(f"{len(word)}:{word}" for word in words)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


class ElmoCache:
    """The kept layers of one biLM under the folder `root`."""

    def __init__(self, root: Path, model: "BiLM"):
        self.model = model
        self.layers, self.size = model.network.layer_count, model.network.size
        self.token_bytes = self.layers * self.size * 2
        digest = bilm_digest(model)
        self.folder = root / f"elmo{FORMAT}-{digest[:16]}"
        self.note = {"format": FORMAT, "layers": self.layers, "size": self.size, "digest": digest}
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / NOTE).exists():
            write_json(self.folder / NOTE, self.note)
        self._check_note()

    def vectors(self, sentences: Sequence[Words], say: Callable[[str], object] = lambda _: None) -> CachedVectors:
        """The layers of these sentences; those that are not there yet are computed and kept. `say` is told of that."""
        index = self.read_index()
        keys = [key_of(words) for words in sentences]
        if any(key not in index for key in keys):
            with storage_errors(self.folder), locked(self.folder, wait=True):
                self._append(dict(zip(keys, sentences, strict=True)), say)
            index = self.read_index()
        found = np.array([index[key] for key in keys], dtype=np.int64).reshape(-1, 3)
        return CachedVectors(self.folder, self._open(), keys, found)

    def read_index(self) -> dict[bytes, tuple[int, int, int]]:
        """Where each sentence begins, how many words it has, and its checksum, by the hash of its words."""
        records = self._records()
        tokens = records["tokens"].astype(np.int64)
        starts = np.cumsum(tokens) - tokens
        keys = records["key"].tobytes()
        return {
            keys[KEY_BYTES * i : KEY_BYTES * (i + 1)]: place
            for i, place in enumerate(zip(starts.tolist(), tokens.tolist(), records["checksum"].tolist(), strict=True))
        }

    def _records(self) -> np.ndarray:
        """The whole records of the index, which must not promise more than there is."""
        path, vectors = self.folder / INDEX, self.folder / VECTORS
        if not path.exists():
            return np.zeros(0, dtype=RECORD)
        for file in (path, vectors):
            check_regular(file, _make_again(self.folder), StorageError)
        count, tokens = path.stat().st_size // RECORD.itemsize, vectors.stat().st_size // self.token_bytes
        if count <= tokens + 1:  # only one sentence has no words
            records = np.fromfile(path, dtype=RECORD, count=count)
            if int(records["tokens"].sum(dtype=np.int64)) <= tokens:
                return records
        raise StorageError(f"{vectors}: is shorter than its index says; {_make_again(self.folder)}")

    def _open(self) -> np.ndarray:
        """The published vectors (tokens, layers, size), not read until they are looked at."""
        tokens = int(self._records()["tokens"].sum(dtype=np.int64))
        if not tokens:
            return np.zeros((0, self.layers, self.size), dtype=np.float16)
        return np.memmap(self.folder / VECTORS, np.float16, mode="r", shape=(tokens, self.layers, self.size))

    def _append(self, wanted: dict[bytes, Words], say: Callable[[str], object]) -> None:
        """Computes and keeps what nobody has in the meantime; the lock is held."""
        records = self._records()
        there = {bytes(key) for key in records["key"]}
        missing = {key: words for key, words in wanted.items() if key not in there}
        tokens = sum(map(len, missing.values()))
        self._check_space(tokens)
        if missing:
            say(f"ELMo: embedding {len(missing):,} sentences, {tokens:,} words, once; kept in {self.folder}")
        cut = self.model.embedder.cut_words()
        with storage_errors(self.folder), self._files(records) as (vectors, index):
            waiting: list[tuple[bytes, int, int]] = []
            unpublished = 0
            arrays = self.model.embedder.stream(list(missing.values()), EmbedOptions(), cut)
            for key, array in zip(missing, arrays, strict=True):
                kept = _rounded(array)
                vectors.write(kept.tobytes())
                waiting.append((key, len(kept), checksum(key, kept)))
                unpublished += array.shape[1] * self.token_bytes
                if unpublished >= PUBLISH_BYTES:
                    _publish(vectors, index, waiting)
                    waiting, unpublished = [], 0
            _publish(vectors, index, waiting)
        if cut.count:
            say(f"ELMo: {cut.message()}")

    def _check_space(self, tokens: int) -> None:
        """An error where the disk has no room for so many words."""
        needed, free = tokens * self.token_bytes, shutil.disk_usage(self.folder).free
        if needed + SPARE_BYTES > free:
            raise StorageError(
                f"{self.folder}: vectors of {tokens:,} words take {needed / 2**30:.1f} GB, and {free / 2**30:.1f} GB "
                "are free; give another folder with --cache, or --cache none to compute them every time"
            )

    @contextmanager
    def _files(self, records: np.ndarray) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """Both files, at the end of what is published, what was half-written cut off."""
        with (self.folder / VECTORS).open("ab") as vectors, (self.folder / INDEX).open("ab") as index:
            _cut_off(vectors, int(records["tokens"].sum(dtype=np.int64)) * self.token_bytes)
            _cut_off(index, records.nbytes)
            yield vectors, index

    def _check_note(self) -> None:
        """The folder must be this biLM's."""
        path = self.folder / NOTE
        note = read_json(path, _make_again(self.folder), StorageError)
        if note != self.note:
            raise StorageError(f"{path}: is of another biLM or version; {_make_again(self.folder)}")


def _publish(vectors: BinaryIO, index: BinaryIO, waiting: list[tuple[bytes, int, int]]) -> None:
    """Writes vectors through to the disk, then the records that point to them."""
    _write_through(vectors)
    index.write(np.array(waiting, dtype=RECORD).tobytes())
    _write_through(index)


def _write_through(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _cut_off(file: BinaryIO, size: int) -> None:
    file.truncate(size)
    file.seek(size)

"""Cache on disk of the layers of a frozen biLM: computed once, used in every epoch of every run.

    CACHE/elmo2-0123456789abcdef/    one folder for each biLM, named by the format and its digest
      note.json                      number of layers, their size, and the full digest
      vectors.bin                    float16 (tokens, layers, size) of all sentences, append-only
      index.bin                      one record per sentence: a hash of its words, their number, a checksum

Vectors are on disk before their records, which publish them; a process that appends holds a lock on the folder and
reads the index first. Readers need no lock, as published data never changes. The checksum covers the key and the
vectors, and is compared when a sentence is first read, not in every epoch.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np
import torch

from relmo.disk.files import check_regular, read_json
from relmo.disk.outputs import AppendLog, folder_lock, storage_errors
from relmo.embedding.engine import CutWords
from relmo.errors import StorageError
from relmo.settings.options import EmbedOptions
from relmo.store.folder import write_json
from relmo.store.references import bilm_digest

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM

NOTE, VECTORS, INDEX = "note.json", "vectors.bin", "index.bin"
FORMAT = 2
KEY_BYTES = 16
HINT = "remove {}; it will be created again"
RECORD = np.dtype([("key", f"V{KEY_BYTES}"), ("tokens", "<u4"), ("checksum", "<u4")])
PUBLISH_BYTES = 64 << 20  # lost in a kill
MIN_FREE_BYTES = 64 << 20  # left on the disk

Words = Sequence[str]


class ComputedVectors(NamedTuple):
    """Layers computed on demand, rounded as in the cache; `cut` counts truncated words."""

    model: "BiLM"
    sentences: Sequence[Words]
    cut: CutWords | None = None

    def batch(self, indices: Iterable[int]) -> list[np.ndarray]:
        """Return the layers of these sentences: float16 (tokens, layers, size) each."""
        sentences = [self.sentences[i] for i in indices]
        return [_round(array) for array in self.model.embedder.stream(sentences, EmbedOptions(), self.cut)]


class CachedVectors:
    """Layers in a cache; `entries` (N, 3) has the start, the number of words and the checksum of each sentence."""

    def __init__(self, folder: Path, vectors: np.ndarray, keys: Sequence[bytes], entries: np.ndarray):
        self.folder, self.vectors, self.keys = folder, vectors, keys
        self.starts, self.lengths, self.checksums = entries.T
        self.checked = np.zeros(len(keys), dtype=bool)

    def batch(self, indices: Iterable[int]) -> list[np.ndarray]:
        """Return the layers of these sentences: float16 (tokens, layers, size) each."""
        sentences = []
        for i in indices:
            vectors = self.vectors[self.starts[i] : self.starts[i] + self.lengths[i]]
            if not self.checked[i]:
                if checksum(self.keys[i], vectors) != self.checksums[i]:
                    raise StorageError(
                        f"{self.folder / VECTORS}: is damaged (the checksum of a sentence does not match); "
                        f"{HINT.format(self.folder)}"
                    )
                self.checked[i] = True
            sentences.append(vectors)
        return sentences


ElmoVectors = ComputedVectors | CachedVectors
"""Layers of a list of sentences."""


def checksum(key: bytes, vectors: np.ndarray) -> int:
    """Return the checksum of a sentence's key and its layers."""
    return crc32(np.ascontiguousarray(vectors).view(np.uint8).data, crc32(key))


def _round(vectors: np.ndarray) -> np.ndarray:
    """Convert a sentence's layers (K, T, E) to float16 (T, K, E). torch rounds like NumPy, but faster."""
    by_word = torch.from_numpy(vectors).transpose(0, 1)
    return by_word.to(torch.float16, memory_format=torch.contiguous_format).numpy()


def cache_folder(folder: str | None) -> Path:
    """Return the folder of caches: the argument, $RELMO_CACHE, or ~/.cache/relmo."""
    return Path(folder or os.environ.get("RELMO_CACHE") or Path.home() / ".cache" / "relmo")


def hash_words(words: Words) -> bytes:
    """Return the key of a sentence, a hash of its words."""
    text = "".join(f"{len(word)}:{word}" for word in words)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


class ElmoCache:
    """Cached layers of one biLM under the folder `root`."""

    def __init__(self, root: Path, model: "BiLM"):
        self.model = model
        self.layers, self.size = model.network.layer_count, model.network.size
        self.token_bytes = self.layers * self.size * 2
        digest = bilm_digest(model)
        self.folder = root / f"elmo{FORMAT}-{digest[:16]}"
        path, note = self.folder / NOTE, {"format": FORMAT, "layers": self.layers, "size": self.size, "digest": digest}
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_json(path, note)
        if read_json(path, HINT.format(self.folder), StorageError) != note:
            raise StorageError(f"{path}: belongs to another biLM or version; {HINT.format(self.folder)}")

    def vectors(
        self, sentences: Sequence[Words], on_message: Callable[[str], object] = lambda _: None
    ) -> CachedVectors:
        """Return the layers of these sentences, computing and storing missing ones, with a message about it."""
        index = self.read_index()
        keys = [hash_words(words) for words in sentences]
        if any(key not in index for key in keys):
            with storage_errors(self.folder), folder_lock(self.folder, wait=True):
                self._append(dict(zip(keys, sentences, strict=True)), on_message)
            index = self.read_index()
        entries = np.array([index[key] for key in keys], dtype=np.int64).reshape(-1, 3)
        shape = (int(self._records()["tokens"].sum(dtype=np.int64)), self.layers, self.size)
        if shape[0]:
            vectors: np.ndarray = np.memmap(self.folder / VECTORS, np.float16, mode="r", shape=shape)
        else:
            vectors = np.zeros(shape, dtype=np.float16)
        return CachedVectors(self.folder, vectors, keys, entries)

    def read_index(self) -> dict[bytes, tuple[int, int, int]]:
        """Return the start, number of words and checksum of each sentence by its key."""
        records = self._records()
        tokens = records["tokens"].astype(np.int64)
        starts = np.cumsum(tokens) - tokens
        keys = records["key"].tobytes()
        return {
            keys[KEY_BYTES * i : KEY_BYTES * (i + 1)]: entry
            for i, entry in enumerate(zip(starts.tolist(), tokens.tolist(), records["checksum"].tolist(), strict=True))
        }

    def _records(self) -> np.ndarray:
        """Return the complete records of the index, after checking that their vectors exist."""
        path, vectors = self.folder / INDEX, self.folder / VECTORS
        if not path.exists():
            return np.zeros(0, dtype=RECORD)
        for file in (path, vectors):
            check_regular(file, HINT.format(self.folder), StorageError)
        count, tokens = path.stat().st_size // RECORD.itemsize, vectors.stat().st_size // self.token_bytes
        if count <= tokens + 1:  # only one sentence has no words
            records = np.fromfile(path, dtype=RECORD, count=count)
            if int(records["tokens"].sum(dtype=np.int64)) <= tokens:
                return records
        raise StorageError(f"{vectors}: is shorter than its index says; {HINT.format(self.folder)}")

    def _append(self, sentences: dict[bytes, Words], on_message: Callable[[str], object]) -> None:
        """Compute and store the sentences that are still missing; the lock is held."""
        records = self._records()
        keys = {bytes(key) for key in records["key"]}
        missing = {key: words for key, words in sentences.items() if key not in keys}
        tokens = sum(map(len, missing.values()))
        needed, free = tokens * self.token_bytes, shutil.disk_usage(self.folder).free
        if needed + MIN_FREE_BYTES > free:
            raise StorageError(
                f"{self.folder}: vectors of {tokens:,} words need {needed / 2**30:.1f} GB, but {free / 2**30:.1f} GB "
                "are free. Choose another folder with --cache, or --cache none to compute them every time."
            )
        if missing:
            on_message(f"ELMo: embedding {len(missing):,} sentences, {tokens:,} words; cached in {self.folder}")
        cut = self.model.embedder.cut_words()
        arrays = self.model.embedder.stream(list(missing.values()), EmbedOptions(), cut)
        valid = int(records["tokens"].sum(dtype=np.int64)) * self.token_bytes
        path, data = self.folder / INDEX, self.folder / VECTORS
        with AppendLog(path, data, size=records.nbytes, data_size=valid) as log:
            for key, array in zip(missing, arrays, strict=True):
                rounded = _round(array)
                record = np.array([(key, len(rounded), checksum(key, rounded))], dtype=RECORD)
                log.append(record.tobytes(), rounded.tobytes())
                if log.num_pending >= PUBLISH_BYTES:
                    log.commit()
            log.commit()
        if cut.count:
            on_message(f"ELMo: {cut.message()}")

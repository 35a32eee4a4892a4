"""Every word of a corpus where it stands, with its vector in each layer, in a folder: an index that holds millions.

    build_index("index", model, sentences)
    with_corpus = OccurrenceIndex.open("index")
    with_corpus.nearest(vector, layer=2, k=10)        places of the nearest words, and their cosines

    index.json        which model (digest and place), words, layers, size of a vector, dtype, digests of other files
    words.txt         the distinct words, a line each
    tokens.npy        the number of each word of the corpus in words.txt
    starts.npy        where sentences begin, and the end
    layer-K.vectors   the vectors with length 1, one after the other: float16, or int8, each with its own scale
    layer-K.scale     of int8: what its numbers are to be multiplied with, float32
    layer-K.checks    a checksum for each 256 vectors and their scales
    layer-K.faiss     where there are many and faiss is installed: an inverted file, asked for candidates

Vectors are mapped from the files, and memory holds a piece of them at a time. A search goes through all vectors and is
exact, up to the rounding of how they are stored. With faiss (pip install 'relmo[index]') a search looks at some hundred
cells of a partition, and then at the stored vectors of the candidates; among the occurrences of one word it is exact
all the same. A folder is written under another name and renamed when it is whole. What is read is compared with its
checksum the first time.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal
from zlib import crc32

import numpy as np

from relmo.analysis.meaning.neighbours import Nearest, Search, unit
from relmo.disk.digests import check_file, check_regular, fingerprint, read_sealed, sealed
from relmo.disk.outputs import new_folder
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.store.folder import write_json
from relmo.store.references import bilm_digest, full_source
from relmo.text.vocabulary import escape, unescape

DTypes = Literal["float16", "int8"]
DTYPES: tuple[DTypes, ...] = ("float16", "int8")
AT_ONCE = 1 << 15  # vectors looked at together
BLOCK = 256  # vectors that have a checksum in common
SENTENCES = 256  # embedded together
INVERTED_FROM = 200_000  # vectors from which faiss is asked
TRAINED_ON = 100_000  # vectors that its partition is made from
CANDIDATES = 20  # times as many as are wanted are looked at again
OURS = re.compile(r"index\.json|words\.txt|(tokens|starts)\.npy|layer-\d+\.(vectors|scale|faiss|checks)")
MOST_LAYERS = 1000
REBUILD = "build the index again"


@dataclass(frozen=True)
class OccurrenceIndex:
    """A corpus in an index folder, opened to be searched."""

    folder: Path
    about: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> "OccurrenceIndex":
        """An index that `build_index` wrote."""
        folder = Path(folder)
        if not (folder / "index.json").exists():
            raise ModelError(f"{folder}: is not an index of a corpus; make one: relmo analyse meaning --build")
        index = cls(folder, read_sealed(folder / "index.json", REBUILD))
        index.check_about()
        for layer in range(index.layers):
            for file, size in index._sizes(layer).items():
                check_regular(file, REBUILD)
                if file.stat().st_size != size:
                    raise ModelError(f"{file}: is not what index.json says; {REBUILD}")
        return index

    def check_about(self) -> None:
        """Raises where index.json does not have what it must have."""
        sizes = [self.about.get(name) for name in ("words", "layers", "size")]
        whole = all(type(size) is int and 0 < size < 1 << 40 for size in sizes) and self.layers <= MOST_LAYERS
        if not whole or self.about.get("dtype") not in DTYPES or not isinstance(self.about.get("files"), dict):
            raise _damaged(self.folder / "index.json")

    def __len__(self) -> int:
        return int(self.about["words"])

    @property
    def source(self) -> str | None:
        """Name or path of the model that the index was built with; None if it is not recorded."""
        source = self.about.get("source")
        return source if isinstance(source, str) and source else None

    @property
    def layers(self) -> int:
        """How many layers have vectors."""
        return int(self.about["layers"])

    @cached_property
    def words(self) -> list[str]:
        """The distinct words."""
        path = self._known("words.txt")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise _damaged(path) from None
        return [unescape(line, str(path)) for line in text.split("\n")[:-1]]

    @cached_property
    def tokens(self) -> np.ndarray:
        """The number of each word of the corpus; (N,)."""
        path = self._known("tokens.npy")
        found = _read_array(path, np.int32)
        if len(found) != len(self) or found.min() < 0 or found.max() >= len(self.words):
            raise _damaged(path)
        return found

    @cached_property
    def starts(self) -> np.ndarray:
        """Where sentences begin, and the end; (sentences + 1,)."""
        path = self._known("starts.npy")
        found = _read_array(path, np.int64)
        if found[0] != 0 or found[-1] != len(self) or (np.diff(found) < 1).any():
            raise _damaged(path)
        return found

    def sentence(self, place: int) -> tuple[list[str], int]:
        """The words of the sentence around a place of the corpus, and the place in it."""
        number = int(np.searchsorted(self.starts, place, side="right")) - 1
        begin, end = self.starts[number : number + 2]
        return [self.words[i] for i in self.tokens[begin:end]], int(place - begin)

    def places_of(self, word: str, *, fold: bool = True) -> np.ndarray:
        """Where a word stands; with `fold` in capitals or not."""
        key = word.lower() if fold else word
        same = [i for i, each in enumerate(self.words) if (each.lower() if fold else each) == key]
        return np.flatnonzero(np.isin(self.tokens, same))

    def vectors(self, layer: int, places: np.ndarray | slice) -> np.ndarray:
        """The vectors at some places; (n, D) float32, with length 1 up to rounding."""
        self._check(layer, places)
        stored = self._stored(layer)[places].astype(np.float32)
        if self.about["dtype"] == "int8":
            stored *= self._scales(layer)[places][:, None]
        return stored

    def nearest(
        self, vector: np.ndarray, *, layer: int, k: int = 10, among: np.ndarray | None = None, without: Any = ()
    ) -> Nearest:
        """The k places whose vectors have the largest cosine to a vector (D,), nearest first; perhaps only `among`
        some places, and `without` others."""
        if not 0 <= layer < self.layers:
            raise SettingError(f"layer {layer}: the index has the layers 0 to {self.layers - 1}")
        banned = np.asarray(sorted(without), dtype=np.int64)
        if among is None and self._inverted(layer) is not None:
            among = self._candidates(layer, vector, CANDIDATES * k + len(banned))
        search = Search(vector[None], k)
        total = len(self) if among is None else len(among)
        for begin in range(0, total, AT_ONCE):
            part = slice(begin, begin + AT_ONCE)
            places = np.arange(begin, min(begin + AT_ONCE, total)) if among is None else among[part]
            rows = self.vectors(layer, part if among is None else places)
            search.add(rows, np.isin(places, banned)[None] if len(banned) else None)
        found = search.result()
        if among is not None and not len(among):
            return Nearest(found.places[0][:0], found.cosines[0][:0])
        if among is None:
            return Nearest(found.places[0], found.cosines[0])
        there = found.places[0] >= 0
        return Nearest(np.where(there, among[np.maximum(found.places[0], 0)], -1), found.cosines[0])

    def _stored(self, layer: int) -> np.ndarray:
        shape = (len(self), int(self.about["size"]))
        return np.memmap(self.folder / f"layer-{layer}.vectors", self.about["dtype"], mode="r", shape=shape)

    def _scales(self, layer: int) -> np.ndarray:
        if self.about["dtype"] != "int8":
            return np.zeros(0, dtype=np.float32)
        return np.memmap(self.folder / f"layer-{layer}.scale", np.float32, mode="r", shape=(len(self),))

    def _sizes(self, layer: int) -> dict[Path, int]:
        """How many bytes each of a layer's mapped files must have."""
        numbers, scaled = len(self) * int(self.about["size"]), self.about["dtype"] == "int8"
        sizes = {"vectors": numbers * (1 if scaled else 2), "scale": len(self) * 4 if scaled else 0}
        return {self.folder / f"layer-{layer}.{name}": size for name, size in sizes.items()}

    def _known(self, name: str) -> Path:
        """The path of a file, after a check that it is the one that index.json was written for."""
        check_file(self.folder / name, self.about["files"].get(name), REBUILD)
        return self.folder / name

    @cached_property
    def _checks(self) -> list[np.ndarray]:
        """The checksums of each layer's blocks of vectors."""
        files = [self._known(f"layer-{layer}.checks") for layer in range(self.layers)]
        for file in files:
            if file.stat().st_size != 4 * self._checked.shape[1]:
                raise _damaged(file)
        return [np.fromfile(file, dtype="<u4") for file in files]

    @cached_property
    def _checked(self) -> np.ndarray:
        """Which blocks of each layer were found right; (layers, blocks)."""
        return np.zeros((self.layers, -(-len(self) // BLOCK)), dtype=bool)

    def _check(self, layer: int, places: np.ndarray | slice) -> None:
        """Raises where a vector at these places is in a block that has changed since it was written."""
        if isinstance(places, slice):
            begin, end, _ = places.indices(len(self))
            blocks = np.arange(begin // BLOCK, -(-end // BLOCK))
        else:
            blocks = np.unique(places // BLOCK)
        todo = blocks[~self._checked[layer, blocks]]
        for block, checksum in zip(todo, _checksums(self, layer, todo), strict=True):
            if checksum != self._checks[layer][block]:
                raise ModelError(
                    f"{self.folder / f'layer-{layer}.vectors'}: is damaged (a checksum does not match); {REBUILD}"
                )
            self._checked[layer, block] = True

    def _inverted(self, layer: int) -> Any:
        """faiss's index of a layer, mapped from its file; None where there is none, or no faiss."""
        file = self.folder / f"layer-{layer}.faiss"
        faiss = import_faiss() if file.exists() else None
        if faiss is None:
            return None
        opened = self.__dict__.setdefault("_opened", {})
        if layer not in opened:
            path = self._known(file.name)
            try:
                opened[layer] = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
            except RuntimeError:
                raise _damaged(path) from None
        return opened[layer]

    def _candidates(self, layer: int, vector: np.ndarray, count: int) -> np.ndarray:
        inverted = self._inverted(layer)
        inverted.nprobe = max(8, inverted.nlist // 8)
        _, places = inverted.search(unit(vector[None]), min(count, len(self)))
        return np.sort(places[0][places[0] >= 0]).astype(np.int64)


def _damaged(path: Path) -> ModelError:
    """The error for a file whose checksum is right but whose content cannot be that of an index."""
    return ModelError(f"{path}: is not a file of an index; {REBUILD}")


def _read_array(path: Path, dtype: Any) -> np.ndarray:
    """A list of numbers, mapped from its file."""
    try:
        found = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, SyntaxError, TypeError, OverflowError, TokenError):
        raise _damaged(path) from None
    if found.ndim != 1 or found.dtype != dtype or not len(found):
        raise _damaged(path)
    return found


def build_index(
    folder: str | Path,
    model: BiLM,
    sentences: Iterable[str | Sequence[str]],
    *,
    dtype: DTypes = "int8",
    source: str | None = None,
    inverted_from: int = INVERTED_FROM,
    overwrite: bool = False,
    progress: Callable[[int], object] | None = None,
) -> OccurrenceIndex:
    """Write the words of sentences with their vectors to a new folder; with `overwrite`, in place of an older one that
    relmo made. `source` is the name or path of the model, so that `relmo analyse meaning` can load it for searches.
    `progress` is called with the number of words so far."""
    folder = Path(folder)
    if dtype not in DTYPES:
        raise SettingError(f"dtype is {dtype!r}; it can be {' or '.join(DTYPES)}")
    with new_folder(folder, overwrite=overwrite, ours=OURS) as inside:
        count = _write_vectors(inside, model, sentences, dtype, progress)
        about: dict[str, Any] = {
            "model": bilm_digest(model),
            "layers": model.network.layer_count,
            "size": model.network.size,
        }
        if source is not None:
            about["source"] = full_source(source)
        index = OccurrenceIndex(inside, about | {"words": count, "dtype": dtype, "files": {}})
        checks = [_write_checks(index, layer) for layer in range(index.layers)]
        names = ["words.txt", "tokens.npy", "starts.npy", *checks]
        index.about["files"] |= {name: fingerprint(inside / name) for name in names}
        if count >= inverted_from and import_faiss() is not None:
            for layer in range(index.layers):
                _write_inverted(index, layer)
        write_json(inside / "index.json", sealed(index.about))
    return OccurrenceIndex.open(folder)


def _write_vectors(
    folder: Path,
    model: BiLM,
    sentences: Iterable[str | Sequence[str]],
    dtype: DTypes,
    progress: Callable[[int], object] | None,
) -> int:
    """Vectors, words and starts, as sentences come. -> how many words."""
    numbers: dict[str, int] = {}
    tokens: list[np.ndarray] = []
    starts, count = [0], 0
    with ExitStack() as stack:
        layers = range(model.network.layer_count)
        files = [stack.enter_context((folder / f"layer-{layer}.vectors").open("wb")) for layer in layers]
        scales = [stack.enter_context((folder / f"layer-{layer}.scale").open("wb")) for layer in layers]
        for group in _groups(sentences):
            words = [model.tokens(each) if isinstance(each, str) else list(each) for each in group]
            words = [each for each in words if each]
            for each, vectors in zip(words, model.embed(words), strict=True):  # (layers, n, D)
                ids = [numbers.setdefault(word, len(numbers)) for word in each]
                tokens.append(np.array(ids, dtype=np.int32))
                count += len(each)
                starts.append(count)
                for layer in layers:
                    rows, scale = quantised(unit(vectors[layer]), dtype)
                    files[layer].write(rows.tobytes())
                    scales[layer].write(scale.tobytes())
            if progress is not None:
                progress(count)
    if not count:
        raise CorpusError("the corpus is empty; give one with words in it")
    np.save(folder / "tokens.npy", np.concatenate(tokens))
    np.save(folder / "starts.npy", np.array(starts, dtype=np.int64))
    (folder / "words.txt").write_text("".join(escape(word) + "\n" for word in numbers), encoding="utf-8")
    return count


def _checksums(index: OccurrenceIndex, layer: int, blocks: Iterable[int]) -> Iterator[int]:
    """The checksums of some blocks of a layer's vectors, each with its scales."""
    stored, scales = index._stored(layer), index._scales(layer)
    for block in blocks:
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        yield crc32(stored[rows].tobytes(), crc32(scales[rows].tobytes()))


def _write_checks(index: OccurrenceIndex, layer: int) -> str:
    """The checksums of all blocks of a layer. -> the file's name"""
    blocks, name = range(-(-len(index) // BLOCK)), f"layer-{layer}.checks"
    np.fromiter(_checksums(index, layer, blocks), dtype="<u4").tofile(index.folder / name)
    return name


def _groups(sentences: Iterable[str | Sequence[str]]) -> Iterator[list[str | Sequence[str]]]:
    rest = iter(sentences)
    while group := list(islice(rest, SENTENCES)):
        yield group


def quantised(rows: np.ndarray, dtype: DTypes) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, D) as they are stored, and the scale (n,) of each: |x - q s| <= s / 2, with s = max |x| / 127."""
    if dtype == "float16":
        return rows.astype(np.float16), np.zeros(0, dtype=np.float32)
    scale = np.abs(rows).max(axis=1) / 127
    q = np.rint(rows / np.where(scale > 0, scale, 1)[:, None])
    return q.astype(np.int8), scale.astype(np.float32)


def import_faiss() -> Any:
    """The package faiss, or None."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def _write_inverted(index: OccurrenceIndex, layer: int) -> None:
    """A partition of a layer's vectors into about sqrt(N) * 4 cells, each vector in 8 bits a number."""
    faiss = import_faiss()
    count, size = len(index), int(index.about["size"])
    cells = max(1, min(int(4 * count**0.5), count // 40))
    inverted = faiss.index_factory(size, f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
    drawn = np.random.default_rng(0).choice(count, min(count, max(TRAINED_ON, 40 * cells)), replace=False)
    inverted.train(index.vectors(layer, np.sort(drawn)))
    for begin in range(0, count, AT_ONCE):
        inverted.add(index.vectors(layer, slice(begin, begin + AT_ONCE)))
    name = f"layer-{layer}.faiss"
    faiss.write_index(inverted, str(index.folder / name))
    index.about["files"][name] = fingerprint(index.folder / name)

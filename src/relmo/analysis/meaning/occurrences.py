"""Word meaning in context: the nearest occurrences of a word in a corpus by layer, and learned layer weights (Peters et
al. 2018, Deep contextualized word representations, Table 4 and Figure 2). The occurrences are in an index folder:

index.json        model (digest, source), number of words, layers, vector size, storage type, digests of other files
words.txt         distinct words, one per line
tokens.npy        for each word of the corpus its line in words.txt
starts.npy        first word of each sentence, and the end
layer-K.vectors   vectors of length 1: float16, or int8 with one scale per vector
layer-K.scale     scales of int8 vectors, float32
layer-K.checks    one checksum per 256 vectors and their scales, compared when the block is first read
layer-K.faiss     inverted file for large corpora, if faiss is installed (pip install 'relmo[index]')
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np

from relmo.analysis.core.show import Report, Table, format_number
from relmo.disk.files import check_file, check_regular, fingerprint, read_sealed, seal
from relmo.disk.outputs import new_folder
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.store.folder import write_json
from relmo.store.references import absolute_source, bilm_digest
from relmo.tasks.task import Task
from relmo.text.vocabulary import escape, unescape

DTypes = Literal["float16", "int8"]
DTYPES: tuple[DTypes, ...] = ("float16", "int8")
BATCH_ROWS = 1 << 15  # vectors compared together
BLOCK_ROWS = 256  # vectors per checksum
BATCH_SENTENCES = 256  # sentences embedded together
MIN_INVERTED = 200_000  # vectors from which faiss is used
MIN_TRAINING_ROWS = 100_000  # vectors that the partition of faiss is trained on
CANDIDATES = 20  # candidates of faiss per neighbour
INDEX_FILES = re.compile(r"index\.json|words\.txt|(tokens|starts)\.npy|layer-\d+\.(vectors|scale|faiss|checks)")
MAX_LAYERS = 1000
CONTEXT_WORDS = 8  # on each side of an occurrence
REBUILD = "build the index again"


def normalize(rows: np.ndarray) -> np.ndarray:
    """Return rows (n, D) scaled to length 1; zeros stay zeros."""
    rows = np.asarray(rows, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


class Nearest(NamedTuple):
    """Indices of the nearest words of a corpus, nearest first, and their cosines."""

    places: np.ndarray
    cosines: np.ndarray


@dataclass(frozen=True)
class OccurrenceIndex:
    """An index folder of a corpus, opened for searching."""

    folder: Path
    metadata: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> "OccurrenceIndex":
        """Open an index written by `build_index`; raises ModelError if a file is missing or has a wrong size."""
        folder = Path(folder)
        if not (folder / "index.json").exists():
            raise ModelError(f"{folder}: is not an index of a corpus; build one: relmo analyse meaning --build")
        index = cls(folder, read_sealed(folder / "index.json", REBUILD))
        sizes = [index.metadata.get(name) for name in ("words", "layers", "size")]
        valid = all(type(size) is int and 0 < size < 1 << 40 for size in sizes) and index.layers <= MAX_LAYERS
        if not valid or index.metadata.get("dtype") not in DTYPES or not isinstance(index.metadata.get("files"), dict):
            raise _damaged(folder / "index.json")
        is_int8, num_values = index.metadata["dtype"] == "int8", len(index) * int(index.metadata["size"])
        num_bytes = {"vectors": num_values * (1 if is_int8 else 2), "scale": 4 * len(index) if is_int8 else 0}
        for layer in range(index.layers):
            for suffix, size in num_bytes.items():
                path = folder / f"layer-{layer}.{suffix}"
                check_regular(path, REBUILD)
                if path.stat().st_size != size:
                    raise ModelError(f"{path}: its size differs from index.json; {REBUILD}")
        return index

    def __len__(self) -> int:
        return int(self.metadata["words"])

    @property
    def source(self) -> str | None:
        """Name or path of the model that the index was built with; None if it is not recorded."""
        source = self.metadata.get("source")
        return source if isinstance(source, str) and source else None

    @property
    def layers(self) -> int:
        """The number of layers."""
        return int(self.metadata["layers"])

    @cached_property
    def words(self) -> list[str]:
        """The distinct words."""
        path = self._check_digest("words.txt")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise _damaged(path) from None
        return [unescape(line, str(path)) for line in text.split("\n")[:-1]]

    @cached_property
    def tokens(self) -> np.ndarray:
        """The index in `words` of each word of the corpus; (N,)."""
        tokens = _read_array(self._check_digest("tokens.npy"), np.int32)
        if len(tokens) != len(self) or tokens.min() < 0 or tokens.max() >= len(self.words):
            raise _damaged(self.folder / "tokens.npy")
        return tokens

    @cached_property
    def starts(self) -> np.ndarray:
        """The first word of each sentence, and the end; (sentences + 1,)."""
        starts = _read_array(self._check_digest("starts.npy"), np.int64)
        if starts[0] != 0 or starts[-1] != len(self) or (np.diff(starts) < 1).any():
            raise _damaged(self.folder / "starts.npy")
        return starts

    def sentence(self, place: int) -> tuple[list[str], int]:
        """Return the sentence of a word of the corpus, and the position of the word in it."""
        number = int(np.searchsorted(self.starts, place, side="right")) - 1
        begin, end = self.starts[number : number + 2]
        return [self.words[i] for i in self.tokens[begin:end]], int(place - begin)

    def places_of(self, word: str) -> np.ndarray:
        """Return the corpus indices of a word, whatever its case."""
        same = [i for i, form in enumerate(self.words) if form.lower() == word.lower()]
        return np.flatnonzero(np.isin(self.tokens, same))

    def vectors(self, layer: int, places: np.ndarray | slice) -> np.ndarray:
        """Return the vectors of some words of the corpus; (n, D) float32, of length 1 up to rounding."""
        if isinstance(places, slice):
            begin, end, _ = places.indices(len(self))
            blocks = np.arange(begin // BLOCK_ROWS, -(-end // BLOCK_ROWS))
        else:
            blocks = np.unique(places // BLOCK_ROWS)
        checksums, verified = self._checksums
        blocks = blocks[~verified[layer, blocks]]
        for block, checksum in zip(blocks, _compute_checksums(self, layer, blocks), strict=True):
            if checksum != checksums[layer][block]:
                path = self.folder / f"layer-{layer}.vectors"
                raise ModelError(f"{path}: is damaged (a checksum does not match); {REBUILD}")
            verified[layer, block] = True
        stored, scales = self._map_layer(layer)
        rows = stored[places].astype(np.float32)
        if len(scales):
            rows *= scales[places][:, None]
        return rows

    def nearest(
        self, vector: np.ndarray, *, layer: int, k: int = 10, among: np.ndarray | None = None, without: Any = ()
    ) -> Nearest:
        """Return the k words of the corpus whose vectors have the largest cosine to a vector (D,), nearest first.
        `among` restricts the search to these indices; `without` excludes indices."""
        if not 0 <= layer < self.layers:
            raise SettingError(f"layer {layer}: the index has the layers 0 to {self.layers - 1}")
        banned = np.asarray(sorted(without), dtype=np.int64)
        path = self.folder / f"layer-{layer}.faiss"
        if among is None and path.exists() and (faiss := import_faiss()) is not None:
            cache = self.__dict__.setdefault("_inverted_by_layer", {})
            if layer not in cache:
                self._check_digest(path.name)
                try:
                    cache[layer] = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
                except RuntimeError:
                    raise _damaged(path) from None
            inverted = cache[layer]
            inverted.nprobe = max(8, inverted.nlist // 8)
            num_candidates = min(CANDIDATES * k + len(banned), len(self))
            _, candidates = inverted.search(normalize(vector[None]), num_candidates)
            among = np.sort(candidates[0][candidates[0] >= 0]).astype(np.int64)
        among = np.arange(len(self)) if among is None else among
        query, cosines = normalize(vector[None]), np.zeros(len(among), dtype=np.float32)
        for begin in range(0, len(among), BATCH_ROWS):
            batch = slice(begin, begin + BATCH_ROWS)
            cosines[batch] = (query @ normalize(self.vectors(layer, among[batch])).T)[0]
        is_allowed = ~np.isin(among, banned)
        among, cosines = among[is_allowed], cosines[is_allowed]
        best = np.argsort(-cosines, kind="stable")[:k]  # stable: earlier words win ties
        return Nearest(among[best], cosines[best])

    def _map_layer(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        shape, dtype = (len(self), int(self.metadata["size"])), self.metadata["dtype"]
        stored = np.memmap(self.folder / f"layer-{layer}.vectors", dtype, mode="r", shape=shape)
        if dtype != "int8":
            return stored, np.zeros(0, dtype=np.float32)
        return stored, np.memmap(self.folder / f"layer-{layer}.scale", np.float32, mode="r", shape=(len(self),))

    def _check_digest(self, name: str) -> Path:
        check_file(self.folder / name, self.metadata["files"].get(name), REBUILD)
        return self.folder / name

    @cached_property
    def _checksums(self) -> tuple[list[np.ndarray], np.ndarray]:
        """The checksums of each layer's blocks, and which of them were compared; (layers, blocks)."""
        verified = np.zeros((self.layers, -(-len(self) // BLOCK_ROWS)), dtype=bool)
        paths = [self._check_digest(f"layer-{layer}.checks") for layer in range(self.layers)]
        for path in paths:
            if path.stat().st_size != 4 * verified.shape[1]:
                raise _damaged(path)
        return [np.fromfile(path, dtype="<u4") for path in paths], verified


def _damaged(path: Path) -> ModelError:
    return ModelError(f"{path}: is not a file of an index; {REBUILD}")


def _read_array(path: Path, dtype: Any) -> np.ndarray:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, SyntaxError, TypeError, OverflowError, TokenError):
        raise _damaged(path) from None
    if array.ndim != 1 or array.dtype != dtype or not len(array):
        raise _damaged(path)
    return array


def build_index(
    folder: str | Path,
    model: BiLM,
    sentences: Iterable[str | Sequence[str]],
    *,
    dtype: DTypes = "int8",
    source: str | None = None,
    inverted_from: int = MIN_INVERTED,
    overwrite: bool = False,
    progress: Callable[[int], object] | None = None,
) -> OccurrenceIndex:
    """Write the words of sentences with their vectors to a new folder. `source` is the name or path of the model, from
    which `relmo analyse meaning` loads it for searches; `progress` is called with the number of words written."""
    folder = Path(folder)
    if dtype not in DTYPES:
        raise SettingError(f"dtype must be {' or '.join(DTYPES)}, not {dtype!r}")
    with new_folder(folder, overwrite=overwrite, ours=INDEX_FILES) as temporary:
        id_by_word: dict[str, int] = {}
        tokens: list[np.ndarray] = []
        starts, count, remaining = [0], 0, iter(sentences)
        with ExitStack() as stack:
            layers = range(model.network.layer_count)
            files = [stack.enter_context((temporary / f"layer-{layer}.vectors").open("wb")) for layer in layers]
            scale_files = [stack.enter_context((temporary / f"layer-{layer}.scale").open("wb")) for layer in layers]
            while group := list(islice(remaining, BATCH_SENTENCES)):
                batch = [model.tokens(sentence) if isinstance(sentence, str) else list(sentence) for sentence in group]
                batch = [words for words in batch if words]
                for words, vectors in zip(batch, model.embed(batch), strict=True):  # (layers, n, D)
                    tokens.append(np.array([id_by_word.setdefault(word, len(id_by_word)) for word in words], np.int32))
                    count += len(words)
                    starts.append(count)
                    for layer in layers:
                        rows, scale = quantize(normalize(vectors[layer]), dtype)
                        files[layer].write(rows.tobytes())
                        scale_files[layer].write(scale.tobytes())
                if progress is not None:
                    progress(count)
        if not count:
            raise CorpusError("The corpus has no words.")
        np.save(temporary / "tokens.npy", np.concatenate(tokens))
        np.save(temporary / "starts.npy", np.array(starts, dtype=np.int64))
        (temporary / "words.txt").write_text("".join(escape(word) + "\n" for word in id_by_word), encoding="utf-8")
        metadata: dict[str, Any] = {"model": bilm_digest(model)}
        metadata |= {"layers": model.network.layer_count, "size": model.network.size}
        if source is not None:
            metadata["source"] = absolute_source(source)
        index = OccurrenceIndex(temporary, metadata | {"words": count, "dtype": dtype, "files": {}})
        names = ["words.txt", "tokens.npy", "starts.npy"]
        for layer in range(index.layers):
            names.append(f"layer-{layer}.checks")
            blocks = range(-(-count // BLOCK_ROWS))
            np.fromiter(_compute_checksums(index, layer, blocks), dtype="<u4").tofile(temporary / names[-1])
        index.metadata["files"] |= {name: fingerprint(temporary / name) for name in names}
        faiss: Any = import_faiss() if count >= inverted_from else None
        for layer in range(index.layers) if faiss is not None else ():
            # a partition of the layer's vectors into about 4 * sqrt(N) cells, with 8 bits per number
            num_cells = max(1, min(int(4 * count**0.5), count // 40))
            size = int(index.metadata["size"])
            inverted = faiss.index_factory(size, f"IVF{num_cells},SQ8", faiss.METRIC_INNER_PRODUCT)
            num_sampled = min(count, max(MIN_TRAINING_ROWS, 40 * num_cells))
            sample = np.random.default_rng(0).choice(count, num_sampled, replace=False)
            inverted.train(index.vectors(layer, np.sort(sample)))
            for begin in range(0, count, BATCH_ROWS):
                inverted.add(index.vectors(layer, slice(begin, begin + BATCH_ROWS)))
            name = f"layer-{layer}.faiss"
            faiss.write_index(inverted, str(temporary / name))
            index.metadata["files"][name] = fingerprint(temporary / name)
        write_json(temporary / "index.json", seal(index.metadata))
    return OccurrenceIndex.open(folder)


def _compute_checksums(index: OccurrenceIndex, layer: int, blocks: Iterable[int]) -> Iterator[int]:
    stored, scales = index._map_layer(layer)
    for block in blocks:
        rows = slice(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS)
        yield crc32(stored[rows].tobytes(), crc32(scales[rows].tobytes()))


def quantize(rows: np.ndarray, dtype: DTypes) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (n, D) in the storage type, and their scales (n,): |x - q s| <= s / 2, with s = max |x| / 127."""
    if dtype == "float16":
        return rows.astype(np.float16), np.zeros(0, dtype=np.float32)
    scale = np.abs(rows).max(axis=1) / 127
    q = np.rint(rows / np.where(scale > 0, scale, 1)[:, None])
    return q.astype(np.int8), scale.astype(np.float32)


def import_faiss() -> Any:
    """Return the faiss module, or None if it is not installed."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss


class Occurrence(NamedTuple):
    """A word in a corpus: its sentence, its position there, its index in the corpus, its cosine to the query."""

    words: list[str]
    position: int
    place: int
    cosine: float

    @property
    def text(self) -> str:
        """The word in brackets with its context."""
        return format_context(self.words, self.position, CONTEXT_WORDS)


def format_context(words: Sequence[str], position: int, num_words: int) -> str:
    """Return the word at `position` in brackets with up to `num_words` words on each side."""
    begin, end = max(0, position - num_words), position + num_words + 1
    context = [*words[begin:position], f"[{words[position]}]", *words[position + 1 : end]]
    return " ".join([*(["…"] if begin else []), *context, *(["…"] if end < len(words) else [])])


@dataclass(frozen=True)
class Meaning(Report):
    """A word in its sentence, its nearest occurrences by layer, and the neighbours of its static vector."""

    words: list[str]
    position: int
    layers: list[list[Occurrence]]
    static: list[tuple[str, float]] | None = None

    def tables(self) -> list[Table]:
        """Return one table per layer and one of the static neighbours, without tables that have no rows."""
        query, tables = format_context(self.words, self.position, CONTEXT_WORDS), []
        for number, layer in enumerate(self.layers):
            title = f"layer {number}{'' if number else ' (without context)'}: {query}"
            rows = [[occurrence.text, format_number(occurrence.cosine)] for occurrence in layer]
            if rows:
                tables.append(Table(["occurrence", "cosine"], rows, title))
        if self.static:
            rows = [[word, format_number(cosine)] for word, cosine in self.static]
            tables.append(Table(["word", "cosine"], rows, "neighbours of the word's static vector"))
        return tables


def meaning(
    model: BiLM,
    index: OccurrenceIndex,
    sentence: str | Sequence[str],
    word: str | int,
    *,
    k: int = 10,
    same_word: bool = False,
    vectors: WordVectors | None = None,
) -> Meaning:
    """Return the k nearest occurrences of a word in each layer, without those in the same sentence of the corpus. In
    layer 0, without context, all occurrences of a word have the same vector.

    word         the word (its first occurrence is used) or its position from 0
    same_word    search only among other occurrences of the same word
    vectors      static vectors; their neighbours of the word are returned too
    """
    if index.metadata.get("model") != bilm_digest(model):
        other = "another model" if index.source is None else f"another model, {index.source}"
        raise ModelError(f"{index.folder}: was built with {other}; use that one, or build an index with this one")
    words = model.tokens(sentence) if isinstance(sentence, str) else list(sentence)
    if isinstance(word, str) and word not in words:
        raise SettingError(f"{word!r} is not among the words of the sentence: {' '.join(words)}")
    position = words.index(word) if isinstance(word, str) else word
    if not 0 <= position < len(words):
        raise SettingError(f"word {word}: the sentence has the words 0 to {len(words) - 1}")
    same = index.places_of(words[position])
    excluded = [place for place in same.tolist() if index.sentence(place)[0] == words]
    layers = []
    for layer, vector in enumerate(model.embed([words])[0][:, position]):  # (D,)
        nearest = index.nearest(vector, layer=layer, k=k, among=same if same_word else None, without=excluded)
        pairs = zip(nearest.places.tolist(), nearest.cosines.tolist(), strict=True)
        layers.append([Occurrence(*index.sentence(i), i, cosine) for i, cosine in pairs])
    static = None
    if vectors is not None:
        static = vectors.most_similar(words[position], topn=k) if words[position] in vectors else []
    return Meaning(words, position, layers, static)


class Mix(NamedTuple):
    """A scalar mix learned by a task: its place, the layer weights (which sum to one), and gamma."""

    name: str
    shares: list[float]
    gamma: float


def mix_weights(task: Task[Any, Any]) -> list[Mix]:
    """Return every scalar mix of a trained task's network; an empty list if it uses no ELMo."""
    return [Mix(name, *mix.values()) for name, mix in task.network.inputs.mix_weights().items()]


def mix_table(mixes: dict[str, list[Mix]]) -> Table:
    """Return a table with one row per mix of each task."""
    num_layers = max((len(mix.shares) for task_mixes in mixes.values() for mix in task_mixes), default=0)
    rows = []
    for task, task_mixes in mixes.items():
        for mix in task_mixes:
            shares = [format_number(share) for share in mix.shares] + [""] * (num_layers - len(mix.shares))
            rows.append([task, mix.name, *shares, format_number(mix.gamma)])
    columns = ["task", "mix", *(f"layer {layer}" for layer in range(num_layers)), "gamma"]
    return Table(columns, rows, "layer weights of tasks", ["weights sum to one; layer 0 is without context"])

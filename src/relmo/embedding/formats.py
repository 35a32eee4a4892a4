"""The files that `relmo embed` writes, from what is kept in OUT.partial, in bounded memory: a function a format."""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.disk.hdf5 import new_hdf5
from relmo.disk.parquet import import_pyarrow
from relmo.errors import StorageError
from relmo.text.sources import find_words

if TYPE_CHECKING:
    from relmo.embedding.files import PartialFolder, Sentence

ROW_GROUP_BYTES = 16 << 20
LARGEST_HEADER = 100_000_000  # what safetensors reads


def _write_hdf5(partial: "PartialFolder", path: Path) -> None:
    """A dataset a sentence, with its tokens and their offsets; and the index from sentences to numbers."""
    texts = bytearray()
    with new_hdf5(path, large_attributes=True) as new:
        for number, (sentence, array) in enumerate(partial.arrays()):
            texts += blake2b(sentence.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if not partial.layout.pooled:
                new.add(str(number), data=array)
                new.describe(str(number), **_attributes(partial, sentence))
            if number % 10_000 == 9_999:
                new.file.flush()
        if partial.layout.pooled:
            new.add("vectors", data=partial.matrix())
            if names := _names(partial):
                new.add("ids", data=np.array(names, dtype=object))
        new.file.flush()
        new.add("sentence_to_index", data=_sentence_index(partial, texts))
        new.file.attrs["relmo"] = json.dumps(partial.note)


def _attributes(partial: "PartialFolder", sentence: "Sentence") -> dict[str, Any]:
    """What stands beside the vectors of a sentence."""
    offsets = find_words(sentence.text, sentence.tokens, lowercase=partial.note["lowercase"])
    named = {} if sentence.name is None else {"id": sentence.name}
    return {"tokens": np.array(sentence.tokens, dtype=object), "offsets": offsets} | named


def _names(partial: "PartialFolder") -> list[str]:
    """The names of all sentences; none where there are none."""
    names = [sentence.name for sentence in partial.sentences()]
    return [name or "" for name in names] if any(name is not None for name in names) else []


def _sentence_index(partial: "PartialFolder", texts: bytes | bytearray) -> np.ndarray:
    """JSON from a sentence's text to its number, the last of equal ones, as one string; `texts` has the 16-byte digests
    by which to tell them. It is written to a file and mapped, as it is about as long as the input."""
    digests = np.frombuffer(texts, dtype="S16")
    _, first = np.unique(digests[::-1], return_index=True)  # counted from the end
    wanted = np.zeros(len(digests), dtype=bool)
    wanted[len(digests) - 1 - first] = True
    path = partial.folder / "index.json"
    with path.open("w", encoding="ascii") as file:
        for number, sentence in enumerate(partial.sentences()):
            if wanted[number]:
                file.write(f'{", " if file.tell() else "{"}{json.dumps(sentence.text)}: "{number}"')
        file.write("}")
    return np.memmap(path, dtype=f"S{path.stat().st_size}", mode="r", shape=(1,))


def _write_npz(partial: "PartialFolder", path: Path) -> None:
    """numpy's own archive, an array at a time."""
    arrays: Iterator[tuple[str, np.ndarray]] = ((str(i), array) for i, (_, array) in enumerate(partial.arrays()))
    if partial.layout.pooled:
        arrays = iter([("vectors", partial.matrix())])
    if names := _names(partial):
        arrays = chain(arrays, [("ids", np.array(names))])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _write_safetensors(partial: "PartialFolder", path: Path) -> None:
    """A header with all names and shapes, then the numbers just as they are."""
    layout = partial.layout
    kind = {"float32": "F32", "float16": "F16"}[layout.dtype]
    names = _names(partial)
    about = {"relmo": json.dumps(partial.note)} | ({"ids": json.dumps(names)} if names else {})
    entries = [f'"__metadata__":{json.dumps(about)}']
    start = 0

    def entry(name: str, shape: tuple[int, ...], stop: int) -> str:
        return f'"{name}":{{"dtype":"{kind}","shape":{list(shape)},"data_offsets":[{start},{stop}]}}'

    if layout.pooled:
        entries.append(entry("vectors", partial.matrix().shape, partial.vectors.stat().st_size))
    else:
        for number, sentence in enumerate(partial.sentences()):
            tokens = len(sentence.tokens)
            entries.append(entry(str(number), layout.shape(tokens), start + layout.size(tokens)))
            start += layout.size(tokens)
    text = f"{{{','.join(entries)}}}".encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LARGEST_HEADER:
        raise StorageError(
            f"{partial.out}: {partial.count:,} sentences are more than .safetensors can name; remove {partial.folder} "
            "and write .h5 or .parquet"
        )
    with path.open("wb") as file, partial.vectors.open("rb") as vectors:
        file.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(vectors, file, 1 << 20)


def _write_parquet(partial: "PartialFolder", path: Path) -> None:
    """A row a token, or of pooled vectors a row a sentence, in groups of rows."""
    pyarrow, layout = import_pyarrow(), partial.layout
    width = (layout.layers or 1) * layout.dim
    names = list(_columns(partial))
    vector = pyarrow.list_(pyarrow.from_numpy_dtype(np.dtype(layout.dtype)), width)
    kinds = {"line": pyarrow.int64(), "vector": vector} | dict.fromkeys(("position", "start", "end"), pyarrow.int32())
    schema = pyarrow.schema(
        [(name, kinds.get(name, pyarrow.string())) for name in names],
        metadata={"layers": str(layout.layers or 1), "dim": str(layout.dim), "relmo": json.dumps(partial.note)},
    )
    with pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=["text" if layout.pooled else "token"]) as writer:
        for columns in _row_groups(partial):
            *plain, vectors = columns.values()
            values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.concatenate(vectors)), width)
            arrays = [pyarrow.array(column, type=schema.types[i]) for i, column in enumerate(plain)]
            writer.write_table(pyarrow.table([*arrays, values], schema=schema))


def _columns(partial: "PartialFolder") -> dict[str, list[Any]]:
    """The columns of the table by name, empty; `id` where the first sentence has a name."""
    first = next(partial.sentences())
    names = (
        ["line", "text", "vector"] if partial.layout.pooled else ["line", "position", "token", "start", "end", "vector"]
    )
    return {name: [] for name in [*([] if first.name is None else ["id"]), *names]}


def _row_groups(partial: "PartialFolder") -> Iterator[dict[str, list[Any]]]:
    """The columns of the table, in pieces of about ROW_GROUP_BYTES."""
    pooled = partial.layout.pooled
    columns = _columns(partial)
    held = 0
    for number, (sentence, array) in enumerate(partial.arrays(), start=partial.first):
        rows = 1 if pooled else len(sentence.tokens)
        array = array if pooled or array.ndim == 2 else array.swapaxes(0, 1)
        columns["line"] += [number] * rows
        if "id" in columns:
            columns["id"] += [sentence.name] * rows
        if pooled:
            columns["text"].append(sentence.text)
        else:
            offsets = find_words(sentence.text, sentence.tokens, lowercase=partial.note["lowercase"])
            columns["position"] += range(rows)
            columns["token"] += sentence.tokens
            columns["start"] += offsets[:, 0].tolist()
            columns["end"] += offsets[:, 1].tolist()
        columns["vector"].append(array.reshape(-1))
        held += array.nbytes
        if held > ROW_GROUP_BYTES:
            yield columns
            columns, held = {name: [] for name in columns}, 0
    if columns["line"]:
        yield columns


WRITERS: dict[str, Callable[["PartialFolder", Path], None]] = {
    ".h5": _write_hdf5,
    ".hdf5": _write_hdf5,
    ".parquet": _write_parquet,
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
}
"""What each ending of a file's name is written by."""

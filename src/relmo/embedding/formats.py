"""Writers of the output files of `relmo embed` from OUT.partial, in bounded memory, one function per format.

Sentences are numbered from 0 by the lines of the input (a blank line is a sentence without tokens); in CoNLL-U, by its
sentences. Arrays "0", "1", … are (layers, tokens, dim), or (tokens, dim) of one layer; in .parquet there is one row per
token. With pooling, one array `vectors` has (sentences, dim) or (sentences, layers, dim), and .parquet one row per
sentence. Row names of a table are a column or attribute `id`, an array `ids`, or `ids` in the metadata, as JSON.
`sentence_to_index` in .h5 is that of `allennlp elmo`: from a line's text to its number, the last of equal ones.
"""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.disk.files import import_pyarrow
from relmo.disk.outputs import create_hdf5
from relmo.errors import StorageError
from relmo.text.sources import find_words

if TYPE_CHECKING:
    from relmo.embedding.files import PartialFolder

ROW_GROUP_BYTES = 16 << 20
MAX_HEADER_BYTES = 100_000_000  # limit of safetensors


def _fill_names(names: Sequence[str | None]) -> list[str]:
    """Return the names of sentences, "" for missing ones; an empty list if all are missing."""
    return [name or "" for name in names] if any(name is not None for name in names) else []


def _write_hdf5(partial: "PartialFolder", path: Path) -> None:
    """Write one dataset per sentence, with its tokens and their offsets; and the index from sentences to numbers."""
    digests = bytearray()
    names: list[str | None] = []
    with create_hdf5(path, large_attributes=True) as new:
        for number, (sentence, array) in enumerate(partial.arrays()):
            digests += blake2b(sentence.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if not partial.pooling:
                offsets = find_words(sentence.text, sentence.tokens, lowercase=partial.note["lowercase"])
                attributes: dict[str, Any] = {"tokens": np.array(sentence.tokens, dtype=object), "offsets": offsets}
                if sentence.name is not None:
                    attributes["id"] = sentence.name
                new.add(str(number), attributes=attributes, data=array)
            else:
                names.append(sentence.name)
            if number % 10_000 == 9_999:
                new.file.flush()
        if partial.pooling:
            new.add("vectors", data=partial.matrix())
            if ids := _fill_names(names):
                new.add("ids", data=np.array(ids, dtype=object))
        new.file.flush()
        # The index is about as long as the input: it is written to a file and memory-mapped.
        _, from_end = np.unique(np.frombuffer(digests, dtype="S16")[::-1], return_index=True)
        is_last = np.zeros(partial.count, dtype=bool)
        is_last[partial.count - 1 - from_end] = True
        index = partial.folder / "index.json"
        with index.open("w", encoding="ascii") as file:
            for number, sentence in enumerate(partial.sentences()):
                if is_last[number]:
                    file.write(f'{", " if file.tell() else "{"}{json.dumps(sentence.text)}: "{number}"')
            file.write("}")
        text = np.memmap(index, dtype=f"S{index.stat().st_size}", mode="r", shape=(1,))
        new.add("sentence_to_index", data=text)
        new.file.attrs["relmo"] = json.dumps(partial.note)


def _write_npz(partial: "PartialFolder", path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:

        def write(name: str, array: np.ndarray) -> None:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)

        if partial.pooling:
            write("vectors", partial.matrix())
            names = [sentence.name for sentence in partial.sentences()]
        else:
            names = []
            for number, (sentence, array) in enumerate(partial.arrays()):
                write(str(number), array)
                names.append(sentence.name)
        if ids := _fill_names(names):
            write("ids", np.array(ids))


def _write_safetensors(partial: "PartialFolder", path: Path) -> None:
    """Write a header with all names and shapes, then the numbers as they are."""
    dtype = {"float32": "F32", "float16": "F16"}[partial.dtype]
    stop, arrays = 0, []
    names: list[str | None] = []
    for number, sentence in enumerate(partial.sentences()):
        names.append(sentence.name)
        if not partial.pooling:
            start, stop = stop, stop + partial.size(len(sentence.tokens))
            arrays.append((str(number), list(partial.shape(len(sentence.tokens))), start, stop))
    if partial.pooling:
        arrays.append(("vectors", list(partial.matrix().shape), 0, partial.vectors.stat().st_size))
    ids = _fill_names(names)
    metadata = {"relmo": json.dumps(partial.note)} | ({"ids": json.dumps(ids)} if ids else {})
    entries = [f'"__metadata__":{json.dumps(metadata)}']
    for name, shape, start, stop in arrays:
        entries.append(f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{stop}]}}')
    header = f"{{{','.join(entries)}}}".encode()
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER_BYTES:
        raise StorageError(
            f"{partial.out}: {partial.count:,} sentences are too many for .safetensors; remove {partial.folder} "
            "and write .h5 or .parquet"
        )
    with path.open("wb") as file, partial.vectors.open("rb") as vectors:
        file.write(len(header).to_bytes(8, "little") + header)
        shutil.copyfileobj(vectors, file, 1 << 20)


def _write_parquet(partial: "PartialFolder", path: Path) -> None:
    """Write one row per token, or per sentence of pooled vectors, in row groups; `id` if the first sentence has one."""
    pyarrow, layers = import_pyarrow(), partial.layers or 1
    names = ["line", "text", "vector"] if partial.pooling else ["line", "position", "token", "start", "end", "vector"]
    if next(partial.sentences()).name is not None:
        names.insert(0, "id")
    width = layers * partial.dim
    vector = pyarrow.list_(pyarrow.from_numpy_dtype(np.dtype(partial.dtype)), width)
    types = {"line": pyarrow.int64(), "vector": vector} | dict.fromkeys(("position", "start", "end"), pyarrow.int32())
    schema = pyarrow.schema(
        [(name, types.get(name, pyarrow.string())) for name in names],
        metadata={"layers": str(layers), "dim": str(partial.dim), "relmo": json.dumps(partial.note)},
    )
    with pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=["text" if partial.pooling else "token"]) as writer:
        for columns in _row_groups(partial, names):
            *scalars, vectors = columns.values()
            values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.concatenate(vectors)), width)
            arrays = [pyarrow.array(column, type=schema.types[i]) for i, column in enumerate(scalars)]
            writer.write_table(pyarrow.table([*arrays, values], schema=schema))


def _row_groups(partial: "PartialFolder", names: list[str]) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of the table in row groups of about ROW_GROUP_BYTES."""
    columns: dict[str, list[Any]] = {name: [] for name in names}
    group_bytes = 0
    for number, (sentence, array) in enumerate(partial.arrays(), start=partial.start):
        rows = 1 if partial.pooling else len(sentence.tokens)
        array = array if partial.pooling or array.ndim == 2 else array.swapaxes(0, 1)
        columns["line"] += [number] * rows
        if "id" in columns:
            columns["id"] += [sentence.name] * rows
        if partial.pooling:
            columns["text"].append(sentence.text)
        else:
            offsets = find_words(sentence.text, sentence.tokens, lowercase=partial.note["lowercase"])
            columns["position"] += range(rows)
            columns["token"] += sentence.tokens
            columns["start"] += offsets[:, 0].tolist()
            columns["end"] += offsets[:, 1].tolist()
        columns["vector"].append(array.reshape(-1))
        group_bytes += array.nbytes
        if group_bytes > ROW_GROUP_BYTES:
            yield columns
            columns, group_bytes = {name: [] for name in names}, 0
    if columns["line"]:
        yield columns


WRITERS: dict[str, Callable[["PartialFolder", Path], None]] = {
    ".h5": _write_hdf5,
    ".hdf5": _write_hdf5,
    ".parquet": _write_parquet,
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
}
"""Writers by suffix."""

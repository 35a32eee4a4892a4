"""Checkpoints of bilm-tf, the original trainer: options.json, vocabulary and TensorFlow's files, read as data.

NAME.index is a table (the SSTable of LevelDB) from names of tensors to descriptions, which are protocol buffers; the
numbers are in NAME.data-00000-of-00001. `checkpoint` names the latest one. A checkpoint has the output layer, which
the .hdf5 of a published model lacks.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from relmo.disk.archive import Member
from relmo.disk.files import is_file
from relmo.errors import ModelError, describe_os_error
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.softmax import FullSoftmax
from relmo.settings.bilm import BiLMSettings
from relmo.store.original import OPTIONS, layout, load_json, make_unallocated, parse_options
from relmo.text.vocabulary import SentenceVocabulary

INDEX, LATEST, VOCABULARIES = ".index", "checkpoint", "vocab*.txt"
SOFTMAX = ("softmax/W", "softmax/b")
MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER, TRAILER, FLOAT = 48, 5, 1  # bytes at the end of a table and of a block; number of float32
MAX_INDEX_BYTES, MAX_TENSORS, MAX_NAME = 1 << 24, 10_000, 1 << 16
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types of protocol buffers
RENAMED = (  # names in a checkpoint and in the .hdf5
    (r"^lm/", ""),
    (r"/rnn/", "/RNN/"),
    (r"/multi_rnn_cell/", "/MultiRNNCell/"),
    (r"/cell_", "/Cell"),
    (r"/lstm_cell/projection/kernel$", "/LSTMCell/W_P_0"),
    (r"/lstm_cell/kernel$", "/LSTMCell/W_0"),
    (r"/lstm_cell/bias$", "/LSTMCell/B"),
)


class Entry(NamedTuple):
    """Place of a tensor in the data files."""

    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int


def is_checkpoint(source: str | Path) -> bool:
    """Return whether this is a folder with options and a checkpoint."""
    folder = Path(source)
    return is_file(folder / OPTIONS) and any(folder.glob(f"*{INDEX}"))


def read_checkpoint(source: str | Path) -> tuple[BiLMNetwork, BiLMSettings, SentenceVocabulary | None]:
    """Read the latest checkpoint of a folder; without a vocabulary file, there is no output layer."""
    folder = Path(source)
    settings = parse_options(load_json(Member(folder / OPTIONS)), str(folder / OPTIONS))
    index = find_latest(folder)
    try:
        entries = {rename(name): entry for name, entry in read_index(index)}
    except (LookupError, TypeError, ValueError, OSError) as error:
        raise ModelError(f"{index}: is not the index of a checkpoint ({describe_os_error(error)})") from error
    network = make_unallocated(settings.model, f"{index}: the options")
    for dataset in layout(network):
        check(index, dataset.names, dataset.shape, entries)
    network = network.to_empty(device="cpu")
    with torch.no_grad():
        for dataset in layout(network):
            values = read_tensor(index, entries, dataset.names)
            for part, view in dataset.parts:
                view.copy_(torch.from_numpy(values[part]))
        vocabulary = None
        if files := sorted(folder.glob(VOCABULARIES)):
            vocabulary = SentenceVocabulary.load(files[0])
            size = settings.model.projection
            for name, shape in zip(SOFTMAX, ((len(vocabulary), size), (len(vocabulary),)), strict=True):
                check(index, (name,), shape, entries)
            network.softmax, network.vocab_size = FullSoftmax(size, len(vocabulary)), len(vocabulary)
            for name, weight in zip(SOFTMAX, (network.softmax.weight, network.softmax.bias), strict=True):
                weight.copy_(torch.from_numpy(read_tensor(index, entries, (name,))))
    return network.eval(), settings, vocabulary


def find_latest(folder: Path) -> Path:
    """Return the index of the checkpoint that the file `checkpoint` names, by default of the one with most steps."""
    latest = folder / LATEST
    name = None
    if is_file(latest):
        with latest.open(encoding="utf-8", errors="replace") as file:
            name = re.match(r'model_checkpoint_path: "(.*)"', file.read(MAX_NAME))
    if name is not None:
        return folder / (Path(name[1].replace("\\", "/")).name + INDEX)
    return max(folder.glob(f"*{INDEX}"), key=lambda path: [int(digits) for digits in re.findall(r"\d+", path.name)])


def rename(name: str) -> str:
    """Return the name of a tensor in the .hdf5."""
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def check(index: Path, names: tuple[str, ...], shape: tuple[int, ...], entries: dict[str, Entry]) -> None:
    """Raise `ModelError` if a tensor is missing or has another shape or place than expected."""
    entry = next((entries[name] for name in names if name in entries), None)
    if entry is None:
        raise ModelError(f"{index}: has no tensor {names[0]}")
    if entry.shape != shape or entry.size != 4 * math.prod(shape):
        raise ModelError(f"{index}: the shape of {names[0]} is {entry.shape}, by the options {shape}")
    path = find_shard(index, entry.shard)
    if not is_file(path) or path.stat().st_size < entry.offset + entry.size:
        raise ModelError(f"{path}: is missing or truncated; restore it from a copy")


def find_shard(index: Path, shard: int) -> Path:
    """Return the data file of this number."""
    candidates = sorted(index.parent.glob(f"{index.name.removesuffix(INDEX)}.data-{shard:05d}-of-*"))
    return candidates[0] if candidates else index.with_suffix(f".data-{shard:05d}")


def read_tensor(index: Path, entries: dict[str, Entry], names: tuple[str, ...]) -> np.ndarray:
    """Return the numbers of a tensor."""
    entry = next(entries[name] for name in names if name in entries)
    path = find_shard(index, entry.shard)
    with path.open("rb") as file:
        file.seek(entry.offset)
        values = np.frombuffer(file.read(entry.size), dtype="<f4").reshape(entry.shape)
    if not np.isfinite(values).all():
        raise ModelError(f"{path}: {names[0]} has values that are not finite numbers")
    return values.copy()


def read_index(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the names of all float32 tensors of a checkpoint and their places."""
    if path.stat().st_size > MAX_INDEX_BYTES:
        raise ValueError("it is too large")
    table = path.read_bytes()
    if table[-len(MAGIC) :] != MAGIC:
        raise ValueError("it has another format")
    _, _, start, size, _ = read_varints(table[-FOOTER:], 0, 4)  # of two blocks: metadata, and the list of blocks
    count = 0
    for _, handle in read_block(table, start, size):
        offset, size, _ = read_varints(handle, 0, 2)
        for name, value in read_block(table, offset, size):
            count += 1
            if count > MAX_TENSORS:
                raise ValueError("it has too many tensors")
            fields = read_message(value)
            if not name or fields.get(1) != [FLOAT] or 7 in fields:  # 7: slices of a partitioned variable
                continue
            shapes = [dim for shape in fields.get(2, []) for dim in read_message(shape).get(2, [])]
            dims = [read_message(dim).get(1, [0])[0] for dim in shapes]
            place = [fields.get(number, [0])[0] for number in (3, 4, 5)]
            if not all(isinstance(number, int) for number in (*dims, *place)):
                raise ValueError("a description is broken")
            yield name.decode(), Entry(tuple(dims), *place)


def read_block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block; each key starts with a part of the one before."""
    block = table[offset : offset + size + TRAILER]
    if len(block) != size + TRAILER or block[size]:
        raise ValueError("a block is truncated or compressed")
    end = size - 4 - 4 * int.from_bytes(block[size - 4 : size], "little")
    key, position = b"", 0
    while position < end:
        shared, unshared, length, position = read_varints(block, position, 3)
        key = key[:shared] + block[position : position + unshared]
        position += unshared + length
        yield key, block[position - length : position]


def read_varints(data: bytes, position: int, count: int) -> list[int]:
    """Return numbers that are stored in groups of seven bits, the lowest first, and the position after them."""
    numbers = []
    for _ in range(count):
        value, shift = 0, 0
        while (byte := data[position]) >= 128 and shift < 63:
            value |= (byte & 127) << shift
            position, shift = position + 1, shift + 7
        if byte >= 128:
            raise ValueError("a number is too long")
        numbers.append(value | byte << shift)
        position += 1
    return [*numbers, position]


def read_message(data: bytes) -> dict[int, list[Any]]:
    """Return the values of a protocol buffer by the numbers of their fields."""
    fields: dict[int, list[Any]] = {}
    value: Any
    position = 0
    while position < len(data):
        tag, position = read_varints(data, position, 1)
        wire_type = tag & 7
        if wire_type == VARINT:
            value, position = read_varints(data, position, 1)
        elif wire_type in (FIXED64, BYTES, FIXED32):
            size = {FIXED64: 8, FIXED32: 4}.get(wire_type)
            if size is None:
                size, position = read_varints(data, position, 1)
            value, position = data[position : position + size], position + size
        else:
            raise ValueError("a field has an unknown type")
        fields.setdefault(tag >> 3, []).append(value)
    return fields

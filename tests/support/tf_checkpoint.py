"""Writes checkpoints as TensorFlow's Saver does: a table of names in one file, the numbers in another."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np


def write_checkpoint(original: Path, folder: Path, *, words: list[str], step: int = 12) -> dict[str, np.ndarray]:
    """Write a checkpoint with the weights of original files and a random output layer, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    options = json.loads((original / "options.json").read_text())
    (folder / "options.json").write_text(json.dumps(options))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    tensors: dict[str, np.ndarray] = {}
    with h5py.File(original / "weights.hdf5") as file:
        file.visititems(lambda name, node: tensors.update({name: node[()]} if isinstance(node, h5py.Dataset) else {}))
    random = np.random.default_rng(3)
    size = options["lstm"]["projection_dim"]
    softmax = {"W": random.normal(size=(len(words), size)), "b": random.normal(size=len(words))}
    softmax = {name: values.astype("float32") for name, values in softmax.items()}
    variables = {tensorflow_name(name): values for name, values in tensors.items()}
    variables |= {f"lm/softmax/{name}": values for name, values in softmax.items()}
    prefix = f"model.ckpt-{step}"
    write_bundle(folder / prefix, variables | {"global_step": np.array(step, dtype="int64")})
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "/elsewhere/{prefix}"\n')
    return softmax


def tensorflow_name(name: str) -> str:
    """Return the name in a checkpoint of a dataset of the .hdf5."""
    name = name.replace("/RNN/", "/rnn/").replace("/MultiRNNCell/", "/multi_rnn_cell/").replace("/Cell", "/cell_")
    name = name.replace("W_P_0", "projection/kernel") if "W_P_0" in name else re.sub("W_0$", "kernel", name)
    return "lm/" + re.sub("/B$", "/bias", name).replace("LSTMCell", "lstm_cell")


def varint(number: int) -> bytes:
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def block(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a block in which each key is shortened by what it has in common with the one before."""
    data, before = b"", b""
    for key, value in pairs:
        shared = next(
            (i for i, (a, b) in enumerate(zip(key, before, strict=False)) if a != b), min(len(key), len(before))
        )
        data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return data + (0).to_bytes(4, "little") + (1).to_bytes(4, "little")


def write_bundle(prefix: Path, tensors: dict[str, np.ndarray]) -> None:
    entries, numbers = [(b"", field(1, 1))], b""
    for name in sorted(tensors):
        values = tensors[name]
        shape = b"".join(field(2, field(1, size)) for size in values.shape)
        kind = {"float32": 1, "int64": 9}[values.dtype.name]
        value = field(1, kind) + field(2, shape) + field(4, len(numbers)) + field(5, values.nbytes)
        entries.append((name.encode(), value + b"\x35\0\0\0\0"))  # a checksum, which is not read
        numbers += values.tobytes()
    table, handles = b"", []
    for start in range(0, len(entries), 5):
        part = block(entries[start : start + 5])
        handles.append((entries[min(start + 4, len(entries) - 1)][0], varint(len(table)) + varint(len(part))))
        table += part + bytes(5)
    positions = []
    for part in (block([]), block(handles)):
        positions.append(varint(len(table)) + varint(len(part)))
        table += part + bytes(5)
    footer = b"".join(positions)
    table += footer + bytes(40 - len(footer)) + (0xDB4775248B80FB57).to_bytes(8, "little")
    Path(f"{prefix}.index").write_bytes(table)
    Path(f"{prefix}.data-00000-of-00001").write_bytes(numbers)

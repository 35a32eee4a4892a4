"""Tensors saved by `torch.save`, read as data: no code in the file is run.

Such a file is a pickle, a program for a stack machine, and next to it the numbers. Since torch 1.6 it is a zip archive
with `data.pkl` and a member for each storage. Before, it was five pickles (a magic number, a version, facts on the
machine, the dictionary, the storages' keys), then each storage: its length in eight bytes, and its numbers.
"""

# Not torch.load(weights_only=True, mmap=True), tried with torch 2.13: a file of 602 bytes with nested tuples as a key
# did not end in 30 s, since their hash takes exponential time. mmap does not support the old layout, in which
# ELMoForManyLangs and old AllenNLP models are stored; there torch allocates the sizes that the file declares before it
# has seen the numbers. Up to torch 2.5 weights_only could be made to run code (CVE-2025-32434).

import math
import pickletools
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from relmo.disk.archive import Member, open_zip
from relmo.errors import ModelError, describe_os_error, quote

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_MAX_INSTRUCTIONS = 1_000_000  # a model has some hundreds
_TYPES: dict[str, np.dtype[Any]] = {
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "DoubleStorage": np.dtype("<f8"),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}
_FORMAT_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError, OSError, MemoryError)


class _Name(NamedTuple):
    """Global name in a pickle, which is never imported."""

    module: str
    name: str


class _Storage(NamedTuple):
    dtype: np.dtype[Any]
    key: str
    numel: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class StoredTensor(NamedTuple):
    """Shape of a tensor in a file, and a function that reads its numbers."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


StorageReader = Callable[[], bytes]


def read_state_dict(path: Path, where: str | None = None) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name. Errors call the file `where`."""
    where = str(path) if where is None else where
    storages: dict[str, StorageReader]
    try:
        if zipfile.is_zipfile(path):
            with open_zip(path) as archive:
                members = {info.filename: Member(path, info) for info in archive.infolist()}
            (pickle_name,) = [name for name in members if name.endswith("/data.pkl")] or [""]
            if not pickle_name:
                raise ValueError("the archive has no data.pkl")
            prefix = f"{pickle_name.removesuffix('data.pkl')}data/"
            tensors = _PickleReader().run(BytesIO(members[pickle_name].read()))
            storages = {name.removeprefix(prefix): m.read for name, m in members.items() if name.startswith(prefix)}
        else:
            with path.open("rb") as file:
                if _PickleReader().run(file) != _MAGIC or _PickleReader().run(file) != _VERSION:
                    raise ValueError("it has another header")
                _PickleReader().run(file)
                reader = _PickleReader()
                tensors = reader.run(file)
                storages = {}
                for key in _PickleReader().run(file):
                    storage = reader.storages[key]
                    numel = int.from_bytes(file.read(8), "little")
                    if numel != storage.numel:
                        raise ValueError(f"storage {quote(key)} has {numel:,} numbers, not {storage.numel:,}")
                    storages[key] = partial(_read_range, path, file.tell(), numel * storage.dtype.itemsize)
                    file.seek(numel * storage.dtype.itemsize, 1)
                if file.tell() > path.stat().st_size:
                    raise ValueError("it is truncated")
        if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
            raise ValueError("it holds no dictionary of tensors")
        return {name: _make_stored(name, tensor, storages, where) for name, tensor in tensors.items()}
    except ModelError:
        raise
    except _FORMAT_ERRORS as error:
        raise ModelError(f"{where}: is not a file of tensors saved by torch ({describe_os_error(error)})") from error


def _read_range(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def _make_stored(name: str, tensor: Any, storages: dict[str, StorageReader], where: str) -> StoredTensor:
    """Check that a tensor lies within its storage."""
    if not isinstance(tensor, _Tensor):
        raise ValueError(f"{quote(name)} is not a tensor")
    (dtype, key, numel), offset, shape, strides = tensor
    if not all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)) or len(shape) != len(strides):
        raise ValueError(f"the shape of {quote(name)} is broken")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    size: int = math.prod(shape)
    if size > numel or (size and last >= numel):
        raise ValueError(f"{quote(name)} is larger than its storage")
    if key not in storages:
        raise ValueError(f"the numbers of {quote(name)} are missing")

    def read() -> np.ndarray:
        contents = storages[key]()
        if len(contents) != numel * dtype.itemsize:
            raise ModelError(f"{where}: the numbers of {quote(name)} are truncated; restore it from a copy")
        flat = np.frombuffer(contents, dtype=dtype)
        byte_strides = [stride * dtype.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(flat[offset:], shape, byte_strides, writeable=False)

    return StoredTensor(shape, read)


class _PickleReader:
    """Interpreter of the pickle instructions that a dictionary of tensors needs; any other is an error."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, _Storage] = {}

    def run(self, file: IO[bytes]) -> Any:
        """Return the value of the pickle at the position of a file, and leave the file after it."""
        stack = self.stack
        argument: Any
        for step, (operation, argument, _) in enumerate(pickletools.genops(file)):
            name = operation.name
            if step > _MAX_INSTRUCTIONS:
                raise ValueError("it has too many instructions")
            if name == "STOP":
                return stack.pop()
            if name in ("PROTO", "FRAME"):
                continue
            if name in _VALUES:
                stack.append(argument)
            elif name in _FACTORIES:
                stack.append(_FACTORIES[name]())
            elif name == "GLOBAL":
                stack.append(_Name(*argument.split(" ", 1)))
            elif name == "MARK":
                self.marks.append(len(stack))
            elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
                self.memo[len(self.memo) if argument is None else argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(self.memo[argument])
            elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
                stack.append(tuple(self._pop(None if name == "TUPLE" else int(name[-1]))))
            elif name in ("APPEND", "APPENDS"):
                values = self._pop(1 if name == "APPEND" else None)
                stack[-1].extend(values)
            elif name in ("SETITEM", "SETITEMS"):
                values = self._pop(2 if name == "SETITEM" else None)
                stack[-1].update(_string_dict(zip(values[::2], values[1::2], strict=True)))
            elif name == "BINPERSID":  # ("storage", type, key, location, numel, …)
                identity = stack.pop()
                if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
                    raise ValueError("it holds more than tensors")
                _, kind, key, _, numel, *view = identity
                if not isinstance(kind, _Name) or kind.name not in _TYPES or view not in ([], [None]):
                    raise ValueError("it has numbers of an unsupported type; floats, integers and bools are supported")
                if not isinstance(key, str) or type(numel) is not int or numel < 0:
                    raise ValueError("a storage is broken")
                stack.append(self.storages.setdefault(key, _Storage(_TYPES[kind.name], key, numel)))
            elif name == "REDUCE":
                function, arguments = self._pop(2)
                match function:
                    case _Name("collections", "OrderedDict"):
                        stack.append(_string_dict(*arguments) if arguments else {})
                    case _Name("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor"):
                        storage, offset, shape, strides = arguments[:4]
                        is_valid = isinstance(storage, _Storage)
                        if not is_valid or not isinstance(shape, tuple) or not isinstance(strides, tuple):
                            raise ValueError("a tensor is broken")
                        stack.append(_Tensor(storage, offset, shape, strides))
                    case _Name("torch._utils", "_rebuild_parameter"):
                        stack.append(arguments[0])
                    case _Name(module, attribute):
                        raise ValueError(f"it asks for {quote(f'{module}.{attribute}')}, which tensors do not need")
                    case _:
                        raise ValueError("it calls something that is not a function")
            elif name == "BUILD":  # attributes of an OrderedDict: torch's version notes
                stack.pop()
            else:
                raise ValueError(f"it has the instruction {name}, which tensors do not need")
        raise ValueError("it ends too early")

    def _pop(self, count: int | None) -> list[Any]:
        """Pop `count` values, by default all above the last mark."""
        start = self.marks.pop() if count is None else len(self.stack) - count
        if start < 0:
            raise ValueError("it pops more than the stack holds")
        values = self.stack[start:]
        del self.stack[start:]
        return values


_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "INT", "LONG", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINSTRING", "SHORT_BINSTRING", "STRING"),
}
_FACTORIES: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}


def _string_dict(pairs: Iterable[Any]) -> dict[str, Any]:
    """Return a dictionary whose keys must be strings: hashing nested tuples could take exponential time."""
    pairs = list(pairs)
    if not all(isinstance(key, str) for key, _ in pairs):
        raise ValueError("a key is not a string")
    return dict(pairs)

"""Tensors that `torch.save` wrote, read as data: nothing in the file is run, whoever wrote it.

Such a file is a pickle, a program for a small machine with a stack, and beside it the numbers. `_Machine` knows the few
instructions that a dictionary of tensors needs. It makes numbers, strings, tuples, dictionaries and `StoredTensor`s. A
file that asks for any other name is an error, as is one whose tensors do not lie within the numbers it has. No numbers
are read before a tensor is asked for them.

There are two layouts. Since torch 1.6 a file is a zip archive with `data.pkl` and a member for each storage. Before, it
was five pickles (a mark, a version, facts on the machine, the dictionary, the storages' keys), then each storage: its
length in eight bytes, and its numbers.
"""

import math
import pickletools
import zipfile
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from relmo.disk.archive import Member, open_zip
from relmo.errors import ModelError, reason, shown

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_MOST_STEPS = 1_000_000  # instructions; a model has some hundreds
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


_BROKEN = (ValueError, TypeError, LookupError, AttributeError, OverflowError, OSError, MemoryError)


class _Name(NamedTuple):
    """A name in a module, which is looked at and never imported."""

    module: str
    name: str


class _Storage(NamedTuple):
    """Numbers of one type, known by their key."""

    dtype: np.dtype[Any]
    key: str
    numbers: int


class StoredTensor(NamedTuple):
    """A tensor in a file: its shape, and how to read its numbers."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_state_dict(path: Path, where: str | None = None) -> dict[str, StoredTensor]:
    """The tensors of a file by name. A file that is broken, or that holds something else, is one clear line, in which
    it is called `where`."""
    where = str(path) if where is None else where
    try:
        found, storages = _read_zip(path) if zipfile.is_zipfile(path) else _read_old(path)
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
            raise ValueError("it holds no dictionary of tensors")
        return {name: _stored(name, tensor, storages, where) for name, tensor in found.items()}
    except ModelError:
        raise
    except _BROKEN as error:
        raise ModelError(f"{where}: is not a file of tensors that torch saved ({reason(error)})") from error


Place = Callable[[], bytes]


def _read_zip(path: Path) -> tuple[Any, dict[str, Place]]:
    with open_zip(path) as archive:
        members = {info.filename: Member(path, info) for info in archive.infolist()}
    (main,) = [name for name in members if name.endswith("/data.pkl")] or [""]
    if not main:
        raise ValueError("the archive has no data.pkl")
    root = main.removesuffix("data.pkl")
    found = _Machine().run(BytesIO(members[main].read()))
    inside = f"{root}data/"
    return found, {name.removeprefix(inside): m.read for name, m in members.items() if name.startswith(inside)}


def _read_old(path: Path) -> tuple[Any, dict[str, Place]]:
    with path.open("rb") as file:
        if _Machine().run(file) != _MAGIC or _Machine().run(file) != _VERSION:
            raise ValueError("it does not begin as such a file does")
        _Machine().run(file)
        machine = _Machine()
        found = machine.run(file)
        keys = _Machine().run(file)
        storages: dict[str, Place] = {}
        for key in keys:
            storage = machine.storages[key]
            count = int.from_bytes(file.read(8), "little")
            if count != storage.numbers:
                raise ValueError(f"storage {shown(key)} has {count:,} numbers, not {storage.numbers:,}")
            storages[key] = _piece(path, file.tell(), count * storage.dtype.itemsize)
            file.seek(count * storage.dtype.itemsize, 1)
        if file.tell() > path.stat().st_size:
            raise ValueError("it was cut short")
    return found, storages


def _piece(path: Path, start: int, size: int) -> Place:
    """A function that reads some bytes of a file."""

    def read() -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(size)

    return read


def _stored(name: str, tensor: Any, storages: dict[str, Place], where: str) -> StoredTensor:
    """A tensor that lies within its storage."""
    if not isinstance(tensor, _Tensor):
        raise ValueError(f"{shown(name)} is not a tensor")
    (dtype, key, count), offset, shape, strides = tensor
    if not all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)) or len(shape) != len(strides):
        raise ValueError(f"the shape of {shown(name)} is broken")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    size: int = math.prod(shape)
    if size > count or (size and last >= count):
        raise ValueError(f"{shown(name)} is larger than its storage")
    if key not in storages:
        raise ValueError(f"the numbers of {shown(name)} are missing")

    def read() -> np.ndarray:
        data = storages[key]()
        if len(data) != count * dtype.itemsize:
            raise ModelError(f"{where}: the numbers of {shown(name)} were cut short; restore it from a copy")
        flat = np.frombuffer(data, dtype=dtype)
        steps = [stride * dtype.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=False)

    return StoredTensor(shape, read)


class _Machine:
    """Runs one pickle, as far as a dictionary of tensors needs."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, _Storage] = {}

    def run(self, file: IO[bytes]) -> Any:
        """What the pickle at this place of a file makes; the file stands behind it afterwards."""
        for step, (operation, argument, _) in enumerate(pickletools.genops(file)):
            if step > _MOST_STEPS:
                raise ValueError("it has too many instructions")
            if operation.name == "STOP":
                return self.stack.pop()
            self._do(operation.name, argument)
        raise ValueError("it ends too early")

    def _do(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _VALUES:
            stack.append(argument)
        elif name in _MAKERS:
            stack.append(_MAKERS[name]())
        elif name == "GLOBAL":
            stack.append(_Name(*argument.split(" ", 1)))
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(self._above_mark() if name == "TUPLE" else self._top(int(name[-1]))))
        elif name in ("APPEND", "APPENDS"):
            values = self._top(1) if name == "APPEND" else self._above_mark()
            stack[-1].extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = self._top(2) if name == "SETITEM" else self._above_mark()
            stack[-1].update(_named(zip(values[::2], values[1::2], strict=True)))
        elif name == "BINPERSID":
            stack.append(self._storage(stack.pop()))
        elif name == "REDUCE":
            stack.append(_call(*self._top(2)))
        elif name == "BUILD":  # what else an OrderedDict has: torch's notes on versions
            stack.pop()
        else:
            raise ValueError(f"it has the instruction {name}, which no tensors need")

    def _top(self, count: int) -> list[Any]:
        values = self.stack[len(self.stack) - count :]
        if len(values) != count:
            raise ValueError("it takes more from the stack than there is")
        del self.stack[-count:]
        return values

    def _above_mark(self) -> list[Any]:
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def _storage(self, identity: Any) -> _Storage:
        """A storage by its identity ("storage", type, key, place, how many numbers, …)."""
        if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
            raise ValueError("it holds more than tensors")
        _, kind, key, _, count, *view = identity
        if not isinstance(kind, _Name) or kind.name not in _TYPES or view not in ([], [None]):
            raise ValueError("it has numbers of a kind that is not read; floats, integers and bools are")
        if not isinstance(key, str) or type(count) is not int or count < 0:
            raise ValueError("a storage is broken")
        return self.storages.setdefault(key, _Storage(_TYPES[kind.name], key, count))


_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "INT", "LONG", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINSTRING", "SHORT_BINSTRING", "STRING"),
}
_MAKERS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}


def _named(pairs: Iterable[Any]) -> dict[str, Any]:
    """A dictionary whose keys are strings. (Tuples within tuples could take for ever to be looked up.)"""
    found = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise ValueError("a key is not a string")
        found[key] = value
    return found


def _call(name: Any, arguments: Any) -> Any:
    """The three things that a file of tensors may ask for."""
    match name:
        case _Name("collections", "OrderedDict"):
            return _named(*arguments) if arguments else {}
        case _Name("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor"):
            storage, offset, shape, strides = arguments[:4]
            if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
                raise ValueError("a tensor is broken")
            return _Tensor(storage, offset, shape, strides)
        case _Name("torch._utils", "_rebuild_parameter"):
            return arguments[0]
        case _Name(module, attribute):
            raise ValueError(f"it asks for {shown(f'{module}.{attribute}')}, which no tensors need")
    raise ValueError("it calls something that is not a function")

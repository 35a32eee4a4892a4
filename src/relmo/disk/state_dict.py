"""Tensors and modules saved by `torch.save`, read as data: no code in the file is run.

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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from relmo.disk.archive import Member, is_zip, open_zip
from relmo.errors import ModelError, describe_os_error, quote

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_MAX_INSTRUCTIONS = 1_000_000  # a model has some hundreds
_MAX_MODULES, _MAX_NAME = 1000, 500
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


@dataclass(eq=False)
class PickledObject:
    """Object of a class that is not imported: the name of the class, and the object's attributes."""

    name: str
    state: dict[Any, Any] = field(default_factory=dict)


class StoredTensor(NamedTuple):
    """Shape of a tensor in a file, and a function that reads its numbers."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


StorageReader = Callable[[], bytes]


def read_state_dict(path: Path, where: str | None = None) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name. Errors call the file `where`."""
    value, storages, where = read_objects(path, where)
    with _format_errors(where):
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise ValueError("it holds no dictionary of tensors")
        return {name: _make_stored(name, tensor, storages, where) for name, tensor in value.items()}


def read_objects(path: Path, where: str | None = None) -> "SavedObjects":
    """Return what a file of `torch.save` holds. Errors call the file `where`."""
    where = where or str(path)
    with _format_errors(where):
        return SavedObjects(*_read_torch(path), where)


def read_plain_pickle(path: Path) -> Any:
    """Return the numbers, strings, lists and dictionaries of a pickle."""
    with _format_errors(str(path)), path.open("rb") as file:
        return _PickleReader().run(file)


class SavedObjects(NamedTuple):
    """Contents of a file: numbers, strings, lists, dictionaries, `PickledObject`s, and its tensors."""

    value: Any
    storages: dict[str, StorageReader]
    where: str

    def find_tensors(self, value: Any) -> dict[str, StoredTensor]:
        """Return the tensors of a dictionary of tensors, or of a module and its submodules, by name."""
        with _format_errors(self.where):
            named = _walk_module(value) if isinstance(value, PickledObject) else value
            pairs = named.items() if isinstance(named, dict) else named
            return {
                name: _make_stored(name, tensor, self.storages, self.where)
                for name, tensor in pairs
                if isinstance(name, str) and isinstance(tensor, _Tensor)
            }


def _walk_module(module: PickledObject) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a module and its submodules with their names; a file may claim any nesting of them."""
    todo = [("", module)]
    for _ in range(_MAX_MODULES):
        if not todo:
            return
        prefix, current = todo.pop()
        for kind in ("_parameters", "_buffers"):
            tensors = current.state.get(kind)
            for name, tensor in tensors.items() if isinstance(tensors, dict) else ():
                yield f"{prefix}{name}", tensor
        modules = current.state.get("_modules")
        for name, inner in modules.items() if isinstance(modules, dict) else ():
            if isinstance(inner, PickledObject):
                todo.append((f"{prefix}{name}."[:_MAX_NAME], inner))
    raise ValueError("it has too many modules")


@contextmanager
def _format_errors(where: str) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except _FORMAT_ERRORS as error:
        raise ModelError(f"{where}: is not a file of tensors saved by torch ({describe_os_error(error)})") from error


def _read_torch(path: Path) -> tuple[Any, dict[str, StorageReader]]:
    """Return the pickled value of a file, and functions that read its storages."""
    storages: dict[str, StorageReader]
    if is_zip(path):
        with open_zip(path) as archive:
            members = {info.filename: Member(path, info) for info in archive.infolist()}
        (pickle_name,) = [name for name in members if name.endswith("/data.pkl")] or [""]
        if not pickle_name:
            raise ValueError("the archive has no data.pkl")
        prefix = f"{pickle_name.removesuffix('data.pkl')}data/"
        value = _PickleReader().run(BytesIO(members[pickle_name].read()))
        storages = {name.removeprefix(prefix): m.read for name, m in members.items() if name.startswith(prefix)}
        return value, storages
    with path.open("rb") as file:
        if _PickleReader().run(file) != _MAGIC or _PickleReader().run(file) != _VERSION:
            raise ValueError("it has another header")
        _PickleReader().run(file)
        reader = _PickleReader()
        value = reader.run(file)
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
    return value, storages


def _read_range(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def _make_stored(name: str, tensor: Any, storages: dict[str, StorageReader], where: str) -> StoredTensor:
    """Check that a tensor lies within its storage."""
    if isinstance(tensor, PickledObject):
        raise ValueError(f"it asks for {quote(tensor.name)}, which tensors do not need")
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
    """Interpreter of the pickle instructions that tensors, plain values and modules need; any other is an error.

    Nothing is imported or called: functions and classes stay names, and an object is a `PickledObject`."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, _Storage] = {}

    def run(self, file: IO[bytes]) -> Any:
        """Return the value of the pickle at the position of a file, and leave the file after it."""
        for step, (operation, argument, _) in enumerate(pickletools.genops(file)):
            if step > _MAX_INSTRUCTIONS:
                raise ValueError("it has too many instructions")
            if operation.name == "STOP":
                return self.stack.pop()
            self._execute(operation.name, argument)
        raise ValueError("it ends too early")

    def _execute(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
            return
        if name in _FACTORIES:
            stack.append(_FACTORIES[name]())
            return
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self.marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if argument is None else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._pop(None if name == "TUPLE" else int(name[-1]))))
            case "APPEND" | "APPENDS" | "ADDITEMS":
                values = self._pop(1 if name == "APPEND" else None)
                stack[-1].extend(values)
            case "SETITEM" | "SETITEMS":
                values = self._pop(2 if name == "SETITEM" else None)
                _update(stack[-1], zip(values[::2], values[1::2], strict=True))
            case "GLOBAL":
                stack.append(_Name(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                module, attribute = self._pop(2)
                if not isinstance(module, str) or not isinstance(attribute, str):
                    raise ValueError("the name of a class is not a string")
                stack.append(_Name(module, attribute))
            case "BINPERSID":
                stack.append(self._find_storage(stack.pop()))
            case "REDUCE" | "NEWOBJ":
                function, arguments = self._pop(2)
                stack.append(_call(function, arguments))
            case "BUILD":  # the attributes of an OrderedDict are torch's version notes
                attributes = stack.pop()
                if isinstance(attributes, tuple) and len(attributes) == 2:  # of __dict__ and of __slots__
                    attributes = attributes[0]
                if isinstance(stack[-1], PickledObject) and isinstance(attributes, dict):
                    stack[-1].state = attributes
            case _:
                raise ValueError(f"it has the instruction {name}, which tensors do not need")

    def _find_storage(self, identity: Any) -> Any:
        """Return the storage of ("storage", type, key, location, numel, …), or the class of a module in old files."""
        if isinstance(identity, tuple) and identity[:1] == ("module",):  # class and source code
            return identity[1]
        if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
            raise ValueError("it holds more than tensors")
        _, kind, key, _, numel, *view = identity
        if not isinstance(kind, _Name) or kind.name not in _TYPES or view not in ([], [None]):
            raise ValueError("it has numbers of an unsupported type; floats, integers and bools are supported")
        if not isinstance(key, str) or type(numel) is not int or numel < 0:
            raise ValueError("a storage is broken")
        return self.storages.setdefault(key, _Storage(_TYPES[kind.name], key, numel))

    def _pop(self, count: int | None) -> list[Any]:
        """Pop `count` values, by default all above the last mark."""
        start = self.marks.pop() if count is None else len(self.stack) - count
        if start < 0:
            raise ValueError("it pops more than the stack holds")
        values = self.stack[start:]
        del self.stack[start:]
        return values


def _call(function: Any, arguments: Any) -> Any:
    """Return what a call stands for: a tensor, a dictionary, bytes, or an object whose class is not imported."""
    match function:
        case _Name("collections", "OrderedDict"):
            return _update({}, *arguments) if arguments else {}
        case _Name("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor"):
            storage, offset, shape, strides = arguments[:4]
            if not (isinstance(storage, _Storage) and isinstance(shape, tuple) and isinstance(strides, tuple)):
                raise ValueError("a tensor is broken")
            return _Tensor(storage, offset, shape, strides)
        case _Name("torch._utils", "_rebuild_parameter"):
            return arguments[0]
        case _Name("_codecs", "encode") if isinstance(arguments[0], str):  # bytes in protocol 2
            return arguments[0].encode("latin-1")
        case _Name("copy_reg" | "copyreg", "_reconstructor"):
            function = arguments[0]
    if not isinstance(function, _Name):
        raise ValueError("it calls an object, which tensors do not need")
    return PickledObject(f"{function.module}.{function.name}")


def _update(target: dict[Any, Any], pairs: Iterable[Any]) -> dict[Any, Any]:
    pairs = list(pairs)
    if not all(isinstance(key, str | bytes | int) for key, _ in pairs):  # hashing nested tuples takes exponential time
        raise ValueError("a key is not a string, bytes or a number")
    target.update(pairs)
    return target


_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "INT", "LONG", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINSTRING", "SHORT_BINSTRING", "STRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_FACTORIES: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
}

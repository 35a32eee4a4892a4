"""A network's weights in a model folder: in float32, float16 or int8, in one file or in several.

    float32   as they are: model.safetensors
    float16   numbers rounded to float16
    int8      matrices of 64 x 64 and more as whole numbers from -127 to 127, and a float16 scale for each 512 of a row
              (`nn/quantize.py`) under the tensor's name and ":scale"; what is smaller, biases and such, in float16

Whole numbers stay as they are. Several files, model-00001-of-00003.safetensors and so on, are filled one after another.
A tensor that does not fit into one file goes on with its later rows in the next, under the same name. config.json has
the precision and the digest of every file; without them a folder has one file in float32.

Loaded weights are always float32. Before memory is taken for the network that config.json describes, the names, types,
shapes and bytes in the files are compared with it.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from relmo.disk.files import is_file
from relmo.errors import ModelError, SettingError, shown
from relmo.nn.quantize import BLOCK, Quantized, quantize
from relmo.store.folder import WEIGHTS, open_tensors, own_tensors, read_tensors, write_tensors

Stored = Literal["float32", "float16", "int8"]
STORED: tuple[Stored, ...] = get_args(Stored)
TYPES = {"F32": torch.float32, "F16": torch.float16, "I8": torch.int8, "I64": torch.int64}  # as files call them
SCALE = ":scale"
SMALLEST = 64  # rows and columns of a matrix that is worth its scales in int8
PATTERN = "model*.safetensors"
RANDOM = ("normal_", "uniform_", "kaiming_uniform_", "orthogonal_")
MB = 1_000_000
MOST_FILES = 10_000
HEADER, HEADER_ENTRY = 1_000, 200  # bytes of a file that are not numbers, and of these for each tensor

N = TypeVar("N", bound=nn.Module)


class TensorForm(NamedTuple):
    """A tensor's shape and type in a file; the type is None where no weights can have it."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None

    def __str__(self) -> str:
        return f"{self.shape} of {str(self.dtype or 'another type').removeprefix('torch.')}"


class Record(NamedTuple):
    """What config.json says of the weight files: their precision and their digests. Without digests there is a single
    file, which holds its own."""

    precision: Stored = "float32"
    digests: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the files."""
        count = len(self.digests)
        return [WEIGHTS] if count < 2 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def read_record(folder: Path, config: dict[str, Any]) -> Record:
    """The record in a config.json, checked; a weight file that it does not name is an error."""
    stored = config.get("stored", {"precision": "float32", "digests": []})
    precision, digests = (stored.get(key) if isinstance(stored, dict) else None for key in ("precision", "digests"))
    if precision not in STORED:
        raise ModelError(
            f"{folder}: config.json is damaged: it says precision {shown(precision)}, not {', '.join(STORED)}"
        )
    if not isinstance(digests, list) or len(digests) > MOST_FILES or not all(isinstance(d, str) for d in digests):
        raise ModelError(f"{folder}: config.json is damaged: the digests of its weights are not a list of strings")
    record = Record(precision, tuple(digests))
    extra = sorted({path.name for path in folder.glob(PATTERN)} - set(record.names))
    if extra:
        raise ModelError(f"{folder / extra[0]}: is not among the weights that config.json names; remove it")
    return record


def save_weights(folder: Path, network: nn.Module) -> None:
    """Writes model.safetensors in float32 and removes all other weight files."""
    write_tensors(folder / WEIGHTS, own_tensors(network))
    for path in folder.glob(PATTERN):
        if path.name != WEIGHTS:
            path.unlink()


def write_weights(folder: Path, tensors: dict[str, Tensor], precision: Stored, shard_mb: int | None) -> Record:
    """Writes weights in a precision, in files of at most `shard_mb` megabytes (unless a row is longer), or in one file.
    -> what config.json has to say of them"""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stored |= encode(name, tensor.detach().cpu(), precision)
    files = list(shards(stored, None if shard_mb is None else shard_mb * MB))
    names = Record(precision, ("",) * len(files)).names
    return Record(precision, tuple(write_tensors(folder / n, part) for n, part in zip(names, files, strict=True)))


def shards(tensors: dict[str, Tensor], limit: int | None) -> Iterator[dict[str, Tensor]]:
    """The tensors in portions of at most `limit` bytes; one that does not fit is cut between two rows."""
    room = math.inf if limit is None else limit - HEADER - HEADER_ENTRY * len(tensors)
    part: dict[str, Tensor] = {}
    left = room
    for name, tensor in tensors.items():
        rest = tensor
        while rest.nbytes > left:
            rows = rest.reshape(flat(tuple(rest.shape)))
            fit = int(left * len(rows) // rows.nbytes)
            if not part:
                fit = max(fit, 1)  # a row that is over the limit by itself
            if fit == len(rows):
                break
            if fit:
                part[name], rest = rows[:fit], rows[fit:]
            yield part
            part, left = {}, room
        part[name] = rest
        left = max(left - rest.nbytes, 0)
    yield part


def flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a tensor as a list of rows, which is how it is cut: (2, 3, 4) is 6 rows of 4."""
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else shape or (1,)


def encode(name: str, tensor: Tensor, precision: Stored) -> dict[str, Tensor]:
    """A tensor as it is stored, by name: itself, rounded, or whole numbers and their scales."""
    kept = layout(name, TensorForm(tuple(tensor.shape), tensor.dtype), precision)
    if kept[name].dtype == tensor.dtype:
        return {name: tensor}
    if kept[name].dtype == torch.int8:
        whole = quantize(tensor, scales=torch.float16)
        stored = {name: whole.values.to(torch.int8), name + SCALE: whole.scale.to(torch.float16)}
    else:
        stored = {name: tensor.to(torch.float16)}
    if not all(part.isfinite().all() for part in stored.values()):
        raise ModelError(f"'{name}' has numbers that are too large for {precision}, or NaN; keep it in float32")
    return stored


def decode(name: str, stored: dict[str, Tensor]) -> Tensor:
    """What `encode` was given, rounded."""
    if name + SCALE in stored:
        return Quantized(stored[name].float(), stored[name + SCALE].float()).numbers()
    return stored[name]


def layout(name: str, tensor: TensorForm, precision: Stored) -> dict[str, TensorForm]:
    """How a network's tensor stands in the files, by name, with its scales where it has any."""
    shape, dtype = tensor
    if precision == "float32" or dtype != torch.float32:
        return {name: tensor}
    if precision == "int8" and len(shape) > 1 and min(shape[-2:]) >= SMALLEST:
        scales = (*shape[:-1], -(-shape[-1] // BLOCK))
        return {name: TensorForm(shape, torch.int8), name + SCALE: TensorForm(scales, torch.float16)}
    return {name: TensorForm(shape, torch.float16)}


class Unfilled(TorchFunctionMode):
    """Draws no first random numbers for tensors, since stored ones replace them. (To draw some of them for tensors
    without memory, torch would import hundreds of modules, which takes seconds and 70 MB.)"""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called in place of `func`."""
        if getattr(func, "__name__", "").removeprefix("_") in RANDOM:  # `_orthogonal_` is our own
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def load_weights(folder: Path, config: dict[str, Any], make: Callable[[], N]) -> N:
    """The network that `make` makes, with the folder's weights. It is first made without memory and compared with the
    files."""
    record = read_record(folder, config)
    expected: dict[str, TensorForm] = {}
    for name, kept in _described(folder, make).items():
        expected |= layout(name, kept, record.precision)
    _compare(folder, record, expected)
    stored = _read_stored(folder, record, expected)
    with Unfilled():
        network = make()
    with torch.no_grad():
        for name, tensor in own_tensors(network).items():
            tensor.copy_(decode(name, stored))
    return network.eval()


def _described(folder: Path, make: Callable[[], nn.Module]) -> dict[str, TensorForm]:
    """The tensors of the network that `make` makes. It is made without memory: config.json may call for any size."""
    try:
        with torch.device("meta"), Unfilled():
            return {name: TensorForm(tuple(tensor.shape), tensor.dtype) for name, tensor in own_tensors(make()).items()}
    except (SettingError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ModelError(f"{folder}: config.json is damaged: {error}") from error


def check_room(folder: Path, config: dict[str, Any], make: Callable[[], nn.Module]) -> None:
    """An error where the weight files are too small for the network that `make` makes, which may be a part of them."""
    numbers = sum(math.prod(tensor.shape) for tensor in _described(folder, make).values())
    files = [folder / name for name in read_record(folder, config).names]
    there = sum(file.stat().st_size for file in files if is_file(file))
    if numbers > there:  # a number takes a byte or more
        raise ModelError(
            f"{folder}: config.json is damaged: it calls for {numbers:,} weights, the files have {there:,} bytes"
        )


def _compare(folder: Path, record: Record, expected: dict[str, TensorForm]) -> None:
    """An error where the files do not hold the expected tensors. Only their headers are read, not their numbers."""
    found: dict[str, list[TensorForm]] = {}
    for file_name in record.names:
        with open_tensors(folder / file_name) as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                found.setdefault(name, []).append(TensorForm(tuple(part.get_shape()), TYPES.get(part.get_dtype())))
    for name in sorted(expected.keys() | found.keys()):
        wanted, there = expected.get(name), joined(found.get(name, []), expected.get(name))
        if there != wanted:
            raise ModelError(
                f"{folder / record.names[0]}: does not fit config.json: '{name}' is {there or 'missing'}, "
                f"expected {wanted or 'nothing'}"
            )


def joined(parts: list[TensorForm], whole: TensorForm | None) -> TensorForm | None:
    """The form of a tensor put together from parts: the whole, if they have all its rows, else what they have."""
    if len(parts) < 2 or whole is None:
        return parts[0] if parts else None
    shape = flat(whole.shape)
    for part in parts:
        if len(part.shape) != len(shape) or part.shape[1:] != shape[1:] or part.dtype != whole.dtype:
            return part
    rows = sum(part.shape[0] for part in parts)
    return whole if rows == shape[0] else TensorForm((rows, *shape[1:]), whole.dtype)


def _read_stored(folder: Path, record: Record, expected: dict[str, TensorForm]) -> dict[str, Tensor]:
    """The tensors in the files, with digests checked; those that were cut are put together again."""
    parts: dict[str, list[Tensor]] = {}
    for file_name, digest in zip(record.names, record.digests or (None,), strict=True):
        for name, tensor in read_tensors(folder / file_name, digest)[0].items():
            if not _finite(tensor):
                raise ModelError(
                    f"{folder / file_name}: '{name}' has numbers that are not finite (NaN, infinity); restore it from "
                    "a copy or train again"
                )
            parts.setdefault(name, []).append(tensor)
    return {
        name: part[0] if len(part) == 1 else torch.cat(part).reshape(expected[name].shape)
        for name, part in parts.items()
    }


def _finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(math.isfinite(extreme) for extreme in tensor.aminmax())

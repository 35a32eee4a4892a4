"""Model folders on disk: config.json, model.safetensors, vocabulary.txt, settings.toml, README.md.

Every file is written atomically; config.json comes last, so that a folder with one is complete. Tensor files carry a
digest of themselves; config.json holds those of text files, and the precision in which weights are stored:

    float32   unchanged: model.safetensors
    float16   rounded to float16
    int8      matrices of 64 x 64 and larger as integers from -127 to 127, with a float16 scale per 512 entries of a row
              (`nn/quantize.py`) under the tensor's name and ":scale"; smaller tensors and biases in float16
    nf4       matrices of recurrent layers and of the output layer in four bits, with a float16 scale per 64 entries and
              a float16 length per column, under the name and ":length"; others as in int8

Weights may be in shards, model-00001-of-00003.safetensors and so on. A tensor that does not fit continues with its
later rows in the next shard, under the same name. Names, types, shapes and sizes in the files are compared with the
network that config.json describes before memory is allocated for it.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import relmo
from relmo.config import build, nearest
from relmo.disk.files import (
    DAMAGED,
    NO_DOWNLOAD,
    check_file,
    check_regular,
    find_url,
    fingerprint,
    is_file,
    parse_json,
    read_json,
)
from relmo.disk.outputs import atomic
from relmo.errors import ModelError, SettingError, quote
from relmo.nn.quantize import BLOCK, GROUP, NormalFloat, Quantized, quantize, quantize_nf4
from relmo.settings.kinds import settings_class
from relmo.store.installed import CONFIG, DEFAULT, installed_names

FORMAT_VERSION = 1
WEIGHTS, VOCABULARY = "model.safetensors", "vocabulary.txt"
CARD, SETTINGS, CELLS = "README.md", "settings.toml", "cells.json"
BILM_VOCABULARY = "bilm-vocabulary.txt"  # in the folder of a task's model
COPY_OF_BILM, COPY_OF_VECTORS = "bilm", "vectors"  # subfolders of a task's model, for the models that it is built on
VOCABULARY_NAME = re.compile(r"([a-z]+-)*(vocabulary|labels)\.txt")
"""File names of vocabularies: of words, of labels, and others of a task, such as roles-labels.txt."""
RESTORE = "restore it from a copy"
MODEL_FILES = re.compile(
    rf"config\.json|model.*\.safetensors|{VOCABULARY_NAME.pattern}|vectors\.txt|settings\.toml|cells\.json|README\.md"
    r"|metrics\.jsonl|report\.json|curves\.png|options\.json|weights\.hdf5|vocab\.txt"
    r"|(generation|tokenizer)_config\.json|added_tokens\.json|vocab\.json|modeling_relmo\.py"
    r"|run|last|bilm|vectors|tensorboard|snapshots|seed-\d+"
)
"""Names of files and folders that relmo writes to a model folder."""
StoredPrecision = Literal["float32", "float16", "int8", "nf4"]
STORED_PRECISIONS: tuple[StoredPrecision, ...] = get_args(StoredPrecision)
TYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I64": torch.int64,
}  # safetensors names
SCALE, LENGTH = ":scale", ":length"
MIN_INTEGER_SIZE = 64  # rows and columns of a matrix for which integers pay off
PATTERN = "model*.safetensors"
FOUR_BITS = re.compile(r"(.*\.)?(weight_[a-z]{2}|softmax\.weight)")
"""Matrices of recurrent layers and of the output layer, which are most of a model."""
RANDOM = ("normal_", "uniform_", "kaiming_uniform_", "orthogonal_")
MB = 1_000_000
MAX_FILES = 10_000
HEADER_BYTES, HEADER_ENTRY_BYTES = 1_000, 200  # of a file, and in addition per tensor

N = TypeVar("N", bound=nn.Module)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, Tensor], values: Any = None) -> str:
    """Write a safetensors file with a JSON value and a digest of everything in its header; return the digest."""
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    header = {"digest": digest(tensors, values)} | ({} if values is None else {"values": json.dumps(values)})
    with atomic(path) as temporary:
        save_file(tensors, temporary, metadata=header)
    return header["digest"]


def read_tensors(path: Path, expected_digest: str | None = None) -> tuple[dict[str, Tensor], Any]:
    """Read a file of `write_tensors`; raise `ModelError` if it is damaged or has another digest than expected."""
    with open_tensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = file.metadata() or {}
    try:
        values = parse_json(header.get("values", "null"))
    except ValueError as error:
        raise ModelError(f"{path}: is damaged (its header: {error}); {RESTORE}") from error
    if header.get("digest") != digest(tensors, values):
        raise ModelError(f"{path}: {DAMAGED}; {RESTORE}")
    if expected_digest is not None and header["digest"] != expected_digest:
        raise ModelError(f"{path}: is not the file that config.json was written for; restore both from one copy")
    return tensors, values


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file; raise `ModelError` if it is missing, truncated or of another format."""
    if not is_file(path):
        problem = "is not a regular file" if os.path.lexists(path) else "no such file"
        raise ModelError(f"{path}: {problem}; the model folder is incomplete")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, RuntimeError) as error:  # RuntimeError: torch cannot map the file
        raise ModelError(f"{path}: is damaged ({error}); {RESTORE} or train again") from error


def digest(tensors: dict[str, Tensor], values: Any = None) -> str:
    """Return the SHA-256 of the names and bytes of all tensors, and of the values if there are any."""
    sha = hashlib.sha256(b"" if values is None else json.dumps(values).encode())
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return the weights and buffers of a network by name; a tied tensor appears once, under its first name."""
    names: dict[int, str] = {}
    state = network.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if names.setdefault(id(tensor), name) == name}


def save_config(folder: Path, kind: str, values: dict[str, Any]) -> None:
    """Write config.json with the kind of the model and what is needed to load it."""
    header = {"format_version": FORMAT_VERSION, "kind": kind, "relmo_version": relmo.__version__}
    write_json(folder / CONFIG, header | values | {"digests": text_digests(folder)})


def text_files(folder: Path) -> list[str]:
    """Return the file names of a model's vocabularies, the one of words first."""
    names = (path.name for path in folder.iterdir() if VOCABULARY_NAME.fullmatch(path.name) and path.is_file())
    return sorted(names, reverse=True)


def text_digests(folder: Path) -> dict[str, Any]:
    """Return the fingerprints of a model's vocabularies."""
    return {name: fingerprint(folder / name) for name in text_files(folder)}


def verify_text_file(folder: Path, config: dict[str, Any], name: str) -> Path:
    """Return the path of a text file of a model after verifying its digest."""
    path = folder / name
    if "digests" not in config:  # written by an older relmo
        check_regular(path, f"the model folder is incomplete; {RESTORE}")
        return path
    digests = config["digests"]
    if not isinstance(digests, dict) or name not in digests:
        raise ModelError(f"{folder / CONFIG}: is damaged (it has no digest of {name}); {RESTORE}")
    check_file(path, digests[name], RESTORE)
    return path


def read_config(folder: Path, kinds: Collection[str] | None = None) -> dict[str, Any]:
    """Read config.json and check what all kinds share.

    If there is no such folder, the error suggests installed models of these kinds, by default of all."""
    path = folder / CONFIG
    if not is_file(path):
        if url := find_url(folder):
            raise ModelError(f"{url}: {NO_DOWNLOAD}")
        installed = installed_names(kinds)
        names = ", ".join(installed)
        problem = "is not a model folder (no config.json)" if os.path.lexists(folder) else "does not exist"
        suggestion = nearest(str(folder), installed)
        if suggestion and str(folder) not in installed:
            raise ModelError(f"{folder}: {problem}; did you mean {suggestion}? Installed models: {names}")
        alternatives = ["a folder saved by relmo"]
        if DEFAULT in installed:
            alternatives.append("original ELMo files (an options .json and a weights .hdf5) for a biLM")
        if installed:
            alternatives.append(f"the name of an installed model ({names})")
        raise ModelError(f"{folder}: {problem}; give {', or '.join(alternatives)}")
    config = read_json(path, RESTORE)
    if "kind" not in config or "format_version" not in config:
        raise ModelError(f"{path}: is not a relmo config (no 'kind' and 'format_version')")
    if (version := config["format_version"]) != FORMAT_VERSION:
        versions = f"{quote(version)}; this relmo reads {FORMAT_VERSION}"
        raise ModelError(f"{path}: has format version {versions}; update relmo")
    if not isinstance(config["kind"], str):
        raise ModelError(f"{path}: is damaged: its kind is {quote(config['kind'])}, not a string")
    return config


def read_settings(folder: Path, values: Any, kind: str) -> Any:
    """Build and check the settings that config.json holds for a model of this kind."""
    try:
        settings = build(settings_class(kind), values or {}, source=str(folder / CONFIG))
        settings.check()
    except SettingError as error:
        raise ModelError(f"{folder}: config.json is damaged: {error}") from error
    return settings


def pick_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingError("--device cuda: torch sees no GPU here; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


class TensorForm(NamedTuple):
    """Shape and dtype of a tensor in a file; the dtype is None if weights cannot have it."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None

    def __str__(self) -> str:
        return f"{self.shape} of {str(self.dtype or 'another type').removeprefix('torch.')}"


class WeightsRecord(NamedTuple):
    """Entry on the weight files in config.json. Without digests there is a single file, which holds its own."""

    precision: StoredPrecision = "float32"
    digests: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """File names."""
        count = len(self.digests)
        return [WEIGHTS] if count < 2 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def read_record(folder: Path, config: dict[str, Any]) -> WeightsRecord:
    """Return the checked record in a config.json; weight files that it does not name are an error."""
    stored = config.get("stored", {"precision": "float32", "digests": []})
    precision, digests = (stored.get(key) if isinstance(stored, dict) else None for key in ("precision", "digests"))
    if precision not in STORED_PRECISIONS:
        names = ", ".join(STORED_PRECISIONS)
        raise ModelError(f"{folder}: config.json is damaged: unknown precision {quote(precision)}; known: {names}")
    if not isinstance(digests, list) or len(digests) > MAX_FILES or not all(isinstance(d, str) for d in digests):
        raise ModelError(f"{folder}: config.json is damaged: the digests of its weights are not a list of strings")
    record = WeightsRecord(precision, tuple(digests))
    extra = sorted({path.name for path in folder.glob(PATTERN)} - set(record.names))
    if extra:
        raise ModelError(f"{folder / extra[0]}: is not listed in config.json; remove it")
    return record


def save_weights(folder: Path, network: nn.Module) -> None:
    """Write model.safetensors in float32 and remove all other weight files."""
    write_tensors(folder / WEIGHTS, named_tensors(network))
    for path in folder.glob(PATTERN):
        if path.name != WEIGHTS:
            path.unlink()


def encode_weights(tensors: dict[str, Tensor], precision: StoredPrecision) -> dict[str, Tensor]:
    """Return the tensors as they are stored."""
    parts = [encode_tensor(name, tensor.detach().cpu(), precision) for name, tensor in tensors.items()]
    return {name: tensor for part in parts for name, tensor in part.items()}


def read_encoded(folder: Path, record: WeightsRecord, forms: dict[str, TensorForm]) -> dict[str, Tensor]:
    """Return the tensors of a folder as they are stored, in these forms; raise `ModelError` if one is not finite."""
    parts: dict[str, list[Tensor]] = {}
    for file_name, file_digest in zip(record.names, record.digests or (None,), strict=True):
        for name, tensor in read_tensors(folder / file_name, file_digest)[0].items():
            has_floats = tensor.is_floating_point() and tensor.numel() > 0
            if has_floats and not all(math.isfinite(extreme) for extreme in tensor.aminmax()):
                raise ModelError(
                    f"{folder / file_name}: '{name}' has numbers that are not finite (NaN, infinity); restore it from "
                    "a copy or train again"
                )
            parts.setdefault(name, []).append(tensor)
    return {
        name: tensors[0] if len(tensors) == 1 else torch.cat(tensors).reshape(forms[name].shape)
        for name, tensors in parts.items()
    }


def encoded_forms(tensors: Mapping[str, TensorForm], precision: StoredPrecision) -> dict[str, TensorForm]:
    """Return the forms in which the tensors of a network are stored."""
    parts = [stored_forms(name, form, precision) for name, form in tensors.items()]
    return {name: form for part in parts for name, form in part.items()}


def write_weights(
    folder: Path, stored: dict[str, Tensor], precision: StoredPrecision, shard_mb: int | None
) -> WeightsRecord:
    """Write encoded weights in one file, or in files of at most `shard_mb` megabytes (unless a row is longer)."""
    shards = list(split_shards(stored, None if shard_mb is None else shard_mb * MB))
    names = WeightsRecord(precision, ("",) * len(shards)).names
    digests = (write_tensors(folder / name, shard) for name, shard in zip(names, shards, strict=True))
    return WeightsRecord(precision, tuple(digests))


def split_shards(tensors: dict[str, Tensor], limit: int | None) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors in shards of at most `limit` bytes; a tensor that does not fit is split between two rows."""
    capacity = math.inf if limit is None else limit - HEADER_BYTES - HEADER_ENTRY_BYTES * len(tensors)
    shard: dict[str, Tensor] = {}
    room = capacity
    for name, tensor in tensors.items():
        remaining = tensor
        while remaining.nbytes > room:
            rows = remaining.reshape(as_rows(tuple(remaining.shape)))
            num_rows = int(room * len(rows) // rows.nbytes)
            if not shard:
                num_rows = max(num_rows, 1)  # a row that exceeds the limit by itself
            if num_rows == len(rows):
                break
            if num_rows:
                shard[name], remaining = rows[:num_rows], rows[num_rows:]
            yield shard
            shard, room = {}, capacity
        shard[name] = remaining
        room = max(room - remaining.nbytes, 0)
    yield shard


def as_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor as a list of rows, between which it is split: (2, 3, 4) is 6 rows of 4."""
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else shape or (1,)


def encode_tensor(name: str, tensor: Tensor, precision: StoredPrecision) -> dict[str, Tensor]:
    """Return a tensor as it is stored, by name: itself, rounded, or integers and their scales."""
    dtype = stored_forms(name, TensorForm(tuple(tensor.shape), tensor.dtype), precision)[name].dtype
    if dtype == tensor.dtype:
        return {name: tensor}
    if dtype == torch.int8:
        quantized = quantize(tensor, scales=torch.float16)
        stored = {name: quantized.values.to(torch.int8), name + SCALE: quantized.scale.to(torch.float16)}
    elif dtype == torch.uint8:
        stored = dict(zip((name, name + SCALE, name + LENGTH), quantize_nf4(tensor), strict=True))
    else:
        stored = {name: tensor.to(torch.float16)}
    if not all(part.isfinite().all() for part in stored.values()):
        raise ModelError(f"'{name}' has numbers that are too large for {precision}, or NaN; store it in float32")
    return stored


def decode_tensor(name: str, stored: dict[str, Tensor]) -> Tensor:
    """Return the tensor that `encode_tensor` stored, up to rounding."""
    if name + LENGTH in stored:
        return NormalFloat(stored[name], stored[name + SCALE], stored[name + LENGTH]).numbers()
    if name + SCALE in stored:
        return Quantized(stored[name].float(), stored[name + SCALE].float()).numbers()
    return stored[name]


def stored_forms(name: str, tensor: TensorForm, precision: StoredPrecision) -> dict[str, TensorForm]:
    """Return the forms in which a tensor of a network is stored, by name, with its scales if it has any."""
    shape, dtype = tensor
    if precision == "float32" or dtype != torch.float32:
        return {name: tensor}
    if precision in ("int8", "nf4") and len(shape) > 1 and min(shape[-2:]) >= MIN_INTEGER_SIZE:
        *rows, size = shape
        if precision == "nf4" and FOUR_BITS.fullmatch(name):
            return {
                name: TensorForm((*rows, -(-size // 2)), torch.uint8),
                name + SCALE: TensorForm((*rows, -(-size // GROUP)), torch.float16),
                name + LENGTH: TensorForm((*rows[:-1], 1, size), torch.float16),
            }
        scales = TensorForm((*rows, -(-size // BLOCK)), torch.float16)
        return {name: TensorForm(shape, torch.int8), name + SCALE: scales}
    return {name: TensorForm(shape, torch.float16)}


class SkipInit(TorchFunctionMode):
    """Mode that skips random initialisation, since stored weights replace it.

    (To initialise tensors on the meta device, torch would import hundreds of modules: seconds and 70 MB.)"""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor unchanged for random initialisers; call any other function."""
        if getattr(func, "__name__", "").removeprefix("_") in RANDOM:  # `_orthogonal_` is relmo's
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def load_weights(folder: Path, config: dict[str, Any], make: Callable[[], N]) -> N:
    """Return the network of `make` with the weights of the folder, whose headers are compared with it before."""
    record = read_record(folder, config)
    expected = encoded_forms(_network_forms(folder, make), record.precision)
    forms: dict[str, list[TensorForm]] = {}
    for file_name in record.names:
        with open_tensors(folder / file_name) as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                forms.setdefault(name, []).append(TensorForm(tuple(part.get_shape()), TYPES.get(part.get_dtype())))
    for name in sorted(expected.keys() | forms.keys()):
        actual = merge_forms(forms.get(name, []), expected.get(name))
        if actual != expected.get(name):
            raise ModelError(
                f"{folder / record.names[0]}: does not match config.json: '{name}' is {actual or 'missing'}, "
                f"expected {expected.get(name) or 'nothing'}"
            )
    stored = read_encoded(folder, record, expected)
    with SkipInit():
        network = make()
    with torch.no_grad():
        for name, tensor in named_tensors(network).items():
            tensor.copy_(decode_tensor(name, stored))
    return network.eval()


def _network_forms(folder: Path, make: Callable[[], nn.Module]) -> dict[str, TensorForm]:
    # created on the meta device, since config.json may demand any size
    try:
        with torch.device("meta"), SkipInit():
            tensors = named_tensors(make())
    except (SettingError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ModelError(f"{folder}: config.json is damaged: {error}") from error
    return {name: TensorForm(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def merge_forms(parts: list[TensorForm], expected: TensorForm | None) -> TensorForm | None:
    """Return the form of a tensor that is stored in parts; `expected` if they make up all of it."""
    if len(parts) < 2 or expected is None:
        return parts[0] if parts else None
    shape = as_rows(expected.shape)
    for part in parts:
        if len(part.shape) != len(shape) or part.shape[1:] != shape[1:] or part.dtype != expected.dtype:
            return part
    num_rows = sum(part.shape[0] for part in parts)
    return expected if num_rows == shape[0] else TensorForm((num_rows, *shape[1:]), expected.dtype)


def check_weights_size(folder: Path, config: dict[str, Any], make: Callable[[], nn.Module]) -> None:
    """Raise `ModelError` if the weight files are too small for the network that `make` creates, a part of the model."""
    num_weights = sum(math.prod(form.shape) for form in _network_forms(folder, make).values())
    paths = [folder / name for name in read_record(folder, config).names]
    num_bytes = sum(path.stat().st_size for path in paths if is_file(path))
    if num_weights > 2 * num_bytes:  # a weight takes at least half a byte
        problem = f"it needs {num_weights:,} weights, the files have {num_bytes:,} bytes"
        raise ModelError(f"{folder}: config.json is damaged: {problem}")

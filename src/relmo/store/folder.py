"""Model folders on disk: config.json, model.safetensors (`weights.py`), vocabulary.txt, settings.toml, README.md.

Nothing is unpickled. Every file is written atomically (`disk/outputs.py`); config.json comes last, so that a folder
with one is complete. Tensor files carry a digest of themselves; config.json holds the digests of text files.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import relmo
from relmo.config import build, nearest
from relmo.disk.digests import DAMAGED, check_file, check_regular, fingerprint
from relmo.disk.files import NO_DOWNLOAD, find_url, is_file, parse_json, read_json
from relmo.disk.outputs import atomic
from relmo.errors import ModelError, SettingError, quote
from relmo.settings.kinds import settings_class

FORMAT_VERSION = 1
CONFIG, WEIGHTS, VOCABULARY = "config.json", "model.safetensors", "vocabulary.txt"
CARD, SETTINGS, CELLS = "README.md", "settings.toml", "cells.json"
BILM_VOCABULARY = "bilm-vocabulary.txt"  # in the folder of a task's model
COPY_OF_BILM, COPY_OF_VECTORS = "bilm", "vectors"  # subfolders of a task's model, for the models that it is built on
VOCABULARY_NAME = re.compile(r"([a-z]+-)*(vocabulary|labels)\.txt")
"""File names of vocabularies: of words, of labels, and others of a task, such as roles-labels.txt."""
RESTORE = "restore it from a copy"
BUNDLED = ("small", "words")  # a bidirectional language model and word vectors
EXAMPLES = (
    *("prose", "code", "prose-elman", "prose-gru", "prose-lstm"),
    *("anbn-lstm", "anbn-gru", "hello", "hello-gru", "hello-lstm"),
    *("english-french", "addition"),
)
"""Bundled models for exploration: language models and two sequence-to-sequence models."""
MODEL_FILES = re.compile(
    rf"config\.json|model.*\.safetensors|{VOCABULARY_NAME.pattern}|vectors\.txt|settings\.toml|cells\.json|README\.md"
    r"|metrics\.jsonl|report\.json|curves\.png|options\.json|weights\.hdf5|vocab\.txt"
    r"|run|last|bilm|vectors|tensorboard|seed-\d+"
)
"""Names of files and folders that relmo writes to a model folder."""


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


def read_config(folder: Path, bundled_names: Sequence[str] = (*BUNDLED, *EXAMPLES)) -> dict[str, Any]:
    """Read config.json and check what all kinds share. `bundled_names` are suggested if there is no such folder."""
    path = folder / CONFIG
    if not is_file(path):
        raise _missing_model(folder, bundled_names)
    try:
        config = read_json(path)
    except ValueError as error:
        raise ModelError(f"{path}: is not valid JSON ({error}); {RESTORE}") from error
    if not isinstance(config, dict) or "kind" not in config or "format_version" not in config:
        raise ModelError(f"{path}: is not a relmo config (no 'kind' and 'format_version')")
    if config["format_version"] != FORMAT_VERSION:
        raise ModelError(
            f"{path}: has format version {quote(config['format_version'])}; this relmo reads {FORMAT_VERSION}; "
            "update relmo"
        )
    if not isinstance(config["kind"], str):
        raise ModelError(f"{path}: is damaged: its kind is {quote(config['kind'])}, not a string")
    return config


def _missing_model(folder: Path, bundled_names: Sequence[str]) -> ModelError:
    if url := find_url(folder):
        return ModelError(f"{url}: {NO_DOWNLOAD}")
    names = ", ".join(bundled_names)
    problem = "is not a model folder (no config.json)" if os.path.lexists(folder) else "does not exist"
    suggestion = nearest(str(folder), bundled_names)
    if suggestion and str(folder) not in bundled_names:
        return ModelError(f"{folder}: {problem}; did you mean {suggestion}? Bundled models: {names}")
    alternatives = ["a folder saved by relmo"]
    if BUNDLED[0] in bundled_names:
        alternatives.append("original ELMo files (an options .json and a weights .hdf5) for a biLM")
    if bundled_names:
        alternatives.append(f"the name of a bundled model ({names})")
    return ModelError(f"{folder}: {problem}; give {', or '.join(alternatives)}")


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

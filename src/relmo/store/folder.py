"""A model <-> a folder: config.json, model.safetensors (`weights.py`), vocabulary.txt, settings.toml and a card,
README.md.

Nothing is unpickled. Every file is written under a temporary name and renamed (`disk/outputs.py`); config.json comes
last, so a folder with one is whole. Files of tensors carry a digest of themselves; config.json has those of text files.
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
from relmo.disk.digests import check_file, check_regular, fingerprint
from relmo.disk.files import NO_DOWNLOAD, find_url, is_file, parse_json, read_json
from relmo.disk.outputs import atomic
from relmo.errors import ModelError, SettingError, shown
from relmo.settings.kinds import check_settings, settings_class

FORMAT_VERSION = 1
CONFIG, WEIGHTS, VOCABULARY = "config.json", "model.safetensors", "vocabulary.txt"
CARD, SETTINGS, CELLS = "README.md", "settings.toml", "cells.json"
BILM_VOCABULARY = "bilm-vocabulary.txt"  # of a task's model
COPY_OF_BILM, COPY_OF_VECTORS = "bilm", "vectors"  # folders in it, of models that it was built on
TEXT = re.compile(r"([a-z]+-)*(vocabulary|labels)\.txt")
"""The names of vocabularies: of words, of labels, and others of a task's own, such as roles-labels.txt."""
RESTORE = "restore it from a copy"
BUNDLED = ("small", "words")  # models that ship, by name: a bidirectional language model and word vectors
EXAMPLES = (
    *("prose", "code", "prose-elman", "prose-gru", "prose-lstm"),
    *("anbn-lstm", "anbn-gru", "hello", "hello-gru", "hello-lstm"),
    *("english-french", "addition"),
)
"""Models that ship, to be looked into: language models, and two that turn one text into another."""
OURS = re.compile(
    rf"config\.json|model.*\.safetensors|{TEXT.pattern}|vectors\.txt|settings\.toml|cells\.json|README\.md"
    r"|metrics\.jsonl|report\.json|curves\.png|options\.json|weights\.hdf5|vocab\.txt"
    r"|run|last|bilm|vectors|tensorboard|seed-\d+"
)
"""The names that relmo gives to what it writes in a model's folder."""


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, Tensor], values: Any = None) -> str:
    """A safetensors file with a digest of its tensors and a JSON value in its header, whole or not at all. -> the
    digest"""
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    header = {"digest": digest(tensors, values)} | ({} if values is None else {"values": json.dumps(values)})
    with atomic(path) as temporary:
        save_file(tensors, temporary, metadata=header)
    return header["digest"]


def read_tensors(path: Path, known: str | None = None) -> tuple[dict[str, Tensor], Any]:
    """What `write_tensors` wrote, or an error where the file is damaged, or its digest is not the one `known`."""
    with open_tensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = file.metadata() or {}
    try:
        values = parse_json(header.get("values", "null"))
    except ValueError as error:
        raise ModelError(f"{path}: the file is damaged (its header: {error}); restore it from a copy") from error
    if header.get("digest") != digest(tensors, values):
        raise ModelError(f"{path}: the file is damaged (its checksum does not match); restore it from a copy")
    if known is not None and header["digest"] != known:
        raise ModelError(f"{path}: is not the file that config.json was written for; restore both from one copy")
    return tensors, values


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """A safetensors file; one that is missing, cut short or no such file is one clear line."""
    if not is_file(path):
        what = "is not a regular file" if os.path.lexists(path) else "no such file"
        raise ModelError(f"{path}: {what}; the model folder is incomplete")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, RuntimeError) as error:  # torch says RuntimeError of a file it cannot map
        raise ModelError(f"{path}: the file is damaged ({error}); restore it from a copy or train again") from error


def digest(tensors: dict[str, Tensor], values: Any = None) -> str:
    """SHA-256 over the names and bytes of all tensors, and the values where there are any."""
    sha = hashlib.sha256(b"" if values is None else json.dumps(values).encode())
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def own_tensors(network: nn.Module) -> dict[str, Tensor]:
    """The network's weights and buffers by name, a tied one once, under its first name."""
    seen: dict[int, str] = {}
    return {
        name: tensor
        for name, tensor in network.state_dict(keep_vars=True).items()
        if seen.setdefault(id(tensor), name) == name
    }


def save_config(folder: Path, kind: str, values: dict[str, Any]) -> None:
    """config.json: what kind of model this is, and what its loader needs to know."""
    header = {"format_version": FORMAT_VERSION, "kind": kind, "relmo_version": relmo.__version__}
    write_json(folder / CONFIG, header | values | {"digests": text_digests(folder)})


def text_files(folder: Path) -> list[str]:
    """The names of a model's vocabularies, that of its words first."""
    names = (path.name for path in folder.iterdir() if TEXT.fullmatch(path.name) and path.is_file())
    return sorted(names, reverse=True)


def text_digests(folder: Path) -> dict[str, Any]:
    """The fingerprints of a model's vocabularies, for its config.json."""
    return {name: fingerprint(folder / name) for name in text_files(folder)}


def known_text(folder: Path, config: dict[str, Any], name: str) -> Path:
    """The path of one of a model's text files, after it was found to be the one that config.json was written for."""
    path = folder / name
    if "digests" not in config:  # a folder that an older relmo saved
        check_regular(path, f"the model folder is incomplete; {RESTORE}")
        return path
    digests = config["digests"]
    if not isinstance(digests, dict) or name not in digests:
        raise ModelError(f"{folder / CONFIG}: is damaged (it has no digest of {name}); {RESTORE}")
    check_file(path, digests[name], RESTORE)
    return path


def read_config(folder: Path, ships: Sequence[str] = (*BUNDLED, *EXAMPLES)) -> dict[str, Any]:
    """config.json, checked for what every kind has. `ships` are the names that could have been given in its place."""
    path = folder / CONFIG
    if not is_file(path):
        if url := find_url(folder):
            raise ModelError(f"{url}: {NO_DOWNLOAD}")
        what = "is not a model folder (it has no config.json)" if os.path.lexists(folder) else "does not exist"
        near = nearest(str(folder), ships)
        if near and str(folder) not in ships:
            raise ModelError(f"{folder}: {what}; did you mean {near}? These ship with relmo: {', '.join(ships)}")
        ways = ["a folder that relmo has saved", f"the name of a model that ships with it ({', '.join(ships)})"]
        if BUNDLED[0] in ships:
            ways.insert(1, "original ELMo files (an options .json and a weights .hdf5) where a biLM is needed")
        raise ModelError(f"{folder}: {what}; give {', or '.join(ways if ships else ways[:1])}")
    try:
        config = read_json(path)
    except ValueError as error:
        raise ModelError(f"{path}: is not valid JSON ({error}); restore it from a copy") from error
    if not isinstance(config, dict) or "kind" not in config or "format_version" not in config:
        raise ModelError(f"{path}: is not a relmo config (no 'kind' and 'format_version')")
    if config["format_version"] != FORMAT_VERSION:
        raise ModelError(
            f"{path}: format version {shown(config['format_version'])} is not {FORMAT_VERSION}, which relmo reads; "
            "update it"
        )
    if not isinstance(config["kind"], str):
        raise ModelError(f"{path}: is damaged: its kind is {shown(config['kind'])}, not a word")
    return config


def read_settings(folder: Path, values: Any, kind: str) -> Any:
    """The settings that a model of this kind was made with, checked like any others."""
    try:
        settings = build(settings_class(kind), values or {}, source=str(folder / CONFIG))
        check_settings(kind, settings)
    except SettingError as error:
        raise ModelError(f"{folder}: config.json is damaged: {error}") from error
    return settings


def pick_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingError("--device cuda: torch sees no GPU here; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")

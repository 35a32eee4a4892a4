"""`relmo info MODEL`"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from relmo.cli.terminal import print_json, print_table

if TYPE_CHECKING:
    from relmo.store.original import Original

TRAINING = ("dropout", "tied", "softmax", "samples")  # settings that original files do not have


def info(model: str = "small", *, json: bool = False, quiet: bool = False) -> None:
    """Say what a model holds: kind, geometry, parameters, provenance, checksums. The weights are read and checked.

        relmo info models/mine

    Parameters
    ----------
    model
        The model's folder, or small or words, which ship with relmo; or original ELMo files: a folder or .zip that
        holds them, or the path of the options; or a folder of ELMoForManyLangs; or a model that AllenNLP saved.
    json
        Print one JSON object.
    quiet
        Print the kind alone.
    """
    facts = gather(model)
    if json:
        print_json(facts)
    elif quiet:
        print(facts["kind"])
    else:
        print_table(["", ""], [[name, show(value)] for name, value in flatten(facts)])


def gather(model: str) -> dict[str, Any]:
    """What there is to say about a model."""
    from relmo.disk.digests import sha256
    from relmo.loading import load
    from relmo.store.allennlp import is_saved
    from relmo.store.folder import digest, read_config
    from relmo.store.many_langs import is_many_langs
    from relmo.store.original import locate
    from relmo.store.references import bundled
    from relmo.store.weights import read_record

    folder = bundled(model) or Path(model)
    if (original := locate(folder)) is not None:
        return _gather_original(original)
    if is_many_langs(folder):
        return _gather_many_langs(folder)
    if is_saved(folder):
        return _gather_saved(folder)
    config = read_config(folder)
    tensors = load(folder, device="cpu").tensors()  # checks that everything fits together
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return {
        "kind": config["kind"],
        "relmo_version": config.get("relmo_version"),
        "vocabulary": config.get("vocab_size"),
        "parameters": sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point()),
        "weights_digest": digest(tensors),
        "stored_precision": read_record(folder, config).precision,
        "settings": {k: v for section in (config.get("settings") or {}).values() for k, v in section.items()},
        "results": config.get("results", {}),
        "sha256": {path.name: sha256(path) for path in files},
    }


def _gather_original(original: "Original") -> dict[str, Any]:
    """What there is to say about original ELMo files."""
    from relmo.disk.digests import sha256
    from relmo.store.folder import digest, own_tensors
    from relmo.store.original import read_original

    settings, network = read_original(original)
    tensors = {name: tensor.detach() for name, tensor in own_tensors(network).items()}
    return {
        "kind": "bilm",
        "format": "original ELMo files",
        "options": original.options.name,
        "weights": original.weights.name,
        "vocabulary": None,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "weights_digest": digest(tensors),
        "settings": {name: value for name, value in vars(settings.model).items() if name not in TRAINING},
        "results": {},
        "sha256": {path.name: sha256(path) for path in {member.path: None for member in original}},
    }


def _gather_many_langs(folder: Path) -> dict[str, Any]:
    """What there is to say about a folder of ELMoForManyLangs."""
    from relmo.disk.digests import sha256
    from relmo.store.folder import digest, own_tensors
    from relmo.store.many_langs import files_of, read_many_langs

    settings, network, dictionaries = read_many_langs(folder)
    tensors = {name: tensor.detach() for name, tensor in own_tensors(network).items()}
    return {
        "kind": "bilm",
        "format": "ELMoForManyLangs",
        "characters": len(dictionaries.characters),
        "words": None if dictionaries.words is None else len(dictionaries.words),
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "weights_digest": digest(tensors),
        "settings": {name: value for name, value in vars(settings.model).items() if name not in TRAINING},
        "results": {},
        "sha256": {path.name: sha256(path) for path in files_of(folder)},
    }


def _gather_saved(path: Path) -> dict[str, Any]:
    """What there is to say about the ELMo of a model that AllenNLP saved."""
    from relmo.disk.digests import sha256
    from relmo.store.allennlp import read_saved
    from relmo.store.folder import digest, own_tensors

    saved = read_saved(path)
    tensors = {name: tensor.detach() for name, tensor in own_tensors(saved.network).items()}
    return {
        "kind": "bilm",
        "format": "AllenNLP",
        "name": saved.name,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "weights_digest": digest(tensors),
        "settings": {name: value for name, value in vars(saved.settings.model).items() if name not in TRAINING},
        "results": {},
        "sha256": {path.name: sha256(path)} if path.is_file() else {},
    }


def flatten(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested facts as dotted names, those without a value left out."""
    rows: list[tuple[str, Any]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            rows += flatten(value, f"{prefix}{name}.")
        elif value not in (None, [], ()):
            rows.append((prefix + name, value))
    return rows


def show(value: Any) -> str:
    """A value for people."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"

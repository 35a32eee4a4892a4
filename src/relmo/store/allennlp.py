"""The ELMo inside a model saved by AllenNLP.

    model.tar.gz    config.json, weights.th, a vocabulary; before AllenNLP 1.0 also fta/…options_file
    a folder        of a training: config.json next to best.th or weights.th
    a .th file      weights alone; any file of tensors saved by torch, also a .pt

The tensors are read as data (`disk/state_dict.py`); no code in the file is run. An ELMo is recognised by the names of
its tensors (`torch_names.py`) anywhere in the model, and its sizes are those of the tensors. What tensors do not show
(the activation, the clips, the characters per word) is in its options file; without one the published options apply.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from relmo.disk.archive import Member, extract_tar
from relmo.disk.files import is_file, parse_json
from relmo.disk.state_dict import StoredTensor, read_state_dict
from relmo.errors import ModelError, quote
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMSettings
from relmo.store.folder import CONFIG
from relmo.store.original import Section, load_json, make_unallocated, parse_options
from relmo.store.torch_names import ALLENNLP, DIRECTIONS, layout, read_network
from relmo.text.characters import CHARACTERS

ARCHIVES, TENSORS = (".tar.gz", ".tgz"), (".th", ".pt", ".pth")
WEIGHTS = ("best.th", "weights.th")
PUBLISHED = {"activation": "relu", "max_characters_per_token": 50, "n_characters": CHARACTERS + 1}
CLIPS = {"cell_clip": 3, "proj_clip": 3, "use_skip_connections": True}
_MAX_CONFIG_BYTES = 1 << 22
_MAX_NESTING = 50
_BILM = "_elmo_lstm."  # prefix of the biLM inside an Elmo
_MIX = "scalar_mix_"


class ElmoConfig(NamedTuple):
    """Configuration of an ELMo; with `fixed` its mixes are not learned."""

    requires_grad: bool
    do_layer_norm: bool
    dropout: float
    keep_sentence_boundaries: bool
    fixed: bool


class SavedElmo(NamedTuple):
    """ELMo of a saved model: its name, its biLM, its mixes and the projection after them (with AllenNLP's names), and
    its configuration."""

    name: str
    settings: BiLMSettings
    network: BiLMNetwork
    mixes: dict[str, torch.Tensor]
    projection: dict[str, torch.Tensor]
    config: ElmoConfig


class _Files(NamedTuple):
    where: str
    weights: Path
    config: dict[str, Any]
    options: list[dict[str, Any]]


def is_allennlp(source: str | Path) -> bool:
    """Return whether this looks like a model saved by AllenNLP."""
    path = Path(source)
    if is_file(path):
        return path.name.lower().endswith((*ARCHIVES, *TENSORS))
    return any(is_file(path / name) for name in WEIGHTS)


def read_allennlp(source: str | Path, *, name: str | None = None, options: str | Path | None = None) -> SavedElmo:
    """Read the ELMo of a saved model; `name` selects one of several.

    `options` is its options file, if the model does not hold one and it differs from the published one."""
    with _open(Path(source)) as files:
        stored = read_state_dict(files.weights, files.where)
        name, prefix = _find(files.where, stored, name)
        tensors = {key.removeprefix(prefix): tensor for key, tensor in stored.items() if key.startswith(prefix)}
        values, where = _choose_options(files, tensors, options)
        settings = parse_options(values, where)
        network = make_unallocated(settings.model, where)
        files_by_tensor = {part.name: files.where for part in layout(network, ALLENNLP)}
        network = read_network(network, ALLENNLP, tensors, files_by_tensor, where)
        elmo = f"{name}." if name else ""
        mixes = _read_small(stored, elmo, _MIX)
        projection = _read_small(stored, elmo.removesuffix("_elmo."), "_projection.") if name.endswith("_elmo") else {}
        return SavedElmo(name, settings, network, mixes, projection, _read_elmo_config(files, elmo))


@contextmanager
def _open(path: Path) -> Iterator[_Files]:
    if path.name.lower().endswith(ARCHIVES) and is_file(path):
        with tempfile.TemporaryDirectory() as folder:
            copies = extract_tar(
                path, lambda name: name in ("weights.th", CONFIG) or _holds_options(name), Path(folder)
            )
            if "weights.th" not in copies:
                raise ModelError(f"{path}: has no weights.th; it is not a model of AllenNLP")
            options = [_read_json(copy, f"{path}/{name}") for name, copy in copies.items() if _holds_options(name)]
            config = _read_json(copies[CONFIG], f"{path}/{CONFIG}") if CONFIG in copies else {}
            yield _Files(str(path), copies["weights.th"], config, options)
        return
    weights = path if is_file(path) else next((path / name for name in WEIGHTS if is_file(path / name)), path)
    config_path = weights.with_name(CONFIG)
    has_config = is_file(config_path) and weights.suffix == ".th"
    config = _read_json(config_path, str(config_path)) if has_config else {}
    yield _Files(str(weights), weights, config, [])


def _holds_options(name: str) -> bool:
    return name.startswith("fta/") and name.endswith("options_file")


def _read_json(path: Path, where: str) -> dict[str, Any]:
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise ModelError(f"{where}: {path.stat().st_size:,} bytes is too large for a configuration")
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{where}: is not valid JSON ({error})") from error
    return value if isinstance(value, dict) else {}


def _find(where: str, stored: Mapping[str, StoredTensor], name: str | None) -> tuple[str, str]:
    """Return the name of the ELMo and the prefix of the names of its biLM's tensors."""
    prefixes = [key.removesuffix(ALLENNLP.characters) for key in stored if key.endswith(ALLENNLP.characters)]
    names = {key.removesuffix(_BILM).removesuffix("."): key for key in prefixes}
    if not names:
        raise ModelError(f"{where}: holds no ELMo: there is no tensor …{ALLENNLP.characters}")
    if name is None and len(names) > 1:
        raise ModelError(f"{where}: holds several ELMos; give one of the names {' or '.join(map(quote, names))}")
    name = next(iter(names)) if name is None else name
    if name not in names:
        raise ModelError(f"{where}: holds no ELMo {quote(name)}; it has {', '.join(map(quote, names))}")
    return name, names[name]


def _choose_options(
    files: _Files, tensors: Mapping[str, StoredTensor], options: str | Path | None
) -> tuple[dict[str, Any], str]:
    """Return the options (given, of the archive, or inferred from the tensors) and their source."""
    if options is not None:
        return load_json(Member(Path(options))), str(options)
    if any(values != files.options[0] for values in files.options):
        raise ModelError(f"{files.where}: holds different options files; give one as options_file")
    if files.options:
        return files.options[0], f"{files.where}: its options"
    return _infer_options(files.where, tensors), "its tensors and the published options"


def _infer_options(where: str, tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    def get_shape(name: str, *, dimensions: int) -> tuple[int, ...]:
        tensor = tensors.get(name)
        if tensor is None or len(tensor.shape) != dimensions:
            problem = "is missing" if tensor is None else f"has {len(tensor.shape)} dimensions"
            raise ModelError(f"{where}: '{name}' {problem}; it is not ELMo")
        return tensor.shape

    def count(name: str) -> int:
        return next(n for n in range(len(tensors) + 1) if name.format(n) not in tensors)

    cells = ALLENNLP.lstm.format("{}", d=DIRECTIONS[0])
    widths = [
        get_shape(f"{ALLENNLP.convolution.format(i)}.weight", dimensions=3)
        for i in range(count(f"{ALLENNLP.convolution}.weight"))
    ]
    projection, dim = get_shape(f"{cells.format(0)}.state_projection.weight", dimensions=2)
    return {
        "lstm": CLIPS
        | {"dim": dim, "projection_dim": projection, "n_layers": count(f"{cells}.input_linearity.weight")},
        "char_cnn": PUBLISHED
        | {
            "embedding": {"dim": get_shape(ALLENNLP.characters, dimensions=2)[1]},
            "filters": [[width, filters] for filters, _, width in widths],
            "n_highway": count(f"{ALLENNLP.highway}.weight"),
        },
    }


def _read_small(stored: Mapping[str, StoredTensor], prefix: str, begin: str) -> dict[str, torch.Tensor]:
    """Read the tensors whose names have the prefix and then `begin`, without the prefix."""
    return {
        key.removeprefix(prefix): torch.from_numpy(np.array(tensor.read(), dtype=np.float32))
        for key, tensor in stored.items()
        if key.startswith(prefix + begin)
    }


def _read_elmo_config(files: _Files, elmo: str) -> ElmoConfig:
    """Return the configuration of this ELMo.

    It is the object with an options_file; among several, the one whose key is part of the ELMo's name."""
    sections = list(_sections(files.config.get("model"), "", _MAX_NESTING))
    matching = [(key, values) for key, values in sections if key and f"{key}." in elmo.replace("._elmo.", ".")]
    key, values = (matching or sections or [("", {})])[0]
    section = Section(f"{files.where}: {CONFIG}: {key}", values)
    dropout = float(section.get("dropout", int, float, default=0.5))
    if not 0 <= dropout <= 1:
        raise ModelError(f"{section.where}.dropout is {dropout:g}; expected 0 to 1")
    return ElmoConfig(
        requires_grad=section.get("requires_grad", bool, default=False),
        do_layer_norm=section.get("do_layer_norm", bool, default=False),
        dropout=dropout,
        keep_sentence_boundaries=section.get("keep_sentence_boundaries", bool, default=False),
        fixed=values.get("scalar_mix_parameters") is not None,
    )


def _sections(value: Any, key: str, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict) and depth:
        if "options_file" in value:
            yield key, value
        for name, child in value.items():
            yield from _sections(child, name, depth - 1)

"""The ELMo inside a model that AllenNLP saved.

    model.tar.gz    config.json, weights.th, a vocabulary; before AllenNLP 1.0 also fta/…options_file
    a folder        where it trained: config.json beside best.th or weights.th
    a .th file      such weights by themselves; any file of tensors that torch saved, a .pt as well

The tensors are read as data (`disk/state_dict.py`) and no program in the file is run. An ELMo is known by the names of
its tensors (`torch_names.py`), wherever in the model it stands. Its sizes are those of the tensors. What tensors do not
show (the activation, the clips, the characters of a word) is in its options file; where there is none, these are the
published ones, which all models of the paper have.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from relmo.disk.archive import Member
from relmo.disk.files import is_file, parse_json
from relmo.disk.state_dict import StoredTensor, read_state_dict
from relmo.disk.tarball import unpack
from relmo.errors import ModelError, shown
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMSettings
from relmo.store.folder import CONFIG
from relmo.store.original import Section, load_json, parse_options
from relmo.store.torch_names import ALLENNLP, DIRECTIONS, layout, read_network
from relmo.store.weights import Unfilled
from relmo.text.characters import CHARACTERS

ARCHIVES, TENSORS = (".tar.gz", ".tgz"), (".th", ".pt", ".pth")
WEIGHTS = ("best.th", "weights.th")
PUBLISHED = {"activation": "relu", "max_characters_per_token": 50, "n_characters": CHARACTERS + 1}
CLIPS = {"cell_clip": 3, "proj_clip": 3, "use_skip_connections": True}
_LARGEST_CONFIG = 1 << 22
_DEEPEST = 50
_BILM = "_elmo_lstm."  # the biLM inside an Elmo
_MIX = "scalar_mix_"


class ElmoConfig(NamedTuple):
    """What a model's configuration says about its ELMo; `fixed`: its mixes are not learned."""

    requires_grad: bool
    do_layer_norm: bool
    dropout: float
    keep_sentence_boundaries: bool
    fixed: bool


class SavedElmo(NamedTuple):
    """An ELMo of a saved model: its name there, its biLM, its mixes (and the projection behind them) by AllenNLP's
    names, and its configuration."""

    name: str
    settings: BiLMSettings
    network: BiLMNetwork
    mixes: dict[str, torch.Tensor]
    projection: dict[str, torch.Tensor]
    config: ElmoConfig


class _Files(NamedTuple):
    """What was found: the weights, the configuration, each ELMo's options; `where` is the source, for messages."""

    where: str
    weights: Path
    config: dict[str, Any]
    options: list[dict[str, Any]]


def is_saved(source: str | Path) -> bool:
    """Whether this looks like a model that AllenNLP saved."""
    path = Path(source)
    if is_file(path):
        return path.name.lower().endswith((*ARCHIVES, *TENSORS))
    return any(is_file(path / name) for name in WEIGHTS)


def read_saved(source: str | Path, *, name: str | None = None, options: str | Path | None = None) -> SavedElmo:
    """The one ELMo of a saved model, or the one of this name. `options` is its options file, where the model does not
    hold it and it is not as published."""
    with _open(Path(source)) as files:
        stored = read_state_dict(files.weights, files.where)
        name, inside = _find(files.where, stored, name)
        tensors = {key.removeprefix(inside): tensor for key, tensor in stored.items() if key.startswith(inside)}
        given, by = _choose_options(files, tensors, options)
        settings = parse_options(given, by)
        try:
            with torch.device("meta"), Unfilled():
                network = BiLMNetwork(settings.model, vocab_size=None)
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise ModelError(f"{by}: calls for impossible sizes: {error}") from error
        places = {part.name: files.where for part in layout(network, ALLENNLP)}
        network = read_network(network, ALLENNLP, tensors, places, by)
        elmo = f"{name}." if name else ""
        mixes = _read_small(stored, elmo, _MIX)
        projection = _read_small(stored, elmo.removesuffix("_elmo."), "_projection.") if name.endswith("_elmo") else {}
        return SavedElmo(name, settings, network, mixes, projection, _configured(files, elmo))


@contextmanager
def _open(path: Path) -> Iterator[_Files]:
    """The files of a saved model, for as long as it is read."""
    if path.name.lower().endswith(ARCHIVES) and is_file(path):
        with tempfile.TemporaryDirectory() as folder:
            found = unpack(path, lambda name: name in ("weights.th", CONFIG) or _holds_options(name), Path(folder))
            if "weights.th" not in found:
                raise ModelError(f"{path}: has no weights.th; a model that AllenNLP saved has one")
            options = [_read_json(place, f"{path}/{name}") for name, place in found.items() if _holds_options(name)]
            config = _read_json(found[CONFIG], f"{path}/{CONFIG}") if CONFIG in found else {}
            yield _Files(str(path), found["weights.th"], config, options)
        return
    weights = path if is_file(path) else next((path / name for name in WEIGHTS if is_file(path / name)), path)
    beside = weights.with_name(CONFIG)
    config = _read_json(beside, str(beside)) if is_file(beside) and weights.suffix == ".th" else {}
    yield _Files(str(weights), weights, config, [])


def _holds_options(name: str) -> bool:
    return name.startswith("fta/") and name.endswith("options_file")


def _read_json(path: Path, where: str) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST_CONFIG:
        raise ModelError(f"{where}: {path.stat().st_size:,} bytes is too large for a configuration")
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{where}: is not valid JSON ({error})") from error
    return value if isinstance(value, dict) else {}


def _find(where: str, stored: Mapping[str, StoredTensor], name: str | None) -> tuple[str, str]:
    """The ELMo's name, and how the names of its biLM's tensors begin."""
    begin = [key.removesuffix(ALLENNLP.characters) for key in stored if key.endswith(ALLENNLP.characters)]
    names = {key.removesuffix(_BILM).removesuffix("."): key for key in begin}
    if not names:
        raise ModelError(f"{where}: holds no ELMo: no tensor is called …{ALLENNLP.characters}")
    if name is None and len(names) > 1:
        raise ModelError(f"{where}: holds several ELMos; give the name of one, {' or '.join(map(shown, names))}")
    name = next(iter(names)) if name is None else name
    if name not in names:
        raise ModelError(f"{where}: holds no ELMo called {shown(name)}; there is {', '.join(map(shown, names))}")
    return name, names[name]


def _choose_options(
    files: _Files, tensors: Mapping[str, StoredTensor], options: str | Path | None
) -> tuple[dict[str, Any], str]:
    """The ELMo's options: those that are given, those of the archive, or what its tensors show. -> and where they are
    from"""
    if options is not None:
        return load_json(Member(Path(options))), str(options)
    if any(other != files.options[0] for other in files.options):
        raise ModelError(f"{files.where}: holds several options files that differ; give the right one as options_file")
    if files.options:
        return files.options[0], f"{files.where}: its options"
    return _options_of(files.where, tensors), "its own tensors and the published options"


def _options_of(where: str, tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """The options file that an ELMo with these tensors was made from, as far as they show it."""

    def shape(name: str, *, dimensions: int) -> tuple[int, ...]:
        found = tensors.get(name)
        if found is None or len(found.shape) != dimensions:
            what = "missing" if found is None else f"of {len(found.shape)} dimensions"
            raise ModelError(f"{where}: '{name}' is {what}; it is not ELMo")
        return found.shape

    def count(name: str) -> int:
        return next(n for n in range(len(tensors) + 1) if name.format(n) not in tensors)

    cells = ALLENNLP.lstm.format("{}", d=DIRECTIONS[0])
    widths = [
        shape(f"{ALLENNLP.convolution.format(i)}.weight", dimensions=3)
        for i in range(count(f"{ALLENNLP.convolution}.weight"))
    ]
    projection, dim = shape(f"{cells.format(0)}.state_projection.weight", dimensions=2)
    return {
        "lstm": CLIPS
        | {"dim": dim, "projection_dim": projection, "n_layers": count(f"{cells}.input_linearity.weight")},
        "char_cnn": PUBLISHED
        | {
            "embedding": {"dim": shape(ALLENNLP.characters, dimensions=2)[1]},
            "filters": [[width, filters] for filters, _, width in widths],
            "n_highway": count(f"{ALLENNLP.highway}.weight"),
        },
    }


def _read_small(stored: Mapping[str, StoredTensor], prefix: str, begin: str) -> dict[str, torch.Tensor]:
    """The tensors whose names go on like this, without the prefix."""
    wanted = {key.removeprefix(prefix): t for key, t in stored.items() if key.startswith(prefix + begin)}
    return {key: torch.from_numpy(np.array(tensor.read(), dtype=np.float32)) for key, tensor in wanted.items()}


def _configured(files: _Files, elmo: str) -> ElmoConfig:
    """What the configuration says of this ELMo, in the object with its options_file. Among several that is the one
    whose key is in the ELMo's name."""
    found = list(_sections(files.config.get("model"), "", _DEEPEST))
    named = [(key, values) for key, values in found if key and f"{key}." in elmo.replace("._elmo.", ".")]
    key, values = (named or found or [("", {})])[0]
    section = Section(f"{files.where}: {CONFIG}: {key}", values)
    dropout = float(section.get("dropout", int, float, default=0.5))
    if not 0 <= dropout <= 1:
        raise ModelError(f"{section.where}.dropout is {dropout:g}; it goes from 0 to 1")
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
        for inner, part in value.items():
            yield from _sections(part, inner, depth - 1)

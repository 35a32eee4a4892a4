"""Original ELMo files (Peters et al. 2018), options.json and a weights .hdf5: reading and writing.

The two files are recognised by their contents, not by their names: in a folder, in a .zip, next to a given options
file, or as a pair. They may come from anyone: the kind, dtype and shape of a dataset are compared with the options
before memory is allocated, and links out of the file are not followed. The format has no output layer.
"""

import io
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from relmo.disk.archive import MAX_COMPRESSION_RATIO, SIZE_ALLOWANCE, Member, is_zip, open_zip
from relmo.disk.files import NO_DOWNLOAD, find_url, is_file, parse_json, read_text_file
from relmo.disk.outputs import atomic, create_hdf5, new_folder
from relmo.errors import ModelError, SettingError, quote
from relmo.networks.bilm import BiLMNetwork, CharacterEncoder, DictionarySizes
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.fields import parse_filters
from relmo.store.folder import CONFIG, MODEL_FILES, SkipInit, write_json
from relmo.text.characters import CHARACTERS
from relmo.text.vocabulary import escape

if TYPE_CHECKING:
    import h5py  # imported where it is used: other models load faster without it

    from relmo.models.bilm import BiLM

OPTIONS, WEIGHTS, VOCAB = "options.json", "weights.hdf5", "vocab.txt"
PairOrPath = str | Path | Sequence[str | Path]

_HDF5 = (".hdf5", ".h5")
_GATES = (0, 2, 1, 3)  # the gates of the file are i, j, f, o; those of the network i, f, g (= j), o
_MAX_FILES = 10_000  # a folder with more is not a model
_MAX_JSONS, _MAX_WEIGHTS = 100, 8  # candidates that are opened
_MAX_OPTIONS_BYTES = 1 << 20


class Original(NamedTuple):
    """The two files of an original model."""

    options: Member
    weights: Member


def read_original(original: Original) -> tuple[BiLMSettings, BiLMNetwork]:
    """Read the settings and the network."""
    settings = parse_options(load_json(original.options), original.options.name)
    where = original.weights.name
    network = make_unallocated(settings.model, f"{where}: the options")
    with _open_hdf5(original.weights) as file:
        sources = [_find_dataset(file, dataset, where) for dataset in layout(network)]
        needed = sum(source.size * 4 for source in sources)
        stored = sum(source.id.get_storage_size() for source in sources)
        if needed > stored * MAX_COMPRESSION_RATIO + SIZE_ALLOWANCE:
            raise ModelError(f"{where}: declares {needed:,} bytes of weights but stores {stored:,}; it is not a model")
        network = network.to_empty(device="cpu")
        with torch.no_grad():
            for dataset, source in zip(layout(network), sources, strict=True):
                values = np.asarray(source[()], dtype=np.float32)
                if not np.isfinite(values).all():
                    raise ModelError(f"{where}: '{source.name}' has values that are not finite numbers")
                for index, view in dataset.parts:
                    view.copy_(torch.from_numpy(values[index]))
    return settings, network.eval()


def locate(source: PairOrPath) -> Original | None:
    """Find the options and the weights, None if there is neither; an incomplete model or several are an error."""
    if not isinstance(source, str | Path):
        paths = [Path(path) for path in source]
        if len(paths) != 2:
            raise ModelError(f"a pair (options, weights) has two paths, not {len(paths)}")
        for path in paths:
            if not is_file(path):
                if url := find_url(path):
                    raise ModelError(f"{url}: {NO_DOWNLOAD}")
                problem = "is not a file" if os.path.lexists(path) else "does not exist"
                raise ModelError(f"{path}: {problem}; give the path of a file")
        return Original(Member(paths[0]), Member(paths[1]))
    path = Path(source)
    if os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises where a name is too long)
        if is_file(path / CONFIG) and not _is_original(Member(path / CONFIG)):
            return None
        for pattern in ("*", "*/*", "*/*/*"):  # subfolders only where the folder itself has no model
            if (original := _choose(path, _list_files(path, pattern))) is not None:
                return original
        return None
    if not is_file(path):
        return None
    suffix = path.suffix.lower()
    if suffix in (*_HDF5, ".json"):
        is_weights = suffix in _HDF5
        siblings = [member for member in _list_files(path.parent, "*") if member.has_suffix(*_HDF5) != is_weights]
        return _choose(path.parent if is_weights else path, [Member(path), *siblings])
    if suffix == ".zip" or is_zip(path):
        with open_zip(path) as archive:
            members = [Member(path, info) for info in archive.infolist()]
        return _choose(path, members)
    return None


def _list_files(folder: Path, pattern: str) -> list[Member]:
    paths = sorted(p for p in islice(folder.glob(pattern), _MAX_FILES) if p.name[0] != "." and is_file(p))
    return [Member(path) for path in paths]


def _choose(source: str | Path, members: Sequence[Member]) -> Original | None:
    """Choose the options file and the weights file among the members."""
    jsons = [m for m in members if m.has_suffix(".json")][:_MAX_JSONS]
    options = [m for m in jsons if _is_original(m)]
    weights = [m for m in members if m.has_suffix(*_HDF5)]
    if not options and not weights:
        return None

    def has(members: Sequence[Member]) -> str:
        names = ", ".join(m.name.removeprefix(f"{source}{os.sep}") for m in members[:3])
        return names + (f" and {len(members) - 3} more" if len(members) > 3 else "")

    if not options:
        for member in jsons:
            load_json(member)  # raises if it is damaged
        checked = f" (checked: {has(jsons)})" if jsons else ""
        raise ModelError(f"{source}: has {has(weights)}, but no .json with 'lstm' and 'char_cnn'{checked}")
    if not weights:
        raise ModelError(f"{source}: has {has(options)}, but no weights ({' or '.join(_HDF5)})")
    if len(options) > 1:
        raise ModelError(f"{source}: has several options files: {has(options)}; give the path of one")
    if 1 < len(weights) <= _MAX_WEIGHTS:
        weights = [m for m in weights if _is_original(m)] or weights
    if len(weights) > 1:  # elmo_small_options.json, elmo_small_weights.hdf5
        stem = Path(options[0].name).stem.replace("options", "weights")
        weights = [m for m in weights if Path(m.name).stem == stem] or weights
    if len(weights) > 1:
        raise ModelError(f"{source}: has several weights files: {has(weights)}; give a pair (options, weights)")
    return Original(options[0], weights[0])


def _is_original(member: Member) -> bool:
    try:
        if member.has_suffix(".json"):
            return "lstm" in load_json(member)
        with _open_hdf5(member) as file:
            return "char_embed" in file
    except ModelError:
        return False


def load_json(member: Member) -> dict[str, Any]:
    """Read the object of a small JSON file."""
    if member.size > _MAX_OPTIONS_BYTES:
        raise ModelError(f"{member.name}: {member.size:,} bytes is too large for an options file")
    try:
        value = parse_json(member.read().decode("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{member.name}: is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{member.name}: must be a JSON object with 'lstm' and 'char_cnn', not {_json_kind(value)}")
    return value


def read_optional_json(path: Path, where: str) -> dict[str, Any]:
    """Read the object of a small JSON file that may be missing; any other value counts as an empty object."""
    try:
        value = parse_json(read_text_file(path)) if is_file(path) else {}
    except ValueError as error:
        raise ModelError(f"{where}: is not valid JSON ({error})") from error
    return value if isinstance(value, dict) else {}


def _json_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), quote(value))


class Section:
    """Object of an options file, read key by key; other keys are ignored."""

    def __init__(self, where: str, values: Any):
        if not isinstance(values, dict):
            raise ModelError(f"{where} must be an object, not {_json_kind(values)}")
        self.where, self.values = where, values

    def get(self, key: str, *kinds: type, default: Any = None) -> Any:
        """Return a value of one of these types, or the default if it is absent or null."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) not in kinds:
            problem = "is missing" if key not in self.values else f"is {_json_kind(value)}"
            raise ModelError(f"{self.where}.{key} {problem}; expected {' or '.join(kind.__name__ for kind in kinds)}")
        return value


def parse_options(values: dict[str, Any], where: str) -> BiLMSettings:
    """Convert the contents of an options file to settings."""
    for key in ("lstm", "char_cnn"):
        if key not in values:
            raise ModelError(f"{where}: '{key}' is missing; an options file has 'lstm' and 'char_cnn'")
    lstm = Section(f"{where}: lstm", values["lstm"])
    cnn = Section(f"{where}: char_cnn", values["char_cnn"])
    embedding = Section(f"{cnn.where}.embedding", cnn.get("embedding", dict))
    characters = cnn.get("n_characters", int, default=CHARACTERS + 1)
    if characters not in (CHARACTERS, CHARACTERS + 1):
        raise ModelError(f"{cnn.where}.n_characters is {quote(characters)}; expected {CHARACTERS} or {CHARACTERS + 1}")
    return make_settings(
        where,
        cnn,
        lstm,
        char_dim=embedding.get("dim", int),
        max_characters=cnn.get("max_characters_per_token", int, default=50),
        highway=cnn.get("n_highway", int, default=0),
        layers=lstm.get("n_layers", int, default=1),
        skip_connections=lstm.get("use_skip_connections", bool, default=False),
    )


def make_settings(where: str, cnn: Section, lstm: Section, **values: Any) -> BiLMSettings:
    """Return settings with `values` and those that every format stores alike: filters, activation, sizes, clips."""
    filters = cnn.get("filters", list)
    for pair in filters:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(number) is int for number in pair):
            raise ModelError(f"{cnn.where}.filters must be pairs [width, count], not {quote(pair)}")
    activation = cnn.get("activation", str)
    if activation not in ("relu", "tanh"):
        raise ModelError(f"{cnn.where}.activation must be relu or tanh, not {quote(activation)}")
    try:
        model = BiLMModelSettings(
            filters=tuple(f"{width}x{count}" for width, count in filters),
            activation=activation,
            hidden=lstm.get("dim", int),
            projection=lstm.get("projection_dim", int),
            cell_clip=float(lstm.get("cell_clip", int, float, default=0.0)),
            projection_clip=float(lstm.get("proj_clip", int, float, default=0.0)),
            **values,
        )
        settings = BiLMSettings(model=model)
        settings.check()
    except (SettingError, OverflowError) as error:
        raise ModelError(f"{where}: cannot be built: {error}") from error
    return settings


class Dataset(NamedTuple):
    """Dataset of the hdf5 file: its names (the first is the one that is written), its shape, and its parts.

    A part is an index and the tensor for it, a view of the network's weights in the file's order of dimensions."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    parts: list[tuple[tuple[slice, ...], Tensor]]


def layout(network: BiLMNetwork) -> Iterator[Dataset]:
    """Yield the datasets of a network; reading copies one way and writing the other, so a round trip is exact."""

    def single(name: str, view: Tensor) -> Dataset:
        return Dataset((name,), tuple(view.shape), [((), view)])

    encoder = network.encoder
    assert isinstance(encoder, CharacterEncoder)
    yield single("char_embed", encoder.cnn.embedding)
    for i, (weight, bias) in enumerate(zip(encoder.cnn.weights, encoder.cnn.biases, strict=True)):
        yield single(f"CNN/W_cnn_{i}", weight.permute(2, 1, 0).unsqueeze(0))  # (1, width, E, count)
        yield single(f"CNN/b_cnn_{i}", bias)
    linears: dict[str, nn.Linear] = {}
    for k, highway in enumerate(encoder.highways):
        linears |= {f"CNN_high_{k}/{{}}_{name}": getattr(highway, name) for name in ("carry", "transform")}
    if encoder.projection is not None:
        linears["CNN_proj/{}_proj"] = encoder.projection
    for name, linear in linears.items():
        yield single(name.format("W"), linear.weight.T)
        yield single(name.format("b"), linear.bias)
    assert isinstance(network.lstm, ElmoLSTM)
    for d, (depth, layer) in product(range(2), enumerate(network.lstm.stack)):
        paths = [f"RNN_{d}/RNN/MultiRNNCell/Cell{depth}/LSTMCell/"]
        if len(network.lstm.layers) == 1:
            paths.append(f"RNN_{d}/RNN/LSTMCell/")  # name in the export of the original trainer
        # The gates are columns of W_0; its upper rows are for the input, the lower ones for the previous output.
        hidden, inputs, outputs = layer.hidden_size, layer.weight_ih.shape[2], layer.weight_hh.shape[2]
        weights: list[tuple[tuple[slice, ...], Tensor]] = []
        biases: list[tuple[tuple[slice, ...], Tensor]] = []
        for file_gate, network_gate in enumerate(_GATES):
            columns = slice(file_gate * hidden, (file_gate + 1) * hidden)
            gate = slice(network_gate * hidden, (network_gate + 1) * hidden)
            weights.append(((slice(inputs), columns), layer.weight_ih[d, gate].T))
            weights.append(((slice(inputs, inputs + outputs), columns), layer.weight_hh[d, gate].T))
            biases.append(((columns,), layer.bias[d, gate]))
        yield Dataset(tuple(path + "W_0" for path in paths), (inputs + outputs, 4 * hidden), weights)
        yield Dataset(tuple(path + "B" for path in paths), (4 * hidden,), biases)
        if layer.weight_hr is not None:
            names = tuple(path + "W_P_0" for path in paths)
            yield Dataset(names, (hidden, outputs), [((), layer.weight_hr[d].T)])


@contextmanager
def _open_hdf5(member: Member) -> Iterator["h5py.File"]:
    import h5py

    source = member.path if member.info is None else io.BytesIO(member.read())
    try:
        with h5py.File(source, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        problem = " ".join(str(error).split())[:200]
        raise ModelError(f"{member.name}: cannot be read as HDF5 ({problem}); restore it from a copy") from error


def make_unallocated(
    settings: BiLMModelSettings, where: str, dictionaries: DictionarySizes | None = None
) -> BiLMNetwork:
    """Create a network without memory, to be compared with a file; `where` is the source of its sizes."""
    try:
        with torch.device("meta"), SkipInit():
            return BiLMNetwork(settings, vocab_size=None, dictionaries=dictionaries)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{where}: impossible sizes: {error}") from error


def _find_dataset(file: "h5py.File", dataset: Dataset, where: str) -> "h5py.Dataset":
    """Return a dataset after checking everything but its numbers."""
    import h5py

    expected = " x ".join(map(str, dataset.shape))
    for name in dataset.names:
        node: Any = file
        for key in name.split("/"):
            link = node.get(key, getlink=True) if isinstance(node, h5py.Group) else None
            if link is None:
                node = None
                break
            if not isinstance(link, h5py.HardLink):
                raise ModelError(f"{where}: '{name}' is a link out of the file, which relmo does not follow")
            node = node[key]
        if isinstance(node, h5py.Dataset):
            break
    else:
        raise ModelError(f"{where}: '{dataset.names[0]}' is missing; by the options its shape is {expected}")
    if node.is_virtual or node.external:
        raise ModelError(f"{where}: '{name}' is stored in another file, which relmo does not open")
    if node.dtype.kind != "f" or node.dtype.itemsize not in (2, 4, 8):
        raise ModelError(f"{where}: '{name}' holds {node.dtype}; expected float32 (or float16, float64)")
    if node.chunks and math.prod(node.chunks) * node.dtype.itemsize > node.nbytes + SIZE_ALLOWANCE:
        raise ModelError(f"{where}: '{name}' is stored in chunks larger than itself; it is not a model")
    if node.shape != dataset.shape:
        shape = "empty" if node.shape is None else " x ".join(map(str, node.shape)) or "a single number"
        advice = "do the options belong to this model?"
        raise ModelError(f"{where}: the shape of '{name}' is {shape}, by the options {expected}; {advice}")
    return node


def write_original(model: "BiLM", folder: str | Path, *, overwrite: bool = False) -> None:
    """Write options.json, weights.hdf5 and, if the model has a vocabulary, vocab.txt."""
    settings = model.settings.model
    if settings.input != "char":
        raise ModelError(f"the original format supports character input only, not {settings.input} input")
    if not isinstance(model.network.lstm, ElmoLSTM):
        raise ModelError(f"the original format supports ELMo's LSTM only, not {model.network.lstm.describe()}")
    clips = (settings.cell_clip, settings.projection_clip)
    cell_clip, projection_clip = ((int(clip) if clip.is_integer() else clip) if clip else None for clip in clips)
    options = {  # every key that some reader requires
        "lstm": {
            "use_skip_connections": settings.skip_connections,
            "projection_dim": settings.projection,
            "cell_clip": cell_clip,
            "proj_clip": projection_clip,
            "dim": settings.hidden,
            "n_layers": settings.layers,
        },
        "char_cnn": {
            "activation": settings.activation,
            "filters": [list(pair) for pair in parse_filters(settings.filters)],
            "max_characters_per_token": settings.max_characters,
            "embedding": {"dim": settings.char_dim},
            "n_characters": CHARACTERS + 1,
            "n_highway": settings.highway,
        },
    }
    with new_folder(Path(folder), overwrite=overwrite, ours=MODEL_FILES) as temporary_folder:
        write_hdf5(temporary_folder / WEIGHTS, model.network)
        if model.vocabulary is not None:
            specials = model.vocabulary.specials  # an original vocabulary has these first, and escapes spaces only
            words = [*specials, *(word for word in model.vocabulary.symbols if word not in specials)]
            lines = (escape(word) if any(c.isspace() for c in word) else word for word in words)
            with atomic(temporary_folder / VOCAB) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        write_json(temporary_folder / OPTIONS, options)


def write_hdf5(path: Path, network: BiLMNetwork) -> None:
    """Write the weights of a network, without its output layer."""
    with create_hdf5(path) as file, torch.no_grad():
        for dataset in layout(network):
            values = np.empty(dataset.shape, dtype=np.float32)
            for index, view in dataset.parts:
                values[index] = view.cpu().numpy()
            file.add(dataset.names[0], data=values)

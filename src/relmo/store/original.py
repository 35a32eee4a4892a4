"""Original ELMo files, options.json and a weights .hdf5, to and from relmo's own.

Choices:
- The two files are found by what they hold, not by their names: in a folder, in a .zip (read without unpacking it to
  disk), beside a given options file, or as a pair.
- Names in the hdf5 file are data: `_layout` says which part of which dataset is which part of which of our tensors.
  Reading copies one way, writing the other, so a round trip changes no bit.
- The files may come from anyone. Options must be small and of the right types. The kind, type and shape of a dataset
  are compared with the options before memory is taken for its numbers. Links out of the file are not followed.

The format is that of Peters et al. 2018, Deep contextualized word representations. It holds no output layer.
"""

import io
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from relmo.disk.archive import HIGHEST_RATIO, SPARE, Member, open_zip
from relmo.disk.files import NO_DOWNLOAD, find_url, is_file, parse_json
from relmo.disk.outputs import atomic, new_folder
from relmo.errors import ModelError, SettingError, shown
from relmo.networks.bilm import BiLMNetwork, CharacterEncoder
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, check_bilm
from relmo.settings.bounds import parse_filters
from relmo.store.folder import CONFIG, OURS, write_json
from relmo.store.weights import Unfilled
from relmo.text.characters import CHARACTERS
from relmo.text.vocabulary import SentenceVocabulary, escape

if TYPE_CHECKING:
    import h5py  # where it is used: models of other kinds load without it, and faster

    from relmo.models.bilm import BiLM

OPTIONS, WEIGHTS, VOCAB = "options.json", "weights.hdf5", "vocab.txt"
PairOrPath = str | Path | Sequence[str | Path]

_HDF5 = (".hdf5", ".h5")
_GATES = (0, 2, 1, 3)  # the file's gates are i, j, f, o, ours i, f, g (= j), o
_MOST_FILES = 10_000  # a folder with more is not a model
_MOST_JSONS, _MOST_WEIGHTS = 100, 8  # that are looked into
_LARGEST_OPTIONS = 1 << 20


class Original(NamedTuple):
    """An original model's two files."""

    options: Member
    weights: Member


def read_original(original: Original) -> tuple[BiLMSettings, BiLMNetwork]:
    """The settings and the network in these two files, which hold no vocabulary."""
    settings = parse_options(load_json(original.options), original.options.name)
    return settings, _read_weights(original.weights, settings.model)


def locate(source: PairOrPath) -> Original | None:
    """Where the options and the weights are; None where there is neither. A part of a model, or several models, is an
    error that says what was found."""
    if not isinstance(source, str | Path):
        return _pair(source)
    path = Path(source)
    if os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises where a name is too long)
        return None if is_file(path / CONFIG) and not _is_options(Member(path / CONFIG)) else _in_folder(path)
    if not is_file(path):
        return None
    suffix = path.suffix.lower()
    beside = [Member(p) for p in _files(path.parent, "*")]
    if suffix in _HDF5:
        return _choose(path.parent, [m for m in beside if not m.is_one_of(*_HDF5)] + [Member(path)])
    if suffix == ".json":
        return _choose(path, [Member(path), *(m for m in beside if m.is_one_of(*_HDF5))])
    if suffix == ".zip" or zipfile.is_zipfile(path):
        with open_zip(path) as archive:
            members = [Member(path, info) for info in archive.infolist()]
        return _choose(path, members)
    return None


def _pair(source: Iterable[str | Path]) -> Original:
    """A pair of paths. Whether they hold the right things shows when they are read."""
    paths = [Path(path) for path in source]
    if len(paths) != 2:
        raise ModelError(f"a pair (options, weights) is two paths, not {len(paths)}")
    for path in paths:
        if not is_file(path):
            if url := find_url(path):
                raise ModelError(f"{url}: {NO_DOWNLOAD}")
            problem = "is not a file" if os.path.lexists(path) else "does not exist"
            raise ModelError(f"{path}: {problem}; give the path of a file")
    return Original(Member(paths[0]), Member(paths[1]))


def _files(folder: Path, pattern: str) -> list[Path]:
    """Files that are not hidden."""
    return sorted(p for p in islice(folder.glob(pattern), _MOST_FILES) if p.name[0] != "." and is_file(p))


def _in_folder(folder: Path) -> Original | None:
    """The model in the folder itself or, if there is none, in its subfolders, two levels deep."""
    for pattern in ("*", "*/*", "*/*/*"):
        members = [Member(path) for path in _files(folder, pattern)]
        if (found := _choose(folder, members)) is not None:
            return found
    return None


def _choose(source: str | Path, members: Sequence[Member]) -> Original | None:
    """The one options file and the one weights file among these."""
    jsons = [m for m in members if m.is_one_of(".json")][:_MOST_JSONS]
    options = [m for m in jsons if _is_options(m)]
    weights = [m for m in members if m.is_one_of(*_HDF5)]
    if not options and not weights:
        return None
    if not options:
        for member in jsons:
            load_json(member)  # a broken one says so
        seen = f" (read: {_names(source, jsons)})" if jsons else ""
        raise ModelError(f"{source}: there is {_names(source, weights)}, but no .json with 'lstm' and 'char_cnn'{seen}")
    if not weights:
        raise ModelError(
            f"{source}: there is {_names(source, options)}, but no weights ({' or '.join(_HDF5)}) beside it"
        )
    if len(options) > 1:
        raise ModelError(f"{source}: there are several options files: {_names(source, options)}; give the path of one")
    if 1 < len(weights) <= _MOST_WEIGHTS:
        weights = [m for m in weights if _has_characters(m)] or weights
    if len(weights) > 1:  # elmo_small_options.json, elmo_small_weights.hdf5
        stem = Path(options[0].name).stem.replace("options", "weights")
        weights = [m for m in weights if Path(m.name).stem == stem] or weights
    if len(weights) > 1:
        raise ModelError(
            f"{source}: there are several weights files: {_names(source, weights)}; give a pair (options, weights)"
        )
    return Original(options[0], weights[0])


def _names(source: str | Path, members: Sequence[Member]) -> str:
    """The names of some of the files, as seen from the source."""
    first = ", ".join(m.name.removeprefix(f"{source}{os.sep}") for m in members[:3])
    return first + (f" and {len(members) - 3} more" if len(members) > 3 else "")


def _is_options(member: Member) -> bool:
    """Whether this is a JSON object with the original's keys."""
    if not member.is_one_of(".json") or member.size > _LARGEST_OPTIONS:
        return False
    try:
        return "lstm" in load_json(member)
    except ModelError:
        return False


def _has_characters(member: Member) -> bool:
    """Whether this is an HDF5 file with an original model's character embeddings."""
    try:
        with _open_hdf5(member) as file:
            return "char_embed" in file
    except ModelError:
        return False


def load_json(member: Member) -> dict[str, Any]:
    """The object in a JSON file, which is small."""
    if member.size > _LARGEST_OPTIONS:
        raise ModelError(f"{member.name}: {member.size:,} bytes is too large for an options file")
    try:
        value = parse_json(member.read().decode("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{member.name}: is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{member.name}: must be a JSON object with 'lstm' and 'char_cnn', not {_json_kind(value)}")
    return value


def _json_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), shown(value))


class Section:
    """An object of the options file, read key by key; its other keys are ignored."""

    def __init__(self, where: str, values: Any):
        if not isinstance(values, dict):
            raise ModelError(f"{where} must be an object, not {_json_kind(values)}")
        self.where, self.values = where, values

    def get(self, key: str, *kinds: type, default: Any = None) -> Any:
        """A value of one of these types, or the default where it is absent or null. Without a default it must be
        there."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) not in kinds:
            what = "is missing" if key not in self.values else f"is {_json_kind(value)}"
            raise ModelError(f"{self.where}.{key} {what}; expected {' or '.join(kind.__name__ for kind in kinds)}")
        return value

    def section(self, key: str) -> "Section":
        """An object inside this one."""
        if key not in self.values:
            raise ModelError(f"{self.where}.{key} is missing")
        return Section(f"{self.where}.{key}", self.values[key])


def parse_options(values: dict[str, Any], where: str) -> BiLMSettings:
    """The settings that an original options file describes."""
    for key in ("lstm", "char_cnn"):
        if key not in values:
            raise ModelError(f"{where}: '{key}' is missing; an original options file has 'lstm' and 'char_cnn'")
    lstm = Section(f"{where}: lstm", values["lstm"])
    cnn = Section(f"{where}: char_cnn", values["char_cnn"])
    characters = cnn.get("n_characters", int, default=CHARACTERS + 1)
    if characters not in (CHARACTERS, CHARACTERS + 1):
        raise ModelError(
            f"{cnn.where}.n_characters is {shown(characters)}; it is {CHARACTERS} or {CHARACTERS + 1} in every model"
        )
    try:
        settings = BiLMSettings(
            model=BiLMModelSettings(
                char_dim=cnn.section("embedding").get("dim", int),
                filters=tuple(read_filters(cnn)),
                activation=read_activation(cnn),
                max_characters=cnn.get("max_characters_per_token", int, default=50),
                highway=cnn.get("n_highway", int, default=0),
                layers=lstm.get("n_layers", int, default=1),
                hidden=lstm.get("dim", int),
                projection=lstm.get("projection_dim", int),
                cell_clip=float(lstm.get("cell_clip", int, float, default=0.0)),
                projection_clip=float(lstm.get("proj_clip", int, float, default=0.0)),
                skip_connections=lstm.get("use_skip_connections", bool, default=False),
            )
        )
        check_bilm(settings)
    except (SettingError, OverflowError) as error:
        raise ModelError(f"{where}: cannot be built: {error}") from error
    return settings


def read_filters(cnn: Section) -> Iterator[str]:
    """[[1, 32], [2, 64]] as "1x32", "2x64"."""
    for pair in cnn.get("filters", list):
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(number) is int for number in pair):
            raise ModelError(f"{cnn.where}.filters must be pairs [width, how many], not {shown(pair)}")
        yield f"{pair[0]}x{pair[1]}"


def read_activation(cnn: Section) -> Any:
    """relu or tanh."""
    name = cnn.get("activation", str)
    if name not in ("relu", "tanh"):
        raise ModelError(f"{cnn.where}.activation must be relu or tanh, not {shown(name)}")
    return name


class Dataset(NamedTuple):
    """A dataset of the hdf5 file: its names (the first is the one we write), its shape, and its parts with our tensor
    for each. A tensor is a view into the network's weights, in the file's order of dimensions."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    parts: list[tuple[tuple[slice, ...], Tensor]]


def _layout(network: BiLMNetwork) -> Iterator[Dataset]:
    """Every dataset of an original file that holds this network."""

    def whole(name: str, view: Tensor) -> Dataset:
        return Dataset((name,), tuple(view.shape), [((), view)])

    encoder = network.encoder
    assert isinstance(encoder, CharacterEncoder)
    yield whole("char_embed", encoder.cnn.embedding)
    for i, (weight, bias) in enumerate(zip(encoder.cnn.weights, encoder.cnn.biases, strict=True)):
        yield whole(f"CNN/W_cnn_{i}", weight.permute(2, 1, 0).unsqueeze(0))  # (1, width, E, count)
        yield whole(f"CNN/b_cnn_{i}", bias)
    linears: dict[str, nn.Linear] = {}
    for k, highway in enumerate(encoder.highways):
        linears |= {f"CNN_high_{k}/{{}}_{name}": getattr(highway, name) for name in ("carry", "transform")}
    if encoder.projection is not None:
        linears["CNN_proj/{}_proj"] = encoder.projection
    for name, linear in linears.items():
        yield whole(name.format("W"), linear.weight.T)
        yield whole(name.format("b"), linear.bias)
    for d in range(2):
        for depth in range(len(network.lstm.layers)):
            yield from _lstm_layout(network, d, depth)


def _lstm_layout(network: BiLMNetwork, d: int, depth: int) -> Iterator[Dataset]:
    """One LSTM. The gates stand side by side in W_0; its first rows are for the input, the rest for the output of the
    step before."""
    layer = network.lstm.stack[depth]
    paths = [f"RNN_{d}/RNN/MultiRNNCell/Cell{depth}/LSTMCell/"]
    if len(network.lstm.layers) == 1:
        paths.append(f"RNN_{d}/RNN/LSTMCell/")  # what the original trainer's export calls it
    hidden, inputs, outputs = layer.hidden_size, layer.weight_ih.shape[2], layer.weight_hh.shape[2]
    weights: list[tuple[tuple[slice, ...], Tensor]] = []
    biases: list[tuple[tuple[slice, ...], Tensor]] = []
    for there, here in enumerate(_GATES):
        columns = slice(there * hidden, (there + 1) * hidden)
        gate = slice(here * hidden, (here + 1) * hidden)
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
    """An HDF5 file to read from. A broken one is an error of one line."""
    import h5py

    source = member.path if member.inside is None else io.BytesIO(member.read())
    try:
        with h5py.File(source, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{member.name}: cannot be read as HDF5 ({reason}); restore it from a copy") from error


def _read_weights(member: Member, settings: BiLMModelSettings) -> BiLMNetwork:
    """The network of these settings with the weights of an hdf5 file. It is first made without memory and compared with
    the file."""
    try:
        with torch.device("meta"), Unfilled():
            network = BiLMNetwork(settings, vocab_size=None)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{member.name}: the options call for impossible sizes: {error}") from error
    with _open_hdf5(member) as file:
        found = [_find_dataset(file, dataset, member.name) for dataset in _layout(network)]
        needed = sum(dataset.size * 4 for dataset in found)
        stored = sum(dataset.id.get_storage_size() for dataset in found)
        if needed > stored * HIGHEST_RATIO + SPARE:
            raise ModelError(
                f"{member.name}: declares {needed:,} bytes of weights but stores {stored:,}; it is not a model"
            )
        network = network.to_empty(device="cpu")
        with torch.no_grad():
            for dataset, source in zip(_layout(network), found, strict=True):
                values = np.asarray(source[()], dtype=np.float32)
                if not np.isfinite(values).all():
                    raise ModelError(f"{member.name}: '{source.name}' has values that are not finite numbers")
                for index, view in dataset.parts:
                    view.copy_(torch.from_numpy(values[index]))
    return network.eval()


def _find_dataset(file: "h5py.File", dataset: Dataset, where: str) -> "h5py.Dataset":
    """The dataset in the file, checked but not read."""
    import h5py

    for name in dataset.names:
        place: Any = file
        for step in name.split("/"):
            link = place.get(step, getlink=True) if isinstance(place, h5py.Group) else None
            if link is None:
                place = None
                break
            if not isinstance(link, h5py.HardLink):
                raise ModelError(f"{where}: '{name}' is a link to elsewhere, which relmo does not follow")
            place = place[step]
        if isinstance(place, h5py.Dataset):
            break
    else:
        raise ModelError(f"{where}: '{dataset.names[0]}' is missing; by the options it is {_shape(dataset.shape)}")
    if place.is_virtual or place.external:
        raise ModelError(f"{where}: '{name}' lies in another file, which relmo does not open")
    if place.dtype.kind != "f" or place.dtype.itemsize not in (2, 4, 8):
        raise ModelError(f"{where}: '{name}' holds {place.dtype}; expected float32 (or float16, float64)")
    if place.chunks and math.prod(place.chunks) * place.dtype.itemsize > place.nbytes + SPARE:
        raise ModelError(f"{where}: '{name}' is stored in pieces larger than itself; it is not a model")
    if place.shape != dataset.shape:
        raise ModelError(
            f"{where}: '{name}' is {_shape(place.shape)}; by the options it is {_shape(dataset.shape)}: "
            "are these the options of this model?"
        )
    return place


def _shape(shape: tuple[int, ...] | None) -> str:
    return "empty" if shape is None else " x ".join(map(str, shape)) or "a single number"


def write_original(model: "BiLM", folder: str | Path, *, overwrite: bool = False) -> None:
    """Writes options.json, weights.hdf5 and, where the model has a vocabulary, vocab.txt, as the tools for original
    ELMo files read them. The output layer has no place in the format and is left out."""
    settings = model.settings.model
    if settings.input != "char":
        raise ModelError(f"a model with {settings.input} input has no place in the original format, which reads bytes")
    with new_folder(Path(folder), overwrite=overwrite, ours=OURS) as inside:
        write_hdf5(inside / WEIGHTS, model.network)
        if model.vocabulary is not None:
            with atomic(inside / VOCAB) as temporary:
                temporary.write_text("".join(f"{w}\n" for w in _plain_words(model.vocabulary)), encoding="utf-8")
        write_json(inside / OPTIONS, _original_options(settings))


def _original_options(settings: BiLMModelSettings) -> dict[str, Any]:
    """Settings as an original options file has them, with every key that some reader insists on."""

    def number(clip: float) -> int | float | None:
        return (int(clip) if clip.is_integer() else clip) if clip else None

    return {
        "lstm": {
            "use_skip_connections": settings.skip_connections,
            "projection_dim": settings.projection,
            "cell_clip": number(settings.cell_clip),
            "proj_clip": number(settings.projection_clip),
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


def write_hdf5(path: Path, network: BiLMNetwork) -> None:
    """The network's weights, without its output layer, as an original hdf5 file."""
    from relmo.disk.hdf5 import new_hdf5

    with new_hdf5(path) as file, torch.no_grad():
        for dataset in _layout(network):
            values = np.empty(dataset.shape, dtype=np.float32)
            for index, view in dataset.parts:
                values[index] = view.cpu().numpy()
            file.add(dataset.names[0], data=values)


def _plain_words(vocabulary: SentenceVocabulary) -> list[str]:
    """The words as an original vocabulary file lists them: the specials first, only words with spaces escaped."""
    specials = vocabulary.specials
    words = [*specials, *(word for word in vocabulary.symbols if word not in specials)]
    return [escape(word) if any(c.isspace() for c in word) else word for word in words]

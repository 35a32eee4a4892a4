"""The ELMo inside a model saved by AllenNLP: a model.tar.gz, the folder of a training, or a .th file of weights.

An ELMo is recognised by the names of its tensors anywhere in the model, and its sizes are those of the tensors. What
tensors do not show (the activation, the clips, the characters per word) is in an options file; without one the
published options apply. Two conventions differ from relmo's: the bias of the forget gate includes the constant 1 that
relmo adds, and the gate of a highway layer multiplies the input, not the transform, so that its sign is reversed.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.disk.archive import Member, extract_tar
from relmo.disk.files import is_file
from relmo.disk.state_dict import StoredTensor, read_state_dict
from relmo.errors import ModelError, quote
from relmo.networks.bilm import BiLMNetwork, DictionaryEncoder, WordEncoder
from relmo.nn.recurrence.elmo_lstm import FORGET_BIAS, ElmoLSTM
from relmo.settings.bilm import BiLMSettings
from relmo.store.folder import CONFIG
from relmo.store.original import Section, load_json, make_unallocated, parse_options, read_optional_json
from relmo.text.characters import CHARACTERS

ARCHIVES, TENSORS = (".tar.gz", ".tgz"), (".th", ".pt", ".pth")
WEIGHTS = ("best.th", "weights.th")
PUBLISHED = {"activation": "relu", "max_characters_per_token": 50, "n_characters": CHARACTERS + 1}
CLIPS = {"cell_clip": 3, "proj_clip": 3, "use_skip_connections": True}
_MAX_NESTING = 50
_BILM = "_elmo_lstm."  # prefix of the biLM inside an Elmo
_MIX = "scalar_mix_"


class Names(NamedTuple):
    """Names of tensors in a tool, without `.weight` and `.bias`. {} is an index, {d} forward or backward."""

    characters: str
    words: str
    convolution: str
    highway: str
    projection: str
    lstm: str
    padding: int
    """Number of zero rows before the vector of the first character."""


ALLENNLP = Names(
    characters="_token_embedder._char_embedding_weights",
    words="",
    convolution="_token_embedder.char_conv_{}",
    highway="_token_embedder._highways._layers.{}",
    projection="_token_embedder._projection",
    lstm="_elmo_lstm.{d}_layer_{}",
    padding=1,
)
MANY_LANGS = Names(
    characters="char_emb_layer.embedding.weight",
    words="word_emb_layer.embedding.weight",
    convolution="convolutions.{}",
    highway="highways._layers.{}",
    projection="projection",
    lstm="{d}_layer_{}",
    padding=0,
)
DIRECTIONS = ("forward", "backward")


class SavedElmo(NamedTuple):
    """ELMo of a saved model: its name, its biLM, its mixes and the projection after them (with AllenNLP's names);
    whether the biLM is trained and the mixes are not; and further `options` of AllenNLP's class Elmo."""

    name: str
    settings: BiLMSettings
    network: BiLMNetwork
    mixes: dict[str, Tensor]
    projection: dict[str, Tensor]
    requires_grad: bool
    has_fixed_mixes: bool
    options: dict[str, Any]


def is_allennlp(source: str | Path) -> bool:
    """Return whether this looks like a model saved by AllenNLP."""
    path = Path(source)
    if is_file(path):
        return path.name.lower().endswith((*ARCHIVES, *TENSORS))
    return any(is_file(path / name) for name in WEIGHTS)


def read_allennlp(source: str | Path, *, name: str | None = None, options: str | Path | None = None) -> SavedElmo:
    """Read the ELMo of a saved model; `name` selects one of several.

    `options` is its options file, if the model does not hold one and it differs from the published one."""
    with _open(Path(source)) as (path, weights, config, option_files):
        stored = read_state_dict(weights, path)
        prefixes = [key.removesuffix(ALLENNLP.characters) for key in stored if key.endswith(ALLENNLP.characters)]
        names = {key.removesuffix(_BILM).removesuffix("."): key for key in prefixes}
        if not names:
            raise ModelError(f"{path}: holds no ELMo: there is no tensor …{ALLENNLP.characters}")
        if name is None and len(names) > 1:
            raise ModelError(f"{path}: holds several ELMos; give one of the names {' or '.join(map(quote, names))}")
        name = next(iter(names)) if name is None else name
        if name not in names:
            raise ModelError(f"{path}: holds no ELMo {quote(name)}; it has {', '.join(map(quote, names))}")
        tensors = {k.removeprefix(names[name]): tensor for k, tensor in stored.items() if k.startswith(names[name])}
        if options is not None:
            values, where = load_json(Member(Path(options))), str(options)
        elif any(values != option_files[0] for values in option_files):
            raise ModelError(f"{path}: holds different options files; give one as options_file")
        elif option_files:
            values, where = option_files[0], f"{path}: its options"
        else:
            values, where = _infer_options(path, tensors), "its tensors and the published options"
        settings = parse_options(values, where)
        network = make_unallocated(settings.model, where)
        files_by_tensor = {part.name: path for part in layout(network, ALLENNLP)}
        network = read_network(network, ALLENNLP, tensors, files_by_tensor, where)
        elmo = f"{name}." if name else ""
        mixes = _read_small(stored, elmo, _MIX)
        projection = _read_small(stored, elmo.removesuffix("_elmo."), "_projection.") if name.endswith("_elmo") else {}
        # The object with an options_file; among several, the one whose key is part of the ELMo's name.
        sections = list(_sections(config.get("model"), "", _MAX_NESTING))
        matching = [(key, values) for key, values in sections if key and f"{key}." in elmo.replace("._elmo.", ".")]
        key, elmo_values = (matching or sections or [("", {})])[0]
        section = Section(f"{path}: {CONFIG}: {key}", elmo_values)
        dropout = float(section.get("dropout", int, float, default=0.5))
        if not 0 <= dropout <= 1:
            raise ModelError(f"{section.where}.dropout is {dropout:g}; expected 0 to 1")
        keys = ("requires_grad", "do_layer_norm", "keep_sentence_boundaries")
        elmo_options: dict[str, Any] = {key: section.get(key, bool, default=False) for key in keys}
        requires_grad = elmo_options.pop("requires_grad")
        elmo_options["dropout"] = dropout
        is_fixed = elmo_values.get("scalar_mix_parameters") is not None
        return SavedElmo(name, settings, network, mixes, projection, requires_grad, is_fixed, elmo_options)


@contextmanager
def _open(path: Path) -> Iterator[tuple[str, Path, dict[str, Any], list[dict[str, Any]]]]:
    """Yield the source for messages, the weights, the configuration and the options files."""

    def is_needed(name: str) -> bool:
        return name in ("weights.th", CONFIG) or (name.startswith("fta/") and name.endswith("options_file"))

    if path.name.lower().endswith(ARCHIVES) and is_file(path):
        with tempfile.TemporaryDirectory() as folder:
            copies = extract_tar(path, is_needed, Path(folder))
            weights = copies.pop("weights.th", None)
            if weights is None:
                raise ModelError(f"{path}: has no weights.th; it is not a model of AllenNLP")
            values = {name: read_optional_json(copy, f"{path}/{name}") for name, copy in copies.items()}
            yield str(path), weights, values.pop(CONFIG, {}), list(values.values())
        return
    weights = path if is_file(path) else next((path / name for name in WEIGHTS if is_file(path / name)), path)
    config_path = weights.with_name(CONFIG)
    config = read_optional_json(config_path, str(config_path)) if weights.suffix == ".th" else {}
    yield str(weights), weights, config, []


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


def _read_small(stored: Mapping[str, StoredTensor], prefix: str, begin: str) -> dict[str, Tensor]:
    """Read the tensors whose names have the prefix and then `begin`, without the prefix."""
    return {
        key.removeprefix(prefix): torch.from_numpy(np.array(tensor.read(), dtype=np.float32))
        for key, tensor in stored.items()
        if key.startswith(prefix + begin)
    }


def _sections(value: Any, key: str, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict) and depth:
        if "options_file" in value:
            yield key, value
        for name, child in value.items():
            yield from _sections(child, name, depth - 1)


class Part(NamedTuple):
    """Stored tensor: its name and shape, and the tensors of the network that it fills, in the order of its rows.

    The network's tensors are `signs` times the stored ones, without the `padding` rows; `forget` are the rows of a bias
    that include the constant."""

    name: str
    shape: tuple[int, ...]
    views: list[Tensor]
    signs: tuple[int, ...] = (1,)
    padding: int = 0
    forget: slice | None = None

    @torch.no_grad()
    def fill(self, stored: Tensor) -> None:
        """Copy a stored tensor, which has the shape of the part, to the network."""
        rows = stored[self.padding :].split([len(view) for view in self.views])
        for view, view_rows, sign in zip(self.views, rows, self.signs, strict=True):
            view.copy_(sign * view_rows)
        if self.forget is not None:
            self.views[0][self.forget] -= FORGET_BIAS


def layout(network: BiLMNetwork, names: Names) -> Iterator[Part]:
    """Yield the tensors that a tool stores for this network."""

    def part(name: str, *views: Tensor, signs: tuple[int, ...] = (1,), padding: int = 0) -> Part:
        return Part(name, (padding + sum(map(len, views)), *views[0].shape[1:]), list(views), signs, padding)

    encoder = network.encoder
    assert not isinstance(encoder, WordEncoder)
    yield part(names.characters, encoder.cnn.embedding, padding=names.padding)
    if isinstance(encoder, DictionaryEncoder) and encoder.words is not None:
        yield part(names.words, encoder.words.weight)
    for i, (weight, bias) in enumerate(zip(encoder.cnn.weights, encoder.cnn.biases, strict=True)):
        yield part(f"{names.convolution.format(i)}.weight", weight)
        yield part(f"{names.convolution.format(i)}.bias", bias)
    for i, highway in enumerate(encoder.highways):
        name, transform, carry = names.highway.format(i), highway.transform, highway.carry
        yield part(f"{name}.weight", transform.weight, carry.weight, signs=(1, -1))  # type: ignore[arg-type,union-attr]
        yield part(f"{name}.bias", transform.bias, carry.bias, signs=(1, -1))  # type: ignore[arg-type,union-attr]
    if encoder.projection is not None:
        yield part(f"{names.projection}.weight", encoder.projection.weight)
        yield part(f"{names.projection}.bias", encoder.projection.bias)
    assert isinstance(network.lstm, ElmoLSTM)
    for depth, layer in enumerate(network.lstm.stack):
        forget = slice(layer.hidden_size, 2 * layer.hidden_size)
        for d, direction in enumerate(DIRECTIONS):
            name = names.lstm.format(depth, d=direction)
            yield part(f"{name}.input_linearity.weight", layer.weight_ih[d])
            yield part(f"{name}.state_linearity.weight", layer.weight_hh[d])
            yield part(f"{name}.state_linearity.bias", layer.bias[d])._replace(forget=forget)
            if layer.weight_hr is not None:
                yield part(f"{name}.state_projection.weight", layer.weight_hr[d])


def read_network(
    network: BiLMNetwork, names: Names, tensors: Mapping[str, StoredTensor], where: Mapping[str, str], settings: str
) -> BiLMNetwork:
    """Fill a network without memory; messages name the file of a tensor, `where`, and the sizes' source, `settings`."""
    for part in layout(network, names):
        tensor = tensors.get(part.name)
        if tensor is None or tensor.shape != part.shape:
            shape = "missing" if tensor is None else " x ".join(map(str, tensor.shape))
            expected = " x ".join(map(str, part.shape))
            raise ModelError(f"{where[part.name]}: '{part.name}' is {shape}; by {settings} it is {expected}")
    network = network.to_empty(device="cpu")
    for part in layout(network, names):
        values = np.array(tensors[part.name].read(), dtype=np.float32)
        if not np.isfinite(values).all():
            raise ModelError(f"{where[part.name]}: '{part.name}' has values that are not finite numbers")
        part.fill(torch.from_numpy(values))
    return network.eval()

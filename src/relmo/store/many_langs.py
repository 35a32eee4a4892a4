"""Folders of ELMoForManyLangs, whose models of 44 languages no other tool reads.

    folder = config.json            how it was trained; "config_path" names the network's settings, on the author's disk
             *.json                 those settings, where somebody put them there; otherwise they are the published ones
             char.dic, word.dic     a symbol and its number a line
             token_embedder.pkl     tensors that torch saved; they are read as data (`disk/state_dict.py`), and their
             encoder.pkl            shapes compared with the settings before memory is taken for them

What differs from ELMo is how words are read (`text/dictionaries.py`, `networks.bilm.DictionaryEncoder`). Two things are
written otherwise for the same numbers: the forget gate's bias holds the constant 1 that ours adds, and the highway
layers' gate keeps the input where ours keeps the transform. The output layer is not in the folder.

    Che et al. 2018, Towards better UD parsing
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.disk.files import is_file, read_json
from relmo.disk.state_dict import read_state_dict
from relmo.errors import ModelError, SettingError, shown
from relmo.networks.bilm import BiLMNetwork, DictionaryEncoder, DictionarySizes
from relmo.nn.elmo_lstm import FORGET_BIAS
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, check_bilm
from relmo.store.folder import CONFIG
from relmo.store.original import Section, read_activation, read_filters
from relmo.store.weights import Unfilled
from relmo.text.corpus import read_lines
from relmo.text.dictionaries import Dictionaries, Dictionary

CHARACTERS, WORDS = "char.dic", "word.dic"
TOKENS, ENCODER = "token_embedder.pkl", "encoder.pkl"
PUBLISHED = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}
_MOST_JSONS = 100
_MOST_SYMBOLS = 10_000_000
_LONGEST_NUMBER = 10  # digits


class ManyLangs(NamedTuple):
    """What a folder holds."""

    settings: BiLMSettings
    network: BiLMNetwork
    dictionaries: Dictionaries


def is_many_langs(folder: str | Path) -> bool:
    """Whether this is such a folder."""
    return all(is_file(Path(folder) / name) for name in (CHARACTERS, TOKENS, ENCODER))


def read_many_langs(folder: str | Path) -> ManyLangs:
    """The settings, the network and the dictionaries of a folder."""
    folder = Path(folder)
    where, values = _find_settings(folder)
    settings, word_dim = _read_settings(where, values)
    dictionaries = _read_dictionaries(folder, with_words=word_dim > 0)
    sizes = sizes_of(dictionaries, word_dim)
    try:
        with torch.device("meta"), Unfilled():
            network = BiLMNetwork(settings.model, vocab_size=None, dictionaries=sizes)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{where}: calls for impossible sizes: {error}") from error
    return ManyLangs(settings, _read_weights(folder, where, network), dictionaries)


def sizes_of(dictionaries: Dictionaries, word_dim: int) -> DictionarySizes:
    """What the network needs to know of the dictionaries."""
    words = 0 if dictionaries.words is None else len(dictionaries.words)
    return DictionarySizes(len(dictionaries.characters), dictionaries.end, words, word_dim)


def _find_settings(folder: Path) -> tuple[str, dict[str, Any]]:
    """The network's settings: a .json of the folder, the one that config.json names before others; or the published
    ones. -> where they are, and what they are"""
    given = _read_json(folder / CONFIG).get("config_path")
    named = str(given).replace("\\", "/").rsplit("/", 1)[-1] if isinstance(given, str) else ""
    others = sorted(path for path in folder.glob("*.json") if path.name != named)[:_MOST_JSONS]
    for path in [*([folder / named] if named and is_file(folder / named) else []), *others]:
        values = _read_json(path)
        if "token_embedder" in values and "encoder" in values:
            return str(path), values
    return f"{folder}: its settings, taken to be the published ones", PUBLISHED


def _read_json(path: Path) -> dict[str, Any]:
    if not is_file(path):
        return {}
    try:
        values = read_json(path)
    except ValueError as error:
        raise ModelError(f"{path}: is not valid JSON ({error})") from error
    return values if isinstance(values, dict) else {}


def _read_settings(where: str, values: dict[str, Any]) -> tuple[BiLMSettings, int]:
    """The settings, and the size of a word's own vector."""
    tokens, encoder = (Section(f"{where}: {key}", values[key]) for key in ("token_embedder", "encoder"))
    for section, known in ((tokens, "cnn"), (encoder, "elmo")):
        if (name := section.get("name", str)).lower() != known:
            raise ModelError(f"{section.where}.name is {shown(name)}; relmo reads '{known}', which all published have")
    try:
        settings = BiLMSettings(
            model=BiLMModelSettings(
                input="dictionary",
                char_dim=tokens.get("char_dim", int),
                filters=tuple(read_filters(tokens)),
                activation=read_activation(tokens),
                max_characters=tokens.get("max_characters_per_token", int),
                highway=tokens.get("n_highway", int),
                layers=encoder.get("n_layers", int),
                hidden=encoder.get("dim", int),
                projection=encoder.get("projection_dim", int),
                cell_clip=float(encoder.get("cell_clip", int, float, default=0.0)),
                projection_clip=float(encoder.get("proj_clip", int, float, default=0.0)),
                skip_connections=True,
            )
        )
        check_bilm(settings)
    except (SettingError, OverflowError) as error:
        raise ModelError(f"{where}: cannot be built: {error}") from error
    if settings.model.projection == settings.model.hidden:
        raise ModelError(f"{encoder.where}: relmo reads models whose projection_dim is smaller than their dim")
    word_dim = tokens.get("word_dim", int, default=0)
    if not 0 <= word_dim <= 1 << 16:
        raise ModelError(f"{tokens.where}.word_dim is {shown(word_dim)}; it goes from 0 to {1 << 16}")
    return settings, word_dim


def _read_dictionaries(folder: Path, *, with_words: bool) -> Dictionaries:
    if with_words and not is_file(folder / WORDS):
        raise ModelError(f"{folder / WORDS}: is missing; by its settings the model reads words, too")
    found = Dictionaries(
        _read_dictionary(folder / CHARACTERS), _read_dictionary(folder / WORDS) if with_words else None
    )
    if found.missing():
        raise ModelError(f"{folder / CHARACTERS}: has no {', '.join(found.missing())}")
    return found


def _read_dictionary(path: Path) -> Dictionary:
    """A symbol, a tab and its number a line. White space around a line does not count, so the one symbol that is white
    space has none left: it is the ideographic space."""
    places: dict[int, str] = {}
    for line, given in enumerate(read_lines(path), start=1):
        *symbols, number = given.text.strip().split("\t")
        symbol = symbols[0] if symbols else "\u3000"
        if len(symbols) > 1 or not number.isascii() or not number.isdigit() or len(number) > _LONGEST_NUMBER:
            raise ModelError(f"{path}:{line}: expected a symbol, a tab and its number, found {shown(given.text)}")
        if places.setdefault(int(number), symbol) != symbol or line > _MOST_SYMBOLS:
            raise ModelError(f"{path}:{line}: number {int(number)} is that of {shown(places[int(number)])} already")
    symbols = [places[number] for number in sorted(places)]
    if list(range(len(places))) != sorted(places) or len(set(symbols)) != len(symbols):
        raise ModelError(f"{path}: its {len(places):,} symbols are not numbered from 0 on, each once")
    if "<oov>" not in symbols:
        raise ModelError(f"{path}: has no <oov>, which stands for all that it does not have")
    return Dictionary(symbols)


class Part(NamedTuple):
    """A tensor of the folder: its file and its name there, its shape, and our tensors that it fills, in its order of
    rows. Ours are `sign` times what is in the file."""

    file: str
    name: str
    shape: tuple[int, ...]
    views: list[Tensor]
    signs: tuple[int, ...] = (1,)


def _layout(network: BiLMNetwork) -> Iterator[Part]:
    """Every tensor of a folder with this network."""

    def part(file: str, name: str, *views: Tensor, signs: tuple[int, ...] = (1,)) -> Part:
        return Part(file, name, (sum(len(view) for view in views), *views[0].shape[1:]), list(views), signs)

    encoder = network.encoder
    assert isinstance(encoder, DictionaryEncoder)
    yield part(TOKENS, "char_emb_layer.embedding.weight", encoder.cnn.embedding)
    if encoder.words is not None:
        yield part(TOKENS, "word_emb_layer.embedding.weight", encoder.words.weight)
    for i, (weight, bias) in enumerate(zip(encoder.cnn.weights, encoder.cnn.biases, strict=True)):
        yield part(TOKENS, f"convolutions.{i}.weight", weight)
        yield part(TOKENS, f"convolutions.{i}.bias", bias)
    for i, highway in enumerate(encoder.highways):
        transform, carry = highway.transform, highway.carry  # sigmoid(-x) = 1 - sigmoid(x)
        yield part(TOKENS, f"highways._layers.{i}.weight", transform.weight, carry.weight, signs=(1, -1))  # type: ignore[arg-type,union-attr]
        yield part(TOKENS, f"highways._layers.{i}.bias", transform.bias, carry.bias, signs=(1, -1))  # type: ignore[arg-type,union-attr]
    yield part(TOKENS, "projection.weight", encoder.projection.weight)
    yield part(TOKENS, "projection.bias", encoder.projection.bias)
    for depth, layer in enumerate(network.lstm.stack):
        for d, direction in enumerate(("forward", "backward")):
            name = f"{direction}_layer_{depth}"
            assert layer.weight_hr is not None
            yield part(ENCODER, f"{name}.input_linearity.weight", layer.weight_ih[d])
            yield part(ENCODER, f"{name}.state_linearity.weight", layer.weight_hh[d])
            yield part(ENCODER, f"{name}.state_linearity.bias", layer.bias[d])
            yield part(ENCODER, f"{name}.state_projection.weight", layer.weight_hr[d])


def _read_weights(folder: Path, where: str, network: BiLMNetwork) -> BiLMNetwork:
    """The network, which has no memory yet, with the folder's weights."""
    files = {name: read_state_dict(folder / name) for name in (TOKENS, ENCODER)}
    for part in _layout(network):
        found = files[part.file].get(part.name)
        if found is None or found.shape != part.shape:
            what = "missing" if found is None else " x ".join(map(str, found.shape))
            expected = " x ".join(map(str, part.shape))
            raise ModelError(f"{folder / part.file}: '{part.name}' is {what}; by {where} it is {expected}")
    network = network.to_empty(device="cpu")
    with torch.no_grad():
        for part in _layout(network):
            values = np.array(files[part.file][part.name].read(), dtype=np.float32)
            if not np.isfinite(values).all():
                raise ModelError(f"{folder / part.file}: '{part.name}' has values that are not finite numbers")
            rows = torch.from_numpy(values).split([len(view) for view in part.views])
            for view, own, sign in zip(part.views, rows, part.signs, strict=True):
                view.copy_(sign * own)
        for layer in network.lstm.stack:
            layer.bias[:, layer.hidden_size : 2 * layer.hidden_size] -= FORGET_BIAS
    return network.eval()


def files_of(folder: str | Path) -> list[Path]:
    """The files that were read, for those who want their checksums."""
    files = (path for path in sorted(Path(folder).iterdir()) if path.suffix in (".json", ".dic", ".pkl"))
    return [path for path in files if is_file(path)]

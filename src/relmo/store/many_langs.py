"""Folders of ELMoForManyLangs, whose models of 44 languages no other tool reads.

    folder = config.json            how it was trained; "config_path" names the network's settings, on the author's disk
             *.json                 those settings, where somebody put them there; otherwise they are the published ones
             char.dic, word.dic     a symbol and its number a line
             token_embedder.pkl     tensors that torch saved; they are read as data (`disk/state_dict.py`), and their
             encoder.pkl            shapes compared with the settings before memory is taken for them

What differs from ELMo is how words are read (`text/dictionaries.py`, `networks.bilm.DictionaryEncoder`). The tensors'
names are in `torch_names.py`. The output layer is not in the folder.

    Che et al. 2018, Towards better UD parsing
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from relmo.disk.files import is_file, read_json
from relmo.disk.state_dict import read_state_dict
from relmo.errors import ModelError, SettingError, shown
from relmo.networks.bilm import BiLMNetwork, DictionarySizes
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, check_bilm
from relmo.store.folder import CONFIG
from relmo.store.original import Section, read_activation, read_filters
from relmo.store.torch_names import DIRECTIONS, MANY_LANGS, layout, read_network
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


def _read_weights(folder: Path, where: str, network: BiLMNetwork) -> BiLMNetwork:
    """The network, which has no memory yet, with the folder's weights."""
    tensors = read_state_dict(folder / TOKENS) | read_state_dict(folder / ENCODER)
    names = [part.name for part in layout(network, MANY_LANGS)]
    files = {name: ENCODER if name.startswith(DIRECTIONS) else TOKENS for name in names}
    return read_network(network, MANY_LANGS, tensors, {name: str(folder / files[name]) for name in names}, where)


def files_of(folder: str | Path) -> list[Path]:
    """The files that were read, for those who want their checksums."""
    files = (path for path in sorted(Path(folder).iterdir()) if path.suffix in (".json", ".dic", ".pkl"))
    return [path for path in files if is_file(path)]

"""Folders of ELMoForManyLangs, with models of 44 languages (Che et al. 2018, Towards better UD parsing).

config.json            how it was trained; "config_path" is the network's settings, on the author's disk
*.json                 those settings, if somebody added them; otherwise the published ones apply
char.dic, word.dic     one symbol and its number per line
token_embedder.pkl     tensors saved by torch, read as data (`disk/state_dict.py`); their shapes are
encoder.pkl            compared with the settings before memory is allocated
"""

from pathlib import Path

from relmo.disk.files import is_file
from relmo.disk.state_dict import read_state_dict
from relmo.errors import ModelError, quote
from relmo.networks.bilm import BiLMNetwork, DictionarySizes
from relmo.settings.bilm import BiLMSettings
from relmo.store.allennlp import DIRECTIONS, MANY_LANGS, layout, read_network
from relmo.store.folder import CONFIG
from relmo.store.original import Section, make_settings, make_unallocated, read_optional_json
from relmo.text.characters import Dictionaries, Dictionary
from relmo.text.corpus import read_lines

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
_MAX_JSONS = 100
_MAX_SYMBOLS = 10_000_000
_MAX_DIGITS = 10  # of the number of a symbol


def is_many_langs(folder: str | Path) -> bool:
    """Return whether this is a folder of ELMoForManyLangs."""
    return all(is_file(Path(folder) / name) for name in (CHARACTERS, TOKENS, ENCODER))


def read_many_langs(folder: str | Path) -> tuple[BiLMSettings, BiLMNetwork, Dictionaries]:
    """Read the settings, the network and the dictionaries."""
    folder = Path(folder)
    where, values = f"{folder}: its settings, assumed to be the published ones", PUBLISHED
    config_path = read_optional_json(folder / CONFIG, str(folder / CONFIG)).get("config_path")
    name = str(config_path).replace("\\", "/").rsplit("/", 1)[-1] if isinstance(config_path, str) else ""
    paths = sorted(path for path in folder.glob("*.json") if path.name != name)[:_MAX_JSONS]
    for path in [*([folder / name] if name and is_file(folder / name) else []), *paths]:
        candidate = read_optional_json(path, str(path))
        if "token_embedder" in candidate and "encoder" in candidate:
            where, values = str(path), candidate
            break
    tokens, encoder = (Section(f"{where}: {key}", values[key]) for key in ("token_embedder", "encoder"))
    for section, supported in ((tokens, "cnn"), (encoder, "elmo")):
        if (name := section.get("name", str)).lower() != supported:
            raise ModelError(f"{section.where}.name is {quote(name)}; only '{supported}' is supported")
    settings = make_settings(
        where,
        tokens,
        encoder,
        input="dictionary",
        char_dim=tokens.get("char_dim", int),
        max_characters=tokens.get("max_characters_per_token", int),
        highway=tokens.get("n_highway", int),
        layers=encoder.get("n_layers", int),
        skip_connections=True,
    )
    if settings.model.projection == settings.model.hidden:
        raise ModelError(f"{encoder.where}: projection_dim must be smaller than dim")
    word_dim = tokens.get("word_dim", int, default=0)
    if not 0 <= word_dim <= 1 << 16:
        raise ModelError(f"{tokens.where}.word_dim is {quote(word_dim)}; expected 0 to {1 << 16}")
    if word_dim and not is_file(folder / WORDS):
        raise ModelError(f"{folder / WORDS}: is missing; by its settings the model reads words as well")
    words = _read_dictionary(folder / WORDS) if word_dim else None
    dictionaries = Dictionaries(_read_dictionary(folder / CHARACTERS), words)
    if dictionaries.missing():
        raise ModelError(f"{folder / CHARACTERS}: has no {', '.join(dictionaries.missing())}")
    network = make_unallocated(settings.model, where, dictionary_sizes(dictionaries, word_dim))
    tensors = read_state_dict(folder / TOKENS) | read_state_dict(folder / ENCODER)
    names = [part.name for part in layout(network, MANY_LANGS)]
    files = {name: str(folder / (ENCODER if name.startswith(DIRECTIONS) else TOKENS)) for name in names}
    return settings, read_network(network, MANY_LANGS, tensors, files, where), dictionaries


def dictionary_sizes(dictionaries: Dictionaries, word_dim: int) -> DictionarySizes:
    """Return the sizes of the dictionaries, for the network."""
    words = 0 if dictionaries.words is None else len(dictionaries.words)
    return DictionarySizes(len(dictionaries.characters), dictionaries.end, words, word_dim)


def _read_dictionary(path: Path) -> Dictionary:
    """Read one symbol, a tab and its number per line."""
    symbol_by_number: dict[int, str] = {}
    for line_number, line in enumerate(read_lines(path), start=1):
        *symbols, digits = line.text.strip().split("\t")
        symbol = symbols[0] if symbols else "\u3000"  # the ideographic space was stripped
        if len(symbols) > 1 or not digits.isascii() or not digits.isdigit() or len(digits) > _MAX_DIGITS:
            raise ModelError(f"{path}:{line_number}: expected a symbol, a tab and its number, not {quote(line.text)}")
        number = int(digits)
        owner = symbol_by_number.setdefault(number, symbol)
        if owner != symbol or line_number > _MAX_SYMBOLS:
            raise ModelError(f"{path}:{line_number}: number {number} already belongs to {quote(owner)}")
    symbols = [symbol_by_number[number] for number in sorted(symbol_by_number)]
    if list(range(len(symbols))) != sorted(symbol_by_number) or len(set(symbols)) != len(symbols):
        raise ModelError(f"{path}: its {len(symbols):,} symbols are not numbered from 0, each once")
    if "<oov>" not in symbols:
        raise ModelError(f"{path}: has no <oov>, the symbol for everything unknown")
    return Dictionary(symbols)

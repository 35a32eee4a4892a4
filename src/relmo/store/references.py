"""Models that another model is built on, such as the biLM of a tagger: a source (path or name) and a digest.

A model may hold copies instead; then the source is a path inside its own folder.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from relmo.disk.files import is_file
from relmo.errors import ModelError
from relmo.networks.elmo import without_output
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM
from relmo.store.folder import CONFIG, digest, named_tensors
from relmo.store.installed import DEFAULT, InstalledModel, get_installed
from relmo.store.original import PairOrPath, locate

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM
    from relmo.models.vectors import WordVectors

M = TypeVar("M")
LABELS = {"elmo": "biLM", "vectors": "static vectors"}
DIGEST_SETTINGS = ("input", "activation", "max_characters", "skip_connections", "cell_clip", "projection_clip")
"""Settings of a biLM that its vectors depend on, besides its weights."""
CELL_SETTINGS = ("cell", "cell_options")
"""Further ones of a biLM with another cell than ELMo's LSTM."""
_BILM_DIGESTS: WeakKeyDictionary[nn.Module, tuple[Any, str]] = WeakKeyDictionary()


def find_installed(source: PairOrPath | None) -> Path | None:
    """Return the folder of an installed model, if the source is its name and no model of this name is on disk."""
    name = DEFAULT if source is None else source
    model = get_installed(str(name)) if isinstance(name, str | Path) else None
    if model is None:
        return None
    if source is not None:
        if is_file(Path(model.name) / CONFIG):
            return None
        with suppress(ModelError):  # other files and folders of this name do not count
            if locate(Path(model.name)) is not None:
                return None
    return model.folder


class Reference(NamedTuple):
    """Source and digest of a model that another one is built on."""

    source: str
    digest: str

    def load(
        self, folder: Path, name: str, moved: str | None, *, reader: Callable[[str], M], checksum: Callable[[M], str]
    ) -> M:
        """Load "elmo" or "vectors" of the model in `folder`; raise `ModelError` if the digest differs."""
        path = moved
        if path is None:
            path = str(folder / self.source) if self.source.startswith(".") else self.source
        advice = f"if it has moved, give its path: --{name} PATH, or relmo.load(…, {name}=PATH)"
        try:
            model = reader(path)
        except ModelError as error:
            if moved is not None:
                raise
            raise ModelError(
                f"{folder}: cannot load the {LABELS[name]} that this model was trained with "
                f"({str(error).partition(';')[0]}); {advice}; a model trained with --copy holds a copy of it"
            ) from error
        if checksum(model) != self.digest:
            raise ModelError(
                f"{folder}: the {LABELS[name]} at {path} is not the one this model was trained with (the checksum "
                f"differs); {advice if moved is None else 'give that one'}"
            )
        return model


def read_reference(folder: Path, config: dict[str, Any], name: str) -> Reference | None:
    """Return the reference of this name in a config.json, or None."""
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in Reference._fields):
        raise ModelError(f"{folder}: config.json is damaged: {name} has no source and digest")
    return Reference(value["source"], value["digest"])


def find_foundations(folder: Path, config: dict[str, Any]) -> list[InstalledModel]:
    """Return the installed models that a model is built on; raise `ModelError` if it is built on a folder elsewhere."""
    models = []
    for name in LABELS:
        reference = read_reference(folder, config, name)
        if reference is None or reference.source.startswith("."):
            continue
        model = None if Path(reference.source).is_absolute() else get_installed(reference.source)
        if model is None:
            raise ModelError(f"{folder}: is built on {reference.source}, which is a folder; train it with --copy")
        models.append(model)
    return models


def absolute_source(source: str) -> str:
    """Return a source that is valid from any folder: the name of an installed model or an absolute path."""
    return source if find_installed(source) is not None else str(Path(source).absolute())


def bilm_digest(model: "BiLM") -> str:
    """Return a digest of all that a biLM's vectors depend on, which is cached until a tensor of the network changes."""
    names = DIGEST_SETTINGS if isinstance(model.network.lstm, ElmoLSTM) else (*DIGEST_SETTINGS, *CELL_SETTINGS)
    settings = {name: getattr(model.settings.model, name) for name in names}
    words: Any = model.vocabulary.symbols if model.settings.model.input == "word" and model.vocabulary else None
    if model.dictionaries is not None:
        words = [d.symbols for d in (model.dictionaries.characters, model.dictionaries.words) if d is not None]
    values = [settings, model.settings.text.lowercase, words]
    tensors = named_tensors(without_output(model.network))
    key = values, [(name, tensor.data_ptr(), tensor._version) for name, tensor in tensors.items()]
    cached_key, cached_digest = _BILM_DIGESTS.get(model.network, (None, ""))
    if cached_key != key:
        cached_digest = digest({name: tensor.detach().cpu() for name, tensor in tensors.items()}, values)
        _BILM_DIGESTS[model.network] = key, cached_digest
    return cached_digest


def vectors_digest(vectors: "WordVectors") -> str:
    """Return a digest of words and their vectors."""
    return digest({"matrix": torch.from_numpy(vectors.matrix)}, vectors.vocabulary.symbols)

"""Models that another model is built on: where each is, and whether it is still the one it was trained with.

A task's model names its biLM and its static vectors by a source, which is a path or the name of a model that ships, and
by a digest of what matters in them. It may hold copies instead; then the source is a path inside its own folder.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

import relmo
from relmo.disk.files import is_file
from relmo.errors import ModelError
from relmo.networks.elmo import without_output
from relmo.store.folder import BUNDLED, CONFIG, EXAMPLES, digest, own_tensors
from relmo.store.original import PairOrPath, locate

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM
    from relmo.models.vectors import WordVectors

M = TypeVar("M")
CALLED = {"elmo": "biLM", "vectors": "static vectors"}
DEFAULT = BUNDLED[0]
SHIPPED = {**dict(zip(BUNDLED, ("bilm", "skipgram"), strict=True)), **dict.fromkeys(EXAMPLES, "lm")}
"""The models that ship, by name, and their kinds."""
EMBEDS = ("input", "activation", "max_characters", "skip_connections", "cell_clip", "projection_clip")
"""The settings of a biLM that its vectors depend on, beside its weights."""


def bundled(source: PairOrPath | None) -> Path | None:
    """The folder of a model that ships, if the source is its name and no model of this name is on disk."""
    name = DEFAULT if source is None else source
    known = isinstance(name, str | Path) and str(name) in (*BUNDLED, *EXAMPLES)
    if not known or (source is not None and _on_disk(Path(str(name)))):
        return None
    return Path(relmo.__file__).with_name("data") / ("examples" if str(name) in EXAMPLES else "") / str(name)


def _on_disk(path: Path) -> bool:
    """Whether a path holds a model of any kind. Other files and folders do not count."""
    if is_file(path / CONFIG):
        return True
    with suppress(ModelError):
        return locate(path) is not None
    return False


class Reference(NamedTuple):
    """A model that another one is built on."""

    source: str
    digest: str

    def place(self, folder: Path) -> str:
        """Where it is, as seen from the model in `folder`, which may hold a copy."""
        return str(folder / self.source) if self.source.startswith(".") else self.source

    def opened(
        self, folder: Path, name: str, moved: str | None, *, reader: Callable[[str], M], checksum: Callable[[M], str]
    ) -> M:
        """The model of this name ("elmo", "vectors") that the one in `folder` is built on, from where it was, or from
        where it has moved to; another model is an error that says what to do."""
        what, place = CALLED[name], self.place(folder) if moved is None else moved
        how = f"if it has moved, say where it is: --{name} PATH, or relmo.load(…, {name}=PATH)"
        try:
            found = reader(place)
        except ModelError as error:
            if moved is not None:
                raise
            raise ModelError(
                f"{folder}: the {what} that this model was trained with cannot be opened "
                f"({str(error).partition(';')[0]}); {how}; a model that is trained with --copy holds a copy of it"
            ) from error
        if checksum(found) != self.digest:
            raise ModelError(
                f"{folder}: the {what} at {place} is not the one this model was trained with (another checksum); "
                + (how if moved is None else "give that one")
            )
        return found


def read_reference(folder: Path, config: dict[str, Any], name: str) -> Reference | None:
    """The reference of this name in a config.json; None where it has none."""
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in Reference._fields):
        raise ModelError(f"{folder}: config.json is damaged: {name} has no source and digest")
    return Reference(value["source"], value["digest"])


def full_source(source: str) -> str:
    """A source that means the same from any folder: a name that ships, or an absolute path."""
    return source if bundled(source) is not None else str(Path(source).absolute())


def bilm_digest(model: "BiLM") -> str:
    """A checksum of all that a biLM's vectors depend on: everything but its output layer."""
    settings = {name: getattr(model.settings.model, name) for name in EMBEDS}
    words: Any = model.vocabulary.symbols if model.settings.model.input == "word" and model.vocabulary else None
    if model.dictionaries is not None:
        words = [d.symbols for d in (model.dictionaries.characters, model.dictionaries.words) if d is not None]
    tensors = {name: tensor.detach().cpu() for name, tensor in own_tensors(without_output(model.network)).items()}
    return digest(tensors, [settings, model.settings.text.lowercase, words])


def vectors_digest(vectors: "WordVectors") -> str:
    """A checksum of words and their vectors."""
    return digest({"matrix": torch.from_numpy(vectors.matrix)}, vectors.vocabulary.symbols)

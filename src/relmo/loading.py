"""`relmo.load`: a model of any kind from its folder."""

from pathlib import Path

from relmo.errors import ModelError
from relmo.folder import read_config
from relmo.lm import LanguageModel
from relmo.vectors import WordVectors


def load(source: str | Path, *, device: str = "auto") -> LanguageModel | WordVectors:
    """The model in a folder that relmo saved, as the class of its kind. Never unpickles, never touches the network."""
    kind = read_config(Path(source))["kind"]
    kinds: dict[str, type[LanguageModel] | type[WordVectors]] = {"lm": LanguageModel, "skipgram": WordVectors}
    if kind not in kinds:
        raise ModelError(f"{source}: is of kind '{kind}', which this relmo does not know; it knows {', '.join(kinds)}")
    return kinds[kind].from_pretrained(source, device=device)

"""relmo: recurrent language models and the contextual word embeddings inside them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from relmo.settings.kinds import KINDS

if TYPE_CHECKING:
    from relmo.loading import load as load
    from relmo.models.bilm import BiLM as BiLM
    from relmo.models.lm import LanguageModel as LanguageModel
    from relmo.models.vectors import WordVectors as WordVectors
    from relmo.networks.elmo import Elmo as Elmo
    from relmo.nn.pooling import ScalarMix as ScalarMix
    from relmo.nn.recurrence import Cell as Cell
    from relmo.nn.recurrence import Quantity as Quantity
    from relmo.registry import register_cell as register_cell
    from relmo.runs.train import train as train
    from relmo.tasks.classifier import Classifier as Classifier
    from relmo.tasks.classifier import SentencePairs as SentencePairs
    from relmo.tasks.coref import Coreference as Coreference
    from relmo.tasks.reader import PassageReader as PassageReader
    from relmo.tasks.seq2seq import Seq2Seq as Seq2Seq
    from relmo.tasks.srl import RoleLabeller as RoleLabeller
    from relmo.tasks.tagger import Tagger as Tagger

__version__ = "0.1.0"

_PUBLIC = {
    "load": "relmo.loading",
    "train": "relmo.runs.train",
    "Elmo": "relmo.networks.elmo",
    "ScalarMix": "relmo.nn.pooling",
    "Cell": "relmo.nn.recurrence",
    "Quantity": "relmo.nn.recurrence",
    "register_cell": "relmo.registry",
} | {name: module for module, name in (kind.model.split(":") for kind in KINDS.values())}
__all__ = [*sorted(_PUBLIC), "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import relmo` alone does not import torch."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'relmo' has no attribute '{name}'")


def __dir__() -> list[str]:
    """List the public names, for `dir(relmo)` and tab completion."""
    return sorted(__all__)

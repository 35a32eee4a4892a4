"""relmo: recurrent language models and the contextual word embeddings inside them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relmo.bilm import BiLM as BiLM
    from relmo.classifier import Classifier as Classifier
    from relmo.lm import LanguageModel as LanguageModel
    from relmo.loading import load as load
    from relmo.models.elmo import Elmo as Elmo
    from relmo.nn.scalar_mix import ScalarMix as ScalarMix
    from relmo.pairs import SentencePairs as SentencePairs
    from relmo.tagger import Tagger as Tagger
    from relmo.vectors import WordVectors as WordVectors

__version__ = "0.1.0"

_PUBLIC = {
    "BiLM": "relmo.bilm",
    "Classifier": "relmo.classifier",
    "Elmo": "relmo.models.elmo",
    "LanguageModel": "relmo.lm",
    "ScalarMix": "relmo.nn.scalar_mix",
    "SentencePairs": "relmo.pairs",
    "Tagger": "relmo.tagger",
    "WordVectors": "relmo.vectors",
    "load": "relmo.loading",
}
__all__ = [
    "BiLM",
    "Classifier",
    "Elmo",
    "LanguageModel",
    "ScalarMix",
    "SentencePairs",
    "Tagger",
    "WordVectors",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: `import relmo` alone does not import torch."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'relmo' has no attribute '{name}'")

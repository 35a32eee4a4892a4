"""relmo: recurrent language models and the contextual word embeddings inside them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relmo.lm import LanguageModel as LanguageModel
    from relmo.loading import load as load
    from relmo.vectors import WordVectors as WordVectors

__version__ = "0.1.0"

_PUBLIC = {"load": "relmo.loading", "LanguageModel": "relmo.lm", "WordVectors": "relmo.vectors"}
__all__ = ["LanguageModel", "WordVectors", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: `import relmo` alone does not import torch."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'relmo' has no attribute '{name}'")

"""gensim: word vectors as `KeyedVectors`.

    vectors = keyed_vectors(relmo.load("words"))
    vectors.most_similar("river")

For a bidirectional model these are the vectors of layer 0, without context.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.disk.outputs import atomic, refuse_existing
from relmo.errors import SettingError, optional_import
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors

if TYPE_CHECKING:
    from gensim.models import KeyedVectors

BATCH_WORDS = 4096  # words that a bidirectional model embeds together
MAX_ARRAY_BYTES = 1 << 62  # gensim writes larger arrays to separate files


def keyed_vectors(model: Any, words: Iterable[str] | None = None) -> "KeyedVectors":
    """Return the vectors of `words`, by default of all words of the model, most frequent first. The model is
    `WordVectors` or a `BiLM`."""
    with optional_import("KeyedVectors need the package gensim", "gensim"):
        from gensim.models import KeyedVectors
    keys, matrix = static_vectors(model, words)
    vectors = KeyedVectors(vector_size=matrix.shape[1], dtype=np.float32)
    vectors.add_vectors(keys, matrix)
    return vectors


def export_gensim(model: Any, path: str | Path, *, overwrite: bool = False) -> int:
    """Write one file for `KeyedVectors.load`; return the number of words."""
    refuse_existing(Path(path), overwrite=overwrite)
    vectors = keyed_vectors(model)
    with atomic(Path(path)) as temporary:
        vectors.save(str(temporary), sep_limit=MAX_ARRAY_BYTES)
    return len(vectors)


def static_vectors(model: Any, words: Iterable[str] | None = None) -> tuple[list[str], np.ndarray]:
    """Return distinct words and their context-independent vectors (N, D)."""
    if isinstance(model, WordVectors):
        keys = list(dict.fromkeys(model if words is None else words))
        return keys, model[keys]
    if not isinstance(model, BiLM):
        raise SettingError("expected word vectors (skipgram) or a bidirectional language model (bilm)")
    if words is None:
        vocabulary = model.get_output_vocabulary()
        words = vocabulary.symbols[len(vocabulary.specials) :]
    keys = list(dict.fromkeys(words))
    parts = [model.embed([keys[i : i + BATCH_WORDS]], layers=0)[0] for i in range(0, len(keys), BATCH_WORDS)]
    return keys, np.concatenate(parts) if parts else np.zeros((0, model.network.size), dtype=np.float32)

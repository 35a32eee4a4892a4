"""gensim: word vectors as `KeyedVectors`.

    vectors = keyed_vectors(relmo.load("words"))
    vectors.most_similar("river")

Of a bidirectional model these are the words' own vectors, its layer 0, before any context.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.disk.outputs import atomic, refuse_existing
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors

if TYPE_CHECKING:
    from gensim.models import KeyedVectors

AT_ONCE = 4096  # words that a bidirectional model embeds together
ONE_FILE = 1 << 62  # bytes of an array that gensim would put into a file of its own


def keyed_vectors(model: Any, words: Iterable[str] | None = None) -> "KeyedVectors":
    """The vectors of these words; of all that the model has, the most frequent first, where none are given. The model
    is word vectors (`WordVectors`) or bidirectional (`BiLM`)."""
    try:
        from gensim.models import KeyedVectors
    except ImportError as error:
        raise SettingError("KeyedVectors need the package gensim; try: pip install 'relmo[gensim]'") from error
    keys, matrix = static_vectors(model, words)
    found = KeyedVectors(vector_size=matrix.shape[1], dtype=np.float32)
    found.add_vectors(keys, matrix)
    return found


def export_gensim(model: Any, path: str | Path, *, overwrite: bool = False) -> int:
    """Writes one file for `KeyedVectors.load`. -> how many words it has"""
    path = Path(path)
    refuse_existing(path, overwrite=overwrite)
    vectors = keyed_vectors(model)
    with atomic(path) as temporary:
        vectors.save(str(temporary), sep_limit=ONE_FILE)
    return len(vectors)


def static_vectors(model: Any, words: Iterable[str] | None = None) -> tuple[list[str], np.ndarray]:
    """Distinct words and their vectors (N, D), which do not depend on a context."""
    if isinstance(model, WordVectors):
        keys = list(dict.fromkeys(model if words is None else words))
        return keys, model[keys]
    if not isinstance(model, BiLM):
        raise SettingError("this takes word vectors (skipgram) or a bidirectional language model (bilm)")
    given = model.output_words().symbols[len(model.output_words().specials) :] if words is None else words
    keys = list(dict.fromkeys(given))
    parts = [model.embed([keys[i : i + AT_ONCE]], layers=0)[0] for i in range(0, len(keys), AT_ONCE)]
    return keys, np.concatenate(parts) if parts else np.zeros((0, model.network.size), dtype=np.float32)

"""scikit-learn: sentences to a matrix, in a `Pipeline` and a `GridSearchCV`.

    from relmo.compat.sklearn import ElmoVectorizer

    model = make_pipeline(ElmoVectorizer(), LogisticRegression(max_iter=1000))
    model.fit(texts, labels)

Choices:
- There is nothing to fit: the biLM stays as it is. So `transform` may be called at once.
- A parameter is a name or a path, never a loaded model. So a pickle is small, and clones are free.
- Clones share one loaded model: the one that was used last in this process is kept, until its files change.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from relmo.errors import SettingError
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.settings.arguments import typed
from relmo.settings.embedding import Layers
from relmo.store.folder import CONFIG
from relmo.store.original import PairOrPath

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
except ImportError as error:
    raise ImportError("relmo.compat.sklearn needs scikit-learn; try: pip install 'relmo[sklearn]'") from error


class ElmoVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """One vector a text, pooled over its words: float32 (texts, features). A text is a string, or a list of words.

    model      what `relmo.load` takes: a name, a folder, original ELMo files
    layers     "average", "top", a number, or "all": every layer, side by side
    pooling    "mean" or "max" over the words; a text without words gives zeros
    precision  "float32", "bfloat16", or on a CPU "int8"
    device     auto, cpu or cuda
    """

    def __init__(
        self,
        model: PairOrPath = "small",
        *,
        layers: Layers = "average",
        pooling: Literal["mean", "max"] = "mean",
        precision: str = "float32",
        device: str = "auto",
    ):
        self.model = model
        self.layers = layers
        self.pooling = pooling
        self.precision = precision
        self.device = device

    def fit(self, X: Iterable[str | Sequence[str]], y: Any = None) -> Self:
        """Loads the model, so that a mistake in the parameters shows here; the texts are checked, not read."""
        _texts(X)
        self._model()
        return self

    def transform(self, X: Iterable[str | Sequence[str]]) -> np.ndarray:
        """Texts -> their vectors."""
        texts = _texts(X)
        vectors = self._model().sentence_vectors(texts, layers=self.layers, pooling=self.pooling)
        return vectors.reshape(len(texts), self._n_features_out)

    @property
    def _n_features_out(self) -> int:
        network = self._model().network
        return network.size * (network.layer_count if self.layers == "all" else 1)

    def _model(self) -> BiLM:
        paths = self.model if isinstance(self.model, tuple | list) else (self.model,)
        return _open(tuple(map(str, paths)), self.precision, self.device, tuple(map(_stamp, paths)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []
        return tags


@lru_cache(maxsize=1)
def _open(paths: tuple[str, ...], precision: str, device: str, stamps: tuple[int, ...]) -> BiLM:
    return load(paths[0] if len(paths) == 1 else paths, kinds="bilm", device=device, dtype=precision)


def _stamp(path: str | Path) -> int:
    """When a model on disk was last written; 0 for one that ships."""
    places = [place for place in (Path(path) / CONFIG, Path(path)) if place.exists()]
    return places[0].stat().st_mtime_ns if places else 0


def _texts(X: Any) -> list[Any]:
    """Texts as a list, from a list, an array or a column of a table."""
    if isinstance(X, str) or not isinstance(X, Iterable):
        raise SettingError(f"expected several texts, such as a list of strings, not {typed(X)}")
    if getattr(X, "ndim", 1) != 1:
        raise SettingError(f"expected one text a row, not an array of {X.ndim} dimensions; give one column")  # type: ignore[attr-defined]
    return list(X)

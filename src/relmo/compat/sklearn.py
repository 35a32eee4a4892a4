"""scikit-learn: sentences to a matrix, in a `Pipeline` and a `GridSearchCV`.

    from relmo.compat.sklearn import ElmoVectorizer

    model = make_pipeline(ElmoVectorizer(), LogisticRegression(max_iter=1000))
    model.fit(texts, labels)

The biLM is frozen: nothing is fitted, and `transform` may be called at once. Parameters are names or paths, so that
pickles are small; clones share one loaded model, the last one used in this process, until its files change.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from relmo.errors import SettingError, optional_import
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.settings.fields import describe_value
from relmo.settings.options import Layers
from relmo.store.folder import CONFIG
from relmo.store.original import PairOrPath

with optional_import("relmo.compat.sklearn needs scikit-learn", "sklearn", ImportError):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin


class ElmoVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Transformer from texts (strings or lists of words) to one pooled vector each: float32 (texts, features).

    model      anything that `relmo.load` accepts: a name, a folder, original ELMo files
    layers     "average", "top", a number, or "all": every layer, concatenated
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
        self.model, self.layers, self.pooling = model, layers, pooling
        self.precision, self.device = precision, device

    def fit(self, X: Iterable[str | Sequence[str]], y: Any = None) -> Self:
        """Load the model and check the texts, so that wrong parameters raise here."""
        _check_texts(X)
        self._load()
        return self

    def transform(self, X: Iterable[str | Sequence[str]]) -> np.ndarray:
        """Return the vectors of texts."""
        texts = _check_texts(X)
        vectors = self._load().sentence_vectors(texts, layers=self.layers, pooling=self.pooling)
        return vectors.reshape(len(texts), self._n_features_out)

    @property
    def _n_features_out(self) -> int:
        network = self._load().network
        return network.size * (network.layer_count if self.layers == "all" else 1)

    def _load(self) -> BiLM:
        paths = self.model if isinstance(self.model, tuple | list) else (self.model,)
        timestamps = []  # 0 for bundled models
        for path in paths:
            files = [file for file in (Path(path) / CONFIG, Path(path)) if file.exists()]
            timestamps.append(files[0].stat().st_mtime_ns if files else 0)
        return _load_cached(tuple(map(str, paths)), self.precision, self.device, tuple(timestamps))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []
        return tags


@lru_cache(maxsize=1)
def _load_cached(paths: tuple[str, ...], precision: str, device: str, timestamps: tuple[int, ...]) -> BiLM:
    return load(paths[0] if len(paths) == 1 else paths, kinds="bilm", device=device, dtype=precision)


def _check_texts(X: Any) -> list[Any]:
    if isinstance(X, str) or not isinstance(X, Iterable):
        raise SettingError(f"expected several texts, such as a list of strings, not {describe_value(X)}")
    if getattr(X, "ndim", 1) != 1:
        raise SettingError(f"expected one text per row, not an array of {X.ndim} dimensions; give one column")  # type: ignore[attr-defined]
    return list(X)

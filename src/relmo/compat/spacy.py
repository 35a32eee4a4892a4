"""spaCy: ELMo as a component that sets `doc.tensor`, and as a layer for trained components.

    nlp = spacy.blank("en")
    nlp.add_pipe("relmo")
    nlp("The bank of the river.")[1].vector

- The component is spaCy's `Tok2Vec` around the layer `relmo.Elmo.v1`. Other components listen to it with
  `spacy.Tok2VecListener.v1`; the layer can also be the tok2vec of one component.
- The biLM is frozen. With `layers = "mix"` the mixture of its layers (Peters et al. 2018) is trained.
- A pipeline on disk contains the biLM without its output layer.
- A doc is read as one sequence of tokens or, with `sentences`, sentence by sentence: then an earlier component must set
  sentence boundaries, also in training.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from relmo.errors import ModelError, SettingError, optional_import
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.networks.elmo import without_output
from relmo.store.folder import COPY_OF_BILM

with optional_import("relmo.compat.spacy needs spaCy", "spacy", ImportError):
    import srsly
    from spacy.language import Language
    from spacy.pipeline.tok2vec import Tok2Vec
    from spacy.tokens import Doc, Span
    from spacy.util import registry
    from thinc.api import Model, Shim

MIX = "mix"
LAYER = "relmo.Elmo.v1"
VECTOR_HOOKS: dict[str, Callable[[Any], Any]] = {
    "user_hooks": lambda doc: doc.tensor.mean(axis=0) if len(doc) else np.zeros(doc.tensor.shape[1:], np.float32),
    "user_span_hooks": lambda span: span.doc.tensor[span.start : span.end].mean(axis=0),
    "user_token_hooks": lambda token: token.doc.tensor[token.i],
}


class BiLMShim(Shim):
    """A frozen biLM inside a layer: loaded on first use, saved and restored with the pipeline."""

    _model: BiLM | None

    def __init__(self, source: str, device: str):
        super().__init__(None, {"source": source, "device": device})

    @property
    def model(self) -> BiLM:
        """The biLM."""
        if self._model is None:
            self._model = load(self.cfg["source"], kinds="bilm", device=self.cfg["device"])
        return self._model

    def finish_update(self, optimizer: Any) -> None:
        """Do nothing; the biLM is frozen."""

    def to_device(self, device_type: str, device_id: int) -> None:
        """Do nothing; the biLM stays on its device."""

    def copy(self) -> "BiLMShim":
        """Return a shim that shares the biLM."""
        shim = BiLMShim(self.cfg["source"], self.cfg["device"])
        shim._model = self._model
        return shim

    def to_bytes(self) -> bytes:
        """Return the files of the biLM's folder."""
        model = self.model
        if model.settings.model.input != "word":  # the output layer is not needed for vectors
            network = without_output(model.network)
            model = BiLM(network, model.settings, None, model.device, dictionaries=model.dictionaries)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / COPY_OF_BILM
            model.save_pretrained(folder)
            return srsly.msgpack_dumps({path.name: path.read_bytes() for path in sorted(folder.iterdir())})

    def from_bytes(self, data: bytes) -> Self:
        """Load the biLM from the files written by `to_bytes`."""
        files = srsly.msgpack_loads(data)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                if Path(name).name != name or name in (".", ".."):
                    raise ModelError(f"the pipeline is damaged: its biLM has a file named {name!r}")
                (Path(folder) / name).write_bytes(content)
            self._model = load(folder, kinds="bilm", device=self.cfg["device"])
        return self


@registry.architectures(LAYER)
def elmo_layer(
    model: str = "small", layers: str | int = MIX, sentences: bool = False, device: str = "auto"
) -> Model[list[Doc], list[Any]]:
    """Return a layer from docs to the vectors of their tokens, (tokens, width) each.

    model      anything that `relmo.load` accepts: a name or a path
    layers     "mix" learns a mixture of all; "average", "top" or a number
    sentences  read each sentence of a doc separately
    device     auto, cpu or cuda
    """
    if isinstance(layers, str) and layers not in (MIX, "average", "top"):
        raise SettingError(f"layers must be 'mix', 'average', 'top' or a number, not {layers!r}")
    return Model(
        "elmo",
        _forward,
        init=_initialize,
        dims={"nO": None},
        params={"weights": None, "gamma": None} if layers == MIX else {},
        attrs={"layers": layers, "sentences": sentences},
        shims=[BiLMShim(model, device)],
    )


def _initialize(model: Any, X: Any = None, Y: Any = None) -> None:
    bilm = model.shims[0].model
    model.set_dim("nO", bilm.network.size, force=True)
    if model.attrs["layers"] == MIX:
        model.set_param("weights", model.ops.alloc1f(bilm.network.layer_count))
        model.set_param("gamma", model.ops.alloc1f(1) + 1)


def _forward(model: Any, docs: Sequence[Doc], is_train: bool) -> tuple[list[Any], Callable[[list[Any]], list[Doc]]]:
    """Embed docs; with "mix", y = gamma * sum_k s_k h_k, s = softmax(w), of every array (K, T, D), and its gradient:

    dgamma = sum <dy, y / gamma>;   ds_k = gamma * sum <dy, h_k>;   dw_k = s_k (ds_k - sum_j s_j ds_j)
    """
    layers = model.attrs["layers"]
    vectors = _embed(model.shims[0].model, docs, "all" if layers == MIX else layers, model.attrs["sentences"])
    arrays = [model.ops.asarray(array) for array in vectors]
    if layers != MIX:
        return arrays, lambda _: []
    if model.has_param("weights") is None:  # a pipeline that was never trained
        _initialize(model)
    xp, gamma = model.ops.xp, model.get_param("gamma")
    shares = model.ops.softmax(model.get_param("weights").reshape(1, -1)).reshape(-1)
    mixed = [xp.tensordot(shares, array, axes=1) for array in arrays]

    def backprop(gradients: list[Any]) -> list[Doc]:
        d_shares = xp.zeros_like(shares)
        for d, array, y in zip(gradients, arrays, mixed, strict=True):
            model.inc_grad("gamma", (d * y).sum().reshape(1))
            d_shares += gamma * xp.tensordot(array, d, axes=2)
        model.inc_grad("weights", shares * (d_shares - (shares * d_shares).sum()))
        return []

    return [gamma * y for y in mixed], backprop


def _embed(model: BiLM, docs: Sequence[Doc], layers: Any, by_sentence: bool) -> list[np.ndarray]:
    """Return the vectors (…, tokens, size) of each doc."""
    spans: list[Doc | Span] = []
    for doc in docs:
        spans += doc.sents if by_sentence and len(doc) else [doc]  # spaCy raises if there are no boundaries
    lowercase = model.settings.text.lowercase
    words = [[token.lower_ if lowercase else token.text for token in span] for span in spans]
    vectors = iter(model.embed(words, layers=layers))
    if not by_sentence:
        return list(vectors)
    counts = [len(list(doc.sents)) if len(doc) else 1 for doc in docs]
    return [np.concatenate([next(vectors) for _ in range(count)], axis=-2) for count in counts]


class ElmoComponent(Tok2Vec):
    """Component that sets `doc.tensor`, (tokens, width), from which spaCy takes the vectors of tokens, spans and docs.

    Hooks are set only if the vocabulary has static vectors, which would take precedence: spaCy warns about hooks when a
    doc is serialised."""

    def predict(self, docs: Iterable[Doc]) -> Any:
        """Return the vectors of each doc."""
        return self.model.predict(list(docs))

    def set_annotations(self, docs: Sequence[Doc], tokvecses: Any) -> None:
        """Set the vectors of docs."""
        super().set_annotations(docs, tokvecses)
        for doc in docs if self.vocab.vectors.size else ():
            for hooks, vector in VECTOR_HOOKS.items():
                getattr(doc, hooks).update(vector=vector, has_vector=lambda _: True)


@Language.factory(
    "relmo",
    assigns=["doc.tensor"],
    default_config={"model": {"@architectures": LAYER, "model": "small", "layers": MIX, "sentences": False}},
)
def make_component(nlp: Language, name: str, model: Model) -> ElmoComponent:
    """Create the component of a pipeline."""
    return ElmoComponent(nlp.vocab, model, name)

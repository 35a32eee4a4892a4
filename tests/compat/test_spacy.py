"""ELMo in spaCy's hands: pipelines, vectors, serialisation, `spacy train`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'relmo[spacy]'")

import spacy
from spacy.cli.init_config import fill_config
from spacy.cli.train import train
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.vectors import Vectors
from thinc.api import Adam

from relmo.compat.spacy import elmo_layer
from relmo.errors import SettingError
from support.small_models import bilm

CONFIG = """
[paths]
train = null
dev = null

[nlp]
lang = "en"
pipeline = ["elmo", "tagger"]

[components]

[components.elmo]
factory = "relmo"

[components.elmo.model]
@architectures = "relmo.Elmo.v1"
model = "tiny"
layers = "mix"
sentences = false

[components.tagger]
factory = "tagger"

[components.tagger.model]
@architectures = "spacy.Tagger.v2"

[components.tagger.model.tok2vec]
@architectures = "spacy.Tok2VecListener.v1"
width = 8

[corpora]

[corpora.train]
@readers = "spacy.Corpus.v1"
path = ${paths.train}

[corpora.dev]
@readers = "spacy.Corpus.v1"
path = ${paths.dev}

[training]
seed = 1
max_steps = 60
eval_frequency = 30
patience = 0
train_corpus = "corpora.train"
dev_corpus = "corpora.dev"

[training.optimizer]
@optimizers = "Adam.v1"
learn_rate = 0.05

[training.batcher]
@batchers = "spacy.batch_by_sequence.v1"
size = 8
"""
TAGS = {"the": "D", "a": "D", "cat": "N", "mat": "N", "sat": "V", "lay": "V"}
SENTENCES = [[d, n, v] for d in ("the", "a") for n in ("cat", "mat") for v in ("sat", "lay")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    bilm().save_pretrained("tiny")
    return tmp_path


def pipeline(**config: Any) -> Any:
    nlp = spacy.blank("en")
    nlp.add_pipe("relmo", name="elmo", config={"model": {"model": "tiny", **config}})
    return nlp


@pytest.mark.parametrize("layers", ["mix", "average", "top", 0])
def test_doc_tensor_holds_the_models_vectors(folder: Path, layers: Any) -> None:
    docs = list(pipeline(layers=layers).pipe(["the cat sat on a mat", "", "Katze"]))
    expected = bilm().embed(["the cat sat on a mat", "", "Katze"], layers="average" if layers == "mix" else layers)
    for doc, own in zip(docs, expected, strict=True):
        np.testing.assert_allclose(doc.tensor, own, atol=1e-6)
    assert docs[1].tensor.shape == (0, 8)


def test_tokens_spans_and_docs_have_vectors_also_beside_static_ones(folder: Path) -> None:
    nlp = pipeline(layers="top")
    nlp.vocab.vectors = Vectors(data=np.ones((1, 3), dtype=np.float32), keys=["cat"])
    doc = nlp("the cat sat")
    (own,) = bilm().embed(["the cat sat"], layers="top")
    np.testing.assert_allclose(doc[1].vector, own[1], atol=1e-6)
    np.testing.assert_allclose(doc[1:3].vector, own[1:].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(doc.vector, own.mean(axis=0), atol=1e-6)
    assert doc[1].has_vector
    assert doc.similarity(nlp("the cat sat")) == pytest.approx(1)
    assert doc.similarity(nlp("a mat , a mat")) < 0.999
    assert not nlp("").vector.any()


def test_sentences_are_read_by_themselves_where_asked(folder: Path) -> None:
    nlp = pipeline(layers="top", sentences=True)
    nlp.add_pipe("sentencizer", before="elmo")
    doc = nlp("the cat sat. a mat.")
    own = np.concatenate(bilm().embed([["the", "cat", "sat", "."], ["a", "mat", "."]], layers="top"))
    np.testing.assert_allclose(doc.tensor, own, atol=1e-6)
    nlp.remove_pipe("sentencizer")
    with pytest.raises(ValueError, match="E030"):  # spaCy's: sentence boundaries unset
        nlp("the cat sat.")


def test_a_pipeline_on_disk_or_in_bytes_needs_nothing_else(folder: Path) -> None:
    nlp = pipeline()
    before = nlp("the cat sat").tensor
    data = nlp.to_bytes()
    nlp.to_disk("saved")
    Path("tiny").rename("elsewhere")
    np.testing.assert_array_equal(spacy.load("saved")("the cat sat").tensor, before)
    again = spacy.util.load_model_from_config(nlp.config).from_bytes(data)
    np.testing.assert_array_equal(again("the cat sat").tensor, before)
    assert again.to_bytes() == data


def test_a_doc_in_bytes_keeps_its_vectors(folder: Path) -> None:
    nlp = pipeline()
    doc = nlp("the cat sat")
    again = Doc(nlp.vocab).from_bytes(doc.to_bytes())
    np.testing.assert_array_equal(again.tensor, doc.tensor)
    np.testing.assert_array_equal(again[1].vector, doc[1].vector)


def test_the_gradient_of_the_mixture_is_that_of_small_steps(folder: Path) -> None:
    nlp, layer = spacy.blank("en"), elmo_layer("tiny")
    docs = [nlp.make_doc("the cat sat"), nlp.make_doc(""), nlp.make_doc("a mat")]
    layer.initialize()
    layer.set_param("weights", np.float32([0.3, -0.2, 0.5]))
    layer.set_param("gamma", np.float32([1.7]))
    random = np.random.default_rng(0)
    outputs, backprop = layer.begin_update(docs)
    d = [random.normal(size=y.shape).astype(np.float32) for y in outputs]
    backprop(d)
    for name in ("weights", "gamma"):
        start = layer.get_param(name).copy()
        for i in range(len(start)):
            moved = []
            for step in (1e-2, -1e-2):
                value = start.copy()
                value[i] += step
                layer.set_param(name, value)
                moved.append(sum(float((y * g).sum()) for y, g in zip(layer.predict(docs), d, strict=True)))
            layer.set_param(name, start)
            assert layer.get_grad(name)[i] == pytest.approx((moved[0] - moved[1]) / 2e-2, rel=2e-2, abs=1e-3)


def write_corpus(path: Path) -> None:
    nlp = spacy.blank("en")
    docs = [Doc(nlp.vocab, words=words, tags=[TAGS[word] for word in words]) for words in SENTENCES]
    DocBin(docs=docs).to_disk(path)


def test_spacy_train_trains_a_tagger_that_listens(folder: Path) -> None:
    write_corpus(folder / "corpus.spacy")
    (folder / "base.cfg").write_text(CONFIG)
    fill_config(folder / "config.cfg", folder / "base.cfg")
    files = {"paths.train": "corpus.spacy", "paths.dev": "corpus.spacy"}
    train(folder / "config.cfg", folder / "out", overrides=files)
    (folder / "tiny").rename(folder / "elsewhere")
    nlp = spacy.load(folder / "out" / "model-best")
    assert [token.tag_ for token in nlp("a cat lay")] == ["D", "N", "V"]
    weights = nlp.get_pipe("elmo").model.get_param("weights")
    assert np.ptp(weights) > 1e-3  # the mixture was learned, too
    examples = [Example.from_dict(nlp.make_doc(" ".join(s)), {"tags": [TAGS[w] for w in s]}) for s in SENTENCES]
    assert nlp.evaluate(examples)["tag_acc"] == 1.0


def test_the_layer_stands_inside_a_component_too(folder: Path) -> None:
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy.TextCatReduce.v1", "exclusive_classes": True, "use_reduce_mean": True}
    model |= {"use_reduce_first": False, "use_reduce_last": False, "use_reduce_max": False}
    model["tok2vec"] = {"@architectures": "relmo.Elmo.v1", "model": "tiny", "layers": "average"}
    nlp.add_pipe("textcat", config={"model": model})
    examples = [
        Example.from_dict(nlp.make_doc(" ".join(s)), {"cats": {"cat": s[1] == "cat", "mat": s[1] == "mat"}})
        for s in SENTENCES
    ]
    nlp.initialize(lambda: examples)
    optimizer = Adam(0.3)
    losses = [nlp.update(examples, sgd=optimizer)["textcat"] for _ in range(60)]
    assert losses[-1] < 0.6 * losses[0]
    assert nlp("a cat lay").cats["cat"] > 0.6


def test_an_unknown_layer_is_one_clear_line() -> None:
    with pytest.raises(SettingError, match="average"):
        elmo_layer("tiny", layers="bottom")

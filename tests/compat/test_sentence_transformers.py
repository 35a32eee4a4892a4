"""ELMo in the hands of sentence-transformers: encode, train, save, load."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is not installed: pip install 'relmo[sentence-transformers]'"
)

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from sentence_transformers.sentence_transformer.modules import Pooling

from relmo.compat.sentence_transformers import ElmoEncoder
from relmo.models.bilm import BiLM
from support import tagging
from support.small_models import bilm

TEXTS = ["the cat sat", "the large mat , a cat sat on it", "", "Straße"]


def transformer(encoder: ElmoEncoder) -> SentenceTransformer:
    pooling = Pooling(encoder.get_embedding_dimension(), "mean")
    return SentenceTransformer(modules=[encoder, pooling], device="cpu")


@pytest.mark.parametrize("make", [bilm, tagging.word_bilm])
def test_encode_gives_the_mean_of_the_mixed_vectors(make: type) -> None:
    model: BiLM = make()
    found = transformer(ElmoEncoder(model)).encode(TEXTS)
    np.testing.assert_allclose(found, model.sentence_vectors(TEXTS, layers="average"), atol=1e-5)
    (tokens,) = transformer(ElmoEncoder(model)).encode(TEXTS[:1], output_value="token_embeddings")
    np.testing.assert_allclose(tokens, model.embed(TEXTS[:1], layers="average")[0], atol=1e-5)


@pytest.mark.parametrize("trainable", [False, True])
def test_it_learns_by_the_librarys_losses_and_is_saved_with_what_it_learned(tmp_path: Path, *, trainable: bool) -> None:
    source = bilm()
    before = [parameter.clone() for parameter in source.network.lstm.parameters()]
    model = transformer(ElmoEncoder(source, trainable=trainable))
    loss = CosineSimilarityLoss(model)
    features = [model.preprocess(["the cat sat", "a mat"]), model.preprocess(["a mat", "the cat"])]
    labels = torch.tensor([0.0, 1.0])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    model.train()
    losses = []
    for _ in range(15):
        value = loss([dict(f) for f in features], labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < losses[0]
    moved = any(not torch.equal(a, b) for a, b in zip(before, source.network.lstm.parameters(), strict=True))
    assert moved == trainable
    model.save(str(tmp_path / "mine"))
    again = SentenceTransformer(str(tmp_path / "mine"), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(again.encode(TEXTS), model.eval().encode(TEXTS), atol=1e-6)
    assert again[0].trainable == trainable
    assert not np.allclose(again.encode(TEXTS[:2]), transformer(ElmoEncoder(bilm())).encode(TEXTS[:2]), atol=1e-4)

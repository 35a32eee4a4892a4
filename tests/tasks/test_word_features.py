"""Words as numbers: the layers of a biLM come to a batch by two ways, and are the same."""

import copy
import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from relmo.embedding.elmo_cache import ElmoCache
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.settings.sections import InputSettings
from relmo.tasks import features
from relmo.tasks.features import WordFeatures, count_words, load_layers, measure_spread
from relmo.text.vocabulary import Vocabulary
from support.small_models import bilm

SENTENCES = [["the", "cat", "sat"], ["a", "mat"], [], ["the", "large", "mat", ",", "a", "cat"], ["cat"]]


@pytest.mark.parametrize("kept", ["all", "top"])
@pytest.mark.parametrize("at_once", [2, 1 << 16])
def test_layers_laid_out_at_once_are_those_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Literal["all", "top"], at_once: int
) -> None:
    """What a GPU holds of all sentences gives the same numbers as what is read from the cache for each batch."""
    monkeypatch.setattr(features, "COPY_BATCH_WORDS", at_once)
    settings, model = InputSettings(elmo="x", elmo_layers=kept), bilm()
    known = WordFeatures(settings, count_words(SENTENCES, settings), bilm=model)
    known.cache = ElmoCache(tmp_path, model)
    encoded = known.encode(SENTENCES)
    assert encoded.elmo is not None
    assert encoded.gpu_layers is None  # there is none
    table = load_layers(encoded.elmo, encoded.lengths, known.elmo_shape, torch.device("cpu"))
    at_hand = copy.copy(encoded)
    at_hand.gpu_layers = table
    for which in ([3, 0, 2, 4], [1], [2]):
        expected, found = (each.batch(np.array(which)).layers for each in (encoded, at_hand))
        assert expected is not None
        assert found is not None
        assert expected.shape[2:] == known.elmo_shape
        assert torch.equal(expected, found)


def test_coverage_counts_occurrences_of_words_with_letters() -> None:
    vectors = WordVectors(Vocabulary(["<unk>", "</s>", "the", "cat", ","]), np.eye(5, 3, k=-2, dtype=np.float32))
    text = InputSettings(vectors="x")
    word_features = WordFeatures(text, count_words(SENTENCES, text), vectors=vectors)
    messages: list[str] = []
    word_features.warn_low_coverage(SENTENCES, messages.append)
    word_features.warn_low_coverage([["1990", ","]], messages.append)
    assert "only 45% " in messages[0]  # 5 / 11: the, The, cat; neither , nor 1990 counts
    assert "only 0% " in messages[1]


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, "--vectors none"),
        ({"vectors_tune": True}, "--vectors none --no-vectors-tune"),
        ({"vectors_tune": True, "word_dim": 0, "char_dim": 0}, "--vectors none --no-vectors-tune --word-dim 100"),
    ],
)
def test_the_flags_of_the_warning_train_without_vectors(settings: dict[str, Any], flags: str) -> None:
    text = InputSettings(vectors="words", **settings)
    word_features = WordFeatures.build(text, [["the", "cat"]], torch.device("cpu"))
    messages: list[str] = []
    word_features.warn_low_coverage([["the", "cat", "sat", "."]], messages.append)
    assert messages == []
    word_features.warn_low_coverage([["katten", "sover", "på", "måtten"]], messages.append)
    assert f"{flags} (" in messages[0]
    assert "%" in messages[0]
    changed = {"vectors": "none"} | ({"vectors_tune": False} if "tune" in flags else {})
    without = dataclasses.replace(text, **changed | ({"word_dim": 100} if "--word-dim" in flags else {}))
    assert without.vectors is None
    without.check()


@pytest.mark.gpu
def test_a_gpu_holds_the_layers_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers are those of the cache; where they do not fit, they come with each batch."""
    settings, made = InputSettings(elmo="x"), bilm()
    model = BiLM(made.network, made.settings, made.vocabulary, "cuda")
    known = WordFeatures(settings, count_words(SENTENCES, settings), bilm=model)
    known.cache = ElmoCache(tmp_path, model)
    encoded = known.encode(SENTENCES)
    monkeypatch.setattr(features, "MAX_GPU_SHARE", 0.0)
    elsewhere = known.encode(SENTENCES)
    assert encoded.gpu_layers is not None
    assert elsewhere.gpu_layers is None
    expected, found = (each.batch(np.array([3, 0, 2, 4])).layers for each in (elsewhere, encoded))
    assert expected is not None
    assert found is not None
    assert torch.equal(expected, found.cpu())


def test_the_spread_of_layers_is_measured_over_words_of_the_sentences_at_even_distances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = bilm()
    vectors = np.concatenate(list(model.embed_stream([words for words in SENTENCES if words])), axis=1)  # (K, N, E)
    whole = measure_spread(model, SENTENCES)
    np.testing.assert_allclose(whole.means, vectors.mean(axis=1), atol=1e-6)
    far = np.sqrt(np.square(vectors - vectors.mean(axis=1, keepdims=True)).mean(axis=(1, 2)))
    np.testing.assert_allclose(whole.deviations, far, rtol=1e-4)
    some = measure_spread(model, SENTENCES[::3])
    monkeypatch.setattr(features, "SPREAD_SAMPLE_WORDS", 4)  # a third of the twelve
    np.testing.assert_allclose(measure_spread(model, SENTENCES).means, some.means)
    nothing = measure_spread(model, [[], []])
    assert not nothing.means.any()
    assert (nothing.deviations == 1).all()

"""The linear probe: against its own definition, and on vectors whose labels are known."""

import numpy as np
import pytest
import torch

from relmo.analysis.meaning import probe
from relmo.analysis.meaning.probe import linear_probe, most_frequent_labels


def clouds(count: int = 600, noise: float = 0.7, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Three clouds of points in five dimensions, of quite different scales, the last of which says nothing."""
    generator = np.random.default_rng(seed)
    number = generator.integers(3, size=count)
    centres = np.array([[3, 0, 0, 1], [0, 3, 0, 1], [0, 0, 3, -1]], dtype=np.float32)
    points = centres[number] + noise * generator.standard_normal((count, 4))
    points = np.concatenate([points * [1, 100, 0.01, 1] + [5, 0, 0, -3], np.full((count, 1), 7)], axis=1)
    return points.astype(np.float32), [("noun", "verb", "other")[i] for i in number]


def every_tenth(count: int) -> np.ndarray:
    return np.arange(count) % 10 == 9


def test_clouds_that_lie_apart_are_told_apart_whatever_their_scale() -> None:
    vectors, labels = clouds()
    found = linear_probe(vectors, labels, held_out=every_tenth(len(labels)))
    others, right = clouds(seed=1)
    assert found.labels == ("noun", "other", "verb")
    assert found.mark_correct(others, right).mean() > 0.98
    predicted = [found.labels[i] for i in found.predict(others)]
    assert [mine == theirs for mine, theirs in zip(predicted, right, strict=True)] == found.mark_correct(
        others, right
    ).tolist()


def test_the_weights_are_where_the_penalised_loss_of_all_rows_has_no_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "CONVERGED", 1e-9)
    vectors, labels = clouds(noise=2.0)
    found = linear_probe(vectors, labels, held_out=every_tenth(len(labels)), strengths=[1e-2])
    x = (vectors.astype(np.float64) - vectors.mean(0)) / np.where(vectors.std(0) > 0, vectors.std(0), 1)
    z = x @ found.weight.double().numpy() + found.bias.double().numpy()
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), [found.labels.index(label) for label in labels]] -= 1
    slope = x.T @ p / len(labels) + 1e-2 * found.weight.double().numpy()
    assert np.abs(slope).max() < 1e-4
    assert np.abs(p.mean(axis=0)).max() < 1e-4  # the biases are not penalised


def test_the_same_rows_give_the_same_classifier() -> None:
    vectors, labels = clouds()
    first, second = (linear_probe(vectors, labels, held_out=every_tenth(len(labels))) for _ in range(2))
    assert torch.equal(first.weight, second.weight)
    assert first.strength == second.strength


def test_the_vectors_given_stay_as_they_are() -> None:
    vectors, labels = clouds()
    before = vectors.copy()
    linear_probe(vectors, labels, held_out=every_tenth(len(labels)))
    assert np.array_equal(vectors, before)


def test_noise_is_fitted_with_a_strong_penalty_and_what_is_clear_with_a_weak_one() -> None:
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((200, 80)).astype(np.float32)
    random = [str(i) for i in generator.integers(2, size=200)]
    assert linear_probe(noise, random, held_out=every_tenth(200), strengths=[1.0, 1e-5]).strength == 1.0
    vectors, labels = clouds(noise=0.3)
    assert linear_probe(vectors, labels, held_out=every_tenth(600), strengths=[1.0, 1e-3]).strength == 1e-3


def test_rows_held_out_choose_the_penalty_and_are_learnt_from_afterwards() -> None:
    vectors, labels = clouds(noise=0.1)
    held = np.array([label == "verb" for label in labels])  # while it is chosen, verbs are never seen
    found = linear_probe(vectors, labels, held_out=held)
    assert found.held_out_accuracy < 0.5
    assert found.mark_correct(vectors, labels).mean() > 0.99


def test_a_label_that_training_did_not_have_is_never_right() -> None:
    vectors, labels = clouds()
    found = linear_probe(vectors, labels, held_out=every_tenth(len(labels)))
    assert not found.mark_correct(vectors, ["unheard of"] * len(labels)).any()
    assert found.mark_correct(vectors[:0], []).shape == (0,)


@pytest.mark.parametrize("held", [np.zeros(600, dtype=bool), np.ones(600, dtype=bool)])
def test_nothing_to_learn_from_or_to_choose_by_is_refused(held: np.ndarray) -> None:
    vectors, labels = clouds()
    with pytest.raises(ValueError, match="held out"):
        linear_probe(vectors, labels, held_out=held)


def test_the_usual_label_is_a_words_most_frequent_one_and_for_unseen_words_that_of_all() -> None:
    words, labels = ["run", "run", "run", "cat", "dog"], ["VERB", "VERB", "NOUN", "NOUN", "NOUN"]
    assert most_frequent_labels(words, labels, ["run", "new", "cat"]) == ["VERB", "NOUN", "NOUN"]

"""Scores under minicons' names are those of `surprisal`; the names and what they return are the real library's."""

import inspect
import math

import pytest
import torch

import relmo
from relmo.compat.minicons import Scorer
from relmo.errors import SettingError

SENTENCES = ["The key to the cabinets is here .", "The keys are there ."]


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer("prose")


def test_tokens_have_the_log_probabilities_of_surprisal(scorer: Scorer) -> None:
    rows = relmo.load("prose").surprisal(SENTENCES, context="sentence")
    bits = scorer.token_score(SENTENCES, surprisal=True, base_two=True)
    assert [pair for sentence in bits for pair in sentence] == [(row.word, row.surprisal) for row in rows]
    for kind, of in (({}, -math.log(2)), ({"base_two": True}, -1.0), ({"surprisal": True}, math.log(2))):
        for found, wanted in zip(scorer.token_score(SENTENCES, **kind), bits, strict=True):
            assert [score for _, score in found] == pytest.approx([of * score for _, score in wanted])
    probabilities = scorer.token_score(SENTENCES[0], prob=True)[0]
    assert [p for _, p in probabilities] == pytest.approx([2.0**-score for _, score in bits[0]], rel=1e-5)


def test_sequences_are_reduced_as_asked_and_a_prefix_does_not_count(scorer: Scorer) -> None:
    tokens = scorer.token_score(SENTENCES)
    means = [sum(score for _, score in row) / len(row) for row in tokens]
    assert scorer.sequence_score(SENTENCES) == pytest.approx(means)
    sums = scorer.sequence_score(SENTENCES, reduction=lambda x: x.sum(0).item())
    assert sums == pytest.approx([mean * len(row) for mean, row in zip(means, tokens, strict=True)])
    (rest,) = scorer.conditional_score("The keys", "are there .", reduction=torch.Tensor.tolist)
    assert rest == pytest.approx([score for _, score in tokens[1][-3:]])


def test_mistakes_are_said_in_one_line(scorer: Scorer) -> None:
    with pytest.raises(SettingError, match="2 prefixes"):
        scorer.conditional_score(["a", "b"], ["c"])
    with pytest.raises(SettingError, match="prob"):
        scorer.token_score("a", surprisal=True, prob=True)


def test_the_real_library_has_these_methods_with_these_arguments() -> None:
    real = pytest.importorskip("minicons.scorer", reason="minicons is not installed").IncrementalLMScorer
    for name in ("token_score", "sequence_score", "conditional_score"):
        ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (Scorer, real))
        assert set(ours) <= set(theirs), name

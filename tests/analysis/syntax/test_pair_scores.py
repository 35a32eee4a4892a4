"""Scores of minimal pairs: equal to whole sentences' probabilities, and to interventions one at a time."""

from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pytest
import torch

from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.causal import Unit
from relmo.analysis.syntax.pair_scores import plan_pairs, score_ablated, score_pairs
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.minimal_pairs import MinimalPair
from relmo.text.vocabulary import Vocabulary
from support.small_models import bilm, language_model, ngram_model

CHOICES = [
    MinimalPair("one", ["the", "cat", "sat"], ["the", "cat", "mat"]),
    MinimalPair("two", ["the", "cat", "a"], ["the", "cat", "sat"]),
    MinimalPair("two", ["cat"], ["large"]),
    MinimalPair("one", ["a", "cat", "the", "mat", "a"], ["a", "cat", "the", "mat", "cat"]),
]
WHOLE = [
    MinimalPair("one", "the cat sat", "the cat sat mat", whole=True),
    MinimalPair("two", "a cat", "cat a the", whole=True),
]


def word_model(**options: object) -> LanguageModel:
    torch.manual_seed(1)
    settings = LMSettings(
        model=LanguageModelSettings(**({"hidden": 6, "layers": 2} | options)),  # type: ignore[arg-type]
        text=TextSettings(unit="word"),
    )
    words = Vocabulary([*Vocabulary.specials, "the", "cat", "\n", "sat", "a", "mat"])
    network = make_language_model(settings.model, len(words))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)
    return LanguageModel(network, words, settings)


def sentence_log_p(model: LanguageModel | BiLM, symbols: list[str], *, end: bool) -> float:
    """By one step after the other."""
    if isinstance(model, BiLM):
        log_p = model.log_probs([symbols], direction="forward")[0]
        return float(log_p.sum() if end else log_p[:-1].sum())
    ids = [model.vocabulary.end, *model.vocabulary.ids([*symbols, *(["\n"] if end else [])]).tolist()]
    total, state = 0.0, None
    for before, after in pairwise(ids):
        log_p, state = model.step(torch.tensor([before]), state)
        total += float(log_p[0, after])
    return total


def expected(model: LanguageModel | BiLM, pairs: list[MinimalPair]) -> np.ndarray:
    found = []
    for pair in pairs:
        texts = [text.split() if isinstance(text, str) else list(text) for text in (pair.good, pair.bad)]
        good, bad = (sentence_log_p(model, text, end=pair.whole) for text in texts)
        found.append(good - bad)
    return np.array(found)


@pytest.mark.parametrize("pairs", [CHOICES, WHOLE, [*CHOICES, *WHOLE]], ids=["choices", "whole", "both"])
@pytest.mark.parametrize(
    "make",
    [
        word_model,
        lambda: word_model(softmax="adaptive", cutoffs=(4,)),
        lambda: word_model(softmax="mixture"),
        bilm,
        lambda: bilm(softmax_dim=2),
    ],
)
def test_a_gap_is_the_difference_of_two_texts_log_probabilities(make, pairs: list[MinimalPair]) -> None:
    model = make()
    assert np.allclose(score_pairs(model, plan_pairs(model, pairs)), expected(model, pairs), atol=1e-4)


def test_an_n_gram_model_and_one_of_characters_are_asked_alike() -> None:
    for model in (ngram_model(), language_model()):
        pair = MinimalPair("c", ["the", "cat"], ["the", "mat"])
        by_hand = sentence_log_p(model, list("the cat "), end=False) - sentence_log_p(
            model, list("the mat "), end=False
        )
        assert score_pairs(model, plan_pairs(model, [pair]))[0] == pytest.approx(by_hand, abs=1e-4)


@pytest.mark.parametrize("make", [word_model, lambda: word_model(residual=True), lambda: word_model(cell="gru"), bilm])
def test_many_sets_side_by_side_are_each_an_intervention_by_itself(make) -> None:
    model = make()
    plan = plan_pairs(model, [*CHOICES, *WHOLE])
    sets = [[Unit("h", 0, 1)], [Unit("h", 1, 2)], [], [Unit("h", 1, 0), Unit("h", 0, 3)]]
    values = [[0.0], [0.7], [], [0.2, -0.4]]
    found = score_ablated(model, plan, sets, values=values)
    for units, at, row in zip(sets, values, found, strict=True):
        with ExitStack() as stack:
            for unit, value in zip(units, at, strict=True):
                stack.enter_context(intervene(model, unit.layer, unit.number, "hold", value))
            assert np.allclose(row, expected(model, [*CHOICES, *WHOLE]), atol=1e-4)
            assert np.allclose(row, score_pairs(model, plan), atol=1e-4)
    assert not np.allclose(found[0], found[2], atol=1e-3)
    assert not np.allclose(found[1], found[2], atol=1e-3)


def test_memory_cells_can_be_held_within_an_intervention() -> None:
    model = bilm()
    plan = plan_pairs(model, CHOICES)
    with intervene(model, 1, 3, "hold", 0.2, state="c"):
        both = score_ablated(model, plan, [[Unit("c", 0, 5)]])[0]
        with intervene(model, 0, 5, state="c"):
            assert np.allclose(both, score_pairs(model, plan), atol=1e-5)


def test_two_texts_that_are_the_same_to_a_model_are_a_tie() -> None:
    model = bilm()
    same = MinimalPair("a", "the cat", "the  cat")
    assert score_pairs(model, plan_pairs(model, [same, CHOICES[0]])).tolist() == [
        0,
        *score_pairs(model, plan_pairs(model, CHOICES[:1])),
    ]


def test_pairs_with_unknown_words_are_told_apart() -> None:
    assert plan_pairs(bilm(), CHOICES).known.tolist() == [True, True, False, True]


def test_mistakes_are_said() -> None:
    model = bilm()
    with pytest.raises(CorpusError, match="minimal pairs"):
        plan_pairs(model, [])
    with pytest.raises(CorpusError, match="same"):
        plan_pairs(model, [MinimalPair("a", "the cat", "the  cat")])
    with pytest.raises(SettingError, match=r"layer 2.*0 to 1"):
        score_ablated(model, plan_pairs(model, CHOICES), [[Unit("h", 2, 0)]])
    with pytest.raises(SettingError, match="0 to 3"):
        score_ablated(model, plan_pairs(model, CHOICES), [[Unit("h", 0, 4)]])
    with pytest.raises(ModelError, match="output layer"):
        plan_pairs(BiLM(model.network, model.settings), CHOICES)

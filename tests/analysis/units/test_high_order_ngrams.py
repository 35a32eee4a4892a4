"""N-gram models of high orders: the same as the plain fit where nothing is left out, a distribution where something
is."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relmo.analysis.units.compare import ngram_like
from relmo.errors import CorpusError
from relmo.models.lm import LanguageModel
from relmo.networks.ngram import NGramLM
from relmo.settings.lm import LMSettings
from relmo.text.vocabulary import Vocabulary
from support.small_models import TEXT, language_model

VOCAB = 4
texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60)


def fit_pruned(ids: np.ndarray, **options: int) -> NGramLM:
    vocabulary = Vocabulary([*Vocabulary.specials, "a", "b"])
    assert len(vocabulary) == VOCAB
    model = LanguageModel(NGramLM(vocab_size=VOCAB, order=1), vocabulary, LMSettings())
    network = ngram_like(model, ids, **options).network
    assert isinstance(network, NGramLM)
    return network


def scores(model: NGramLM, text: list[int]) -> torch.Tensor:
    stream = torch.tensor([text])
    return model.nll(stream[:, :-1], stream[:, 1:], model.initial_state(1))[0]


@settings(max_examples=40, deadline=None)
@given(texts, texts, st.integers(1, 6))
def test_with_nothing_left_out_it_is_the_plain_fit(text: list[int], new: list[int], order: int) -> None:
    stream = np.array(text)
    plain = NGramLM.fit(stream, vocab_size=VOCAB, order=order)
    ours = fit_pruned(stream, order=order, once_up_to=order)
    assert plain.sizes == ours.sizes
    assert torch.allclose(scores(plain, [0, *new]), scores(ours, [0, *new]), atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(texts, texts, st.integers(2, 8), st.integers(0, 3))
def test_probabilities_sum_to_one_after_any_context(text: list[int], new: list[int], order: int, once: int) -> None:
    model = fit_pruned(np.array(text), order=order, once_up_to=once)
    state = model.initial_state(1)
    for symbol in new:
        log_p, state = model.step(torch.tensor([symbol]), state)
        assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-4)


def test_above_the_limit_only_n_grams_seen_twice_are_kept() -> None:
    text = np.random.default_rng(0).integers(0, VOCAB, 300)
    model = fit_pruned(text, order=12, once_up_to=2)
    for k in range(3, 13):
        grams = [tuple(text[i : i + k]) for i in range(len(text) - k + 1)]
        assert model.sizes[k - 1] == sum(grams.count(gram) > 1 for gram in set(grams))


def test_a_repeated_text_is_known_by_heart_at_order_twenty_and_not_at_three() -> None:
    lstm = language_model()
    ids = lstm.vocabulary.ids(TEXT)
    high, low = (ngram_like(lstm, ids, order=order) for order in (20, 3))
    assert high.perplexity(TEXT) < low.perplexity(TEXT)
    assert high.vocabulary is lstm.vocabulary
    assert len(high.generate("the ", limit=40)) == 44


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(CorpusError, match="empty"):
        fit_pruned(np.array([], dtype=np.int64), order=3)

"""Generation: a wide enough beam search is exhaustive search, samples follow the model, rows are independent."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from relmo.models.generate import (
    Beam,
    BeamOptions,
    SampleBatch,
    Sampling,
    beam_search,
    choose_symbols,
    sampling_probs,
    step_batch,
)
from relmo.networks.language_model import RecurrentLM
from relmo.nn.recurrence import State
from relmo.settings.lm import LanguageModelSettings

VOCAB, END = 4, 0
SYMBOLS = [1, 2, 3]  # all but the end


def make_network(seed: int = 0, std: float = 0.8) -> RecurrentLM:
    """Random; the greater `std`, the more the probabilities differ and depend on the past."""
    torch.manual_seed(seed)
    network = RecurrentLM(LanguageModelSettings(cell="gru", hidden=8), vocab_size=VOCAB)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=std)
    return network.eval()


def sample(network: RecurrentLM, prompt: Sequence[int], **options: Any) -> Iterator[tuple[list[int], list[float]]]:
    """The symbols of texts from one prompt and their log-probabilities, step by step."""
    draws = SampleBatch(network, prompt, **options)
    while not draws.done:
        step_batch(network, [draws])
        if draws.log_probs is not None:
            yield draws.draw()


@torch.no_grad()
def search_texts(
    network: Any, prompt: Sequence[int], *, beams: int, limit: int, banned: Sequence[int] = ()
) -> list[Beam]:
    """The most probable texts after the prompt by beam search."""
    state = network.initial_state(1)
    for symbol in prompt:
        log_probs, state = network.step(torch.tensor([symbol]), state)
    options = BeamOptions(beams, END, banned)
    return beam_search(network.step, log_probs, state, options, limits=torch.tensor([limit]))[0]


@torch.no_grad()
def log_prob(network: RecurrentLM, prompt: Sequence[int], text: Sequence[int]) -> float:
    """Of the text after the prompt, scored in one go."""
    ids = torch.tensor([[*prompt, *text]])
    nll, _ = network.nll(ids[:, :-1], ids[:, 1:], network.initial_state(1))
    return -nll[0, len(prompt) - 1 :].sum().item()


def all_texts(network: RecurrentLM, prompt: Sequence[int], symbols: Sequence[int], limit: int) -> list[Beam]:
    """Every text that ends within the limit and every one that the limit cuts off, best first."""
    texts = [
        Beam(list(ids), log_prob(network, prompt, [*ids, END]), ended=True)
        for length in range(limit)
        for ids in product(symbols, repeat=length)
    ]
    texts += [Beam(list(ids), log_prob(network, prompt, ids), ended=False) for ids in product(symbols, repeat=limit)]
    return sorted(texts, key=lambda beam: -beam.log_prob)


def assert_same_beams(found: list[Beam], expected: list[Beam]) -> None:
    assert [(beam.ids, beam.ended) for beam in found] == [(beam.ids, beam.ended) for beam in expected]
    for own, other in zip(found, expected, strict=True):
        assert abs(own.log_prob - other.log_prob) < 1e-4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prompt", [[END], [END, 2, 3]])
def test_beam_search_with_enough_beams_is_exhaustive_search(seed: int, prompt: list[int]) -> None:
    network = make_network(seed)
    expected = all_texts(network, prompt, SYMBOLS, limit=4)
    assert len(expected) == 1 + 3 + 9 + 27 + 81
    for beams in (108, 121, 500):  # 27 open texts have 108 continuations at most
        found = search_texts(network, prompt, beams=beams, limit=4)
        assert_same_beams(found, expected[:beams])
    assert math.isclose(sum(math.exp(beam.log_prob) for beam in found), 1, rel_tol=1e-5)


@pytest.mark.parametrize("banned", [[2], [1, 3]])
def test_beam_search_never_uses_banned_symbols(banned: list[int]) -> None:
    network = make_network(1)
    allowed = [symbol for symbol in SYMBOLS if symbol not in banned]
    found = search_texts(network, [END], beams=100, limit=4, banned=banned)
    assert_same_beams(found, all_texts(network, [END], allowed, limit=4))


def test_beam_search_with_nothing_allowed_but_the_end_finds_the_empty_text() -> None:
    network = make_network(1)
    for beams in (1, 3):
        found = search_texts(network, [END], beams=beams, limit=4, banned=SYMBOLS)
        assert_same_beams(found, [Beam([], log_prob(network, [END], [END]), ended=True)])


def beam_search_to_the_end(network: RecurrentLM, prompt: list[int], beams: int, limit: int) -> list[Beam]:
    """Written for reading: every text scored from its beginning, and no stopping before the limit."""
    open_texts: list[list[int]] = [[]]
    finished: list[Beam] = []
    for _ in range(limit):
        candidates = [[*text, symbol] for text in open_texts for symbol in range(network.vocab_size)]
        candidates.sort(key=lambda ids: -log_prob(network, prompt, ids))
        best = candidates[: 2 * beams]
        ended = [ids for ids in best[:beams] if ids[-1] == END]
        finished += [Beam(ids[:-1], log_prob(network, prompt, ids), ended=True) for ids in ended]
        open_texts = [ids for ids in best if ids[-1] != END][:beams]
    finished += [Beam(ids, log_prob(network, prompt, ids), ended=False) for ids in open_texts]
    return sorted(finished, key=lambda beam: -beam.log_prob)[:beams]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_stopping_early_loses_no_text(seed: int, beams: int) -> None:
    network = make_network(seed)
    found = search_texts(network, [END], beams=beams, limit=7)
    assert_same_beams(found, beam_search_to_the_end(network, [END], beams, limit=7))


def test_beam_search_stops_once_no_open_text_can_win() -> None:
    class Counting(nn.Module):
        vocab_size, steps = 3, 0

        def initial_state(self, batch: int) -> State:
            return (torch.zeros(batch, 1),)

        def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
            self.steps += 1
            return torch.tensor([0.9, 0.07, 0.03]).log().expand(len(ids), 3), state

    network = Counting()
    (best,) = search_texts(network, [END], beams=1, limit=1000)
    assert best.ids == []
    assert network.steps == 1


def draw(network: RecurrentLM, seed: int = 0, **options: object) -> tuple[Tensor, Tensor]:
    """All that `sample` yields: symbols and log-probabilities, both (rows, T)."""
    defaults = {"rows": 3, "limit": 12, "end": END, "generator": torch.Generator().manual_seed(seed)}
    steps = list(sample(network, [END], **(defaults | options)))
    return torch.tensor([symbols for symbols, _ in steps]).T, torch.tensor([scores for _, scores in steps]).T


GREEDY = Sampling(temperature=0)


@pytest.mark.parametrize("seed", range(5))
def test_greedy_is_a_beam_of_one_where_texts_do_not_end(seed: int) -> None:
    network = make_network(seed)
    symbols, scores = draw(network, rows=1, banned=[END], sampling=GREEDY)
    (beam,) = search_texts(network, [END], beams=1, limit=12, banned=[END])
    assert beam.ids == symbols[0].tolist()
    assert not beam.ended
    assert abs(beam.log_prob - scores.sum().item()) < 1e-4


@pytest.mark.parametrize("seed", range(5))
def test_greedy_takes_the_most_probable_symbol_each_time(seed: int) -> None:
    network = make_network(seed)
    symbols, _ = draw(network, rows=1, banned=[END], sampling=GREEDY)
    text: list[int] = []
    for symbol in symbols[0].tolist():
        assert symbol == max(SYMBOLS, key=lambda s: log_prob(network, [END], [*text, s]))
        text.append(symbol)


def test_top_k_of_one_is_greedy() -> None:
    network = make_network()
    one = draw(network, banned=[END], sampling=Sampling(top_k=1, temperature=2.0))
    greedy = draw(network, banned=[END], sampling=GREEDY)
    torch.testing.assert_close(one, greedy, rtol=0, atol=0)


rows_of_scores = st.lists(st.floats(-6, 3), min_size=2, max_size=9, unique=True)


@given(rows_of_scores, st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_top_k_keeps_the_k_most_probable(scores: list[float], k: int) -> None:
    row = torch.tensor([scores], dtype=torch.float64)
    probs = sampling_probs(row, Sampling(top_k=k))[0]
    best = set(sorted(range(len(scores)), key=lambda i: -scores[i])[:k])
    expected = torch.tensor([s if i in best else -math.inf for i, s in enumerate(scores)], dtype=torch.float64)
    assert torch.equal(probs, expected.softmax(dim=0))


@given(rows_of_scores, st.floats(0.01, 1))
@settings(max_examples=100, deadline=None)
def test_top_p_keeps_the_smallest_set_that_holds_p(scores: list[float], p: float) -> None:
    row = torch.tensor([scores], dtype=torch.float64)
    chances = row.softmax(dim=1)[0].tolist()
    kept = (sampling_probs(row, Sampling(top_p=p))[0] > 0).tolist()
    held = [chance for chance, keep in zip(chances, kept, strict=True) if keep]
    left = [chance for chance, keep in zip(chances, kept, strict=True) if not keep]
    assert sum(held) >= p - 1e-9
    assert sum(held) - min(held) < p + 1e-9, "without its least symbol it would not hold p"
    assert not left or max(left) <= min(held)


def test_top_p_counts_within_what_top_k_has_left() -> None:
    row = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    kept = sampling_probs(row, Sampling(top_k=2, top_p=0.56)) > 0  # 0.4 of 0.7 are 0.571
    assert kept.tolist() == [[True, False, False, False]]


def test_top_p_and_top_k_work_on_each_row_for_itself() -> None:
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]).log()
    assert (sampling_probs(rows, Sampling(top_p=0.65)) > 0).tolist() == [[True, False, False], [False, True, True]]
    assert (sampling_probs(rows, Sampling(top_k=2)) > 0).tolist() == [[True, True, False], [False, True, True]]


def test_same_seed_same_text_and_another_seed_another() -> None:
    network = make_network(std=0.3)
    first, again, other = (draw(network, seed, banned=[END], rows=4) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert len({tuple(row) for row in first[0].tolist()}) == 4, "the rows differ too"


def test_sampling_leaves_the_global_random_state_alone() -> None:
    network = make_network()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    draw(network)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_limit_cuts_a_text_off_and_changes_nothing_before() -> None:
    network = make_network()
    long, short = draw(network, banned=[END], limit=12)[0], draw(network, banned=[END], limit=5)[0]
    assert long.shape == (3, 12)
    assert torch.equal(long[:, :5], short)


def chi_square(counts: Tensor, chances: Tensor) -> float:
    expected = chances * counts.sum()
    return ((counts - expected).square() / expected)[chances > 0].sum().item()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_first_symbols_come_as_often_as_the_model_says(temperature: float) -> None:
    network = make_network(2, std=0.4)
    chances = torch.tensor([log_prob(network, [END], [symbol]) for symbol in range(VOCAB)]).exp()
    chances = chances ** (1 / temperature) / (chances ** (1 / temperature)).sum()
    assert chances.min() > 0.001
    symbols, _ = draw(network, rows=5000, limit=1, sampling=Sampling(temperature=temperature))
    counts = torch.bincount(symbols[:, 0], minlength=VOCAB)
    assert chi_square(counts, chances) < 21  # 3 degrees of freedom: one in ten thousand
    uniform = torch.full((VOCAB,), 1 / VOCAB)
    assert chi_square(counts, uniform) > 100, "the test tells distributions apart"


def test_whole_texts_come_as_often_as_the_model_says() -> None:
    network = make_network(2, std=0.4)
    pairs = list(product(range(VOCAB), repeat=2))
    pairs = [pair for pair in pairs if pair[0] != END or pair[1] == END]  # after the end comes the end
    chances = torch.tensor([log_prob(network, [END], pair if pair[0] != END else [END]) for pair in pairs]).exp()
    assert abs(chances.sum().item() - 1) < 1e-5
    symbols, _ = draw(network, rows=5000, limit=2)
    counts = torch.tensor([(symbols == torch.tensor(pair)).all(dim=1).sum() for pair in pairs])
    assert counts.sum() == 5000
    assert chi_square(counts, chances) < 39  # 12 degrees of freedom: one in ten thousand


def test_low_temperature_nears_greedy_and_high_nears_uniform() -> None:
    log_probs = torch.tensor([0.6, 0.3, 0.1]).log().expand(3000, 3)
    generator = torch.Generator().manual_seed(0)
    assert not choose_symbols(log_probs, Sampling(temperature=0.05), generator).any()
    counts = torch.bincount(choose_symbols(log_probs, Sampling(temperature=1e4), generator), minlength=3)
    assert chi_square(counts, torch.full((3,), 1 / 3)) < 19  # 2 degrees of freedom: one in ten thousand


@pytest.mark.parametrize("sampling", [Sampling(), GREEDY, Sampling(top_k=2), Sampling(top_p=0.9, temperature=3.0)])
def test_banned_symbols_never_come(sampling: Sampling) -> None:
    network = make_network(3)
    symbols, _ = draw(network, rows=50, limit=20, banned=[END, 2], sampling=sampling)
    assert set(symbols.flatten().tolist()) <= {1, 3}
    assert symbols.shape == (50, 20)


def test_rows_end_independently_and_stay_ended() -> None:
    network = make_network(4)
    symbols, _ = draw(network, rows=40, limit=200)
    ends = [row.tolist().index(END) for row in symbols]
    assert len(set(ends)) > 3
    for row, end in zip(symbols, ends, strict=True):
        assert not row[end:].any()
    assert symbols.shape[1] == max(ends) + 1, "it stops once all have ended"


@pytest.mark.parametrize("sampling", [Sampling(), GREEDY, Sampling(temperature=0.5, top_k=3, top_p=0.95)])
def test_log_probabilities_are_the_models_own_for_each_row(sampling: Sampling) -> None:
    network = make_network(4)
    symbols, scores = draw(network, rows=12, limit=15, banned=[2], sampling=sampling)
    for row, row_scores in zip(symbols.tolist(), scores, strict=True):
        length = row.index(END) + 1 if END in row else len(row)
        assert abs(row_scores[:length].sum().item() - log_prob(network, [END], row[:length])) < 1e-3


def test_sample_yields_as_it_goes() -> None:
    network = make_network()
    steps = sample(network, [END], rows=1, limit=10**9, end=END, banned=[END], generator=torch.Generator())
    assert len([next(steps) for _ in range(3)]) == 3


def test_texts_of_several_prompts_that_grow_together_are_those_that_grow_alone() -> None:
    network = make_network(3)
    asked = [([END], 1, 9), ([END, 1, 2, 3, 1], 3, 5), ([END, 2], 2, 1)]

    def begun(number: int) -> SampleBatch:
        prompt, rows, limit = asked[number]
        generator = torch.Generator().manual_seed(number)
        return SampleBatch(network, prompt, rows=rows, limit=limit, end=END, banned=[END], generator=generator)

    alone = []
    for number, (prompt, rows, limit) in enumerate(asked):
        generator = torch.Generator().manual_seed(number)
        options = {"rows": rows, "limit": limit, "end": END, "banned": [END], "generator": generator}
        alone.append([symbols for symbols, _ in sample(network, prompt, **options)])
    growing = {number: begun(number) for number in (0, 1)}
    found: dict[int, list[list[int]]] = {number: [] for number in range(3)}
    for step in range(20):
        if step == 4:
            growing[2] = begun(2)  # a request that comes later
        step_batch(network, list(growing.values()))
        for number, draws in list(growing.items()):
            if draws.log_probs is not None:
                found[number].append(draws.draw()[0])
            if draws.done:
                del growing[number]
        if not growing:
            break
    assert list(found.values()) == alone

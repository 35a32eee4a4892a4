"""The n-gram model equals the textbook definition, is a distribution, and carries its state."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from relmo.errors import CorpusError, SettingError
from relmo.networks.ngram import NGramLM, estimate_discounts


class Definition:
    """Interpolated modified Kneser-Ney in dictionaries, straight from Chen & Goodman (1999)."""

    def __init__(self, text: list[int], vocab_size: int, order: int) -> None:
        self.vocab_size, self.order = vocab_size, order
        grams = {k: [tuple(text[i : i + k]) for i in range(len(text) - k + 1)] for k in range(1, order + 2)}
        self.counts = {k: Counter(gram[1:] for gram in set(grams[k + 1])) for k in range(1, order)}
        self.counts[order] = Counter(grams[order])

    def discount(self, k: int, count: int) -> float:
        if count == 0:
            return 0.0
        count = min(count, 3)
        n = Counter(self.counts[k].values())
        try:
            d = count - (count + 1) * n[1] / (n[1] + 2 * n[2]) * n[count + 1] / n[count]
        except ZeroDivisionError:
            return count / 2
        return d if 0 < d < count else count / 2

    def probability(self, word: int, context: tuple[int, ...]) -> float:
        k = len(context) + 1
        shorter = self.probability(word, context[1:]) if context else 1 / self.vocab_size
        counts = [self.counts[k][(*context, w)] for w in range(self.vocab_size)]
        if sum(counts) == 0:
            return shorter
        taken = [self.discount(k, count) for count in counts]
        return (counts[word] - taken[word] + sum(taken) * shorter) / sum(counts)

    def nll(self, text: list[int]) -> list[float]:
        """Of every token but the first."""
        contexts = [tuple(text[max(0, i - self.order + 1) : i]) for i in range(1, len(text))]
        return [-math.log(self.probability(word, context)) for word, context in zip(text[1:], contexts, strict=True)]


VOCAB = 6
texts = st.lists(st.integers(0, VOCAB - 2), min_size=1, max_size=80)  # the last id never appears in training
held_out = st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=25)
orders = st.integers(1, 5)


def fit(text: list[int], order: int, vocab_size: int = VOCAB) -> NGramLM:
    return NGramLM.fit(np.array(text, dtype=np.uint16), vocab_size=vocab_size, order=order)


def nll(model: NGramLM, text: list[int]) -> torch.Tensor:
    ids = torch.tensor([text])
    return model.nll(ids[:, :-1], ids[:, 1:], model.initial_state(1))[0][0]


def after(model: NGramLM, context: list[int]) -> torch.Tensor:
    """ln p of every token after the context, one step at a time: (V,)."""
    state = model.initial_state(1)
    for token in context:
        log_p, state = model.step(torch.tensor([token]), state)
    return log_p[0]


@pytest.fixture(scope="module")
def model() -> NGramLM:
    return fit(random_text(2000), order=4)


def random_text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).choice(VOCAB - 1, size=length, p=[0.4, 0.3, 0.2, 0.07, 0.03]).tolist()


@settings(max_examples=200, deadline=None)
@given(texts, held_out, orders)
def test_it_equals_the_definition_on_new_text(text: list[int], new: list[int], order: int) -> None:
    expected = torch.tensor(Definition(text, VOCAB, order).nll(new))
    torch.testing.assert_close(nll(fit(text, order), new), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_it_equals_the_definition_where_the_discounts_are_estimated(order: int) -> None:
    text, new = random_text(1500), random_text(60, seed=1)
    expected = torch.tensor(Definition(text, VOCAB, order).nll(new))
    torch.testing.assert_close(nll(fit(text, order), new), expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(texts, held_out, st.integers(1, 16))
def test_probabilities_are_positive_and_sum_to_one(text: list[int], new: list[int], order: int) -> None:
    model = fit(text, order)
    for context in (new, text):
        p = after(model, context).double().exp()
        assert p.min() > 0
        assert p.sum().item() == pytest.approx(1, abs=1e-5)


@settings(max_examples=100, deadline=None)
@given(texts, held_out, orders)
def test_step_and_nll_agree(text: list[int], new: list[int], order: int) -> None:
    model = fit(text, order)
    state, stepped = model.initial_state(1), []
    for token, following in pairwise(new):
        log_p, state = model.step(torch.tensor([token]), state)
        stepped.append(-log_p[0, following])
    torch.testing.assert_close(torch.stack(stepped), nll(model, new), rtol=1e-6, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(held_out, st.lists(st.integers(0, 25), max_size=4))
def test_chunks_with_carried_state_equal_one_go(model: NGramLM, new: list[int], cuts: list[int]) -> None:
    ids = torch.tensor([new])
    inputs, targets = ids[:, :-1], ids[:, 1:]
    whole, last = model.nll(inputs, targets, model.initial_state(1))
    state, parts = model.initial_state(1), []
    bounds = [0, *sorted(min(cut, len(new) - 1) for cut in cuts), len(new) - 1]
    for start, stop in pairwise(bounds):
        part, state = model.nll(inputs[:, start:stop], targets[:, start:stop], state)
        parts.append(part)
    assert torch.equal(torch.cat(parts, dim=1), whole)
    assert torch.equal(state[0], last[0])


def test_a_batch_of_lanes_equals_each_lane_alone(model: NGramLM) -> None:
    ids = torch.tensor([random_text(20, seed) for seed in range(5)])
    together, state = model.nll(ids[:, :-1], ids[:, 1:], model.initial_state(5))
    stepped, _ = model.step(ids[:, -1], state)
    for lane, text in enumerate(ids.tolist()):
        assert torch.equal(together[lane], nll(model, text))
        assert torch.equal(stepped[lane], after(model, text))


def test_the_initial_state_is_no_context_at_all(model: NGramLM) -> None:
    (state,) = model.initial_state(2)
    assert state.shape == (2, 3)
    assert torch.equal(state, torch.full((2, 3), -1))


def test_a_token_never_seen_has_a_finite_nll_and_so_has_what_follows_it(model: NGramLM) -> None:
    unseen = VOCAB - 1
    assert nll(model, [0, unseen, unseen, 1, 0]).isfinite().all()


def test_save_and_load_give_the_same_output(model: NGramLM, tmp_path: Path) -> None:
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        loaded = NGramLM(vocab_size=VOCAB, order=4, sizes=model.sizes)
    assert all(buffer.is_meta for buffer in loaded.buffers())
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True, assign=True)
    text = random_text(100, seed=2)
    assert loaded.sizes == model.sizes
    assert torch.equal(nll(loaded, text), nll(model, text))
    assert torch.equal(after(loaded, text), after(model, text))


def test_sizes_also_fit_a_plain_strict_load(model: NGramLM) -> None:
    loaded = NGramLM(vocab_size=VOCAB, order=4, sizes=model.sizes)
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(nll(loaded, [0, 1, 2, 0]), nll(model, [0, 1, 2, 0]))


def test_without_tables_it_is_uniform() -> None:
    model = NGramLM(vocab_size=VOCAB, order=3)
    torch.testing.assert_close(nll(model, [0, 1, 2]), torch.full((2,), math.log(VOCAB)))
    torch.testing.assert_close(after(model, [0, 1]), torch.full((VOCAB,), -math.log(VOCAB)))


def test_a_memory_map_gives_the_same_tables(model: NGramLM, tmp_path: Path) -> None:
    np.array(random_text(2000), dtype=np.int32).tofile(tmp_path / "ids.bin")
    mapped = NGramLM.fit(np.memmap(tmp_path / "ids.bin", dtype=np.int32, mode="r"), vocab_size=VOCAB, order=4)
    for name, table in model.state_dict().items():
        assert torch.equal(mapped.state_dict()[name], table)


def test_discounts_follow_the_counts_of_counts() -> None:
    counts = np.repeat([1, 2, 3, 4, 9], [100, 40, 20, 10, 7])  # n1 ... n4 = 100, 40, 20, 10; Y = 100 / 180
    y = 100 / 180
    assert estimate_discounts(counts).tolist() == pytest.approx([0, 1 - 0.8 * y, 2 - 1.5 * y, 3 - 2 * y])


def test_discounts_that_cannot_be_estimated_are_half_their_count() -> None:
    assert estimate_discounts(np.array([7, 8, 9])).tolist() == [0, 0.5, 1, 1.5]


@pytest.mark.parametrize("order", [0, 21])
def test_an_order_out_of_range_is_refused(order: int) -> None:
    with pytest.raises(SettingError, match=rf"order .* {order}$"):
        NGramLM(vocab_size=VOCAB, order=order)


def test_sizes_for_another_order_are_refused() -> None:
    with pytest.raises(SettingError, match="sizes"):
        NGramLM(vocab_size=VOCAB, order=3, sizes=[1, 2])


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(CorpusError, match="empty"):
        fit([], order=2)


@pytest.mark.slow
def test_tiny_shakespeare_by_character(data) -> None:
    text = data("lm/tinyshakespeare/input.txt").read_text(encoding="utf-8")
    characters, ids = np.unique(np.array(list(text)), return_inverse=True)
    train, valid = np.split(ids, [int(0.9 * len(ids)), int(0.95 * len(ids))])[:2]
    nats = {}
    for order in (5, 10):
        model = NGramLM.fit(train, vocab_size=len(characters), order=order)
        nats[order] = nll(model, valid.tolist()).double().mean().item()
    print(nats)
    assert nats[5] == pytest.approx(1.503, abs=0.002)
    assert nats[10] == pytest.approx(1.458, abs=0.002)


def words(path: Path) -> list[str]:
    return [word for line in path.open(encoding="utf-8") for word in [*line.split(), "<eos>"]]


@pytest.mark.slow
def test_wikitext_2_by_word_agrees_with_kenlm(data) -> None:
    """KenLM 0.3.0 (`lmplz -o 5`) gives 232.50 for the same tokens as one line; its <s> and </s> move it by 0.01."""
    train, valid = (words(data(f"lm/wikitext-2/wiki.{part}.tokens")) for part in ("train", "valid"))
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(train))}
    model = fit([vocabulary[word] for word in train], order=5, vocab_size=len(vocabulary))
    perplexity = nll(model, [vocabulary[word] for word in valid]).double().mean().exp().item()
    print(perplexity)
    assert perplexity == pytest.approx(232.50, rel=2e-4)

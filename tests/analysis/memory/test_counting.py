"""Counting: a network built by hand to count is found to, one that cannot is found not to; training learns to count."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from relmo.analysis.memory import counting_training as module
from relmo.analysis.memory.counting import (
    correlations,
    counting,
    counting_each,
    counting_table,
    draw_counting,
    format_ranges,
    judge,
)
from relmo.analysis.memory.counting_training import (
    Blocks,
    PaddedWords,
    get_language,
    max_nll,
    train_best,
    validate,
)
from relmo.analysis.memory.gradients import Fresh, fresh_model
from relmo.errors import SettingError
from relmo.models.lm import LanguageModel
from relmo.settings.lm import TextSettings
from relmo.settings.options import CountingOptions
from relmo.text.vocabulary import SPECIALS, Vocabulary

SURE = 50.0


def new_model(cell: str, hidden: int, vocabulary: Vocabulary, seed: int) -> LanguageModel:
    fresh = Fresh(cell=cell, hidden=hidden, embedding=4, start="relmo", seed=seed)
    return fresh_model(fresh, vocabulary, TextSettings(text_per="line"))


OPTIONS = CountingOptions(limit=20, hidden=2, strings=300)


def counter_by_hand() -> LanguageModel:
    """An LSTM of two cells for a^n b^n: c_0 goes up with an a and down with a b, c_1 goes up with a b. The end comes
    where c_1 > 0 and c_0 = 0; an a only where c_1 = 0; a b only where c_0 > 0."""
    model = new_model("lstm", 2, Vocabulary([*SPECIALS, "a", "b"]), seed=0)
    network, cell = model.network, model.encoder.recurrent.cells[0][0]
    with torch.no_grad():
        for parameter in network.parameters():  # type: ignore[union-attr]
            parameter.zero_()
        embedding = model.encoder.embedding.weight  # <unk> </s> a b
        embedding[2, 0] = embedding[3, 1] = 1.0
        cell.bias_ih[:] = SURE  # all gates open
        cell.bias_ih[4:6] = 0.0  # but for the candidate, which the symbol decides
        cell.weight_ih[4, 0], cell.weight_ih[4, 1], cell.weight_ih[5, 1] = SURE, -SURE, SURE
        output = network.softmax.weight  # type: ignore[union-attr]
        output[1] = SURE * torch.tensor([-2.0, 1.0])
        output[2] = SURE * torch.tensor([0.8, -2.0])
        output[3] = SURE * torch.tensor([1.0, 0.0])
        network.softmax.bias[:] = SURE * torch.tensor([-1.0, -0.3, 0.0, -0.2])  # type: ignore[union-attr]
    return model


def indifferent() -> LanguageModel:
    """All symbols equally probable: everything is accepted."""
    model = new_model("gru", 2, Vocabulary([*SPECIALS, "a", "b"]), seed=0)
    with torch.no_grad():
        model.network.softmax.weight.zero_()  # type: ignore[union-attr]
    return model


def test_a_word_is_judged_by_its_least_probable_symbol() -> None:
    model = new_model("lstm", 5, Vocabulary([*SPECIALS, "a", "b"]), seed=1)
    with torch.no_grad():
        for parameter in model.network.parameters():  # type: ignore[union-attr]
            parameter.mul_(4)
    words = ["ab", "aabb", "b", "abab", "aaaaaabbb"]
    expected = []
    for word in words:
        state, worst, last = None, 0.0, model.vocabulary.end
        for symbol in [*model.vocabulary.ids(word).tolist(), model.vocabulary.end]:
            log_p, state = model.step(torch.tensor([last]), state)
            worst, last = max(worst, -float(log_p[0, symbol])), symbol
        expected.append(worst)
    np.testing.assert_allclose(max_nll(model, words), expected, rtol=1e-4)


def test_many_words_of_all_lengths_are_judged_in_parts_that_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = counter_by_hand()
    words = Blocks("ab").strings(30, 60, seed=2)
    whole = max_nll(model, words)
    monkeypatch.setattr(module, "MAX_BATCH_SYMBOLS", 100)
    np.testing.assert_allclose(max_nll(model, words), whole, rtol=1e-5, atol=1e-6)


def test_a_network_that_counts_is_found_to_count() -> None:
    found = judge(counter_by_hand(), Blocks("ab"), OPTIONS)
    assert found.accepted == [(1, 80)]
    assert found.first_failure is None
    assert found.first_wrong is None
    assert set(found.wrongly) == {"b^(n-2)", "b^(n-1)", "b^(n+1)", "b^(n+2)"}
    assert (found.right, found.rejected, found.balanced, found.accuracy) == (1.0, 1.0, 1.0, 1.0)
    best = found.counters[0]
    assert (best.state, best.unit, best.count) == ("c", 0, "#a - #b")
    assert best.r == pytest.approx(1.0, abs=1e-6)
    assert best.slope == pytest.approx(1.0, abs=1e-6)
    assert found.counting_units == 1


def test_a_network_that_forgets_fails_where_it_must() -> None:
    model = counter_by_hand()
    with torch.no_grad():
        model.encoder.recurrent.cells[0][0].bias_ih[2] = 3.0  # f = 0.95: the count leaks
    found = judge(model, Blocks("ab"), OPTIONS)
    assert found.first_failure is not None
    assert found.accepted[0] == (1, found.first_failure - 1)
    assert found.first_wrong is not None
    assert all(n >= found.first_wrong for pairs in found.wrongly.values() for pair in pairs for n in pair)
    assert found.balanced < 0.9


def test_accepting_everything_is_worth_half_a_point_in_balance() -> None:
    found = judge(indifferent(), Blocks("ab"), OPTIONS)
    assert found.accepted == [(1, 80)]
    assert found.wrongly["b^(n+1)"] == [(1, 80)]
    assert found.wrongly["b^(n-2)"] == [(2, 80)]
    assert found.first_wrong == 1
    assert (found.right, found.rejected, found.balanced) == (1.0, 0.0, 0.5)
    assert found.accuracy == pytest.approx(1 - found.always_no)


def test_validation_is_on_words_up_to_a_quarter_above_the_limit_and_knows_how_sure_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    language, seen = Blocks("ab"), []

    def looked(model: LanguageModel, language: Blocks, words: list[str], threshold: float) -> tuple[float, float]:
        seen.append(words)
        return 1.0, 1.0

    with monkeypatch.context() as patch:
        patch.setattr(module, "validate", looked)
        module.train(language, "elman", CountingOptions(limit=20, hidden=2, steps=1), 0, lambda _: None)
    (words,) = seen
    assert max(word.count("a") for word in words) == 25
    assert {word.count("a") for word in words} >= {1, 20, 21, 22, 23, 24, 25}
    share, margin = validate(counter_by_hand(), language, words, 0.01)
    assert share == 1.0
    assert margin > 0.5
    share, margin = validate(indifferent(), language, words, 0.01)
    assert share == 0.5
    assert margin == pytest.approx(math.log(0.01 * 4), abs=1e-5)  # of wrong words: they should be below, and are above


def test_correlations_are_pearsons_and_slopes_those_of_the_line() -> None:
    generator = np.random.default_rng(0)
    count = generator.integers(0, 9, 200)
    noisy = count + generator.standard_normal(200)
    values = np.stack([2.0 * count + 1, -0.5 * count, np.full(200, 3.0), noisy], axis=1)
    r, slope = correlations(values, count)
    assert r.tolist() == pytest.approx([1.0, -1.0, 0.0, float(np.corrcoef(noisy, count)[0, 1])])
    assert slope.tolist() == pytest.approx([2.0, -0.5, 0.0, float(np.polyfit(count, noisy, 1)[0])])


@pytest.mark.slow
def test_an_lstm_learns_to_count_beyond_what_it_has_seen() -> None:
    told: list[float] = []
    options = CountingOptions(limit=8, steps=750, seeds=2, strings=200)
    found = counting("anbn", "lstm", options, progress=told.append)
    assert found.tried[-1].validation == 1.0
    assert found.accepted[0][0] == 1
    assert (found.first_failure or 33) > 10
    assert (found.first_wrong or 33) > 10
    assert found.counters[0].state == "c"
    assert abs(found.counters[0].r) > 0.99
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_the_bundled_lstm_is_exact_to_a_thousand_and_the_gru_is_not() -> None:
    language, sizes = get_language("anbn"), [1, 2, 3, 4, 5, 50, 51, 200, 999, 1000]
    words = [word for n in sizes for word in (*language.right(n), *language.wrong(n).values())]
    lstm, gru = (LanguageModel.from_pretrained(name, device="cpu") for name in ("anbn-lstm", "anbn-gru"))
    assert validate(lstm, language, words, CountingOptions().threshold)[0] == 1.0
    assert validate(gru, language, words, CountingOptions().threshold)[0] < 0.9


def test_a_seed_trains_one_network_whatever_was_drawn_before() -> None:
    networks = []
    for before in (0, 1):
        torch.manual_seed(before)
        model, tried = train_best(get_language("dyck-1"), "elman", CountingOptions(limit=4, steps=30, seeds=1), None)
        networks.append(max_nll(model, ["(())", "()()"]).tolist())
        assert tried[0].step == 30
    assert networks[0] == networks[1]


def test_the_best_of_several_seeds_is_kept_and_trying_ends_with_a_perfect_one(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.7, 0.9, 0.9, 1.0, 1.0])
    margins = iter([0.0, -0.5, -0.2, 1.0, 2.0])

    def trained(*given: object) -> tuple[object, module.Attempt]:
        seed = int(given[3])  # type: ignore[call-overload]
        return f"network {seed}", module.Attempt(seed, 1, next(scores), next(margins), 0.0, 0.0)

    monkeypatch.setattr(module, "train", trained)
    best, tried = train_best(Blocks("ab"), "gru", CountingOptions(seeds=3), None)
    assert (best, len(tried)) == ("network 2", 3)
    best, tried = train_best(Blocks("ab"), "gru", CountingOptions(seeds=2, seed=7), None)
    assert (best, len(tried)) == ("network 7", 1)


def test_each_seed_can_be_judged_by_itself() -> None:
    options = CountingOptions(limit=6, steps=20, seeds=2, seed=3, strings=20)
    both = counting_each("anbn", "lstm", options)
    assert [found.tried[0].seed for found in both] == [3, 4]
    alone = counting("anbn", "lstm", CountingOptions(limit=6, steps=20, seeds=1, seed=4, strings=20))
    assert both[1].counters == alone.counters
    assert [row[0] for row in counting_table(both).rows] == ["lstm 10, seed 3", "lstm 10, seed 4"]


def test_of_the_moments_in_a_training_the_clearest_of_the_best_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([(0.9, 3.0), (1.0, 0.1), (1.0, 0.5), (1.0, 0.2)])
    seen = []

    def looked(model: LanguageModel, *_: object) -> tuple[float, float]:
        seen.append(max_nll(model, ["aabb"])[0])
        return next(answers)

    monkeypatch.setattr(module, "validate", looked)
    monkeypatch.setattr(module, "VALIDATION_INTERVAL", 2)
    model, tried = module.train(Blocks("ab"), "elman", CountingOptions(limit=4, steps=8), 0, lambda _: None)
    assert (tried.step, tried.validation, tried.margin) == (6, 1.0, 0.5)
    assert max_nll(model, ["aabb"])[0] == seen[2]
    assert len(set(seen)) == 4


def test_what_is_not_to_be_told_and_what_lies_past_a_words_end_has_no_weight() -> None:
    _, tried = module.train(Blocks("ab"), "elman", CountingOptions(limit=5, steps=1), 0, lambda _: None)
    model = new_model("elman", CountingOptions().hidden, Vocabulary([*SPECIALS, "a", "b"]), seed=0)
    examples = Blocks("ab").examples(5, seed=0)
    words = PaddedWords([example.word for example in examples], model.vocabulary)
    weights = module.compute_weights(words, examples)
    nll, _ = model.network.nll(words.inputs, words.targets, model.network.initial_state(5))  # type: ignore[operator]
    assert tried.loss == pytest.approx(float((nll.detach() * weights).sum() / weights.sum()), rel=1e-5)
    inside = torch.arange(11) <= 2 * torch.arange(1, 6).unsqueeze(1)  # each symbol, and the end
    inside[4, 5] = False  # the first b of the longest word
    assert torch.equal(weights > 0, inside)
    assert weights[0, 0] == weights[0, 2] > weights[1, 0]  # a word's weight is that of all its symbols
    assert weights[3, 0] == weights[3, 4] < 1  # aaaabbbb, up to the first b
    assert (weights[3, 5:9] == 1).all()  # but what follows from that counts in long words too


def test_only_the_recurrent_weights_grow() -> None:
    options = CountingOptions(limit=4, steps=1, growth=0.0)
    plain, grown = (
        module.train(Blocks("ab"), "gru", replace(options, growth=growth), 0, lambda _: None)[0].network.state_dict()
        for growth in (0.0, 0.5)
    )
    for name, weight in plain.items():
        factor = 1 + 0.5 * options.lr if "recurrent" in name else 1.0
        assert torch.allclose(grown[name], factor * weight, rtol=1e-6)


def test_brackets_are_learnt_from_and_their_depth_is_the_count() -> None:
    found = counting("dyck-2", "gru", CountingOptions(limit=4, steps=20, seeds=1, strings=40))
    assert found.language == "dyck-2"
    assert {counter.count for counter in found.counters} == {"depth"}
    assert set(found.wrongly) == {"one closed too few", "one closed too many", "last of another kind"}
    assert found.always_no == 0.5


def test_results_are_plain_numbers_a_table_a_picture_and_a_model_that_can_be_saved(tmp_path: Path) -> None:
    found = judge(counter_by_hand(), Blocks("ab"), OPTIONS)
    other = judge(indifferent(), Blocks("ab"), OPTIONS)
    assert json.loads(json.dumps(found.as_dict()))["accepted"] == [[1, 80]]
    assert "model" not in found.as_dict()
    table = counting_table([found, other])
    assert [row[0] for row in table.rows] == ["lstm 2", "gru 2"]
    assert "gru 2 wrongly accepts b^(n+1): n = 1-80" in table.notes
    assert "<table" in found._repr_html_()
    draw_counting([found, other], tmp_path / "counting.svg")
    assert "<svg" in (tmp_path / "counting.svg").read_text()
    found.model.save_pretrained(tmp_path / "model")
    loaded = LanguageModel.from_pretrained(tmp_path / "model", device="cpu")
    assert judge(loaded, Blocks("ab"), OPTIONS) == found
    assert found.counting_units == 1


def test_many_format_ranges_are_shortened() -> None:
    assert format_ranges([(1, 9), (11, 11)]) == "1-9, 11"
    assert format_ranges([(n, n) for n in range(2, 22, 2)]) == "2, 4, 6, … (6 more), 20"
    assert format_ranges([]) == "none"


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingError, match="lstm, gru, elman"):
        counting("anbn", "ngram")  # type: ignore[arg-type]
    for wrong in (
        {"limit": 3},
        {"tested": 10},
        {"threshold": 1.0},
        {"lr": 0.0},
        {"growth": -1.0},
        {"seeds": 0},
        {"hidden": 0},
    ):
        with pytest.raises(SettingError):
            counting("anbn", "lstm", CountingOptions(**wrong))  # type: ignore[arg-type]

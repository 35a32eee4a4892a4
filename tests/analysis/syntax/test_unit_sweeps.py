"""Accuracy by condition, units off one by one and together, gates over sentences: on a network made by hand, in which
one unit is the number."""

import json

import numpy as np
import pytest
import torch

from experiments.agreement import WordChoice, score_choices
from relmo.analysis.core.causal import Unit
from relmo.analysis.syntax.agreement import ablate_together, agreement, sample_pairs, sweep
from relmo.analysis.syntax.gate_traces import gate_traces
from relmo.errors import SettingError
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.minimal_pairs import MinimalPair
from relmo.text.vocabulary import Vocabulary
from support.small_models import bilm, ngram_model

WORDS = ["cat", "cats", "near", "is", "are", "go", "goes"]
NUMBER = Unit("h", 0, 4)


def by_hand() -> LanguageModel:
    """An LSTM whose unit 4 takes up the number of the first noun and keeps it; 'is' and 'are' are read off it. Unit 1
    says nothing but what the last word was, by which 'goes' and 'go' are told apart."""
    settings = LMSettings(
        model=LanguageModelSettings(hidden=6, embedding=len(WORDS) + 2, forget_bias=0.0), text=TextSettings(unit="word")
    )
    vocabulary = Vocabulary([*Vocabulary.specials, *WORDS])
    network = make_language_model(settings.model, len(vocabulary))
    at = vocabulary.index
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.encoder.embedding.weight.copy_(torch.eye(len(vocabulary)))
        ih, _, b_ih, _ = network.encoder.recurrent.cells[0][0].parameters()
        i, f, g, o = (slice(6 * k, 6 * k + 6) for k in range(4))
        b_ih[i], b_ih[o], b_ih[f] = 8.0, 8.0, -8.0
        b_ih[f][4] = 8.0
        b_ih[i][4] = -8.0
        for word, sign in (("cat", 1.0), ("cats", -1.0)):
            ih[i, at[word]] = 16.0
            ih[g, at[word]] = torch.tensor([0.0, 3 * sign, 0, 0, 3 * sign, 0])
        for word, unit, sign in (("is", 4, 1.0), ("are", 4, -1.0), ("goes", 1, 1.0), ("go", 1, -1.0)):
            network.softmax.weight[at[word], unit] = 3 * sign
    return LanguageModel(network, vocabulary, settings)


def number_pairs() -> list[MinimalPair]:
    found = []
    for _ in range(6):
        for noun, verbs in (("cat", ("is", "are")), ("cats", ("are", "is"))):
            found.append(MinimalPair(f"far {noun}", [noun, "near", verbs[0]], [noun, "near", verbs[1]]))
        for noun, verbs in (("cat", ("goes", "go")), ("cats", ("go", "goes"))):
            found.append(MinimalPair("next", [noun, verbs[0]], [noun, verbs[1]]))
    return found


def test_accuracy_by_condition_is_that_of_the_pairs_own_scores() -> None:
    model = bilm()
    words = [["the", "cat"], ["a", "cat"], ["the", "mat"], ["the", "a", "cat"]]
    choices = [WordChoice(context, "sat", other) for context in words for other in ("mat", "a", "large")]
    pairs = [MinimalPair(c.wrong, [*c.context, c.right], [*c.context, c.wrong]) for c in choices]
    report = agreement(model, pairs)
    scores = score_choices(model, choices)
    assert [each.name for each in report.conditions] == ["all", "mat", "a", "large"]
    assert report.of("all").model.share.value == pytest.approx((scores > 0).mean())
    assert report.of("a").model.share.value == pytest.approx((scores[1::3] > 0).mean())
    assert report.of("large").model.known_pairs == 0
    assert report.of("mat").frequency.value == 0.0  # mat stands before sat in the vocabulary
    assert report.of("large").frequency.value == 1.0
    assert report.of("all").untrained is not None
    assert json.loads(json.dumps(report.as_dict()))["conditions"][0]["pairs"] == 12
    assert "95% interval" in report._repr_html_()


def test_an_n_gram_model_has_no_untrained_control_and_sentences_no_more_frequent_form() -> None:
    report = agreement(ngram_model(), [MinimalPair("a", "the cat", "the tac", whole=True)])
    assert [each.name for each in report.conditions] == ["a"]
    assert (report.of("a").untrained, report.of("a").frequency) == (None, None)


def test_a_sweep_finds_the_unit_that_each_condition_needs() -> None:
    found = sweep(by_hand(), number_pairs())
    assert found.conditions == ["all", "far cat", "far cats", "next"]
    assert found.base.tolist() == [100, 100, 100, 100]
    assert found.chosen[1] == found.chosen[2] == NUMBER
    assert found.chosen[3] == Unit("h", 0, 1)
    assert found.accuracy[4].tolist() == [75, 50, 50, 100]  # without it the two forms are a tie
    assert found.held_out[1:].tolist() == [50, 50, 50]
    assert found.rank[1:].tolist() == [1, 1, 1]
    assert (found.interval[:, 0] <= found.held_out).all()
    assert (found.held_out <= found.interval[:, 1]).all()
    assert found.margin[4, 1] == pytest.approx(6 * np.tanh(np.tanh(3)), abs=0.02)
    assert json.loads(json.dumps(found.as_dict()))["conditions"][1]["unit"] == "h0.4"


def test_where_no_unit_is_needed_as_many_as_there_are_cost_as_much() -> None:
    pairs = [MinimalPair("a", ["near", "is"], ["near", "are"])] * 4
    assert sweep(by_hand(), pairs).rank.tolist() == [6]


def test_at_its_mean_over_both_numbers_a_unit_is_off_too_and_over_one_it_is_not() -> None:
    both = sweep(by_hand(), number_pairs(), how="mean")
    assert both.accuracy[4, 0] < 90
    one = sweep(by_hand(), [pair for pair in number_pairs() if pair.condition == "far cat"], how="mean")
    assert one.accuracy[4].tolist() == [100]


def test_units_together_are_compared_with_random_sets_of_others() -> None:
    found = ablate_together(by_hand(), number_pairs(), [NUMBER], draws=19, seed=1)
    assert found.accuracy.tolist() == [75, 50, 50, 100]
    assert found.random.shape == (19, 4)
    assert (found.random[:, 1] == 100).all()
    assert found.p[1] == pytest.approx(1 / 20)
    assert found.p[3] == 1
    assert json.loads(json.dumps(found.as_dict()))["units"] == ["h0.4"]


def test_gates_over_the_sentence_come_by_condition(tmp_path) -> None:
    found = gate_traces(by_hand(), number_pairs(), Unit("c", 0, 4))
    assert found.words["far cat"] == ["cat", "near"]
    assert found.words["next"] in (["cat"], ["cats"])
    assert found.means["far cat"]["c"] == pytest.approx([np.tanh(3), np.tanh(3)], abs=0.01)
    assert found.means["far cats"]["c"] == pytest.approx([-np.tanh(3), -np.tanh(3)], abs=0.01)
    assert found.means["far cat"]["i"][0] > 0.99 > 0.01 > found.means["far cat"]["i"][1]
    assert found.deviations["far cat"]["c"].max() == pytest.approx(0, abs=1e-6)
    assert found.deviations["next"]["c"][0] > 0.5
    found.plot(tmp_path / "gates.png")
    assert json.loads(json.dumps(found.as_dict()))["unit"] == "c0.4"


def test_a_projected_memory_cell_has_gates_and_its_h_none() -> None:
    pairs = [MinimalPair("a", ["the", "cat", "sat"], ["the", "cat", "mat"])]
    assert list(gate_traces(bilm(), pairs, Unit("c", 1, 8)).means["a"]) == ["c", "i", "f", "o", "g"]
    assert list(gate_traces(bilm(), pairs, Unit("h", 1, 3)).means["a"]) == ["h"]


def test_pairs_are_drawn_from_each_condition() -> None:
    kept = sample_pairs(number_pairs(), 3, 0)
    assert [sum(pair.condition == name for pair in kept) for name in ("far cat", "far cats", "next")] == [3, 3, 3]
    assert sample_pairs(number_pairs(), None, 0) == number_pairs()


def test_mistakes_are_said() -> None:
    with pytest.raises(SettingError, match="once"):
        ablate_together(by_hand(), number_pairs(), [NUMBER, NUMBER])
    with pytest.raises(SettingError, match="hold"):
        sweep(by_hand(), number_pairs(), how="hold")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="h and c"):
        sweep(by_hand(), number_pairs(), state="g")  # type: ignore[arg-type]

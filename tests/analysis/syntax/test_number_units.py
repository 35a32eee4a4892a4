"""Units that keep a subject's number: found where they were planted, needed where verbs are read off them, and said to
be absent where there are none."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.trace import trace_torch
from relmo.analysis.syntax.gate_traces import draw_gates, gate_traces
from relmo.analysis.syntax.number_units import (
    decode,
    number_items,
    number_units,
    output_weights,
    parse_condition,
    split_halves,
)
from relmo.analysis.syntax.pair_scores import plan_pairs, score_pairs
from relmo.errors import CorpusError, SettingError
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.minimal_pairs import ATTRACTORS, PREPOSITIONS, SUBJECTS, VERBS, MinimalPair, noun_pp
from relmo.text.vocabulary import Vocabulary
from support.small_models import bilm, language_model

LONG, SHORT, UNUSED, SIZE = 4, 1, 6, 12
WORDS = [
    "The",
    "the",
    *PREPOSITIONS,
    *(word for table in (SUBJECTS, ATTRACTORS, VERBS) for pair in table.items() for word in pair),
]


def planted(*, keeps: bool = True) -> LanguageModel:
    """An LSTM whose unit LONG takes up the number of the subject and keeps it, as UNUSED does; its unit SHORT takes
    up that of each noun. Verbs are read off LONG (off SHORT, where nothing keeps); the other units are noise."""
    settings = LMSettings(
        model=LanguageModelSettings(hidden=SIZE, embedding=len(WORDS) + 2, forget_bias=0.0),
        text=TextSettings(unit="word"),
    )
    vocabulary = Vocabulary([*Vocabulary.specials, *WORDS])
    torch.manual_seed(0)
    network = make_language_model(settings.model, len(vocabulary))
    i, f, g, o = (slice(SIZE * k, SIZE * k + SIZE) for k in range(4))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.encoder.embedding.weight.copy_(torch.eye(len(vocabulary)))
        ih, _, b_ih, _ = network.encoder.recurrent.cells[0][0].parameters()
        b_ih[i], b_ih[o], b_ih[f] = 8.0, 8.0, -8.0
        ih[g] = torch.randn(SIZE, len(vocabulary))  # noise: what the last word was
        keeping = [LONG, UNUSED] if keeps else []
        for unit in (*keeping, SHORT):
            b_ih[f][unit], b_ih[i][unit] = (8.0, -8.0) if unit != SHORT else (-1.0, -8.0)
            ih[g][unit] = 0.0
        for table in (SUBJECTS, ATTRACTORS):
            for pair in table.items():
                for word, sign in zip(pair, (-1.0, 1.0), strict=True):
                    at = vocabulary.index[word]
                    ih[g, at][SHORT], ih[i, at][SHORT], ih[f, at][SHORT] = 3 * sign, 16.0, -16.0
                    ih[g, at][keeping] = 3 * sign
                    ih[i, at][keeping] = 16.0 if table is SUBJECTS else 0.0
        for pair in VERBS.items():
            for word, sign in zip(pair, (-1.0, 1.0), strict=True):
                network.softmax.weight[vocabulary.index[word], LONG if keeps else SHORT] = 3 * sign
    return LanguageModel(network, vocabulary, settings)


@pytest.fixture(scope="module")
def report():
    return number_units(planted(), noun_pp(per_condition=40), draws=40)


def test_the_planted_unit_is_found_and_needed_and_what_keeps_the_number_unused_is_not(report) -> None:
    long = {each.unit: each for each in report.of("long")}
    assert {Unit("h", 0, LONG), Unit("c", 0, LONG), Unit("h", 0, UNUSED), Unit("c", 0, UNUSED)} == set(long)
    assert all(each.area == [1.0] * 4 and each.plural for each in long.values())
    assert {each.unit.number for each in report.of("long", needed=True)} == {LONG}
    assert long[Unit("h", 0, LONG)].costs == {"nounpp singular plural": 50.0, "nounpp plural singular": 50.0}  # a tie
    assert long[Unit("h", 0, UNUSED)].costs == {"nounpp singular plural": 0.0, "nounpp plural singular": 0.0}
    assert "h0.4" in report.verdict
    assert "needed" in report.verdict


def test_the_short_range_unit_says_the_attractors_number_at_the_end(report) -> None:
    (one,) = [each for each in report.of("short") if each.unit == Unit("h", 0, SHORT)]
    assert one.area == [1.0, 1.0, 1.0, 0.0]
    assert not one.needed
    assert report.words == ["subject", report.words[1], "the", "attractor"]


def test_what_is_learnt_at_the_subject_holds_as_long_as_units_stay_the_same(report) -> None:
    long, short = (report.decoding.generalisation[Unit("h", 0, number)] for number in (LONG, SHORT))
    assert long == pytest.approx(np.ones((4, 4)))
    assert short[0].tolist() == [1, 1, 1, 0]
    assert report.decoding.together[-1, -1] == 1.0


def test_a_network_without_such_a_unit_is_said_to_have_none() -> None:
    found = number_units(planted(keeps=False), noun_pp(per_condition=40), draws=20)
    assert not found.of("long")
    assert {each.unit.number for each in found.of("short")} == {SHORT}
    assert "no unit" in found.verdict
    assert not any(each.needed for each in found.of("none"))


def test_an_untrained_network_has_none_either() -> None:
    model = planted()
    torch.manual_seed(1)
    fresh = LanguageModel(
        make_language_model(model.settings.model, len(model.vocabulary)), model.vocabulary, model.settings
    )
    found = number_units(fresh, noun_pp(per_condition=40), draws=5)
    assert not found.of("long", needed=True)
    assert found.untrained_best is not None
    assert found.untrained_best < 0.9


def test_every_unit_can_be_set_and_then_all_others_are_what_it_is_compared_with() -> None:
    found = number_units(planted(), noun_pp(per_condition=10), states=["c"], every=True, control=False)
    assert len(found.sweep.units) == SIZE
    assert found.untrained_best is None
    assert found.random == 0
    (one,) = found.of("long", needed=True)
    assert one.p["nounpp plural singular"] == 1 / SIZE


def test_a_unit_that_costs_little_is_not_needed_though_it_costs_most(monkeypatch) -> None:
    monkeypatch.setattr("relmo.analysis.syntax.number_units.MIN_COST", 60.0)
    found = number_units(planted(), noun_pp(per_condition=10), draws=10, control=False)
    assert not any(each.needed for each in found.units)
    assert "none" in found.verdict


@pytest.mark.slow
def test_results_are_plain_and_show_themselves(report, tmp_path) -> None:
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["units"][0]["reach"] == "long"
    assert len(plain["generalisation"]["c0.4"]) == 4
    assert "larger for" in report._repr_html_()
    report.plot(tmp_path / "number.svg")
    pairs, units = noun_pp(per_condition=5), [Unit("c", 0, LONG), Unit("h", 0, SHORT)]
    draw_gates([gate_traces(planted(), pairs, unit) for unit in units], tmp_path / "gates.png")
    assert (tmp_path / "number.svg").stat().st_size
    assert (tmp_path / "gates.png").stat().st_size


def test_means_of_gates_come_with_their_95_percent_intervals() -> None:
    found = gate_traces(planted(), noun_pp(per_condition=26), Unit("c", 0, 0))
    name = "nounpp singular plural"
    assert found.errors[name]["c"] == pytest.approx(1.96 * found.deviations[name]["c"] / 5, rel=1e-3)
    assert found.errors[name]["c"].max() > 0


def test_output_weights_are_what_a_unit_adds_to_verbs() -> None:
    model = planted()
    forms = (list(VERBS), list(VERBS.values()))
    assert output_weights(model, Unit("h", 0, LONG), forms) == (-3.0, 3.0, 1.0)
    assert output_weights(model, Unit("h", 0, SHORT), forms) == (0.0, 0.0, 0.5)


@pytest.mark.parametrize("options", [{}, {"softmax_dim": 2}])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_projected_cells_output_weights_are_its_change_of_logits(layer: int, options: dict[str, int]) -> None:
    model = bilm(cell_clip=None, **options)
    forms = (["cat"], ["mat", "sat"])
    weights = output_weights(model, Unit("c", layer, 2), forms)
    softmax = model.network.softmax
    rows = softmax.weight[model.vocabulary.ids(["cat", "mat", "sat"]).tolist()]
    part = rows if softmax.bottleneck is None else rows @ softmax.bottleneck.weight
    from relmo.analysis.syntax.pair_scores import Reader

    own = (part @ Reader(model).stack.layers[layer].projection[:, 2]).tolist()
    assert weights.singular == pytest.approx(own[0], abs=1e-5)
    assert weights.plural == pytest.approx(sum(own[1:]) / 2, abs=1e-5)


def test_a_lower_layer_that_is_not_handed_on_has_no_output_weights() -> None:
    torch.manual_seed(0)
    model = planted()
    settings = replace(model.settings, model=replace(model.settings.model, layers=2))
    deep = LanguageModel(make_language_model(settings.model, len(model.vocabulary)), model.vocabulary, settings)
    forms = (list(VERBS), list(VERBS.values()))
    assert output_weights(deep, Unit("h", 0, 1), forms) is None
    assert output_weights(deep, Unit("h", 1, 1), forms) is not None


def test_a_network_of_torchs_own_is_decoded_by_its_trace() -> None:
    torch.manual_seed(0)
    answer = np.arange(40) % 2 == 1
    inputs = torch.randn(40, 3, 5)
    inputs[:, 0, 0] = torch.as_tensor(np.where(answer, 4.0, -4.0))
    found = decode(trace_torch(nn.GRU(5, 6), inputs), answer, groups=[str(n // 4) for n in range(40)])
    assert found.area.shape == (6, 3)
    assert found.area[:, 0].max() > 0.95
    assert found.together[0, 0] > 0.95
    with pytest.raises(SettingError, match="length"):
        decode(trace_torch(nn.GRU(5, 6), inputs, lengths=[2, *[3] * 39]), answer, groups=["a"] * 40)


def test_areas_are_of_groups_that_the_sign_was_not_learnt_from() -> None:
    """Units that are noise but for a mark of their group tell nothing of other groups."""
    rng = np.random.default_rng(0)
    answer, groups = np.arange(80) % 2 == 1, [f"{n % 2}{(n // 2) % 10}" for n in range(80)]
    marks = {group: rng.normal(size=400) for group in groups}
    inputs = torch.as_tensor(np.stack([marks[group] for group in groups]), dtype=torch.float32)[:, None, :]
    found = decode(trace_torch(nn.RNN(400, 300), inputs), answer, groups=groups)
    assert 0.2 < found.together[0, 0] < 0.8
    half = split_halves(groups, answer)
    assert all(len({int(half[n]) for n in range(80) if groups[n] == group}) == 1 for group in groups)


def test_numbers_are_read_from_the_end_of_a_condition() -> None:
    assert parse_condition("nounpp singular plural") == ("nounpp", (False, True))
    assert parse_condition("adv plural") == ("adv", (True,))
    assert parse_condition("PS") == ("", (True, False))
    assert parse_condition("my_items_sg_pl") == ("my items", (False, True))
    assert parse_condition("2 attractors") == ("2 attractors", ())


def test_pairs_without_an_attractor_are_tested_all() -> None:
    pairs = [
        MinimalPair(
            f"simple {'plural' if many else 'singular'}",
            ["The", noun[many], verb[many]],
            ["The", noun[many], verb[1 - many]],
        )
        for noun in list(SUBJECTS.items())[:8]
        for verb in list(VERBS.items())[:3]
        for many in (0, 1)
    ]
    items = number_items(planted(), pairs)
    assert (items.subject, items.attractor, items.tested.all(), items.words) == (1, None, True, ["subject"])
    assert items.forms[0] == sorted(list(VERBS)[:3])
    found = number_units(planted(), pairs, draws=10)
    assert set(found.units[0].costs) == {"simple singular", "simple plural"}
    assert score_pairs(planted(), plan_pairs(planted(), pairs)).min() > 0


def test_mistakes_are_said() -> None:
    pairs, model = noun_pp(per_condition=4), planted()
    with pytest.raises(CorpusError, match="nounpp"):
        number_items(model, [pair._replace(condition="nounpp") for pair in pairs])
    with pytest.raises(CorpusError, match="adv, nounpp"):
        number_items(model, [*pairs, pairs[0]._replace(condition="adv singular plural")])
    with pytest.raises(CorpusError, match="number"):
        number_items(model, pairs[:4])
    with pytest.raises(SettingError, match="--subject"):
        number_items(model, [*pairs, pairs[0]._replace(condition="nounpp plural plural")])
    with pytest.raises(SettingError, match="characters"):
        number_items(language_model(), pairs)
    with pytest.raises(SettingError, match="--subject"):
        number_items(model, pairs, subject=9)

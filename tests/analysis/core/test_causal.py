"""What breaks without a unit: all units side by side equal to each by itself."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.causal import (
    ALL,
    Ablation,
    Unit,
    ablate_units,
    classify_feature_changes,
    classify_symbols,
    compare_losses,
    compute_hold_values,
    compute_row_losses,
    get_unit_values,
    list_units,
    summarise,
)
from relmo.analysis.core.features import read, tracks
from relmo.analysis.core.trace import trace
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import total_nll
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary

TEXT = "the cat (a cat) sat\non the mat. " * 6


def language_model(cell: str = "lstm", **options: object) -> LanguageModel:
    torch.manual_seed(3)
    settings = LMSettings(model=LanguageModelSettings(cell=cell, hidden=6, embedding=5, **options))  # type: ignore[arg-type]
    vocabulary = Vocabulary([*Vocabulary.specials, *sorted(set(TEXT))])
    network = make_language_model(settings.model, len(vocabulary))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    return LanguageModel(network, vocabulary, settings)


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("lstm", {"layers": 2}),
        ("lstm", {"projection": 4, "tied": True}),
        ("lstm", {"layers": 2, "residual": True, "embedding": 6}),
        ("gru", {"layers": 2}),
        ("elman", {}),
    ],
)
def test_units_changed_side_by_side_cost_what_each_costs_by_itself(cell: str, options: dict[str, object]) -> None:
    options = {**options}
    model = language_model(cell, **{name: value for name, value in options.items() if name != "embedding"})
    units = [Unit("h", 0, 0), Unit("h", 0, 3), Unit("h", len(model.encoder.recurrent.layers) - 1, 2)]
    units += [Unit("c", 0, 1)] if cell == "lstm" else []
    values = np.array([0.0, 0.5, -0.3, 1.2][: len(units)])
    found = compute_row_losses(model, [list(TEXT)], units, values)
    ids = np.array([model.vocabulary.end, *model.encode(TEXT)])
    assert found.shape == (len(units), len(TEXT))
    for unit, value, losses in zip(units, values, found, strict=True):
        with intervene(model, unit.layer, unit.number, "hold", float(value), state=unit.state):  # type: ignore[arg-type]
            assert losses.sum() == pytest.approx(total_nll(model.network, ids, lanes=1, device=model.device), rel=1e-5)
    plain = compute_row_losses(model, [list(TEXT)], [], values[:0])
    assert plain.sum() == pytest.approx(total_nll(model.network, ids, lanes=1, device=model.device), rel=1e-5)


def test_windows_and_batches_of_units_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, units = language_model(layers=2), [Unit("h", 1, n) for n in range(6)]
    whole = compute_row_losses(model, [list(TEXT), list(TEXT[:9])], units, np.zeros(6))
    monkeypatch.setattr("relmo.analysis.core.causal.MAX_ROWS", 4)
    monkeypatch.setattr("relmo.analysis.core.causal.CHUNK", 700)
    shares: list[float] = []
    found = compute_row_losses(model, [list(TEXT), list(TEXT[:9])], units, np.zeros(6), shares.append)
    np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(whole[:, len(TEXT) :], whole[:, :9], rtol=1e-4, atol=1e-5)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0, abs=0.02)


def test_costs_are_bits_by_class_and_ranks_are_among_all_units() -> None:
    base = np.full(40, math.log(2))
    changed = np.stack([base, base.copy(), base.copy()])
    changed[1, :20] += math.log(2)
    changed[2] += 0.25 * math.log(2)
    first = np.arange(40) < 20
    units = [Unit("h", 0, n) for n in range(3)]
    found = summarise("zero", units, {"first": first, "second": ~first, "rare": np.arange(40) < 5}, base, changed)
    assert found.classes == [ALL, "first", "second"]
    assert found.counts == [40, 20, 20]
    np.testing.assert_allclose(found.base, 1.0)
    np.testing.assert_allclose(found.deltas, [[0, 0, 0], [0.5, 1, 0], [0.25, 0.25, 0.25]], atol=1e-12)
    assert [found.rank(unit, "first") for unit in units] == [3, 1, 2]
    assert [found.rank(unit, "second") for unit in units] == [2, 2, 1]
    assert found.delta(units[1]) == pytest.approx(0.5)
    assert found.as_dict()["classes"][1]["median_delta"] == pytest.approx(0.25)


def test_symbols_and_changes_of_features_make_classes() -> None:
    text = 'a1 (b)\n"'
    found = classify_symbols(list(text))
    assert {name: "".join(c for c, on in zip(text, mask, strict=True) if on) for name, mask in found.items()} == {
        "letter": "ab",
        "word": "",
        "digit": "1",
        "space": " ",
        "newline": "\n",
        "opening bracket": "(",
        "closing bracket": ")",
        "quote": '"',
        "other mark": "",
    }
    track = np.array([0, 1, 1, 3, 0.0])
    forward, backward = classify_feature_changes({"x": track}), classify_feature_changes({"x": track}, backwards=True)
    assert forward["x rises"].tolist() == [False, True, False, True, False]
    assert forward["x falls"].tolist() == [False, False, False, False, True]
    assert backward["x rises"].tolist() == [False, False, False, True, False]
    assert backward["x falls"].tolist() == [True, False, True, False, False]


def test_units_are_named_and_their_values_found_in_the_trace() -> None:
    model = language_model(layers=2)
    traced = trace(model, TEXT)
    units = list_units(traced, ["c", "h"])
    assert [str(unit) for unit in units[5:7]] == ["c0.5", "c1.0"]
    assert len(units) == 24
    np.testing.assert_array_equal(get_unit_values(traced, Unit("c", 1, 4)), traced.states["c"][1, :, 4])
    values = traced.states["h"][0, :, 1]
    some = [Unit("h", 0, 1)]
    assert compute_hold_values(traced, some, "zero").tolist() == [0]
    assert compute_hold_values(traced, some, "mean")[0] == pytest.approx(values.mean())
    assert compute_hold_values(traced, some, "hold")[0] == pytest.approx(np.quantile(values, 0.95))
    assert compute_hold_values(traced, some, "hold", [-0.5])[0] == pytest.approx(np.quantile(values, 0.05))
    with pytest.raises(SettingError, match="off"):
        compute_hold_values(traced, some, "off")


@pytest.fixture
def bilm() -> BiLM:
    torch.manual_seed(5)
    settings = BiLMModelSettings(filters=("1x4", "2x4"), char_dim=3, hidden=9, projection=4)
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, *sorted(set(TEXT.split()))])
    network = BiLMNetwork(settings, vocab_size=len(vocabulary))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    return BiLM(network, BiLMSettings(model=settings), vocabulary)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_units_of_a_bidirectional_model_change_the_losses_of_their_direction(bilm: BiLM, direction: str) -> None:
    document = read(bilm, "the cat sat on the mat\n(the mat)\n" * 8)
    track = tracks(document, ["depth"])
    units = [Unit("c", 0, 3, direction), Unit("c", 1, 0, direction)]  # type: ignore[arg-type]
    found = ablate_units(bilm, document, track, units)
    words = slice(None, -1) if direction == "forward" else slice(1, None)
    given = {"state": "c", "direction": direction}

    def mean() -> float:
        log_p = bilm.log_probs(document.texts, direction=direction)  # type: ignore[arg-type]
        return float(-np.concatenate([each[words] for each in log_p]).mean() / math.log(2))

    assert found.base[0] == pytest.approx(mean(), rel=1e-5)
    with intervene(bilm, 0, 3, "zero", **given):  # type: ignore[arg-type]
        assert found.base[0] + found.delta(units[0]) == pytest.approx(mean(), rel=1e-5)
    assert "letter" not in found.classes
    assert "word" in found.classes
    with pytest.raises(SettingError, match="direction"):
        ablate_units(bilm, document, track, [Unit("c", 0, 1), Unit("c", 0, 1, "backward")])


def test_a_network_of_ones_own_is_checked_with_its_own_losses() -> None:
    torch.manual_seed(0)
    rnn, readout = nn.GRU(3, 4), nn.Linear(4, 5)
    x, y = torch.randn(30, 3), torch.randint(0, 5, (30,))

    def losses() -> np.ndarray:
        with torch.no_grad():
            return nn.functional.cross_entropy(readout(rnn(x)[0]), y, reduction="none").double().numpy()

    units = [Unit("h", 0, n) for n in range(4)]
    found = compare_losses(rnn, losses, units, {}, values=np.zeros(4))
    assert isinstance(found, Ablation)
    with intervene(rnn, 0, 2):
        assert found.base[0] + found.delta(units[2]) == pytest.approx(losses().mean() / math.log(2))


def test_values_are_needed_where_units_are_not_set_to_zero() -> None:
    model = language_model()
    with pytest.raises(SettingError, match="values"):
        ablate_units(model, read(model, TEXT), {}, [Unit("h", 0, 0)], how="mean")

"""Fresh networks: drawn as said, turned as said; and what that does to gradients, on a real text too."""

from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from relmo.analysis.memory.gradients import (
    Fresh,
    forget_bias_sweep,
    fresh_flows,
    fresh_model,
    gradient_flow,
    spectral_radius,
    spectral_radius_sweep,
)
from relmo.errors import ModelError, SettingError
from relmo.models.sequence_model import untrained
from relmo.nn.recurrence import Cell
from relmo.text.vocabulary import SPECIALS, Vocabulary
from support.small_models import TEXT, bilm, language_model, ngram_model


def character_vocabulary(text: str) -> Vocabulary:
    return Vocabulary([*SPECIALS, *sorted({*text})])


VOCABULARY = character_vocabulary(TEXT)
ALICE = (resources.files("relmo") / "data" / "alice.txt").read_text(encoding="utf-8")[:20_000]


def cell_of(fresh: Fresh) -> Cell:
    return fresh_model(fresh, VOCABULARY).encoder.recurrent.cells[0][0]


def test_the_forget_bias_is_added_to_the_forget_gate_and_nothing_else() -> None:
    plain, turned = (cell_of(Fresh(hidden=6, forget_bias=bias)) for bias in (0.0, 1.5))
    difference = turned.bias_ih - plain.bias_ih
    assert difference[6:12].tolist() == pytest.approx([1.5] * 6)
    assert difference[:6].tolist() + difference[12:].tolist() == [0.0] * 18
    assert torch.equal(turned.weight_hh, plain.weight_hh)
    assert torch.equal(turned.bias_hh, plain.bias_hh)


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
def test_each_gates_recurrent_weights_are_scaled_to_the_spectral_radius(cell: str) -> None:
    turned = cell_of(Fresh(cell=cell, hidden=6, spectral_radius=1.7))  # type: ignore[arg-type]
    for block in turned.weight_hh.detach().split(6):
        assert spectral_radius(block) == pytest.approx(1.7, rel=1e-5)


def test_torchs_start_is_that_of_torchs_modules() -> None:
    network = fresh_model(Fresh(hidden=64), character_vocabulary(ALICE)).network
    cell = network.encoder.recurrent.cells[0][0]  # type: ignore[union-attr]
    for weight in cell.parameters():  # uniform up to 1 / sqrt(64), the forget gate's bias too
        assert 0.11 < float(weight.detach().abs().max()) <= 0.125
    assert float(network.encoder.embedding.weight.detach().std()) == pytest.approx(1.0, abs=0.05)  # type: ignore[union-attr]
    own = fresh_model(Fresh(hidden=64, start="relmo"), character_vocabulary(ALICE)).network
    assert float(own.encoder.embedding.weight.detach().abs().max()) <= 0.1  # type: ignore[union-attr]
    assert own.encoder.recurrent.cells[0][0].bias_ih[64:128].tolist() == [1.0] * 64  # type: ignore[union-attr]


def test_a_seed_gives_one_network_and_leaves_torchs_random_numbers_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    one, same, other = (cell_of(Fresh(seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.weight_hh, same.weight_hh)
    assert not torch.equal(one.weight_hh, other.weight_hh)


def test_gradients_vanish_less_with_each_forget_bias_and_explode_with_the_spectral_radius() -> None:
    flows = forget_bias_sweep(ALICE, (0, 1, 2, 4), hidden=48, lags=50, positions=16)
    factors = [flow.curve("c").factor or 0.0 for flow in flows]
    assert factors == pytest.approx([0.62, 0.82, 0.94, 0.99], abs=0.05)
    assert [flow.name for flow in flows] == ["lstm, fresh", *(f"lstm, fresh, forget bias +{b}" for b in (1, 2, 4))]
    radii = spectral_radius_sweep(ALICE, (1, 2, 3), hidden=48, lags=50, positions=16)
    growing = [flow.curve("h").factor or 0.0 for flow in radii]
    assert growing[0] < 0.85 < 1.0 < growing[1] < growing[2]
    assert [flow.spectral_radius[0]["h"] for flow in radii] == pytest.approx([1, 2, 3], rel=1e-5)


def test_at_torchs_start_an_lstm_vanishes_about_as_fast_as_a_gru_on_a_real_text(data: Callable[[str], Path]) -> None:
    with data("lm/war-and-peace/input.txt").open(encoding="utf-8") as file:
        text = file.read(60_000)
    cells = [Fresh(cell=cell) for cell in ("elman", "gru", "lstm")]  # type: ignore[arg-type]
    elman, gru, lstm = fresh_flows(text, cells, lags=60, positions=32)
    assert elman.curve("h").factor == pytest.approx(0.46, abs=0.05)
    assert gru.curve("h").factor == pytest.approx(0.61, abs=0.05)
    assert lstm.curve("c").factor == pytest.approx(0.62, abs=0.05)
    assert lstm.curve("c").median[1] > 3 * lstm.curve("h").median[1]  # why c is to be looked at, not h alone


def test_fresh_networks_are_measured_at_the_same_places_as_by_hand() -> None:
    told: list[float] = []
    (flow,) = fresh_flows(TEXT, [Fresh(cell="gru", hidden=5)], lags=6, positions=4, warm_up=2, progress=told.append)
    model = fresh_model(Fresh(cell="gru", hidden=5), VOCABULARY)
    assert flow == gradient_flow(model, TEXT, lags=6, positions=4, warm_up=2, name="gru, fresh")
    assert told == [1.0]


def test_an_untrained_twin_has_the_same_settings_and_other_weights() -> None:
    model, both = language_model("gru"), bilm()
    bare = untrained(model)
    assert bare.settings == model.settings
    assert not torch.equal(bare.encoder.embedding.weight, model.encoder.embedding.weight)
    assert float(bare.encoder.embedding.weight.detach().abs().max()) <= 0.1
    assert untrained(both).vocabulary is both.vocabulary
    np.testing.assert_array_equal(*(untrained(model, 3).network.softmax.weight.detach() for _ in range(2)))
    with pytest.raises(ModelError, match="recurrent"):
        untrained(ngram_model())


def test_what_makes_no_sense_is_said() -> None:
    with pytest.raises(SettingError, match="forget"):
        fresh_model(Fresh(cell="gru", forget_bias=1), VOCABULARY)
    with pytest.raises(SettingError, match="lstm, gru, elman"):
        fresh_model(Fresh(cell="tree"), VOCABULARY)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="spectral"):
        fresh_model(Fresh(spectral_radius=-1), VOCABULARY)

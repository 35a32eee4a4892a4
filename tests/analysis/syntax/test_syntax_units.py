"""The regression of depth on units: equal to its definition, and it finds the unit that counts."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.trace import Trace, trace_torch
from relmo.analysis.syntax.syntax_units import (
    compute_moments,
    depth_regression,
    nested_cross_validation,
    solve_ridge,
    sum_squared_errors,
    syntax_units,
)
from relmo.errors import CorpusError, SettingError
from relmo.text.trees import DepthSentence
from support.small_models import bilm, language_model


def sentences(count: int, seed: int = 0) -> list[DepthSentence]:
    """Words in brackets, up to four deep."""
    generator, found = np.random.default_rng(seed), []
    for _ in range(count):
        words, values, depth = [], [], 0
        for _ in range(int(generator.integers(6, 14))):
            step = int(generator.integers(-1, 2))
            depth = min(max(depth + step, 0), 4)
            words.append({-1: "a", 0: "cat", 1: "the"}[step])
            values.append(depth)
        found.append(DepthSentence(words, values))
    return found


def counting_trace(units: int = 60, unit: int = 7, noise: float = 0.3) -> tuple[Trace, np.ndarray]:
    """Units of noise, of which one goes with the depth, which neither position nor word tells."""
    generator, given = np.random.default_rng(1), sentences(120)
    values = np.concatenate([each.values for each in given]).astype(np.float64)
    states = generator.normal(size=(1, len(values), units)).astype(np.float32)
    states[0, :, unit] = values + noise * generator.normal(size=len(values))
    starts = np.cumsum([0, *(len(each.words) for each in given[:-1])])
    return Trace([w for each in given for w in each.words], {"h": states}, starts, (0,)), values


def test_the_unit_that_counts_is_the_outlier() -> None:
    traced, values = counting_trace()
    found = depth_regression(traced, values)
    assert [each.unit for each in found.units] == [Unit("h", 0, 7)]
    assert found.units[0].z > 5
    assert found.units[0].r == pytest.approx(np.corrcoef(traced.states["h"][0, :, 7], values)[0, 1], abs=1e-4)
    assert found.r2.value > 0.9 > 0.5 > max(each.value for each in found.controls.values())
    assert json.loads(json.dumps(found.as_dict()))["syntax_units"][0]["unit"] == "h0.7"
    assert "h0.7" in found._repr_html_()


def test_where_no_unit_counts_nothing_is_explained_and_none_is_named(tmp_path) -> None:
    traced, values = counting_trace()
    traced.states["h"][0, :, 7] = np.random.default_rng(2).normal(size=len(values))
    found = depth_regression(traced, values)
    assert found.r2.value < found.controls["position and frequency of the word"].value + 0.05
    assert not found.units
    assert "none" in found.table().notes[1]
    found.plot(tmp_path / "weights.png")


def test_weights_are_those_of_ridge_regression_and_errors_its_sums_of_squares() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(50, 4)), generator.normal(size=50)
    seen = compute_moments(x[:20], y[:20]) + compute_moments(x[20:], y[20:])
    (w,) = solve_ridge(seen, (0.3,))
    centred, level = x - x.mean(axis=0), y - y.mean()
    by_hand = np.linalg.solve(centred.T @ centred + 50 * 0.3 * np.eye(4), centred.T @ level)
    assert w[:-1] == pytest.approx(by_hand)
    assert w[-1] == pytest.approx(y.mean() - x.mean(axis=0) @ by_hand)
    asked = generator.normal(size=(9, 4)), generator.normal(size=9)
    assert sum_squared_errors(compute_moments(*asked), w) == pytest.approx(
        np.square(asked[1] - asked[0] @ w[:-1] - w[-1]).sum()
    )


def test_what_is_explained_is_of_sentences_held_out() -> None:
    """As many columns as rows explain everything they were fitted to, and nothing else."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(100, 100)), generator.normal(size=100)
    assert nested_cross_validation(x, y, np.arange(100) % 5, 5, None)[0].value < 0.05


def test_a_model_of_words_is_read_sentence_by_sentence(recwarn) -> None:
    given = sentences(60)
    found = syntax_units(bilm(), given, states=("h", "c"), words=200)
    assert 200 <= found.words < 220
    assert len(found.all_units) == 2 * (4 + 9)
    assert "the same network untrained" in found.controls
    assert all(unit.direction == "forward" for unit in found.all_units)


def test_a_network_of_torchs_own_is_regressed_by_its_trace() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(30, 6, 4)
    values = inputs[..., 0].numpy().reshape(-1)
    found = depth_regression(trace_torch(nn.LSTM(4, 40), inputs, keep=("h",)), values)
    assert found.r2.value > 0.7


def test_mistakes_are_said() -> None:
    traced, values = counting_trace()
    with pytest.raises(SettingError, match="depths"):
        depth_regression(traced, values[:-1])
    with pytest.raises(CorpusError, match="sentences"):
        syntax_units(bilm(), sentences(5))
    with pytest.raises(CorpusError, match="trees"):
        syntax_units(bilm(), [])
    with pytest.raises(SettingError, match="characters"):
        syntax_units(language_model(), sentences(20))

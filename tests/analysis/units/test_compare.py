"""Models beside each other: losses by class, distances to brackets, copies, and when a cell appeared."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.features import read, tracks
from relmo.analysis.core.trace import trace
from relmo.analysis.units import compare
from relmo.analysis.units.compare import (
    Losses,
    compare_losses_of,
    copied,
    emergence,
    samples,
)
from relmo.errors import SettingError
from relmo.settings.lm import TextSettings
from support.small_models import TEXT, language_model, ngram_model


def test_losses_are_those_by_which_perplexity_is_made() -> None:
    for model in (language_model(), ngram_model()):
        ids = [*TEXT, "</s>"]
        assert math.exp(model.symbol_losses([ids]).mean()) == pytest.approx(model.perplexity(TEXT), rel=1e-4)


def test_classes_and_differences_are_means_of_the_symbols_losses() -> None:
    models = {"lstm": language_model(), "3-gram": ngram_model()}
    found = compare_losses_of(models, list(TEXT * 4))
    bits = models["lstm"].symbol_losses([list(TEXT * 4)]) / math.log(2)
    spaces = np.array(list(TEXT * 4)) == " "
    assert found.mean("lstm", "space") == pytest.approx(bits[spaces].mean())
    gap = found.difference("lstm", "3-gram", "space")
    assert gap.value == pytest.approx(found.mean("lstm", "space") - found.mean("3-gram", "space"))
    assert gap.low < gap.value < gap.high
    closes = [name for name in found.classes if name.startswith("bracket closes")]
    assert closes == ["bracket closes after 5 to 9"]
    assert json.loads(json.dumps(found.as_dict()))["models"] == ["lstm", "3-gram"]
    assert "bits saved by" in found.coloured("lstm", "3-gram").html()


def test_distances_are_to_the_bracket_that_is_closed() -> None:
    symbols = list("(a[b]c)d)[(]")
    found = compare_losses_of({"lstm": language_model()}, symbols * 20).classes
    for name, positions in (("1 to 4", {4, 11}), ("5 to 9", {6})):
        assert found[f"bracket closes after {name}"].tolist() == [i % 12 in positions for i in range(240)]
    assert sum(name.startswith("bracket closes") for name in found) == 2


def test_an_interval_holds_the_mean_of_its_kind_about_as_often_as_it_says() -> None:
    generator, held = np.random.default_rng(0), 0
    for _ in range(200):
        walk = np.repeat(generator.normal(size=60), 100)  # neighbours alike: a naive interval would be far too short
        everywhere = {"all": np.ones(len(walk), dtype=bool)}
        losses = Losses(["a", "b"], ["x"] * len(walk), np.stack([walk, np.zeros(len(walk))]), everywhere)
        found = losses.difference("a", "b", "all")
        held += found.low < 0 < found.high
    assert 180 <= held <= 199


def test_words_are_put_by_their_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "RANKS", (5, 8))
    model = language_model()
    model.settings = replace(model.settings, text=TextSettings(unit="word"))
    symbols = [*(model.vocabulary.symbols[i] for i in (4, 5, 7, 8)), "unheard"]
    found = compare_losses_of({"lstm": model}, symbols * 20).classes
    ranks = ["word of rank 1 to 5", "word of rank 6 to 8", "word of rank 9 or more"]
    assert [found[name][:5].tolist() for name in ["unknown word", *ranks]] == [
        [False, False, False, False, True],
        [True, False, False, False, False],
        [False, True, True, False, False],
        [False, False, False, True, False],
    ]


def test_samples_are_each_models_own_in_an_order_of_the_seed() -> None:
    models = {"lstm": language_model(), "3-gram": ngram_model()}
    orders = set()
    for seed in range(8):
        made = samples(models, prompt="the", limit=20, seed=seed)
        orders.add(made[0].model)
        for each in made:
            assert each.text == models[each.model].generate("the", limit=20, seed=seed)
    assert orders == {"lstm", "3-gram"}


def test_copied_stretches_are_counted_as_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    training, sample = generator.integers(0, 3, 500), generator.integers(0, 3, 80)
    sample[10:40] = training[200:230]
    expected = {}
    for length in (3, 6, 12):
        there = {tuple(training[i : i + length]) for i in range(len(training) - length + 1)}
        mine = [tuple(sample[i : i + length]) for i in range(len(sample) - length + 1)]
        expected[length] = sum(stretch in there for stretch in mine) / len(mine)
    assert copied(sample, training, (3, 6, 12)) == pytest.approx(expected)
    monkeypatch.setattr("relmo.analysis.units.compare.CHUNK", 17)
    assert copied(sample, training, (3, 6, 12)) == pytest.approx(expected)
    assert math.isnan(copied(sample, training, (100,))[100])
    assert copied(sample, training[:2], (3,)) == {3: 0.0}


def test_a_cells_past_is_its_correlation_in_every_checkpoint() -> None:
    models = {"before": language_model(scale=1.0), "after": language_model(scale=3.0)}
    document = read(models["before"], TEXT)
    track = tracks(document, ["depth"])["depth"]
    found = emergence(models, document, track)
    assert found.r.shape == (2, 14)
    values = trace(models["after"], TEXT).unit(found.unit.state, 0, found.unit.number)
    assert found.r[1, found.units.index(found.unit)] == pytest.approx(np.corrcoef(values, track)[0, 1], abs=1e-5)
    assert np.abs(found.r[1]).max() == pytest.approx(abs(found.r[1, found.units.index(found.unit)]))
    assert emergence(models, document, track, unit=Unit("h", 0, 2)).unit == Unit("h", 0, 2)
    assert json.loads(json.dumps(found.as_dict()))["models"][0]["model"] == "before"


def test_models_that_do_not_fit_together_are_refused() -> None:
    other = language_model()
    other.settings = type(other.settings)(model=other.settings.model, text=TextSettings(lowercase=True))
    with pytest.raises(SettingError, match="unit"):
        compare_losses_of({"a": language_model(), "b": other}, list(TEXT))
    document = read(other, TEXT)
    with pytest.raises(SettingError, match="units"):
        emergence({"a": language_model(), "b": language_model(hidden=9)}, document, np.ones(len(document)))

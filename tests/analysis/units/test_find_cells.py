"""Cells: found where they are, told apart from controls, and denied where there are none."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.features import document_of, read, tracks
from relmo.analysis.core.trace import Trace, trace_torch
from relmo.analysis.units.cells import find_cells, score_cells
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary

SYMBOLS = "()abc \n"
HIDDEN = 8


def brackets(count: int = 3000, seed: int = 0) -> str:
    """Letters, with brackets that open and close, in lines."""
    generator = np.random.default_rng(seed)
    text, depth = "", 0
    for draw in generator.random(count):
        if draw < 0.12 and depth < 4:
            text, depth = text + "(", depth + 1
        elif draw < 0.3 and depth:
            text, depth = text + ")", depth - 1
        else:
            text += generator.choice(list("abc ") if draw < 0.95 else ["a\n"])  # no line is blank
    return text


def counter() -> LanguageModel:
    """A network, otherwise random, whose unit 2 of c counts brackets, by which it predicts one that closes."""
    torch.manual_seed(0)
    settings = LMSettings(model=LanguageModelSettings(cell="lstm", hidden=HIDDEN, embedding=len(SYMBOLS) + 2))
    vocabulary = Vocabulary([*Vocabulary.specials, *SYMBOLS])
    network = make_language_model(settings.model, len(vocabulary))
    cell = network.encoder.recurrent.cells[0][0]  # type: ignore[union-attr]
    with torch.no_grad():
        network.encoder.embedding.weight.copy_(torch.eye(len(vocabulary)))  # type: ignore[union-attr]
        for gate, bias in enumerate((20.0, 20.0, 0.0, 20.0)):  # i, f, g, o
            row = gate * HIDDEN + 2
            cell.weight_hh[row], cell.weight_ih[row], cell.bias_hh[row] = 0, 0, 0
            cell.bias_ih[row] = bias
        row = 2 * HIDDEN + 2
        cell.weight_ih[row, vocabulary.index["("]] = np.arctanh(0.25)
        cell.weight_ih[row, vocabulary.index[")"]] = -np.arctanh(0.25)
        output = network.softmax  # type: ignore[union-attr]
        output.weight[:, 2] = 0
        output.weight[vocabulary.index[")"], 2] = 4.0
        output.bias[vocabulary.index[")"]] -= 2.0
    return LanguageModel(network, vocabulary, settings)


def test_a_cell_that_counts_brackets_is_found_selective_and_causal() -> None:
    model = counter()
    document = read(model, brackets())
    seen: list[float] = []
    report = find_cells(model, document, tracks(document, ["depth", "column"]), ablate="zero", progress=seen.append)
    found = report.best("depth")
    assert found.unit == Unit("c", 0, 2)
    assert found.r == pytest.approx(1.0, abs=1e-4)
    assert found.rho == pytest.approx(1.0, abs=1e-4)
    assert found.partial == pytest.approx(1.0, abs=1e-3)
    assert found.by_state["h"][0] == Unit("h", 0, 2)
    assert abs(found.r) > abs(found.second[1]) if found.second else False
    assert found.controls.untrained is not None
    assert max(found.controls.untrained.r, found.controls.ngram.r, found.controls.shift) < 0.8
    assert found.controls.probe.r == pytest.approx(1.0, abs=1e-3)
    assert found.exists
    assert found.verdict == "strong; selective"
    (ablation,) = report.ablations
    assert len(ablation.units) == HIDDEN
    assert ablation.rank(Unit("h", 0, 2), "depth falls") == 1
    assert ablation.delta(Unit("h", 0, 2), "closing bracket") > 0.3
    assert report.causal(found)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0, abs=0.02)


def test_a_feature_that_no_unit_has_is_denied() -> None:
    model = counter()
    document = read(model, brackets())
    coin = np.random.default_rng(5).integers(0, 2, size=len(document) // 50 + 1).repeat(50)[: len(document)]
    found = find_cells(model, document, {"coin": coin.astype(np.float32), **tracks(document, ["column"])})
    assert not found.best("coin").exists
    assert found.best("coin").verdict.startswith("no such cell: not clearly above")
    assert found.ablations == []


def synthetic(units: dict[str, np.ndarray]) -> Trace:
    rows = np.stack(list(units.values())).astype(np.float32)
    return Trace(list("ab" * (rows.shape[1] // 2)), {"h": rows.T[None]}, np.array([0]), (0,))


def runs(length: int, seed: int) -> np.ndarray:
    """On and off in runs of some length."""
    generator = np.random.default_rng(seed)
    return np.concatenate([np.full(generator.integers(3, 12), state % 2) for state in range(length)])[:length].astype(
        float
    )


def test_scores_of_a_yes_or_no_feature_are_its_own() -> None:
    on, other, noise = runs(2000, 0), runs(2000, 1), np.random.default_rng(2).normal(size=(3, 2000))
    late = np.concatenate([[0, 0], on[:-2]])
    units = {"clean": -3 * on + 0.3 * noise[0], "late": late + 0.01 * noise[1], "noise": noise[2]}
    report = score_cells(synthetic(units), {"on": on, "other": other})
    found = report.best("on")
    assert found.unit == Unit("h", 0, 0)
    assert found.r < -0.95
    assert found.auc == pytest.approx(0.0, abs=1e-3)
    assert found.f1 > 0.99
    assert found.separation == pytest.approx(found.r / np.sqrt(on.mean() * (1 - on.mean())), rel=1e-3)
    assert (found.delay.on, found.delay.off, found.delay.missed) == (0.0, 0.0, 0.0)
    assert found.mean == pytest.approx(on.mean())
    assert found.controls.untrained is None
    assert found.controls.ngram.r < 0.2
    assert found.controls.probe.auc > 0.99
    assert [str(unit) for unit, _ in report.top("on", 2)] == ["h0.0", "h0.1"]
    alone = score_cells(synthetic({"late": units["late"]}), {"on": on}).best("on")
    assert (alone.delay.on, alone.delay.off) == (2.0, 2.0)


def test_a_unit_of_another_feature_is_told_by_what_is_left_when_that_is_held_constant() -> None:
    first, noise = runs(4000, 0), np.random.default_rng(2).normal(size=(3, 4000))
    second = np.where(np.random.default_rng(3).random(4000) < 0.9, first, 1 - first)  # goes with the first
    units = {"first": first + 0.2 * noise[0], "a little of the second": 0.5 * (second - first) + 0.5 * noise[1]}
    report = score_cells(synthetic(units), {"first": first, "second": second})
    found = report.best("second")
    assert found.unit == Unit("h", 0, 0)
    assert abs(found.partial) < 0.05
    assert found.partial_unit is not None
    assert found.partial_unit[0] == Unit("h", 0, 1)
    assert "rather a unit for first" in found.verdict
    assert "h0.1 has a larger partial r" in found.verdict
    assert report.best("first").similar == {"second": pytest.approx(found.r)}
    assert "not selective: second" in report.best("first").verdict


def test_a_unit_is_no_better_than_its_untrained_self_or_the_last_symbols() -> None:
    on, noise = runs(2000, 0), np.random.default_rng(2).normal(size=(2, 2000))
    own, fresh = synthetic({"u": on + noise[0]}), synthetic({"u": on + 0.9 * noise[1]})
    assert score_cells(own, {"on": on}).best("on").exists
    found = score_cells(own, {"on": on}, fresh=fresh).best("on")
    assert "the same network untrained" in found.verdict
    assert found.controls.untrained is not None
    assert found.controls.untrained.auc > 0.7
    letter = (np.arange(2000) % 2).astype(float)
    told = score_cells(synthetic({"u": letter + noise[0]}), {"letter": letter}).best("letter")
    assert "the last symbols (1.00)" in told.verdict
    assert np.isnan(told.partial), "the symbol determines it"


def test_a_report_is_plain_numbers_a_table_a_page_and_a_picture(tmp_path: Path) -> None:
    on, depth = runs(600, 0), runs(600, 1) + runs(600, 2)
    units = {"a": on + 0.1 * runs(600, 3), "b": depth, "c": runs(600, 5)}
    report = score_cells(synthetic(units), {"<on>": on, "depth": depth})
    values = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert values["found"][0]["unit"] == "h0.0"
    assert values["found"][1]["auc"] is None
    assert values["scores"]["r"][1][1] == pytest.approx(1.0, abs=1e-5)
    assert values["found"][0]["controls"]["shift"] > 0
    main, matrix = report.tables()
    assert [row[0] for row in main.rows] == ["<on>", "depth"]
    assert matrix.columns == ["unit", "<on>", "depth"]
    page = report._repr_html_()
    assert "&lt;on&gt;" in page
    assert "<on>" not in page
    assert "<script" not in page
    report.plot(tmp_path / "cells.svg")
    assert (tmp_path / "cells.svg").read_text().lstrip().startswith("<?xml")


def test_torchs_lstm_is_scored_on_inputs_of_ones_own() -> None:
    torch.manual_seed(0)
    text = brackets(800)
    document = document_of(list(text))
    x = torch.eye(len(SYMBOLS))[[SYMBOLS.index(c) for c in text]]
    report = score_cells(trace_torch(nn.LSTM(len(SYMBOLS), 5), x, symbols=list(text)), tracks(document, ["depth"]))
    assert len(report.units) == 10
    assert report.best("depth").unit.state in ("c", "h")
    only = score_cells(trace_torch(nn.GRU(len(SYMBOLS), 5), x), tracks(document, ["depth"]))
    assert {unit.state for unit in only.units} == {"h"}


def test_both_directions_of_a_bidirectional_model_are_scored_and_ablated() -> None:
    torch.manual_seed(5)
    settings = BiLMModelSettings(filters=("1x4", "2x4"), char_dim=3, hidden=6, projection=4)
    words = ["a", "b", "(", ")"]
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, *words])
    model = BiLM(BiLMNetwork(settings, vocab_size=len(vocabulary)), BiLMSettings(model=settings), vocabulary)
    text = "a ( b b ) a\nb a b ( a ( b ) )\n" * 12
    document = read(model, text)
    report = find_cells(model, document, tracks(document, ["depth", "sentence_position"]), ablate="mean", among=3)
    assert len(report.units) == 2 * 2 * (6 + 4)
    assert {unit.direction for unit in report.units} == {"forward", "backward"}
    for found in report.best_units:
        done = report.ablated(found.unit)
        assert done is not None
        assert len(done[0].units) == 3
        assert done[1] == found.unit
    assert len(report.tables()) == 3


def test_mistakes_are_told() -> None:
    traced = synthetic({"a": runs(100, 0)})
    with pytest.raises(SettingError, match="feature"):
        score_cells(traced, {})
    with pytest.raises(SettingError, match=r"'x'.*\(3,\)"):
        score_cells(traced, {"x": np.zeros(3)})
    with pytest.raises(SettingError, match="'x' is"):
        score_cells(traced, {"x": np.ones(100)})
    with pytest.raises(SettingError, match="finite"):
        score_cells(traced, {"x": np.array([np.nan, *range(99)])})

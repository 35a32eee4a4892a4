"""Truncated contexts: the losses of a network that reads so much and no more, symbol by symbol; and what a model with a
known memory must show."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from relmo.analysis.memory.truncation import draw_truncation, truncation, truncation_table
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models import sequence_model
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from support.small_models import SENTENCES, TEXT, bilm, language_model, ngram_model


def stream(model: LanguageModel) -> np.ndarray:
    return np.concatenate([[model.vocabulary.end], model.encode(TEXT), [model.vocabulary.end]])


def stepped(model: LanguageModel, ids: np.ndarray, target: int) -> float:
    """-log p of the target after these ids, one step after the other."""
    state = None
    for number in ids.tolist():
        log_p, state = model.step(torch.tensor([number]), state)
    return -float(log_p[0, target])


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm", "feedforward", "ngram"])
def test_only_the_last_symbols_are_read_and_from_no_state(cell: str) -> None:
    model = ngram_model() if cell == "ngram" else language_model(cell, **({"order": 3} if cell[0] == "f" else {}))
    view = model.make_reading(TEXT)
    ids, ends = stream(model), view.sample_ends(3, 5, 0)
    found = truncation(model, TEXT, lengths=(1, 2, 6), positions=3)
    for length, nats in zip(found.lengths, found.nats, strict=True):
        expected = [stepped(model, ids[end + 1 - length : end + 1], ids[end + 1]) for end in ends.tolist()]
        np.testing.assert_allclose(nats, np.mean(expected), rtol=1e-4)
    whole = [stepped(model, ids[: end + 1], ids[end + 1]) for end in ends.tolist()]
    np.testing.assert_allclose(view.full_context_nll(ends), whole, rtol=1e-4)


def test_the_whole_past_is_carried_over_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, text in ((language_model("lstm"), TEXT), (bilm(), SENTENCES)):
        view = model.make_reading(text)
        ends = np.array([3, 29, 30, 31, 60, 88])
        whole = view.full_context_nll(ends)
        with monkeypatch.context() as patch:
            patch.setattr(sequence_model, "BATCH_SYMBOLS", 10)
            np.testing.assert_allclose(view.full_context_nll(ends), whole, rtol=1e-4)


@pytest.mark.parametrize("direction", [0, 1])
def test_of_a_bidirectional_model_one_direction_is_read_from_its_window(direction: int) -> None:
    model = bilm()
    view = model.make_reading(SENTENCES, model.directions[direction])
    ends = view.sample_ends(3, 3, 0)
    found = truncation(model, SENTENCES, lengths=(1, 4), positions=3, direction="backward" if direction else "forward")
    for length, nats in zip(found.lengths, found.nats, strict=True):
        places = ends[:, None] + np.arange(1 - length, 2)
        with torch.no_grad():
            nll, _ = model.network.nll(view.text.window(places), None)  # type: ignore[attr-defined]
        np.testing.assert_allclose(nats, nll[direction, -1].mean(), rtol=1e-4)
    assert view.get_symbols(np.arange(8)) == (
        ["<S>", "the", "cat", "sat", "<S>", "the", "mat", ","]
        if direction == 0
        else ["</S>", "sat", "cat", "the", "</S>", "mat", "large", "the"]
    )


def test_an_n_gram_model_needs_as_many_symbols_as_its_order_says_and_no_more() -> None:
    found = truncation(ngram_model(order=4), TEXT, lengths=(1, 2, 3, 4, 8), positions=100)
    assert found.nats[0] > found.whole + 0.01
    assert found.more[2:] == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
    assert found.context in (2, 3)
    assert found.nats == pytest.approx([found.whole + more for more in found.more])
    assert found.low[0] <= found.more[0] <= found.high[0]


def test_the_context_is_the_smallest_from_which_on_all_are_near_and_none_where_none_is() -> None:
    found = truncation(ngram_model(order=8), TEXT, lengths=(1, 2), positions=60)
    assert min(found.more) > 0.01 * found.whole
    assert found.context is None
    assert "no tested context" in truncation_table([found]).notes[1]


def test_places_are_the_same_for_all_lengths_drawn_by_the_seed_and_told_of() -> None:
    model, told = language_model(), []
    one = truncation(model, TEXT, lengths=(4, 1, 4), positions=20, progress=told.append)
    assert one == truncation(model, TEXT, lengths=(1, 4), positions=20)
    assert one != truncation(model, TEXT, lengths=(1, 4), positions=20, seed=1)
    assert told == [0.2, 1.0]
    assert one.positions == 20
    assert truncation(model, TEXT, lengths=(1, 4), positions=10**6).positions == len(TEXT) + 1 - 3


def test_results_are_plain_numbers_a_table_and_a_picture(tmp_path: Path) -> None:
    curves = [truncation(model, TEXT, lengths=(1, 4), positions=10) for model in (language_model(), ngram_model())]
    assert json.loads(json.dumps(curves[0].as_dict()))["lengths"] == [1, 4]
    table = truncation_table(curves)
    assert table.columns == ["symbols", "lstm", "more", "95%", "ngram", "more", "95%"]
    assert [row[0] for row in table.rows] == ["1", "4", "full context"]
    assert "<table" in curves[0]._repr_html_()
    draw_truncation(curves, tmp_path / "past.png")
    assert (tmp_path / "past.png").stat().st_size > 1000


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(SettingError, match="lengths"):
        truncation(language_model(), TEXT, lengths=(0, 4))
    with pytest.raises(SettingError, match="lengths"):
        truncation(language_model(), TEXT, lengths=())
    with pytest.raises(CorpusError, match="symbols"):
        truncation(language_model(), "the cat")
    model = bilm()
    with pytest.raises(ModelError, match="output"):
        truncation(BiLM(model.network, model.settings, None), SENTENCES)

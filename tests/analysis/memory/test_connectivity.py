"""Connectivity: the gradient that the network's own fast path gives, of the symbol and the place asked for."""

import json

import numpy as np
import pytest
import torch

from relmo.analysis.memory import connectivity as module
from relmo.analysis.memory.connectivity import connectivity
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.lm import LanguageModel
from support.small_models import SENTENCES, TEXT, bilm, language_model


def by_fast_path(model: LanguageModel, text: str, symbol: str) -> tuple[np.ndarray, float]:
    """Through the stack as it is used, of the logit after the last symbol; without the end that stands before."""
    network = model.network
    ids = torch.tensor([[model.vocabulary.end, *model.encode(text)]])
    x = model.encoder.embedding(ids).detach().requires_grad_()
    y = model.encoder.recurrent(x).output[:, -1]
    y = y if network.bottleneck is None else network.bottleneck(y)  # type: ignore[union-attr]
    logits = network.softmax.logits(y)[0]  # type: ignore[union-attr]
    number = model.vocabulary.index[symbol]
    (gradient,) = torch.autograd.grad(logits[number], x)
    return gradient[0, 1:].norm(dim=1).numpy(), float(torch.log_softmax(logits, 0)[number].detach())


@pytest.mark.parametrize(
    ("cell", "options"),
    [("elman", {}), ("gru", {"layers": 2}), ("lstm", {"tied": True, "layers": 2}), ("lstm", {"projection": 4})],
)
def test_values_are_the_gradients_of_the_networks_own_fast_path(cell: str, options: dict[str, int]) -> None:
    model = language_model(cell, **options)
    found = connectivity(model, "the cat (a", symbol=")")
    values, log_p = by_fast_path(model, "the cat (a", ")")
    np.testing.assert_allclose(found.values, values, rtol=2e-4)
    assert found.log_p == pytest.approx(log_p, abs=1e-4)
    assert found.symbols == list("the cat (a")
    assert found.symbol == ")"


def test_without_a_symbol_it_is_the_one_that_follows_and_at_the_end_the_end() -> None:
    model = language_model()
    found = connectivity(model, "the cat (a cat)", position=3)
    assert (found.symbols, found.symbol, found.position) == (list("the "), "c", 3)
    np.testing.assert_allclose(found.values, by_fast_path(model, "the ", "c")[0], rtol=2e-4)
    assert connectivity(model, "the cat").symbol == "</s>"
    assert connectivity(model, "the cat", position=-3).symbols == list("the c")


def test_what_lies_further_back_than_can_be_held_is_read_but_not_differentiated_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = connectivity(language_model(), TEXT, position=80)
    monkeypatch.setattr(module, "MAX_STEPS", 20)
    part = connectivity(language_model(), TEXT, position=80)
    assert part.symbols == whole.symbols[-20:]
    np.testing.assert_allclose(part.values, whole.values[-20:], rtol=1e-9)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_bidirectional_model_reads_a_sentence_either_way(direction: str) -> None:
    model = bilm(cell_clip=0.0, projection_clip=0.0)
    found = connectivity(model, "the large cat sat", position=2, direction=direction)  # type: ignore[arg-type]
    forward = direction == "forward"
    assert found.symbols == (["the", "large", "cat"] if forward else ["sat", "cat", "large"])
    assert found.symbol == ("sat" if forward else "the")
    log_p = model.log_probs(["the large cat sat"], direction=direction)[0]  # type: ignore[arg-type]
    assert found.log_p == pytest.approx(float(log_p[3 if forward else 1]), abs=1e-4)
    assert len(found.values) == 3
    assert min(found.values) > 0


def test_half_of_the_sum_comes_from_so_many_of_the_last_symbols() -> None:
    found = connectivity(language_model(scale=2.0), TEXT[:40])
    total = sum(found.values)
    assert sum(found.values[-found.half :]) >= total / 2 > sum(found.values[len(found.values) - found.half + 1 :])


def test_it_shows_itself_as_coloured_text_without_letting_any_markup_through() -> None:
    found = connectivity(language_model(), "(a cat)", symbol="(")
    assert json.loads(json.dumps(found.as_dict()))["symbols"] == list("(a cat)")
    html = found._repr_html_()
    assert "<script" not in html
    assert html.count("background:") >= 7
    assert found.table(3).rows[0][2] == f"{max(found.values):.4g}"
    assert len(found.table(3).rows) == 3


def test_what_is_not_there_is_said() -> None:
    model = language_model()
    with pytest.raises(SettingError, match="0 to 6"):
        connectivity(model, "the cat", position=7)
    with pytest.raises(CorpusError, match="vocabulary"):
        connectivity(model, "the cat", symbol="Ω")
    with pytest.raises(CorpusError, match="empty"):
        connectivity(model, "")
    with pytest.raises(ModelError, match="direction"):
        connectivity(model, SENTENCES, direction="backward")

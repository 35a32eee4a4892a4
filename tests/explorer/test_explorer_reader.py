"""Pages of a text are the trace of the whole text, cut; what is expected there is what the model says."""

import numpy as np
import pytest
import torch

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.features import read
from relmo.analysis.core.trace import trace
from relmo.errors import SettingError
from relmo.explorer import reader as module
from relmo.explorer.reader import PagedReader, most_probable
from support.small_models import SENTENCES, TEXT, bilm, language_model


@pytest.mark.parametrize("cell", ["lstm", "gru", "elman"])
def test_pages_asked_for_in_any_order_are_the_trace_of_the_whole_text(
    cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_CHARACTERS", 50)
    model = language_model(cell, layers=2)
    whole, reader = trace(model, TEXT), PagedReader(model, read(model, TEXT))
    assert len(reader) == -(-len(TEXT) // 50)
    for number in (3, 0, 5, 4, 1, 0):
        part = whole[50 * number : 50 * number + 50]
        assert reader.symbols(number) == part.symbols
        for name, array in part.states.items():
            np.testing.assert_allclose(reader.page(number).states[name], array, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(reader.text_values(Unit("h", 1, 2)), whole.unit("h", 1, 2), rtol=1e-3, atol=2e-3)


def test_what_is_expected_is_what_the_model_says_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_CHARACTERS", 40)
    model = language_model("lstm", layers=2)
    reader = PagedReader(model, read(model, TEXT))
    log_p, state = model.step(torch.tensor([model.vocabulary.end]))
    bits, likely = [], []
    for symbol in TEXT[:120]:
        number = int(model.vocabulary.ids([symbol])[0])
        bits.append(-float(log_p[0, number]) / np.log(2))
        log_p, state = model.step(torch.tensor([number]), state)
        best = log_p[0].exp().topk(5)
        likely.append([model.vocabulary.symbols[i] for i in best.indices.tolist()])
    for page in (2, 0, 1):
        found = reader.predictions(page)
        assert found is not None
        np.testing.assert_allclose(found.bits, bits[40 * page : 40 * page + 40], atol=1e-4)
        assert [[symbol for symbol, _ in each] for each in found.likely] == likely[40 * page : 40 * page + 40]


def test_sentences_of_a_bidirectional_model_are_not_cut_and_both_directions_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAGE_WORDS", 12)
    model = bilm()
    reader, whole = PagedReader(model, read(model, SENTENCES)), trace(model, SENTENCES)
    assert len(reader) > 3
    assert {*reader.bounds[:-1]} <= {*reader.document.starts.tolist()}
    begin, end = reader.bounds[2:4]
    backward = Unit("c", 1, 3, "backward")
    np.testing.assert_allclose(reader.values(2, backward), whole.backward.unit("c", 1, 3)[begin:end], atol=1e-5)
    np.testing.assert_allclose(reader.text_values(backward), whole.backward.unit("c", 1, 3), atol=2e-3)
    expected = reader.predictions(2)
    assert expected is not None
    one = model.log_probs([reader.sentences(2)[0]], direction="forward")[0][:-1]
    np.testing.assert_allclose(expected.bits[: len(one)], -one / np.log(2), atol=1e-4)


def test_units_and_pages_that_are_not_there_are_named() -> None:
    model = language_model("gru")
    reader = PagedReader(model, read(model, TEXT))
    for unit, said in ((Unit("c", 0, 0), "'c'"), (Unit("h", 1, 0), "layer 1"), (Unit("h", 0, 7), "0 to 6")):
        with pytest.raises(SettingError, match=said):
            reader.values(0, unit)
    with pytest.raises(SettingError, match="page 9"):
        reader.page(9)
    with pytest.raises(SettingError, match="page by page"):
        reader.text_values(Unit("z", 0, 0))


def test_a_text_too_long_for_the_memory_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VALUES", 14 * 100)
    model = language_model("lstm")
    reader = PagedReader(model, read(model, TEXT))
    assert (len(reader.document), reader.num_omitted) == (100, len(TEXT) - 100)


def test_the_likeliest_are_the_first_of_all_in_order_also_where_there_are_few() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(9), size=20)
    names = [str(i) for i in range(9)]
    for row, found in zip(p, most_probable(np.log(p), names), strict=True):
        assert [int(name) for name, _ in found] == np.argsort(-row)[:5].tolist()
    assert [name for name, _ in most_probable(np.log(p[:, :3]), names)[0]] == [str(i) for i in np.argsort(-p[0, :3])]

"""What the explorer answers is what the library computes, as plain JSON; mistakes come in one line."""

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relmo.analysis.core.ablate import ACTIVE_EDITS, intervene
from relmo.analysis.core.trace import trace
from relmo.analysis.units.compare import ngram_like
from relmo.errors import ModelError, RelmoError, SettingError
from relmo.explorer.examples import find_example, installed_examples
from relmo.explorer.matching import find_matches
from relmo.explorer.page import make_bundle
from relmo.explorer.params import parse_unit
from relmo.explorer.session import Session, load_passages
from relmo.explorer.work import Worker, subject_verb_pairs
from relmo.text.trees import ConlluWord
from support.small_models import SENTENCES, TEXT, bilm, language_model


@pytest.fixture
def session() -> Session:
    made = Session(language_model("lstm"), "mine")
    made.set_text("a text", TEXT)
    return made


def test_values_units_and_strips_are_those_of_the_trace(session: Session) -> None:
    traced = trace(session.model, TEXT)
    values = session.answer("values", {"text": "given", "page": "0", "unit": "c0.3"})
    np.testing.assert_allclose(values["values"], traced.unit("c", 0, 3), atol=1e-4)
    assert values["scale"] == pytest.approx(np.quantile(np.abs(traced.unit("c", 0, 3)), 0.99), abs=1e-3)
    units = session.answer("units", {"text": "given", "page": "0", "state": "f", "layer": "0"})
    steps = np.frombuffer(base64.b64decode(units["data"]), dtype=np.int8).reshape(7, len(TEXT))
    found = steps / 127 * np.array(units["largest"])[:, None]
    np.testing.assert_allclose(found.T, traced.states["f"][0], atol=0.005)
    strip = session.answer("strip", {"text": "given", "page": "0", "unit": "h0.3"})["states"]
    assert list(strip) == ["h", "c", "i", "f", "o", "g"]
    np.testing.assert_allclose(strip["o"], traced.unit("o", 0, 3), atol=1e-3)


def test_units_that_are_named_come_together_and_what_is_shown_first_comes_with_the_model(session: Session) -> None:
    found = session.answer("some", {"text": "given", "page": "0", "units": "c0.3,f0.1"})
    all_units = session.answer("units", {"text": "given", "page": "0", "state": "f", "layer": "0"})
    rows = {
        name: np.frombuffer(base64.b64decode(each["data"]), np.int8)
        for name, each in (("some", found), ("all", all_units))
    }
    assert found["units"] == ["c0.3", "f0.1"]
    np.testing.assert_array_equal(rows["some"].reshape(2, -1)[1], rows["all"].reshape(7, -1)[1])
    opening = session.answer("about", {"opening": "1"})
    assert opening["answers"]["page?model=mine&page=0&text=given"] == session.answer("page", {"text": "given"})
    values = opening["answers"][f"values?model=mine&page=0&text=given&unit={opening['opened']}"]
    assert values == session.answer("values", {"text": "given", "unit": opening["opened"]})
    assert session.answer("about", {})["answers"] == {}


def test_the_story_has_the_quotation_marks_of_a_printed_book() -> None:
    story = next(each.text for each in load_passages() if each.name == "story")
    assert story.startswith("CHAPTER I\n")
    assert "“without pictures or conversation?”" in story
    assert "I’ve" in story
    assert "‘poison’" in story
    assert not {*story} & {*"`'\"#"}
    assert story.count("“") - story.count("”") == 1  # the second verse of a poem begins with one too


def test_the_overview_has_the_highest_and_lowest_places_and_a_map_of_means(session: Session) -> None:
    values = trace(session.model, TEXT).unit("c", 0, 2)
    found = session.answer("overview", {"text": "given", "unit": "c0.2"})
    assert found["high"][0]["at"] in np.flatnonzero(values >= values.max() - 0.01)
    assert -found["low"][0]["value"] == pytest.approx(values.min(), abs=0.01)
    place = found["high"][0]
    assert (place["before"] + place["symbol"] + place["after"]) in TEXT
    assert sum(found["histogram"]["counts"]) == len(TEXT) == found["total"]
    assert np.mean(found["map"]) == pytest.approx(values.mean(), abs=0.01)


def test_the_course_around_an_event_is_the_mean_over_its_places(session: Session) -> None:
    values = trace(session.model, TEXT).unit("h", 0, 1)
    places = [i for i, symbol in enumerate(TEXT) if symbol == "(" and i >= 20 and i + 40 < len(TEXT)]
    found = session.answer("cell", {"text": "given", "unit": "h0.1", "event": "("})["around"]
    assert found["count"] == len(places)
    assert found["mean"][20 + 7] == pytest.approx(np.mean([values[i + 7] for i in places]), abs=2e-3)
    assert session.answer("cell", {"text": "given", "unit": "h0.1", "event": "Q"})["around"] == {"count": 0}


def test_weights_are_those_by_which_the_unit_changes_scores(session: Session) -> None:
    found = session.answer("cell", {"text": "given", "unit": "h0.4", "event": "("})["weights"]
    network: Any = session.model.network
    column = network.softmax.weight[:, 4].detach().numpy()
    names = session.model.vocabulary.symbols  # type: ignore[union-attr]
    assert found["more"][0] == [names[int(column.argmax())], pytest.approx(float(column.max()), abs=1e-3)]
    assert found["less"][0] == [names[int(column.argmin())], pytest.approx(float(column.min()), abs=1e-3)]
    cell = network.encoder.recurrent.cells[0][0]
    forget = cell.weight_hh[7 + 4].detach().abs().numpy()
    assert found["from"]["f"][0][0] == int(forget.argmax())


def test_a_gradient_is_shown_for_the_symbols_before_a_prediction(session: Session) -> None:
    found = session.answer("gradient", {"text": "given", "at": "30"})
    assert (found["first"], len(found["values"]), found["symbol"]) == (0, 31, TEXT[31])
    assert all(value >= 0 for value in found["values"])


def test_every_answer_is_json_of_finite_numbers_of_both_kinds_of_model(session: Session) -> None:
    two = Session(bilm(), "both")
    two.set_text("sentences", SENTENCES)
    for each, unit in ((session, "c0.1"), (two, "c1.2b")):
        asked = {"text": "given", "page": "0", "unit": unit, "at": "4", "state": "h", "layer": "0"}
        for what in ("about", "page", "expected", "values", "units", "strip", "overview", "cell", "gradient"):
            json.dumps(each.answer(what, asked), allow_nan=False)
    page = two.answer("page", {"text": "given", "page": "0"})
    assert "".join(gap + word for gap, word in zip(page["gaps"], page["symbols"], strict=True)) == SENTENCES.rstrip(
        "\n"
    )


@pytest.mark.parametrize(
    "asked",
    [
        {"text": "none", "page": "0", "unit": "c0.1"},
        {"text": "given", "page": "-1", "unit": "c0.1"},
        {"text": "given", "page": "0", "unit": "c0.99"},
        {"text": "given", "page": "0", "unit": "../etc"},
        {"text": "given", "page": "1e9", "unit": "c0.1"},
        {"page": "0", "unit": "c0.1"},
        {"text": "given", "page": "0", "unit": "c0.1b"},
    ],
)
def test_nonsense_is_answered_in_one_line(session: Session, asked: dict[str, str]) -> None:
    with pytest.raises(RelmoError) as found:
        session.answer("values", asked)
    assert "\n" not in str(found.value)


def test_own_texts_are_kept_by_their_content_and_the_oldest_are_let_go(session: Session) -> None:
    first = session.add("the cat")["text"]
    assert session.add("the cat")["text"] == first != session.add("the mat")["text"]
    for number in range(40):
        session.add("cat " * (number + 1))
    with pytest.raises(SettingError, match="expired"):
        session.answer("page", {"text": first})
    for text, said in ((" \n", "empty"), ("a" * 400_001, "400,000")):
        with pytest.raises(SettingError, match=said):
            session.add(text)


def test_a_model_without_recurrent_layers_is_opened_to_write_and_has_no_page_to_keep(tmp_path: Any) -> None:
    from support.small_models import ngram_model

    ngram_model().save_pretrained(tmp_path / "counts")
    session = Session.open(str(tmp_path / "counts"), device="cpu")
    assert session.answer("about", {})["kind"] == "window"
    with pytest.raises(SettingError, match="--export"):
        make_bundle(session)
    with pytest.raises(ModelError, match="not a language model"):
        Session.open("words")


def test_texts_are_split_into_words_as_asked(tmp_path: Path) -> None:
    bilm().save_pretrained(tmp_path / "bilm")

    def symbols(**options: Any) -> list[str]:
        opened = Session.open(str(tmp_path / "bilm"), device="cpu", **options)
        opened.set_text("mine", "the cat (sat)")
        return opened.reader("given").document.symbols

    assert symbols() == symbols(tokenizer="words") == ["the", "cat", "(", "sat", ")"]
    assert symbols(tokenizer="whitespace") == ["the", "cat", "(sat)"]
    with pytest.raises(SettingError, match="words"):
        Session.open("prose", device="cpu", tokenizer="words")


def test_the_examples_that_ship_open_with_their_text_and_unit_and_are_small() -> None:
    from relmo.explorer.examples import DATA

    def size(folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    assert size(DATA / "examples") < 12 << 20
    assert size(DATA / "examples" / "english-french") + size(DATA / "examples" / "addition") < 4 << 20
    names = [each.name for each in installed_examples() if each.text]
    assert names[:5] == ["prose", "code", "prose-elman", "prose-gru", "prose-lstm"]
    assert {each.text for each in installed_examples() if each.text} <= {each.name for each in load_passages()}
    for name in names[:7]:
        assert find_example(name) is not None
        opened = Session.open(name, device="cpu")
        about = opened.answer("about", {})
        asked = {"text": about["first"], "page": "0", "unit": about["opened"]}
        assert len(opened.answer("values", asked)["values"]) > 100


@pytest.mark.slow
def test_the_units_that_examples_open_with_stand_for_what_is_said() -> None:
    from relmo.analysis.core.features import read, tracks

    for name, feature, least in (("prose", "quotes", 0.7), ("prose", "column", 0.7), ("code", "comment", 0.7)):
        opened = Session.open(name, device="cpu")
        unit = parse_unit(next(cell.unit for cell in opened.named if cell.feature == feature))
        passage = opened.texts.get_passage(opened.texts.initial)
        document = read(opened.model, passage.text, language=passage.language)
        track = tracks(document, [feature])[feature]
        values = opened.reader(opened.texts.initial).text_values(unit)
        assert abs(np.corrcoef(track[: len(values)], values)[0, 1]) > least, name


def test_finding_gives_cards_previews_and_a_matrix(session: Session) -> None:
    told: list[float] = []
    given = {
        "text": "given",
        "features": ["parentheses", "column", "indentation"],
        "patterns": [{"name": "cat", "pattern": r"\bcat\b"}],
        "marks": [[0, 3, "mine"], [36, 39, "mine"]],
        "symbols": 300,
        "ablate": "zero",
    }
    found = Worker(session).run("find", given, told.append)
    assert found["features"] == ["parentheses", "column", "cat", "mine"]
    assert found["skipped"] == ["indentation"]
    assert told == sorted(told)
    assert told[-1] > 0.99
    card = found["found"][0]
    values = trace(session.model, TEXT).unit(card["unit"][0], 0, int(card["unit"][3:]))
    first = card["preview"]["first"]
    np.testing.assert_allclose(card["preview"]["values"], values[first : first + 200], atol=3e-3)
    assert "".join(card["preview"]["symbols"]) == TEXT[first : first + 200]
    assert card["broken"][0]["of"] == 7
    assert len(found["rows"]) == len(found["scores"]["r"]) == 14
    best = max(abs(row[0]) for row in found["scores"]["r"])
    assert abs(card["r"]) == pytest.approx(best, abs=1e-3)
    json.dumps(found, allow_nan=False)


def test_columns_of_an_annotated_text_are_features() -> None:
    rest = ("_", "_", "_")
    sentence = [
        ConlluWord("the", "the", "DET", "_", "_", 2, *rest),
        ConlluWord("cat", "cat", "NOUN", "_", "_", 0, *rest),
    ]
    made = Session(language_model("gru"), "mine")
    made.texts.set_annotated("two", [sentence] * 20)
    found = Worker(made).run("find", {"text": "given", "columns": ["upos=NOUN"], "symbols": 1000}, lambda share: None)
    assert found["features"] == ["upos=NOUN"]


def test_a_change_costs_what_intervening_costs_and_the_one_who_reads_sees_nothing_of_it(session: Session) -> None:
    worker = Worker(session)
    given = {"text": "given", "unit": "h0.2", "how": "zero", "symbols": 200, "length": 20, "prompt": "the", "seed": 3}
    before = session.answer("values", {"text": "given", "page": "0", "unit": "h0.2"})["values"]
    seen: list[bool] = []

    def look(share: float) -> None:
        seen.append(bool(ACTIVE_EDITS))
        session.reader.cache_clear()
        assert session.answer("values", {"text": "given", "page": "0", "unit": "h0.2"})["values"] == before

    found = worker.run("change", given, look)
    assert any(seen)  # it was looked at while the unit was changed
    assert not ACTIVE_EDITS
    reading = session.model.make_reading(worker.document("given", 200).texts)
    base = reading.full_context_nll(np.arange(200)).mean() / math.log(2)
    with intervene(session.model, 0, 2):
        more = reading.full_context_nll(np.arange(200)).mean() / math.log(2) - base
        sample = session.model.generate("the", limit=20, seed=3, temperature=0.7)  # type: ignore[union-attr]
    every = found["classes"][0]
    assert (every["name"], every["count"]) == ("all", 200)
    assert every["bits"] == pytest.approx(base, abs=1e-3)
    assert every["delta"] == pytest.approx(more, abs=1e-3)
    assert found["samples"][1] == sample
    assert found["samples"][0].startswith("the")
    held = worker.run("change", given | {"how": "hold", "value": 0.5}, lambda share: None)
    assert held["value"] == 0.5
    ranked = worker.run("rank", given, lambda share: None)
    assert (ranked["of"], ranked["classes"][0]["count"]) == (7, 200)
    assert ranked["classes"][0]["delta"] == pytest.approx(more, abs=1e-3)


def test_memory_and_the_past_are_the_librarys(session: Session) -> None:
    from relmo.analysis.memory.gradients import gradient_flow

    worker = Worker(session)
    found = worker.run("memory", {"text": "given", "lags": 10, "positions": 8}, lambda share: None)["networks"][0]
    flow = gradient_flow(session.model, TEXT, lags=10, positions=8, warm_up=len(TEXT) // 4)
    assert found["curves"][0]["median"] == pytest.approx(flow.curves[0].median)
    networks = [{"cell": "lstm", "forget_bias": 3, "hidden": 6}, {"cell": "elman", "spectral_radius": 0.5, "hidden": 6}]
    options = {"text": "given", "lags": 10, "positions": 4, "networks": networks}
    fresh = worker.run("memory", options, lambda share: None)["networks"]
    assert [each["name"] for each in fresh] == ["lstm, fresh, forget bias +3", "elman, fresh, spectral radius 0.5"]
    past = worker.run("past", {"text": "given", "longest": 8, "positions": 20}, lambda share: None)
    assert past["lengths"] == [1, 2, 3, 4, 6, 8]
    json.dumps([found, fresh, past], allow_nan=False)


def test_counting_trains_the_cells_that_are_asked_for(session: Session) -> None:
    given = {"language": "anbn", "cells": ["gru"], "limit": 5, "steps": 60}
    found = Worker(session).run("count", given, lambda share: None)
    assert [each["cell"] for each in found["networks"]] == ["gru"]
    assert (found["limit"], found["tested"]) == (5, 20)


def test_agreement_is_the_librarys_of_own_pairs_and_of_subjects_and_verbs() -> None:
    from relmo.analysis.syntax.agreement import agreement
    from relmo.text.minimal_pairs import MinimalPair

    made = Session(bilm(), "both")
    pairs = [["one", "the cat", "the mat"], ["one", "a cat", "a the"], ["two", "the large", "the zzz"]]
    found = Worker(made).run("agree", {"pairs": pairs, "sweep": True}, lambda share: None)
    expected = agreement(made.model, [MinimalPair(*pair) for pair in pairs]).as_dict()["conditions"]
    assert [each["condition"] for each in found["conditions"]] == ["all", "one", "two"]
    assert [each["accuracy"] for each in found["conditions"]] == [each["accuracy"] for each in expected]
    assert found["sweep"]["of"] == 8  # h of both layers, forwards
    json.dumps(found, allow_nan=False)  # no word of the third pair is known: that share is no number
    shipped = list(subject_verb_pairs())
    assert len(shipped) == 208
    assert MinimalPair("nounpp PS", "The keys to the cabinet are", "The keys to the cabinet is") in shipped
    assert {pair.condition for pair in shipped} == {
        "simple S",
        "simple P",
        *(f"nounpp {a}{b}" for a in "SP" for b in "SP"),
    }
    assert MinimalPair("nounpp SP", "The boy near the cars knows", "The boy near the cars know") in shipped


def test_a_word_in_context_has_the_nearest_occurrences_of_the_text_in_every_layer() -> None:
    made = Session(bilm(), "both")
    made.set_text("sentences", SENTENCES)
    given = {"text": "given", "sentence": "a large mat", "position": 2, "k": 4}
    found = Worker(made).run("mean", given, lambda share: None)
    assert found["words"][found["position"]] == "mat"
    assert len(found["layers"]) == 3
    model: Any = made.model
    own = model.embed([["a", "large", "mat"]])[0][:, 2]  # (layers, D)
    lines = [line.split() for line in SENTENCES.strip().split("\n")]
    every = np.concatenate(model.embed(lines), axis=1)  # (layers, T, D)
    for vector, rows, listed in zip(own, every, found["layers"], strict=True):
        cosines = rows @ vector / np.linalg.norm(rows, axis=1) / np.linalg.norm(vector)
        assert listed[0]["cosine"] == pytest.approx(cosines.max(), abs=0.02)  # stored in eight bits
    with pytest.raises(SettingError, match="bidirectional"):
        Worker(Session(language_model("lstm"), "mine")).run("mean", given, lambda share: None)


def test_models_are_compared_symbol_by_symbol_and_the_n_gram_has_not_seen_what_it_is_asked(session: Session) -> None:
    session.set_text("a text", TEXT)
    other = language_model("gru")
    worker = Worker(session, lambda name: Session(other, name))
    found = worker.run("compare", {"text": "given", "other": "second"}, lambda share: None)
    assert found["models"] == ["mine", "second"]
    bits = np.array(session.answer("expected", {"text": "given", "page": "0"})["bits"])
    np.testing.assert_allclose(found["bits"][0], bits, atol=0.02)
    assert found["classes"][0]["bits"][0] == pytest.approx(bits.mean(), abs=0.01)
    assert {sample["model"] for sample in found["samples"]} == {"mine", "second"}
    half = worker.run("compare", {"text": "given", "other": "n-gram", "order": 3}, lambda share: None)
    assert "".join(half["symbols"]) == TEXT[len(TEXT) // 2 :]
    assert isinstance(session.model, type(other))
    seen = ngram_like(session.model, session.model.vocabulary.ids(TEXT[: len(TEXT) // 2]), order=3)
    expected = seen.symbol_losses([list(TEXT[len(TEXT) // 2 :])]) / math.log(2)
    np.testing.assert_allclose(half["bits"][1], expected, atol=0.01)
    with pytest.raises(SettingError, match="bidirectional"):
        Worker(Session(bilm(), "both")).run("compare", {"text": "sentences", "other": "untrained"}, lambda share: None)


@pytest.mark.parametrize(
    ("what", "given"),
    [
        ("find", {"text": "given", "features": ["nothing"]}),
        ("find", {"text": "given", "features": "column"}),
        ("find", {"text": "given", "patterns": [{"pattern": "("}]}),
        ("find", {"text": "given", "patterns": ["("]}),
        ("find", {"text": "given", "marks": [[1]]}),
        ("find", {"text": 3}),
        ("change", {"text": "given", "unit": "h0.1", "how": "explode"}),
        ("change", {"text": "given", "unit": "h0.1", "how": "hold", "value": "nan"}),
        ("change", {"text": "given", "unit": "h0.1", "length": 1e9}),
        ("memory", {"text": "given", "networks": [{"cell": "transformer"}]}),
        ("memory", {"text": "given", "networks": [7]}),
        ("count", {"language": "english"}),
        ("agree", {"pairs": [["one", "the cat"]]}),
        ("agree", {"pairs": [["one", "the cat", " "]]}),
        ("compare", {"text": "given", "other": "nobody"}),
        ("compare", {"text": "given", "other": "n-gram", "order": 99}),
    ],
)
def test_work_that_makes_no_sense_is_refused_in_one_line(session: Session, what: str, given: dict[str, Any]) -> None:
    with pytest.raises(RelmoError):
        Worker(session).run(what, given, lambda share: None)


def test_a_pattern_that_never_ends_is_given_up() -> None:
    assert find_matches(r"(c)at|mat", "the cat, the mat") == [(4, 5)]
    assert find_matches(r"mat", "the cat, the mat") == [(13, 16)]
    with pytest.raises(SettingError, match="simpler"):
        find_matches(r"(a+)+$", "a" * 100 + "b", timeout=1.0)  # 2**100 steps
    with pytest.raises(SettingError, match="Invalid"):
        find_matches("(", "text")


def test_torch_is_as_it_was(session: Session) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    Worker(session).run(
        "memory", {"text": "given", "lags": 5, "positions": 2, "networks": [{"hidden": 4}]}, lambda s: None
    )
    assert torch.equal(before, torch.get_rng_state())

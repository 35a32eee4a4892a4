"""Answers for Equations, Write, Trace and Layers."""

from pathlib import Path

import pytest

from relmo.errors import SettingError
from relmo.explorer.examples import get_agreement
from relmo.explorer.extras import Extras
from relmo.explorer.page import make_bundle
from relmo.explorer.params import Answer
from relmo.explorer.session import Session
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def hello() -> Session:
    return Session.open("hello", device="cpu")


def window_model(folder: Path) -> Path:
    """A feed-forward model of words."""
    settings = LMSettings(text=TextSettings(unit="word"), model=LanguageModelSettings(cell="feedforward", hidden=4))
    vocabulary = Vocabulary(["<unk>", "</s>", "the", "cat", "sat"])
    network = make_language_model(settings.model, len(vocabulary))
    LanguageModel(network, vocabulary, settings).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["hello", "hello-gru", "hello-lstm"])
def test_the_models_to_compute_by_hand_write_hello_with_weights_of_one_decimal(name: str) -> None:
    model = Session.open(name, device="cpu").model
    assert isinstance(model, LanguageModel)
    assert model.generate(temperature=0.0) == "hello"
    assert len(model.vocabulary) == 2 + 4
    assert model.network.encoder.recurrent.output_size == 3  # type: ignore[union-attr]
    for tensor in model.tensors().values():
        assert ((tensor * 10).round() / 10 - tensor).abs().max() < 1e-6


STEPS = [("hello-lstm", "hello", "c0.1"), ("small", "sentences", "c1.5b"), ("small", "sentences", "c0.5")]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "text", "unit"), STEPS)
def test_a_step_goes_from_what_was_held_after_the_symbol_before(model: str, text: str, unit: str) -> None:
    session = Session.open(model, device="cpu")
    here, there = (session.answer("step", {"text": text, "at": at, "unit": unit}) for at in ("2", "3"))
    first, second = (there, here) if unit.endswith("b") else (here, there)
    after = {each["name"]: each["values"] for each in first["quantities"]}
    for name, values in second["before"].items():
        assert values == pytest.approx(after[name], abs=2e-3)
    values = session.answer("values", {"text": text, "page": "0", "unit": unit})["values"]
    now = next(each for each in here["quantities"] if each["name"] == "c")["values"]
    assert now[int(unit.strip("b").split(".")[1])] == pytest.approx(values[2], abs=2e-3)
    assert all(each["equation"] for each in here["quantities"])


def test_what_comes_next_is_drawn_as_the_sampling_says(hello: Session) -> None:
    found = hello.answer("next", {"prompt": "he", "taken": "4"})
    assert found["pieces"] == ["l"]
    assert found["bars"][0][1] == "l"
    assert sum(p for _, _, p, _ in found["bars"]) == pytest.approx(1, abs=1e-3)
    only = hello.answer("next", {"prompt": "he", "taken": "4", "top_k": "1", "temperature": "2"})
    assert [q for *_, q in only["bars"]] == [1.0] + [0.0] * 5
    assert only["drawn"] == only["bars"][0][0]
    assert hello.answer("next", {"prompt": "hello", "taken": "1"})["ended"] is True


@pytest.mark.parametrize("asked", [{"taken": "99"}, {"taken": "x"}, {"prompt": "h" * 2001}, {"temperature": "-1"}])
def test_what_cannot_be_written_is_one_clear_line(hello: Session, asked: dict[str, str]) -> None:
    with pytest.raises(SettingError):
        hello.answer("next", asked)


def test_the_tree_of_a_search_holds_the_texts_that_it_finds() -> None:
    session = Session.open("prose", device="cpu")
    found = session.answer("beam", {"prompt": "“I ", "beams": "4", "deep": "9"})
    assert [each["log_prob"] for each in found["texts"]] == sorted(
        (e["log_prob"] for e in found["texts"]), reverse=True
    )
    for text in found["texts"]:
        symbols = [found["nodes"][node]["symbol"] for node in text["path"]]
        assert "".join(symbol or "" for symbol in symbols) == text["text"][len(found["prompt"]) :]
        assert found["nodes"][text["path"][-1]]["log_prob"] == pytest.approx(text["log_prob"], abs=1e-3)
    by_depth = _by_depth(found)
    assert max(by_depth.values()) <= 4


def _by_depth(found: Answer) -> dict[int, int]:
    """How many open texts each step has."""
    depths: list[int] = []
    for node in found["nodes"]:
        depths.append(1 + (depths[node["parent"]] if node["parent"] >= 0 else 0))
    open_ = [d for d, node in zip(depths, found["nodes"], strict=True) if node["symbol"] is not None]
    return {depth: open_.count(depth) for depth in open_}


def test_a_model_of_a_fixed_window_is_opened_to_write(tmp_path: Path) -> None:
    session = Session.open(str(window_model(tmp_path / "window")), device="cpu")
    about = session.answer("about", {"opening": "1"})
    assert (about["kind"], about["window"]) == ("window", 4)
    found = session.answer("next", {"prompt": "the cat", "taken": "4"})
    assert found["pieces"] == [" sat"]
    assert len(found["bars"]) == 5


def test_samples_of_n_grams_stand_beside_the_models_own(hello: Session) -> None:
    found = hello.answer("ngrams", {"text": "hello", "prompt": "h"})
    assert [each["name"] for each in found["samples"]] == ["hello", "1-gram", "2-gram", "3-gram", "5-gram"]
    assert all(each["text"].startswith("h") for each in found["samples"])


def test_models_named_beside_answer_about_the_same_text(hello: Session) -> None:
    session = Session.open("hello", device="cpu")
    session.extras = Extras(["hello-lstm"], device="cpu")
    assert {"of": "hello-lstm", "name": "hello-lstm"} in session.answer("about", {})["alike"]
    assert session.answer("about", {"of": "hello-lstm"})["cell"] == "lstm"
    assert session.answer("step", {"of": "hello-lstm", "text": "hello", "at": "1", "unit": "c0.0"})["cell"] == "lstm"
    with pytest.raises(SettingError):
        session.answer("step", {"of": "nobody", "text": "hello", "at": "1", "unit": "c0.0"})


def test_a_number_unit_parts_sentences_by_their_subject() -> None:
    session = Session.open("small", device="cpu")
    found = session.answer("conditions", {"unit": next(iter(get_agreement("small")))})
    last = {each["condition"]: each["means"]["c"][-1] for each in found["conditions"]}
    plural = [value for name, value in last.items() if name.startswith("nounpp plural")]
    singular = [value for name, value in last.items() if name.startswith("nounpp singular")]
    assert min(plural) > max(singular)
    assert found["right"]["without"]["nounpp singular plural"] < found["right"]["all"]["nounpp singular plural"]
    with pytest.raises(SettingError):
        Session.open("prose", device="cpu").answer("conditions", {"unit": "c0.0"})


def test_shares_of_layers_ship_and_add_up() -> None:
    found = Session.open("small", device="cpu").answer("layers", {})
    assert len(found["shipped"]) > 10
    for task in found["shipped"]:
        for mix in task["mixes"]:
            assert sum(mix["shares"]) == pytest.approx(1, abs=0.015)


def test_an_exported_page_has_the_steps_of_models_side_by_side(hello: Session) -> None:
    answers = make_bundle(hello)["answers"]
    for model in ("hello", "hello-gru", "hello-lstm"):
        steps = [key for key in answers if key.startswith("step?") and f"model={model}&" in key]
        assert len(steps) == 5 * 3, model

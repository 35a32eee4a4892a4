"""Titles and sentences of cards, and the data that titles are computed from, agree with the picture."""

import numpy as np
import pytest

from experiments.recipes.explorer_answers import write_sample
from experiments.recipes.explorer_cards import Card, make_cards
from relmo.explorer.examples import (
    ANSWERS_FILE,
    COUNTING,
    EXAMPLES_DIR,
    find_example,
    installed_examples,
    load_cards,
    read_answers,
)
from relmo.explorer.page import make_bundle
from relmo.explorer.session import Session
from relmo.explorer.work import Worker


@pytest.fixture(scope="module")
def start_cards() -> dict[str, Card]:
    return {card["kind"]: card for card in load_cards()}


@pytest.fixture(scope="module")
def prose() -> Session:
    return Session.open("prose", device="cpu")


def test_cards_are_those_of_the_answers() -> None:
    assert load_cards() == make_cards()


def test_addition_card_counts_the_digits_that_its_map_shows(start_cards: dict[str, Card]) -> None:
    card = start_cards["adding"]
    picture = card["picture"]
    columns = np.array(picture["weights"]).argmax(axis=1)
    count = sum(picture["columns"][column].isdigit() for column in columns)
    assert f"{count} attend" in card["sentence"]
    assert "digits that they add" not in card["sentence"]


def test_number_card_claims_neither_number(start_cards: dict[str, Card]) -> None:
    assert "number" in start_cards["number"]["title"]
    assert "plural" not in start_cards["number"]["title"]


def test_agreement_cards_say_how_many_sentences_each_is_measured_on(start_cards: dict[str, Card]) -> None:
    assert "168" in start_cards["agreement"]["sentence"]
    assert "100" in start_cards["number"]["sentence"]


def test_sense_card_does_not_claim_equal_meaning(start_cards: dict[str, Card]) -> None:
    assert "mean the same" not in start_cards["play"]["sentence"]


@pytest.mark.slow
def test_writing_card_shows_prose_that_the_model_writes(start_cards: dict[str, Card], prose: Session) -> None:
    shown = start_cards["writing"]["picture"]["text"]
    assert "\n\n" not in shown
    assert "CHAPTER" not in shown
    assert write_sample(prose)["text"] == shown


def test_writing_card_leads_to_its_text(start_cards: dict[str, Card], prose: Session) -> None:
    card = start_cards["writing"]
    params = {name: str(value) for name, value in card["link"].items()}
    answer = prose.answer("next", params)
    assert answer["prompt"] + "".join(answer["pieces"]) == card["picture"]["text"]


def test_card_of_three_networks_shows_the_ranking_that_it_leads_to(start_cards: dict[str, Card]) -> None:
    card = start_cards["three"]
    compared = read_answers(EXAMPLES_DIR / card["link"]["model"] / ANSWERS_FILE)["compare"]["ranking"]
    assert [value for _, value in card["picture"]["rows"]] == pytest.approx(
        [100 * 2 ** -row["bits"] for row in compared]
    )
    assert compared[0]["model"] == card["link"]["model"]
    assert ("predicts best" in card["sentence"]) == all(row["difference"][1] > 0 for row in compared[1:])


def test_of_the_counting_networks_the_lstm_alone_is_exact_beyond_its_training() -> None:
    counting = read_answers(COUNTING)["count"]
    exact = [row["cell"] for row in counting["networks"] if row["first_failure"] is row["first_wrong"] is None]
    assert exact == ["lstm"]
    assert counting["tested"] > counting["limit"]


def test_the_counting_card_leads_to_a_unit_that_counts_to_a_thousand(start_cards: dict[str, Card]) -> None:
    link = start_cards["counting"]["link"]
    session = Session.open(link["model"], device="cpu")
    values = session.answer("values", {"text": link["text"], "page": "0", "unit": link["unit"]})["values"]
    count = np.cumsum([1 if symbol == "a" else -1 for symbol in session.texts.get_passage(link["text"]).text])
    assert len(values) == 2000
    assert abs(np.corrcoef(values, count)[0, 1]) > 0.9999


def test_networks_trained_on_one_text_are_ranked_by_paired_differences() -> None:
    session = Session.open("prose-elman", device="cpu")
    worker = Worker(session, lambda name: Session.open(name, device="cpu"))
    request = {"model": session.name, "text": "story", "other": "prose-gru", "symbols": 2000}
    answer = worker.run("compare", request, lambda share: None)
    worker.close()
    assert {row["model"] for row in answer["ranking"]} == {"prose-elman", "prose-gru", "prose-lstm"}
    assert [row["bits"] for row in answer["ranking"]] == sorted(row["bits"] for row in answer["ranking"])
    for row in answer["ranking"][1:]:
        value, low, high = row["difference"]
        assert low < value < high
    assert len(answer["bits"]) == 2
    assert answer["counted_on"] == ""


@pytest.mark.slow
def test_an_n_gram_says_what_it_was_counted_on(prose: Session) -> None:
    worker = Worker(prose)
    request = {"model": "prose", "text": "story", "other": "n-gram", "symbols": 1000}
    assert "half" in worker.run("compare", request, lambda share: None)["counted_on"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [model.name for model in installed_examples() if model.text and find_example(model.name)]
)
def test_a_named_cell_opens_on_what_it_is_about(name: str) -> None:
    session = Session.open(name, device="cpu")
    for cell in session.answer("about", {})["named"]:
        assert session.answer("truth", {"text": session.texts.initial, "page": "0", "feature": cell["feature"]})[
            "changes"
        ]
        answer = session.answer("cell", {"text": session.texts.initial, "unit": cell["unit"], "event": cell["event"]})
        assert answer["around"]["count"] > 0
        if cell["feature"] == "quotes":
            assert cell["event"] == "“"
            assert "“" in cell["prompt"]


@pytest.mark.slow
def test_an_exported_page_has_the_event_that_its_cell_opens_with(prose: Session) -> None:
    answers = make_bundle(prose, find=False)["answers"]
    assert any(key.startswith("cell?") and "%E2%80%9C" in key for key in answers)

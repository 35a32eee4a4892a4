"""Titles in a real browser say what their picture shows, or less."""

from collections.abc import Iterator
from typing import Any

import pytest
from test_explorer_browser import NAMED, NUMBER, Watched, browser, pytestmark  # noqa: F401
from test_explorer_steps_browser import opened, title, watched  # noqa: F401

from relmo.explorer.session import Session
from support.served import served


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from relmo.explorer.server import Models

    names = ["prose", "prose-elman", "prose-gru", "prose-lstm", "code", "anbn-lstm", "small"]
    with served(Models(names, lambda name: Session.open(name, device="cpu"))) as server:
        yield f"http://127.0.0.1:{server.address[1]}/"


def claim(page: Any) -> str:
    return page.inner_text("h2.claim")


def test_a_gradient_that_grows_is_said_to_explode(watched: Watched) -> None:  # noqa: F811
    page = opened(watched, "screen=memory&model=prose&radius=3")
    title(page, "explodes in the Elman network")
    assert "vanishes in the LSTM" in claim(page)
    assert "remembers" not in claim(page)
    opened(watched, "screen=memory&model=prose-gru")
    title(page, "vanishes last")
    assert "explodes" not in claim(page)


def test_better_needs_an_interval_without_zero(watched: Watched) -> None:  # noqa: F811
    page = opened(watched, "screen=compare&model=code")
    title(page, "No clear difference")
    assert "first half" in claim(page)
    opened(watched, "screen=compare&model=prose")
    title(page, "prose predicts better than a 6-gram")


def test_compare_shows_the_three_networks_of_its_card(watched: Watched) -> None:  # noqa: F811
    page = opened(watched, "screen=compare&model=prose-gru")
    title(page, "prose-gru predicts best of 3")
    rows = page.locator("table.barchart tbody tr th").all_inner_texts()
    assert rows[:3] == ["prose-gru", "prose-lstm", "prose-elman"]


def test_find_claims_little_on_few_symbols(watched: Watched) -> None:  # noqa: F811
    page = opened(watched, "screen=find&model=anbn-lstm")
    title(page, "uncertain")
    assert "strong" not in claim(page)
    assert "clear" not in page.locator(".badge").all_inner_texts()
    opened(watched, "screen=find&model=prose")
    title(page, "strong")


def test_a_number_cell_carries_both_numbers_and_each_account_names_its_sentences(watched: Watched) -> None:  # noqa: F811
    page = opened(watched, "screen=trace&model=small")
    title(page, "carries the subject's number")
    assert "Experiments" in page.inner_text(".rightforms caption")
    opened(watched, "screen=experiments&model=small")
    title(page, "prefers the correct verb")
    lead = page.inner_text(".lead")
    assert "208 pairs" in lead
    assert "tied" in lead
    assert "Trace" in lead


def test_units_and_layers_are_numbered_from_one_beside_their_address(watched: Watched) -> None:  # noqa: F811
    page = opened(watched, "screen=read&model=prose&unit=c1.0&pins=c1.0")
    page.wait_for_selector("aside h3:has-text('Cell 1 of')")
    assert "layer 2" in page.inner_text("aside h3 >> nth=0")
    assert "c1.0" in page.inner_text("aside h3 >> nth=0")
    assert page.inner_text(".pins button").startswith("cell 1 of layer 2")
    page.click("text=State, gate, layer")
    number = page.get_by_label("Number", exact=True)
    assert number.input_value() == "1"
    number.fill("2")
    number.press("Tab")
    page.wait_for_function("() => location.hash.includes('c1.1')")
    page.wait_for_selector("aside h3:has-text('Cell 2 of')")
    for screen in ("read", "cell"):
        opened(watched, f"screen={screen}&model=prose&unit=c0.0")
        title(page, "cell 1 of layer 1")
        assert "c0.0" in page.inner_text(".heading .address")
        opened(watched, f"screen={screen}&model=prose&unit={NAMED}")
        page.wait_for_selector(f".heading .address:has-text('cell {int(NUMBER) + 1} of layer')")
    opened(watched, "screen=trace&model=small")
    page.wait_for_selector("button.unit:has-text('cell 1036 of layer 2')")
    assert "c1.1035" in page.inner_text("button.unit >> nth=0")


def test_the_quotation_cell_opens_at_quotation_marks(watched: Watched) -> None:  # noqa: F811
    page = opened(watched, "screen=cell&model=prose")
    page.wait_for_selector("h3:has-text('around ““”')")
    page.wait_for_selector("figure pre")
    usual, changed = page.locator("figure pre").all_inner_texts()
    assert usual.startswith("“What is it?”")
    assert "“" in usual[5:]  # a quotation that the network has opened by itself
    same = next(i for i, (one, other) in enumerate(zip(usual, changed, strict=False)) if one != other)
    page.wait_for_selector(f"text=agree in the first {same - len('“What is it?” ')} characters")
    page.locator("label:has-text('Around') + select, label:has-text('Around') select").select_option("\n")
    page.wait_for_selector("h3:has-text('around “↵”')")


def test_meaning_claims_no_sense_and_drops_answers_about_another_sentence(watched: Watched) -> None:  # noqa: F811
    page = opened(watched, "screen=meaning&model=small")
    page.wait_for_selector(".occurrences")
    assert "used alike" not in page.inner_text(".lead")
    shown = page.locator(".layers .panel").first.locator("mark").all_inner_texts()
    assert f"{shown.count('play')} are “play”" in claim(page)
    page.fill("input[maxlength='2000']", "The bank lends money .")
    assert page.locator(".occurrences").count() == 0
    assert "play" not in claim(page)
    page.click("button[aria-pressed]:has-text('bank')")
    page.wait_for_selector(".occurrences")
    assert "bank" in claim(page)

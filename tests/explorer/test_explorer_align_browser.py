"""Align in a real browser: the map, the steps, the beam, the model without attention; light and dark, wide and narrow;
saved and exported pages from disk."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_explorer_browser import Watched, browser, pytestmark  # noqa: F401
from test_explorer_screens_browser import check, saved

from relmo.explorer.align import AlignSession
from relmo.explorer.page import write_page
from relmo.explorer.session import Session
from support.served import served

Folders = tuple[Path, Path, Path]
MAP, NOW = ".heat", ".alignment .sides .now text"
OPACITIES = "row => [...row.querySelectorAll('.weight')].map(cell => Number(cell.getAttribute('fill-opacity')))"


@pytest.fixture(scope="module")
def session(translators: Folders) -> AlignSession:
    attentive, fixed, pairs = translators
    return AlignSession.open(str(attentive), str(pairs), companions=[str(fixed)], device="cpu")


@pytest.fixture(scope="module")
def address(session: AlignSession) -> Iterator[str]:
    from relmo.explorer.server import Models

    with served(
        Models([session.name, "anbn-lstm"], lambda name: session if name == session.name else Session.open(name))
    ) as server:
        yield f"http://127.0.0.1:{server.address[1]}/"


@pytest.fixture
def watched(browser: Any, address: str) -> Iterator[Watched]:  # noqa: F811
    made = Watched(browser, address, bypass_csp=True)  # so that the checker may run in it
    yield made
    wrong = [*made.wrong]
    made.context.close()
    assert wrong == []


def test_it_opens_with_a_map_and_what_one_vector_made_of_the_source(watched: Watched, session: AlignSession) -> None:
    page = watched.open()
    page.wait_for_selector(MAP)
    mine, other = session.answer("align", {"source": session.initial_source})["models"]
    rows = page.locator(".maprow")
    shown = [row.evaluate(OPACITIES) for row in rows.all()]
    assert shown == mine["written"][0]["attention"]
    assert page.locator(".maprow.coming").count() == 0  # all of it is there
    assert page.input_value(".asking input") == session.initial_source
    assert re.match(r"To write “[a-d]”, .* “[a-d]” \(\d+ %\)", page.inner_text(".claim"))
    assert "wrong" in page.inner_text("h2 >> nth=1")
    texts = page.locator(".halves .written").all_inner_texts()
    assert [text.replace("‸", "") for text in texts] == [
        session.initial_source[::-1], mine["written"][0]["text"], other["written"][0]["text"]
    ]  # fmt: skip
    assert page.locator(".halves mark, .halves td .gap").count() > 0
    assert page.locator(".halves .sides .vector").count() == 1  # all that is between its two texts
    assert page.locator("nav button").all_inner_texts() == ["Start", "Align"]
    check(page)


def test_the_decoder_is_stepped_with_buttons_keys_and_by_pressing_a_row(watched: Watched) -> None:
    page = watched.open("#source=abcd&step=0")
    page.wait_for_selector(MAP)
    assert page.inner_text(".stepper [role=status]") == "step 1 of 5"
    assert page.text_content(NOW) == "d"
    assert page.locator(".maprow.coming").count() == 4
    assert page.is_disabled("text=◀ Back")
    page.click("text=Forward ▶")
    assert page.text_content(NOW) == "c"
    assert page.inner_text(".claim").startswith("To write “c”")
    assert page.inner_text(".alignment .barchart tr >> nth=0").startswith("c ✓")
    assert page.locator(".thread.lit").count() >= 1
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.text_content(NOW) == "a"
    page.keyboard.press("ArrowLeft")
    assert page.text_content(NOW) == "b"
    assert "step=2" in page.url
    page.click(".maprow[data-row='0'] .weight >> nth=1")
    assert page.text_content(NOW) == "d"
    page.click("text=Last")
    assert page.inner_text(".claim").startswith("At the end")
    assert page.is_disabled("text=Forward ▶")
    page.keyboard.press("ArrowRight")  # there is no further step
    assert page.inner_text(".stepper [role=status]") == "step 5 of 5"


def test_lines_of_what_is_pointed_at_are_lit(watched: Watched) -> None:
    page = watched.open("#source=abcd&step=0")
    page.wait_for_selector(MAP)
    place = "() => document.querySelector('.thread.lit').getAttribute('y2')"
    before = page.evaluate(place)
    page.hover(".alignment .sides [data-row='3']")
    assert page.evaluate(place) != before
    page.hover(".claim")
    assert page.evaluate(place) == before


def test_a_text_of_the_beam_has_a_map_of_its_own(watched: Watched, session: AlignSession) -> None:
    page = watched.open("#source=abcd")
    page.wait_for_selector(MAP)
    found = session.answer("align", {"source": "abcd"})["models"][0]["written"]
    names = page.locator(".pair tbody button").all_inner_texts()
    assert names == ["greedy", *(f"beam {n}" for n in range(1, len(found)))]
    page.click("button:text-is('beam 3')")
    assert page.get_attribute("button:text-is('beam 3')", "aria-pressed") == "true"
    assert [row.evaluate(OPACITIES) for row in page.locator(".maprow").all()] == found[3]["attention"]
    assert "".join(page.locator(".alignment .sides [data-row] text").all_text_contents()) == found[3]["text"] + "(end)"
    page.select_option("label:has-text('Beams') select", "10")
    page.wait_for_selector("button:text-is('beam 10')")
    assert page.get_attribute("button:text-is('greedy')", "aria-pressed") == "true"


def test_a_text_of_ones_own_is_read_and_kept_in_the_address_and_mistakes_are_told(watched: Watched) -> None:
    page = watched.open()
    page.wait_for_selector(MAP)
    page.fill(".asking input", "<b>a")
    page.press(".asking input", "Enter")
    page.wait_for_selector("text=vocabulary: “<”, “>”.")
    assert page.locator("main b b").count() == 0
    assert page.locator(".alignment .sides .word:not([data-row])").count() == 4
    assert "reference" not in page.inner_text("main")
    page.reload()
    page.wait_for_selector("text=Not in the vocabulary")
    assert page.input_value(".asking input") == "<b>a"
    check(page)
    watched.wrong.clear()
    page.fill(".asking input", "a" * 300)
    page.click(".asking button.go")
    page.wait_for_selector("#said:has-text('300 units')")
    assert all("400" in each for each in watched.wrong)  # the browser tells of the refusal
    watched.wrong.clear()
    page.select_option(".pickers select", "anbn-lstm")
    page.wait_for_selector(".text span")
    assert "Align" not in page.locator("nav button").all_inner_texts()
    page.go_back()


@pytest.mark.parametrize("how", ["saved", "exported"])
def test_a_page_from_disk_has_the_map_the_steps_and_the_examples(
    browser: Any,  # noqa: F811
    watched: Watched,
    session: AlignSession,
    tmp_path: Path,
    how: str,
) -> None:
    if how == "saved":
        page = watched.open("#source=abcd&step=1")
        page.wait_for_selector(MAP)
        page.select_option(".asking select", session.initial_source)
        page.wait_for_selector("h2:has-text('is wrong')")
        disk = saved(browser, page, tmp_path / "page.html")
    else:
        write_page(session, tmp_path / "page.html")
        disk = Watched(browser, f"file://{tmp_path / 'page.html'}")
    kept = disk.open()
    kept.wait_for_selector(MAP)
    assert "wrong" in kept.inner_text("h2 >> nth=1")
    sources = kept.locator("label:has-text('Example') option").all_inner_texts()
    assert {session.initial_source, "abcd"} == {*sources} if how == "saved" else len(sources) >= 12
    kept.select_option("label:has-text('Example') select", sources[0])
    kept.click("text=First")
    kept.keyboard.press("ArrowRight")
    assert kept.inner_text(".stepper [role=status]").startswith("step 2 of")
    kept.click("button:text-is('beam 2')")
    assert kept.locator("input, button.go").count() == 0
    disk.context.close()
    assert disk.wrong == []


def test_the_map_is_saved_as_a_picture(watched: Watched, tmp_path: Path) -> None:
    page = watched.open("#source=abcd&step=0")
    page.wait_for_selector(MAP)
    with page.expect_download() as download:
        page.click("figure:has(.heat) >> text=SVG")
    download.value.save_as(tmp_path / "map.svg")
    text = (tmp_path / "map.svg").read_text(encoding="utf-8")
    assert text.count("fill-opacity") >= 20
    assert "(end)" in text

"""What a lecturer and a student see in the browser: cards, named cells, the truth below the text, slides; and defects
that must not come back."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_explorer_browser import (  # noqa: F401
    AXE,
    COLOURED,
    COLOURS,
    NAMED,
    VIOLATIONS,
    Watched,
    browser,
    pytestmark,
)

from relmo.analysis.units.cell_report import read_cells
from relmo.cli.serve import open_session
from relmo.explorer.examples import EXAMPLES_DIR, list_examples
from relmo.explorer.session import Session
from support.served import served

COUNTER = read_cells(EXAMPLES_DIR / "anbn-lstm")[0].unit
SHOWN = "main .claim"
RIGHT_ENDS = "all => all.map(each => each.getBoundingClientRect().right)"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from relmo.explorer.server import Models

    with served(Models(list_examples(), lambda name: open_session(name, None, "cpu"))) as server:
        yield f"http://127.0.0.1:{server.address[1]}/"


@pytest.fixture(scope="module")
def kept(browser: Any, address: str) -> Iterator[Watched]:  # noqa: F811
    """One page for all tests."""
    made = Watched(browser, address, bypass_csp=True)  # so that the checker may run in it
    yield made
    made.context.close()


@pytest.fixture
def watched(kept: Watched) -> Iterator[Watched]:
    kept.page.set_viewport_size({"width": 1280, "height": 900})
    kept.page.emulate_media(color_scheme="light")
    yield kept
    assert kept.wrong == []


def test_it_opens_on_cards_and_each_leads_to_what_it_shows(watched: Watched) -> None:
    page = watched.open()
    page.wait_for_selector(".startcard")
    kinds = page.locator(".startcard").evaluate_all("all => all.map(each => each.dataset.card)")
    told = {"quotes", "line", "brackets", "comments", "three", "forgetting", "counting", "agreement", "play"}
    assert told | {"number", "layers", "writing", "translating", "adding"} <= {*kinds}
    assert page.locator(".startcard .cardpicture > *").count() == len(kinds)
    for kind in ("quotes", "comments", "three", "counting", "agreement", "translating"):
        page.click(f".startcard[data-card={kind}]")
        expected = {
            "quotes": "inside quotation marks",
            "comments": "inside a comment",
            "three": "predicts best",
            "translating": "attends",
            "counting": "counts linearly",
            "agreement": "the correct verb",
        }[kind]
        page.wait_for_selector(f"{SHOWN}:has-text('{expected}')")
        page.go_back()
        page.wait_for_selector(".startcard")


def test_a_named_cell_is_offered_first_with_the_truth_below_and_its_evidence(watched: Watched) -> None:
    page = watched.open("#screen=read&model=prose")
    page.wait_for_selector(COLOURED)
    page.wait_for_selector(".text span[data-truth]")
    assert page.inner_text(f"{SHOWN} .address").endswith(NAMED)
    assert page.get_attribute(".chips button >> nth=0", "aria-pressed") == "true"
    true = "() => [...document.querySelectorAll('.text span')].map(s => [s.textContent, s.dataset.truth ? 1 : 0])"
    found = page.evaluate(true)
    session = Session.open("prose", device="cpu")
    track = session.answer("truth", {"text": "story", "page": "0", "feature": "quotes"})["values"]
    assert [there for _, there in found] == [int(value > 0) for value in track]
    page.click(".evidence summary >> nth=0")
    evidence = page.inner_text(".evidence >> nth=0")
    assert "untrained" in evidence
    assert "relmo analyse cells" in evidence
    assert "AUC" in evidence
    page.click("text=a cell without interpretation")
    page.wait_for_selector(f"{SHOWN}:has-text('No interpretation')")
    assert page.locator(".text span[data-truth]").count() == 0


def test_the_gradient_follows_clicks_and_arrows(watched: Watched) -> None:
    page = watched.open("#screen=read&model=prose&mode=gradient&text=story")
    page.wait_for_selector(".pager:has-text('characters')")
    page.wait_for_load_state("networkidle")
    before = page.evaluate(COLOURS)
    page.locator(".text span").nth(700).click()
    page.wait_for_selector(".scale:not(:has-text('Computing')):has-text('after character 700')")
    clicked = page.evaluate(COLOURS)
    assert clicked != before
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".scale:not(:has-text('Computing')):has-text('after character 701')")
    assert page.evaluate(COLOURS) != clicked


def test_who_counts_is_who_accepts_the_right_and_rejects_the_wrong(watched: Watched) -> None:
    page = watched.open("#screen=experiments&model=prose")
    page.wait_for_selector(".intervals")
    assert page.inner_text(SHOWN) == "The LSTM counts; the others do not"
    labels = page.locator(".interval").evaluate_all("all => all.map(each => each.getAttribute('aria-label'))")
    assert [label.split(" n = ")[0] for label in labels[:2]] == [
        "Elman network accepts correct words for",
        "Elman network accepts incorrect words for",
    ]
    inside = """() => [...document.querySelectorAll('.interval span')].every(each => {
        const [own, bar] = [each.getBoundingClientRect(), each.parentElement.getBoundingClientRect()];
        return own.left >= bar.left - 1 && own.right <= bar.right + 1; })"""
    assert page.evaluate(inside)
    assert "reads characters" in page.inner_text("section:has-text('Minimal pairs')")
    assert page.locator("section:has-text('Minimal pairs') table").count() == 0  # nothing asked of letters by itself


def test_screens_suit_a_model_of_two_letters(watched: Watched) -> None:
    page = watched.open("#screen=find&model=anbn-lstm")
    page.wait_for_selector(".card")
    assert page.locator(".card").count() == 1
    assert "the counting cell" in page.inner_text(".card")
    assert COUNTER in page.inner_text(".card")
    assert float(page.inner_text(".card .barchart td >> nth=1")) > 0.99
    page.click("nav.tabs button:has-text('Cell')")
    page.wait_for_selector(".wires p")
    likelier, unlikelier = (page.inner_text(f".wires p >> nth={n}") for n in (0, 1))
    named = [{*re.findall(r"(\S+) [+-]\d", text)} for text in (likelier, unlikelier)]
    assert not named[0] & named[1]
    page.wait_for_selector(".barchart:has-text('more bits')")
    shown = page.locator(".barchart:has-text('more bits') td:nth-child(3)").all_inner_texts()
    assert any(float(value) for value in shown)


def test_strips_are_one_table_and_show_the_chosen_column_whole(watched: Watched) -> None:
    page = watched.open("#screen=read&model=prose&gates=true&at=300")
    page.wait_for_selector(".strips tbody tr:nth-child(8)")
    assert page.locator(".strips table").count() == 1
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        page.focus(".text")
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(200)
        whole = """() => {
            const at = (place) => document.querySelector(`.strips ${place}`).getBoundingClientRect();
            const [own, box, label] = [at('th.here'), at('.scroll'), at('tbody th')];
            return own.left >= label.right - 1 && own.right <= box.right + 1; }"""
        assert page.evaluate(whole), width


def test_lists_of_the_old_text_are_gone_while_a_new_one_loads(watched: Watched) -> None:
    page = watched.open("#screen=read&model=prose&text=story")
    page.wait_for_selector(".contexts li")
    page.route(re.compile("/api/(page|overview).*text=alice"), lambda route: None)
    page.select_option(".pickers label:has-text('Text') select", "alice")
    page.wait_for_selector(".contexts li", state="detached")
    page.unroute_all(behavior="ignoreErrors")


def test_a_narrow_screen_has_a_low_head_and_contexts_with_their_symbol(watched: Watched) -> None:
    page = watched.page
    page.set_viewport_size({"width": 400, "height": 860})
    watched.open("#screen=cell&model=prose")
    page.wait_for_selector(".contexts mark")
    assert page.evaluate("() => document.querySelector('header').offsetHeight") < 130
    seen = """() => [...document.querySelectorAll('.contexts mark')].every(each => {
        const [own, line] = [each.getBoundingClientRect(), each.closest('li').getBoundingClientRect()];
        return own.width > 3 && own.left >= line.left && own.right <= line.right + 1; })"""
    assert page.evaluate(seen)


def test_a_wide_screen_is_used(watched: Watched) -> None:
    page = watched.page
    page.set_viewport_size({"width": 1920, "height": 1000})
    for screen, model in (("read", "prose"), ("memory", "prose"), ("experiments", "small")):
        watched.open(f"#screen={screen}&model={model}")
        page.wait_for_selector(".text span, polyline.line, .barchart")
        page.wait_for_load_state("networkidle")
        edges = page.locator("main .panel, main .rightside").evaluate_all(RIGHT_ENDS)
        assert max(edges) > 1800, screen


def test_short_names_have_plain_words_beside_them(watched: Watched) -> None:
    page = watched.open("#screen=experiments&model=small")
    page.wait_for_selector(".barchart")
    page.wait_for_selector(".gatecharts svg")
    text = page.inner_text("main")
    assert "nounpp" not in text
    assert "singular subject, plural noun between" in text
    assert "symbols" not in text
    watched.open("#screen=memory&model=small")
    page.wait_for_selector("polyline.line")
    text = page.inner_text("main")
    assert "words back" in page.locator("svg text").all_text_contents()
    assert not re.search(r"\bd[ch]\b", text)


def png_size(path: Path) -> tuple[int, int]:
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_a_view_becomes_a_slide_and_its_figure_a_picture_of_a_column(watched: Watched, tmp_path: Path) -> None:
    page = watched.open("#screen=read&model=prose")
    page.wait_for_selector(".text span[data-truth]")
    page.click("text=Present")
    page.wait_for_selector(".slide img")
    assert "This cell is" in (page.get_attribute(".slide img", "alt") or "")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(VIOLATIONS) == []
    for name, suffix in (("Slide", "svg"), ("Slide", "png"), ("Column", "png")):
        with page.expect_download() as download:
            page.click(f".slidebar >> text={name} {suffix.upper()}")
        download.value.save_as(tmp_path / f"{name}.{suffix}")
    root = ElementTree.parse(tmp_path / "Slide.svg").getroot()
    assert (root.get("width"), root.get("height")) == ("1920", "1080")
    words = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0].startswith("This cell is")
    assert any("model prose" in word for word in words)
    assert not any("Present" in word or "Cell index" in word for word in words)  # no controls
    assert png_size(tmp_path / "Slide.png") == (1920, 1080)
    assert png_size(tmp_path / "Column.png")[0] == 1004
    page.keyboard.press("Escape")
    assert page.locator(".slide").count() == 0


def test_the_text_says_how_much_of_it_is_looked_at(watched: Watched) -> None:
    page = watched.open()
    page.wait_for_selector(".ownthings")
    session = Session.open("prose", device="cpu")
    limit = session.answer("about", {})["limit"]
    text = page.inner_text(".ownthings")
    assert f"{limit['characters']:,} characters" in text
    assert f"first {limit['symbols']:,} characters" in text

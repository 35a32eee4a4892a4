"""The explorer in a real browser: every screen, colours, keys, the address, accessibility, a saved page from disk.

The browser is the system's chromium; where there is none these tests are skipped, but in CI (.ci/run installs it).
"""

import importlib
import math
import os
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from relmo.analysis.units.cell_report import read_cells
from relmo.explorer.examples import EXAMPLES_DIR
from relmo.explorer.page import write_page
from relmo.explorer.session import Session

CHROMIUM = os.environ.get("RELMO_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
if os.environ.get("CI"):
    assert CHROMIUM is not None, "no chromium found, which .ci/run installs"
    sync_api = importlib.import_module("playwright.sync_api")
else:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'relmo[dev]'")
    pytest.importorskip("uvicorn", reason="no uvicorn: pip install 'relmo[explore]'")
from support.served import PATIENCE, served  # noqa: E402

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium found; install it, or set RELMO_CHROMIUM"),
]

AXE = Path(__file__).parent / "axe" / "axe.min.js"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--disable-quic", "--no-first-run"]
SCREENS = ("start", "read", "find", "cell", "memory", "experiments", "compare", "meaning")
SVG = "{http://www.w3.org/2000/svg}"
COLOURED = ".text span[style*=background]"
COLOURS = "() => [...document.querySelectorAll('.text span')].map(s => s.style.backgroundColor).join()"
VIOLATIONS = "async () => (await axe.run()).violations.map(v => [v.id, v.nodes[0].html, v.nodes[0].failureSummary])"
LIGHT, DARK = ((86, 160, 230), (255,) * 3, (230, 126, 34)), ((20, 84, 170), (23, 25, 29), (150, 62, 0))
BRIGHT = {-1: ((110, 165, 235), (150, 200, 255)), 1: ((232, 140, 50), (255, 180, 95))}  # in the dark, from half on
NAMED = read_cells(EXAMPLES_DIR / "prose")[0].unit  # the cell that prose opens with
PREFIX, NUMBER = NAMED.split(".")
NEXT = f"{PREFIX}.{int(NUMBER) + 1}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A real server with models that ship."""
    from relmo.explorer.server import Models

    names = ["prose", "code", "anbn-lstm", "small"]
    models = Models(names, lambda name: Session.open(name, device="cpu"))
    models.get("prose")
    with served(models) as server:
        yield f"http://127.0.0.1:{server.address[1]}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


class Watched:
    """A page of which every error and every request is noted."""

    def __init__(self, browser: Any, address: str, **options: Any):
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page, self.address = self.context.new_page(), address
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.ask(request.url))
        self.page.on("response", lambda response: self.refused(response.status, response.url))

    def ask(self, url: str) -> None:
        if not url.startswith((self.address, "data:", "blob:")):
            self.wrong.append(f"asked for {url}")

    def refused(self, status: int, url: str) -> None:
        if status >= 400:
            self.wrong.append(f"{status} {url}")

    def open(self, fragment: str = "") -> Any:
        self.page.goto("about:blank")
        self.wrong.clear()
        self.page.goto(self.address + fragment)
        return self.page


@pytest.fixture
def watched(browser: Any, address: str) -> Iterator[Watched]:
    made = Watched(browser, address)
    yield made
    wrong = [*made.wrong]
    made.context.close()
    assert wrong == []


def background(value: float, scale: float, theme: str = "light") -> str:
    """The colour of a value, as the page's rules have it."""
    low, middle, high = LIGHT if theme == "light" else DARK
    share = math.floor(max(-1, min(1, value / scale)) * 32 + 0.5) / 32
    begin, end, along = middle, high if share > 0 else low, abs(share)
    if theme == "dark":
        along *= 2
        if abs(share) > 0.5:
            (begin, end), along = BRIGHT[1 if share > 0 else -1], along - 1
    return "rgb({}, {}, {})".format(*(math.floor(m + along * (e - m) + 0.5) for m, e in zip(begin, end, strict=True)))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_symbols_have_the_colour_of_the_units_value_and_text_a_contrast_of_seven(
    browser: Any, address: str, theme: str
) -> None:
    watched = Watched(browser, address, color_scheme=theme)
    page = watched.open(f"#unit={NAMED}&mode=value")
    page.wait_for_selector(COLOURED)
    page.wait_for_load_state("networkidle")
    style = "() => [...document.querySelectorAll('.text span')].map(s => getComputedStyle(s)).map(s => "
    shown, inks = (page.evaluate(f"{style}{what})") for what in ("s.backgroundColor", "s.color"))
    session = Session.open("prose", device="cpu")
    found = session.answer("values", {"text": "story", "page": "0", "unit": NAMED})
    assert len(shown) == 4000
    expected = [background(value, found["scale"], theme) for value in found["values"]]
    assert (
        sum(a == b for a, b in zip(shown, expected, strict=True)) >= 3990
    )  # a value between two steps may go either way
    assert len({*shown}) > 15
    assert min(contrast(ink, colour) for ink, colour in {*zip(inks, shown, strict=True)}) >= 7
    watched.context.close()
    assert watched.wrong == []


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""

    def luminance(colour: str) -> float:
        parts = np.array([float(part) for part in colour[4:-1].split(",")]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_every_screen_is_accessible_and_fits_wide_and_narrow(
    browser: Any, address: str, screen: str, theme: str
) -> None:
    watched = Watched(browser, address, color_scheme=theme, bypass_csp=True)  # so that the checker may run in it
    model = "small" if screen == "meaning" else "anbn-lstm"
    page = watched.open(f"#screen={screen}&model={model}&gates=true&at=70")
    page.wait_for_selector("h2")
    page.wait_for_load_state("networkidle")
    assert "undefined" not in page.inner_text("main")
    for details in page.locator("details.evidence").all():
        details.evaluate("each => (each.open = true)")
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate(VIOLATIONS)
        assert found == [], width
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), width
        assert page.evaluate("() => document.querySelector('header').offsetHeight") < 130, width
    watched.context.close()
    assert watched.wrong == []


def test_what_was_found_is_accessible_too(browser: Any, address: str) -> None:
    watched = Watched(browser, address, bypass_csp=True)
    page = watched.open("#screen=find&model=anbn-lstm&features=vowel,column")
    page.click("text=Score every cell")
    page.wait_for_selector(".card")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(VIOLATIONS) == []
    watched.context.close()
    assert watched.wrong == []


def test_the_keyboard_walks_over_symbols_changes_units_and_searches(watched: Watched) -> None:
    page = watched.open(f"#unit={NAMED}")
    page.wait_for_selector(COLOURED)
    page.focus(".text")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.querySelector('.text .here').i") == 3
    assert "character 3" in page.inner_text(".focus")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("() => document.querySelector('.text .here').i") == 10  # the empty line below the heading
    page.keyboard.press("Home")
    before = page.evaluate(COLOURS)
    page.keyboard.press("]")
    page.wait_for_selector(f".heading .address:has-text('{NEXT}')")
    assert f"unit={NEXT}" in page.url
    assert before != page.evaluate(COLOURS)
    page.keyboard.press("[")
    page.wait_for_selector(f".heading .address:has-text('{NAMED}')")
    page.keyboard.press("/")
    page.keyboard.type("daisy-chain")
    page.keyboard.press("Enter")
    at = page.evaluate("() => document.querySelector('.text .here').i")
    whole = page.evaluate("() => [...document.querySelectorAll('.text span')].map(s => s.textContent).join('')")
    assert whole[at : at + 11] == "daisy-chain"
    assert f"at={at}" in page.url


def test_the_address_holds_the_view(watched: Watched) -> None:
    page = watched.open(f"#unit={NAMED}&page=2&mode=change&marks=true&pins=c0.1,c0.2")
    page.wait_for_selector(COLOURED)
    page.wait_for_selector(".pager:has-text('3 of ')")
    page.select_option("label:has-text('Colour shows') select", "surprisal")
    page.wait_for_selector(".scale:has-text('bits')")
    address, colours = page.url, "() => [...document.querySelectorAll('.text span')].map(s => s.style.backgroundColor)"
    before = page.evaluate(colours)
    assert "mode=surprisal" in address
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(".scale:has-text('bits')")
    page.wait_for_load_state("networkidle")
    assert page.evaluate(colours) == before
    assert page.locator(".pins button small").all_inner_texts() == ["c0.1", "c0.2"]
    page.click("nav.tabs button:has-text('Cell')")
    page.wait_for_selector(f".heading .address:has-text('{NAMED}')")
    page.go_back()
    page.wait_for_selector(".scale:has-text('bits')")


def test_a_text_of_ones_own_is_shown_as_text_and_survives_in_the_address(watched: Watched) -> None:
    mark = "<img src=x onerror=alert(1)><b>bold</b> & “so on”"
    page = watched.open()
    page.fill(".ownthings textarea", mark)
    page.click("button:text-is('Open')")
    page.wait_for_selector(".pager:has-text('Your text')")
    inside = "() => [...document.querySelectorAll('.text span')].map(s => s.textContent).join('')"
    assert page.evaluate(inside) == mark
    assert page.locator(".text img, .text b").count() == 0
    page.reload()
    page.wait_for_selector(".pager:has-text('Your text')")
    assert page.evaluate(inside) == mark


def test_the_first_answer_colours_the_page_and_the_next_units_are_there_before_they_are_asked_for(
    watched: Watched,
) -> None:
    page, held = watched.page, []

    def hold(request: Any) -> None:  # it is never answered
        held.append(request)

    page.route(re.compile("/api/(?!about)"), hold)
    watched.open("#screen=read")
    page.wait_for_selector(COLOURED)
    assert len(held) > 0
    page.unroute_all(behavior="ignoreErrors")
    values = re.compile(rf"/api/values.*unit={re.escape(NEXT)}")
    with page.expect_response(values):
        watched.open(f"#unit={NAMED}")
    before = page.evaluate(COLOURS)
    page.route(re.compile("/api/"), hold)
    page.keyboard.press("]")
    page.wait_for_function(f"before => ({COLOURS})() !== before", arg=before)
    assert before != page.evaluate(COLOURS)
    page.unroute_all(behavior="ignoreErrors")


def test_find_leads_to_a_cell_that_can_be_changed(watched: Watched) -> None:
    page = watched.open("#screen=find&model=anbn-lstm&features=vowel&patterns=last%3Db%24")
    page.wait_for_selector(".card")  # scored at once, since the address asks for it
    assert "at a vowel" in page.inner_text(".cards")
    assert page.locator(".card .snippet span").count() > 50
    page.click(".card:has-text('at a vowel') button.unit >> nth=0")
    page.wait_for_selector(".barchart")
    page.fill("label:has-text('Prompt') input", "aaa")
    page.click("text=Run ablation")
    page.wait_for_selector("figure pre:text-matches('^aaa')")
    assert page.locator("figure pre").count() == 2
    page.click("text=Rank among all")
    page.wait_for_selector("td:has-text('of 10')")


def test_memory_draws_and_work_can_be_cancelled(watched: Watched) -> None:
    page = watched.open("#screen=memory&model=prose")
    page.wait_for_selector(".panel >> nth=0 >> polyline.line")  # there at once
    assert "vanishes" in page.inner_text(".claim")
    page.click("nav.tabs button:has-text('Experiments')")
    page.fill("label:has-text('Steps') input", "10000")
    page.click("text=Train and test again")
    page.click("button:has-text('Cancel')")
    page.wait_for_selector("text=Cancelled")
    assert page.is_enabled("text=Train and test again")


def test_samples_are_shown_without_names_first_and_symbols_coloured_by_who_is_better(watched: Watched) -> None:
    page = watched.open("#screen=compare&model=prose")
    page.wait_for_selector(COLOURED)
    assert page.locator("figcaption").all_inner_texts()[:2] == ["text 1", "text 2"]
    page.click("text=Show the names")
    assert "prose" in page.locator("figcaption").all_inner_texts()[:2]
    page.focus(".text")
    page.keyboard.press("ArrowRight")
    assert "bits for prose" in page.inner_text("p[role=status]")


def test_a_word_is_looked_up_where_it_stands_and_screens_are_those_of_the_model(watched: Watched) -> None:
    page = watched.open("#screen=compare&model=small")  # which this model has not
    page.wait_for_selector(COLOURED)
    assert "Compare" not in page.locator("nav.tabs button").all_inner_texts()
    page.click("nav.tabs button:has-text('Meaning')")
    page.wait_for_selector("h2:has-text('nearest to “play”')")  # there at once
    page.click("button:text-is('garden')")
    page.wait_for_selector("h2:has-text('nearest to “garden”')")
    assert page.locator(".cards section").count() == 4
    assert page.locator(".cards mark").count() == 30


def test_forms_of_ones_own_are_asked_for(watched: Watched) -> None:
    page = watched.open("#screen=experiments&model=prose")
    page.click("summary:has-text('Run anyway')")
    page.fill("label:has-text('Pairs') textarea", "one | he said | he siad\ntwo | she was | she wsa")
    page.click("text=Test the model again")
    page.wait_for_selector(".barchart th:has-text('one')")
    assert page.locator(".barchart th").all_inner_texts() == ["one", "two"]


def test_a_coloured_text_is_saved_whole_as_a_picture_by_a_key_and_a_chart_by_its_button(
    watched: Watched, tmp_path: Path
) -> None:
    page = watched.open(f"#unit={NAMED}&mode=value")
    page.wait_for_selector(COLOURED)
    page.wait_for_load_state("networkidle")
    spans = "() => [...document.querySelectorAll('.text span')]"
    shown = page.evaluate(f"{spans}.map(s => s.style.backgroundColor)")
    with page.expect_download() as vector:
        page.keyboard.press("Shift+P")
    vector.value.save_as(tmp_path / "text.svg")
    root = ElementTree.parse(tmp_path / "text.svg").getroot()
    whole = page.evaluate(f"{spans}.map(s => s.textContent).join('')")
    assert {*shown} <= {each.get("fill") for each in root.iter(f"{SVG}rect")}
    drawn = "".join(each.text or "" for each in root.iter(f"{SVG}text"))
    assert whole.replace("\n", "↵").replace(" ", "") in drawn.replace(" ", "")
    with page.expect_download() as bitmap:
        page.keyboard.press("p")
    bitmap.value.save_as(tmp_path / "text.png")
    width, height = (float(root.get(side) or 0) for side in ("width", "height"))
    assert png_size(tmp_path / "text.png") == (2 * width, 2 * height)
    assert height > 1500  # all of the text, also what is scrolled out of sight
    page.click("nav.tabs button:has-text('Cell')")
    page.wait_for_selector("polyline.line")
    with page.expect_download() as chart:
        page.click("figure .saving button:has-text('SVG')")
    chart.value.save_as(tmp_path / "chart.svg")
    lines = [*ElementTree.parse(tmp_path / "chart.svg").getroot().iter(f"{SVG}polyline")]
    assert len({line.get("stroke") for line in lines}) == len(lines) == 2  # drawn in their colours, without the style


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def test_a_mistake_is_shown_in_words(watched: Watched) -> None:
    page = watched.open("#screen=find&model=anbn-lstm&features=quotes")
    page.click("text=Score every cell")
    page.wait_for_selector(".told:has-text('features')")


@pytest.mark.parametrize("how", ["saved in the browser", "written by the library"])
def test_a_saved_page_opens_from_disk_and_asks_nobody(browser: Any, watched: Watched, tmp_path: Path, how: str) -> None:
    path = tmp_path / "page.html"
    if how == "saved in the browser":
        page = watched.open(f"#unit={NAMED}&text=story")
        page.wait_for_selector(COLOURED)
        page.wait_for_load_state("networkidle")
        with page.expect_download() as download:
            page.click("text=Save page")
        download.value.save_as(path)
    else:
        session = Session.open("anbn-lstm", device="cpu")
        write_page(session, path)
    disk = Watched(browser, f"file://{path}")
    page = disk.open("#unit=c0.3")
    page.wait_for_selector(COLOURED)
    page.keyboard.press("]")
    page.wait_for_selector(".scale:has-text('c0.4')")
    if how == "written by the library":
        for screen in ("Find", "Cell", "Memory"):
            page.click(f"nav.tabs button:has-text('{screen}')")
            page.wait_for_selector("h2, .card")
        assert page.locator("polyline.line").count() > 0
    assert page.locator("nav.tabs button:has-text('Experiments')").count() == 0
    disk.context.close()
    assert disk.wrong == []


def test_an_exported_page_has_every_page_of_a_long_text_and_all_that_is_shown_of_it(
    browser: Any, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    session = Session.open("anbn-lstm", device="cpu")
    text = "".join("a" * n + "b" * n for n in range(1, 101))
    session.set_text("words", text)
    assert write_page(session, path) == "3 of 3 pages, with all units"
    disk = Watched(browser, f"file://{path}")
    page = disk.open("#unit=f0.5&gates=true")
    shown, inside = "", "() => [...document.querySelectorAll('.text span')].map(s => s.textContent).join('')"
    for number in range(3):
        page.wait_for_selector(f".pager:has-text('{number + 1} of 3')")
        page.wait_for_selector(COLOURED)
        shown += page.evaluate(inside)
        page.keyboard.press("]")
        page.keyboard.press("[")
        page.wait_for_selector(".scale:has-text('f0.5')")
        if number < 2:
            page.click("text=Page ▶")
    assert shown == text
    assert page.is_disabled("text=Page ▶")
    page.focus(".text")
    page.keyboard.press("End")
    assert "predicted next" in page.inner_text(".focus")
    assert page.locator(".strips td").count() > 100  # what was expected, and every gate
    page.select_option("label:has-text('Colour shows') select", "surprisal")
    page.wait_for_selector(".scale:has-text('bits')")
    page.click("nav.tabs button:has-text('Cell')")
    page.wait_for_selector("button:has-text('c of the same unit')")
    page.click("button:has-text('c of the same unit')")
    page.click(".contexts button >> nth=0")
    page.wait_for_selector(".text .here")
    disk.context.close()
    assert disk.wrong == []

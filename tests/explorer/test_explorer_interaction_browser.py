"""Keys, pointer and focus in a real browser while every answer of the server comes late."""

from collections.abc import Iterator
from typing import Any

import pytest
from test_explorer_browser import NAMED, NUMBER, PREFIX, Watched, browser, pytestmark  # noqa: F401
from test_explorer_screens_browser import check

from relmo.explorer.align import AlignSession
from relmo.explorer.examples import load_cards
from relmo.explorer.session import Session
from support.served import served

DELAY = 800  # milliseconds
LATE = """() => {
  const fetch = window.fetch;
  window.delays = [];
  window.fetch = async (...request) => {
    const delay = window.delays.shift() ?? %d;
    const response = await fetch(...request);
    await new Promise((done) => setTimeout(done, delay));
    return response;
  };
}"""
TAKEN = "() => (new URLSearchParams(location.hash.slice(1)).get('taken') || '').split(',').filter(Boolean).map(Number)"
FOCUSED = """() => {
  const active = document.activeElement;
  if (active.matches('body, main')) return '';
  return active.getAttribute('aria-label') ?? active.labels?.[0]?.textContent.trim() ?? active.textContent;
}"""
PASSAGES = {card["kind"]: card for card in load_cards() if card["link"]["screen"] == "read"}
# Notes at every frame whether the text that is shown has the passage inside the box and the window.
WATCH = """(size) => {
  window.frames_seen = [];
  const look = () => {
    const box = document.querySelector('.text');
    const spans = box ? [...box.querySelectorAll('span')] : [];
    if (spans.length) {
      const from = spans.findIndex((span) => span.classList.contains('here'));
      const inside = box.getBoundingClientRect();
      const [top, bottom] = [Math.max(0, inside.top), Math.min(innerHeight, inside.bottom)];
      const last = Math.min(from + size, spans.length) - 1;
      window.frames_seen.push(from >= 0 && spans[from].getBoundingClientRect().top >= top
        && spans[last].getBoundingClientRect().bottom <= bottom);
    }
    requestAnimationFrame(look);
  };
  look();
}"""


@pytest.fixture(scope="module")
def prose() -> Session:
    return Session.open("prose", device="cpu")


@pytest.fixture(scope="module")
def translator(translators: Any) -> AlignSession:
    attentive, _, pairs = translators
    return AlignSession.open(str(attentive), str(pairs), device="cpu")


@pytest.fixture(scope="module")
def address(prose: Session, translator: AlignSession) -> Iterator[str]:
    from relmo.explorer.server import Models

    sessions = {"prose": prose, translator.name: translator}
    names = [*sessions, "prose-gru", "code", "anbn-lstm", "small"]
    with served(Models(names, lambda name: sessions.get(name) or Session.open(name, device="cpu"))) as server:
        yield f"http://127.0.0.1:{server.address[1]}/"


@pytest.fixture
def watched(browser: Any, address: str) -> Iterator[Watched]:  # noqa: F811
    watched_page = Watched(browser, address, bypass_csp=True)  # so that the checker may run in it
    watched_page.context.add_init_script(f"({LATE % DELAY})()")
    yield watched_page
    errors = [*watched_page.wrong]
    watched_page.context.close()
    assert errors == []


def drawn_ids(session: Session, count: int) -> list[int]:
    """Return the symbols that Write takes one after the other."""
    ids: list[int] = []
    params = {
        "prompt": session.answer("about", {})["prompt"],
        "temperature": "1",
        "top_k": "0",
        "top_p": "0",
        "seed": "0",
    }
    for _ in range(count):
        answer = session.answer("next", params | {"taken": ",".join(map(str, ids))})
        ids.append(answer["drawn"])
    return ids


def wait_for_focus(page: Any, name: str) -> None:
    """Wait for every answer and its render, then check the name of the focused element."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2 * DELAY)
    assert name in page.evaluate(FOCUSED)


def test_enter_pressed_fast_takes_the_symbols_that_the_model_drew(watched: Watched, prose: Session) -> None:
    expected = drawn_ids(prose, 6)
    page = watched.open("#screen=write&model=prose")
    page.wait_for_selector(".next")
    for _ in range(5):
        page.keyboard.press("Enter")
    page.keyboard.press("Backspace")
    page.wait_for_function(f"() => ({TAKEN})().length >= 4")
    page.wait_for_timeout(2 * DELAY)
    assert page.evaluate(TAKEN) == expected[:4]
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => ({TAKEN})().length >= 5")
    page.keyboard.press("Backspace")  # before the answer
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => ({TAKEN})().length >= 6")
    assert page.evaluate(TAKEN) == expected


def test_play_waits_for_every_answer(watched: Watched, prose: Session) -> None:
    expected = drawn_ids(prose, 4)
    page = watched.open("#screen=write&model=prose")
    page.wait_for_selector(".next")
    page.click("button:has-text('Play')")
    page.wait_for_function(f"() => ({TAKEN})().length >= 4")
    assert page.evaluate(TAKEN)[:4] == expected
    page.click("button:has-text('Pause')")
    page.wait_for_timeout(2 * DELAY)
    taken = page.evaluate(TAKEN)
    page.wait_for_timeout(2 * DELAY)
    assert page.evaluate(TAKEN) == taken


def test_the_slider_is_dragged_and_moved_by_keys(watched: Watched) -> None:
    page = watched.open(f"#model=prose&unit={NAMED}")
    slider = page.get_by_label("Cell index")
    slider.wait_for()
    page.wait_for_timeout(3 * DELAY)
    slider.evaluate("slider => (window.slider = slider)")
    box = slider.bounding_box()
    middle, top = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 30, top)
    page.mouse.down()
    for x in range(40, int(box["width"]) - 20, 20):
        page.mouse.move(box["x"] + x, top)
        page.wait_for_timeout(DELAY / 4)
    page.mouse.move(middle, top)
    assert page.evaluate("() => window.slider === document.activeElement")
    value = int(slider.input_value())
    assert abs(value - int(slider.get_attribute("max")) / 2) < 12
    page.mouse.up()
    wait_for_focus(page, "Cell index")
    unit = value - 1  # the slider counts from 1, addresses from 0
    assert f"unit={PREFIX}.{unit}" in page.url
    assert int(slider.input_value()) == value
    page.wait_for_selector(f".heading .address:has-text('{PREFIX}.{unit}')")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    wait_for_focus(page, "Cell index")
    assert f"unit={PREFIX}.{unit + 3}" in page.url
    page.wait_for_selector(f".heading .address:has-text('{PREFIX}.{unit + 3}')")


def drag(page: Any, slider: Any) -> float:
    """Drag a slider slowly from its left to its middle; check that it is held, and return its value."""
    slider.scroll_into_view_if_needed()
    slider.evaluate("slider => (window.slider = slider)")
    box = slider.bounding_box()
    top = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 10, top)
    page.mouse.down()
    for x in range(20, int(box["width"] / 2), 20):
        page.mouse.move(box["x"] + x, top)
        page.wait_for_timeout(DELAY / 4)
    page.mouse.move(box["x"] + box["width"] / 2, top)
    assert page.evaluate("() => window.slider === document.activeElement")
    value = float(slider.input_value())
    low, high = (float(slider.get_attribute(name)) for name in ("min", "max"))
    assert abs(value - (low + high) / 2) < (high - low) / 10
    page.mouse.up()
    return value


def test_the_temperature_is_dragged(watched: Watched) -> None:
    page = watched.open("#screen=write&model=prose")
    page.wait_for_selector(".next")
    page.wait_for_timeout(2 * DELAY)
    slider = page.get_by_label("Temperature")
    value = drag(page, slider)
    wait_for_focus(page, "Temperature")
    assert float(slider.input_value()) == value
    assert value == 1 or f"temperature={value:g}" in page.url  # 1 is the default, which the address leaves out


def test_the_threshold_is_dragged_and_its_panel_stays_open(watched: Watched) -> None:
    page = watched.open(f"#model=prose&unit={NAMED}")
    page.wait_for_selector(".contexts")
    page.wait_for_timeout(2 * DELAY)
    page.click("summary:has-text('histogram')")
    slider = page.get_by_role("slider", name="Threshold")
    value = drag(page, slider)
    wait_for_focus(page, "Threshold")
    assert slider.is_visible()
    assert float(slider.input_value()) == value
    assert "mode=on" in page.url
    assert f"threshold={value:g}"[:14] in page.url


def test_the_recurrent_weights_are_dragged_and_measured(watched: Watched) -> None:
    page = watched.open("#screen=memory&model=prose")
    page.wait_for_selector(".panel >> nth=0 >> polyline.line")
    page.wait_for_timeout(2 * DELAY)
    value = drag(page, page.get_by_label("Spectral radius"))
    page.wait_for_selector(f".panel >> nth=0 >> text=radius {value:g}")
    wait_for_focus(page, "Spectral radius")


def test_a_button_that_starts_work_has_the_focus_again_when_it_is_done(watched: Watched) -> None:
    page = watched.open("#screen=find&model=anbn-lstm")
    page.wait_for_selector(".badge")
    page.focus("button:text-is('Score every cell')")
    page.keyboard.press("Enter")
    assert page.evaluate(FOCUSED) == "Cancel"  # while the button is disabled
    page.wait_for_selector(".runner:has-text('done in')")
    wait_for_focus(page, "Score every cell")


def test_an_answer_about_another_sentence_is_dropped(watched: Watched) -> None:
    page = watched.open("#screen=meaning&model=small")
    page.wait_for_selector(".occurrences")
    page.click("button:text-is('garden')")
    page.wait_for_timeout(DELAY / 2)  # the answer is on its way
    page.fill("input[maxlength='2000']", "The bank lends money .")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(4 * DELAY)
    assert page.locator(".occurrences").count() == 0
    assert "garden" not in page.inner_text("h2.claim")
    for word in ("lends", "money", "bank"):
        page.click(f"button[aria-pressed]:text-is('{word}')")
    page.wait_for_selector(".occurrences")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(4 * DELAY)
    assert "nearest to “bank”" in page.inner_text("h2.claim")
    assert page.get_attribute("button[aria-pressed=true]", "aria-pressed") == "true"
    page.get_by_label("only occurrences").check()
    page.wait_for_selector(".runner:has-text('done in')")
    marked = page.locator(".layers .panel").first.locator("mark").all_inner_texts()
    assert {word.lower() for word in marked} == {"bank"}


def test_colours_are_those_of_the_last_unit_whatever_answer_comes_last(watched: Watched) -> None:
    page = watched.open(f"#model=prose&unit={NAMED}&mode=value")
    page.wait_for_selector(".contexts")
    page.wait_for_timeout(2 * DELAY)
    page.evaluate(f"window.delays = Array.from({{ length: 12 }}, (_, i) => {3 * DELAY} - 200 * i)")
    page.focus(".text")
    for _ in range(5):
        page.keyboard.press("]")
    page.wait_for_timeout(6 * DELAY)
    colours = "() => [...document.querySelectorAll('.text span')].map(s => s.style.backgroundColor).join()"
    painted = page.evaluate(colours)
    address = page.url
    assert f"unit={PREFIX}.{int(NUMBER) + 5}" in address
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(".contexts")
    assert page.evaluate(colours) == painted


def test_focus_stays_after_tab_next_cell_checkbox_and_bar(watched: Watched) -> None:
    page = watched.open(f"#model=prose&unit={NAMED}&screen=cell")
    page.wait_for_selector(".contexts")
    page.focus("nav.tabs button:text-is('Read')")
    page.keyboard.press("Enter")
    wait_for_focus(page, "Read")
    page.focus("[aria-label='next cell']")
    page.keyboard.press("Enter")
    page.wait_for_selector(f".heading .address:has-text('{PREFIX}.{int(NUMBER) + 1}')")
    wait_for_focus(page, "next cell")
    page.get_by_label("All gates").focus()
    page.keyboard.press("Space")
    wait_for_focus(page, "All gates")
    assert page.get_by_label("All gates").is_checked()
    page.focus("button:text-is('Pin')")
    page.keyboard.press("Enter")
    wait_for_focus(page, "Unpin")
    page.get_by_label("Colour shows").focus()
    page.keyboard.press("ArrowDown")
    wait_for_focus(page, "Colour shows")
    page.focus("nav.tabs button:text-is('Write')")
    page.keyboard.press("Enter")
    page.wait_for_selector(".next")
    wait_for_focus(page, "Write")
    page.locator(".next").nth(2).focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => ({TAKEN})().length === 1")
    wait_for_focus(page, "take ")
    assert page.evaluate("() => [...document.querySelectorAll('.next')].indexOf(document.activeElement)") == 2
    page.focus("button:has-text('Undo')")
    page.keyboard.press("Enter")  # it is disabled then
    wait_for_focus(page, "Take ")


def test_leaving_a_view_by_a_button_inside_moves_the_focus_to_the_content(watched: Watched) -> None:
    page = watched.open(f"#model=prose&unit={NAMED}")
    page.focus("button:has-text('Details')")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Run ablation")
    assert page.evaluate("() => document.activeElement.id") == "screen"


def test_nodes_of_a_beam_search_are_reached_by_tab_and_taken_by_enter(watched: Watched) -> None:
    page = watched.open("#screen=write&model=prose&how=beam&deep=4")
    page.wait_for_selector(".twig.best")
    page.focus(".beamtree .scroll")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.matches('.twig')")
    symbol = page.evaluate("() => document.activeElement.textContent[0]")
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => ({TAKEN})().length === 1")
    page.wait_for_selector(".writing .piece")
    assert page.locator(".writing .piece").count() == 1
    assert symbol in page.inner_text(".writing .piece").replace(" ", "␣")
    assert page.evaluate("() => document.activeElement.matches('.twig, #screen')")
    check(page)


def test_words_and_beams_of_align_are_reached_by_tab(watched: Watched, translator: AlignSession) -> None:
    page = watched.open(f"#model={translator.name}&source=abcd&step=3")
    page.wait_for_selector(".heat")
    page.focus(".alignment figure .scroll")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert "step=1" in page.url
    assert page.get_attribute(".alignment .sides .now", "data-row") == "1"
    wait_for_focus(page, "step 2")
    page.focus("button:text-is('beam 2')")
    page.keyboard.press("Enter")
    wait_for_focus(page, "beam 2")
    page.focus("button:text-is('Last')")
    page.keyboard.press("Enter")  # it is disabled then
    wait_for_focus(page, "Back")
    check(page)


def test_the_skip_link_is_the_first_stop_and_leads_to_the_content(watched: Watched) -> None:
    page = watched.open(f"#model=prose&unit={NAMED}")
    page.wait_for_selector(".contexts")
    address = page.url
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    assert page.evaluate("() => document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "screen"
    assert page.url == address
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.closest('main') !== null")


def test_the_gradient_is_that_of_the_last_symbol_and_says_when_it_computes(watched: Watched, prose: Session) -> None:
    page = watched.open("#screen=read&model=prose&mode=gradient")
    page.wait_for_selector(".contexts")
    page.focus(".text")
    page.keyboard.press("End")
    page.wait_for_selector(".scale:has-text('omputing')")
    page.wait_for_selector(".scale:has-text('depends on')")
    page.evaluate(f"window.delays = [{3 * DELAY}, {2 * DELAY}, {DELAY}]")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".scale:has-text('omputing')")
    page.wait_for_timeout(5 * DELAY)
    at = page.evaluate("() => document.querySelector('.text .here').i")
    symbol = prose.answer("gradient", {"text": "story", "at": str(at)})["symbol"]
    label = page.inner_text(".scale")
    assert f"character {at} " in label
    assert f"“{ {' ': '␣', chr(10): '↵'}.get(symbol, symbol) }”" in label


@pytest.mark.parametrize("viewport", [(1280, 700), (400, 900)], ids=str)
@pytest.mark.parametrize("kind", PASSAGES)
def test_a_card_opens_at_its_passage_and_shows_no_other_text_first(
    watched: Watched, kind: str, viewport: tuple[int, int]
) -> None:
    picture = PASSAGES[kind]["picture"]
    watched.page.set_viewport_size({"width": viewport[0], "height": viewport[1]})
    page = watched.open("#screen=start&model=prose")
    page.wait_for_selector(f"[data-card={kind}]")
    page.evaluate(WATCH, len(picture["symbols"]))
    page.click(f"[data-card={kind}]")
    page.wait_for_selector(".contexts")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(DELAY)
    seen = page.evaluate("() => window.frames_seen")
    assert len(seen) > 0
    assert all(seen)
    passage = "".join(picture["symbols"])
    text = page.evaluate(
        "() => { const spans = [...document.querySelectorAll('.text span')];"
        "return spans.slice(document.querySelector('.text .here').i).map((span) => span.textContent).join(''); }"
    )
    assert text.startswith(passage)

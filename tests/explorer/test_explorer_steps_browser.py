"""Equations, Write, Trace and Layers in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_explorer_browser import Watched, browser, pytestmark  # noqa: F401
from test_explorer_screens_browser import check

from relmo.analysis.units.cell_report import read_cells
from relmo.explorer.examples import EXAMPLES_DIR, get_agreement
from relmo.explorer.page import write_page
from relmo.explorer.session import Session
from support.served import served
from support.small_models import language_model


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model with a matrix memory and one gate for each of two heads."""
    folder = tmp_path_factory.mktemp("matrix") / "mlstm"
    language_model("mlstm", hidden=6, cell_options=("heads=2",)).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def address(matrix: str) -> Iterator[str]:
    from relmo.explorer.server import Models

    names = ["hello", "hello-gru", "hello-lstm", "anbn-lstm", "anbn-gru", "prose", "small", matrix]
    with served(Models(names, lambda name: Session.open(name, device="cpu"))) as server:
        yield f"http://127.0.0.1:{server.address[1]}/"


@pytest.fixture
def watched(browser: Any, address: str) -> Iterator[Watched]:  # noqa: F811
    made = Watched(browser, address, bypass_csp=True)  # so that the checker may run in it
    yield made
    wrong = [*made.wrong]
    made.context.close()
    assert wrong == []


def opened(watched: Watched, view: str) -> Any:
    """A view by its address, once it has its title."""
    watched.page.goto(f"{watched.address}#{view}")
    watched.page.wait_for_selector("h2.claim")
    return watched.page


def title(page: Any, words: str) -> None:
    """Waits for a title with these words."""
    page.wait_for_function("words => document.querySelector('h2.claim')?.textContent.includes(words)", arg=words)


def test_a_step_is_written_out_and_the_arrow_keys_go_on(watched: Watched) -> None:
    page = opened(watched, "screen=equations&model=hello&at=2")
    title(page, "reads “l” and predicts “l”")
    page.wait_for_selector("section.step >> nth=2")  # three models side by side
    assert "tanh((" in page.inner_text(".numbers >> nth=0")
    page.keyboard.press("ArrowRight")
    title(page, "reads “l” and predicts “o”")
    page.keyboard.press("ArrowRight")
    title(page, "predicts the end")
    page.keyboard.press("]")
    page.wait_for_function("() => location.hash.includes('h0.1')")
    page.wait_for_selector("h4:has-text('Unit 2')")
    check(page)


def test_a_matrix_and_the_gates_of_heads_are_written_out(watched: Watched, matrix: str) -> None:
    page = opened(watched, f"screen=equations&model={matrix}&text=sentences&at=2&unit=h0.4")
    page.wait_for_selector("h4:has-text('Unit 5')")
    terms = dict(zip(page.locator(".workedout dt").all_inner_texts(), page.locator(".workedout dd").all(), strict=True))
    for name in ("forget gate f 2 of 2", "memory C′ 2, 2, 1 of 2 × 3 × 3", "query q", "output h"):
        assert terms[name].locator("strong").inner_text().startswith("= "), name  # agrees with the network
    assert page.locator(".vector canvas").count() == 2  # C before and after the step
    rows = page.locator(".vector:has(b:text-is('query')) .boxes")
    assert [row.locator(".here").count() for row in rows.all()] == [0, 1]
    page.locator(".vector:has(b:text-is('forget gate')) .box").first.click()  # the first unit of the other head
    page.wait_for_function("() => location.hash.includes('unit=h0.0')")
    page.wait_for_selector("h4:has-text('Unit 1')")
    check(page)


def test_a_symbol_is_taken_by_its_bar_and_taken_back(watched: Watched) -> None:
    page = opened(watched, "screen=write&model=hello")
    page.click(".next >> nth=0")
    page.wait_for_function("() => document.querySelector('.writing').textContent.startsWith('he')")
    page.locator("main").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.writing').textContent.startsWith('hel')")
    page.keyboard.press("Backspace")
    page.wait_for_function("() => !document.querySelector('.writing').textContent.includes('l')")
    page.keyboard.press(" ")
    title(page, "has ended the text")
    assert page.inner_text(".writing").startswith("hello")
    check(page)


def test_a_beam_search_is_a_tree_and_a_press_takes_the_way(watched: Watched) -> None:
    page = opened(watched, "screen=write&model=prose&how=beam&deep=4")
    page.wait_for_selector(".twig.best")
    assert page.locator(".twig.best").count() == 4
    page.wait_for_selector("text=2-gram")
    page.locator(".twig.best").nth(1).click()
    page.wait_for_function("() => new URLSearchParams(location.hash.slice(1)).get('taken')?.split(',').length === 2")
    check(page)


def test_the_lstm_counts_to_a_thousand_and_the_gru_does_not(watched: Watched) -> None:
    page = opened(watched, "screen=trace&model=anbn-lstm&text=thousand")
    title(page, "The LSTM counts linearly; the GRU does not")
    assert page.locator(".traces svg.chart").count() == 2
    page.click("label:has-text('forget gate')")  # the controls are made anew
    counter = read_cells(EXAMPLES_DIR / "anbn-lstm")[0].unit
    page.wait_for_selector(f"text=forget gate f{counter.removeprefix('c')}")
    check(page)


def test_a_cell_is_traced_through_sentences_of_four_kinds(watched: Watched) -> None:
    page = opened(watched, "screen=trace&model=small")
    title(page, "higher after a plural subject")
    assert page.locator(".traces svg.chart").count() == 5
    right, kind = next(iter(get_agreement("small").values())), "nounpp singular plural"
    shares = page.locator(".rightforms tr:has-text('boy … cars') td").all_inner_texts()
    assert [text.strip() for text in shares] == [f"{right[cells][kind]:.0f} %" for cells in ("all", "without")]
    check(page)


def test_layers_are_shown_by_task(watched: Watched) -> None:
    page = opened(watched, "screen=layers&model=small")
    title(page, "first LSTM layer")
    assert page.locator(".mix").count() > 15
    check(page)


def test_a_saved_page_steps_writes_and_traces_without_a_server(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    write_page(Session.open("hello", device="cpu"), tmp_path / "hello.html")
    saved = Watched(browser, f"file://{tmp_path / 'hello.html'}")
    page = opened(saved, "screen=equations&at=1")
    page.wait_for_selector("section.step >> nth=2")
    page.keyboard.press("ArrowRight")
    title(page, "reads “l”")
    page.click("nav >> text=Write")
    page.wait_for_selector(".next")
    for _ in range(4):
        page.click("button.go")
    page.wait_for_function("() => document.querySelector('.writing').textContent.startsWith('hello')")
    page.click("nav >> text=Trace")
    page.wait_for_selector(".traces svg.chart")
    assert saved.wrong == []
    saved.context.close()

"""Memory, Experiments, Meaning and Compare in a real browser, with everything that can be given beside a model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_explorer_browser import AXE, VIOLATIONS, Watched, browser, pytestmark  # noqa: F401

from relmo.analysis.meaning.occurrences import Mix
from relmo.explorer import comparison, work
from relmo.explorer.examples import DATA
from relmo.explorer.extras import Extras
from relmo.explorer.session import Session
from relmo.models.sequence_model import untrained
from relmo.text.trees import ConlluWord
from support.served import served

SENTENCES = ("they|PRON sat|VERB on|ADP the|DET bank|NOUN", "the|DET bank|NOUN lends|VERB money|NOUN")
SENTENCES += ("you|PRON can|AUX bank|VERB on|ADP him|PRON",)
MARKUP = "<img src=x onerror=alert(1)>"


def tagged() -> list[list[ConlluWord]]:
    words = [[pair.split("|") for pair in sentence.split()] for sentence in SENTENCES] * 8
    words[0].append([MARKUP, "X"])
    return [[ConlluWord(form, form, tag, "_", "_", 0, "_", "_", "_") for form, tag in sentence] for sentence in words]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints on the way to `prose-lstm`, and minimal pairs."""
    folder = tmp_path_factory.mktemp("given")
    model: Any = Session.open("prose-lstm", device="cpu").model
    for name, share in (("epoch-1", 0.3), ("epoch-2", 0.8)):
        early = untrained(model)
        with torch.no_grad():
            for mine, end in zip(early.network.parameters(), model.network.parameters(), strict=True):
                mine.lerp_(end, share)
        early.save_pretrained(folder / "run" / name)
    (folder / "data").mkdir()
    rows = [f"condition {n},The boy {'a' * n},knows,know" for n in range(1, 9) for _ in range(3)]
    text = "\n".join(["condition,context,right,wrong", *rows])
    (folder / "data" / "verbs.csv").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def address(given: Path) -> Iterator[str]:
    from relmo.explorer.server import Models

    def opened(name: str) -> Session:
        session = Session.open(name, device="cpu")
        beside = [str(given / "run")]
        session.extras = Extras(beside, train=DATA / "alice.txt", data=given / "data", device="cpu")
        session.extras.layer_mixes = {"a tagger": [Mix("input", [0.2, 0.5, 0.3], 1.5)]}
        if name == "small":
            session.texts.set_annotated("tagged", tagged())
        return session

    with served(Models(["prose-lstm", "small"], opened)) as server:
        yield f"http://127.0.0.1:{server.address[1]}/"


@pytest.fixture
def watched(browser: Any, address: str) -> Iterator[Watched]:  # noqa: F811
    made = Watched(browser, address, bypass_csp=True)  # so that the checker may run in it
    yield made
    wrong = [*made.wrong]
    made.context.close()
    assert wrong == []


def check(page: Any) -> None:
    """That what is shown is accessible and fits, wide and narrow, in the light and in the dark."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_selector("h2")
        for width in (1280, 400):
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(AXE.read_text(encoding="utf-8"))
            assert page.evaluate(VIOLATIONS) == [], (theme, width)
            assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), (theme, width)
    page.set_viewport_size({"width": 1280, "height": 900})


def saved(browser: Any, page: Any, path: Path) -> Watched:  # noqa: F811
    """The page as it is saved, opened from disk."""
    with page.expect_download() as download:
        page.click("text=Save page")
    download.value.save_as(path)
    return Watched(browser, f"file://{path}")


def test_a_words_occurrences_are_points_with_their_context_and_can_be_walked_over(
    watched: Watched,
    browser: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    page = watched.open("#screen=meaning&model=small&sentence=we+sat+on+the+bank&position=4&same=true")
    assert page.is_checked("label:has-text('same word') input")
    page.wait_for_selector(".plane .point")  # looked up at once, since the address asks for it
    assert page.locator(".plane").count() == 3
    points = page.locator(".plane >> nth=1").locator(".point:not(.asked)")
    assert points.count() == 24
    assert page.locator(".plane >> nth=1").locator(".point2, .point1").count() == 8  # the verbs among them
    page.focus(".plane >> nth=1 >> [role=application]")
    seen = set()
    for _ in range(24):
        page.keyboard.press("ArrowRight")
        seen.add(page.inner_text(".context mark") + page.inner_text(".context").split(":")[0])
    assert len(seen) == 24  # every one of them, once
    assert page.locator(".point.here").count() == 3  # in every layer
    before = page.inner_text(".context")
    page.locator(".plane >> nth=2").locator(".point:not(.here):not(.asked) >> nth=0").hover(force=True)
    assert page.inner_text(".context") != before
    assert "All occurrences have the same vector" in page.inner_text(".plane >> nth=0")
    assert page.locator("main img").count() == 0
    texts = page.locator(".occurrences").all_inner_texts()
    assert any("bank <img src=x onerror=alert(1)>" in text for text in texts)
    check(page)
    disk = saved(browser, page, tmp_path / "page.html")
    kept = disk.open()
    kept.wait_for_selector(".plane .point")
    kept.focus(".plane >> nth=1 >> [role=application]")
    kept.keyboard.press("End")
    assert kept.inner_text(".context mark") == "bank"
    assert kept.locator("main img").count() == 0
    disk.context.close()
    assert disk.wrong == []


def test_what_layers_are_good_for_is_measured_on_tags_and_shown_of_tasks(watched: Watched) -> None:
    page = watched.open("#screen=meaning&model=small")
    page.wait_for_selector("caption:has-text('a tagger, ELMo at the input: γ = 1.500')")
    page.wait_for_selector("caption:has-text('trained on')")  # measured at once
    rows = page.locator("table:has-text('trained on') tr")
    assert rows.count() == 7
    check(page)


def test_copies_are_marked_and_the_film_has_a_picture_of_every_checkpoint(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "SAMPLE_SYMBOLS", 80)  # shorter samples are as good here
    monkeypatch.setattr(comparison, "NUM_SAMPLES", 1)
    page = watched.open("#screen=compare&model=prose-lstm&other=n-gram&train=train&text=story&seed=3")
    page.wait_for_selector("h3:has-text('Copies')")
    assert page.locator("caption:has-text('alice.txt')").count() == 1
    page.wait_for_selector(".film li")
    page.select_option("label:has-text('Feature') select", "column")
    page.click("section:has-text('Emergence') >> text=Run again")
    page.wait_for_selector(".film figcaption:has-text('how far along the line')")
    captions = page.locator(".film figcaption").all_inner_texts()
    assert [caption.split(":")[0] for caption in captions[1:]] == ["untrained", "epoch-1", "epoch-2", "prose-lstm"]
    assert "feature=column" in page.url
    texts = page.locator(".film .snippet").all_inner_texts()
    assert len(set(texts)) == 1
    options = page.locator("label:has-text('Compare with') option").all_inner_texts()
    assert {"epoch-1", "epoch-2"} <= {*options}
    check(page)


def test_singular_values_stand_beside_gradients_and_checkpoints_among_them(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, few = work.gradient_flow, {"lags": 20, "positions": 4, "jacobian_positions": 2}  # are as good here
    monkeypatch.setattr(work, "gradient_flow", lambda *given, **options: flow(*given, **(options | few)))
    page = watched.open("#screen=memory&model=prose-lstm&jacobians=true&beside=true")
    page.wait_for_selector("section:has-text('After training') .halves")
    charts = page.locator("section:has-text('After training') .halves svg.chart")
    assert [chart.get_attribute("aria-label") for chart in charts.all()] == [
        "gradient norm by lag, logarithmic",
        "largest singular value of the Jacobian by lag, logarithmic",
    ]
    for chart in charts.all():
        assert chart.locator("polyline.line").count() == 3
    check(page)
    page.click("text=Measure this model again")
    page.click("button:has-text('Cancel'):visible")
    page.wait_for_selector("text=Cancelled")


def test_a_pack_is_chosen_and_a_units_gates_are_drawn_by_condition(
    watched: Watched,
    browser: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    page = watched.open("#screen=experiments&model=prose-lstm")
    page.click("summary:has-text('Run anyway')")
    page.select_option("label:has-text('Pairs') select", "verbs.csv")
    page.click("text=Test the model again")
    page.wait_for_selector(".barchart th:has-text('condition 8')")
    assert "pack=verbs.csv" in page.url
    page.click("summary:has-text('Trace a cell')")
    page.uncheck("label:has-text('condition 1') input")
    page.check("label:has-text('condition 8') input")
    page.click("text=Trace its gates again")
    page.wait_for_selector(".cards svg.chart")
    assert page.locator(".cards svg.chart").count() == 6
    names = page.locator("section:has-text('States and gates') ul.legend li").all_inner_texts()
    assert [name.strip() for name in names] == [f"condition {n} (3)" for n in (2, 3, 4, 5, 6, 8)]
    check(page)
    disk = saved(browser, page, tmp_path / "page.html")
    kept = disk.open()
    kept.wait_for_selector(".cards svg.chart")
    assert kept.locator(".barchart th:has-text('condition 8')").count() == 1
    assert kept.locator("button.go").count() == 0
    disk.context.close()
    assert disk.wrong == []
    page.fill("label:has-text('Cell address') input", "c0.9999")
    page.click("text=Trace its gates again")
    page.wait_for_selector(".told:has-text('c0.9999'), .told:has-text('9999')")

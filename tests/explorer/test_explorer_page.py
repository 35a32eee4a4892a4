"""The exported page is one file that asks nobody; its policy names the script and the style that stand in it."""

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from relmo.cli import main
from relmo.errors import SettingError
from relmo.explorer.page import PARTS, Frame, frame, make_bundle, shell, with_bundle, write_page
from relmo.explorer.session import Session
from support.small_models import TEXT, language_model

STATIC = Path(__file__).parents[2] / "src" / "relmo" / "explorer" / "static"


@pytest.fixture
def session() -> Session:
    made = Session(language_model("lstm"), "mine")
    made.set_text("</script><b>a text</b>", TEXT)
    return made


def bundle_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="bundle">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def test_the_page_holds_all_modules_once_and_refers_to_nothing_outside() -> None:
    page = shell()
    assert {path.stem for path in STATIC.glob("*.js")} == {*PARTS}
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]', page)
    script = re.search(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    assert script is not None
    assert not re.search(r"^(import|export)\b", script.group(1), re.MULTILINE)
    digest = base64.b64encode(hashlib.sha256(script.group(1).encode()).digest()).decode()
    assert f"'sha256-{digest}'" in page
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script.group(1), re.MULTILINE)
    assert len(names) == len({*names}), [name for name in names if names.count(name) > 1]


def test_modules_ask_no_other_host_and_make_no_markup_of_text() -> None:
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), path.name
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert forbidden not in text, (path.name, forbidden)


def test_answers_in_the_bundle_are_the_sessions_and_text_stays_text(session: Session, tmp_path: Path) -> None:
    told: list[float] = []
    write_page(session, tmp_path / "page.html", told.append)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert told[-1] == 1.0
    assert page.count("</script>") == 2
    bundle = bundle_of(page)
    answers = bundle["answers"]
    assert answers["page?model=mine&page=0&text=given"] == session.answer("page", {"text": "given", "page": "0"})
    units = answers["units?layer=0&model=mine&page=0&state=f&text=given"]
    assert units == session.answer("units", {"text": "given", "page": "0", "state": "f", "layer": "0"})
    assert answers["about?model=mine"]["texts"][-1]["title"] == "</script><b>a text</b>"
    for card in answers["job:find:mine:given"]["found"]:
        assert f"overview?model=mine&text=given&unit={card['unit']}" in answers
    assert answers["job:memory:mine:given"]["networks"][0]["name"] == "mine"


def test_a_long_text_is_cut_where_the_page_would_be_too_large_and_that_is_said(session: Session) -> None:
    session.set_text("long", TEXT * (20_000 // len(TEXT)))
    whole = make_bundle(session, find=False)
    assert whole["note"] == "5 of 5 pages, with all units"

    def holds(bundle: dict[str, Any], what: str) -> list[int]:
        found = [re.search(r"\bpage=(\d+)", key) for key in bundle["answers"] if key.startswith(f"{what}?")]
        return sorted({int(match.group(1)) for match in found if match is not None})

    assert all(holds(whole, what) == [0, 1, 2, 3, 4] for what in ("page", "some", "expected", "units"))
    size = len(json.dumps(whole["answers"], ensure_ascii=False, separators=(",", ":")))
    less = make_bundle(session, find=False, max_bytes=int(0.8 * size))
    assert holds(less, "page") == [0, 1, 2, 3, 4]
    assert "all units' states on all, all gates on the first" in less["note"]
    assert less["note"].endswith("MB")
    least = make_bundle(session, find=False, max_bytes=60_000)
    assert holds(least, "page") == holds(least, "some") == [0, 1]
    assert least["note"].startswith("the first 2 of 5 pages")
    with pytest.raises(SettingError, match="page"):
        make_bundle(session, find=False, max_bytes=1000)


def test_a_notebook_gets_a_frame_with_everything_inside(session: Session) -> None:
    shown = frame(session)
    assert isinstance(shown, Frame)
    source = re.search(r'srcdoc="([^"]*)"', shown._repr_html_())
    assert source is not None
    page = html.unescape(source.group(1))
    assert page == with_bundle(shell(), make_bundle(session, find=False))
    assert "allow-same-origin" not in shown._repr_html_()


def test_the_command_line_writes_a_page_and_names_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    language_model("lstm").save_pretrained(tmp_path / "mine")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    out = tmp_path / "page.html"
    with pytest.raises(SystemExit) as ended:
        main(["explore", str(tmp_path / "mine"), str(tmp_path / "text.txt"), "--export", str(out), "--quiet"])
    assert ended.value.code == 0
    bundle = bundle_of(out.read_text(encoding="utf-8"))
    assert bundle["text"] == "given"
    wrong = {
        ("--export", str(tmp_path / "page.pdf")): ".html",
        ("--host", "0.0.0.0"): "--token",
        ("--token", "short"): "8 characters",
        ("--port", "70000"): "65535",
    }
    for given, said in wrong.items():
        with pytest.raises(SystemExit) as stopped:
            main(["explore", str(tmp_path / "mine"), *given, "--no-browser"])
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err


def test_a_model_that_cannot_be_opened_ends_the_command_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'relmo[explore]'")
    with pytest.raises(SystemExit) as stopped:
        main(["explore", str(tmp_path / "none"), "--no-browser", "--port", "0"])
    assert stopped.value.code == 2
    assert "does not exist" in capsys.readouterr().err

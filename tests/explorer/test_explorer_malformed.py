"""Whatever a client sends, it is told in one line what is wrong: never a mistake of ours, never a traceback."""

import json
import random
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from relmo.explorer.endpoints import ENDPOINTS
from relmo.explorer.session import Session
from relmo.explorer.work import JOBS
from relmo.web.guard import INTERNAL_ERROR, MAX_MESSAGE
from support.small_models import SENTENCES, TEXT, bilm, language_model

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'relmo[explore]'")
pytest.importorskip("httpx", reason="httpx is not installed: pip install 'relmo[dev]'")

from starlette.testclient import TestClient

from relmo.explorer.server import Models, make_app

pytestmark = pytest.mark.filterwarnings("ignore:.* cut to")
DEEP = json.loads("[" * 900 + "]" * 900)
WORDS = ["", " ", "0", "-1", "1e9", "9" * 5000, "٣", "\ud800", "\0", "a\nb", "nan", "c0.3", "c9.0", "c0.999999"]
WORDS += ["h0.0b", "f0.0", "x0.0", "c0.3,c0.3", ",", "given", "own-0", "../../etc/passwd", "%00", "(", "x" * 9000, "h"]
OTHERS = [None, True, -1, 0, 2, 10**400, -(10**400), 1e308, float("nan"), float("inf"), 0.5, [], {}, DEEP, [[]], [None]]
OTHERS += [["\ud800"], [{"pattern": "("}], [{"pattern": 5}], [["a", "b"]], [[0, 5, "m"]], [[0, 10**400, "m"]], {"a": 1}]
PAIRS = [["c", "the cat sat", "the cat mat"]]
WORKS: dict[str, dict[str, Any]] = {  # small work of each kind, and what else can be said of it
    "find": {"text": "given", "features": ["column"], "symbols": 100, "patterns": [], "columns": [], "marks": []},
    "change": {"text": "given", "unit": "c0.3", "how": "scale", "symbols": 60, "length": 5, "value": 1, "prompt": "a"},
    "rank": {"text": "given", "unit": "h0.3", "symbols": 60},
    "memory": {"text": "given", "lags": 5, "positions": 2, "jacobians": 0, "networks": [], "beside": True},
    "past": {"text": "given", "longest": 2, "positions": 10},
    "count": {"cells": ["gru"], "limit": 5, "steps": 50, "hidden": 2, "language": "anbn", "seeds": 1},
    "agree": {"pairs": PAIRS, "sweep": True, "per_condition": 2, "pack": "", "most": 2},
    "gates": {"pairs": PAIRS, "unit": "h0.1", "conditions": []},
    "compare": {"text": "given", "other": "untrained", "symbols": 100, "temperature": 1, "seed": 0, "train": ""},
    "emerge": {"text": "given", "feature": "column", "symbols": 100, "unit": ""},
    "mean": {"text": "given", "sentence": "the cat sat", "position": 1, "k": 2, "same_word": True},
    "tags": {"text": "given"},
}


def opened(name: str) -> Session:
    session = Session(bilm() if name == "both ways" else language_model(name), name)
    session.set_text("a text", SENTENCES if name == "both ways" else TEXT)
    return session


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = make_app(Models(["lstm", "gru", "both ways"], opened))
    with TestClient(app, base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as made:
        yield made


def post(client: TestClient, path: str, given: Any) -> Any:
    return client.post(path, content=json.dumps(given).encode())


def check(answer: Any) -> dict[str, Any]:
    """The answer, which is no mistake of ours; where it is a mistake of the client's, one short line."""
    assert answer.status_code < 500
    found = answer.json()
    if "error" in found:
        assert found["error"] != INTERNAL_ERROR
        assert len(found["error"]) <= MAX_MESSAGE
        assert "\n" not in found["error"]
    return found


def done(client: TestClient, given: Any) -> dict[str, Any]:
    """What becomes of work."""
    found = check(post(client, "/api/jobs", given))
    while found.get("state") in ("waiting", "running"):
        time.sleep(0.002)
        found = check(client.get(f"/api/jobs/{found['job']}"))
    return found


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "[::1"}, 400),
        ({"host": "["}, 400),
        ({"host": "[localhost]"}, 400),
        ({"host": ""}, 421),
        ({"origin": "http://["}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"origin": "\xff"}, 403),
        ({"sec-fetch-site": "\xff"}, 403),
    ],
)
def test_addresses_that_are_none_are_refused(client: TestClient, headers: dict[str, str], status: int) -> None:
    answer = client.get("/api/about", headers={key: value.encode("latin-1") for key, value in headers.items()})
    assert answer.status_code == status
    check(answer)


def test_cookies_and_tokens_that_are_malformed_open_nothing() -> None:
    app = make_app(Models(["lstm"], opened), token="correct horse")
    with TestClient(app, base_url="http://127.0.0.1:8321", follow_redirects=False) as client:
        for header in (b'relmo="\\777\xff', b"=;;=", b"relmo", b"relmo=" + b"x" * 5000, b"\xff\x00", b"relmo=\xff"):
            assert client.get("/", headers={"cookie": header}).status_code == 401
            assert client.get("/", headers={"authorization": b"Bearer " + header}).status_code == 401
        for query in ("token", "token=%ff", "token=%ED%A0%80", "token=&%=%zz", "&" * 2000):
            assert client.get(f"/?{query}").status_code == 401
        elsewhere = client.get("http://127.0.0.1:8321//evil.example/?token=correct+horse")
        assert (elsewhere.status_code, elsewhere.headers["location"]) == (303, "/")


@pytest.mark.parametrize("half", ['"\\ud800"', '"a\\udfff b"', '["\\ud800"]', '{"\\ud800": 1}', '"\ud800"'])
@pytest.mark.parametrize("field", ["text", "language", "model", "what", "prompt"])
def test_half_of_a_character_is_not_text(client: TestClient, half: str, field: str) -> None:
    body = f'{{"text": "the cat", "{field}": {half}}}'.encode(errors="surrogatepass")
    for path in ("/api/text", "/api/jobs"):
        answer = client.post(path, content=body)
        assert answer.status_code == 400
        assert "surrogate" in check(answer)["error"]


@pytest.mark.parametrize("what", ["strip", "cell", "values", "overview"])
@pytest.mark.parametrize("unit", ["c9.0", "c0.999999", "c9999.999999", "x0.0", "c0.0b", "%ED%A0%80", "%ff"])
def test_units_that_are_not_there_are_told(client: TestClient, what: str, unit: str) -> None:
    answer = client.get(f"/api/{what}?text=given&unit={unit}")
    assert answer.status_code == 400
    check(answer)


def test_no_question_is_a_mistake_of_ours(client: TestClient) -> None:
    rng = random.Random(1)
    for _ in range(150):
        asked = {"text": "given", "page": "0", "unit": "c0.3", "units": "c0.3", "state": "h", "layer": "0", "at": "3"}
        asked |= {"event": " ", "model": rng.choice(["lstm", "gru", "both ways"])}
        for name in rng.sample([*asked], rng.choice([0, 1, 1, 2, 3])):
            asked[name] = rng.choice(WORDS)
        query = urlencode(asked, errors="surrogatepass") + rng.choice(
            ["", "", "&%", "&%zz=%", "&unit=%ED%A0%80", ";=&&"]
        )
        check(client.get(f"/api/{rng.choice([*ENDPOINTS])}?{query}"))


def test_no_text_is_a_mistake_of_ours(client: TestClient) -> None:
    for name, value in ((name, value) for name in ("text", "language", "model") for value in WORDS + OTHERS):
        found = check(post(client, "/api/text", {"text": "the cat", "model": "both ways", name: value}))
        if "text" in found:
            for what in ("page", "expected", "overview", "gradient"):
                asked = {"text": found["text"], "unit": "c0.3", "model": "both ways"}
                check(client.get(f"/api/{what}", params=asked))


def test_no_work_is_a_mistake_of_ours(client: TestClient) -> None:
    assert {*WORKS} == {*JOBS}
    rng = random.Random(2)
    for number in range(120):
        what = [*WORKS][number % len(WORKS)]
        given = {"what": what, "model": rng.choice(["lstm", "gru", "both ways"]), **WORKS[what]}
        for name in rng.sample([*given], rng.choice([1, 1, 2])):
            given[name] = rng.choice(WORDS + OTHERS)
        done(client, given)

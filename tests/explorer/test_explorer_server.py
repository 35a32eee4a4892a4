"""The server answers its own page on its own machine, and nobody else; slow, large and wrong requests harm no one."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from relmo.cli.serve import make_url
from relmo.errors import ModelError, SettingError
from relmo.explorer.session import Session
from support.small_models import TEXT, language_model

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'relmo[explore]'")
pytest.importorskip("httpx", reason="httpx is not installed: pip install 'relmo[dev]'")

from starlette.testclient import TestClient

from relmo.explorer.server import MAX_WAITING, Jobs, Models, Progress, make_app
from relmo.web.guard import INTERNAL_ERROR, check_address

HERE = "http://127.0.0.1:8321"
VALUES = "/api/values?text=given&page=0&unit=c0.3"


def opened(name: str) -> Session:
    session = Session(language_model("lstm"), name)
    session.set_text("a text", TEXT)
    return session


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(make_app(Models(["mine"], opened)), base_url=HERE) as made:
        yield made


def finished(client: TestClient, job: str) -> dict[str, Any]:
    while (state := client.get(f"/api/jobs/{job}").json())["state"] in ("waiting", "running"):
        time.sleep(0.01)
    return state


def test_the_page_and_its_parts_are_served_with_a_policy_that_lets_nothing_else_in(client: TestClient) -> None:
    page = client.get("/")
    assert "static/app.js" in page.text
    for path in ("/", "/static/app.js", "/static/style.css", VALUES, "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/static/app.js").headers["content-type"].startswith("text/javascript")
    for path in ("/static/../server.py", "/static/%2e%2e%2fserver.py", "/etc/passwd"):
        assert client.get(path).status_code == 404


def test_answers_are_those_of_the_session(client: TestClient) -> None:
    assert client.get(VALUES).json() == opened("mine").answer("values", {"text": "given", "page": "0", "unit": "c0.3"})
    assert client.get("/api/about").json()["name"] == "mine"


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8321"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ],
)
def test_whoever_comes_from_elsewhere_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.get(VALUES, headers=headers)
    assert answer.status_code in (403, 421)
    assert "values" not in answer.json()
    assert client.post("/api/text", json={"text": "a cat"}, headers=headers).status_code in (403, 421)


def test_its_own_page_may_ask_by_any_name_of_this_machine() -> None:
    for host in ("localhost:8321", "127.0.0.1:8321", "[::1]:8321"):
        with TestClient(make_app(Models(["mine"], opened)), base_url=f"http://{host}") as client:
            assert client.get(VALUES, headers={"origin": f"http://{host}"}).status_code == 200


def test_with_a_token_nothing_is_served_without_it_and_the_link_becomes_a_cookie() -> None:
    app = make_app(Models(["mine"], opened), token="correct horse", hosts=None)
    with TestClient(app, base_url="http://10.1.2.3:8321", follow_redirects=False) as client:
        for path in ("/", "/static/app.js", VALUES, "/?token=wrong", "/api/shell"):
            assert client.get(path).status_code == 401
        assert client.post("/api/text", json={"text": "a cat"}).status_code == 401
        assert client.get(VALUES, headers={"authorization": "Bearer correct horse"}).status_code == 200
        assert client.get(VALUES, headers={"authorization": "Bearer correct hors"}).status_code == 401
        first = client.get("/?token=correct+horse")
        assert (first.status_code, first.headers["location"]) == (303, "/")
        cookie = first.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert client.get(VALUES).status_code == 200  # with the cookie


def test_an_address_that_others_reach_needs_a_token() -> None:
    assert check_address("127.0.0.1", None) is None
    for host, token in (
        ("0.0.0.0", None),
        ("192.0.2.7", None),
        ("::1", "short"),
        ("::1", "пароль-пароль"),
        ("::1", "a" * 9 + "\n"),
    ):
        with pytest.raises(SettingError, match="--token"):
            check_address(host, token)
    assert check_address("0.0.0.0", "long enough") == "long enough"


def test_the_link_that_is_printed_opens_the_page_whatever_signs_the_token_has() -> None:
    token = "a&b=c d+e%f"
    assert make_url("::1", 8321, None) == "http://[::1]:8321/"
    with TestClient(make_app(Models(["mine"], opened), token=token), base_url=HERE) as client:
        assert client.get(make_url("127.0.0.1", 8321, token)).status_code == 200


def test_mistakes_are_one_line_and_status_400(client: TestClient) -> None:
    wrong = [
        client.get("/api/values?text=given&page=0&unit=c0.99"),
        client.get("/api/nothing"),
        client.get("/api/about?model=../../etc"),
        client.post("/api/text", content=b"{"),
        client.post("/api/text", content=b"[" * 100_000),
        client.post("/api/text", json=["a"]),
        client.post("/api/text", json={"text": 5}),
        client.post("/api/text", json={"text": "  "}),
        client.post("/api/jobs", json={"what": "harm"}),
        client.post("/api/jobs", json={"what": ["find"]}),
        client.get("/api/jobs/none"),
    ]
    for answer in wrong:
        assert answer.status_code == 400
        assert "\n" not in answer.json()["error"]
        assert INTERNAL_ERROR not in answer.json()["error"]


def test_a_mistake_of_ours_is_logged_and_tells_the_client_nothing(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Session, "answer", lambda *given: 1 / 0)
    answer = client.get("/api/about")
    assert answer.status_code == 500
    assert "division" not in answer.text
    assert "ZeroDivisionError" in caplog.text


def test_a_request_that_is_too_large_is_refused() -> None:
    with TestClient(make_app(Models(["mine"], opened), max_bytes=1000), base_url=HERE) as client:
        assert client.post("/api/text", json={"text": "cat " * 300}).status_code == 413
        assert client.post("/api/text", json={"text": "cat " * 100}).status_code == 200


def test_texts_are_data(client: TestClient) -> None:
    name = client.post("/api/text", json={"text": "<script>alert(1)</script>"}).json()["text"]
    answer = client.get(f"/api/page?text={name}&page=0")
    assert answer.headers["content-type"] == "application/json"
    assert "".join(answer.json()["symbols"]) == "<script>alert(1)</script>"


def test_work_is_done_in_the_background_while_others_are_answered(client: TestClient) -> None:
    job = client.post(
        "/api/jobs", json={"what": "find", "text": "given", "features": ["column"], "symbols": 300}
    ).json()
    assert job["state"] in ("waiting", "running")
    assert client.get(VALUES).status_code == 200
    done = finished(client, job["job"])
    assert done["state"] == "done"
    assert done["result"]["features"] == ["column"]
    failed = client.post("/api/jobs", json={"what": "find", "text": "given", "features": ["no such"]}).json()
    assert "no such" in finished(client, failed["job"])["error"]


def test_work_is_cancelled_where_it_stands_and_what_waits_never_begins() -> None:
    jobs, begun, may_go = Jobs(), threading.Event(), threading.Event()

    def long(progress: Progress) -> dict[str, Any]:
        begun.set()
        for step in range(10_000):
            progress(step / 10_000)
            may_go.wait(0.001)
        return {}

    first, second = jobs.add(long), jobs.add(long)
    assert begun.wait(600)
    jobs.cancel(second.name)
    assert second.state == "cancelled"
    assert first.state == "running"
    jobs.cancel(first.name)
    third = jobs.add(lambda progress: {"done": 3})
    while third.state != "done":
        time.sleep(0.01)
    assert (first.state, second.state) == ("cancelled", "cancelled")
    assert third.result == {"done": 3}
    assert second.share == 0
    jobs.close()


def test_there_is_an_end_to_what_can_wait_and_old_results_are_let_go() -> None:
    jobs, gate = Jobs(), threading.Event()
    held = [jobs.add(lambda progress: {"waited": gate.wait(600)}) for _ in range(MAX_WAITING)]
    with pytest.raises(SettingError, match="Too many"):
        jobs.add(lambda progress: {})
    gate.set()
    while any(job.state != "done" for job in held):
        time.sleep(0.01)
    for _ in range(60):
        job = jobs.add(lambda progress: {})
        while job.state != "done":
            time.sleep(0.001)
    assert len(jobs.jobs) <= 33
    with pytest.raises(SettingError, match="expired"):
        jobs.get(held[0].name)
    jobs.close()


def test_a_failure_in_work_is_told_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Jobs()

    def wrong(progress: Progress) -> dict[str, Any]:
        raise ZeroDivisionError("secret")

    bad, good = jobs.add(wrong), jobs.add(lambda progress: {"fine": True})
    while good.state != "done":
        time.sleep(0.01)
    assert bad.state == "failed"
    assert "secret" not in bad.error
    assert "secret" in caplog.text
    jobs.close()


def test_only_models_that_were_offered_are_opened_each_once() -> None:
    calls = []

    def count(name: str) -> Session:
        calls.append(name)
        return opened(name)

    models = Models(["mine", "other"], count)
    assert models.get("") is models.get("mine")
    assert models.get("other").name == "other"
    assert models.worker("other") is models.worker("other")
    with pytest.raises(ModelError, match="Unknown model"):
        models.get("/etc")
    assert calls == ["mine", "other"]

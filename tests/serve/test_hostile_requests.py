"""Requests that cost more than they seem to, clients that leave, and a server that is told to end."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import relmo
from relmo.errors import ComputationCancelled, SettingError, cancellable, check_cancelled
from relmo.settings.options import ServeLimits
from relmo.web.guard import check_address
from support.small_models import bilm, language_model

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'relmo[serve]'")
pytest.importorskip("httpx", reason="httpx is not installed: pip install 'relmo[dev]'")

import httpx

from benchmarks.explorer import running
from relmo.serve.endpoints import make_endpoints
from relmo.serve.server import make_app
from relmo.serve.workers import Batcher, ParsedRequest

TIMEOUT = 600


@contextmanager
def serve(models: dict[str, Any], token: str | None = None, **limits: Any) -> Iterator[Any]:
    """Serve models on a free port; yield a client."""
    app = make_app(models, ServeLimits(**limits), token=token)
    with running(app, seconds=TIMEOUT) as server, httpx.Client(timeout=TIMEOUT) as client:
        client.base_url = "http://{}:{}".format(*server.address)
        client.address = server.address
        yield client


@pytest.fixture(scope="module")
def translator() -> Any:
    return relmo.load("english-french", device="cpu")


@pytest.fixture(scope="module")
def client(translator: Any) -> Iterator[Any]:
    with serve({"words": bilm(), "letters": language_model(), "translator": translator}) as client:
        yield client


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("predict", {"inputs": ["x" * 20_000]}),
        ("predict", {"inputs": ["x" * 300]}),
        ("predict", {"inputs": ["a b"] * 100}),
        ("embed", {"sentences": ["語" * 8000]}),
        ("embed", {"sentences": [""] * 3000}),
        ("surprisal", {"sentences": ["a" * 3000], "model": "letters"}),
        ("surprisal", {"sentences": [["a" * 3000]], "model": "letters"}),
        ("generate", {"prompt": "a" * 3000, "limit": 3}),
        ("generate", {"limit": 500, "samples": 5}),
    ],
)
def test_cost_is_counted_in_the_units_of_the_model(client: Any, verb: str, body: dict[str, Any]) -> None:
    response = client.post(f"/{verb}", json=body)
    assert response.status_code == 413
    assert "units" in response.json()["error"]


def test_output_of_seq2seq_is_bounded(translator: Any) -> None:
    endpoint = make_endpoints("translator", translator, ServeLimits(max_output=3))["predict"]
    request = endpoint.parse(b'{"inputs": ["The cat is black and the dog is white."]}')
    ((record,),) = endpoint.compute(request.options, [request.items])
    assert len(record["candidates"][0]["units"]) <= 3
    assert translator.max_target is None


def test_predictions_of_seq2seq_have_their_attention(client: Any, translator: Any) -> None:
    text = "The cat is black."
    (record,) = client.post("/predict", json={"inputs": [text]}).json()["results"]
    expected = translator.with_search(attention=True).predict([text])[0].to_dict()
    assert record["candidates"][0]["attention"] == expected["candidates"][0]["attention"]
    assert record["text"] == expected["text"]


def test_a_search_ends_when_nobody_waits_for_it(translator: Any) -> None:
    with cancellable(lambda: True), pytest.raises(ComputationCancelled):
        translator.predict(["The cat is black."])
    assert translator.predict(["The cat is black."])


def test_a_computation_is_cancelled_when_all_its_clients_have_gone() -> None:
    async def run() -> None:
        started, cancelled = threading.Event(), threading.Event()

        def compute(options: Any, requests: Any) -> list[list[Any]]:
            started.set()
            try:
                while True:
                    check_cancelled()
                    time.sleep(0.001)
            except ComputationCancelled:
                cancelled.set()
                raise

        batcher = Batcher(compute, max_cost=10)
        job = batcher.submit(ParsedRequest([1], None, 1))
        assert await asyncio.to_thread(started.wait, TIMEOUT)
        assert not job.released.done()
        batcher.cancel(job)
        assert await asyncio.to_thread(cancelled.wait, TIMEOUT)
        await job.released
        batcher.close()

    asyncio.run(run())


class Stuck:
    """Task whose first computation lasts until it is released."""

    kind = "stuck"
    input_type, line_pattern = list[str], None

    def __init__(self) -> None:
        self.started, self.release = threading.Event(), threading.Event()

    def read_line(self, line: str) -> str:
        return line

    def make_example(self, words: list[str]) -> str:
        return " ".join(words)

    def with_full_records(self) -> "Stuck":
        return self

    def workload(self, example: str) -> tuple[int, int]:
        return len(example), 0

    def predict_examples(self, examples: list[str]) -> Iterator[Any]:
        self.started.set()
        self.release.wait()
        yield from ()


def gauges(client: Any) -> dict[str, float]:
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith("relmo_requests_")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def send_predict(address: tuple[str, int]) -> socket.socket:
    body = b'{"inputs": ["a"]}'
    connection = socket.create_connection(address)
    connection.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    return connection


def test_abandoned_requests_leave_the_queue() -> None:
    model = Stuck()
    with serve({"stuck": model}, queue=8) as client:
        first = send_predict(client.address)
        assert model.started.wait(TIMEOUT)
        for _ in range(5):
            connections = [send_predict(client.address) for _ in range(7)]
            while gauges(client)["relmo_requests_waiting"] < 7:
                time.sleep(0.01)
            assert client.post("/predict", json={"inputs": ["a"]}).status_code == 503
            for connection in connections:
                connection.close()
            while gauges(client)["relmo_requests_waiting"] > 0:
                time.sleep(0.01)
        first.close()
        gone = 'relmo_requests_total{verb="predict",model="stuck",status="499"}'
        while gauges(client).get(gone) != 36:
            time.sleep(0.01)
        assert gauges(client)["relmo_requests_inside"] == 1  # the computation that still runs
        model.release.set()
        while gauges(client)["relmo_requests_inside"] > 0:
            time.sleep(0.01)


def test_a_text_that_fails_does_not_harm_those_that_grow_with_it() -> None:
    model = language_model()
    start_samples = model.start_samples

    def failing(prompt: str, **options: Any) -> Any:
        texts = start_samples(prompt, **options)
        if prompt == "mat":
            texts.draw = lambda: 1 / 0
        return texts

    model.start_samples = failing  # type: ignore[method-assign]
    with serve({"letters": model}) as client:

        async def ask_all() -> list[Any]:
            async with httpx.AsyncClient(base_url=client.base_url, timeout=TIMEOUT) as many:
                bodies = [{"prompt": prompt, "limit": 40, "stream": False} for prompt in ("cat", "mat", "sat")]
                return await asyncio.gather(*(many.post("/generate", json=body) for body in bodies))

        assert [response.status_code for response in asyncio.run(ask_all())] == [200, 500, 200]


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("embed", {"sentences": ["a"]}),
    ("embed", {"sentences": []}),
    ("embed", {"sentences": ["a"], "model": None}),
    ("embed", {"sentences": ["a"], "layers": 2}),
    ("embed", {"sentences": ["a"], "layers": 3}),
    ("embed", {"sentences": ["a"], "layers": None}),
    ("predict", {"inputs": []}),
    ("predict", {"inputs": ["a"]}),
    ("predict", {"inputs": [["a", 5]]}),
    ("predict", {"inputs": ["a"], "tokenizer": "words"}),
    ("surprisal", {"sentences": ["a"], "model": "words", "space": "after"}),
    ("surprisal", {"sentences": ["a"], "model": "letters", "space": "after"}),
    ("surprisal", {"sentences": ["a"], "model": "letters", "direction": "forward"}),
    ("surprisal", {"sentences": ["a"], "direction": "forward"}),
    ("generate", {}),
    ("generate", {"top_p": 0}),
    ("generate", {"top_p": 1}),
    ("generate", {"top_k": 0}),
    ("generate", {"samples": 65, "limit": 1}),
    ("generate", {"seed": 1 << 62, "limit": 1}),
    ("generate", {"seed": (1 << 62) + 1, "limit": 1}),
    ("generate", {"model": "words"}),
]


@pytest.mark.parametrize(("verb", "body"), BODIES)
def test_the_schema_accepts_what_the_server_accepts(client: Any, verb: str, body: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    operation = client.get("/openapi.json").json()["paths"][f"/{verb}"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    is_valid = jsonschema.Draft202012Validator(schema).is_valid(body)
    assert client.post(f"/{verb}", json=body).status_code == (200 if is_valid else 400)


def exchange(address: tuple[str, int], data: bytes) -> tuple[int, str, bytes]:
    """Send bytes; return the status, head and body of the response."""
    with socket.create_connection(address) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        response = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), body


def test_malformed_http_is_answered_in_json(client: Any) -> None:
    for data in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n"):
        status, head, body = exchange(client.address, data)
        assert status == 400
        assert "application/json" in head
        assert json.loads(body)["error"]


def test_two_host_headers_are_refused(client: Any) -> None:
    request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n%bconnection: close\r\n\r\n"
    assert exchange(client.address, request % b"")[0] == 200
    assert exchange(client.address, request % b"host: localhost\r\n")[0] == 400


def test_head_is_get_without_its_body(client: Any) -> None:
    response = client.head("/health")
    assert (response.status_code, response.content) == (200, b"")
    assert "HEAD" in client.post("/health").headers["allow"]


def test_the_scheme_of_the_token_is_case_insensitive() -> None:
    with serve({"words": bilm()}, token="correct horse") as client:
        for scheme, status in (("Bearer", 200), ("bearer", 200), ("BEARER", 200), ("Basic", 401)):
            headers = {"authorization": f"{scheme} correct horse"}
            assert client.get("/models", headers=headers).status_code == status


@pytest.mark.parametrize("token", [" " * 12, " correct horse", "correct horse "])
def test_a_token_that_headers_do_not_keep_is_refused(token: str) -> None:
    with pytest.raises(SettingError, match="--token"):
        check_address("127.0.0.1", token)


SERVER = """
import sys, threading
sys.path[:0] = {paths!r}
from test_hostile_requests import Stuck
import relmo.loading
from relmo.cli import main

relmo.loading.load = lambda *_, **__: Stuck()
main(["serve", "stuck", "--port", "0", "--quiet", "--grace", "1"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["starting", "idle", "computing", "waiting", "abandoned", "half a request"])
def test_sigterm_ends_the_server_within_its_grace(state: str) -> None:
    command = [sys.executable, "-c", SERVER.format(paths=sys.path)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    if state == "starting":
        server.send_signal(signal.SIGTERM)
    else:
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    connections = []
    if state == "half a request":
        connections.append(socket.create_connection(("127.0.0.1", port)))
        connections[0].sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
    elif state not in ("starting", "idle"):
        connections += [send_predict(("127.0.0.1", port)) for _ in range(3 if state == "waiting" else 1)]
        while f"relmo_requests_inside {len(connections)}" not in httpx.get(f"http://127.0.0.1:{port}/metrics").text:
            time.sleep(0.01)
    if state == "abandoned":
        connections.pop().close()
    if state != "starting":
        server.send_signal(signal.SIGTERM)
    for connection in connections:
        response = b"".join(iter(lambda connection=connection: connection.recv(65536), b""))
        assert b" 503 " in response
        assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]
    _, errors = server.communicate(timeout=TIMEOUT)
    assert server.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_sigterm_ends_the_server_while_texts_grow(stream: bool) -> None:
    options = ["--port", "0", "--quiet", "--grace", "1", "--max-words", "10000000", "--device", "cpu"]
    command = [sys.executable, "-m", "relmo", "serve", "prose", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    body = {"prompt": "The ", "limit": 9_000_000, "temperature": 0, "stream": stream}  # greedily, it repeats itself
    with httpx.Client(base_url=address, timeout=TIMEOUT) as client:
        if not stream:  # nothing is sent before the text has ended
            threading.Timer(1, server.send_signal, [signal.SIGTERM]).start()
        with client.stream("POST", "/generate", json=body) as response:
            lines = response.iter_lines()
            if stream:
                assert "added" in json.loads(next(lines))
                server.send_signal(signal.SIGTERM)
            *_, last = lines
    end_time = time.monotonic()
    _, errors = server.communicate(timeout=TIMEOUT)
    assert time.monotonic() - end_time < 60  # a second after the grace, on an idle machine
    assert response.status_code == (200 if stream else 503)
    assert json.loads(last)["error"]
    assert server.returncode == 0
    assert "Traceback" not in errors

"""Clients that send half a request, or nothing, or do not read, lose their connection; others are answered."""

import json
import logging
import random
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from support.small_models import TEXT, language_model

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'relmo[explore]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'relmo[explore]'")

from relmo.explorer.server import Models
from relmo.explorer.session import Session
from support.served import PATIENCE, served

HEAD = b"POST /api/text HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
ABOUT = b"GET /api/about HTTP/1.1\r\nhost: localhost\r\n\r\n"
HALVES = {
    "nothing": b"",
    "half a line": b"GET / HT",
    "half a head": HEAD,
    "half a body": HEAD + b"content-length: 1000\r\n\r\n{",
    "half a chunk": HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nab",
    "half a second request": ABOUT + b"GET /api",
}


def opened(name: str) -> Session:
    session = Session(language_model("lstm"), name)
    session.set_text("a text", TEXT)
    return session


def models() -> Models:
    return Models(["mine"], opened)


def connected(server: Any, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(server.address)
    client.settimeout(PATIENCE)
    with suppress(ConnectionError):  # ended already
        client.sendall(sent)
    return client


def until_closed(client: socket.socket) -> bytes:
    """All that comes before the connection ends."""
    got = b""
    with suppress(ConnectionError):
        while part := client.recv(1 << 16):
            got += part
    return got


def answer(server: Any) -> bytes:
    """The first part of an answer, which has its status."""
    with connected(server, ABOUT) as client:
        return client.recv(1 << 16)


@pytest.mark.parametrize("half", HALVES)
def test_half_a_request_is_not_waited_for_for_ever(half: str) -> None:
    with served(models(), seconds=0.2) as server, connected(server, HALVES[half]) as client:
        assert b"HTTP/1.1 5" not in until_closed(client)


def test_a_request_that_comes_byte_by_byte_is_not_waited_for_either() -> None:
    def send() -> None:
        for _ in range(10_000):
            client.sendall(b"x")
            time.sleep(0.01)

    with (
        served(models(), seconds=0.2) as server,
        connected(server, HEAD + b"x: ") as client,
        pytest.raises(ConnectionError),
    ):
        send()


def test_a_body_that_does_not_come_in_time_is_told_so() -> None:
    with served(models(), body=0.1) as server, connected(server, HALVES["half a body"]) as client:
        assert b" 408 " in client.recv(1000)


@pytest.mark.slow
def test_a_client_that_does_not_read_its_answers_loses_its_connection() -> None:
    script = b"GET /static/read.js HTTP/1.1\r\nhost: localhost\r\n\r\n"

    def ask() -> None:
        while True:  # until the answers fill all buffers, and then the questions do
            deaf.sendall(script * 1000)

    with served(models(), seconds=0.2) as server, connected(server) as deaf, pytest.raises(ConnectionError):
        ask()


def test_answers_are_sent_at_once() -> None:
    with served(models()) as server, connected(server, ABOUT) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        (connection,) = server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_half_sent_requests_hold_up_nobody() -> None:
    with served(models()) as server:
        slow = [connected(server, part) for part in HALVES.values() for _ in range(10)]
        connected(server, HALVES["half a body"]).close()
        assert answer(server).startswith(b"HTTP/1.1 200")
        for client in slow:
            client.close()


def test_clients_that_do_not_read_their_answers_hold_up_nobody() -> None:
    ask = b"GET /api/units?text=given&page=0&state=c HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with served(models()) as server:
        deaf = [connected(server, ask * 50) for _ in range(30)]
        ask = b"GET /api/values?text=given&page=0&unit=c0.3 HTTP/1.0\r\nhost: localhost\r\n\r\n"
        got = until_closed(connected(server, ask))
        assert len(json.loads(got.partition(b"\r\n\r\n")[2])["values"]) == len(TEXT)
        for client in deaf:
            client.close()


def test_of_too_many_connections_those_that_wait_longest_are_let_go() -> None:
    with served(models(), most=10) as server:
        idle = [connected(server) for _ in range(40)]
        for client in idle[:30]:
            assert until_closed(client) == b""
        assert answer(server).startswith(b"HTTP/1.1 200")  # for which one more has gone
        idle[-1].sendall(ABOUT)
        assert idle[-1].recv(1000).startswith(b"HTTP/1.1 200")
        for client in idle:
            client.close()


def test_a_client_that_waits_for_its_answer_is_not_let_go() -> None:
    begun, may_go = threading.Event(), threading.Event()

    def slowly(name: str) -> Session:
        begun.set()
        may_go.wait(PATIENCE)
        return opened(name)

    with served(Models(["mine"], slowly), most=10) as server, connected(server, ABOUT) as client:
        assert begun.wait(PATIENCE)
        idle = [connected(server) for _ in range(40)]
        for each in idle[:30]:
            assert until_closed(each) == b""
        looked = threading.Event()
        for connection in [*server.server_state.connections]:
            for look in (connection.check, connection.check, looked.set):
                connection.loop.call_soon_threadsafe(look)
        assert looked.wait(PATIENCE)
        may_go.set()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        for each in idle:
            assert until_closed(each) == b""


def mutated(rng: random.Random) -> bytes:
    """A request with something wrong in it, or several in one piece."""
    heads = [b"host: [::1", b"origin: http://[", b"origin: \xff", b'cookie: relmo="\\777\xff;=;;', b"bad", b": none"]
    heads += [b" folded", b"x: \0", b"y: " + b"z" * 20_000, b"content-length: -1", b"content-length: 1" + b"0" * 30]
    heads += [b"content-length: 5", b"transfer-encoding: chunked", b"transfer-encoding: gzip", b"host: b"]
    heads += [b"expect: 100-continue", b"connection: upgrade\r\nupgrade: websocket", b"authorization: Bearer \xff"]
    lines = [
        b"GET / HTTP/1.1",
        b"HEAD / HTTP/1.1",
        b"POST /api/text HTTP/1.1",
        b"CONNECT a:1 HTTP/1.1",
        b"G\xffT / HTTP/1.1",
    ]
    lines += [
        b"GET /api/%ED%A0%80?text=%ED%A0%80&unit=%ff HTTP/1.1",
        b"GET * HTTP/9.9",
        b"GET http://[ HTTP/1.1",
        b"\0\0",
    ]
    bodies = [
        b"",
        b"{}",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"zz\r\n",
        b"5\r\nhelloXX",
        b"f" * 30 + b"\r\n",
        b'{"text":"\\ud800"}',
    ]
    found = b""
    for _ in range(rng.choice([1, 1, 2, 3])):
        chosen = [b"host: localhost"] * (rng.random() < 0.9) + rng.sample(heads, rng.choice([0, 1, 1, 2]))
        found += b"\r\n".join([rng.choice(lines), *chosen, b"", rng.choice(bodies)])
    return found


def test_no_malformed_request_is_a_mistake_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(5)
    with served(models(), seconds=0.2, body=0.2) as server:
        logging.getLogger("uvicorn.error").addHandler(caplog.handler)
        for _ in range(3):
            requests = [mutated(rng) for _ in range(80)]
            for client in [connected(server, request) for request in requests]:
                assert b"HTTP/1.1 5" not in until_closed(client)
                client.close()
    assert caplog.text == ""

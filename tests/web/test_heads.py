"""Requests as they come over a socket: what has no end is refused, whoever reads it, and a body may come in crumbs."""

import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'relmo[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'relmo[serve]'")

from benchmarks.explorer import running
from relmo.web.guard import Guard

START = b"POST / HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"
LONG = b"a" * 300_000
WITHOUT_HTTPTOOLS = """
import sys
sys.modules["httptools"] = None
sys.path.insert(0, {folder!r})
from test_heads import *
import relmo.web.connections
assert "uvicorn.protocols.http.h11_impl" in sys.modules
assert asked(START + b"content-length: 3\\r\\n\\r\\nabc").endswith(b"3")
assert asked(START + b"x: " + LONG).startswith(b"HTTP/1.1 400 ")
"""


async def counting(scope: Any, receive: Any, send: Any) -> None:
    """Answers with how many bytes the body has."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    found = str(size).encode()
    head = [(b"content-length", str(len(found)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": found})


def asked(request: bytes) -> bytes:
    """All that a server answers, before it closes the connection."""
    got = b""
    guarded = Guard(counting, token=None, hosts=None, headers={})
    with running(guarded, seconds=60) as server, socket.create_connection(server.address, timeout=30) as client:
        with suppress(ConnectionError):  # it may close before all is sent
            client.sendall(request)
        with suppress(ConnectionError):
            while part := client.recv(1 << 16):
                got += part
    return got


@pytest.mark.parametrize("request_", [START + b"x: " + LONG, b"GET /" + LONG, CHUNKED + b"0\r\nx: " + LONG])
def test_a_head_without_end_is_refused_before_it_is_read(request_: bytes) -> None:
    assert asked(request_).partition(b"\r\n")[0] in (b"HTTP/1.1 400 Bad Request", b"")


def test_a_long_body_is_read_whatever_its_pieces() -> None:
    assert asked(START + b"content-length: %d\r\n\r\n" % len(LONG) + LONG).endswith(b"\r\n\r\n300000")
    assert asked(CHUNKED + b"1\r\na\r\n" * 50_000 + b"0\r\n\r\n").endswith(b"\r\n\r\n50000")


def test_the_server_does_without_httptools() -> None:
    code = WITHOUT_HTTPTOOLS.format(folder=str(__file__).rpartition("/")[0])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""Connections of a server: their maximum number, and the time that a client may be idle.

uvicorn waits forever for the rest of a request, and for a client that does not read. Here every connection is checked
at intervals and closed if the client has made no progress since the last check: a complete request head, the end of a
body, or reading a part of a response. Single bytes of a request do not count, so that a slow client cannot hold on with
them. If there are too many connections, those that have been idle longest are closed.

Requests are parsed by httptools if it is installed, which takes a third off the time that a request needs outside of
its model, and by h11 otherwise.
"""

import asyncio
import json
import socket
from functools import partial
from typing import Any

import uvicorn

from relmo.errors import SettingError
from relmo.web.guard import SECONDS

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol

    HAS_HTTPTOOLS = True
except ModuleNotFoundError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol  # type: ignore[assignment]

    HAS_HTTPTOOLS = False

MAX_CONNECTIONS = 100
MAX_HEAD_BYTES = 1 << 16  # as h11 has it; httptools has no limit of its own for heads and trailers
MIN_FLUSH_BYTES = 1 << 14  # below which writes are collected
BACKLOG = 128  # connections that wait to be accepted
BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
)


class BufferedTransport:
    """Transport that joins the small writes of one turn of the event loop: head and body in one packet."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self.transport, self.loop = transport, loop
        self.buffer: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, content: bytes) -> None:
        """Send content at the end of this turn, or at once if it is large."""
        if not self.buffer:
            self.loop.call_soon(self.flush)
        self.buffer.append(content)
        if len(content) >= MIN_FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the buffer."""
        if self.buffer and not self.transport.is_closing():
            self.transport.write(b"".join(self.buffer))
        self.buffer = []

    def close(self) -> None:
        """Send the buffer and close the connection."""
        self.flush()
        self.transport.close()

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes."""
        return self.transport.get_write_buffer_size() + sum(map(len, self.buffer))


class Connection(Protocol):
    """Connection that is closed when its client makes no progress, or when the head of a request has no end."""

    def __init__(self, *args: Any, seconds: float, max_connections: int, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.seconds, self.max_connections = seconds, max_connections
        self.last_progress: Any = None
        self.idle_since = self.loop.time()
        self.timer: asyncio.TimerHandle | None = None
        self.head_bytes = 0  # received since a request began, or since the last part of its body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start checking the connection; close idle ones if there are too many."""
        super().connection_made(BufferedTransport(transport, self.loop))  # type: ignore[arg-type]
        self.last_progress = self._progress()
        self.timer = self.loop.call_later(self.seconds, self.check)
        if len(self.connections) <= self.max_connections:
            return
        alive = [connection for connection in self.connections if not connection.transport.is_closing()]
        excess = len(alive) - self.max_connections
        if excess > 0:
            idle = [c for c in alive if isinstance(c, Connection) and not c.is_responding()]
            idle.sort(key=lambda connection: connection.idle_since)
            # some more than needed, so that this is rarely done
            for connection in idle[: excess + self.max_connections // 16]:
                connection.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop checking the connection."""
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Note the time from which the client is idle."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request, unless its response has begun (uvicorn would interrupt it), and end its cycle."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps({"error": msg}).encode()
            self.transport.write(BAD_REQUEST % (len(body), body))
        self.transport.close()

    def is_responding(self) -> bool:
        """Return whether the client waits for us: its request is complete, the response is not, and all is read."""
        cycle = self.cycle
        has_request = cycle is not None and not cycle.more_body and not cycle.response_complete
        return has_request and self.transport.get_write_buffer_size() == 0

    def _progress(self) -> tuple[Any, ...]:
        """Return a value that changes when the client makes progress."""
        cycle = self.cycle
        stage = (cycle.more_body, cycle.response_complete) if cycle is not None else ()
        return cycle, stage, self.transport.get_write_buffer_size()

    def check(self) -> None:
        """Close the connection if nothing has changed since the last check."""
        progress = self._progress()
        if progress == self.last_progress and not self.is_responding():
            self.transport.abort()
        else:
            self.last_progress = progress
            self.timer = self.loop.call_later(self.seconds, self.check)

    if HAS_HTTPTOOLS:

        def data_received(self, data: bytes) -> None:
            """Parse data; refuse a head that is too long."""
            self.head_bytes += len(data)
            super().data_received(data)
            if self.head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

        def on_message_begin(self) -> None:
            """Begin a request."""
            self.head_bytes = 0
            super().on_message_begin()

        def on_body(self, body: bytes) -> None:
            """Receive a part of the body, whose size the guard limits."""
            self.head_bytes = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            """End a request."""
            self.head_bytes = 0
            super().on_message_complete()


def make_server(
    app: Any, *, seconds: float = SECONDS, max_connections: int = MAX_CONNECTIONS, grace: int | None = None
) -> uvicorn.Server:
    """Return a server for `run(sockets=[…])`: connections are checked every `seconds`, a shutdown takes `grace`."""
    protocol: Any = partial(Connection, seconds=seconds, max_connections=max_connections)
    options: dict[str, Any] = {"log_level": "error", "server_header": False, "proxy_headers": False}
    options |= {"timeout_graceful_shutdown": grace, "backlog": BACKLOG}
    return uvicorn.Server(uvicorn.Config(app, http=protocol, ws="none", timeout_keep_alive=5, **options))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With IPPROTO_TCP asyncio sets TCP_NODELAY; else half of a response waits 40 ms until the client acknowledges.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingError(f"Cannot listen on {host} port {port}: {error.strerror}; try --port 0.") from None
    return listener

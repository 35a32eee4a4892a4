"""Connections of a server: how many there may be, and how long a client may keep one waiting.

uvicorn ends a connection that is idle after an answer, but waits for ever for the rest of a request that was begun, and
for a client that does not read. Here every connection is looked at from time to time, and one on which the client has
done nothing that counts since the last look is ended: a whole request head, the end of a body, or some of an answer
read. Single bytes of a request do not count, so that a slow client cannot hold on with them.

Where there are too many connections, the one that has waited for its client longest makes room for the new one.

Requests are read by httptools where it is installed, and by h11 otherwise. httptools takes a third off the processor
time that a request needs outside of its model.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from relmo.errors import SettingError
from relmo.web.guard import SECONDS

try:
    from relmo.web.heads import BoundedHeads as Protocol
except ModuleNotFoundError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol  # type: ignore[assignment]

MOST = 100  # connections
LITTLE = 1 << 14  # bytes that wait for more to be sent with them
AT_ONCE = 128  # connections that are accepted in one turn of the event loop, and that wait to be accepted
MALFORMED = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
)


class Gathered:
    """A transport that sends what little is written to it in one turn of the event loop as one piece: the head of an
    answer and its body in one packet, with one call of the system."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self.transport, self.loop = transport, loop
        self.held: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        """Sends it soon."""
        if not self.held:
            self.loop.call_soon(self.flush)
        self.held.append(data)
        if len(data) >= LITTLE:
            self.flush()

    def flush(self) -> None:
        """Sends it now."""
        if self.held and not self.transport.is_closing():
            self.transport.write(b"".join(self.held))
        self.held = []

    def close(self) -> None:
        """Ends the connection when all is sent."""
        self.flush()
        self.transport.close()

    def get_write_buffer_size(self) -> int:
        """Bytes that are not sent yet."""
        return self.transport.get_write_buffer_size() + sum(map(len, self.held))


class Connection(Protocol):
    """A connection that ends where its client does nothing."""

    def __init__(self, *given: Any, seconds: float, most: int, **named: Any):
        super().__init__(*given, **named)
        self.seconds, self.most = seconds, most
        self.seen: Any = None
        self.since = self.loop.time()
        self.next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to look at it, and makes room for it where there are too many."""
        super().connection_made(Gathered(transport, self.loop))  # type: ignore[arg-type]
        self.seen = self._progress()
        self.next_look = self.loop.call_later(self.seconds, self.look)
        if len(self.connections) > self.most:
            self._make_room()

    def _make_room(self) -> None:
        """Ends the connections that have waited longest for their clients. Of many it ends some more than it must, so
        that it need not look through all of them for each that comes."""
        alive = [each for each in self.connections if not each.transport.is_closing()]
        if len(alive) > self.most:
            waiting = [each for each in alive if isinstance(each, Connection) and not each.answering]
            waiting.sort(key=lambda each: each.since)
            for each in waiting[: len(alive) - self.most + self.most // 16]:
                each.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Looks at it no more."""
        if self.next_look is not None:
            self.next_look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Notes since when it is the client's turn."""
        self.since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Says that a request is malformed, unless its answer has begun; and nobody else answers it any more.

        uvicorn with h11 would raise where a malformed body comes after a head that is answered; with httptools it would
        send this in the middle of an answer."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps({"error": msg}).encode()
            self.transport.write(MALFORMED % (len(body), body))
        self.transport.close()

    @property
    def answering(self) -> bool:
        """Whether the client waits for us: its request is whole, its answer is not, and all that was sent is read."""
        cycle = self.cycle
        whole = cycle is not None and not cycle.more_body and not cycle.response_complete
        return whole and self.transport.get_write_buffer_size() == 0

    def _progress(self) -> tuple[Any, ...]:
        """What changes when the client does something that counts."""
        cycle = self.cycle
        stage = (cycle.more_body, cycle.response_complete) if cycle is not None else ()
        return cycle, stage, self.transport.get_write_buffer_size()

    def look(self) -> None:
        """Ends the connection where nothing has changed since the last look."""
        progress = self._progress()
        if progress == self.seen and not self.answering:
            self.transport.abort()
        else:
            self.seen = progress
            self.next_look = self.loop.call_later(self.seconds, self.look)


def make_server(app: Any, *, seconds: float = SECONDS, most: int = MOST, grace: int | None = None) -> uvicorn.Server:
    """A server of an application, which looks at its connections every so many `seconds` and holds at most so many;
    `run(sockets=[…])` serves until it is told to end, and then finishes what it has begun, within `grace` seconds."""
    protocol: Any = partial(Connection, seconds=seconds, most=most)
    options: dict[str, Any] = {"log_level": "error", "server_header": False, "proxy_headers": False}
    options |= {"timeout_graceful_shutdown": grace, "backlog": AT_ONCE}
    return uvicorn.Server(uvicorn.Config(app, http=protocol, ws="none", timeout_keep_alive=5, **options))


def listen(host: str, port: int) -> socket.socket:
    """A socket on the address. It is told that it is TCP's, since asyncio lets small packets go at once on such alone:
    on others the second half of an answer waits for the client to confirm the first, 40 ms."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(AT_ONCE)  # so that clients that are faster than the server wait
    except OSError as error:
        listener.close()
        raise SettingError(f"cannot listen on {host} port {port}: {error.strerror}; try --port 0") from None
    return listener


@contextmanager
def running(app: Any, **options: Any) -> Iterator[Any]:
    """A server of an application, on a free port of this machine, in a thread of its own; `address` is where. `options`
    are those of `make_server`."""
    server: Any = make_server(app, **options)
    listener = listen("127.0.0.1", 0)
    server.address = listener.getsockname()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.001)
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join()

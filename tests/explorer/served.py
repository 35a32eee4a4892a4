"""The explorer's real server on a free port, for tests that need more than a test client."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relmo.explorer.connections import make_server
from relmo.explorer.server import make_app

PATIENCE = 600.0  # seconds that a test waits for what must come


@contextmanager
def served(models: Any, *, body: float = PATIENCE, seconds: float = PATIENCE, most: int = 1000) -> Iterator[Any]:
    """A server that runs; `address` is where. A request's body may take `body` seconds, a client may do nothing for
    `seconds`, and there may be so many connections at most."""
    running: Any = make_server(make_app(models, seconds=body), seconds=seconds, most=most)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    running.address = listener.getsockname()
    yield running
    running.should_exit = True
    thread.join(PATIENCE)

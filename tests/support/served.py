"""The explorer's real server on a free port, for tests that need more than a test client."""

from contextlib import AbstractContextManager
from typing import Any

from benchmarks.explorer import running
from relmo.explorer.server import make_app

PATIENCE = 120.0  # seconds that a test waits for what must come


def served(
    models: Any, *, body: float = PATIENCE, seconds: float = PATIENCE, most: int = 1000
) -> AbstractContextManager[Any]:
    """A server that runs. A request's body may take `body` seconds, a client may do nothing for `seconds`, and there
    may be so many connections at most."""
    return running(make_app(models, seconds=body), seconds=seconds, max_connections=most)

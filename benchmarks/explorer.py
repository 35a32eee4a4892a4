"""Response times of the explorer, through the real server over HTTP.

    a page opened       the one response with which a page opens: its text and the colours of the initial unit. The
    model
                        is loaded; nothing of the text is cached
    another unit        the response that colours an open page by another unit

Rendering in the browser is not included.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import cycle
from typing import Any, Self
from urllib.parse import urlencode

from benchmarks.clock import Case
from relmo.errors import SettingError
from relmo.explorer.session import Session

MODEL = "prose"


@contextmanager
def running(app: Any, **options: Any) -> Iterator[Any]:
    """Run a server in a thread, on a free port; `address` is where. `options` are those of `make_server`."""
    from relmo.web.connections import listen, make_server

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


class ExplorerBench:
    """Context manager that serves a bundled model, with a client on a persistent connection."""

    def __init__(self, device: str):
        try:
            import relmo.web.connections  # noqa: F401
        except ImportError:
            raise SettingError(
                "--what explore needs starlette and uvicorn; try: pip install 'relmo[explore]'"
            ) from None
        self.session = Session.open(MODEL, device=device)
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        from relmo.explorer.server import Models, make_app

        server = self.stack.enter_context(running(make_app(Models([MODEL], lambda name: self.session))))
        self.client = HTTPConnection(*server.address)
        self.about = self.request("about")
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stack.close()

    def request(self, endpoint: str, **params: str) -> Any:
        """Return a response, read to its end."""
        self.client.request("GET", f"/api/{endpoint}?{urlencode(params)}")
        return json.loads(self.client.getresponse().read())

    def cases(self) -> list[Case]:
        """Return both cases, for the first page of the initial text."""
        about = self.about
        state = about["carried"][-1]
        units = cycle(f"{state}0.{number}" for number in range(about["states"][state] // about["directions"]))
        page = {"text": about["first"], "page": "0"}
        symbols = len(self.request("page", **page)["symbols"])
        facts = {"precision": "float32"}
        return [
            Case(
                "a page opened",
                symbols,
                lambda: self.request("about", opening="1"),
                prepare=self.session.reader.cache_clear,
                facts=facts | {"baseline": True},
            ),
            Case("another unit", symbols, lambda: self.request("values", unit=next(units), **page), facts=facts),
        ]

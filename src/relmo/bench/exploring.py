"""What is timed of the explorer: how long its page waits for colours, through the real server over HTTP.

    a page opened       the one answer with which a page opens: its text and its first colours. The model is loaded, but
                        nothing of the text is known
    another unit        the answer that colours an open page by another unit

The time that the browser takes to draw is not included.
"""

import json
from contextlib import ExitStack
from http.client import HTTPConnection
from itertools import cycle
from typing import Any, Self
from urllib.parse import urlencode

from relmo.bench.clock import Case
from relmo.errors import SettingError
from relmo.explorer.session import Session

MODEL = "prose"


class ExplorerBench:
    """A server with a model that ships, while it is entered, and a client on a connection that stays."""

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
        from relmo.web.connections import running

        server = self.stack.enter_context(running(make_app(Models([MODEL], lambda name: self.session))))
        self.client = HTTPConnection(*server.address)
        self.about = self.ask("about")
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stack.close()

    def ask(self, what: str, **asked: str) -> Any:
        """An answer, read to its end."""
        self.client.request("GET", f"/api/{what}?{urlencode(asked)}")
        answer = self.client.getresponse().read()
        return json.loads(answer)

    def cases(self) -> list[Case]:
        """Both answers, for the first page of the text that the model is opened with."""
        about = self.about
        state = about["carried"][-1]
        units = cycle(f"{state}0.{number}" for number in range(about["states"][state] // about["directions"]))
        first = {"text": about["first"], "page": "0"}
        symbols = len(self.ask("page", **first)["symbols"])
        facts = {"precision": "float32"}
        return [
            Case(
                "a page opened",
                symbols,
                lambda: self.ask("about", opening="1"),
                prepare=self.session.readers.clear,
                facts=facts | {"baseline": True},
            ),
            Case("another unit", symbols, lambda: self.ask("values", unit=next(units), **first), facts=facts),
        ]

"""What stands before a server's application, and how it tells a client what is wrong.

- On this machine's own address a request with a foreign Host or Origin is refused, so that no web page elsewhere can
  use the server. On any other address everything asks for a token.
- A request is read whole, within seconds and up to a size, before anything is done for it: slow or dead clients hold a
  socket and nothing else, and not for long (connections.py).
- What a client can get wrong is answered in one line with a status of 400 or above. A 500 is a mistake of ours.
"""

import asyncio
import hmac
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relmo.errors import SettingError
from relmo.web.messages import one_line

LARGEST = 2 << 20  # bytes of a request
SECONDS = 10.0  # in which it must have come
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SHUTTING_DOWN = "The server is shutting down."


def problem(message: str, status: int = 400, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """What is wrong, in one line."""
    return JSONResponse({"error": one_line(message)}, status, headers)


class Guard:
    """Stands before everything: who may ask, what from where, how much.

    token     what requests must bring; None where everybody may ask
    hosts     the names by which the server may be called; None where any will do
    seconds   in which a request must have come
    largest   bytes that it may have
    headers   those that every answer has
    open_to_all   paths that need no token
    """

    called = "this server"

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Sequence[str] | None,
        seconds: float = SECONDS,
        largest: int = LARGEST,
        headers: Mapping[str, str],
        open_to_all: Collection[str] = (),
    ):
        self.app, self.token, self.hosts, self.open_to_all = app, token, hosts, open_to_all
        self.seconds, self.largest = seconds, largest
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", []), *self.headers]
            await send(message)

        try:
            await self._respond(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server ends, and has waited long enough for this request
            if not started:
                await problem(SHUTTING_DOWN, 503)(scope, receive, send_with_headers)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        answer = self.refusal(headers)
        if sum(key.lower() == b"host" for key, _ in scope["headers"]) > 1:
            answer = problem("the request has more than one Host header", 400)
        if answer is None and self.token is not None and scope["path"] not in self.open_to_all:
            answer = self.entrance(scope, headers, self.token)
        body = b""
        if answer is None:
            try:
                async with asyncio.timeout(self.seconds):
                    body = await _read_body(receive, self.largest)
            except TimeoutError:
                answer = problem("the request did not come in time", 408)
            except OverflowError:
                answer = problem(f"a request has at most {_size(self.largest)}", 413)
            except ConnectionError:
                return
        if answer is not None:
            await answer(scope, receive, send)
            return
        sent = False

        async def again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)

    def refusal(self, headers: dict[str, str]) -> Response | None:
        """For those from elsewhere."""
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return problem("the Host of the request is not an address", 400)
        if self.hosts is not None and name not in self.hosts:
            return problem(f"{self.called} answers to its own machine alone", 421)
        if origin is not None and origin.partition("://")[2] != host:
            return problem(f"{self.called} answers to its own page alone", 403)
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return problem(f"{self.called} answers to its own page alone", 403)
        return None

    def entrance(self, scope: Scope, headers: dict[str, str], token: str) -> Response | None:
        """Where there is a token: none for those who bring it in the header Authorization."""
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same(credentials.strip(), token):
            return None
        wanted = {"www-authenticate": "Bearer"}
        return problem("a token is needed; send the header Authorization: Bearer TOKEN", 401, wanted)


def same(given: str, token: str) -> bool:
    """Whether two texts are the same, in a time that does not tell how much of them is."""
    return hmac.compare_digest(given.encode(), token.encode())


async def _read_body(receive: Receive, largest: int) -> bytes:
    """All of a request's body; OverflowError where it is too large."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > largest:
            raise OverflowError
        more = message.get("more_body", False)
    return b"".join(parts)


def _size(count: int) -> str:
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count:,} bytes"


def body_of(body: bytes) -> dict[str, Any]:
    """The JSON object of a request, whose texts are all text: JSON can spell halves of characters, which is not."""
    try:
        given = json.loads(body)
        if b"\\" in body or not body.isascii():  # plain ASCII cannot spell one
            json.dumps(given, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SettingError("the request holds half of a character (a lone surrogate), which is not text") from None
    except (ValueError, RecursionError):
        raise SettingError("the request is not JSON") from None
    if not isinstance(given, dict):
        raise SettingError("the request is not a JSON object")
    return given


def check_address(host: str, token: str | None) -> str | None:
    """The token that requests must bring, which an address that others can reach must have; checked."""
    if token is not None and len(token) < 8:
        raise SettingError("--token has fewer than 8 characters; take a longer one")
    if token is not None and token != token.strip():
        raise SettingError("--token begins or ends with white space, which HTTP headers do not keep; take another one")
    if token is not None and not (token.isascii() and token.isprintable()):
        raise SettingError("--token may have only ASCII letters, digits and signs; not every browser sends others")
    if host not in LOOPBACK and token is None:
        raise SettingError(f"--host {host}: others can reach it; give a --token that they must know, or leave it out")
    return token

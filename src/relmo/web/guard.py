"""Checks before a server's application, and error responses.

- On a loopback address, a request with a foreign Host or Origin is refused, so that no other page can use the server.
  On any other address, every request needs a token.
- A request is read completely, within a time and size limit, before anything is done for it: slow or dead clients hold
  a socket and nothing else, and not for long (connections.py).
- A client's error is answered in one line with status 4xx. Status 500 is a bug of relmo.
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

MAX_BYTES = 2 << 20  # of a request
SECONDS = 10.0  # in which a request must have arrived
MAX_MESSAGE = 400  # characters
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SHUTTING_DOWN = "The server is shutting down."
INTERNAL_ERROR = "Internal error in relmo; see the log of the server."


def one_line(message: str) -> str:
    """Return a message as one line of limited length, of characters that can be encoded."""
    line = " ".join(message.split()).encode(errors="replace").decode()
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def error_response(message: str, status: int = 400, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a JSON response with a one-line error message."""
    return JSONResponse({"error": one_line(message)}, status, headers)


class Guard:
    """ASGI middleware that checks origin, token, size and time of a request.

    token           secret that requests must carry; None if there is none
    hosts           host names that requests may use; None for any
    seconds         time limit for the arrival of a request
    max_bytes       size limit of a request
    headers         headers added to every response
    open_to_all     paths that need no token
    """

    server_name = "This service"

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Sequence[str] | None,
        seconds: float = SECONDS,
        max_bytes: int = MAX_BYTES,
        headers: Mapping[str, str],
        open_to_all: Collection[str] = (),
    ):
        self.app, self.token, self.hosts, self.open_to_all = app, token, hosts, open_to_all
        self.seconds, self.max_bytes = seconds, max_bytes
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = [*message.get("headers", []), *self.headers]
            await send(message)

        try:
            await self._respond(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the grace period of the shutdown has ended
            if not has_started:
                await error_response(SHUTTING_DOWN, 503)(scope, receive, send_with_headers)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        is_cross_site = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        is_foreign = origin is not None and origin.partition("://")[2] != host
        refusal: Response | None = None
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            refusal = error_response("The Host header is not a valid address.")
        else:
            if self.hosts is not None and name not in self.hosts:
                refusal = error_response(f"{self.server_name} only accepts requests to a loopback address.", 421)
            elif is_foreign or (is_cross_site and headers.get("sec-fetch-mode") != "navigate"):
                refusal = error_response(f"{self.server_name} does not accept requests from other web pages.", 403)
        if sum(key.lower() == b"host" for key, _ in scope["headers"]) > 1:
            refusal = error_response("The request has more than one Host header.")
        if refusal is None and self.token is not None and scope["path"] not in self.open_to_all:
            refusal = self.check_token(scope, headers, self.token)
        body = bytearray()
        if refusal is None:
            try:
                async with asyncio.timeout(self.seconds):
                    has_more = True
                    while has_more and len(body) <= self.max_bytes:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            return
                        body += message.get("body", b"")
                        has_more = message.get("more_body", False)
            except TimeoutError:
                refusal = error_response("The request did not arrive in time.", 408)
            if len(body) > self.max_bytes:
                limit = f"{self.max_bytes >> 20} MB" if self.max_bytes >= 1 << 20 else f"{self.max_bytes:,} bytes"
                refusal = error_response(f"The request is too large; the limit is {limit}.", 413)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        is_sent = False

        async def receive_body() -> Message:
            nonlocal is_sent
            if is_sent:
                return await receive()
            is_sent = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self.app(scope, receive_body, send)

    def check_token(self, scope: Scope, headers: dict[str, str], token: str) -> Response | None:
        """Return the refusal of a request without the token in its Authorization header; None if it is admitted."""
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and secrets_equal(credentials.strip(), token):
            return None
        challenge = {"www-authenticate": "Bearer"}
        return error_response("A token is required; send the header Authorization: Bearer TOKEN.", 401, challenge)


def secrets_equal(a: str, b: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(a.encode(), b.encode())


def parse_body(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of a request; lone surrogates, which JSON can spell, are refused."""
    try:
        fields = json.loads(body)
        if b"\\" in body or not body.isascii():  # plain ASCII cannot contain one
            json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SettingError("The request contains a lone surrogate, which is not valid text.") from None
    except (ValueError, RecursionError):
        raise SettingError("The request is not valid JSON.") from None
    if not isinstance(fields, dict):
        raise SettingError("The request is not a JSON object.")
    return fields


def check_address(host: str, token: str | None) -> str | None:
    """Check the token; an address that other machines can reach needs one."""
    if token is not None:
        if len(token) < 8:
            raise SettingError("--token must have at least 8 characters.")
        if token != token.strip():
            raise SettingError("--token must not begin or end with whitespace, which HTTP headers drop.")
        if not (token.isascii() and token.isprintable()):
            raise SettingError("--token must consist of printable ASCII characters; not every browser sends others.")
    if host not in LOOPBACK and token is None:
        raise SettingError(f"--host {host} can be reached by other machines and needs a --token.")
    return token

"""The explorer over HTTP, for one person on one machine.

- It listens on this machine alone. On any other address everything asks for a token, which the first link carries and a
  cookie keeps.
- A request with a foreign Host or Origin is refused, so that no web page elsewhere can use it. Nothing but what it
  ships is loaded by its page (Content-Security-Policy), and texts are data there, never markup.
- A request is read whole, within seconds and up to a size, before anything is done for it: slow or dead clients hold
  a socket and nothing else, and not for long (connections.py). Models are run in threads, long work is done one after
  the other in one thread of its own.
- What a client can get wrong is answered in one line with a status of 400 or above. A 500 is a mistake of ours.

Torch is imported when the first model is opened, in a thread, while the page is already there.
"""

import asyncio
import hmac
import json
import logging
import mimetypes
import threading
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relmo.errors import ModelError, RelmoError, SettingError
from relmo.explorer.given import string
from relmo.explorer.jobs import OURS, Jobs, one_line

if TYPE_CHECKING:
    from relmo.explorer.align import AlignSession
    from relmo.explorer.session import Session
    from relmo.explorer.work import Worker

LARGEST = 2 << 20  # bytes of a request
SECONDS = 10.0  # in which it must have come
LOOPBACK = ("localhost", "127.0.0.1", "::1")
COOKIE = "relmo"
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

Open = Callable[[str], "Session | AlignSession"]


class Models:
    """The models that can be looked at, each opened when it is first asked for."""

    def __init__(self, names: Sequence[str], open_model: Open):
        self.names, self.open_model = list(names), open_model
        self.sessions: dict[str, Session | AlignSession] = {}
        self.workers: dict[str, Worker] = {}
        self.lock = threading.RLock()

    def get(self, name: str) -> "Session | AlignSession":
        """The session of a model; of the first one where no name is given."""
        name = name or self.names[0]
        if name not in self.names:
            raise ModelError(f"{name[:80]!r} is not open here; there are {', '.join(self.names)}")
        with self.lock:
            if name not in self.sessions:
                self.sessions[name] = self.open_model(name)
            return self.sessions[name]

    def worker(self, name: str) -> "Worker":
        """Who works for a model."""
        from relmo.explorer.work import Worker  # when there is work: a page is shown sooner

        session = self.language_model(name)
        with self.lock:
            return self.workers.setdefault(session.name, Worker(session, self.language_model))

    def language_model(self, name: str) -> "Session":
        """The session of a model that is a language model."""
        from relmo.explorer.session import Session

        if not isinstance(session := self.get(name), Session):
            raise ModelError(f"{session.name[:80]!r} is no language model, which this asks for")
        return session


class Guard:
    """Stands before everything: who may ask, what from where, how much."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Sequence[str] | None, seconds: float):
        self.app, self.token, self.hosts, self.seconds = app, token, hosts, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        answer = self.refusal(headers) or self.entrance(scope, headers)
        body = b""
        if answer is None:
            try:
                body = await asyncio.wait_for(_read_body(receive), self.seconds)
            except TimeoutError:
                answer = _problem("the request did not come in time", 408)
            except OverflowError:
                answer = _problem(f"a request has at most {LARGEST >> 20} MB", 413)
            except ConnectionError:
                return
        if answer is not None:
            await answer(scope, receive, _with_headers(send))
            return
        sent = False

        async def again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, _with_headers(send))

    def refusal(self, headers: dict[str, str]) -> Response | None:
        """For those from elsewhere."""
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return _problem("the Host of the request is not an address", 400)
        if self.hosts is not None and name not in self.hosts:
            return _problem("this explorer answers to its own machine alone", 421)
        if origin is not None and origin.partition("://")[2] != host:
            return _problem("this explorer answers to its own page alone", 403)
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return _problem("this explorer answers to its own page alone", 403)
        return None

    def entrance(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        """Where there is a token: none for those who have it, a cookie for those who bring it."""
        if self.token is None:
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if given and same(given, self.token):
            answer = RedirectResponse("/", 303)  # and nowhere else, whatever path was asked for
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        held = cookies[COOKIE].value if COOKIE in cookies else headers.get("authorization", "").removeprefix("Bearer ")
        return None if same(held, self.token) else _problem("open the link with the token that relmo printed", 401)


def same(given: str, token: str) -> bool:
    """Whether two texts are the same, in a time that does not tell how much of them is."""
    return hmac.compare_digest(given.encode(), token.encode())


async def _read_body(receive: Receive) -> bytes:
    """All of a request's body; OverflowError where it is too large."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST:
            raise OverflowError
        more = message.get("more_body", False)
    return b"".join(parts)


def _with_headers(send: Send) -> Send:
    """Every answer has the headers that say what a browser must not do."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
            message["headers"] = [*message.get("headers", []), *own]
        await send(message)

    return sending


def _problem(message: str, status: int = 400) -> JSONResponse:
    """What is wrong, in one line."""
    return JSONResponse({"error": one_line(message)}, status)


async def answered(make: Callable[[], Any]) -> Response:
    """What a function gives, made in a thread; mistakes of users in one line."""
    try:
        return JSONResponse(await run_in_threadpool(make))
    except RelmoError as error:
        return _problem(str(error))
    except Exception:
        logging.getLogger("relmo.explorer").exception("a request failed")
        return _problem(OURS, 500)


def _static_files() -> dict[str, tuple[bytes, str]]:
    """What the page is made of, by name, with the kind of each."""
    folder = resources.files("relmo.explorer") / "static"
    kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
    found = {}
    for file in folder.iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        kind = kinds.get(suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        found[file.name] = (file.read_bytes(), kind)
    return found


class Site:
    """The routes."""

    def __init__(self, models: Models):
        self.models, self.jobs, self.files = models, Jobs(), _static_files()

    def routes(self) -> list[Route]:
        """What can be asked for."""
        return [
            Route("/", self.file),
            Route("/static/{name}", self.file),
            Route("/api/text", self.add_text, methods=["POST"]),
            Route("/api/jobs", self.add_job, methods=["POST"]),
            Route("/api/jobs/{name}", self.job, methods=["GET", "DELETE"]),
            Route("/api/shell", self.shell),
            Route("/api/{what}", self.answer),
        ]

    async def file(self, request: Request) -> Response:
        """A part of the page."""
        name = request.path_params.get("name", "index.html")
        if name not in self.files:
            return _problem("there is nothing here", 404)
        content, kind = self.files[name]
        return Response(content, media_type=kind)

    async def answer(self, request: Request) -> Response:
        """A question to a session."""
        asked = dict(request.query_params)
        what = request.path_params["what"]
        return await answered(lambda: self.models.get(asked.pop("model", "")).answer(what, asked))

    async def shell(self, request: Request) -> Response:
        """The page in one piece, without its numbers, for the browser to put them in."""
        from relmo.explorer.page import shell

        return await answered(lambda: {"html": shell()})

    async def add_text(self, request: Request) -> Response:
        """A text of the user's."""

        def make() -> Any:
            given = _body_of(request_body)
            language = None if given.get("language") is None else string(given, "language")
            return self.models.get(string(given, "model")).add(string(given, "text"), language)

        request_body = await request.body()
        return await answered(make)

    async def add_job(self, request: Request) -> Response:
        """Long work."""

        def make() -> Any:
            from relmo.explorer.work import WORK

            given = _body_of(request_body)
            what = string(given, "what")
            if what not in WORK:
                raise SettingError(f"there is no work of this name; there is {', '.join(WORK)}")
            worker = self.models.worker(string(given, "model"))
            return self.jobs.add(lambda progress: worker.do(what, given, progress)).as_dict()

        request_body = await request.body()
        return await answered(make)

    async def job(self, request: Request) -> Response:
        """How far it is; or to stop it."""
        name = request.path_params["name"]
        do = self.jobs.cancel if request.method == "DELETE" else self.jobs.get
        return await answered(lambda: do(name).as_dict())


def _body_of(body: bytes) -> dict[str, Any]:
    """The JSON object of a request, whose texts are all text: JSON can spell halves of characters, which is not."""
    try:
        given = json.loads(body)
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SettingError("the request holds half of a character (a lone surrogate), which is not text") from None
    except (ValueError, RecursionError):
        raise SettingError("the request is not JSON") from None
    if not isinstance(given, dict):
        raise SettingError("the request is not a JSON object")
    return given


def make_app(
    models: Models,
    *,
    token: str | None = None,
    hosts: Sequence[str] | None = LOOPBACK,
    seconds: float = SECONDS,
) -> ASGIApp:
    """The application: for this machine's own names where `hosts` are given, for those who have the token where there
    is one; a request must have come within some `seconds`."""
    site = Site(models)

    @asynccontextmanager
    async def lifespan(app: Starlette):  # type: ignore[no-untyped-def]
        yield
        site.jobs.close()
        for worker in list(models.workers.values()):
            worker.close()

    return Guard(Starlette(routes=site.routes(), lifespan=lifespan), token, hosts, seconds)


def check_address(host: str, token: str | None) -> str | None:
    """The token that requests must bring, which an address that others can reach must have; checked."""
    if token is not None and len(token) < 8:
        raise SettingError("--token has fewer than 8 characters; take a longer one")
    if token is not None and not (token.isascii() and token.isprintable()):
        raise SettingError("--token is of letters, digits and signs of ASCII, which every browser sends alike")
    if host not in LOOPBACK and token is None:
        raise SettingError(f"--host {host}: others can reach it; give a --token that they must know, or leave it out")
    return token

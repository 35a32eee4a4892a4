"""The explorer over HTTP, for one person on one machine.

- It listens on this machine alone. On any other address everything asks for a token, which the first link carries and a
  cookie keeps. Who may ask, and how much, is `relmo.web`'s to say.
- Nothing but what it ships is loaded by its page (Content-Security-Policy), and texts are data there, never markup.
- Models are run in threads, long work is done one after the other in one thread of its own.

Torch is imported when the first model is opened, in a thread, while the page is already there.
"""

import logging
import mimetypes
import threading
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from relmo.errors import ModelError, RelmoError, SettingError
from relmo.explorer.given import string
from relmo.explorer.jobs import Jobs
from relmo.web.guard import LARGEST, LOOPBACK, SECONDS, Guard, body_of, problem, same
from relmo.web.messages import OURS

if TYPE_CHECKING:
    from relmo.explorer.align import AlignSession
    from relmo.explorer.session import Session
    from relmo.explorer.work import Worker

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
            raise ModelError(f"{session.name[:80]!r} is not a language model, and this needs one")
        return session


class PageGuard(Guard):
    """Lets in who has the token: from the link that relmo printed, which becomes a cookie, or in a header."""

    called = "this explorer"

    def entrance(self, scope: Scope, headers: dict[str, str], token: str) -> Response | None:
        """None for those who have the token, a cookie for those who bring it."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if given and same(given, token):
            answer = RedirectResponse("/", 303)  # and nowhere else, whatever path was asked for
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return answer
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        if COOKIE in cookies:
            return None if same(cookies[COOKIE].value, token) else _no_token()
        return None if super().entrance(scope, headers, token) is None else _no_token()


def _no_token() -> Response:
    return problem("open the link with the token that relmo printed", 401)


async def answered(make: Callable[[], Any]) -> Response:
    """What a function gives, made in a thread; mistakes of users in one line."""
    try:
        return JSONResponse(await run_in_threadpool(make))
    except RelmoError as error:
        return problem(str(error))
    except Exception:
        logging.getLogger("relmo.explorer").exception("a request failed")
        return problem(OURS, 500)


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
            return problem("there is nothing here", 404)
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
            given = body_of(request_body)
            language = None if given.get("language") is None else string(given, "language")
            return self.models.get(string(given, "model")).add(string(given, "text"), language)

        request_body = await request.body()
        return await answered(make)

    async def add_job(self, request: Request) -> Response:
        """Long work."""

        def make() -> Any:
            from relmo.explorer.work import WORK

            given = body_of(request_body)
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


def make_app(
    models: Models,
    *,
    token: str | None = None,
    hosts: Sequence[str] | None = LOOPBACK,
    seconds: float = SECONDS,
    largest: int = LARGEST,
) -> ASGIApp:
    """The application: for this machine's own names where `hosts` are given, for those who have the token where there
    is one; a request must have come within some `seconds`, and has at most so many bytes."""
    site = Site(models)

    @asynccontextmanager
    async def lifespan(app: Starlette):  # type: ignore[no-untyped-def]
        yield
        site.jobs.close()
        for worker in list(models.workers.values()):
            worker.close()

    inner = Starlette(routes=site.routes(), lifespan=lifespan)
    return PageGuard(inner, token=token, hosts=hosts, seconds=seconds, largest=largest, headers=HEADERS)

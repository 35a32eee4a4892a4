"""HTTP server of the explorer, for one user on one machine.

- It listens on a loopback address. On any other address, every request needs a token, which the printed link carries
  and a cookie stores; `relmo.web` checks it.
- The page loads nothing but what it ships with (Content-Security-Policy), and texts are data there, never markup.
- Models run in threads; long computations run one after the other in a thread of their own.

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
from relmo.explorer.jobs import Jobs
from relmo.web.guard import (
    INTERNAL_ERROR,
    LOOPBACK,
    MAX_BYTES,
    SECONDS,
    Guard,
    error_response,
    parse_body,
    secrets_equal,
)

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
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class Models:
    """Models that can be explored, each opened on its first request."""

    def __init__(self, names: Sequence[str], open_model: Callable[[str], "Session | AlignSession"]):
        self.names, self.open_model = list(names), open_model
        self.sessions: dict[str, Session | AlignSession] = {}
        self.workers: dict[str, Worker] = {}
        self.lock = threading.RLock()

    def get(self, name: str) -> "Session | AlignSession":
        """Return the session of a model; of the first one if the name is empty."""
        name = name or self.names[0]
        if name not in self.names:
            raise ModelError(f"Unknown model {name[:80]!r}; available are {', '.join(self.names)}.")
        with self.lock:
            if name not in self.sessions:
                self.sessions[name] = self.open_model(name)
            return self.sessions[name]

    def worker(self, name: str) -> "Worker":
        """Return the worker of a language model."""
        from relmo.explorer.work import Worker  # imported late, so that the page is shown sooner

        session = self.language_model(name)
        with self.lock:
            return self.workers.setdefault(session.name, Worker(session, self.language_model))

    def language_model(self, name: str) -> "Session":
        """Return the session of a language model."""
        from relmo.explorer.session import Session

        if not isinstance(session := self.get(name), Session):
            raise ModelError(f"{session.name[:80]!r} is not a language model, which this request needs.")
        return session


class PageGuard(Guard):
    """Guard that also accepts the token from the printed link, which sets a cookie, and from that cookie."""

    server_name = "The explorer"

    def check_token(self, scope: Scope, headers: dict[str, str], token: str) -> Response | None:
        """Return None if the request has the token, a redirect that sets the cookie, or a refusal."""
        query_token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if query_token and secrets_equal(query_token, token):
            response = RedirectResponse("/", 303)  # whatever path was requested
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return response
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        if COOKIE in cookies:
            is_valid = secrets_equal(cookies[COOKIE].value, token)
        else:
            is_valid = super().check_token(scope, headers, token) is None
        return None if is_valid else error_response("A token is required; open the link that relmo printed.", 401)


async def respond(function: Callable[[], Any]) -> Response:
    """Run a function in a thread and return its result as JSON; users' errors are answered in one line."""
    try:
        return JSONResponse(await run_in_threadpool(function))
    except RelmoError as error:
        return error_response(str(error))
    except Exception:
        logging.getLogger("relmo.explorer").exception("A request failed.")
        return error_response(INTERNAL_ERROR, 500)


class Site:
    """Routes of the server."""

    def __init__(self, models: Models):
        self.models, self.jobs = models, Jobs()
        self.files: dict[str, tuple[bytes, str]] = {}
        for file in (resources.files("relmo.explorer") / "static").iterdir():
            media_type = MEDIA_TYPES.get("." + file.name.rpartition(".")[2]) or mimetypes.guess_type(file.name)[0]
            self.files[file.name] = (file.read_bytes(), media_type or "application/octet-stream")

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/", self.file),
            Route("/static/{name}", self.file),
            Route("/api/text", self.add_text, methods=["POST"]),
            Route("/api/jobs", self.add_job, methods=["POST"]),
            Route("/api/jobs/{name}", self.job, methods=["GET", "DELETE"]),
            Route("/api/shell", self.shell),
            Route("/api/{endpoint}", self.answer),
        ]

    async def file(self, request: Request) -> Response:
        """Send a file of the page."""
        name = request.path_params.get("name", "index.html")
        if name not in self.files:
            return error_response("Not found.", 404)
        content, media_type = self.files[name]
        return Response(content, media_type=media_type)

    async def answer(self, request: Request) -> Response:
        """Send an answer of a session."""
        params, endpoint = dict(request.query_params), request.path_params["endpoint"]
        return await respond(lambda: self.models.get(params.pop("model", "")).answer(endpoint, params))

    async def shell(self, request: Request) -> Response:
        """Send the page in one piece, without answers, for the browser to add them."""
        from relmo.explorer.page import shell

        return await respond(lambda: {"html": shell()})

    async def add_text(self, request: Request) -> Response:
        """Add a text of the user."""
        content = await request.body()

        def add() -> Any:
            from relmo.explorer.params import get_string

            body = parse_body(content)
            language = None if body.get("language") is None else get_string(body, "language")
            return self.models.get(get_string(body, "model")).add(get_string(body, "text"), language)

        return await respond(add)

    async def add_job(self, request: Request) -> Response:
        """Start a long computation."""
        content = await request.body()

        def add() -> Any:
            from relmo.explorer.params import get_string
            from relmo.explorer.work import JOBS

            body = parse_body(content)
            kind = get_string(body, "what")
            if kind not in JOBS:
                raise SettingError(f"Unknown job {kind[:40]!r}; available are {', '.join(JOBS)}.")
            worker = self.models.worker(get_string(body, "model"))
            return self.jobs.add(lambda progress: worker.run(kind, body, progress)).as_dict()

        return await respond(add)

    async def job(self, request: Request) -> Response:
        """Send the state of a job, or cancel it."""
        name = request.path_params["name"]
        get_job = self.jobs.cancel if request.method == "DELETE" else self.jobs.get
        return await respond(lambda: get_job(name).as_dict())


def make_app(
    models: Models,
    *,
    token: str | None = None,
    hosts: Sequence[str] | None = LOOPBACK,
    seconds: float = SECONDS,
    max_bytes: int = MAX_BYTES,
) -> ASGIApp:
    """Return the application; the options are those of `relmo.web.guard.Guard`."""
    site = Site(models)

    @asynccontextmanager
    async def lifespan(app: Starlette):  # type: ignore[no-untyped-def]
        yield
        site.jobs.close()
        for worker in list(models.workers.values()):
            worker.close()

    app = Starlette(routes=site.routes(), lifespan=lifespan)
    return PageGuard(app, token=token, hosts=hosts, seconds=seconds, max_bytes=max_bytes, headers=HEADERS)

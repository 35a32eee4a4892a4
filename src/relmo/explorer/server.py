"""HTTP server of the explorer, for one user on one machine.

- It listens on a loopback address. On any other address, every request needs a token, which the printed link carries
  and a cookie stores; `relmo.web` checks it.
- The page loads nothing but what it ships with (Content-Security-Policy), and texts are data there, never markup.
- Models run in threads; long computations run one after the other in a thread of their own. Torch is imported when the
  first model is opened, while the page is already there.
"""

import logging
import mimetypes
import queue
import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from relmo.errors import ModelError, RelmoError, SettingError
from relmo.settings.fields import Progress
from relmo.web import guard

if TYPE_CHECKING:
    from relmo.explorer.align import AlignSession
    from relmo.explorer.session import Session
    from relmo.explorer.work import Worker

Work = Callable[[Progress], dict[str, Any]]

MAX_WAITING, MAX_JOBS = 8, 32  # jobs in the queue, and jobs whose results are stored
STATIC = Path(__file__).parent / "static"
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
mimetypes.add_type("text/javascript", ".js")  # the registry of Windows may have another one


class CancelledWork(Exception):
    """Raised inside the work of a cancelled job."""


@dataclass
class Job:
    """A long computation, its state and its result."""

    name: str
    work: Work
    state: Literal["waiting", "running", "done", "failed", "cancelled"] = "waiting"
    share: float = 0.0
    result: dict[str, Any] | None = None
    error: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    def on_progress(self, share: float) -> None:
        """Store the completed share; raise if the job was cancelled."""
        if self.stop.is_set():
            raise CancelledWork
        self.share = min(max(share, 0.0), 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the job as JSON."""
        record: dict[str, Any] = {"job": self.name, "state": self.state, "share": round(self.share, 4)}
        if self.result is not None:
            record["result"] = self.result
        return record | ({"error": self.error} if self.error else {})


class Jobs:
    """Jobs of a server, which run one after the other in a thread; the progress callback of a cancelled one raises."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: OrderedDict[str, Job] = OrderedDict()
        self.queue: queue.Queue[Job | None] = queue.Queue()
        self.thread: threading.Thread | None = None

    def add(self, work: Work) -> Job:
        """Add a job to the queue; the oldest finished jobs are dropped."""
        with self.lock:
            finished = [job for job in self.jobs.values() if job.state not in ("waiting", "running")]
            if len(self.jobs) - len(finished) >= MAX_WAITING:
                raise SettingError("Too many jobs are waiting; try again later or cancel one.")
            job = Job(secrets.token_hex(8), work)
            self.jobs[job.name] = job
            for old in finished[: max(0, len(self.jobs) - MAX_JOBS)]:
                del self.jobs[old.name]
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="explorer work", daemon=True)
                self.thread.start()
            self.queue.put(job)
        return job

    def get(self, name: str) -> Job:
        """Return a job by name."""
        with self.lock:
            if name not in self.jobs:
                raise SettingError(f"Unknown job {name[:40]!r}; it may have expired.")
            return self.jobs[name]

    def cancel(self, name: str) -> Job:
        """Cancel a job: before it starts, or at its next progress report."""
        job = self.get(name)
        job.stop.set()
        with self.lock:
            if job.state == "waiting":
                job.state = "cancelled"
        return job

    def close(self) -> None:
        """Cancel all jobs and end the thread."""
        for name in list(self.jobs):
            self.cancel(name)
        self.queue.put(None)

    def _run(self) -> None:
        while (job := self.queue.get()) is not None:
            with self.lock:
                if job.state != "waiting":
                    continue
                job.state = "running"
            try:
                job.result = job.work(job.on_progress)
                job.state, job.share = "done", 1.0
            except CancelledWork:
                job.state = "cancelled"
            except RelmoError as error:
                job.state, job.error = "failed", guard.one_line(str(error))
            except Exception:
                logging.getLogger("relmo.explorer").exception("A job failed.")
                job.state, job.error = "failed", guard.INTERNAL_ERROR


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


class PageGuard(guard.Guard):
    """Guard that also accepts the token from the printed link, which sets a cookie, and from that cookie."""

    server_name = "The explorer"

    def check_token(self, scope: Scope, headers: dict[str, str], token: str) -> Response | None:
        """Return None if the request has the token, a redirect that sets the cookie, or a refusal."""
        query_token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if query_token and guard.secrets_equal(query_token, token):
            response = RedirectResponse("/", 303)  # whatever path was requested
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return response
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        if COOKIE in cookies:
            is_valid = guard.secrets_equal(cookies[COOKIE].value, token)
        else:
            is_valid = super().check_token(scope, headers, token) is None
        return None if is_valid else guard.error_response("A token is required; open the link that relmo printed.", 401)


class _Site:
    """Routes of the server. Handlers of /api run in a thread and return JSON; `content` is the body of a POST."""

    def __init__(self, models: Models):
        self.models, self.jobs = models, Jobs()
        self.routes = [
            Route("/", lambda request: FileResponse(STATIC / "index.html")),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/text", _respond_with(self.add_text), methods=["POST"]),
            Route("/api/jobs", _respond_with(self.add_job), methods=["POST"]),
            Route("/api/jobs/{name}", _respond_with(self.job), methods=["GET", "DELETE"]),
            Route("/api/{endpoint}", _respond_with(self.answer)),
        ]

    def answer(self, request: Request, content: bytes) -> Any:
        params = dict(request.query_params)
        if request.path_params["endpoint"] == "shell":  # the page in one piece, for the browser to add answers
            from relmo.explorer.page import shell

            return {"html": shell()}
        return self.models.get(params.pop("model", "")).answer(request.path_params["endpoint"], params)

    def add_text(self, request: Request, content: bytes) -> Any:
        from relmo.explorer.params import Body

        body = Body(guard.parse_body(content))
        language = None if body.get("language") is None else body.string("language")
        return self.models.get(body.string("model")).add(body.string("text"), language)

    def add_job(self, request: Request, content: bytes) -> Any:
        from relmo.explorer.params import Body
        from relmo.explorer.work import JOBS

        body = Body(guard.parse_body(content))
        kind = body.string("what")
        if kind not in JOBS:
            raise SettingError(f"Unknown job {kind[:40]!r}; available are {', '.join(JOBS)}.")
        worker = self.models.worker(body.string("model"))
        return self.jobs.add(lambda progress: worker.run(kind, body, progress)).as_dict()

    def job(self, request: Request, content: bytes) -> Any:
        get_job = self.jobs.cancel if request.method == "DELETE" else self.jobs.get
        return get_job(request.path_params["name"]).as_dict()


def _respond_with(handler: Callable[[Request, bytes], Any]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that runs a handler in a thread; users' errors are answered in one line."""

    async def respond(request: Request) -> Response:
        content = await request.body() if request.method == "POST" else b""
        try:
            return JSONResponse(await run_in_threadpool(handler, request, content))
        except RelmoError as error:
            return guard.error_response(str(error))
        except Exception:
            logging.getLogger("relmo.explorer").exception("A request failed.")
            return guard.error_response(guard.INTERNAL_ERROR, 500)

    return respond


def make_app(
    models: Models,
    *,
    token: str | None = None,
    hosts: Sequence[str] | None = guard.LOOPBACK,
    seconds: float = guard.SECONDS,
    max_bytes: int = guard.MAX_BYTES,
) -> ASGIApp:
    """Return the application; the options are those of `relmo.web.guard.Guard`."""
    site = _Site(models)

    @asynccontextmanager
    async def lifespan(app: Starlette):  # type: ignore[no-untyped-def]
        yield
        site.jobs.close()
        for worker in list(models.workers.values()):
            worker.close()

    app = Starlette(routes=site.routes, lifespan=lifespan)
    return PageGuard(app, token=token, hosts=hosts, seconds=seconds, max_bytes=max_bytes, headers=HEADERS)

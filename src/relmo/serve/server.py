"""Models over HTTP, for many clients.

    POST /embed /predict /surprisal /generate      a JSON object, which names its model where there are several
    GET  /health /models /metrics /openapi.json

The event loop's thread reads requests, lets them in and sends answers; each verb of a model has a thread that computes
(batching.py, growth.py) and writes answers as bytes. A request whose client has gone is not computed. An answer is sent
in pieces, as fast as its client reads, and until then its request counts as one that is served.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from relmo.errors import RelmoError, SettingError, shown
from relmo.serve.admission import Admission, RefusedRequest
from relmo.serve.batching import Batcher, Ticket
from relmo.serve.growth import Grown, Growth
from relmo.serve.metrics import ServiceMetrics
from relmo.serve.openapi import description
from relmo.serve.verbs import GenerateVerb, verbs_of
from relmo.settings.serving import ServeLimits
from relmo.web.guard import SHUTTING_DOWN, Guard, problem
from relmo.web.messages import OURS, one_line

HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
PIECE = 1 << 16  # bytes of an answer that are sent at once
LONG = 1 << 14  # bytes of a request that is read in a thread of its own, as others would wait for it
GONE = 499  # the status that is counted where a client did not wait for its answer
OPEN = ("/health",)  # what needs no token
FEW_UNITS = 64  # of a request whose response is encoded at once
JOIN_SECONDS = 1.0  # time for a thread to notice that the server ends, after the clients had their grace


class GoneClient(Exception):
    """The client has closed its connection; nobody is to blame."""


class ServiceGuard(Guard):
    """Who may ask."""

    called = "this service"
    app: "Service"


class ModelName(msgspec.Struct):
    """The part of a request that says which model is asked."""

    model: str | msgspec.UnsetType = msgspec.UNSET


class ServedModel:
    """A model under its name, with what it can be asked and the threads that compute."""

    def __init__(self, name: str, model: Any, limits: ServeLimits):
        self.name, self.model = name, model
        self.verbs = verbs_of(name, model, limits)
        if not self.verbs:
            raise SettingError(f"{name}: relmo serve has nothing to offer for this kind of model")
        self.batchers: dict[str, Batcher] = {}
        self.growth: Growth | None = None

    def start(self, metrics: ServiceMetrics, words: int) -> None:
        """Starts the threads, inside of an event loop; they compute so many words at once."""
        for verb in self.verbs.values():
            told = partial(metrics.batch, verb.name, self.name)
            if isinstance(verb, GenerateVerb):
                self.growth = Growth(self.model, told)
            else:
                self.batchers[verb.name] = Batcher(verb.answer, words=words, told=told)

    @property
    def workers(self) -> list[Batcher | Growth]:
        """The threads that compute."""
        return [*self.batchers.values(), *([] if self.growth is None else [self.growth])]


class Service:
    """The application."""

    def __init__(self, models: Mapping[str, Any], limits: ServeLimits, *, token: bool):
        self.models = {name: ServedModel(name, model, limits) for name, model in models.items()}
        self.limits, self.metrics, self.admission = limits, ServiceMetrics(), Admission(limits)
        self.description = description([model.verbs for model in self._all()], token=token)
        self.verbs = {verb for model in self.models.values() for verb in model.verbs}
        self.pages = {
            "/health": self.health,
            "/models": self.list_models,
            "/metrics": self.show_metrics,
            "/openapi.json": lambda: JSONResponse(self.description),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path, method = scope["path"], scope["method"]
        if path in self.pages:
            answer = self.pages[path]() if method in ("GET", "HEAD") else _wrong_method("GET, HEAD")
            await answer(scope, receive, send)
        elif path.removeprefix("/") not in self.verbs:
            found = "there is nothing here; GET /openapi.json says what there is"
            await problem(found, 404)(scope, receive, send)
        elif method != "POST":
            await _wrong_method("POST")(scope, receive, send)
        else:
            await AskedVerb(self, scope, receive, send).respond()

    async def _live(self, receive: Receive, send: Send) -> None:
        """Starts and ends with the server."""
        await receive()
        for model in self.models.values():
            model.start(self.metrics, self.limits.batch_words)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.to_thread(self.close)
        await send({"type": "lifespan.shutdown.complete"})

    def close(self) -> None:
        """End the threads. One that computes a long step is left behind; the process ends without it."""
        workers = [worker for model in self._all() for worker in model.workers]
        for worker in workers:
            worker.close()
        deadline = time.monotonic() + JOIN_SECONDS
        for worker in workers:
            worker.thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_computing(self) -> bool:
        """Whether a thread is alive."""
        return any(worker.thread.is_alive() for model in self._all() for worker in model.workers)

    def health(self) -> Response:
        """That it takes requests."""
        return JSONResponse({"status": "ok"})

    def list_models(self) -> Response:
        """The models, and what each can do."""
        return JSONResponse(
            {"models": [{"name": each.name, "kind": each.model.kind, "verbs": [*each.verbs]} for each in self._all()]}
        )

    def show_metrics(self) -> Response:
        """What was counted."""
        waiting = sum(len(batcher.waiting) for model in self._all() for batcher in model.batchers.values())
        gauges: dict[str, tuple[str, float]] = {
            "relmo_requests_inside": ("Requests that are waiting, computed or being sent.", self.admission.requests),
            "relmo_words_inside": ("Their words, about.", self.admission.words),
            "relmo_requests_waiting": ("Requests that wait to be computed.", waiting),
        }
        return PlainTextResponse(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    def _all(self) -> list[ServedModel]:
        return list(self.models.values())

    def find(self, verb: str, name: Any) -> ServedModel:
        """The model of a name, which must have the verb; the first one that has it where no name is given."""
        able = [model for model in self._all() if verb in model.verbs]
        if name is msgspec.UNSET:
            return able[0]
        for model in able:
            if model.name == name:
                return model
        raise SettingError(f"no model {shown(name)} can {verb} here; {', '.join(model.name for model in able)} can")


def _wrong_method(wanted: str) -> Response:
    return problem(f"ask with {wanted}", 405, {"allow": wanted})


class AskedVerb:
    """A request of a client, from its coming to the end of its answer. The guard has read it whole: the first message
    that is received is its body, and the second comes when the client goes."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send):
        self.service, self.scope, self.receive, self.send = service, scope, receive, send
        self.verb = scope["path"].removeprefix("/")
        self.model, self.units, self.status = "", 0, 200
        self.inside, self.begun = False, False
        self.ticket: Ticket | None = None

    async def respond(self) -> None:
        """Answers the request, or says what is wrong with it; and takes count of it."""
        started = time.perf_counter()
        try:
            await self._answer()
        except RefusedRequest as refused:
            after = {} if refused.after is None else {"retry-after": str(refused.after)}
            await self._refuse(problem(str(refused), refused.status, after))
        except RelmoError as error:
            await self._refuse(problem(str(error)))
        except GoneClient:
            self.status = GONE
        except asyncio.CancelledError:
            self.status = 503
            raise  # the guard tells the client
        except Exception:
            self.status = 500
            if self.begun:
                raise  # and the connection ends in the middle of the answer
            logging.getLogger("relmo.serve").exception("a request failed")
            await self._refuse(problem(OURS, 500))
        finally:
            if self.inside:
                self._leave()
            seconds = time.perf_counter() - started
            self.service.metrics.answered(self.verb, self.model, self.status, seconds, self.units)

    def _leave(self) -> None:
        """Make room for another request, once nothing is computed for this one."""
        leave = partial(self.service.admission.leave, self.units)
        if self.ticket is None or self.ticket.released.done():
            leave()
        else:
            self.ticket.released.add_done_callback(lambda _: leave())

    async def _refuse(self, answer: Response) -> None:
        self.status = answer.status_code
        await answer(self.scope, self.receive, self.send)

    async def _answer(self) -> None:
        admission, client = self.service.admission, self.scope.get("client")
        admission.check_rate("" if client is None else client[0])
        body = (await self.receive())["body"]
        model = self.service.find(self.verb, _model_name(body))
        verb, self.model = model.verbs[self.verb], model.name
        admission.enter()
        self.inside = True
        request = await self._run(verb.decode, body, size=len(body))
        if isinstance(verb, GenerateVerb):
            await self._generate(model, verb, request, size=len(body))
        else:
            asked = await self._run(verb.read, request, size=len(body))
            self._charge(asked.units, asked.largest_cost)
            results: list[Any] = []
            for part in asked.split(self.service.limits.batch_words):
                self.ticket = model.batchers[self.verb].ask(part)
                results += await self._unless_gone(self.ticket.answer)
            encode = partial(verb.encode, asked.options)
            await self._send_whole(await self._run(encode, results, size=LONG * (asked.units > FEW_UNITS)))

    def _charge(self, units: int, largest_item: int = 0) -> None:
        self.service.admission.charge(units, largest_item)
        self.units = units

    @staticmethod
    async def _run(function: Callable[[Any], Any], argument: Any, *, size: int) -> Any:
        """Call a function, for a long request in a thread, so that the event loop goes on."""
        return function(argument) if size < LONG else await asyncio.to_thread(function, argument)

    async def _unless_gone(self, answer: "asyncio.Future[list[Any]]") -> list[Any]:
        """The answer; where the client goes before, it is not wanted any more."""
        gone = asyncio.ensure_future(self.receive())
        gone.add_done_callback(lambda _: answer.cancel())  # which does nothing to an answer that is there
        try:
            return await answer
        except asyncio.CancelledError:
            if gone.done() and not gone.cancelled():
                raise GoneClient from None
            raise
        finally:
            gone.cancel()

    async def _generate(self, model: ServedModel, verb: GenerateVerb, request: Any, *, size: int) -> None:
        """Text as it grows, or at its end."""
        assert model.growth is not None
        self._charge(await self._run(verb.units, request, size=size))
        grown = model.growth.add(verb.begin(request))
        gone = asyncio.ensure_future(self._watch(grown))
        try:
            if request.stream:
                await self._send_lines(_lines(grown))
            else:
                found = [news async for news in _news(grown)][-1]
                await self._send_whole(json.dumps({"model": model.name} | found, ensure_ascii=False).encode())
        finally:
            grown.gone = True
            gone.cancel()

    async def _watch(self, grown: Grown) -> None:
        """Ends the growth where the client goes."""
        await self.receive()
        grown.gone = True
        grown.news.put_nowait(GoneClient())

    async def _begin(self, *headers: tuple[bytes, bytes]) -> None:
        self.begun = True
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_whole(self, answer: bytes) -> None:
        """Sends an answer in pieces, as fast as the client reads."""
        length = str(len(answer)).encode()
        await self._begin((b"content-type", b"application/json"), (b"content-length", length))
        for start in range(0, len(answer), PIECE):
            piece, more = answer[start : start + PIECE], start + PIECE < len(answer)
            await self.send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _send_lines(self, lines: AsyncIterator[bytes]) -> None:
        """Sends lines as they come; what goes wrong before the first one is not the answer's to tell."""
        first = await anext(lines)
        await self._begin((b"content-type", b"application/x-ndjson"))
        await self.send({"type": "http.response.body", "body": first, "more_body": True})
        last = b""
        try:
            async for line in lines:
                await self.send({"type": "http.response.body", "body": line, "more_body": True})
        except asyncio.CancelledError:  # at the end of the grace
            last = json.dumps({"error": SHUTTING_DOWN}).encode() + b"\n"
        await self.send({"type": "http.response.body", "body": last})


def _model_name(body: bytes) -> Any:
    """Return the model that a body names; UNSET if it names none."""
    try:
        return msgspec.json.decode(body, type=ModelName).model
    except (ValueError, RecursionError) as error:
        raise SettingError(f"the request is not valid: {error}") from None


async def _news(grown: Grown) -> AsyncIterator[dict[str, Any]]:
    """What there is to tell of texts that grow; what went wrong is raised."""
    while (news := await grown.news.get()) is not None:
        if isinstance(news, Exception):
            raise news
        yield news


async def _lines(grown: Grown) -> AsyncIterator[bytes]:
    """The news of texts, a JSON object a line. What goes wrong after the first line is told in the last."""
    begun = False
    try:
        async for news in _news(grown):
            yield json.dumps(news, ensure_ascii=False).encode() + b"\n"
            begun = True
    except RelmoError as error:
        if not begun:
            raise
        yield json.dumps({"error": one_line(str(error))}).encode() + b"\n"


def make_app(
    models: Mapping[str, Any],
    limits: ServeLimits,
    *,
    token: str | None = None,
    hosts: tuple[str, ...] | None = None,
) -> ServiceGuard:
    """The service of models by their names: called by any of some names where `hosts` are given, and for those who have
    the token where there is one."""
    return ServiceGuard(
        Service(models, limits, token=token is not None),
        token=token,
        hosts=hosts,
        seconds=limits.seconds,
        largest=limits.max_bytes,
        headers=HEADERS,
        open_to_all=OPEN,
    )

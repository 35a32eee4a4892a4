"""HTTP server for models.

    POST /embed /predict /surprisal /generate      a JSON object, which names its model if there are several
    GET  /health /models /metrics /openapi.json

The thread of the event loop reads and admits requests and sends responses; every endpoint of a model has a thread that
computes (workers.py). A request whose client has disconnected is not computed. A response is sent in chunks, as fast as
its client reads; until then its request counts as admitted.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from relmo.errors import RelmoError, SettingError, quote
from relmo.serve.admission import Admission, RefusedRequest
from relmo.serve.endpoints import encode_json, make_endpoints
from relmo.serve.metrics import ServiceMetrics
from relmo.serve.openapi import describe_service
from relmo.serve.workers import EndpointWorker, ParsedRequest, QueuedRequest
from relmo.settings.options import ServeLimits
from relmo.web.guard import INTERNAL_ERROR, SHUTTING_DOWN, Guard, error_response, one_line

HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
CHUNK_BYTES = 1 << 16
MAX_INLINE_BYTES = 1 << 14  # larger requests are parsed in a thread, so that the event loop goes on
MAX_INLINE_COST = 64  # responses of more expensive requests are encoded in a thread
CLIENT_DISCONNECTED = 499  # status in the metrics
PUBLIC_PATHS = ("/health",)  # need no token
JOIN_SECONDS = 1.0  # time for a thread to notice that the server ends, after the grace period of the clients


class ClientDisconnected(Exception):
    """The client has closed its connection."""


class ServiceGuard(Guard):
    """Checks before the service."""

    server_name = "This service"
    app: "Service"


class ModelName(msgspec.Struct):
    """Part of a request that names the model."""

    model: str | msgspec.UnsetType = msgspec.UNSET


class ServedModel:
    """A model with its name, its endpoints and their worker threads."""

    def __init__(self, name: str, model: Any, limits: ServeLimits):
        self.name, self.kind = name, model.kind
        self.endpoints = make_endpoints(name, model, limits)
        if not self.endpoints:
            raise SettingError(f"{name}: this kind of model cannot be served.")
        self.workers: dict[str, EndpointWorker] = {}

    def start(self, metrics: ServiceMetrics) -> None:
        """Start the threads; needs a running event loop."""
        for endpoint in self.endpoints.values():
            on_batch = partial(metrics.add_batch, endpoint.name, self.name)
            self.workers[endpoint.name] = endpoint.start_worker(on_batch)


class Service:
    """ASGI application."""

    def __init__(self, models: Mapping[str, Any], limits: ServeLimits, *, token: bool):
        self.models = [ServedModel(name, model, limits) for name, model in models.items()]
        self.limits, self.metrics, self.admission = limits, ServiceMetrics(), Admission(limits)
        description = describe_service([model.endpoints for model in self.models], token=token)
        entries = [{"name": model.name, "kind": model.kind, "verbs": [*model.endpoints]} for model in self.models]
        self.endpoints = {endpoint for model in self.models for endpoint in model.endpoints}
        self.pages: dict[str, Callable[[], Response]] = {
            "/health": lambda: JSONResponse({"status": "ok"}),
            "/models": lambda: JSONResponse({"models": entries}),
            "/metrics": self.show_metrics,
            "/openapi.json": lambda: JSONResponse(description),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
            return
        path = scope["path"]
        methods = ("GET", "HEAD") if path in self.pages else ("POST",)
        if path not in self.pages and path.removeprefix("/") not in self.endpoints:
            response: Response = error_response("Unknown path; GET /openapi.json lists the endpoints.", 404)
        elif scope["method"] not in methods:
            allowed = ", ".join(methods)
            response = error_response(f"Method not allowed; use {allowed}.", 405, {"allow": allowed})
        elif path in self.pages:
            response = self.pages[path]()
        else:
            await RequestHandler(self, scope, receive, send).handle()
            return
        await response(scope, receive, send)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        for model in self.models:
            model.start(self.metrics)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.to_thread(self.close)
        await send({"type": "lifespan.shutdown.complete"})

    @property
    def workers(self) -> list[EndpointWorker]:
        """EndpointWorker threads of all models."""
        return [worker for model in self.models for worker in model.workers.values()]

    def close(self) -> None:
        """End the threads. One that computes a long step is left behind; the process ends without it."""
        for worker in self.workers:
            worker.close()
        deadline = time.monotonic() + JOIN_SECONDS
        for worker in self.workers:
            worker.thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_computing(self) -> bool:
        """Whether a worker thread is alive."""
        return any(worker.thread.is_alive() for worker in self.workers)

    def show_metrics(self) -> Response:
        """Return the metrics for Prometheus."""
        num_waiting = sum(len(worker.queue) for worker in self.workers)
        gauges: dict[str, tuple[str, float]] = {
            "relmo_requests_inside": ("Admitted requests: waiting, computed or being sent.", self.admission.requests),
            "relmo_words_inside": ("Approximate number of their words.", self.admission.words),
            "relmo_requests_waiting": ("Requests in the queues.", num_waiting),
        }
        return PlainTextResponse(self.metrics.format(gauges), media_type="text/plain; version=0.0.4")

    def find_model(self, endpoint: str, body: bytes) -> ServedModel:
        """Return the model that a request names, by default the first one with the endpoint."""
        try:
            name = msgspec.json.decode(body, type=ModelName).model
        except (ValueError, RecursionError) as error:
            raise SettingError(f"The request is invalid: {error}") from None
        models = [model for model in self.models if endpoint in model.endpoints]
        if name is msgspec.UNSET:
            return models[0]
        for model in models:
            if model.name == name:
                return model
        names = ", ".join(model.name for model in models)
        raise SettingError(f"No model {quote(str(name))} has the endpoint {endpoint}. Models with it: {names}.")


class RequestHandler:
    """Handler of one request. The guard has read the request: the first message that is received is its body, and the
    second one arrives when the client disconnects."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send):
        self.service, self.scope, self.receive, self.send = service, scope, receive, send
        self.endpoint = scope["path"].removeprefix("/")
        self.model_name, self.cost, self.status = "", 0, 200
        self.is_admitted, self.has_started, self.is_disconnected = False, False, False
        self.worker: EndpointWorker | None = None
        self.job: QueuedRequest | None = None
        self.watcher: asyncio.Task[None] | None = None

    async def handle(self) -> None:
        """Send the response or an error, and count the request."""
        start_time = time.perf_counter()
        try:
            await self._respond()
        except RefusedRequest as refusal:
            headers = {} if refusal.retry_after is None else {"retry-after": str(refusal.retry_after)}
            await self._send_error(error_response(str(refusal), refusal.status, headers))
        except RelmoError as error:
            await self._send_error(error_response(str(error)))
        except ClientDisconnected:
            self.status = CLIENT_DISCONNECTED
        except asyncio.CancelledError:
            self.status = 503
            raise  # the guard sends the response
        except Exception:
            self.status = 500
            if self.has_started:
                raise  # the connection ends in the middle of the response
            logging.getLogger("relmo.serve").exception("request failed")
            await self._send_error(error_response(INTERNAL_ERROR, 500))
        finally:
            self._release()
            seconds = time.perf_counter() - start_time
            self.service.metrics.add_request(self.endpoint, self.model_name, self.status, seconds, self.cost)

    def _release(self) -> None:
        """Cancel the computation; the request counts as admitted until that has ended."""
        if self.watcher is not None:
            self.watcher.cancel()
        if self.worker is not None and self.job is not None:
            self.worker.cancel(self.job)
        if self.is_admitted:
            leave = partial(self.service.admission.leave, self.cost)
            if self.job is None or self.job.released.done():
                leave()
            else:
                self.job.released.add_done_callback(lambda _: leave())

    async def _send_error(self, response: Response) -> None:
        self.status = response.status_code
        await response(self.scope, self.receive, self.send)

    async def _respond(self) -> None:
        service, client = self.service, self.scope.get("client")
        service.admission.check_rate("" if client is None else client[0])
        body = (await self.receive())["body"]
        model = service.find_model(self.endpoint, body)
        self.model_name, self.worker = model.name, model.workers[self.endpoint]
        service.admission.enter()
        self.is_admitted = True
        endpoint = model.endpoints[self.endpoint]
        is_large = len(body) >= MAX_INLINE_BYTES
        request = await asyncio.to_thread(endpoint.parse, body) if is_large else endpoint.parse(body)
        service.admission.charge(request.cost, request.largest_cost)
        self.cost = request.cost
        self.watcher = asyncio.create_task(self._watch_client())
        results = self._compute(self.worker, request)
        if request.is_streamed:
            await self._send_lines(results)
            return
        encode = partial(endpoint.encode, request.options, [result async for result in results])
        await self._send_body(await asyncio.to_thread(encode) if request.cost > MAX_INLINE_COST else encode())

    async def _watch_client(self) -> None:
        await self.receive()
        self.is_disconnected = True
        if self.worker is not None and self.job is not None:
            self.worker.cancel(self.job)
            self.job.events.put_nowait(ClientDisconnected())

    async def _compute(self, worker: EndpointWorker, request: ParsedRequest) -> AsyncIterator[Any]:
        """Yield the results of a request as they are computed."""
        for part in request.split(self.service.limits.batch_words):
            if self.is_disconnected:
                raise ClientDisconnected
            self.job = worker.submit(part)
            async for result in self.job:
                yield result

    async def _start_response(self, *headers: tuple[bytes, bytes]) -> None:
        self.has_started = True
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_body(self, body: bytes) -> None:
        length = str(len(body)).encode()
        await self._start_response((b"content-type", b"application/json"), (b"content-length", length))
        for start in range(0, len(body), CHUNK_BYTES):
            end = start + CHUNK_BYTES
            await self.send({"type": "http.response.body", "body": body[start:end], "more_body": end < len(body)})

    async def _send_lines(self, results: AsyncIterator[Any]) -> None:
        """Send results as lines of JSON. An error before the first one is raised, a later one is sent as a line."""
        line, final = encode_json(await anext(results)) + b"\n", b""
        await self._start_response((b"content-type", b"application/x-ndjson"))
        try:
            await self.send({"type": "http.response.body", "body": line, "more_body": True})
            async for result in results:
                line = encode_json(result) + b"\n"
                await self.send({"type": "http.response.body", "body": line, "more_body": True})
        except RelmoError as error:
            final = encode_json({"error": one_line(str(error))}) + b"\n"
        except asyncio.CancelledError:  # the grace period has ended
            final = encode_json({"error": SHUTTING_DOWN}) + b"\n"
        await self.send({"type": "http.response.body", "body": final})


def make_app(
    models: Mapping[str, Any], limits: ServeLimits, *, token: str | None = None, hosts: tuple[str, ...] | None = None
) -> ServiceGuard:
    """Return the application that serves models by name; `hosts` are the host names that requests may use."""
    return ServiceGuard(
        Service(models, limits, token=token is not None),
        token=token,
        hosts=hosts,
        seconds=limits.seconds,
        max_bytes=limits.max_bytes,
        headers=HEADERS,
        open_to_all=PUBLIC_PATHS,
    )

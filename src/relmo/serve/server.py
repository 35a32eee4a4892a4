"""HTTP server for models.

    POST /embed /predict /surprisal /generate      a JSON object, which names its model if there are several
    GET  /health /models /metrics /openapi.json

The thread of the event loop reads and admits requests and sends responses; every endpoint of a model has a thread that
computes (workers.py). A request whose client has disconnected is not computed. A response is sent in chunks, as fast as
its client reads; until then its request counts as admitted.
"""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from relmo.errors import RelmoError, SettingError, quote
from relmo.serve.endpoints import Endpoint, describe_service, encode_json, make_endpoints
from relmo.serve.workers import Admission, EndpointWorker, QueuedRequest
from relmo.settings.options import ServeLimits
from relmo.web.guard import INTERNAL_ERROR, SHUTTING_DOWN, Guard, error_response, one_line

HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
CHUNK_BYTES = 1 << 16
MAX_INLINE_BYTES = 1 << 14  # larger requests are parsed in a thread, so that the event loop goes on
MAX_INLINE_COST = 64  # responses of more expensive requests are encoded in a thread
CLIENT_DISCONNECTED = 499  # status in the metrics
PUBLIC_PATHS = ("/health",)  # need no token
JOIN_SECONDS = 1.0  # time for a thread to notice that the server ends, after the grace period of the clients


SECONDS_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
METRICS: dict[str, tuple[str, str, tuple[float, ...]]] = {  # type, description and, for a histogram, upper bounds
    "relmo_requests_total": ("counter", "Requests by status.", ()),
    "relmo_words_total": ("counter", "Approximate number of words of successful requests.", ()),
    "relmo_request_seconds": ("histogram", "Time from a request to its response.", SECONDS_BOUNDS),
    "relmo_batch_requests": ("histogram", "Requests per batch.", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
}


class ServiceMetrics:
    """Counters and histograms for any thread: https://prometheus.io/docs/instrumenting/exposition_formats."""

    def __init__(self) -> None:
        self.lock, self.start_time = threading.Lock(), time.time()
        self.samples: dict[str, dict[str, float]] = {name: defaultdict(int) for name in METRICS}

    def add(self, name: str, value: float, **labels: str) -> None:
        """Increase a counter, or count a value in a histogram."""
        pairs = []
        for label, text in labels.items():
            escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            pairs.append(f'{label}="{escaped}"')
        joined, samples, bounds = ",".join(pairs), self.samples[name], METRICS[name][2]
        with self.lock:
            if not bounds:
                samples[f"{name}{{{joined}}}"] += value
                return
            for bound in bounds:
                samples[f'{name}_bucket{{{joined},le="{bound}"}}'] += value <= bound
            samples[f'{name}_bucket{{{joined},le="+Inf"}}'] += 1
            samples[f"{name}_sum{{{joined}}}"] += float(value)
            samples[f"{name}_count{{{joined}}}"] += 1


class ClientDisconnected(Exception):
    """The client has closed its connection."""


class ModelName(msgspec.Struct):
    """Part of a request that names the model."""

    model: str | msgspec.UnsetType = msgspec.UNSET


class Service:
    """ASGI application; `workers` are the threads of all endpoints."""

    def __init__(self, models: Mapping[str, Any], limits: ServeLimits, *, token: bool):
        self.limits, self.metrics, self.admission = limits, ServiceMetrics(), Admission(limits)
        self.workers: list[EndpointWorker] = []
        self.endpoints: dict[str, dict[str, Endpoint]] = {}  # by name, then by model
        by_model = {name: make_endpoints(name, model, limits) for name, model in models.items()}
        entries = []
        for name, endpoints in by_model.items():
            if not endpoints:
                raise SettingError(f"{name}: this kind of model cannot be served.")
            entries.append({"name": name, "kind": models[name].kind, "verbs": [*endpoints]})
            for verb, endpoint in endpoints.items():
                self.endpoints.setdefault(verb, {})[name] = endpoint
        description = describe_service([*by_model.values()], token=token)
        self.pages: dict[str, Callable[[], Response]] = {
            "/health": lambda: JSONResponse({"status": "ok"}),
            "/models": lambda: JSONResponse({"models": entries}),
            "/metrics": self.show_metrics,
            "/openapi.json": lambda: JSONResponse(description),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            for endpoint in [endpoint for group in self.endpoints.values() for endpoint in group.values()]:
                name, model = endpoint.name, endpoint.model_name
                on_batch = partial(self.metrics.add, "relmo_batch_requests", verb=name, model=model)
                endpoint.worker = endpoint.start_worker(on_batch)
                self.workers.append(endpoint.worker)
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await asyncio.to_thread(self.close)
            await send({"type": "lifespan.shutdown.complete"})
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

    def close(self) -> None:
        """End the threads. One that computes a long step is left behind; the process ends without it."""
        for worker in self.workers:
            worker.close()
        deadline = time.monotonic() + JOIN_SECONDS
        for worker in self.workers:
            worker.thread.join(max(0.0, deadline - time.monotonic()))

    def show_metrics(self) -> Response:
        """Return the metrics for Prometheus."""
        num_waiting = sum(len(worker.queue) for worker in self.workers)
        gauges: dict[str, tuple[str, float]] = {
            "relmo_requests_inside": ("Admitted requests: waiting, computed or being sent.", self.admission.requests),
            "relmo_words_inside": ("Approximate number of their words.", self.admission.words),
            "relmo_requests_waiting": ("Requests in the queues.", num_waiting),
            "process_start_time_seconds": ("Start time in Unix time.", self.metrics.start_time),
        }
        with suppress(OSError, IndexError, ValueError):  # Linux only
            resident_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
            gauges["process_resident_memory_bytes"] = ("Resident memory.", resident_bytes)
        lines = []
        with self.metrics.lock:
            for name, (kind, description, _) in METRICS.items():
                lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
                lines += [f"{sample} {value}" for sample, value in self.metrics.samples[name].items()]
        for name, (description, value) in gauges.items():
            lines += [f"# HELP {name} {description}", f"# TYPE {name} gauge", f"{name} {value}"]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


class RequestHandler:
    """Handler of one request. The guard has read the request: the first message that is received is its body, and the
    second one arrives when the client disconnects."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send):
        self.service, self.scope, self.receive, self.send = service, scope, receive, send
        self.verb = scope["path"].removeprefix("/")
        self.cost, self.status = 0, 200
        self.is_admitted, self.has_started, self.is_disconnected = False, False, False
        self.endpoint: Endpoint | None = None
        self.job: QueuedRequest | None = None
        self.watcher: asyncio.Task[None] | None = None

    async def handle(self) -> None:
        """Send the response or an error, and count the request."""
        start_time, response = time.perf_counter(), None
        try:
            try:
                await self._respond()
            except RelmoError as error:
                retry_after = getattr(error, "retry_after", None)
                headers = {} if retry_after is None else {"retry-after": str(retry_after)}
                response = error_response(str(error), getattr(error, "status", 400), headers)
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
                response = error_response(INTERNAL_ERROR, 500)
            if response is not None:
                self.status = response.status_code
                await response(self.scope, self.receive, self.send)
        finally:
            if self.watcher is not None:
                self.watcher.cancel()
            if self.endpoint is not None and self.job is not None:
                self.endpoint.worker.cancel(self.job)
            if self.is_admitted:  # the request counts as admitted until its computation has ended
                leave = partial(self.service.admission.leave, self.cost)
                if self.job is None or self.job.released.done():
                    leave()
                else:
                    self.job.released.add_done_callback(lambda _: leave())
            metrics = self.service.metrics
            labels = {"verb": self.verb, "model": "" if self.endpoint is None else self.endpoint.model_name}
            metrics.add("relmo_requests_total", 1, **labels, status=str(self.status))
            if self.status == 200:
                metrics.add("relmo_words_total", self.cost, **labels)
                metrics.add("relmo_request_seconds", time.perf_counter() - start_time, **labels)

    async def _respond(self) -> None:
        admission, client = self.service.admission, self.scope.get("client")
        admission.check_rate("" if client is None else client[0])
        body = (await self.receive())["body"]
        try:
            name = msgspec.json.decode(body, type=ModelName).model
        except (ValueError, RecursionError) as error:
            raise SettingError(f"The request is invalid: {error}") from None
        endpoints = self.service.endpoints[self.verb]
        if name is msgspec.UNSET:
            name = next(iter(endpoints))  # the first model that has this endpoint
        if name not in endpoints:
            models = ", ".join(endpoints)
            raise SettingError(f"No model {quote(str(name))} has the endpoint {self.verb}. Models with it: {models}.")
        self.endpoint = endpoint = endpoints[name]
        admission.enter()
        self.is_admitted = True
        is_large = len(body) >= MAX_INLINE_BYTES
        request = await asyncio.to_thread(endpoint.parse, body) if is_large else endpoint.parse(body)
        admission.charge(request.cost, max(request.item_costs, default=request.cost))
        self.cost = request.cost

        async def watch_client() -> None:
            await self.receive()
            self.is_disconnected = True
            if self.job is not None:
                endpoint.worker.cancel(self.job)
                self.job.events.put_nowait(ClientDisconnected())

        async def compute() -> AsyncIterator[Any]:
            for part in request.split(self.service.limits.batch_words):
                if self.is_disconnected:
                    raise ClientDisconnected
                self.job = endpoint.worker.submit(part)
                async for result in self.job:
                    yield result

        self.watcher = asyncio.create_task(watch_client())
        if request.is_streamed:
            # lines of JSON; an error before the first one is raised, a later one is sent as a line
            results = compute()
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
            return
        encode = partial(endpoint.encode, request.options, [result async for result in compute()])
        body = await asyncio.to_thread(encode) if request.cost > MAX_INLINE_COST else encode()
        await self._start_response((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)))
        for start in range(0, len(body), CHUNK_BYTES):
            end = start + CHUNK_BYTES
            await self.send({"type": "http.response.body", "body": body[start:end], "more_body": end < len(body)})

    async def _start_response(self, *headers: tuple[bytes, bytes]) -> None:
        self.has_started = True
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})


def make_app(
    models: Mapping[str, Any], limits: ServeLimits, *, token: str | None = None, hosts: tuple[str, ...] | None = None
) -> Guard:
    """Return the application that serves models by name; `hosts` are the host names that requests may use."""
    return Guard(
        Service(models, limits, token=token is not None),
        token=token,
        hosts=hosts,
        seconds=limits.seconds,
        max_bytes=limits.max_bytes,
        headers=HEADERS,
        open_to_all=PUBLIC_PATHS,
    )

"""Admission of requests, and the threads that compute the requests of many clients together.

A request is admitted until its response is read. One that exceeds a limit is refused at once, so that an overloaded
server continues to serve the requests it has admitted.

`Batcher` computes one batch after the other. A batch is everything that arrived while the previous one was computed, so
a request waits for nobody when the server is idle, and batches grow with the load. Requests with different options are
in different batches, and the oldest request is always in the next one.

`TextGenerator` extends all texts by one symbol at a time. A new request joins at the next symbol, and one that is
finished or cancelled leaves. If a batch fails, its requests are computed one by one, so that only those at fault fail.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from relmo.errors import ComputationCancelled, RelmoError, cancellable
from relmo.models.generate import step_batch
from relmo.settings.options import ServeLimits

MAX_CLIENTS = 4096  # whose rates are tracked
BUSY = "The server is busy; try again after 1 s."


class RefusedRequest(RelmoError):
    """Refusal of a request: HTTP status, message and, if it may be repeated, the seconds to wait."""

    def __init__(self, status: int, message: str, retry_after: int | None = None):
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class Admission:
    """Number and cost of the admitted requests, and the request rate of each client. Used by the event loop alone."""

    def __init__(self, limits: ServeLimits, clock: Callable[[], float] = time.monotonic):
        self.limits, self.clock = limits, clock
        self.requests, self.words = 0, 0
        self.clients: OrderedDict[str, tuple[float, float]] = OrderedDict()  # remaining requests, time of the update

    def check_rate(self, client: str) -> None:
        """Take a token from the client's bucket of one second's requests; raise `RefusedRequest` if it is empty."""
        rate = self.limits.rate
        if not rate:
            return
        now, capacity = self.clock(), max(1.0, rate)
        tokens, updated = self.clients.pop(client, (capacity, now))
        tokens = min(capacity, tokens + rate * (now - updated))
        self.clients[client] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self.clients) > MAX_CLIENTS:
            self.clients.popitem(last=False)
        if tokens < 1:
            seconds = max(1, round((1 - tokens) / rate + 0.5))
            message = f"The limit is {rate:g} requests per second; try again after {seconds} s."
            raise RefusedRequest(429, message, seconds)

    def enter(self) -> None:
        """Admit a request of unknown cost, or raise `RefusedRequest`. `leave` must follow."""
        if self.requests >= self.limits.queue:
            raise RefusedRequest(503, BUSY, 1)
        self.requests += 1

    def charge(self, cost: int, largest_item: int = 0) -> None:
        """Add the cost of an admitted request, or raise `RefusedRequest`; an item is computed without interruption."""
        limits, max_item = self.limits, (self.limits.max_words + 1) // 2
        if largest_item > max_item:
            message = f"An input of the request costs {largest_item:,} units of this model"
            raise RefusedRequest(413, f"{message}; the maximum is {max_item:,}. Split it.")
        if cost > limits.max_words:
            message = f"The request costs {cost:,} units of this model (words, subwords or characters)"
            raise RefusedRequest(413, f"{message}; the maximum is {limits.max_words:,}. Send several requests.")
        if self.words + cost > 16 * limits.max_words:
            raise RefusedRequest(503, BUSY, 1)
        self.words += cost

    def leave(self, cost: int) -> None:
        """Release a request that was answered, or whose client has disconnected and whose computation has ended."""
        self.requests -= 1
        self.words -= cost


class ParsedRequest(NamedTuple):
    """A valid request."""

    items: list[Any]
    options: Hashable  # requests with the same options can share a batch
    cost: int  # in units of the model
    item_costs: Sequence[int] = ()  # of items that are independent of each other
    is_streamed: bool = False  # whether results are sent one by one

    def split(self, max_cost: int) -> "list[ParsedRequest]":
        """Return parts of at most `max_cost` (or one item), so that other requests are computed in between."""
        parts: list[ParsedRequest] = []
        for item, cost in zip(self.items, self.item_costs, strict=False):
            if parts and parts[-1].cost + cost <= max_cost:
                parts[-1].items.append(item)
                parts[-1] = parts[-1]._replace(cost=parts[-1].cost + cost)
            else:
                parts.append(ParsedRequest([item], self.options, cost))
        return parts or [self]


class QueuedRequest:
    """A request in a worker; iterating over it yields its results as they are computed."""

    def __init__(self, request: ParsedRequest, loop: asyncio.AbstractEventLoop):
        self.request = request
        self.events: asyncio.Queue[Any] = asyncio.Queue()  # results to send, an exception, or None at the end
        self.released: asyncio.Future[None] = loop.create_future()  # done when nothing is computed for it any more
        self.is_cancelled = False  # whether the results are no longer needed
        self.sent: list[str] = []  # what the client has of each text that is generated

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (event := await self.events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    def add_events(self, events: Sequence[Any]) -> None:
        """Queue events; None, the last one, releases the job."""
        for event in events:
            self.events.put_nowait(event)
            if event is None and not self.released.done():
                self.released.set_result(None)


class EndpointWorker:
    """Thread that computes the requests of an endpoint of a model. `on_batch` is called with the size of each batch."""

    _wait_for_jobs: Callable[[], list[QueuedRequest]]
    """Wait for the jobs of the next batch; return none if the worker is closed."""
    _compute: Callable[[Sequence[QueuedRequest]], Sequence[list[Any]]]
    """Compute a batch; return the events of each job."""

    def __init__(self, on_batch: Callable[[int], object]):
        self.on_batch = on_batch
        self.loop = asyncio.get_running_loop()
        self.queue: list[QueuedRequest] = []
        self.changed = threading.Condition()
        self.is_closed = False
        self.thread = threading.Thread(target=self._work, name=f"relmo {type(self).__name__}", daemon=True)
        self.thread.start()

    def submit(self, request: ParsedRequest) -> QueuedRequest:
        """Queue a request."""
        job = QueuedRequest(request, self.loop)
        with self.changed:
            self.queue.append(job)
            self.changed.notify()
        return job

    def cancel(self, job: QueuedRequest) -> None:
        """Do not compute a job, or compute it no further."""
        with self.changed:
            job.is_cancelled = True
            is_queued = job in self.queue
            if is_queued:
                self.queue.remove(job)
        if is_queued:
            job.released.set_result(None)

    def close(self) -> None:
        """End the thread; a computation ends at its next step."""
        with self.changed:
            self.is_closed = True
            self.changed.notify()

    def _work(self) -> None:
        while jobs := self._wait_for_jobs():
            running = [job for job in jobs if not job.is_cancelled]
            events: dict[QueuedRequest, list[Any]] = {job: [None] for job in jobs}
            if running:
                self.on_batch(len(running))
                events |= zip(running, self._compute(running), strict=True)
            for job in jobs:
                if not self.loop.is_closed():  # after a shutdown that did not wait for this batch
                    self.loop.call_soon_threadsafe(job.add_events, events[job])


def compute_isolated(
    compute: Callable[[Sequence[QueuedRequest]], Sequence[list[Any]]], jobs: Sequence[QueuedRequest]
) -> Sequence[list[Any]]:
    """Compute the events of each job. If that fails, compute each job alone, so that only those at fault fail."""
    try:
        return compute(jobs)
    except Exception as error:
        if len(jobs) == 1 or isinstance(error, ComputationCancelled):
            return [[error, None]] * len(jobs)
        return [compute_isolated(compute, [job])[0] for job in jobs]


class Batcher(EndpointWorker):
    """Worker whose batches cost at most `max_cost` units (or consist of one request). `compute` returns the results of
    each request, given the options and the items of each request."""

    def __init__(
        self,
        compute: Callable[[Any, Sequence[list[Any]]], list[list[Any]]],
        *,
        max_cost: int,
        on_batch: Callable[[int], object] = lambda size: None,
    ):
        self.compute, self.max_cost = compute, max_cost
        super().__init__(on_batch)

    def _wait_for_jobs(self) -> list[QueuedRequest]:
        with self.changed:
            self.changed.wait_for(lambda: self.queue or self.is_closed)
            if self.is_closed:
                return []
            jobs, cost = [self.queue[0]], self.queue[0].request.cost
            for job in self.queue[1:]:
                if job.request.options == jobs[0].request.options and cost + job.request.cost <= self.max_cost:
                    jobs.append(job)
                    cost += job.request.cost
            self.queue = [job for job in self.queue if job not in jobs]
            return jobs

    def _compute(self, jobs: Sequence[QueuedRequest]) -> Sequence[list[Any]]:
        def compute_batch(jobs: Sequence[QueuedRequest]) -> list[list[Any]]:
            with cancellable(lambda: self.is_closed or all(job.is_cancelled for job in jobs)):
                results = self.compute(jobs[0].request.options, [job.request.items for job in jobs])
            return [[*items, None] for items in results]

        return compute_isolated(compute_batch, jobs)


class TextGenerator(EndpointWorker):
    """Worker that extends the texts of all requests by one symbol per batch. `start` returns the texts of a request at
    their beginning; `texts` has those of each request, None before the first step."""

    def __init__(self, network: Any, start: Callable[[Any], Any], on_batch: Callable[[int], object]):
        self.network, self.start = network, start
        self.texts: dict[QueuedRequest, Any] = {}
        super().__init__(on_batch)

    def _wait_for_jobs(self) -> list[QueuedRequest]:
        with self.changed:
            self.changed.wait_for(lambda: self.texts or self.queue or self.is_closed)
            if self.is_closed:
                return []
            self.texts |= dict.fromkeys(self.queue)
            self.queue = []
        jobs = list(self.texts)
        self.texts = {job: texts for job, texts in self.texts.items() if not job.is_cancelled}
        return jobs

    def _compute(self, jobs: Sequence[QueuedRequest]) -> list[list[Any]]:
        def step(jobs: Sequence[QueuedRequest]) -> list[list[Any]]:
            """Run the network on the next inputs of all texts; there are no events yet."""
            for job in jobs:
                self.texts[job] = self.texts[job] or self.start(job.request.items[0])
            step_batch(self.network, [texts for job in jobs if (texts := self.texts[job])])
            return [[] for _ in jobs]

        outcomes = []
        for job, error_events in zip(jobs, compute_isolated(step, jobs), strict=True):
            outcomes.append(error_events or compute_isolated(self._extend, [job])[0])
            if None in outcomes[-1]:
                del self.texts[job]
        return outcomes

    def _extend(self, jobs: Sequence[QueuedRequest]) -> list[list[Any]]:
        """Sample the next symbol of each text of a job once the prompt is read; return the events for the client."""
        (job,) = jobs
        texts, events = self.texts[job], list[Any]()
        if texts.log_probs is not None:
            samples = texts.add()
            job.sent = job.sent or [""] * len(samples)
            for number, (sample, sent) in enumerate(zip(samples, job.sent, strict=True)):
                if not sample.text.startswith(sent):  # a new word changed what preceded it
                    events.append({"sample": number, "text": sample.text})
                elif sample.text != sent:
                    events.append({"sample": number, "added": sample.text[len(sent) :]})
                job.sent[number] = sample.text
            if texts.done:
                events += [{"texts": [asdict(sample) for sample in samples]}, None]
        return [events]

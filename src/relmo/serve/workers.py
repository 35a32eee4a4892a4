"""Threads that compute the requests of many clients together.

`Batcher` computes one batch after the other. A batch is everything that arrived while the previous one was computed, so
a request waits for nobody when the server is idle, and batches grow with the load. Requests with different options are
in different batches, and the oldest request is always in the next one.

`TextGenerator` extends all texts by one symbol at a time. A new request joins at the next symbol, and one that is
finished or cancelled leaves, so no request waits for the end of another one's text.

If a batch fails, each of its requests is computed alone, so that only those at fault fail.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from relmo.errors import ComputationCancelled, cancellable
from relmo.models.generate import step_batch

if TYPE_CHECKING:
    from relmo.models.lm import SampledTexts


class ParsedRequest(NamedTuple):
    """A valid request: its items, the options (requests with the same options can share a batch), its cost in units of
    the model, the cost of each item if the items are independent of each other, and whether its results are sent one by
    one."""

    items: list[Any]
    options: Hashable
    cost: int
    item_costs: Sequence[int] = ()
    is_streamed: bool = False

    @property
    def largest_cost(self) -> int:
        """Cost of the most expensive item, or of the request if its items depend on each other."""
        return max(self.item_costs, default=self.cost)

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
    """A request in a worker; iterating over it yields its results as they are computed.

    events         results to send, an exception, or None at the end
    released       done when nothing is computed for the request any more
    is_cancelled   whether the results are no longer needed
    """

    def __init__(self, request: ParsedRequest, loop: asyncio.AbstractEventLoop):
        self.request = request
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.released: asyncio.Future[None] = loop.create_future()
        self.is_cancelled = False

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
    """Thread that computes the requests of one endpoint of a model. `on_batch` is called with the size of each
    batch."""

    def __init__(self, on_batch: Callable[[int], object] = lambda size: None):
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

    def _wait_for_jobs(self) -> list[QueuedRequest]:
        """Wait for the jobs of the next batch; return none if the worker is closed."""
        raise NotImplementedError

    def _compute(self, jobs: Sequence[QueuedRequest]) -> Sequence[list[Any]]:
        """Compute a batch; return the events of each job."""
        raise NotImplementedError


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
        return compute_isolated(self._compute_batch, jobs)

    def _compute_batch(self, jobs: Sequence[QueuedRequest]) -> list[list[Any]]:
        with cancellable(lambda: self.is_closed or all(job.is_cancelled for job in jobs)):
            results = self.compute(jobs[0].request.options, [job.request.items for job in jobs])
        return [[*items, None] for items in results]


class TextStream:
    """Texts of a request while they are generated, and what its client has been sent of each."""

    def __init__(self, texts: "SampledTexts"):
        self.texts, self.sent = texts, [""] * texts.batch.rows

    def extend(self) -> list[Any]:
        """Sample the next symbol of each text once the prompt is read; return the events for the client.

        An event has the end of a text, or all of it if a new word changed what preceded it."""
        if self.texts.batch.log_probs is None:
            return []
        events: list[Any] = []
        samples = self.texts.add()
        for number, (sample, sent) in enumerate(zip(samples, self.sent, strict=True)):
            if not sample.text.startswith(sent):
                events.append({"sample": number, "text": sample.text})
            elif sample.text != sent:
                events.append({"sample": number, "added": sample.text[len(sent) :]})
            self.sent[number] = sample.text
        if self.texts.batch.done:
            events += [{"texts": [asdict(sample) for sample in samples]}, None]
        return events


class TextGenerator(EndpointWorker):
    """Worker that extends the texts of all requests by one symbol per batch. `start` returns the texts of a request at
    their beginning."""

    def __init__(self, network: Any, start: "Callable[[Any], SampledTexts]", on_batch: Callable[[int], object]):
        self.network, self.start = network, start
        self.streams: dict[QueuedRequest, TextStream | None] = {}  # None before the first step
        super().__init__(on_batch)

    def _wait_for_jobs(self) -> list[QueuedRequest]:
        with self.changed:
            self.changed.wait_for(lambda: self.streams or self.queue or self.is_closed)
            if self.is_closed:
                return []
            self.streams |= dict.fromkeys(self.queue)
            self.queue = []
        jobs = list(self.streams)
        self.streams = {job: stream for job, stream in self.streams.items() if not job.is_cancelled}
        return jobs

    def _compute(self, jobs: Sequence[QueuedRequest]) -> list[list[Any]]:
        outcomes = []
        for job, error_events in zip(jobs, compute_isolated(self._step, jobs), strict=True):
            outcomes.append(error_events or compute_isolated(self._extend, [job])[0])
            if None in outcomes[-1]:
                del self.streams[job]
        return outcomes

    def _step(self, jobs: Sequence[QueuedRequest]) -> list[list[Any]]:
        """Run the network on the next inputs of all texts; there are no events yet."""
        for job in jobs:
            self.streams[job] = self.streams[job] or TextStream(self.start(job.request.items[0]))
        step_batch(self.network, [stream.texts.batch for job in jobs if (stream := self.streams[job])])
        return [[] for _ in jobs]

    def _extend(self, jobs: Sequence[QueuedRequest]) -> list[list[Any]]:
        return [stream.extend() for job in jobs if (stream := self.streams[job])]

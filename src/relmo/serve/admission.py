"""Admission of requests: a limit for all together, and a rate limit per client.

A request is admitted until its response is read. One that exceeds a limit is refused at once, with the time after which
to retry, so that an overloaded server continues to serve the requests it has admitted.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from relmo.settings.options import ServeLimits

MAX_CLIENTS = 4096  # whose rates are tracked
BUSY = "The server is busy; try again after 1 s."


class RefusedRequest(Exception):
    """Refusal of a request: HTTP status, message and, if it may be repeated, the seconds to wait."""

    def __init__(self, status: int, message: str, retry_after: int | None = None):
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class Admission:
    """Number and cost of the admitted requests, and the request rate of each client. Used by the thread of the event
    loop alone.

    clients   remaining requests of each client, and the time they were computed
    """

    def __init__(self, limits: ServeLimits, clock: Callable[[], float] = time.monotonic):
        self.limits, self.clock = limits, clock
        self.requests, self.words = 0, 0
        self.clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check_rate(self, client: str) -> None:
        """Count a request of a client; raise `RefusedRequest` if it exceeds its rate.

        A token bucket: it holds the requests of one second and is refilled at the rate."""
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
        """Add the cost of an admitted request, or raise `RefusedRequest`. `largest_item` is the cost of its most
        expensive item, which is computed without interruption."""
        limits = self.limits
        if largest_item > limits.max_item_words:
            message = f"An input of the request costs {largest_item:,} units of this model"
            raise RefusedRequest(413, f"{message}; the maximum is {limits.max_item_words:,}. Split it.")
        if cost > limits.max_words:
            message = f"The request costs {cost:,} units of this model (words, subwords or characters)"
            raise RefusedRequest(413, f"{message}; the maximum is {limits.max_words:,}. Send several requests.")
        if self.words + cost > limits.queue_words:
            raise RefusedRequest(503, BUSY, 1)
        self.words += cost

    def leave(self, cost: int) -> None:
        """Release a request that was answered, or whose client has disconnected and whose computation has ended."""
        self.requests -= 1
        self.words -= cost

"""Who is let in: not more at once than can be served, and of one client not more than its share.

A request is in the house from when it was let in until its answer is read. What is let in is answered. What is not is
told so at once, with a time after which to try again, so that a server that is asked for more than it can do goes on
doing what it can.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from relmo.settings.serving import ServeLimits

KNOWN = 4096  # clients whose rates are remembered
BUSY = "too many requests wait already; try again after 1 s"


class RefusedRequest(Exception):
    """A request that is not let in: the status, why, and after how many seconds it may come again."""

    def __init__(self, status: int, message: str, after: int | None = None):
        super().__init__(message)
        self.status, self.after = status, after


class Admission:
    """Counts who is in the house. It is used by the thread of the event loop alone."""

    def __init__(self, limits: ServeLimits, clock: Callable[[], float] = time.monotonic):
        self.limits, self.clock = limits, clock
        self.requests, self.words = 0, 0
        self.clients: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Of each client, how many requests it may send at once, and when that was."""

    def check_rate(self, client: str) -> None:
        """Takes count of a request of a client; raises where it sends too many.

        A bucket that holds the requests of a second, and is filled at the rate, loses one for each request."""
        rate = self.limits.rate
        if not rate:
            return
        now, room = self.clock(), max(1.0, rate)
        held, since = self.clients.pop(client, (room, now))
        held = min(room, held + rate * (now - since))
        self.clients[client] = (held - 1 if held >= 1 else held, now)
        if len(self.clients) > KNOWN:
            self.clients.popitem(last=False)
        if held < 1:
            after = max(1, round((1 - held) / rate + 0.5))
            raise RefusedRequest(429, f"you may send {rate:g} requests a second; try again after {after} s", after)

    def enter(self) -> None:
        """Admit a request whose cost is not known yet, or raise `RefusedRequest`. `leave` must follow."""
        if self.requests >= self.limits.queue:
            raise RefusedRequest(503, BUSY, 1)
        self.requests += 1

    def charge(self, units: int, largest_item: int = 0) -> None:
        """Add the cost of an admitted request, or raise `RefusedRequest`. `largest_item` is the cost of its most
        expensive item, which is computed without a break."""
        most = self.limits.max_words
        if largest_item > self.limits.max_item_words:
            message = f"one input of the request costs {largest_item:,} units of this model"
            raise RefusedRequest(413, f"{message}; the maximum is {self.limits.max_item_words:,}; split it")
        if units > most:
            message = f"the request costs {units:,} units of this model (words, subwords or characters)"
            raise RefusedRequest(413, f"{message}; the maximum is {most:,}; send several requests")
        if self.words + units > self.limits.queue_words:
            raise RefusedRequest(503, BUSY, 1)
        self.words += units

    def leave(self, units: int) -> None:
        """Release a request: it was answered, or its client has gone and nothing is computed for it any more."""
        self.requests -= 1
        self.words -= units

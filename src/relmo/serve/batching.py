"""Requests of many clients, computed together.

A thread computes one batch after the other, and each batch is all that has come while the one before was computed. So a
request that finds nobody else waits for nobody, and the more clients there are, the larger the batches get; nothing has
to be set. Requests with other options (other layers, say) go into a batch of their own. The oldest request is always in
the next batch.

A request that fails must not harm its batch mates: where a batch fails, each of its requests is computed alone.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from relmo.serve.verbs import Asked

Answer = Callable[[Hashable, Sequence[list[Any]]], list[bytes]]
"""From the options and the items of each request to an answer for each request."""


class Ticket(NamedTuple):
    """A request that waits, how many words it has, and where its answer goes."""

    asked: Asked
    words: int
    answer: "asyncio.Future[bytes]"


class Batcher:
    """Answers requests in batches of at most so many words (or of one request). `told` hears of the size of each
    batch."""

    def __init__(self, answer: Answer, *, words: int, told: Callable[[int], object] = lambda requests: None):
        self.answer, self.words, self.told = answer, words, told
        self.loop = asyncio.get_running_loop()
        self.waiting: deque[Ticket] = deque()
        self.changed = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self._work, name="relmo batches", daemon=True)
        self.thread.start()

    def ask(self, asked: Asked, words: int) -> "asyncio.Future[bytes]":
        """The answer when it is there. Cancelled, it is not computed, unless that has begun."""
        ticket = Ticket(asked, words, self.loop.create_future())
        with self.changed:
            self.waiting.append(ticket)
            self.changed.notify()
        return ticket.answer

    def close(self) -> None:
        """Ends the thread, after what waits."""
        with self.changed:
            self.closed = True
            self.changed.notify()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self.told(len(batch))
                self.loop.call_soon_threadsafe(_deliver, batch, self._answers(batch))

    def _next(self) -> list[Ticket] | None:
        """The oldest request and those that go with it; None at the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.closed)
            if not self.waiting:
                return None
            left = [ticket for ticket in self.waiting if not ticket.answer.cancelled()]
            batch, words = left[:1], sum(ticket.words for ticket in left[:1])
            self.waiting = deque()
            for ticket in left[1:]:
                fits = words + ticket.words <= self.words
                if fits and ticket.asked.options == batch[0].asked.options:
                    batch.append(ticket)
                    words += ticket.words
                else:
                    self.waiting.append(ticket)
            return batch

    def _answers(self, batch: Sequence[Ticket]) -> list[bytes | Exception]:
        try:
            return [*self.answer(batch[0].asked.options, [ticket.asked.items for ticket in batch])]
        except Exception as error:
            return [error] if len(batch) == 1 else [self._answers([ticket])[0] for ticket in batch]


def _deliver(batch: Sequence[Ticket], answers: Sequence[bytes | Exception]) -> None:
    for ticket, answer in zip(batch, answers, strict=True):
        if ticket.answer.cancelled():
            continue
        if isinstance(answer, Exception):
            ticket.answer.set_exception(answer)
        else:
            ticket.answer.set_result(answer)

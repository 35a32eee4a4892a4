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
from dataclasses import dataclass
from typing import Any

from relmo.errors import ComputationCancelled, cancellable
from relmo.serve.verbs import Asked

Answer = Callable[[Hashable, Sequence[list[Any]]], list[list[Any]]]
"""From the options and the items of each request to the results of each request."""


@dataclass(frozen=True, eq=False)
class Ticket:
    """A request in the queue of a model.

    answer     the results; cancelled when the client goes
    released   done when nothing is computed for the request any more
    """

    asked: Asked
    answer: "asyncio.Future[list[Any]]"
    released: "asyncio.Future[None]"


class Batcher:
    """Queue of a model whose requests are computed in batches of at most `words` units (or of one request). `told`
    receives the size of each batch."""

    def __init__(self, answer: Answer, *, words: int, told: Callable[[int], object] = lambda requests: None):
        self.answer, self.words, self.told = answer, words, told
        self.loop = asyncio.get_running_loop()
        self.waiting: deque[Ticket] = deque()
        self.changed = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self._work, name="relmo batches", daemon=True)
        self.thread.start()

    def ask(self, asked: Asked) -> Ticket:
        """Queue a request. If its answer is cancelled, it is not computed, or computed no further."""
        ticket = Ticket(asked, self.loop.create_future(), self.loop.create_future())
        ticket.answer.add_done_callback(lambda _: self._discard(ticket))
        with self.changed:
            self.waiting.append(ticket)
            self.changed.notify()
        return ticket

    def _discard(self, ticket: Ticket) -> None:
        """Remove a cancelled request that still waits."""
        with self.changed:
            if ticket not in self.waiting:
                return
            self.waiting.remove(ticket)
        ticket.released.set_result(None)

    def close(self) -> None:
        """End the thread; what is being computed ends at its next step."""
        with self.changed:
            self.closed = True
            self.changed.notify()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            self.told(len(batch))
            answers = self._answers(batch)
            if not self.loop.is_closed():  # as after a shutdown that did not wait for this batch
                self.loop.call_soon_threadsafe(_deliver, batch, answers)

    def _next(self) -> list[Ticket] | None:
        """Return the oldest request and those that are computed with it; None at the end."""
        with self.changed:
            self.changed.wait_for(lambda: self._find_oldest() is not None or self.closed)
            oldest = self._find_oldest()
            if self.closed or oldest is None:
                return None
            batch, units = [], 0
            for ticket in self.waiting:
                is_first = ticket is oldest
                fits = ticket.asked.options == oldest.asked.options and units + ticket.asked.units <= self.words
                if not ticket.answer.cancelled() and (is_first or fits):
                    batch.append(ticket)
                    units += ticket.asked.units
            for ticket in batch:
                self.waiting.remove(ticket)
            return batch

    def _find_oldest(self) -> Ticket | None:
        return next((ticket for ticket in self.waiting if not ticket.answer.cancelled()), None)

    def _answers(self, batch: Sequence[Ticket]) -> list[list[Any] | Exception]:
        def is_cancelled() -> bool:
            return self.closed or all(ticket.answer.cancelled() for ticket in batch)

        try:
            with cancellable(is_cancelled):
                return [*self.answer(batch[0].asked.options, [ticket.asked.items for ticket in batch])]
        except ComputationCancelled as error:
            return [error] * len(batch)
        except Exception as error:
            return [error] if len(batch) == 1 else [self._answers([ticket])[0] for ticket in batch]


def _deliver(batch: Sequence[Ticket], answers: Sequence[list[Any] | Exception]) -> None:
    for ticket, answer in zip(batch, answers, strict=True):
        ticket.released.set_result(None)
        if ticket.answer.cancelled():
            continue
        if isinstance(answer, Exception):
            ticket.answer.set_exception(answer)
        else:
            ticket.answer.set_result(answer)

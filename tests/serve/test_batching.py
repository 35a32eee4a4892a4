"""Batches of requests, isolation of failures, and admission."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from relmo.errors import SettingError
from relmo.serve.workers import MAX_CLIENTS, Admission, Batcher, ParsedRequest, QueuedRequest, RefusedRequest
from relmo.settings.options import ServeLimits


class Doubling:
    """Computation that doubles numbers once its gate is open, and records its batches."""

    def __init__(self) -> None:
        self.gate, self.began, self.batches = threading.Event(), threading.Event(), list[list[list[Any]]]()

    def __call__(self, options: Any, requests: Sequence[list[Any]]) -> list[list[int]]:
        self.batches.append(list(requests))
        self.began.set()
        assert self.gate.wait(600)
        if any(item < 0 for items in requests for item in items):
            raise SettingError("a number is below 0")
        return [[2 * item for item in items] for items in requests]


async def collect(job: QueuedRequest) -> list[Any]:
    return [result async for result in job]


def with_batcher(work: Callable[[Batcher, Doubling], Awaitable[None]], max_cost: int = 100) -> None:
    """Run work in an event loop, with a batcher that is busy with another request until the gate is opened."""

    async def run() -> None:
        doubling = Doubling()
        batcher = Batcher(doubling, max_cost=max_cost)
        job = batcher.submit(ParsedRequest([0], "initial", 1))
        assert await asyncio.to_thread(doubling.began.wait, 600)
        await work(batcher, doubling)
        assert await collect(job) == [0]
        batcher.close()
        await asyncio.to_thread(batcher.thread.join)

    asyncio.run(run())


def test_what_comes_while_a_batch_is_computed_is_the_next_batch() -> None:
    async def work(batcher: Batcher, doubling: Doubling) -> None:
        jobs = [batcher.submit(ParsedRequest([i, i + 1], "same", 2)) for i in range(5)]
        doubling.gate.set()
        assert await asyncio.gather(*map(collect, jobs)) == [[2 * i, 2 * i + 2] for i in range(5)]
        assert doubling.batches == [[[0]], [[i, i + 1] for i in range(5)]]

    with_batcher(work)


def test_other_options_and_too_many_words_go_into_a_batch_of_their_own_and_the_oldest_goes_first() -> None:
    async def work(batcher: Batcher, doubling: Doubling) -> None:
        jobs = [batcher.submit(ParsedRequest([i], "odd" if i % 2 else "even", 40)) for i in range(1, 7)]
        jobs.append(batcher.submit(ParsedRequest([7], "odd", 1000)))
        doubling.gate.set()
        await asyncio.gather(*map(collect, jobs))
        assert doubling.batches[1:] == [[[1], [3]], [[2], [4]], [[5]], [[6]], [[7]]]

    with_batcher(work, max_cost=80)


def test_a_request_that_fails_does_not_harm_those_that_came_with_it() -> None:
    async def work(batcher: Batcher, doubling: Doubling) -> None:
        good, bad, other = (batcher.submit(ParsedRequest([i], "same", 1)) for i in (1, -1, 2))
        doubling.gate.set()
        assert (await collect(good), await collect(other)) == ([2], [4])
        with pytest.raises(SettingError, match="below 0"):
            await collect(bad)

    with_batcher(work)


def test_a_request_that_is_given_up_is_not_computed() -> None:
    async def work(batcher: Batcher, doubling: Doubling) -> None:
        cancelled, job = (batcher.submit(ParsedRequest([i], "same", 1)) for i in (1, 2))
        batcher.cancel(cancelled)
        doubling.gate.set()
        assert await collect(job) == [4]
        assert cancelled.released.done()
        assert doubling.batches[1:] == [[[2]]]

    with_batcher(work)


def test_a_request_is_split_between_its_items_if_they_are_independent() -> None:
    request = ParsedRequest(list("abcde"), "options", 25, [2, 3, 9, 1, 10])
    assert [(part.items, part.cost) for part in request.split(5)] == [
        (["a", "b"], 5),
        (["c"], 9),
        (["d"], 1),
        (["e"], 10),
    ]
    text = ParsedRequest(list("abc"), "options", 30)
    assert text.split(5) == [text]


def refused(call: Callable[[], None]) -> tuple[int, int | None]:
    with pytest.raises(RefusedRequest) as refusal:
        call()
    return refusal.value.status, refusal.value.retry_after


def test_there_is_room_for_so_many_requests_and_words_and_those_that_leave_make_room() -> None:
    admission = Admission(ServeLimits(queue=2, max_words=10))
    admission.enter()
    assert refused(lambda: admission.charge(11)) == (413, None)
    assert refused(lambda: admission.charge(6, largest_item=6)) == (413, None)
    admission.charge(10)
    admission.enter()
    assert refused(admission.enter) == (503, 1)
    admission.leave(10)
    admission.enter()
    wide = Admission(ServeLimits(queue=1000, max_words=10))
    for _ in range(16):
        wide.enter()
        wide.charge(10)
    assert refused(lambda: wide.charge(1)) == (503, 1)


def test_a_client_has_its_rate_and_others_have_theirs() -> None:
    now = 0.0
    admission = Admission(ServeLimits(rate=2), clock=lambda: now)
    admission.check_rate("a")
    admission.check_rate("a")
    assert refused(lambda: admission.check_rate("a")) == (429, 1)
    admission.check_rate("b")
    now = 0.5  # one more may come
    admission.check_rate("a")
    assert refused(lambda: admission.check_rate("a")) == (429, 1)
    now = 100.0  # but what was not used does not pile up
    admission.check_rate("a")
    admission.check_rate("a")
    assert refused(lambda: admission.check_rate("a")) == (429, 1)
    for number in range(MAX_CLIENTS + 10):
        admission.check_rate(str(number))
    assert len(admission.clients) == MAX_CLIENTS

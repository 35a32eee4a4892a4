"""One bundled model, 8 threads, 50 calls each: every vector must be that of one thread, to the bit, then and later. And
how long two threads take together, beside the same calls one after the other. And children that are forked while
threads compute: they must not hang and must compute the same.

    python tests/campaigns/threads.py              some minutes; exit status 1 if a vector is wrong or a child hangs

Children set torch to one thread first. Without that torch hangs in the child, with relmo or without: OpenMP's threads
are not forked. How many children do so is printed and is no error; docs/questions.md recommends spawn.

`make test` runs a smaller version: tests/embedding/test_threads.py.
"""

import os
import random
import signal
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import relmo
from relmo.models.bilm import BiLM
from support.at_once import at_once

THREADS, CALLS, TIMED, ROUNDS = 8, 50, 10, 7
CHILDREN, CHILD_SECONDS = 20, 30
Call = list[str]


def bundled(precision: str = "float32") -> BiLM:
    """The model that ships, as it is loaded."""
    model = relmo.load("small", device="cpu")
    assert isinstance(model, BiLM)
    model.precision = precision  # type: ignore[assignment]
    return model


def calls_of(count: int, least: int, most: int, seed: int) -> list[Call]:
    """Calls of so many lines of the text that ships, drawn at random, each with a word that nobody has seen."""
    rng = random.Random(seed)
    text = Path(relmo.__file__).with_name("data").joinpath("alice.txt").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line.strip()]
    sizes = [rng.randint(least, most) for _ in range(count)]
    return [[f"{rng.choice(lines)} {rng.getrandbits(30)}" for _ in range(size)] for size in sizes]


def wrong(model: BiLM, call: Call, expected: list[np.ndarray]) -> int:
    """How many sentences of a call get other vectors."""
    return sum(not np.array_equal(a, b) for a, b in zip(model.embed(call), expected, strict=True))


def compare(precision: str) -> int:
    """Wrong sentences, in threads and afterwards in one."""
    calls = [calls_of(CALLS, 1, 60, seed) for seed in range(THREADS)]
    alone, shared = bundled(precision), bundled(precision)
    expected = [[alone.embed(call) for call in each] for each in calls]

    def work(i: int) -> int:
        return sum(wrong(shared, call, known) for call, known in zip(calls[i], expected[i], strict=True))

    together, afterwards = sum(at_once(work, THREADS)), sum(map(work, range(THREADS)))
    total = sum(len(call) for each in calls for call in each)
    print(f"{precision}: {THREADS} threads x {CALLS} calls, {total:,} sentences: {together} wrong, {afterwards} later")
    return together + afterwards


def timed() -> None:
    """Calls one after the other and in two threads, in turns; the ratio of their times."""
    calls, model, ratios = calls_of(TIMED, 300, 300, 99), bundled(), []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        for call in calls:
            model.embed(call)
        half = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda half: len([model.embed(call) for call in half]), (calls[::2], calls[1::2])))
        ratios.append((time.perf_counter() - half) / (half - start))
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios[1:])  # the first round warms up
    print(f"{TIMED} calls of 300 sentences, two threads over one after the other: {shown}")
    print(f"the median is {statistics.median(ratios[1:]):.2f}")


def count_failed_children(work: Callable[[], bool], count: int, seconds: int = CHILD_SECONDS) -> int:
    """Fork `count` children, one after the other; return how many hang or get a wrong result."""
    failed = 0
    for _ in range(count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, about what is tried here
            child = os.fork()
        if child == 0:
            signal.alarm(seconds)
            os._exit(not work())
        failed += os.waitpid(child, 0)[1] != 0
    return failed


def fork_while_computing() -> int:
    """Fork while threads embed; return how many children fail."""
    model, call = bundled(), calls_of(1, 20, 20, 7)[0]
    expected, others, stop = model.embed(call), calls_of(20, 20, 20, 8), threading.Event()

    def keep_computing() -> None:
        while not stop.is_set():
            for other in others:
                model.embed(other)

    def is_right() -> bool:
        torch.set_num_threads(1)
        return wrong(model, call, expected) == 0

    workers = [threading.Thread(target=keep_computing) for _ in range(2)]
    for worker in workers:
        worker.start()
    failed = count_failed_children(is_right, CHILDREN)
    stop.set()
    for worker in workers:
        worker.join()
    print(f"{CHILDREN} children forked while two threads compute, torch set to one thread: {failed} fail")
    return failed


def fork_with_threads_of_torch() -> None:
    """Report how many children hang in torch's own fused LSTM if they do not set its threads."""
    lstm, batch = torch.nn.LSTM(256, 256, batch_first=True), torch.randn(16, 100, 256)
    lstm(batch)
    hang = count_failed_children(lambda: bool(lstm(batch)), 4, seconds=10)
    print(f"4 children with torch's own LSTM and {torch.get_num_threads()} threads, without relmo: {hang} hang")


if __name__ == "__main__":
    errors = sum(compare(precision) for precision in ("float32", "int8"))
    errors += fork_while_computing()
    fork_with_threads_of_torch()
    timed()
    sys.exit(bool(errors))

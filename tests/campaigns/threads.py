"""One bundled model, 8 threads, 50 calls each: every vector must be that of one thread, to the bit, then and later. And
how long two threads take together, beside the same calls one after the other.

    python tests/campaigns/threads.py              some minutes; exit status 1 where a vector is wrong

`make test` runs a smaller version: tests/embedding/test_threads.py.
"""

import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import relmo
from at_once import at_once
from relmo.models.bilm import BiLM

THREADS, CALLS, TIMED, ROUNDS = 8, 50, 10, 7
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


if __name__ == "__main__":
    errors = sum(compare(precision) for precision in ("float32", "int8"))
    timed()
    sys.exit(bool(errors))

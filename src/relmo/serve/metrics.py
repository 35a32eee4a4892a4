"""What the service counts of itself, as the text that Prometheus reads.

https://prometheus.io/docs/instrumenting/exposition_formats: a line a number, with its labels; a histogram is how many
values were at most each bound, their sum, and how many there were.
"""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """How often values fell below bounds."""

    def __init__(self, bounds: tuple[float, ...]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        """As Prometheus reads it."""
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield _line(f"{name}_bucket", (*labels, ("le", bound)), total)
        yield _line(f"{name}_sum", labels, self.sum)
        yield _line(f"{name}_count", labels, total)


class ServiceMetrics:
    """All that is counted, from any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started = time.time()
        self.requests: Counter[Labels] = Counter()
        self.words: Counter[Labels] = Counter()
        self.seconds: dict[Labels, Histogram] = {}
        self.batches: dict[Labels, Histogram] = {}

    def answered(self, verb: str, model: str, status: int, seconds: float, words: int) -> None:
        """Counts a request; its time and its words where it was answered with what it asked for."""
        labels = (("verb", verb), ("model", model))
        with self.lock:
            self.requests[(*labels, ("status", str(status)))] += 1
            if status == 200:
                self.words[labels] += words
                self.seconds.setdefault(labels, Histogram(SECONDS)).add(seconds)

    def batch(self, verb: str, model: str, requests: int) -> None:
        """Counts a batch of so many requests."""
        with self.lock:
            self.batches.setdefault((("verb", verb), ("model", model)), Histogram(REQUESTS)).add(requests)

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """Everything, with what is measured now: its name, in words, and its value."""
        with self.lock:
            lines = [*_family("relmo_requests_total", "counter", "Requests by how they were answered.")]
            lines += [_line("relmo_requests_total", labels, count) for labels, count in self.requests.items()]
            lines += _family("relmo_words_total", "counter", "Words of requests that were answered, about.")
            lines += [_line("relmo_words_total", labels, count) for labels, count in self.words.items()]
            for name, about, held in (
                ("relmo_request_seconds", "From a request to its answer.", self.seconds),
                ("relmo_batch_requests", "Requests that were computed together.", self.batches),
            ):
                lines += _family(name, "histogram", about)
                lines += [line for labels, histogram in held.items() for line in histogram.lines(name, labels)]
        measured = {"process_start_time_seconds": ("When it was started, in Unix time.", self.started)}
        if (memory := _resident_bytes()) is not None:
            measured["process_resident_memory_bytes"] = ("Memory that it has.", memory)
        for name, (about, value) in (gauges | measured).items():
            lines += [*_family(name, "gauge", about), _line(name, (), value)]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _line(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _resident_bytes() -> int | None:
    """The memory that this process has, where the system says so as Linux does."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * 4096

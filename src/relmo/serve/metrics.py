"""Metrics of the service in the text format of Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats
"""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SECONDS_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REQUESTS_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """Counts of values by upper bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        """Yield the lines of the histogram: cumulative counts, sum and count."""
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield _format_sample(f"{name}_bucket", (*labels, ("le", bound)), total)
        yield _format_sample(f"{name}_sum", labels, self.sum)
        yield _format_sample(f"{name}_count", labels, total)


class ServiceMetrics:
    """Counters and histograms of the service; safe to use from any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.start_time = time.time()
        self.requests: Counter[Labels] = Counter()
        self.words: Counter[Labels] = Counter()
        self.seconds: dict[Labels, Histogram] = {}
        self.batches: dict[Labels, Histogram] = {}

    def add_request(self, endpoint: str, model: str, status: int, seconds: float, words: int) -> None:
        """Count a request; its time and words only if it succeeded."""
        labels = (("verb", endpoint), ("model", model))
        with self.lock:
            self.requests[(*labels, ("status", str(status)))] += 1
            if status == 200:
                self.words[labels] += words
                self.seconds.setdefault(labels, Histogram(SECONDS_BOUNDS)).add(seconds)

    def add_batch(self, endpoint: str, model: str, size: int) -> None:
        """Count a batch of this many requests."""
        with self.lock:
            self.batches.setdefault((("verb", endpoint), ("model", model)), Histogram(REQUESTS_BOUNDS)).add(size)

    def format(self, gauges: dict[str, tuple[str, float]]) -> str:
        """Return all metrics and these gauges, given by name as (description, value)."""
        counters = (
            ("relmo_requests_total", "Requests by status.", self.requests),
            ("relmo_words_total", "Approximate number of words of successful requests.", self.words),
        )
        histograms = (
            ("relmo_request_seconds", "Time from a request to its response.", self.seconds),
            ("relmo_batch_requests", "Requests per batch.", self.batches),
        )
        lines = []
        with self.lock:
            for name, description, counts in counters:
                lines += _format_header(name, "counter", description)
                lines += [_format_sample(name, labels, count) for labels, count in counts.items()]
            for name, description, by_labels in histograms:
                lines += _format_header(name, "histogram", description)
                lines += [line for labels, histogram in by_labels.items() for line in histogram.lines(name, labels)]
        gauges = gauges | {"process_start_time_seconds": ("Start time in Unix time.", self.start_time)}
        try:  # Linux only
            resident_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
            gauges["process_resident_memory_bytes"] = ("Resident memory.", resident_bytes)
        except (OSError, IndexError, ValueError):
            pass
        for name, (description, value) in gauges.items():
            lines += [*_format_header(name, "gauge", description), _format_sample(name, (), value)]
        return "\n".join(lines) + "\n"


def _format_header(name: str, kind: str, description: str) -> list[str]:
    return [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]


def _format_sample(name: str, labels: Labels, value: float) -> str:
    pairs = []
    for label, text in labels:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{label}="{escaped}"')
    return f"{name}{{{','.join(pairs)}}} {value}" if pairs else f"{name} {value}"

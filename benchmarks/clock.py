"""Interleaved timing: each round runs every case once, so that disturbances of the machine affect all cases alike.

A very short case is repeated within its round; a very long one is timed in the first round only.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.machine import Calibration, Stopwatch

MIN_SECONDS = {"cpu": 0.1, "cuda": 0.25}  # of a case in a round; a shorter one is repeated
MAX_SECONDS = 20.0  # a longer case is timed in one round only


@dataclass
class Case:
    """Timed function.

    tokens      number of tokens that one run reads
    prepare     called before every run, not timed
    warm_up     called before the first round; by default `run`
    facts       further entries for the table
    """

    name: str
    tokens: int
    run: Callable[[], Any]
    prepare: Callable[[], Any] | None = None
    warm_up: Callable[[], Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Timing:
    """Case with the seconds per run of each round and the output of its last run."""

    case: Case
    seconds: list[float] = field(default_factory=list)
    output: Any = None

    @property
    def rate(self) -> float:
        """Tokens per second, by the median of the rounds."""
        return self.case.tokens / statistics.median(self.seconds)


def measure(
    cases: Sequence[Case],
    *,
    rounds: int,
    device: torch.device,
    calibration: Calibration,
    on_message: Callable[[str], object] = lambda _: None,
) -> list[Timing]:
    """Time the cases in interleaved rounds; `on_message` receives progress messages."""
    timings = [Timing(case) for case in cases]
    for case in cases:
        on_message(f"{case.name}: warming up")
        if case.prepare is not None:
            case.prepare()
        (case.warm_up or case.run)()
    for number in range(rounds):
        calibration.measure()
        for timing in timings:
            if number > 0 and timing.seconds[0] >= MAX_SECONDS:
                continue
            on_message(f"{timing.case.name}: round {number + 1} of {rounds}")
            seconds, timing.output = _time_runs(timing.case, device, 1)
            minimum = MIN_SECONDS[device.type]
            if seconds < minimum:
                runs = math.ceil(minimum / max(seconds, 1e-6))
                seconds, timing.output = _time_runs(timing.case, device, runs)
            timing.seconds.append(seconds)
    return timings


def _time_runs(case: Case, device: torch.device, runs: int) -> tuple[float, Any]:
    """Return the mean seconds per run and the last output. The GPU has no pause between runs unless each is
    prepared."""
    total, output = 0.0, None
    for _ in range(1 if case.prepare is None else runs):
        if case.prepare is not None:
            case.prepare()
        with Stopwatch(device) as stopwatch:
            for _ in range(runs if case.prepare is None else 1):
                output = case.run()
        total += stopwatch.seconds
    return total / runs, output

"""Timing in rounds: each round runs every case once, so that whatever disturbs the machine disturbs all cases alike.

A very short case is repeated within its round; a very long one is timed in the first round only.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from relmo.bench.machine import Calibration, Stopwatch

AT_LEAST = {"cpu": 0.1, "cuda": 0.25}  # seconds of a case in a round; a shorter one is repeated
LONG = 20.0  # a case that takes so many seconds is timed only once


@dataclass
class Case:
    """Something to time.

    name        what it is
    tokens      how many tokens one run reads
    run         does it
    prepare     before every run, not timed
    warm        before the first round, instead of a whole run
    facts       what else the table should hold of it
    """

    name: str
    tokens: int
    run: Callable[[], Any]
    prepare: Callable[[], Any] | None = None
    warm: Callable[[], Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Timed:
    """A case with the seconds of a run in each round, and what its last run gave."""

    case: Case
    seconds: list[float] = field(default_factory=list)
    result: Any = None

    @property
    def rate(self) -> float:
        """Tokens a second, by the median of the rounds."""
        return self.case.tokens / statistics.median(self.seconds)


def measure(
    cases: Sequence[Case],
    *,
    rounds: int,
    device: torch.device,
    calibration: Calibration,
    watch: Callable[[str], object] = lambda _: None,
) -> list[Timed]:
    """Times the cases, interleaved. `watch` is told what goes on."""
    timed = [Timed(case) for case in cases]
    for case in cases:
        watch(f"{case.name}: warming up")
        if case.prepare is not None:
            case.prepare()
        (case.warm or case.run)()
    for number in range(rounds):
        calibration.measure()
        for entry in timed:
            if number == 0 or entry.seconds[0] < LONG:
                watch(f"{entry.case.name}: round {number + 1} of {rounds}")
                _one_round(entry, device)
    return timed


def _one_round(entry: Timed, device: torch.device) -> None:
    """Times a run, or as many as take long enough to be timed; adds the mean seconds of one."""
    seconds, entry.result = _seconds_of(entry.case, device, 1)
    least = AT_LEAST[device.type]
    if seconds < least:
        seconds, entry.result = _seconds_of(entry.case, device, math.ceil(least / max(seconds, 1e-6)))
    entry.seconds.append(seconds)


def _seconds_of(case: Case, device: torch.device, runs: int) -> tuple[float, Any]:
    """The mean seconds of a run, and what the last run gave. The GPU has no pause between runs, unless each has to be
    prepared."""
    total, result = 0.0, None
    for _ in range(1 if case.prepare is None else runs):
        if case.prepare is not None:
            case.prepare()
        with Stopwatch(device) as watch:
            for _ in range(runs if case.prepare is None else 1):
                result = case.run()
        total += watch.seconds
    return total / runs, result

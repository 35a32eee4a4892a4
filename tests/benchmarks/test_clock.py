"""How cases are timed."""

import pytest
import torch

from benchmarks import clock, machine
from benchmarks.clock import Case, measure
from benchmarks.machine import Calibration, Stopwatch, describe, gemm_rate, gemm_rates

CPU = torch.device("cpu")


class Quiet(Calibration):
    """A machine of constant speed."""

    def measure(self) -> None:
        self.rates.append(1.0)


def test_rounds_are_interleaved_and_the_warm_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clock.MIN_SECONDS, "cpu", 0.0)
    done: list[str] = []
    cases = [
        Case("a", 10, lambda: done.append("a"), warm_up=lambda: done.append("warm a")),
        Case("b", 10, lambda: done.append("b"), prepare=lambda: done.append("ready b")),
    ]
    timed = measure(cases, rounds=2, device=CPU, calibration=Quiet(CPU), on_message=lambda _: None)
    assert done == ["warm a", "ready b", "b", *["a", "ready b", "b"] * 2]
    assert [len(entry.seconds) for entry in timed] == [2, 2]


class Clock:
    """A time that goes on by what is slept alone."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(machine, "time", found)
    return found


def test_what_is_over_at_once_is_repeated_and_what_is_slow_is_timed_once(
    monkeypatch: pytest.MonkeyPatch, time: Clock
) -> None:
    monkeypatch.setattr(clock, "MAX_SECONDS", 0.02)
    monkeypatch.setitem(clock.MIN_SECONDS, "cpu", 0.01)
    runs = {"fast": 0, "slow": 0}

    def run(name: str, seconds: float) -> None:
        runs[name] += 1
        time.sleep(seconds)

    cases = [
        Case("fast", 1, lambda: run("fast", 0.001), warm_up=lambda: None),
        Case("slow", 1, lambda: run("slow", 0.03), warm_up=lambda: None),
    ]
    timed = measure(cases, rounds=3, device=CPU, calibration=Quiet(CPU))
    assert runs["fast"] == 3 * (1 + 10)  # one to see how long it takes, ten to take the least time
    assert runs["slow"] == len(timed[1].seconds) == 1
    assert timed[0].seconds == pytest.approx([0.001] * 3)  # of one run


def test_preparing_is_not_timed_and_the_rate_is_by_the_median(monkeypatch: pytest.MonkeyPatch, time: Clock) -> None:
    monkeypatch.setitem(clock.MIN_SECONDS, "cpu", 0.0)
    pauses = iter([0.0, 0.01, 0.2, 0.01])
    case = Case("a", 5, lambda: time.sleep(next(pauses)), prepare=lambda: time.sleep(0.1))
    (timed,) = measure([case], rounds=3, device=CPU, calibration=Quiet(CPU))
    assert timed.seconds == pytest.approx([0.01, 0.2, 0.01])
    assert timed.rate == pytest.approx(5 / 0.01)


def test_a_busy_machine_is_told_of() -> None:
    calibration = Calibration(CPU)
    calibration.load, calibration.rates = 0.1, [100.0, 98.0, 95.0]
    assert calibration.warnings() == []
    calibration.load, calibration.rates = 1.25, [100.0, 80.0, 95.0]
    busy, varied = calibration.warnings()
    assert "load average 1.2" in busy
    assert "varied by 21%" in varied


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_matrix_products_are_timed_in_every_precision(precision: str) -> None:
    with Stopwatch(CPU) as watch:
        rate = gemm_rate((64, 128, 256), precision, CPU, repeats=2)
    assert 2 * 64 * 128 * 256 / watch.seconds < rate < 1e14


def test_the_thin_product_of_an_lstm_is_among_the_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.machine.gemm_rate", lambda shape, *_, **__: float(shape[0]))
    assert gemm_rates("float32", CPU)["256 x 512 x 16384"] == 256.0


def test_the_machine_is_described_with_versions_and_threads() -> None:
    found = describe(CPU)
    assert found["threads"] == torch.get_num_threads()
    assert found["versions"]["torch"] == torch.__version__
    assert found["machine"]

"""The machine: description, rate of matrix products, and load."""

import datetime
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any, Self

import torch

import relmo
from relmo.nn.kernels import cpu

SHAPES = {  # rows, inner size, columns; the first is that of an LSTM, the fastest one sets the floor
    "cpu": [(256, 512, 16384), (1024, 1024, 1024), (2048, 2048, 2048), (512, 4096, 512)],
    "cuda": [(10240, 512, 16384), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 8192, 8192)],
}
CALIBRATION = {"cpu": (1024, 1024, 1024), "cuda": (8192, 8192, 8192)}
REPEATS = 4
MAX_SPREAD = 0.1  # of the calibrating product
MAX_LOAD = 0.5  # load average at the start


class Stopwatch:
    """Context manager that measures seconds, including queued work of the GPU."""

    def __init__(self, device: torch.device):
        self.on_gpu, self.device = device.type == "cuda", device
        self.seconds = 0.0

    def __enter__(self) -> Self:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
            self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.start.record()
        self.start_time = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.start_time
        if self.on_gpu:
            self.end.record()
            self.end.synchronize()
            self.seconds = self.start.elapsed_time(self.end) / 1000


def gemm_rates(precision: str, device: torch.device) -> dict[str, float]:
    """Return the operations per second of matrix products in float32, bfloat16 or int8, by shape."""
    return {
        " x ".join(map(str, shape)): gemm_rate(shape, precision, device, repeats=REPEATS)
        for shape in SHAPES[device.type]
    }


def gemm_rate(shape: tuple[int, int, int], precision: str, device: torch.device, *, repeats: int) -> float:
    """Return the operations per second of one product: the best of `repeats`, after a warm-up."""
    m, k, n = shape
    a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    if precision == "int8":
        a, b, product = (a * 20).to(torch.int8), (b * 20).to(torch.int8), torch._int_mm
    else:
        a, b, product = a.to(getattr(torch, precision)), b.to(getattr(torch, precision)), torch.mm
    product(a, b)
    stopwatch, fastest = Stopwatch(device), float("inf")
    for _ in range(repeats):
        with stopwatch:
            product(a, b)
        fastest = min(fastest, stopwatch.seconds)
    return 2 * m * k * n / fastest


class Calibration:
    """Repeated timing of one matrix product, which shows whether the speed of the machine varies."""

    def __init__(self, device: torch.device):
        self.device = device
        self.rates: list[float] = []
        self.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0

    def measure(self) -> None:
        """Time the product once more."""
        self.rates.append(gemm_rate(CALIBRATION[self.device.type], "float32", self.device, repeats=3))

    @property
    def spread(self) -> float:
        """Largest difference relative to the median."""
        return (max(self.rates) - min(self.rates)) / statistics.median(self.rates) if self.rates else 0.0

    def warnings(self) -> list[str]:
        """Return reasons not to trust the absolute figures."""
        warnings = []
        if self.load > MAX_LOAD:
            warnings.append(f"the machine was busy at the start (load average {self.load:.1f}); trust the ratios only")
        if self.spread > MAX_SPREAD:
            warnings.append(
                f"the speed of the machine varied by {self.spread:.0%} over the rounds (the same matrix product each "
                "time): something else is running; trust the ratios only"
            )
        return warnings


def describe(device: torch.device) -> dict[str, Any]:
    """Return machine, versions, threads and date as plain values."""
    is_gpu = device.type == "cuda"
    return {
        "machine": torch.cuda.get_device_name(device) if is_gpu else _processor_name(),
        "device": device.type,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "kernels": cpu.library() is not None,
        "date": datetime.date.today().isoformat(),
        "versions": {
            "relmo": relmo.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            **({"cuda": torch.version.cuda} if is_gpu else {}),
        },
    }


def _processor_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

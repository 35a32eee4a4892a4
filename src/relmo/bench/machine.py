"""The machine: what it is, how fast it multiplies matrices, and whether it is busy with something else."""

import datetime
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any, Self

import torch

import relmo
from relmo.nn.kernels import lstm_cpu

SHAPES = {  # rows, inner size, columns; the first is an LSTM's, the fastest shows what the machine can do
    "cpu": [(256, 512, 16384), (1024, 1024, 1024), (2048, 2048, 2048), (512, 4096, 512)],
    "cuda": [(10240, 512, 16384), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 8192, 8192)],
}
CALIBRATION = {"cpu": (1024, 1024, 1024), "cuda": (8192, 8192, 8192)}
REPEATS = 4
VARIES = 0.1  # how much the calibrating product may vary
BUSY = 0.5  # load average at the start


class Stopwatch:
    """The seconds spent inside a `with`, with the GPU's work."""

    def __init__(self, device: torch.device):
        self.on_gpu, self.device = device.type == "cuda", device
        self.seconds = 0.0

    def __enter__(self) -> Self:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
            self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.start.record()
        self.begun = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.begun
        if self.on_gpu:
            self.end.record()
            self.end.synchronize()
            self.seconds = self.start.elapsed_time(self.end) / 1000


def gemm_rates(precision: str, device: torch.device) -> dict[str, float]:
    """Operations a second of matrix products in float32, bfloat16 or int8, by shape."""
    return {
        " x ".join(map(str, shape)): gemm_rate(shape, precision, device, repeats=REPEATS)
        for shape in SHAPES[device.type]
    }


def gemm_rate(shape: tuple[int, int, int], precision: str, device: torch.device, *, repeats: int) -> float:
    """Operations a second of one product; the best of `repeats`, after one that is not counted."""
    m, k, n = shape
    a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    if precision == "int8":
        a, b, product = (a * 20).to(torch.int8), (b * 20).to(torch.int8), torch._int_mm
    else:
        a, b, product = a.to(getattr(torch, precision)), b.to(getattr(torch, precision)), torch.mm
    product(a, b)
    watch, fastest = Stopwatch(device), float("inf")
    for _ in range(repeats):
        with watch:
            product(a, b)
        fastest = min(fastest, watch.seconds)
    return 2 * m * k * n / fastest


class Calibration:
    """The machine's own speed: one matrix product, always the same, timed every now and then."""

    def __init__(self, device: torch.device):
        self.device = device
        self.rates: list[float] = []
        self.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0

    def measure(self) -> None:
        """Times the product once more."""
        self.rates.append(gemm_rate(CALIBRATION[self.device.type], "float32", self.device, repeats=3))

    @property
    def spread(self) -> float:
        """The largest difference, as a share of the median."""
        return (max(self.rates) - min(self.rates)) / statistics.median(self.rates) if self.rates else 0.0

    def warnings(self) -> list[str]:
        """Reasons not to trust the figures."""
        said = []
        if self.load > BUSY:
            said.append(f"the machine was busy when this began (load average {self.load:.1f}); trust the ratios only")
        if self.spread > VARIES:
            said.append(
                f"the machine's speed varied by {self.spread:.0%} over the rounds (the same matrix product each time): "
                "something else is running; trust the ratios only"
            )
        return said


def describe(device: torch.device) -> dict[str, Any]:
    """The machine, the versions, the threads and the date."""
    gpu = device.type == "cuda"
    return {
        "machine": torch.cuda.get_device_name(device) if gpu else _processor(),
        "device": device.type,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "kernels": lstm_cpu.library() is not None,
        "date": datetime.date.today().isoformat(),
        "versions": {
            "relmo": relmo.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            **({"cuda": torch.version.cuda} if gpu else {}),
        },
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

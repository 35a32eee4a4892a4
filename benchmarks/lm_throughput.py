"""Training throughput of relmo's loop against a bare loop, interleaved.

    python -m benchmarks.lm_throughput [--device cuda]

The bare loop is what one would write by hand: nn.Embedding, nn.LSTM, nn.Linear, AdamW, clip_grad_norm_, windows sliced
from a tensor. The relmo side is the loop behind `relmo train lm` with the metrics it writes, from step 5 to the last;
the checkpoint at the end is left out, as in a run of some length (checkpoints take at most a twentieth of the time).
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from relmo.networks.language_model import RecurrentLM
from relmo.runs.progress import Reporter
from relmo.runs.run import run_training
from relmo.settings.lm import LanguageModelSettings
from relmo.settings.sections import TrainSettings
from relmo.training.batch import Lanes
from relmo.training.loop import Step, Trainer

Shape = tuple[int, int, int, int, int]  # vocabulary, hidden, layers, batch, unroll
WARM_UP_STEPS = 5
SHAPES: dict[str, Shape] = {
    "char 1x512, 32 x 128": (65, 512, 1, 32, 128),
    "char 2x512, 64 x 128": (65, 512, 2, 64, 128),
    "word 2x650, 32 x 35, 10k": (10_000, 650, 2, 32, 35),
}


class BareLM(nn.Module):
    """Textbook language model."""

    def __init__(self, vocabulary: int, hidden: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, ids: Tensor, state: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits and the final state."""
        y, state = self.lstm(self.embedding(ids), state)
        return self.output(y), state


def time_bare_loop(ids: np.ndarray, shape: Shape, steps: int, device: torch.device) -> float:
    """Return the steps per second of a loop written by hand."""
    vocabulary, hidden, layers, batch, unroll = shape
    model = BareLM(vocabulary, hidden, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002, fused=True)
    lanes = torch.from_numpy(ids[: len(ids) // batch * batch].astype(np.int64)).view(batch, -1).to(device)
    state: tuple[Tensor, ...] | None = None
    start_time = 0.0
    for step in range(-WARM_UP_STEPS, steps):
        if step == 0:
            synchronize(device)
            start_time = time.perf_counter()
        start = (step + WARM_UP_STEPS) * unroll
        logits, state = model(lanes[:, start : start + unroll], state)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), lanes[:, start + 1 : start + unroll + 1].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        state = tuple(tensor.detach() for tensor in state or ())
    synchronize(device)
    return steps / (time.perf_counter() - start_time)


class StepTimer(Reporter):
    """Reporter that measures the seconds of all steps after the warm-up."""

    def __init__(self, device: torch.device):
        self.device, self.start_time, self.seconds = device, 0.0, 0.0

    def on_step(self, step: Step, total: int) -> None:
        if step.number == WARM_UP_STEPS:
            synchronize(self.device)
            self.start_time = time.perf_counter()
        if step.number == total - 1:
            synchronize(self.device)
            self.seconds = time.perf_counter() - self.start_time


def time_relmo_loop(ids: np.ndarray, shape: Shape, steps: int, device: torch.device) -> float:
    """Return the steps per second of the loop of `relmo train lm`."""
    vocabulary, hidden, layers, batch, unroll = shape
    network = RecurrentLM(LanguageModelSettings(hidden=hidden, layers=layers), vocab_size=vocabulary).to(device)
    lanes = Lanes(ids, batch=batch, unroll=unroll)
    trainer = Trainer(network, lanes, TrainSettings(epochs=(steps + 6) / len(lanes)))
    timer = StepTimer(device)
    with tempfile.TemporaryDirectory() as folder:
        run_training(trainer, Path(folder), lambda _: synchronize(device), timer)
    return steps / timer.seconds


def synchronize(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=None)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    steps = arguments.steps or (200 if device.type == "cuda" else 15)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {arguments.rounds} x {steps} steps")
    for name, shape in SHAPES.items():
        vocabulary, *_, batch, unroll = shape
        ids = np.random.default_rng(0).integers(0, vocabulary, batch * unroll * (steps + 7) + 1).astype(np.uint16)
        rounds = [
            (time_bare_loop(ids, shape, steps, device), time_relmo_loop(ids, shape, steps, device))
            for _ in range(arguments.rounds)
        ]
        bare, relmo = (statistics.median(column) * batch * unroll for column in zip(*rounds, strict=True))
        ratio = statistics.median(relmo_rate / bare_rate for bare_rate, relmo_rate in rounds)
        print(f"{name:28} bare {bare:12,.0f}  relmo {relmo:12,.0f} symbols/s  ratio {ratio:.3f}")


if __name__ == "__main__":
    main()

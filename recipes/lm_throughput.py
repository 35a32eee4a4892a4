"""Training throughput of relmo's loop against a bare loop, interleaved: `python recipes/lm_throughput.py [--device
cuda]`.

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
from torch import nn

from relmo.networks.language_model import RecurrentLM
from relmo.runs.reporter import Reporter
from relmo.runs.run import go
from relmo.settings.lm import LanguageModelSettings
from relmo.settings.training import TrainSettings
from relmo.training.batch import Lanes
from relmo.training.loop import Trainer

SHAPES = {  # vocabulary, hidden, layers, batch, unroll
    "char 1x512, 32 x 128": (65, 512, 1, 32, 128),
    "char 2x512, 64 x 128": (65, 512, 2, 64, 128),
    "word 2x650, 32 x 35, 10k": (10_000, 650, 2, 32, 35),
}


class Bare(nn.Module):
    """The textbook model."""

    def __init__(self, vocabulary: int, hidden: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, ids, state):
        y, state = self.lstm(self.embedding(ids), state)
        return self.output(y), state


def bare_loop(ids, shape, steps, device):
    """Steps per second of a loop written by hand."""
    vocabulary, hidden, layers, batch, unroll = shape
    model = Bare(vocabulary, hidden, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002, fused=True)
    lanes = torch.from_numpy(ids[: len(ids) // batch * batch].astype(np.int64)).view(batch, -1).to(device)
    state, begun = None, 0.0
    for step in range(-5, steps):
        if step == 0:
            synchronize(device)
            begun = time.perf_counter()
        start = (step + 5) * unroll
        logits, state = model(lanes[:, start : start + unroll], state)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), lanes[:, start + 1 : start + unroll + 1].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        state = tuple(tensor.detach() for tensor in state)
    synchronize(device)
    return steps / (time.perf_counter() - begun)


class Clock(Reporter):
    """Starts when the warm-up steps are over."""

    def __init__(self, device):
        self.device, self.begun, self.seconds = device, 0.0, 0.0

    def stepped(self, step, total):
        if step.number == 5:
            synchronize(self.device)
            self.begun = time.perf_counter()
        if step.number == total - 1:
            synchronize(self.device)
            self.seconds = time.perf_counter() - self.begun


def relmo_loop(ids, shape, steps, device):
    """Steps per second of the loop behind `relmo train lm`."""
    vocabulary, hidden, layers, batch, unroll = shape
    network = RecurrentLM(LanguageModelSettings(hidden=hidden, layers=layers), vocab_size=vocabulary).to(device)
    lanes = Lanes(ids, batch=batch, unroll=unroll)
    trainer = Trainer(network, lanes, TrainSettings(epochs=(steps + 6) / len(lanes)))
    clock = Clock(device)
    with tempfile.TemporaryDirectory() as folder:
        go(trainer, Path(folder), lambda: synchronize(device), clock)
    return steps / clock.seconds


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def main():
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
            (bare_loop(ids, shape, steps, device), relmo_loop(ids, shape, steps, device))
            for _ in range(arguments.rounds)
        ]
        bare, ours = (statistics.median(column) * batch * unroll for column in zip(*rounds, strict=True))
        ratio = statistics.median(r / b for b, r in rounds)
        print(f"{name:28} bare {bare:12,.0f}  relmo {ours:12,.0f} symbols/s  ratio {ratio:.3f}")


if __name__ == "__main__":
    main()

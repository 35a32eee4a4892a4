"""Training of one cell on one formal task: all seeds at once, with `torch.func.vmap` over stacked weights.

So the cost of starting operations, which dominates in small recurrent networks, is shared by the seeds. Every cell has
the same protocol. The cells run by `scan` if they have it, otherwise step by step: torch's fused kernels have no rule
for vmap.
"""

import copy
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from experiments.cells.tasks import IGNORED, Batch, Task, measure_chance
from relmo.nn.recurrence import make_cell
from relmo.nn.recurrence.stack import Recurrent, has_scan

REFERENCE_CELL = "lstm"
SIZE_STEP = 8  # hidden sizes are multiples, as cells with heads require
SOLVED = 0.99  # accuracy on long sequences from which a seed counts as solved
TEST_BATCH = 64
CURRICULUM, CURRICULUM_START = 0.5, 0.25
"""Share of the steps in which the largest size in training rises, and the share of it at the start."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Protocol of training and testing, the same for all cells."""

    hidden: int = 64  # of the LSTM with whose number of parameters the others agree; also the size of the embeddings
    layers: int = 1  # more in tasks that need more
    seeds: int = 5
    steps: int = 2000
    batch: int = 16
    lr: float = 5e-3
    warm_up: int = 100
    weight_decay: float = 0.01
    clip: float = 1.0
    test_sequences: int = 256


class SymbolTagger(nn.Module):
    """Embedding, recurrent layers and a linear layer: one prediction per position."""

    def __init__(self, task: Task, cell: str, hidden: int, options: Mapping[str, Any], protocol: Protocol):
        super().__init__()
        self.embedding = nn.Embedding(task.symbols, protocol.hidden)
        self.recurrent = Recurrent(
            make_cell(cell, hidden, **options), input_size=protocol.hidden, layers=protocol.layers
        )
        self.recurrent.fast = has_scan(self.recurrent.cells[0][0])
        self.output = nn.Linear(self.recurrent.output_size, task.classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores (B, T, classes) of ids (B, T)."""
        return self.output(self.recurrent(self.embedding(ids)).output)


def count_parameters(cell: str, hidden: int, options: Mapping[str, Any], input_size: int, layers: int = 1) -> int:
    """Return the number of parameters of recurrent layers."""
    with torch.device("meta"):
        stack = Recurrent(make_cell(cell, hidden, **options), input_size=input_size, layers=layers)
    return sum(parameter.numel() for parameter in stack.parameters())


def match_hidden(cell: str, options: Mapping[str, Any], reference: int, layers: int = 1) -> tuple[int, int]:
    """Return the hidden size whose number of parameters is closest to that of an LSTM, and that number.

    reference   hidden size of the LSTM, and input size of both
    """
    target = count_parameters(REFERENCE_CELL, reference, {}, reference, layers)
    best: tuple[int, int] | None = None
    for hidden in range(SIZE_STEP, 64 * reference, SIZE_STEP):
        parameters = count_parameters(cell, hidden, options, reference, layers)
        if best is None or abs(parameters - target) < abs(best[1] - target):
            best = hidden, parameters
        if parameters > 2 * target:  # not the first larger one: an SRU as wide as its input has fewer weights
            break
    assert best is not None
    return best


class SeedStack:
    """Networks of several seeds with stacked weights, run as one."""

    def __init__(self, networks: list[nn.Module], device: str):
        self.parameters, self.buffers = stack_module_state(networks)
        self.parameters = {
            name: weight.detach().to(device).requires_grad_() for name, weight in self.parameters.items()
        }
        self.buffers = {name: buffer.to(device) for name, buffer in self.buffers.items()}
        skeleton = copy.deepcopy(networks[0]).to("meta")

        def run(parameters: dict[str, Tensor], buffers: dict[str, Tensor], ids: Tensor) -> Tensor:
            return functional_call(skeleton, (parameters, buffers), (ids,))

        self._run = vmap(run)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return scores (seeds, B, T, classes) of ids (seeds, B, T)."""
        return self._run(self.parameters, self.buffers, ids)


def train_task(
    task: Task, cell: str, options: Mapping[str, Any], protocol: Protocol, *, first_seed: int = 0, device: str = "cpu"
) -> dict[str, Any]:
    """Train all seeds of a cell on a task and test them; return the record."""
    start, cpu_start = time.monotonic(), time.process_time()
    protocol = replace(protocol, layers=max(protocol.layers, task.layers))
    hidden, parameters = match_hidden(cell, options, protocol.hidden, protocol.layers)
    seeds = range(first_seed, first_seed + protocol.seeds)
    networks = []
    for seed in seeds:
        torch.manual_seed(seed)
        networks.append(SymbolTagger(task, cell, hidden, options, protocol))
    stack = SeedStack(list(networks), device)
    losses = fit(stack, task, protocol, [np.random.default_rng((seed, 1)) for seed in seeds], device)
    seconds = time.monotonic() - start
    record: dict[str, Any] = {
        "cell": cell,
        "options": dict(options),
        "hidden": hidden,
        "parameters": parameters,
        "protocol": asdict(protocol),
        "loss": losses,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(time.process_time() - cpu_start, 1),
    }
    for part, sizes in (("short", task.short), ("long", task.long)):
        batch = task.draw(np.random.default_rng(sizes), protocol.test_sequences, *sizes)
        record[part] = measure_accuracy(stack, batch, protocol.seeds, device)
        record[f"{part}_chance"] = measure_chance(batch)
    record["solved"] = sum(accuracy >= SOLVED for accuracy in record["long"])
    record["test_seconds"] = round(time.monotonic() - start - seconds, 1)
    return record


def fit(
    stack: SeedStack, task: Task, protocol: Protocol, generators: list[np.random.Generator], device: str
) -> list[float]:
    """Train the networks, each on its own sequences; return their mean losses over the last tenth of the steps."""
    weights = list(stack.parameters.values())
    optimizer = torch.optim.AdamW(weights, lr=protocol.lr, weight_decay=protocol.weight_decay)
    warm_up = min(protocol.warm_up, protocol.steps // 10 + 1)

    def schedule(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, protocol.steps - warm_up)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    last_losses = []
    for step, (inputs, targets) in enumerate(_training_batches(task, protocol, generators)):
        scores = stack(inputs.to(device))
        losses = compute_losses(scores, targets.to(device))
        optimizer.zero_grad()
        losses.sum().backward()
        clip_each(weights, protocol.clip)
        optimizer.step()
        scheduler.step()
        if step >= protocol.steps - 1 - protocol.steps // 10:
            last_losses.append(losses.detach())
    return torch.stack(last_losses).mean(dim=0).tolist()


def _training_batches(
    task: Task, protocol: Protocol, generators: list[np.random.Generator]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ids and targets (seeds, B, T) of one step after the other; the largest size rises to that of the task."""
    low, high = task.short
    for step in range(protocol.steps):
        share = min(1.0, CURRICULUM_START + (1 - CURRICULUM_START) * step / (CURRICULUM * protocol.steps))
        limit = max(low, round(share * high))
        batches = [task.draw(generator, protocol.batch, low, limit) for generator in generators]
        inputs, targets = (np.stack([batch[k] for batch in batches]) for k in (0, 1))
        yield torch.from_numpy(inputs), torch.from_numpy(targets)


def compute_losses(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of each network (seeds,)."""
    nll = cross_entropy(
        scores.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORED, reduction="none"
    ).view_as(targets)
    return nll.sum(dim=(1, 2)) / (targets != IGNORED).sum(dim=(1, 2))


def clip_each(weights: list[Tensor], limit: float) -> None:
    """Scale the gradients of each network down to this norm; those of networks that diverged become 0."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)  # (seeds,)
    factors = torch.where(norms.isfinite(), (limit / (norms + 1e-6)).clamp(max=1.0), 0.0)
    for gradient in gradients:
        gradient.nan_to_num_(0.0, 0.0, 0.0)
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


@torch.no_grad()
def measure_accuracy(stack: SeedStack, batch: Batch, seeds: int, device: str) -> list[float]:
    """Return the accuracy of each network at the positions that count."""
    correct, total = torch.zeros(seeds, dtype=torch.long), int(batch.scored.sum())
    for begin in range(0, len(batch.inputs), TEST_BATCH):
        inputs, targets, scored = (torch.from_numpy(array[begin : begin + TEST_BATCH]) for array in batch)
        predictions = stack(inputs.to(device).expand(seeds, -1, -1)).argmax(dim=-1).cpu()
        correct += ((predictions == targets) & scored).sum(dim=(1, 2))
    return (correct / total).tolist()

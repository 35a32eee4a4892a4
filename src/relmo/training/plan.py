"""The plan of a run, measured before its first step: steps, parameters, memory, time."""

import sys
import time
from dataclasses import dataclass
from statistics import median

import torch

from relmo.training.loop import Trainer

MAX_TRIAL_STEPS, MAX_TRIAL_SECONDS = 12, 2.0  # of the steps that are timed


@dataclass(frozen=True)
class Plan:
    """The expected cost of a run.

    predictions   number per epoch; `unit` names them: words, texts
    memory        peak so far in bytes; None if the system does not report it
    """

    device: str
    predictions: int
    steps: int
    parameters: int
    memory: int | None
    seconds: float
    processes: int = 1
    unit: str = "predictions"


def make_plan(trainer: Trainer, predictions: int, unit: str) -> Plan:
    """Time a few trial steps and return the plan of the run. A time limit (`minutes`) sets its number of steps."""
    step_seconds, minutes = time_steps(trainer), trainer.settings.minutes
    if minutes is not None:
        trainer.set_total_steps(trainer.team.broadcast(int(60 * minutes / step_seconds)))
    return Plan(
        device=str(trainer.device),
        predictions=predictions,
        steps=trainer.total,
        parameters=sum(p.numel() for p in trainer.parameters),
        memory=peak_memory(trainer.device),
        seconds=step_seconds * trainer.total,
        processes=trainer.team.world_size,
        unit=unit,
    )


def time_steps(trainer: Trainer) -> float:
    """Return the median seconds per step over trial steps spread over the first epoch; the trainer is restored."""
    tensors, values = trainer.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    count = min(MAX_TRIAL_STEPS, trainer.total)
    seconds: list[float] = []
    for i in [0, *range(count)]:  # the additional step at the start is a warm-up
        trainer.number = i * min(trainer.total, len(trainer.batches)) // count
        start = time.perf_counter()
        trainer.advance()
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        seconds.append(time.perf_counter() - start)
        if trainer.team.broadcast(sum(seconds[1:]) > MAX_TRIAL_SECONDS):
            break
    trainer.load_state(tensors, values)
    return median(seconds[1:])


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory in bytes of the GPU or the process; None if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobyte

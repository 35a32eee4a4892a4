"""What a run is going to take, told before its first step: steps, parameters, memory, time."""

import sys
import time
from dataclasses import dataclass
from statistics import median

import torch

from relmo.training.loop import Trainer

REHEARSED, REHEARSAL = 12, 2.0  # steps that are tried to see how long one takes, and seconds for all of them


@dataclass(frozen=True)
class Plan:
    """What a run is going to take, by its first steps; memory where the system tells it.

    predictions   how many one pass over the training part makes, and `unit` what they are of: words, texts
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
    """What the trainer's run takes, by some steps that leave no trace. Where it is to take so many minutes, that says
    how many steps it has."""
    pace, minutes = rehearse(trainer), trainer.settings.minutes
    if minutes is not None:
        trainer.end_at(trainer.team.share(int(60 * minutes / pace)))
    seconds = pace * trainer.total
    return Plan(
        device=str(trainer.device),
        predictions=predictions,
        steps=trainer.total,
        parameters=sum(p.numel() for p in trainer.parameters),
        memory=peak_memory(trainer.device),
        seconds=seconds,
        processes=trainer.team.size,
        unit=unit,
    )


def rehearse(trainer: Trainer) -> float:
    """The seconds that a step takes, by some steps from here and there in the first epoch; none leaves a trace."""
    tensors, values = trainer.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    count = min(REHEARSED, trainer.total)
    seconds: list[float] = []
    for i in [0, *range(count)]:  # the first is for what is done but once
        trainer.number = i * min(trainer.total, len(trainer.batches)) // count
        begun = time.perf_counter()
        trainer.advance()
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        seconds.append(time.perf_counter() - begun)
        if trainer.team.share(sum(seconds[1:]) > REHEARSAL):
            break
    trainer.load_state(tensors, values)
    return median(seconds[1:])


def peak_memory(device: torch.device) -> int | None:
    """The most memory held so far, in bytes, by the process, or on the GPU; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobyte

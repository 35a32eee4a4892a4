"""Data-parallel training in several processes started by torchrun: `torchrun --nproc-per-node 2 -m relmo train lm …`.

Each process has its share of every batch; gradients are averaged by torch's DistributedDataParallel. There are two
process groups: one on the device for gradients and losses, which the host does not wait for, and one on the CPU (gloo)
for control. Processes exchange numbers and JSON, never pickles.
"""

import json
import os
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from relmo.errors import RelmoError, SettingError
from relmo.networks.language_model import Loss
from relmo.nn.recurrence import State

CONTROL_TIMEOUT = timedelta(days=1)  # ranks wait while the leader reads a corpus or writes a checkpoint
GLOO_RELEASE_SECONDS = 0.5  # gloo's threads need this to release Python's tensors; torch would wait for them for ever
IGNORED_WARNINGS = (
    "`broadcast_buffers` is deprecated",  # the new name is not in every torch
    "Grad strides do not match bucket view strides",  # filters of width 1, for which all strides are equivalent
)


@dataclass(frozen=True)
class Team:
    """The rank of this process among the `world_size` processes that train together; rank 0 writes and prints."""

    rank: int = 0
    world_size: int = 1
    control_group: Any = None

    @property
    def is_leader(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean over all ranks, on the device and without waiting for it."""
        if self.world_size == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.world_size

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether any rank has set it."""
        return list(flags) if self.world_size == 1 else [bool(flag) for flag in self._reduce_max(flags)]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the JSON-serialisable value of rank `source`."""
        if self.world_size == 1:
            return value
        message = torch.frombuffer(bytearray(json.dumps(value), "utf-8"), dtype=torch.uint8)
        length = torch.tensor([len(message)])
        dist.broadcast(length, source, group=self.control_group)
        if self.rank != source:
            message = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(message, source, group=self.control_group)
        return json.loads(message.numpy().tobytes())

    def all_gather(self, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return the tensors of every rank; names, types and shapes are the same in all."""
        if self.world_size == 1:
            return [tensors]
        tensors_by_rank: list[dict[str, Tensor]] = [{} for _ in range(self.world_size)]
        for name, tensor in tensors.items():
            local = tensor.detach().cpu().contiguous()
            copies = [torch.empty_like(local) for _ in range(self.world_size)]
            views = [copy.flatten().view(torch.uint8) for copy in copies]  # gloo does not support every type
            dist.all_gather(views, local.flatten().view(torch.uint8), group=self.control_group)
            for rank_tensors, copy in zip(tensors_by_rank, copies, strict=True):
                rank_tensors[name] = copy
        return tensors_by_rank

    @contextmanager
    def barrier(self) -> Iterator[None]:
        """Wait for all ranks at the end of the context; if any failed in it, all raise the error of the lowest rank.

        All ranks must enter it, and must not communicate inside."""
        if self.world_size == 1:
            yield
            return
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        failed = self._reduce_max([0 if failure is None else self.world_size - self.rank])[0]
        if not failed:
            return
        message = self.broadcast(str(failure), source=self.world_size - failed)
        raise failure or RelmoError(message)

    def _reduce_max(self, numbers: Sequence[int]) -> list[int]:
        maxima = torch.tensor([int(number) for number in numbers])
        dist.all_reduce(maxima, dist.ReduceOp.MAX, group=self.control_group)
        return maxima.tolist()


SINGLE_PROCESS = Team()


class TrainingLoss(nn.Module):
    """A model whose forward pass is its training loss, as DistributedDataParallel requires."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Any, carry: State | None) -> Loss:
        """Return the model's `loss`."""
        return self.model.loss(batch, carry)  # type: ignore[operator]


def get_world_size() -> int:
    """Return the number of processes started by torchrun, 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def require_single_process(command: str) -> None:
    """Raise an error if torchrun has started several processes."""
    if (count := get_world_size()) > 1:
        raise SettingError(f"{command} runs in one process, and there are {count}. Start it without torchrun.")


def get_local_device(device: torch.device) -> torch.device:
    """Return the GPU of this rank, or the device itself for a CPU or a single process."""
    if device.type == "cpu" or get_world_size() == 1:
        return device
    local_size, num_gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if local_size > num_gpus:
        raise SettingError(
            f"{local_size} processes need {local_size} GPUs, but torch sees {num_gpus}. "
            f"Use --nproc-per-node {num_gpus} or --device cpu."
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def open_start_store(store: dist.Store, rank: int, world_size: int) -> dist.Store:
    """Return the part of the store that belongs to the current start of the processes.

    torchrun uses one store for all its restarts, which has the addresses of dead processes, and each machine counts
    restarts by itself. So the leader invents a name for this start. Every other rank writes a name of its own below
    it, which the leader acknowledges by repeating it; a leader of an earlier start is dead and acknowledges nothing.
    """
    name = uuid.uuid4().hex
    if rank == 0:
        store.set("relmo", name)
        for follower in range(1, world_size):
            store.set(f"relmo/{name}/{store.get(f'relmo/{name}/{follower}').decode()}", "")
        return dist.PrefixStore(name, store)
    while True:
        start = store.get("relmo").decode()
        store.set(f"relmo/{start}/{rank}", name)
        if store.check([f"relmo/{start}/{name}"]):
            return dist.PrefixStore(start, store)
        time.sleep(0.02)


@contextmanager
def join() -> Iterator[Team]:
    """Join the processes started by torchrun for the duration of the context; an existing process group is used."""
    if get_world_size() == 1:
        yield SINGLE_PROCESS
        return
    if not dist.is_available():
        raise SettingError("This torch was built without torch.distributed. Start relmo without torchrun.")
    should_init = not dist.is_initialized()
    try:
        if should_init:
            has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
            store, rank, world_size = next(dist.rendezvous("env://"))
            backend = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
            store = open_start_store(store, rank, world_size)
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
        control_group = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
        with warnings.catch_warnings():
            for message in IGNORED_WARNINGS:
                warnings.filterwarnings("ignore", message)
            yield Team(dist.get_rank(), dist.get_world_size(), control_group)
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise RelmoError("Another process of this run has ended. Start all processes again with --resume.") from error
    finally:
        time.sleep(GLOO_RELEASE_SECONDS)
        if should_init and dist.is_initialized():
            dist.destroy_process_group()

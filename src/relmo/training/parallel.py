"""Several processes that train one model, as torchrun starts them: `torchrun --nproc-per-node 2 -m relmo train lm …`.

Each process has its own piece of every batch, and gradients are averaged while the backward pass still goes on (torch's
DistributedDataParallel). The first process, rank 0, alone writes and prints. A `Team` is what a process knows of the
others; for a process by itself (`ALONE`) all its methods do nothing.

Two groups of connections: one on the device, for gradients and losses, which the host does not wait for; and one on the
CPU (gloo), for what the processes agree on. What a process tells another is numbers and JSON, never a pickle.
"""

import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from relmo.errors import RelmoError, SettingError
from relmo.networks.language_model import Loss
from relmo.nn.cells import State

PATIENCE = timedelta(days=1)  # how long the others wait while the first process reads a corpus or writes a checkpoint

SETTLED = 0.5  # seconds after which gloo's threads have let go of Python's tensors; torch would wait for them for ever

HARMLESS = (
    "`broadcast_buffers` is deprecated",  # its new name is not in every torch
    "Grad strides do not match bucket view strides",  # those of a filter of width 1, where any stride is the same
)


@dataclass(frozen=True)
class Team:
    """This process's place, `rank`, among the `size` that train together."""

    rank: int = 0
    size: int = 1
    control: Any = None  # the group on the CPU

    @property
    def leads(self) -> bool:
        """This is the process that writes and prints."""
        return self.rank == 0

    def share_gradients(self, model: nn.Module) -> Callable[[Any, State | None], Loss]:
        """`model.loss`, but its backward pass leaves each process with the mean of all processes' gradients. All begin
        with the first one's weights."""
        if self.size == 1:
            return model.loss  # type: ignore[return-value]
        from torch.nn.parallel import DistributedDataParallel

        leaves_out = any(isinstance(module, nn.AdaptiveLogSoftmaxWithLoss) for module in model.modules())
        return DistributedDataParallel(
            TrainingLoss(model),
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=leaves_out,  # a cluster of which a batch has no word gets no gradient
        )

    def unshared(self, loss: Callable[[Any, State | None], Loss]) -> AbstractContextManager[None]:
        """Within it gradients add up in each process by itself; the first backward pass after it shares them."""
        return nullcontext() if self.size == 1 else loss.no_sync()  # type: ignore[attr-defined]

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over all processes; on the device, nothing waits for it."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.size

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Which of the flags are up in any process."""
        return list(flags) if self.size == 1 else [bool(value) for value in self._largest(flags)]

    def share(self, value: Any, source: int = 0) -> Any:
        """What the process `source` has, given to all; plain values, as JSON can say them."""
        if self.size == 1:
            return value
        data = torch.frombuffer(bytearray(json.dumps(value), "utf-8"), dtype=torch.uint8)
        length = torch.tensor([len(data)])
        dist.broadcast(length, source, group=self.control)
        if self.rank != source:
            data = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(data, source, group=self.control)
        return json.loads(data.numpy().tobytes())

    def gather(self, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Every process's tensors, by rank; all have tensors of the same names, types and shapes."""
        if self.size == 1:
            return [tensors]
        everyone: list[dict[str, Tensor]] = [{} for _ in range(self.size)]
        for name, tensor in tensors.items():
            own = tensor.detach().cpu().contiguous()
            found = [torch.empty_like(own) for _ in range(self.size)]
            dist.all_gather([_as_bytes(t) for t in found], _as_bytes(own), group=self.control)
            for theirs, value in zip(everyone, found, strict=True):
                theirs[name] = value
        return everyone

    @contextmanager
    def together(self) -> Iterator[None]:
        """What goes wrong within, in any process, ends all of them: each raises the error of the first that failed.

        All processes must enter it, and none may talk to the others inside."""
        if self.size == 1:
            yield
            return
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        failed = self._largest([0 if failure is None else self.size - self.rank])[0]
        if not failed:
            return
        message = self.share(str(failure), source=self.size - failed)
        raise failure or RelmoError(message)

    def _largest(self, values: Sequence[int]) -> list[int]:
        found = torch.tensor([int(value) for value in values])
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.control)
        return found.tolist()


ALONE = Team()


class TrainingLoss(nn.Module):
    """A model whose forward pass is its training loss, which is what torch can average gradients of."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Any, carry: State | None) -> Loss:
        """The model's own `loss`."""
        return self.model.loss(batch, carry)  # type: ignore[operator]


def _as_bytes(tensor: Tensor) -> Tensor:
    """The same memory, byte by byte; gloo does not know every type."""
    return tensor.flatten().view(torch.uint8)


def processes() -> int:
    """How many processes torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def restarted() -> bool:
    """Whether torchrun has started this process in the place of one that ended (`--max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def one_process_only(what: str) -> None:
    """An error where there are several."""
    if processes() > 1:
        raise SettingError(f"{what} runs in one process, and there are {processes()}; start it without torchrun")


def own_device(device: torch.device) -> torch.device:
    """The GPU of this process, where each of several has its own."""
    if device.type == "cpu" or processes() == 1:
        return device
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if here > gpus:
        raise SettingError(
            f"{here} processes need as many GPUs, torch sees {gpus} here; use --nproc-per-node {gpus} or --device cpu"
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def own_store(store: dist.Store, rank: int, size: int) -> dist.Store:
    """The part of the store that belongs to this start of the processes alone.

    torchrun keeps one store over all its restarts, with the addresses of processes that are gone, and each machine
    counts the restarts by itself. So the first process makes up a name for this start. Every other one writes a name of
    its own below it; the first process repeats that name. An old first process is dead, and repeats nothing."""
    own = uuid.uuid4().hex
    if rank == 0:
        store.set("relmo", own)
        for other in range(1, size):
            store.set(f"relmo/{own}/{store.get(f'relmo/{own}/{other}').decode()}", "")
        return dist.PrefixStore(own, store)
    while True:
        start = store.get("relmo").decode()
        store.set(f"relmo/{start}/{rank}", own)
        if store.check([f"relmo/{start}/{own}"]):
            return dist.PrefixStore(start, store)
        time.sleep(0.02)


@contextmanager
def join() -> Iterator[Team]:
    """The team this process is in, for as long as it lasts; a group that the program has made itself is used."""
    if processes() == 1:
        yield ALONE
        return
    if not dist.is_available():
        raise SettingError("this torch was built without torch.distributed; start relmo without torchrun")
    ours = not dist.is_initialized()
    try:
        if ours:
            gpus = torch.cuda.is_available() and dist.is_nccl_available()
            store, rank, size = next(dist.rendezvous("env://"))
            backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
            dist.init_process_group(backend, store=own_store(store, rank, size), rank=rank, world_size=size)
        control = dist.new_group(backend="gloo", timeout=PATIENCE)
        with warnings.catch_warnings():
            for harmless in HARMLESS:
                warnings.filterwarnings("ignore", harmless)
            yield Team(dist.get_rank(), dist.get_world_size(), control)
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise RelmoError("another process of this run has ended; start all of them again, with --resume") from error
    finally:
        time.sleep(SETTLED)
        if ours and dist.is_initialized():
            dist.destroy_process_group()

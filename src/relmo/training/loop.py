"""The training loop. It is independent of the task: a model supplies `loss(batch, carry)`, data `get(epoch, index)`.

`Trainer.steps()` is a generator of steps; checkpoints and metrics (`runs/run.py`) and printing (the command line) are
outside it. `Trainer.state()` has everything that the rest of the run depends on: weights, optimiser, average, random
generators, the state carried from the last window, the step count (which determines the position in the data and the
learning rate), and the validation record. A fresh trainer that loads it continues as if the run had never stopped.

No step waits for the GPU: losses and norms stay on the device until they are read, and a thread prefetches batches.
With several processes (`training/parallel.py`) each rank has its own batches, carried state and random numbers;
weights, optimiser, losses and decisions are the same in all.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from relmo.errors import RelmoError
from relmo.networks.language_model import Loss
from relmo.nn.cells import State
from relmo.settings.training import TrainSettings
from relmo.training.batch import move_to_device
from relmo.training.graphs import GraphedLoss, supports_graphs
from relmo.training.optimizer import clip_factor, gradient_norm, make_optimizer, make_state_template, update
from relmo.training.parallel import SINGLE_PROCESS, Team

PREFETCH = 3  # batches that are prepared in advance for a GPU


class Batches(Protocol):
    """Training data with `len` batches per epoch, each a pure function of its position.

    One thread at a time calls `get`, not always the same one. Tensors may be on the host."""

    def __len__(self) -> int: ...
    def get(self, epoch: int, index: int) -> Any:
        """Return batch `index` of an epoch."""


class Step(NamedTuple):
    """Record of one optimiser step.

    `loss`, `norm` and `clipped` (the number of clipped steps so far) are tensors on the device."""

    number: int
    epoch: float
    lr: float
    loss: Tensor
    norm: Tensor
    clipped: Tensor
    predictions: int
    valid: float | None
    is_best: bool
    validation_seconds: float


class Prefetcher:
    """Thread that prepares up to `depth` batches in advance, in order; `end` is the number of batches of the run.

    Errors are raised by the `get` of their batch."""

    def __init__(self, batches: Batches, *, depth: int, end: int):
        self.batches, self.depth, self.end = batches, depth, end
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self.queue: deque[tuple[int, Future[Any]]] = deque()

    def get(self, position: int) -> Any:
        """Return the batch at this position of the run and schedule those after it."""
        while self.queue and self.queue[0][0] != position:
            self.queue.popleft()[1].cancel()
        for i in range(position + len(self.queue), max(position + 1, min(position + 1 + self.depth, self.end))):
            self.queue.append((i, self.executor.submit(self.batches.get, *divmod(i, len(self.batches)))))
        return self.queue.popleft()[1].result()

    def close(self) -> None:
        """End the thread after its current batch."""
        self.executor.shutdown(cancel_futures=True)


class Trainer:
    """Trainer of `model` on `batches`; `validate(model)` returns a number to be minimised.

    Parameters in `frozen(epoch)` (a fractional epoch) are not updated in that step. In a `team`, the batches of all
    ranks have equal numbers of predictions. `prefetch` batches are prepared in advance: by default PREFETCH on a GPU,
    and 0 on a CPU, where a thread would only take time from the step."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        settings: TrainSettings,
        validate: Callable[[nn.Module], float] | None = None,
        *,
        frozen: Callable[[float], Iterable[nn.Parameter]] | None = None,
        team: Team = SINGLE_PROCESS,
        prefetch: int | None = None,
    ):
        self.model = model
        self.batches = batches
        self.settings = settings
        self.validate = validate
        self.frozen = frozen
        self.team = team
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        saved_names = model.state_dict()
        self.buffers = [b for name, b in model.named_buffers() if name in saved_names]  # e.g. batch norm statistics
        self.device = self.parameters[0].device
        self.loss = team.distribute_loss(model)
        self.optimizer = make_optimizer(model, settings)
        self.average = [p.detach().clone() for p in self.parameters] if settings.average else []
        self.prefetch = PREFETCH * (self.device.type == "cuda") if prefetch is None else prefetch
        self.prefetcher: Prefetcher | None = None
        self.graphed: GraphedLoss | None = None
        if team.world_size == settings.accumulate == 1 and supports_graphs(model, self.device):
            self.graphed = GraphedLoss(self._loss, self.parameters)
        self.total = max(1, math.ceil(settings.epochs * len(batches) / settings.accumulate))
        self.number = 0
        self.carry: State | None = None
        self.clipped = torch.zeros((), device=self.device)
        self.best = math.inf
        self.since_best = 0
        torch.manual_seed(settings.seed + team.rank)

    @property
    def finished(self) -> bool:
        """Whether all steps are done or validation has stopped improving."""
        return self.number >= self.total or self.stopped_early

    @property
    def stopped_early(self) -> bool:
        """Whether validation has not improved for `patience` validations before the last step."""
        patience = self.settings.patience
        return patience is not None and self.since_best >= patience and self.number < self.total

    def set_total_steps(self, total: int) -> None:
        """Set the total number of steps of the run."""
        self.total = max(total, self.number, 1)
        if self.prefetcher is not None:
            self.prefetcher.end = self.total * self.settings.accumulate

    def steps(self) -> Generator[Step, None, None]:
        """Yield the remaining steps of the optimiser, each after its validation."""
        prefetcher: Prefetcher | None = None
        if self.prefetch:
            prefetcher = Prefetcher(self.batches, depth=self.prefetch, end=self.total * self.settings.accumulate)
            self.prefetcher = prefetcher
        try:
            while not self.finished:
                yield self._step()
        finally:
            if prefetcher is not None:
                prefetcher.close()
                if self.prefetcher is prefetcher:
                    self.prefetcher = None

    def batch(self, position: int) -> Any:
        """Return the batch at this position, counted over all epochs, on the device."""
        if self.prefetcher is not None:
            return move_to_device(self.prefetcher.get(position), self.device)
        return move_to_device(self.batches.get(*divmod(position, len(self.batches))), self.device)

    def _step(self) -> Step:
        loss, norm, lr, count = self.advance()
        start = time.perf_counter()
        valid, is_best = self._validate_if_due()
        seconds = 0.0 if valid is None else time.perf_counter() - start
        epoch = self.number * self.settings.accumulate / len(self.batches)
        return Step(self.number, epoch, lr, loss, norm, self.clipped, count, valid, is_best, seconds)

    def advance(self) -> tuple[Tensor, Tensor, float, int]:
        """Take one step without validation; return loss, gradient norm, learning rate and number of predictions."""
        settings = self.settings
        lr = learning_rate(settings, self.number, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.model.train()  # validation may have left modules in evaluation mode
        loss, count = self._backward()
        if self.frozen is not None:
            for parameter in self.frozen(self.number * settings.accumulate / len(self.batches)):
                parameter.grad = None  # no update, no decay, and no part in the norm
        norm = gradient_norm(self.parameters)
        factor = None
        if settings.clip_norm:
            factor = clip_factor(norm, settings.clip_norm)
            self.clipped += norm > settings.clip_norm
        # The average decays faster at the beginning, so that it forgets the initial weights.
        decay = min(settings.average, (1 + self.number) / (10 + self.number))
        averages = dict(zip(self.parameters, self.average, strict=False))
        update(self.optimizer, averages, factor=factor, weight=1 - decay)
        self.optimizer.zero_grad(set_to_none=True)
        self.number += 1
        return loss, norm, lr, count

    def _backward(self) -> tuple[Tensor, int]:
        """Compute the gradients of `accumulate` batches; return mean loss and number of predictions over all ranks."""
        accumulate = self.settings.accumulate
        total, count = torch.zeros((), device=self.device), 0
        for part in range(accumulate):
            position = self.number * accumulate + part
            batch, carry = self.batch(position), self.carry if position % len(self.batches) else None
            if self.graphed is not None and carry is not None:
                loss = self.graphed(batch, carry)
                self.carry = loss.carry
                return loss.mean, loss.predictions
            with nullcontext() if part == accumulate - 1 else self.team.no_sync(self.loss):
                loss = self._loss(batch, carry)
                (loss.mean / accumulate).backward()
            self.carry = loss.carry
            total += loss.mean.detach() / accumulate
            count += loss.predictions
        return self.team.mean(total), count * self.team.world_size

    def _loss(self, batch: Any, carry: State | None) -> Loss:
        with self._autocast():
            return self.loss(batch, carry)

    def _autocast(self) -> torch.autocast:
        enabled = self.settings.precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _validate_if_due(self) -> tuple[float | None, bool]:
        every = self.settings.validate_every or max(1, len(self.batches) // self.settings.accumulate)
        if self.validate is None or (self.number % every and self.number < self.total):
            return None, False
        with self.averaged_weights():
            valid = self.team.broadcast(self.validate(self.model))
        if not math.isfinite(valid):
            raise RelmoError(f"The validation loss is {valid} after step {self.number}; lower --lr or --clip-norm.")
        is_best = valid < self.best
        self.best, self.since_best = (valid, 0) if is_best else (self.best, self.since_best + 1)
        return valid, is_best

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Use the averaged weights within the context, if the settings ask for an average."""
        backup = [p.detach().clone() for p in self.parameters] if self.average else []
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=False):
                parameter.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, weight in zip(self.parameters, backup, strict=False):
                    parameter.copy_(weight)

    def _model_tensors(self) -> dict[str, Tensor]:
        tensors = {f"model.{i}": p.detach() for i, p in enumerate(self.parameters)}
        tensors |= {f"average.{i}": a for i, a in enumerate(self.average)}
        return tensors | {f"buffer.{i}": b for i, b in enumerate(self.buffers)} | {"clipped": self.clipped}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors by name and plain values, everything the rest of the run depends on, of all ranks."""
        tensors = self._model_tensors()
        for i, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{key}": torch.as_tensor(moment) for key, moment in moments.items()}
        rank_tensors = {f"carry.{i}": tensor for i, tensor in enumerate(self.carry or ())}
        rank_tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            rank_tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        for rank, gathered in enumerate(self.team.all_gather(rank_tensors)):
            tensors |= {_rank_name(rank, name): tensor for name, tensor in gathered.items()}
        return tensors, {"step": self.number, "total": self.total, "best": self.best, "since_best": self.since_best}

    def find_mismatch(self, tensors: dict[str, Tensor]) -> str | None:
        """Return why these tensors cannot be a state of this trainer, by names, types and shapes; None if they can."""
        expected = self._model_tensors()
        for i, template in enumerate(make_state_template(self.optimizer, self.settings)):
            moments = {f"optimizer.{i}.{key}": tensor for key, tensor in template.items()}
            # Except for Adagrad, the state of a parameter is created by its first gradient.
            if self.settings.optimizer == "adagrad" or tensors.keys() & moments.keys():
                expected |= moments
        with torch.no_grad(), self._autocast():
            carry = self.model.loss(self.batch(0), None).carry  # type: ignore[operator]
        rank_tensors = {f"carry.{i}": tensor for i, tensor in enumerate(carry)}
        rank_tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda" and "random.cuda" in tensors:
            rank_tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        for rank in range(self.team.world_size):
            expected |= {_rank_name(rank, name): tensor for name, tensor in rank_tensors.items()}
        names = {name for name in tensors if name in expected or not name.endswith("random.cuda")}
        for name in sorted(expected.keys() | names):
            actual, required = _describe(tensors.get(name)), _describe(expected.get(name))
            if actual != required:
                return f"'{name[:40]}' is {actual}, expected {required}"
        return None

    def find_problem(self, tensors: dict[str, Tensor], values: Any) -> str | None:
        """Return why a state without mismatch cannot be loaded; None if it can."""
        names = ("step", "total", "best", "since_best")
        step, total, best, since = (values.get(name) if isinstance(values, dict) else None for name in names)
        if self.settings.minutes is None:
            total = self.total
        if type(step) is not int or type(total) is not int or not 0 < step <= total < 1 << 62:
            return f"its step is {step!r:.40} of {total!r:.40}"
        if type(best) is not float or math.isnan(best) or type(since) is not int or since < 0:
            return f"its best validation is {best!r:.40}, {since!r:.40} validations ago"
        try:
            torch.Generator().set_state(tensors[_rank_name(self.team.rank, "random.cpu")])
        except RuntimeError as error:
            return f"its random generator cannot be restored: {error}"
        return None

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore the result of `state`; tensors may be on any device."""
        with torch.no_grad():
            for name, tensor in self._model_tensors().items():
                tensor.copy_(tensors[name])
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".")
                optimizer["state"].setdefault(int(index), {})[key] = tensor
        self.optimizer.load_state_dict(optimizer)
        rank = self.team.rank
        names = [_rank_name(rank, f"carry.{i}") for i in range(len(tensors))]
        self.carry = tuple(tensors[name].to(self.device) for name in names if name in tensors) or None
        torch.set_rng_state(tensors[_rank_name(rank, "random.cpu")].cpu())
        cuda = tensors.get(_rank_name(rank, "random.cuda"))
        if cuda is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(cuda.cpu(), self.device)
        self.number, self.best, self.since_best = values["step"], values["best"], values["since_best"]
        if self.settings.minutes is not None:
            self.set_total_steps(values["total"])


def _describe(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _rank_name(rank: int, name: str) -> str:
    """Return the name in a checkpoint of a tensor that differs between ranks; the leader's has no prefix."""
    return f"rank{rank}.{name}" if rank else name


def learning_rate(settings: TrainSettings, step: int, total: int) -> float:
    """Return the learning rate of a step: linear warm-up over at most a tenth of all steps, then the decay."""
    warmup = min(settings.warmup, total // 10)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    decays = {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}
    return settings.lr * (settings.final_lr + (1 - settings.final_lr) * decays[settings.decay])

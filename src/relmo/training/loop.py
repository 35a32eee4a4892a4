"""The one training loop. It knows nothing of any task: a model supplies `loss(batch, carry)`, data supplies `get(epoch,
index)`.

`Trainer.steps()` is a generator of steps; checkpoints and metrics (`runs/run.py`) and printing (the command line)
live outside it. All that the future depends on is in `Trainer.state()`: weights, optimiser, average, random generators,
the state carried from the last window, the step count (from which the position in the data and the learning rate
follow), and the record of validation. Loaded into a fresh trainer, the run goes on as if it had never stopped.

No step waits for the GPU: losses and norms stay on the device until somebody looks at them. While it computes, a thread
makes the next batches.

Several processes (`training/parallel.py`) take each step together: each has its own batches, carried state and random
numbers; weights, optimiser, losses and decisions are the same in all.
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
from relmo.training.batch import on_device
from relmo.training.graphs import GraphedLoss, suits
from relmo.training.optimizer import clip_factor, gradient_norm, make_optimizer, state_like, update
from relmo.training.parallel import ALONE, Team

AHEAD = 3  # batches that are made ahead for a GPU


class Batches(Protocol):
    """Training data: `len` batches an epoch, each a pure function of its place.

    One thread at a time asks for them, not always the same one. Their tensors may be on the host."""

    def __len__(self) -> int: ...
    def get(self, epoch: int, index: int) -> Any:
        """Batch `index` of an epoch."""


class Step(NamedTuple):
    """What one step of the optimiser did.

    `loss`, `norm` and `clipped` (how many steps so far were clipped) are tensors, still on the device."""

    number: int
    epoch: float
    lr: float
    loss: Tensor
    norm: Tensor
    clipped: Tensor
    predictions: int
    valid: float | None
    is_best: bool
    validating: float  # seconds that validation took


class Ahead:
    """Batches by their place in the whole run, made by a thread of its own up to `depth` before they are asked for, in
    order. What goes wrong there is raised where the batch is asked for."""

    def __init__(self, batches: Batches, *, depth: int, end: int):
        self.batches, self.depth, self.end = batches, depth, end
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self.waiting: deque[tuple[int, Future[Any]]] = deque()

    def get(self, place: int) -> Any:
        """The batch of this place; the ones after it are on their way when it returns."""
        while self.waiting and self.waiting[0][0] != place:
            self.waiting.popleft()[1].cancel()
        for following in range(place + len(self.waiting), max(place + 1, min(place + 1 + self.depth, self.end))):
            self.waiting.append(
                (following, self.thread.submit(self.batches.get, *divmod(following, len(self.batches))))
            )
        return self.waiting.popleft()[1].result()

    def close(self) -> None:
        """Ends the thread, after the batch it is at."""
        self.thread.shutdown(cancel_futures=True)


class Trainer:
    """Trains `model` on `batches`; `validate(model)` gives the number that should fall.

    The parameters that `frozen(epoch)` lists, the epoch a fraction, stay as they are in that step. In a `team`, every
    process's batches hold as many predictions. `ahead` batches are made before they are needed: AHEAD on a GPU; on a
    CPU none, where that would only take time from the step."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        settings: TrainSettings,
        validate: Callable[[nn.Module], float] | None = None,
        *,
        frozen: Callable[[float], Iterable[nn.Parameter]] | None = None,
        team: Team = ALONE,
        ahead: int | None = None,
    ):
        self.model = model
        self.batches = batches
        self.settings = settings
        self.validate = validate
        self.frozen = frozen
        self.team = team
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        kept = model.state_dict()
        self.buffers = [b for name, b in model.named_buffers() if name in kept]  # such as a batch norm's statistics
        self.device = self.parameters[0].device
        self.loss = team.share_gradients(model)
        self.optimizer = make_optimizer(model, settings)
        self.average = [p.detach().clone() for p in self.parameters] if settings.average else []
        self.ahead = AHEAD * (self.device.type == "cuda") if ahead is None else ahead
        self.fetched: Ahead | None = None
        single = team.size == settings.accumulate == 1
        self.graphed = GraphedLoss(self._loss, self.parameters) if single and suits(model, self.device) else None
        self.total = max(1, math.ceil(settings.epochs * len(batches) / settings.accumulate))
        self.number = 0
        self.carry: State | None = None
        self.clipped = torch.zeros((), device=self.device)
        self.best = math.inf
        self.since_best = 0
        torch.manual_seed(settings.seed + team.rank)

    @property
    def finished(self) -> bool:
        """All steps are done, or validation has stopped getting better."""
        patience = self.settings.patience
        return self.number >= self.total or (patience is not None and self.since_best >= patience)

    @property
    def stopped_early(self) -> bool:
        """Whether validation has not improved for `patience` validations, before the last step."""
        patience = self.settings.patience
        return patience is not None and self.since_best >= patience and self.number < self.total

    def end_at(self, total: int) -> None:
        """The run has so many steps from now on."""
        self.total = max(total, self.number, 1)
        if self.fetched is not None:
            self.fetched.end = self.total * self.settings.accumulate

    def steps(self) -> Generator[Step, None, None]:
        """Steps of the optimiser until the end; each is done, validation included, when it is yielded."""
        with self._fetching():
            while not self.finished:
                yield self._step()

    @contextmanager
    def _fetching(self) -> Iterator[None]:
        """Within it batches are made ahead, where that is wanted."""
        if not self.ahead:
            yield
            return
        ahead = self.fetched = Ahead(self.batches, depth=self.ahead, end=self.total * self.settings.accumulate)
        try:
            yield
        finally:
            ahead.close()
            if self.fetched is ahead:
                self.fetched = None

    def batch(self, place: int) -> Any:
        """The batch of this place, counted through the epochs, on the device."""
        if self.fetched is not None:
            return on_device(self.fetched.get(place), self.device)
        return on_device(self.batches.get(*divmod(place, len(self.batches))), self.device)

    def _step(self) -> Step:
        loss, norm, lr, count = self.advance()
        begun = time.perf_counter()
        valid, is_best = self._validate_if_due()
        validating = 0.0 if valid is None else time.perf_counter() - begun
        epoch = self.number * self.settings.accumulate / len(self.batches)
        return Step(self.number, epoch, lr, loss, norm, self.clipped, count, valid, is_best, validating)

    def advance(self) -> tuple[Tensor, Tensor, float, int]:
        """One step of the optimiser, without validation. -> the loss, the gradients' norm, the learning rate,
        predictions made"""
        settings = self.settings
        lr = learning_rate(settings, self.number, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.model.train()  # all of it: a validation may have left parts of it in the other mode
        loss, count = self._backward()
        if self.frozen is not None:
            for parameter in self.frozen(self.number * settings.accumulate / len(self.batches)):
                parameter.grad = None  # no step, no decay, and no part in the norm
        norm = gradient_norm(self.parameters)
        self._update(norm)
        self.number += 1
        return loss, norm, lr, count

    def _backward(self) -> tuple[Tensor, int]:
        """Gradients of `accumulate` batches. -> mean loss (on the device), predictions made; of all processes."""
        accumulate = self.settings.accumulate
        total, count = torch.zeros((), device=self.device), 0
        for part in range(accumulate):
            place = self.number * accumulate + part
            batch, carry = self.batch(place), self.carry if place % len(self.batches) else None
            if self.graphed is not None and carry is not None:
                loss = self.graphed(batch, carry)
                self.carry = loss.carry
                return loss.mean, loss.predictions
            with nullcontext() if part == accumulate - 1 else self.team.unshared(self.loss):
                loss = self._loss(batch, carry)
                (loss.mean / accumulate).backward()
            self.carry = loss.carry
            total += loss.mean.detach() / accumulate
            count += loss.predictions
        return self.team.mean(total), count * self.team.size

    def _update(self, norm: Tensor) -> None:
        """Moves the weights by their gradients, of this norm, and their average after them."""
        limit, factor = self.settings.clip_norm, None
        if limit:
            factor = clip_factor(norm, limit)
            self.clipped += norm > limit
        averages = dict(zip(self.parameters, self.average, strict=False))
        update(self.optimizer, averages, factor=factor, weight=1 - self._average_decay())
        self.optimizer.zero_grad(set_to_none=True)

    def _loss(self, batch: Any, carry: State | None) -> Loss:
        with self._precision():
            return self.loss(batch, carry)

    def _precision(self) -> torch.autocast:
        bfloat16 = self.settings.precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bfloat16)

    def _average_decay(self) -> float:
        """Short at first, so that the average forgets where it began."""
        return min(self.settings.average, (1 + self.number) / (10 + self.number))

    def _validate_if_due(self) -> tuple[float | None, bool]:
        every = self.settings.validate_every or max(1, len(self.batches) // self.settings.accumulate)
        if self.validate is None or (self.number % every and self.number < self.total):
            return None, False
        with self.averaged():
            valid = self.team.share(self.validate(self.model))
        if not math.isfinite(valid):
            raise RelmoError(f"the validation loss is {valid} after step {self.number}; lower --lr or --clip-norm")
        is_best = valid < self.best
        self.best, self.since_best = (valid, 0) if is_best else (self.best, self.since_best + 1)
        return valid, is_best

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it the model has the averaged weights, where the settings ask for an average."""
        own = [p.detach().clone() for p in self.parameters] if self.average else []
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=False):
                parameter.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.parameters, own, strict=False):
                    parameter.copy_(value)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name and plain values: all that the rest of the run depends on, in every process of the team."""
        tensors = {f"model.{i}": p.detach() for i, p in enumerate(self.parameters)}
        tensors |= {f"average.{i}": a for i, a in enumerate(self.average)}
        tensors |= {f"buffer.{i}": b for i, b in enumerate(self.buffers)}
        for i, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{key}": torch.as_tensor(value) for key, value in values.items()}
        tensors["clipped"] = self.clipped
        for rank, own in enumerate(self.team.gather(self._own_state())):
            tensors |= {_own_name(rank, name): tensor for name, tensor in own.items()}
        values = {"step": self.number, "total": self.total, "best": self.best, "since_best": self.since_best}
        return tensors, values

    def _own_state(self) -> dict[str, Tensor]:
        """What is not the same in every process."""
        own = {f"carry.{i}": tensor for i, tensor in enumerate(self.carry or ())}
        own["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            own["random.cuda"] = torch.cuda.get_rng_state(self.device)
        return own

    def misfit(self, tensors: dict[str, Tensor]) -> str | None:
        """Why these tensors, by their names, types and shapes, are no state of this trainer after a step; None where
        they are one. Their numbers are not looked at."""
        wanted = {f"model.{i}": p.detach() for i, p in enumerate(self.parameters)}
        wanted |= {f"average.{i}": a for i, a in enumerate(self.average)}
        wanted |= {f"buffer.{i}": b for i, b in enumerate(self.buffers)}
        wanted["clipped"] = self.clipped
        for i, like in enumerate(state_like(self.optimizer, self.settings)):
            state = {f"optimizer.{i}.{key}": tensor for key, tensor in like.items()}
            if self.settings.optimizer == "adagrad" or tensors.keys() & state.keys():
                wanted |= state  # others begin it with the parameter's first gradient
        with torch.no_grad(), self._precision():
            carry = self.model.loss(self.batch(0), None).carry  # type: ignore[operator]
        own = {f"carry.{i}": tensor for i, tensor in enumerate(carry)}
        own["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda" and "random.cuda" in tensors:
            own["random.cuda"] = torch.cuda.get_rng_state(self.device)
        for rank in range(self.team.size):
            wanted |= {_own_name(rank, name): tensor for name, tensor in own.items()}
        there = {name: tensors[name] for name in tensors if name in wanted or not name.endswith("random.cuda")}
        for name in sorted(wanted.keys() | there.keys()):
            if _kind_of(there.get(name)) != _kind_of(wanted.get(name)):
                return f"'{name[:40]}' is {_kind_of(there.get(name))}, expected {_kind_of(wanted.get(name))}"
        return None

    def unusable(self, tensors: dict[str, Tensor], values: Any) -> str | None:
        """Why a state whose tensors fit cannot be loaded; None where it can."""
        names = ("step", "total", "best", "since_best")
        step, total, best, since = (values.get(name) if isinstance(values, dict) else None for name in names)
        if self.settings.minutes is None:
            total = self.total
        if type(step) is not int or type(total) is not int or not 0 < step <= total < 1 << 62:
            return f"its step is {step!r:.40}, of {total!r:.40}"
        if type(best) is not float or math.isnan(best) or type(since) is not int or since < 0:
            return f"its best validation is {best!r:.40}, {since!r:.40} validations ago"
        try:
            torch.Generator().set_state(tensors[_own_name(self.team.rank, "random.cpu")])
        except RuntimeError as error:
            return f"its random numbers: {error}"
        return None

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Puts back what `state` gave; tensors may come from any device."""
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters):
                parameter.copy_(tensors[f"model.{i}"])
            for i, average in enumerate(self.average):
                average.copy_(tensors[f"average.{i}"])
            for i, buffer in enumerate(self.buffers):
                buffer.copy_(tensors[f"buffer.{i}"])
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".")
                optimizer["state"].setdefault(int(index), {})[key] = tensor
        self.optimizer.load_state_dict(optimizer)
        rank = self.team.rank
        names = [_own_name(rank, f"carry.{i}") for i in range(len(tensors))]
        self.carry = tuple(tensors[name].to(self.device) for name in names if name in tensors) or None
        torch.set_rng_state(tensors[_own_name(rank, "random.cpu")].cpu())
        cuda = tensors.get(_own_name(rank, "random.cuda"))
        if cuda is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(cuda.cpu(), self.device)
        self.clipped.copy_(tensors["clipped"])
        self.number, self.best, self.since_best = values["step"], values["best"], values["since_best"]
        if self.settings.minutes is not None:
            self.end_at(values["total"])


def _kind_of(tensor: Tensor | None) -> str:
    """A tensor's shape and type, as they are printed."""
    return "missing" if tensor is None else f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _own_name(rank: int, name: str) -> str:
    """The name of a process's own tensor in a checkpoint; the first process's, or the only one's, is the plain one."""
    return f"rank{rank}.{name}" if rank else name


def learning_rate(settings: TrainSettings, step: int, total: int) -> float:
    """Rises linearly over `warmup` steps (at most a tenth of all), then falls from lr to final_lr * lr at the last
    step."""
    warmup = min(settings.warmup, total // 10)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, total - warmup)
    left = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[settings.decay]
    return settings.lr * (settings.final_lr + (1 - settings.final_lr) * left)

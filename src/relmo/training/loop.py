"""The training loop, its plan, and steps as CUDA graphs; independent of the task, of files and of printing.

`Trainer.state()` has everything that the rest of the run depends on: weights, optimiser, average, random generators,
carried state, step count (which determines the position in the data and the learning rate) and validation record. A
fresh trainer that loads it continues as if the run had never stopped. No step waits for the GPU: losses and norms stay
on the device until they are read, and a thread prefetches batches. With several processes (`training/parallel.py`) each
rank has its own batches, carried state and random numbers; everything else is the same in all.
"""

import math
import os
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from relmo.errors import RelmoError, SettingError
from relmo.networks.language_model import Loss
from relmo.nn.recurrence import State
from relmo.settings.sections import TrainSettings
from relmo.training.batch import map_tensors, move_to_device
from relmo.training.optimizer import clip_factor, gradient_norm, make_optimizer, update
from relmo.training.parallel import SINGLE_PROCESS, Team, TrainingLoss

PREFETCH = 3  # batches that are prepared in advance for a GPU
MAX_TRIAL_STEPS, MAX_TRIAL_SECONDS = 12, 2.0  # of the steps that are timed for the plan
MAX_GRAPHS = 12  # each has gradients of its own
WARM_UP_STEPS = 2  # before recording a graph, while libraries allocate their workspaces


class Batches(Protocol):
    """Training data with `len` batches per epoch, each a pure function of its position; not thread-safe."""

    def __len__(self) -> int: ...
    def get(self, epoch: int, index: int) -> Any:
        """Return batch `index` of an epoch."""


class Step(NamedTuple):
    """Record of one optimiser step; `clipped` is the number of clipped steps so far."""

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


class RecordedStep(NamedTuple):
    """A graph, its input tensors (batch and carried state), and the loss and gradients that it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    loss: Loss
    gradients: list[Tensor | None]


class GraphedLoss:
    """A loss function with its backward pass, replayed from one CUDA graph per shape of batch.

    A step of a recurrent network is a thousand small kernels, which Python launches more slowly than they run. Random
    numbers are drawn at every replay, from the generator's current state. RELMO_GRAPHS=0 turns graphs off."""

    def __init__(self, loss: Callable[[Any, State | None], Loss], parameters: Sequence[nn.Parameter]):
        self.loss = loss
        self.parameters = list(parameters)
        self.steps: OrderedDict[Any, RecordedStep] = OrderedDict()  # least recently used first
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Any, carry: State) -> Loss:
        """Return the detached loss of the batch and set the gradients of the parameters."""
        inputs: list[Tensor] = []
        map_tensors((batch, carry), inputs.append)
        key = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        if key not in self.steps:
            if len(self.steps) == MAX_GRAPHS:
                self.steps.popitem(last=False)
            self.steps[key] = self._record(batch, carry)
        self.steps.move_to_end(key)
        step = self.steps[key]
        torch._foreach_copy_(step.inputs, inputs)
        step.graph.replay()
        for parameter, gradient in zip(self.parameters, step.gradients, strict=True):
            parameter.grad = gradient
        mean, predictions, state = step.loss
        return Loss(mean.clone(), predictions, None if state is None else tuple(tensor.clone() for tensor in state))

    def _record(self, batch: Any, carry: State) -> RecordedStep:
        batch, carry = map_tensors((batch, carry), Tensor.clone)
        device = carry[0].device
        rng_state = torch.cuda.get_rng_state(device)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self._run(batch, carry)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            loss = self._run(batch, carry)
        torch.cuda.set_rng_state(rng_state, device)  # recording must not advance the generator
        inputs: list[Tensor] = []
        map_tensors((batch, carry), inputs.append)
        return RecordedStep(graph, inputs, loss, [parameter.grad for parameter in self.parameters])

    def _run(self, batch: Any, carry: State) -> Loss:
        for parameter in self.parameters:
            parameter.grad = None
        loss = self.loss(batch, carry)
        loss.mean.backward()
        return loss._replace(mean=loss.mean.detach())


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
        self.model, self.batches, self.settings = model, batches, settings
        self.validate, self.frozen, self.team = validate, frozen, team
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        saved_names = model.state_dict()
        self.buffers = [b for name, b in model.named_buffers() if name in saved_names]  # e.g. batch norm statistics
        self.device = self.parameters[0].device
        self.loss: Callable[[Any, State | None], Loss] = model.loss  # type: ignore[assignment]
        if team.world_size > 1:  # the backward pass averages gradients, and all ranks start from rank 0's weights
            from torch.nn.parallel import DistributedDataParallel

            # A cluster of an adaptive softmax without a word in the batch gets no gradient.
            has_unused = any(isinstance(module, nn.AdaptiveLogSoftmaxWithLoss) for module in model.modules())
            self.loss = DistributedDataParallel(
                TrainingLoss(model),
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=has_unused,
            )
        self.optimizer = make_optimizer(model, settings)
        is_averaged = settings.average or settings.average_after is not None
        self.average = [p.detach().clone() for p in self.parameters] if is_averaged else []
        self.average_start = torch.zeros((), dtype=torch.int64)  # step of the trigger of `average_after`; 0 before it
        # The best validation before the last `average_after` ones, and these.
        self.last_validations = torch.full((1 + (settings.average_after or 0),), math.inf, dtype=torch.float64)
        if settings.average_after is not None and validate is None:
            raise SettingError("average_after needs validation; it has no effect without")
        self.prefetch = PREFETCH * (self.device.type == "cuda") if prefetch is None else prefetch
        self.executor: ThreadPoolExecutor | None = None  # thread that prepares batches, in order
        self.queue: deque[tuple[int, Future[Any]]] = deque()  # their positions and futures
        enabled = settings.precision == "bfloat16"
        self.autocast = partial(torch.autocast, self.device.type, dtype=torch.bfloat16, enabled=enabled)
        self.graphed: GraphedLoss | None = None
        has_graphs = self.device.type == "cuda" and getattr(model, "graphs", False)
        if has_graphs and team.world_size == settings.accumulate == 1 and os.environ.get("RELMO_GRAPHS") != "0":
            self.graphed = GraphedLoss(self._loss, self.parameters)
        self.total = self.count_steps(settings.epochs)
        self.number, self.best, self.since_best = 0, math.inf, 0
        self.carry: State | None = None
        self.clipped = torch.zeros((), device=self.device)
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

    def count_steps(self, epochs: float) -> int:
        """Return the number of steps from the beginning of the run to this epoch."""
        return max(1, math.ceil(epochs * len(self.batches) / self.settings.accumulate))

    def set_total_steps(self, total: int) -> None:
        """Set the total number of steps of the run."""
        self.total = max(total, self.number, 1)

    def steps(self) -> Generator[Step, None, None]:
        """Yield the remaining steps of the optimiser, each after its validation."""
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") if self.prefetch else None
        self.executor, self.queue = executor, deque()
        try:
            while not self.finished:
                yield self._step()
        finally:
            if executor is not None:
                executor.shutdown(cancel_futures=True)  # ends the thread after its current batch
                if self.executor is executor:
                    self.executor = None

    def batch(self, position: int) -> Any:
        """Return the batch at this position, counted over all epochs, on the device, and prefetch those after it."""
        if self.executor is None:
            return move_to_device(self.batches.get(*divmod(position, len(self.batches))), self.device)
        while self.queue and self.queue[0][0] != position:
            self.queue.popleft()[1].cancel()
        end = min(position + 1 + self.prefetch, self.total * self.settings.accumulate)
        for i in range(position + len(self.queue), max(position + 1, end)):
            self.queue.append((i, self.executor.submit(self.batches.get, *divmod(i, len(self.batches)))))
        return move_to_device(self.queue.popleft()[1].result(), self.device)

    def _step(self) -> Step:
        loss, norm, lr, count = self.advance()
        start, seconds = time.perf_counter(), 0.0
        valid, is_best = None, False
        every = self.settings.validate_every or max(1, len(self.batches) // self.settings.accumulate)
        if self.validate is not None and (self.number % every == 0 or self.number >= self.total):
            with self.averaged_weights():
                valid = self.team.broadcast(self.validate(self.model))
            if not math.isfinite(valid):
                raise RelmoError(f"The validation loss is {valid} after step {self.number}; lower --lr or --clip-norm.")
            is_best = valid < self.best
            self.best, self.since_best = (valid, 0) if is_best else (self.best, self.since_best + 1)
            if self.settings.average_after is not None:
                self._check_trigger(valid)
            seconds = time.perf_counter() - start
        epoch = self.number * self.settings.accumulate / len(self.batches)
        return Step(self.number, epoch, lr, loss, norm, self.clipped, count, valid, is_best, seconds)

    def advance(self) -> tuple[Tensor, Tensor, float, int]:
        """Take one step without validation; return loss, gradient norm, learning rate and number of predictions."""
        settings = self.settings
        lr = learning_rate(settings, self.number, self.total) * self._lr_factor()
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
        averages = dict(zip(self.parameters, self.average, strict=False))
        update(self.optimizer, averages, factor=factor, weight=self._average_weight())
        self.optimizer.zero_grad(set_to_none=True)
        self.number += 1
        return loss, norm, lr, count

    def _lr_factor(self) -> float:
        """Return the factor of the learning rate by the lengths of this step's windows, if the batches have one."""
        get_factor = getattr(self.batches, "lr_factor", None)
        if get_factor is None:
            return 1.0
        accumulate, length = self.settings.accumulate, len(self.batches)
        positions = range(self.number * accumulate, (self.number + 1) * accumulate)
        return float(sum(get_factor(*divmod(position, length)) for position in positions) / accumulate)

    def _average_weight(self) -> float:
        """Return the weight in the average of the weights after this step."""
        if self.settings.average_after is None:
            # The average decays faster at the beginning, so that it forgets the initial weights.
            return 1 - min(self.settings.average, (1 + self.number) / (10 + self.number))
        start = int(self.average_start)  # those of this step and all later ones have equal weights
        return 1 / (self.number + 2 - start) if start else 1.0

    def _check_trigger(self, valid: float) -> None:
        """Start averaging if a validation is worse than the best one before the last `average_after` ones."""
        best, *recent = self.last_validations.tolist()
        if valid > best and not self.average_start:
            self.average_start.fill_(self.number)
        self.last_validations.copy_(torch.tensor([min(best, recent[0]), *recent[1:], valid], dtype=torch.float64))

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
            # Ranks average their gradients in the last backward pass only.
            is_synced = part == accumulate - 1 or self.team.world_size == 1
            with nullcontext() if is_synced else self.loss.no_sync():  # type: ignore[attr-defined]
                loss = self._loss(batch, carry)
                (loss.mean / accumulate).backward()
            self.carry = loss.carry
            total += loss.mean.detach() / accumulate
            count += loss.predictions
        return self.team.mean(total), count * self.team.world_size

    def _loss(self, batch: Any, carry: State | None) -> Loss:
        with self.autocast():
            return self.loss(batch, carry)

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
        lists = {"model": [p.detach() for p in self.parameters], "average": self.average, "buffer": self.buffers}
        tensors = {f"{kind}.{i}": tensor for kind, tensors in lists.items() for i, tensor in enumerate(tensors)}
        if self.settings.average_after is not None:
            tensors |= {"average_start": self.average_start, "last_validations": self.last_validations}
        return tensors | {"clipped": self.clipped}

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
        num_parameters = 0  # in torch's order
        for group in self.optimizer.param_groups:
            optimizer_name = "sgd" if "rows" in group else self.settings.optimizer  # Muon's matrices have SGD's state
            keys = {"adagrad": ["sum"], "sgd": ["momentum_buffer"]}.get(optimizer_name, ["exp_avg", "exp_avg_sq"])
            for i, parameter in enumerate(group["params"], start=num_parameters):
                moments = {f"optimizer.{i}.{key}": parameter for key in keys}
                if self.settings.optimizer != "sgd":
                    moments[f"optimizer.{i}.step"] = torch.zeros(())
                # Except for Adagrad, the state of a parameter is created by its first gradient.
                if self.settings.optimizer == "adagrad" or tensors.keys() & moments.keys():
                    expected |= moments
            num_parameters += len(group["params"])
        with torch.no_grad(), self.autocast():
            carry = self.model.loss(self.batch(0), None).carry  # type: ignore[operator]
        rank_tensors = {f"carry.{i}": tensor for i, tensor in enumerate(carry)}
        rank_tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda" and "random.cuda" in tensors:
            rank_tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        for rank in range(self.team.world_size):
            expected |= {_rank_name(rank, name): tensor for name, tensor in rank_tensors.items()}
        names = {name for name in tensors if name in expected or not name.endswith("random.cuda")}
        actual, required = (
            {name: f"{tuple(t.shape)} of {str(t.dtype).removeprefix('torch.')}" for name, t in side.items()}
            for side in (tensors, expected)
        )
        for name in sorted(expected.keys() | names):
            form, required_form = actual.get(name, "missing"), required.get(name, "missing")
            if form != required_form:
                return f"'{name[:40]}' is {form}, expected {required_form}"
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
        if not 0 <= int(tensors.get("average_start", 0)) <= step:
            return f"its average starts at step {int(tensors['average_start'])}, after step {step}"
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


@dataclass(frozen=True)
class Plan:
    """The expected cost of a run: predictions per epoch, named by `unit`; peak memory in bytes if it is known."""

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
